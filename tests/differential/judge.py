"""Whether compiled programs give what the reference gives, in every way that is promised."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from delian.core.common.aligned_arrays import ALIGNMENT
from delian.core.compiler.backends.native import call_runs
from delian.core.compiler.backends.native import program as native
from delian.core.compiler.backends.native.kernels import winograd
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import ReferenceProgram
from delian.core.compiler.ir import Array, DType, Function, TensorType
from delian.core.compiler.passes.number_profiles import in_profile
from delian.core.compiler.verify import verify

from .cases import Case, fitted, in_f64

#: A result may be so many times as far from the exact one as NumPy's in the same type is, or as one
#: unit of its largest number: tiles and blocked sums round more often than sums in pairs.
FACTOR = 256
#: Halves are rounded after each operation, by both.
FACTOR_HALVES = 16
#: Programs with kinks, comparisons and ties give something else where rounding decides: a program
#: is wrong that is so for each of so many arguments.
ATTEMPTS = 3
#: Bytes on either side of a program's memory.
_BESIDE = 65536
#: Few numbers, of which many tie; and some that are none, or none that is finite.
FEW = (-1.0, -0.5, 0.0, -0.0, 0.5, 1.0, 2.0)
ODD = (*FEW, float("nan"), float("inf"), -float("inf"), 3e38)
_UNIT = {DType.F64: 2.0**-48, DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}


@dataclass(frozen=True)
class Failure:
    case: str
    what: str

    def __str__(self) -> str:
        return f"{self.case}: {self.what}"


@contextmanager
def eager_lowering(tiles: bool = True, data: bool = True) -> Iterator[None]:
    """Small programs are lowered as large ones are: convolutions go by tiles, and calls are data.
    What is compiled within is kept apart, as the cache knows nothing of it.
    """
    old = winograd._WORTH, call_runs.CALLS_MIN, call_runs.RUN_MIN, os.environ.get("DELIAN_CACHE")
    with tempfile.TemporaryDirectory(prefix="delian-differential-") as folder:
        os.environ["DELIAN_CACHE"] = folder
        if tiles:
            winograd._WORTH = 100.0
        if data:
            call_runs.CALLS_MIN = call_runs.RUN_MIN = 2
        try:
            yield
        finally:
            winograd._WORTH, call_runs.CALLS_MIN, call_runs.RUN_MIN = old[:3]
            if old[3] is None:
                del os.environ["DELIAN_CACHE"]
            else:
                os.environ["DELIAN_CACHE"] = old[3]


def judged(cases: Sequence[Case], toolchain: Toolchain, strict: bool) -> list[Failure]:
    """What is wrong with some programs, compiled as one file. strict: in "reproducible" too."""
    failures: list[Failure] = []
    built: dict[str, tuple[Case, Function, Function]] = {}
    for case in cases:
        try:
            function = case.build()
            verify(function)
            wide = in_f64(function)
            built[case.name] = case, function, wide
        except Exception:
            failures.append(Failure(case.name, "is not built\n" + traceback.format_exc()))
    functions = {name: function for name, (_, function, _) in built.items()}
    for name, program in _compiled(functions, toolchain, False, failures).items():
        case, _, wide = built[name]
        _guarded(failures, name, lambda c=case, p=program, w=wide: _near(c, p, w))
    if strict:
        narrow = {n: in_profile(f, "reproducible") for n, f in functions.items() if not _wide(f)}
        for name, program in _compiled(narrow, toolchain, True, failures).items():
            case = built[name][0]
            _guarded(failures, name, lambda c=case, p=program: _same(c, p))
    return failures


def _wide(function: Function) -> bool:
    """Whether f64 is in it, which the profile refuses."""
    types = (v.type for op in function.body.walk() for v in (*op.operands, *op.results))
    every = (*types, *function.param_types)
    return any(isinstance(t, TensorType) and t.dtype is DType.F64 for t in every)


def _guarded(failures: list[Failure], name: str, judge: Any) -> None:
    try:
        failures.extend(Failure(name, what) for what in judge())
    except Exception:
        failures.append(Failure(name, "raises\n" + traceback.format_exc()))
    finally:
        # Programs that come later would take what is beside it for theirs.
        native._thread.memory = np.empty(0, np.uint8)


def _compiled(
    functions: Mapping[str, Function], toolchain: Toolchain, strict: bool, failures: list[Failure]
) -> dict[str, NativeProgram]:
    """All in one file; where that fails each by itself, so that one can say which it was."""
    try:
        return compile_native(functions, toolchain, strict)
    except Exception:
        if len(functions) == 1:
            way = " strictly" if strict else ""
            what = f"is not compiled{way}\n" + traceback.format_exc()
            failures.append(Failure(next(iter(functions)), what))
            return {}
    made: dict[str, NativeProgram] = {}
    for name, function in functions.items():
        made |= _compiled({name: function}, toolchain, strict, failures)
    if len(made) == len(functions):
        failures.append(Failure(", ".join(made), "are not compiled as one file"))
    return made


def _run(program: NativeProgram, args: Sequence[Array]) -> tuple[Array, ...]:
    """A call on arguments of its own, in memory that holds no numbers, of which it has its part."""
    own, thread = program.report.arena_bytes, native._thread
    thread.memory = np.full(own + 2 * _BESIDE, 255, np.uint8)
    start = thread.memory.ctypes.data + _BESIDE
    thread.address = start + -start % ALIGNMENT
    results = program(*(a.copy() for a in args))
    begin = thread.address - thread.memory.ctypes.data
    beside = (thread.memory[:begin], thread.memory[begin + own :])
    assert all((part == 255).all() for part in beside), "it wrote outside of its memory"
    return results


def _bits(results: Sequence[Array]) -> list[bytes]:
    return [r.tobytes() for r in results]


def _ways(program: NativeProgram, args: Sequence[Array], alone: Sequence[Array]) -> Iterator[str]:
    """Other ways of one call, which give the same bits."""
    for threads in (2, 3):
        program.threads = threads
        try:
            if _bits(_run(program, args)) != _bits(alone):
                yield f"with {threads} threads there are other bits"
        finally:
            program.threads = 1
    given = [a.copy() for a in args]
    out = [np.full(r.shape, 7, r.dtype) for r in alone]
    native._thread.memory.fill(85)
    if _bits(program(*given, out=out)) != _bits(alone):
        yield "written into buffers there are other bits"
    # Arguments are left alone, donated ones too, where results have buffers.
    if _bits(given) != _bits(args):
        yield "arguments were changed"


def _near(case: Case, program: NativeProgram, wide: Function) -> Iterator[str]:
    function = program.function
    unit, exact = _unit(function), ReferenceProgram(wide)
    plain = ReferenceProgram(function)
    wrong = ""
    for attempt in range(ATTEMPTS):
        args = case.arguments(function.param_types, attempt)  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            usual = plain(*args)
            wanted = exact(*fitted(args, wide))
        found = _run(program, args)
        if attempt == 0:
            yield from _ways(program, args, found)
        wrong = _difference(found, wanted, usual, unit)
        if not wrong:
            return
    yield wrong


def _same(case: Case, program: NativeProgram) -> Iterator[str]:
    """Whether the profile gives the reference's bits; any NaN is as good as another."""
    reference = ReferenceProgram(program.function)
    # Zeros around an image times what is no number are nothing natively.
    padded = any("conv" in op.name for op in program.function.body.walk())
    for special in ((), FEW) if padded else ((), FEW, ODD):
        args = case.arguments(program.function.param_types, 0, special)  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            wanted = reference(*args)
        finite = all(np.isfinite(np.asarray(v, np.float64)).all() for v in wanted)
        if special and padded and not finite:
            continue
        found = _run(program, args)
        if not special:
            yield from (f"reproducible: {way}" for way in _ways(program, args, found))
        for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
            apart = (a != b) & ~((a != a) & (b != b))
            if special and a.dtype.kind not in "iub":
                # Of these sums cancel to nothing but rounding, which is that of f64.
                wide = (np.asarray(v, np.float64) for v in (a, b))
                apart &= ~np.isclose(*wide, rtol=1e-4, atol=1e-9)
            if apart.any():
                at = tuple(int(i) for i in np.argwhere(apart)[0])
                yield (
                    f"reproducible: of {special or 'any numbers'} result {k} has {apart.sum()}"
                    f" of {a.size} other numbers, at {at} {a[at]!r} for {b[at]!r}"
                )
                return


