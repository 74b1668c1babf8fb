"""The cache of compiled programs is loaded as code: nobody but its user may have written there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends.native.program import NativeProgram, compile_native, load_object
from delian.core.compiler.backends.native.toolchain import artifact, cache
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.ir import Builder, DType, Function, TensorType
from delian.core.privacy.secagg import native


def scaled(factor: float) -> Function:
    b = Builder([TensorType(DType.F32, (4,))])
    y = b("mul", b.params[0], b.full(b.params[0].tensor, factor))
    return Function("scaled", b.finish([y]), ("x",), ("y",))


def compiled(toolchain: Toolchain, factor: float) -> NativeProgram:
    program = compile_native({"scaled": scaled(factor)}, toolchain)["scaled"]
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(program(x)[0], x * np.float32(factor))
    return program


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, in a process whose umask lets the group write."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DELIAN_CACHE", str(folder))
    before = os.umask(0o002)
    try:
        yield folder
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_objects_are_for_their_owner_alone_whatever_the_umask(toolchain, own):
    path = compiled(toolchain, 2.0).report.library
    assert path.parent == own / "native"
    assert [mode(p) for p in (own, own / "native", path)] == [0o700, 0o700, 0o600]


def test_an_object_that_others_can_write_is_built_again(toolchain, own):
    path = compiled(toolchain, 3.0).report.library
    path.chmod(0o660)
    before = path.stat().st_ino
    assert compiled(toolchain, 3.0).report.library == path
    assert path.stat().st_ino != before and mode(path) == 0o600


@pytest.mark.parametrize("part", ["", "native"])
def test_a_folder_that_others_can_write_is_not_used_and_that_is_said(toolchain, own, capsys, part):
    path = compiled(toolchain, 4.0 + len(part)).report.library
    (own / part).chmod(0o770)
    elsewhere = compiled(toolchain, 4.0 + len(part)).report.library
    assert own not in elsewhere.parents and path.exists()
    assert "can be written by its group or by others" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")
def test_what_another_user_owns_is_not_used(toolchain, own, capsys):
    path = compiled(toolchain, 6.0).report.library
    os.chown(path, 12345, -1)
    with pytest.raises(cache.UnsafeError, match="belongs to user 12345"):
        cache.check_owner(path)
    assert compiled(toolchain, 6.0).report.library.stat().st_uid == 0
    os.chown(own, 12345, -1)
    assert own not in compiled(toolchain, 6.0).report.library.parents
    assert "belongs to user 12345" in capsys.readouterr().err


def test_workers_keep_their_objects_apart(toolchain, own, monkeypatch):
    agents = compiled(toolchain, 7.0).report.library
    monkeypatch.setenv("DELIAN_CACHE_PART", cache.WORKERS)
    workers = compiled(toolchain, 7.0).report.library
    assert workers.parent == own / "workers" / "native" and agents.parent == own / "native"
    monkeypatch.delenv("DELIAN_CACHE_PART")
    assert {k.path for k in cache.kept()} == {agents}
    assert {k.path for k in cache.kept(workers=True)} == {agents, workers}
    cache.clear()
    assert not agents.exists() and not workers.exists()


def test_an_object_without_the_functions_that_it_names_is_an_error(toolchain, own):
    program = compiled(toolchain, 8.0)
    facts = artifact.read(program.report.library)
    (entry,) = facts.entries
    renamed = replace(facts, entries=(replace(entry, symbol="dl_absent"),))
    with pytest.raises(DelianError, match="has no dl_absent"):
        load_object({"scaled": scaled(8.0)}, program.report.library, renamed)
    with pytest.raises(DelianError, match="has no dl_aes"):
        native.Library(str(program.report.library))
