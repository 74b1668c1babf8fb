"""Finds the flags with which a program is fastest on this machine (`tuning`).

Coordinate descent: one choice after the other takes the values that it can have. Each variant is
compiled, checked against the untuned program and timed in turns with the best so far; what is
faster by more than noise stays. Passes go on until nothing changes or the time is over. Each step
forward is kept at once, so that an interruption loses none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import DelianError
from ...ir import Array, DType, Function, TensorType
from ...wire.ir_codec import content_hash
from . import cache, tuning
from .assemble import assembled
from .program import NativeProgram, load_object
from .toolchain import Toolchain
from .tuning import CHOICES, FLAGS, Tuning

#: A variant is taken when it needs less than this share of the best one's time.
_BETTER = 0.985
#: Turns that a variant and the best so far take; fewer when a call is long. The least of many
#: short calls says something on a busy machine too.
_TURNS = 60
#: The share of the whole time that one variant's turns may take.
_SHARE = 0.08
#: How far a variant's results may be from the untuned program's, of the largest number in them.
_TOLERANCE = 1e-2

Say = Callable[[str], None]


@dataclass(slots=True)
class _Variant:
    flags: tuple[str, ...]
    program: NativeProgram
    least_s: float = float("inf")


def tune(function: Function, toolchain: Toolchain, seconds: float, say: Say) -> Tuning:
    """Tunes a function within some seconds and keeps what it finds. say: is told each step.

    Raises DelianError when the untuned program does not compile, and OSError when nothing can be
    kept.
    """
    end = time.monotonic() + seconds
    key = content_hash(function)
    arguments = example_of(function)
    plain = _Variant((), _compiled(function, toolchain, ()))
    expected = plain.program(*_own(arguments))
    _race((plain,), arguments, _SHARE * seconds)
    before = plain.least_s
    say(f"untuned: {1e3 * before:.3f} ms a call")
    best, tried, changed = plain, 0, True
    while changed and time.monotonic() < end:
        changed = False
        for flags in _neighbours(best.flags):
            if time.monotonic() >= end:
                break
            try:
                variant = _Variant(flags, _compiled(function, toolchain, flags))
            except DelianError:
                continue  # a compiler need not know a flag
            tried += 1
            if not _agrees(variant.program(*_own(arguments)), expected):
                say(f"{' '.join(flags)}: computes something else; left out")
                continue
            best.least_s = float("inf")  # by the same turns, in the same weather
            _race((best, variant), arguments, _SHARE * seconds)
            better = variant.least_s < _BETTER * best.least_s
            say(f"{'*' if better else ' '} {1e3 * variant.least_s:9.3f} ms  {' '.join(flags)}")
            if better:
                best, changed = variant, True
                tuning.write(toolchain, key, Tuning(flags, before, best.least_s, tried))
    if best is not plain:  # once more, against the untuned one
        plain.least_s = best.least_s = float("inf")
        _race((plain, best), arguments, 2 * _SHARE * seconds)
        if best.least_s >= plain.least_s:
            best = plain
    found = Tuning(best.flags, plain.least_s, best.least_s, tried)
    tuning.write(toolchain, key, found)
    return found


def _neighbours(flags: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Flags that differ in one choice."""
    out = []
    for name, values in CHOICES.items():
        others = tuple(f for f in flags if not f.startswith(f"-D{name}="))
        for value in values:
            flag = f"-D{name}={value}"
            if flag not in flags:
                out.append((*others, flag))
        if others != flags:
            out.append(others)
    for flag in FLAGS:
        without = tuple(f for f in flags if f != flag)
        out.append(without if without != flags else (*flags, flag))
    return out


def _compiled(function: Function, toolchain: Toolchain, flags: tuple[str, ...]) -> NativeProgram:
    """The function with these flags and no others; it stays in the cache like any program."""
    tools = toolchain.with_flags(flags)
    key = cache.key_of(tools, [("0", content_hash(function))])
    path, facts = cache.shared_object(key, tools, lambda: assembled({"tuned": function}, tools))
    return load_object({"tuned": function}, path, facts)["tuned"]


def _race(variants: Sequence[_Variant], arguments: Sequence[Array], seconds: float) -> None:
    """Times the variants in turns, the least of each; each at least once."""
    end = time.monotonic() + seconds
    for turn in range(_TURNS):
        for variant in variants:
            own = _own(arguments)
            begin = time.perf_counter()
            variant.program(*own)
            variant.least_s = min(variant.least_s, time.perf_counter() - begin)
        if turn and time.monotonic() > end:
            return


def _own(arguments: Sequence[Array]) -> list[Array]:
    """Copies: a donated argument is overwritten."""
    return [a.copy() for a in arguments]


def _agrees(results: Sequence[Array], expected: Sequence[Array]) -> bool:
    for result, wanted in zip(results, expected, strict=True):
        if wanted.dtype.kind != "f":
            continue  # ring elements: one more or less is much, and says little
        size = float(np.max(np.abs(wanted), initial=0.0))
        if np.isfinite(size) and not np.all(np.abs(result - wanted) <= _TOLERANCE * (size + 1e-6)):
            return False
    return True


def example_of(function: Function) -> list[Array]:
    """Arguments that a program does its usual work on: small weights, many rows, labels 0 and 1."""
    rng = np.random.default_rng(0)
    made: Array
    types = [t for t in function.param_types if isinstance(t, TensorType)]
    rows = max((t.shape[0] for t in types if t.rank and t.dtype is not DType.F32), default=1)
    out: list[Array] = []
    for t in types:
        if t.dtype.is_float:
            made = rng.standard_normal(t.shape) * 0.05
        elif t.rank == 0:
            made = np.array(max(rows // 2, 1))  # how many of the rows there are
        elif t.dtype is DType.U8:
            made = rng.integers(0, 256, t.shape)
        else:
            made = rng.integers(0, 2, t.shape)
        out.append(np.asarray(made).astype(t.dtype.numpy))
    return out