def _unit(function: Function) -> float:
    """That of the narrowest float in it."""
    types = (v.type for op in function.body.walk() for v in (*op.operands, *op.results))
    every = (*types, *function.param_types)
    return max(
        (_UNIT[t.dtype] for t in every if isinstance(t, TensorType) and t.dtype.is_float),
        default=0.0,
    )


def _difference(
    found: Sequence[Array], wanted: Sequence[Array], usual: Sequence[Array], unit: float
) -> str:
    """What is further apart than it may be."""
    for k, (f, w, u) in enumerate(zip(found, wanted, usual, strict=True)):
        if f.shape != w.shape or f.dtype != u.dtype:
            return f"result {k} is {f.dtype}{f.shape}, not {u.dtype}{w.shape}"
        if f.dtype.kind in "iub":
            if not np.array_equal(f, w):
                at = tuple(int(i) for i in np.argwhere(f != w)[0])
                return f"result {k} at {at} is {f[at]!r}, not {w[at]!r}"
            continue
        here, there, plain = (np.asarray(v, np.float64) for v in (f, w, u))
        sure = np.isfinite(there) & np.isfinite(plain)
        if not np.isfinite(here[sure]).all():
            at = tuple(int(i) for i in np.argwhere(sure & ~np.isfinite(here))[0])
            return f"result {k} at {at} is {here[at]}, not {there[at]}"
        scale = float(np.abs(there[sure]).max(initial=0))
        rounding = float(np.abs(plain - there)[sure].max(initial=0))
        factor = FACTOR if unit <= _UNIT[DType.F32] else FACTOR_HALVES
        allowed = factor * max(rounding, unit * max(scale, 0.1))
        apart = np.where(sure, np.abs(here - there), 0)
        if apart.size and apart.max() > allowed:
            at = tuple(int(i) for i in np.argwhere(apart == apart.max())[0])
            count = int((apart > allowed).sum())
            return (
                f"result {k} {f.dtype}{list(f.shape)} at {at} is {here[at]}, not {there[at]}:"
                f" {count} of {apart.size} numbers, {apart.max() / allowed:.1f} times too far"
            )
    return ""
