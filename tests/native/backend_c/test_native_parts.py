"""A file with many loops is compiled in two parts at once: the same bits as of the whole file."""

from __future__ import annotations

import shlex
import signal
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends.native import parts
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.timing import time_steps
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.ir import Builder, DType, Function, TensorType

SIZES = [(3, 17), (40, 300), (33, 64)]


def functions() -> dict[str, Function]:
    """Loops of several kinds, products that loops follow, and one of each size."""
    made = {}
    for rows, columns in SIZES:
        b = Builder([TensorType(DType.F32, s) for s in ((rows, columns), (columns, 40))])
        x, w = b.params
        product = b("dot", x, w, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
        made_ = b("tanh", b("add", product, b.full(product.tensor, 0.5)))
        most = b("reduce_max", x, axes=(1,))
        y = b("exp", b("sub", x, b("broadcast", most, shape=(rows, columns), dims=(0,))))
        total = b("reduce_sum", y, axes=(0,))
        block = b.finish([made_, y, total, b("transpose", y, perm=(1, 0))])
        name = f"{rows}x{columns}"
        made[name] = Function(name, block, ("x", "w"), ("m", "y", "t", "r"))
    return made


def source_of(program: NativeProgram) -> str:
    return program.report.library.with_suffix(".c").read_text("utf-8")


def compiled(
    toolchain: Toolchain, least: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, NativeProgram]:
    monkeypatch.setattr(parts, "LOOPS_MIN", least)
    monkeypatch.setenv("DELIAN_CACHE", str(folder))
    return dict(compile_native(functions(), toolchain))


def test_parts_are_the_whole(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = compiled(toolchain, 1, tmp_path / "parts", monkeypatch)
    whole = compiled(toolchain, 1 << 30, tmp_path / "whole", monkeypatch)
    rng = np.random.default_rng(3)
    for (rows, columns), name in zip(SIZES, whole, strict=True):
        assert parts.MARK in source_of(both[name])
        assert parts.MARK not in source_of(whole[name])
        args: list[Any] = [
            np.asarray(rng.normal(size=s), np.float32) for s in ((rows, columns), (columns, 40))
        ]
        for one, other in zip(both[name](*args), whole[name](*args), strict=True):
            assert one.tobytes() == other.tobytes()
    left = {path.suffix for path in both[name].report.library.parent.iterdir()}
    assert ".o" not in left


def test_steps_are_timed_of_a_program_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LOOPS_MIN", 1)
    function = functions()["40x300"]
    args: list[Any] = [np.ones(p.shape, np.float32) for p in function.body.params]
    steps = time_steps(function, args, calls=1)
    assert len(steps) > 2 and all(step.runs == 1 for step in steps)


def test_what_a_compiler_says_of_one_part_is_told(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = tmp_path / "cc"
    refusing.write_text(
        "#!/bin/sh\n"
        'case "$*" in *DL_PART=2*) echo "program.c:7: no such luck" >&2; exit 1;; esac\n'
        f'exec {shlex.join(toolchain.command)} "$@"\n'
    )
    refusing.chmod(refusing.stat().st_mode | stat.S_IXUSR)
    wrapped = replace(toolchain, command=(str(refusing),), identity="refusing")
    with pytest.raises(DelianError, match="no such luck"):
        compiled(wrapped, 1, tmp_path / "refused", monkeypatch)
    assert not list((tmp_path / "refused").rglob("*.so"))
    assert not list((tmp_path / "refused").rglob("building-*"))


@pytest.mark.parametrize(
    ("first", "fault"),
    [("echo no such luck >&2; exit 1", DelianError), ("kill -INT $PPID", KeyboardInterrupt)],
    ids=["one refuses", "Ctrl-C"],
)
def test_no_compiler_goes_on_for_nobody(
    toolchain: Toolchain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    fault: type[BaseException],
) -> None:
    """The second would end by itself, and leave a file that says so."""
    slow, ended, begun = tmp_path / "cc", tmp_path / "ended", tmp_path / "begun"
    slow.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *DL_PART=2*) : > {begun}; sleep 60; : > {ended}; exit 1;; esac\n'
        f"while [ ! -e {begun} ]; do sleep 0.01; done\n"
        f"{first}\n"
        "sleep 60\n"
    )
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    wrapped = replace(toolchain, command=(str(slow),), identity="slow")
    monkeypatch.setattr("delian.core.compiler.backends.native.toolchain.toolchain.cores", lambda: 2)
    # In a job that runs in the background Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(fault):
            compiled(wrapped, 1, tmp_path / "cache", monkeypatch)
    finally:
        signal.signal(signal.SIGINT, before)
    assert begun.exists() and not ended.exists()
    assert not list((tmp_path / "cache").rglob("building-*"))
