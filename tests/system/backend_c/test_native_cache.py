"""The cache of compiled programs: shared, damaged, full, read-only, interrupted."""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain import artifact, cache
from delian.core.compiler.backends.native.toolchain.artifact import Assembled, Facts
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain, find
from delian.core.compiler.ir import Builder, DType, Function, TensorType
from typer.testing import CliRunner

#: A compiler that counts its runs, and does what the environment asks of it first.
WRAPPER = """#!/bin/sh
case "$*" in *--version*) exec cc "$@";; esac
echo run >> "$RUNS"
if [ -n "$HANG" ]; then echo $$ > "$HANG.new"; mv "$HANG.new" "$HANG"; exec sleep 600; fi
if [ -n "$FULL" ]; then
  case "$*" in *"$FULL"*) echo "cannot write: No space left on device" >&2; exit 1;; esac
fi
exec cc "$@"
"""
SCRIPT = """
import numpy as np
from delian.core.compiler.backends.native.program import compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import find
from delian.core.compiler.ir import Builder, DType, Function, TensorType
b = Builder([TensorType(DType.F32, (4,))])
f = Function("double", b.finish([b("add", b.params[0], b.params[0])]), ("x",), ("y",))
program = compile_native({"double": f}, find())["double"]
print(program(np.arange(4, dtype=np.float32))[0].tolist(), program.report.library)
"""


def scaled(factor: float = 2.0) -> Function:
    b = Builder([TensorType(DType.F32, (4,))])
    y = b("mul", b.params[0], b.full(b.params[0].tensor, factor))
    return Function("scaled", b.finish([y]), ("x",), ("y",))


