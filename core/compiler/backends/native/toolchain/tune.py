"""Finds the flags with which a program is fastest on this machine (`tuning`).

Coordinate descent: one choice after the other takes the values that it can have, first of every
choice the most promising one. Each variant is compiled, checked against the untuned program and
timed in turns with the best so far; what is faster by more than noise stays, and the next ones go
on from there. A variant that preprocesses to a program already timed is not compiled. It ends when
no change helps or the time is over. Each step forward is kept at once, so that an interruption
loses none.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .....common.errors import DelianError
from ....ir import Array, DType, Function, TensorType
from ....ir_codec import content_hash
from ..assemble import assembled
from ..program import NativeProgram, load_object
from . import cache, tuning
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
    """Tunes a function within some seconds from an earlier search, and keeps what it finds.

    say: called with each step. Raises DelianError when the untuned program does not compile, and
    OSError when nothing can be kept.
    """
    end = time.monotonic() + seconds
    search = _Search(function, toolchain, seconds, say)
    earlier = tuning.read(toolchain, search.key)
    if earlier is not None and earlier.flags:
        search.is_better(earlier.flags)
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for flags in _neighbours(search.best.flags):
            if time.monotonic() >= end:
                break
            if search.is_better(flags):
                changed = True
                break  # on from here
    return search.found()


class _Search:
    """What was found so far of one function. best: the fastest variant; plain: the untuned one."""

    def __init__(self, function: Function, toolchain: Toolchain, seconds: float, say: Say) -> None:
        self._function, self._toolchain, self._say = function, toolchain, say
        self._race_s = _SHARE * seconds
        self.key = content_hash(function)
        self._arguments = example_of(function)
        self.best = self.plain = _Variant((), _compiled(function, toolchain, ()))
        self._expected = self.plain.program(*_own(self._arguments))
        _race((self.plain,), self._arguments, self._race_s)
        self._before_s = self.plain.least_s
        self._tried = 0
        self._same = _Sameness(function, toolchain)
        say(f"untuned: {1e3 * self._before_s:.3f} ms a call")

    def is_better(self, flags: tuple[str, ...]) -> bool:
        """Whether these flags make a faster program, which then is the best and is kept."""
        try:
            if self._same.was_seen(flags):
                return False
            variant = _Variant(flags, _compiled(self._function, self._toolchain, flags))
        except DelianError:
            return False  # a compiler need not know a flag
        self._tried += 1
        said = " ".join(flags)
        if not _agrees(variant.program(*_own(self._arguments)), self._expected):
            self._say(f"{said}: computes something else; left out")
            return False
        best = self.best
        best.least_s = float("inf")  # by the same turns, in the same weather
        _race((best, variant), self._arguments, self._race_s)
        better = variant.least_s < _BETTER * best.least_s
        share = variant.least_s / best.least_s
        if better:
            self.best = variant
            self._keep(Tuning(flags, self._before_s, variant.least_s, self._tried))
        # Kept first: an interrupt may come while this is printed.
        self._say(f"{'*' if better else ' '} {share:6.3f} of the best  {said}")
        return better

    def found(self) -> Tuning:
        """The best, held against the untuned program once more."""
        plain, best = self.plain, self.best
        if best is not plain:
            plain.least_s = best.least_s = float("inf")
            _race((plain, best), self._arguments, 2 * self._race_s)
            if best.least_s >= plain.least_s:
                best = plain
        return self._keep(Tuning(best.flags, plain.least_s, best.least_s, self._tried))

    def _keep(self, found: Tuning) -> Tuning:
        tuning.write(self._toolchain, self.key, found)
        return found


class _Sameness:
    """The known variants of a program."""

    def __init__(self, function: Function, toolchain: Toolchain) -> None:
        self._toolchain = toolchain
        self._text = assembled({"tuned": function}, toolchain).text
        self._seen: set[tuple[str, ...]] = set()
        self.was_seen(())

    def was_seen(self, flags: tuple[str, ...]) -> bool:
        """Whether flags make what others made before; from now on they have. Raises DelianError."""
        with tempfile.TemporaryDirectory(prefix="delian-") as folder:
            source = Path(folder) / "program.c"
            source.write_text(self._text, encoding="utf-8")
            text = self._toolchain.with_flags(flags).preprocessed(source)
        options = sorted(f for f in flags if not f.startswith("-D"))
        made = (hashlib.sha256(text.encode()).hexdigest(), *options)
        known = made in self._seen
        self._seen.add(made)
        return known


def _neighbours(flags: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Flags that differ in one choice: of every choice the first value, then the second."""
    rounds: list[list[tuple[str, ...]]] = [[] for _ in range(max(map(len, CHOICES.values())))]
    for name, values in CHOICES.items():
        others = tuple(f for f in flags if not f.startswith(f"-D{name}="))
        for at, value in enumerate(values):
            if (flag := f"-D{name}={value}") not in flags:
                rounds[at].append((*others, flag))
    for flag in FLAGS:
        without = tuple(f for f in flags if f != flag)
        rounds[0].append(without if without != flags else (*flags, flag))
    return [found for each in rounds for found in each]


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
