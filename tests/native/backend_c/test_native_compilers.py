"""Compilers' answers, kept: what is another compiler is asked anew."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import sys
from pathlib import Path

import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends.native.toolchain import compilers, toolchain

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="answers are kept on Linux"
)


class Asked:
    """A compiler that says who it is, and counts how often it was asked."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str | None:
        self.count += 1
        return f"answer {self.count}\nmore"


@pytest.fixture
def gcc(tmp_path: Path) -> Path:
    return made(tmp_path / "bin" / "gcc-12")


def made(path: Path, content: bytes = b"\x7fELF one") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def told(asked: Asked, tmp_path: Path, *command: str) -> str | None:
    return compilers.said_by(command, command[0], tmp_path / "answers", asked)


@pytest.mark.parametrize("name", ["gcc", "gcc-12", "x86_64-linux-gnu-gcc-12", "clang-17"])
def test_a_compiler_is_asked_once(name, tmp_path):
    asked, file = Asked(), str(made(tmp_path / "bin" / name))
    said = [told(asked, tmp_path, file) for _ in range(3)]
    assert said == ["answer 1\nmore"] * 3 and asked.count == 1


def test_an_update_is_another_compiler_even_of_the_same_size_and_time(gcc, tmp_path):
    asked, before = Asked(), gcc.stat()
    told(asked, tmp_path, str(gcc))
    update = made(tmp_path / "bin" / "new", b"\x7fELF two")
    os.utime(update, ns=(before.st_atime_ns, before.st_mtime_ns))
    update.replace(gcc)
    after = gcc.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert told(asked, tmp_path, str(gcc)) == "answer 2\nmore"


def test_a_file_that_is_written_in_place_is_another_compiler(gcc, tmp_path):
    asked = Asked()
    told(asked, tmp_path, str(gcc))
    gcc.write_bytes(b"\x7fELF longer")
    assert told(asked, tmp_path, str(gcc)) == "answer 2\nmore"


def test_a_symlink_that_leads_elsewhere_is_another_compiler(gcc, tmp_path):
    other = made(tmp_path / "bin" / "gcc-13")
    cc = tmp_path / "bin" / "cc"
    cc.symlink_to(gcc)
    asked = Asked()
    told(asked, tmp_path, str(cc))
    assert told(asked, tmp_path, str(cc)) == "answer 1\nmore"
    cc.unlink()
    cc.symlink_to(other)
    assert told(asked, tmp_path, str(cc)) == "answer 2\nmore"
    assert told(asked, tmp_path, str(cc)) == "answer 2\nmore"


def test_a_folder_whose_name_is_no_text_may_hold_a_compiler(tmp_path):
    try:
        file = str(made(tmp_path / os.fsdecode(b"\xff") / "gcc"))
    except OSError:
        pytest.skip("the disk takes text alone")
    asked = Asked()
    assert [told(asked, tmp_path, file) for _ in range(2)] == ["answer 1\nmore"] * 2


def test_options_make_a_question_of_its_own(gcc, tmp_path):
    asked = Asked()
    assert told(asked, tmp_path, str(gcc)) == "answer 1\nmore"
    assert told(asked, tmp_path, str(gcc), "-m32") == "answer 2\nmore"
    assert told(asked, tmp_path, str(gcc), "-m32") == "answer 2\nmore"
    assert told(asked, tmp_path, str(gcc)) == "answer 1\nmore"


@pytest.mark.parametrize(
    ("name", "content", "more"),
    [
        ("gcc", b"#!/bin/sh\nexec other", ()),
        ("ccache", b"\x7fELF", ()),
        ("gcc", b"\x7fELF", ("another",)),
        ("gcc", b"\x7fELF", ("@options",)),
    ],
)
def test_what_may_start_another_compiler_is_asked_each_time(name, content, more, tmp_path):
    asked, file = Asked(), str(made(tmp_path / "bin" / name, content))
    for count in (1, 2):
        assert told(asked, tmp_path, file, *more) == f"answer {count}\nmore"


def test_ccache_behind_the_name_of_a_compiler_is_asked_each_time(tmp_path):
    made(tmp_path / "bin" / "ccache")
    (tmp_path / "bin" / "gcc").symlink_to("ccache")
    asked = Asked()
    for count in (1, 2):
        assert told(asked, tmp_path, str(tmp_path / "bin" / "gcc")) == f"answer {count}\nmore"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"said": 7}', b"[" * 9000, b" " * 20_000]
)
def test_a_damaged_answer_is_none(content, gcc, tmp_path):
    asked = Asked()
    told(asked, tmp_path, str(gcc))
    (kept,) = (tmp_path / "answers").iterdir()
    kept.write_bytes(content)
    assert told(asked, tmp_path, str(gcc)) == "answer 2\nmore"
    assert told(asked, tmp_path, str(gcc)) == "answer 2\nmore"
    assert asked.count == 2 and json.loads(kept.read_bytes())["said"] == "answer 2\nmore"


def test_a_compiler_that_does_not_answer_is_asked_again(gcc, tmp_path):
    for answer in (None, "", "yes"):
        said = compilers.said_by(
            (str(gcc),), str(gcc), tmp_path / "answers", iter([answer]).__next__
        )
        assert said == answer


def test_without_a_folder_to_write_in_a_compiler_answers_itself(gcc, tmp_path):
    (tmp_path / "answers").write_text("a file")
    asked = Asked()
    for count in (1, 2):
        assert told(asked, tmp_path, str(gcc)) == f"answer {count}\nmore"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="its version is asked")
def test_a_kept_answer_gives_the_key_that_asking_gives(tmp_path, monkeypatch):
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(toolchain, "_find", toolchain._find.__wrapped__)
    compiler = str(Path(str(shutil.which("gcc"))).resolve())
    for wanted in (compiler, f"{shlex.quote(compiler)} -O1"):
        monkeypatch.setenv("DELIAN_CC", wanted)
        asked = toolchain.find()
        monkeypatch.setattr(toolchain, "_ask", lambda command: pytest.fail("asked again"))
        assert toolchain.find() == asked and asked is not None and asked.version
        monkeypatch.undo()
        monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(toolchain, "_find", toolchain._find.__wrapped__)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="it is updated")
def test_an_update_of_the_compiler_changes_the_key_of_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(toolchain, "_find", toolchain._find.__wrapped__)
    compiler = made(tmp_path / "bin" / "gcc")
    monkeypatch.setenv("DELIAN_CC", str(compiler))
    versions = iter(["gcc 1.0", "gcc 2.0"])
    monkeypatch.setattr(toolchain, "_ask", lambda command: next(versions))
    first, again = toolchain.find(), toolchain.find()
    update = made(tmp_path / "bin" / "new", b"\x7fELF two")
    update.replace(compiler)
    second = toolchain.find()
    assert first is not None and again is not None and second is not None
    assert (first.version, again.version, second.version) == ("gcc 1.0", "gcc 1.0", "gcc 2.0")
    assert first.identity == again.identity != second.identity


@pytest.mark.skipif(shutil.which("gcc") is None, reason="it is asked")
def test_a_user_without_a_home_has_a_compiler_and_is_told_what_lacks(monkeypatch):
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("DELIAN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", none)
    monkeypatch.setattr(toolchain, "_find", toolchain._find.__wrapped__)
    monkeypatch.setenv("DELIAN_CC", "gcc")
    found = toolchain.find()
    assert found is not None and found.version
    with pytest.raises(DelianError, match="set DELIAN_CACHE to a folder"):
        toolchain.cache_folder()