def compiled(toolchain: Toolchain, factor: float = 2.0) -> NativeProgram:
    program = compile_native({"scaled": scaled(factor)}, toolchain)["scaled"]
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(program(x)[0], x * np.float32(factor))
    return program


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DELIAN_CACHE", str(folder))
    return folder


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(own: Path, tmp_path: Path) -> Start:
    """Starts a process that compiles `double` with the wrapper."""
    wrapper = tmp_path / "wrapped-cc"
    wrapper.write_text(WRAPPER)
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)

    def started(**env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", SCRIPT],
            env={
                **os.environ,
                "DELIAN_CC": str(wrapper),
                "RUNS": str(tmp_path / "runs"),
                "HANG": "",
                "FULL": "",
                **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return started


def said(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


@pytest.mark.parametrize("damage", ["empty", "other", "short", "flipped"])
def test_a_damaged_file_is_built_again(toolchain: Toolchain, own: Path, damage: str) -> None:
    path = compiled(toolchain, 5.0).report.library
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.unlink()  # it is loaded: this one stays as it is, in memory
    path.write_bytes(
        {
            "empty": b"",
            "other": b"not a program",
            "short": whole[:-100],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        }[damage]
    )
    again = compile_native({"scaled": scaled(5.0)}, toolchain)["scaled"].report.library
    assert again == path and artifact.read(path).entries[0].name == "scaled"
    assert {p.suffix for p in path.parent.iterdir()} <= {".so", ".c", ""}
    assert not list(path.parent.glob("building-*")), "nothing is left behind"


def test_compiler_flags_tuning_and_programs_are_in_the_key(toolchain: Toolchain) -> None:
    rows = [("0", "hash")]
    keys = {
        cache.key_of(toolchain, rows),
        cache.key_of(toolchain, [("0", "another")]),
        cache.key_of(toolchain, [*rows, ("strict", "")]),
        cache.key_of(toolchain.with_flags(("-DDL_KC=256",)), rows),
    }
    assert len(keys) == 4
    for part in (*toolchain.flags, toolchain.version):
        assert part in toolchain.identity


def test_options_in_the_compilers_variable_are_in_the_key(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set()
    for options in ("", " -O1", " -O1 -mno-avx512f"):
        monkeypatch.setenv("DELIAN_CC", shlex.join(toolchain.command) + options)
        found = find()
        assert found is not None
        keys.add(cache.key_of(found, [("0", "hash")]))
    assert len(keys) == 3


def test_a_folder_that_cannot_be_written_gives_way_to_a_temporary_one(
    toolchain: Toolchain, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.mkdir()
    (own / "native").write_text("a file, not a folder")
    first, second = compiled(toolchain, 3.0), compiled(toolchain, 7.0)
    again = compiled(toolchain, 3.0)
    assert own not in first.report.library.parents
    assert again.report.library == first.report.library != second.report.library
    told = capsys.readouterr().err
    assert told.count("cannot be kept in") == 1 and str(own) in told


def test_two_processes_at_once_compile_once(start: Start, tmp_path: Path) -> None:
    processes = [start(), start()]
    outs = [said(p)[0] for p in processes]
    assert outs[0] == outs[1] and outs[0].startswith("[0.0, 2.0, 4.0, 6.0]")
    assert (tmp_path / "runs").read_text().count("run") == 1


def test_a_process_killed_while_it_compiles_leaves_nothing_in_the_way(
    start: Start, tmp_path: Path, own: Path
) -> None:
    hang = tmp_path / "hangs"
    first = start(HANG=str(hang))
    deadline = time.monotonic() + 300
    while not hang.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    os.kill(int(hang.read_text()), signal.SIGKILL)  # nobody else ends its compiler
    assert not list(own.glob("native/*.so"))
    out, err = said(start())
    assert out.startswith("[0.0, 2.0, 4.0, 6.0]") and str(own) in out and not err
    left = list(own.glob("native/building-*"))
    assert len(left) == 1, "what the killed one left behind"
    os.utime(left[0], (0, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELIAN_CACHE", str(own))
        cache.evict()
    assert not left[0].exists()


def test_a_full_disk_gives_way_to_a_temporary_folder(start: Start, own: Path) -> None:
    out, err = said(start(FULL=str(own)))
    assert out.startswith("[0.0, 2.0, 4.0, 6.0]") and str(own) not in out
    assert "no room to write" in err and not list(own.glob("native/*.so"))


def test_no_room_anywhere_is_said_in_words(toolchain: Toolchain, own: Path) -> None:
    program = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\n" + SCRIPT
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert (
        done.returncode == 1 and "DelianError: compiled programs cannot be kept in" in done.stderr
    )


def test_the_programs_used_longest_ago_are_removed(
    toolchain: Toolchain, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [compiled(toolchain, float(k)).report.library for k in range(2, 6)]
    for k, path in enumerate(paths):
        os.utime(path, (1e9 + k, 1e9 + k))
    compiled(toolchain, 2.0)  # the oldest is used again
    one = sum(k.bytes for k in cache.kept()) // 4
    removed = cache.evict(limit=int(2.5 * one))
    assert [k.path for k in removed] == paths[1:3]
    assert [p.exists() for p in paths] == [True, False, False, True]
    assert not paths[1].with_suffix(".c").exists()
    monkeypatch.setenv("DELIAN_CACHE_BYTES_MAX", "many")
    with pytest.raises(DelianError, match="DELIAN_CACHE_BYTES_MAX"):
        cache.bytes_max()


class Copying:
    """A compiler of objects that are all of one size."""

    def compile(self, source: Path, output: Path) -> None:
        output.write_bytes(bytes(2000))


def test_the_cache_keeps_its_limit_though_not_each_build_looks_at_all_of_it(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, looks, evict = 256_000, [], cache.evict
    monkeypatch.setenv("DELIAN_CACHE_BYTES_MAX", str(limit))
    monkeypatch.setattr(cache, "evict", lambda keep: looks.append(evict(keep=keep)))
    facts = Facts("", "", "", (), "", ())
    toolchain: Any = Copying()
    for k in range(400):
        key = hashlib.sha256(bytes([k % 256, k // 256])).hexdigest()
        path, _ = cache.shared_object(key, toolchain, lambda: Assembled("int x;", facts))
        os.utime(path, (1e9 + k, 1e9 + k))
        assert sum(program.bytes for program in cache.kept()) < limit * 5 // 4
    assert 150 < len(looks) < 300, "about 2200 * 64 / limit of the builds"


def test_clearing_removes_everything(toolchain: Toolchain, own: Path) -> None:
    compiled(toolchain)
    assert len(cache.clear()) == 1
    assert not [p for p in own.rglob("*") if p.is_file()]
    compiled(toolchain)


def test_a_cache_that_is_cleared_between_finding_and_loading_is_filled_again(
    toolchain: Toolchain, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = cache.shared_object

    def cleared(*arguments: Any) -> tuple[Path, Facts]:
        found = find(*arguments)
        monkeypatch.setattr(cache, "shared_object", find)
        cache.clear()
        return found

    monkeypatch.setattr(cache, "shared_object", cleared)
    assert compiled(toolchain, 7.25).report.library.exists()  # one that no test loads before


def test_a_program_that_cannot_be_removed_is_not_said_to_be_gone(
    toolchain: Toolchain, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(toolchain)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", refuse)
    assert cache.clear() == [] and len(cache.kept()) == 1
    told = CliRunner().invoke(app, ["cache", "clear"])
    assert isinstance(told.exception, DelianError) and "cannot be removed" in str(told.exception)


def test_a_disk_that_is_really_full(toolchain: Toolchain, tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)]
    if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        env = {**os.environ, "DELIAN_CACHE": str(place)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", SCRIPT], env=env, capture_output=True, text=True
        )
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0.0, 2.0, 4.0, 6.0]") and str(place) not in done.stdout
    assert done.stderr.count("cannot be kept in") == 1
