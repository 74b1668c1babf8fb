"""Whether what would be compiled runs as plain Python, an operation at a time.

`dl.debug()`, or DELIAN_DEBUG=1 in the environment.

Python has no derivatives: those stay programs of the reference back end. While this is on, a
derivative's function runs as plain Python first, for what it prints and where it stops; its program
leaves `print`, `breakpoint` and the like out, and says at which line a number first is not finite.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from ..common.errors import innermost
from .ir import ListType, Op

#: Read where it matters, as `debugging.on`; set by `api.debug`.
on: bool = os.environ.get("DELIAN_DEBUG", "") not in ("", "0")

#: Functions whose calls are statements for people: they say or stop, and give nothing.
_FOR_PEOPLE = frozenset(("print", "pprint", "breakpoint", "set_trace"))
#: What was said before: as Python's own warnings, once a line.
_said: dict[Any, Any] = {}

_Run: TypeAlias = Callable[[Sequence[Any], Any], Sequence[Any]]


@contextmanager
def compiled() -> Iterator[None]:
    """What is kept for others is made by programs, also while debugging."""
    global on
    before, on = on, False
    try:
        yield
    finally:
        on = before


@contextmanager
def users_warnings() -> Iterator[None]:
    """Leaves out NumPy's warnings of Delian's own lines: their cause is reported elsewhere."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"delian\.")
        yield


def is_for_people(f: Any) -> bool:
    """Whether a function is print, breakpoint, pdb.set_trace or another of their kind."""
    return callable(f) and getattr(f, "__name__", None) in _FOR_PEOPLE


def watched(op: Op, run: _Run) -> _Run:
    """An operation that warns at the user's line when finite numbers become non-finite."""
    floats = [i for i, r in enumerate(op.results) if _is_float(r.type)]
    if op.regions or not op.operands or not floats:
        return run

    def watching(args: Sequence[Any], attrs: Any) -> Sequence[Any]:
        if not on:  # a program of then, called again
            return run(args, attrs)
        with np.errstate(all="ignore"):
            results = run(args, attrs)
        if not all(_finite(results[i]) for i in floats) and all(map(_finite, args)):
            _warn(op, "NaN" if any(np.isnan(results[i]).any() for i in floats) else "infinity")
        return results

    return watching


def _is_float(kind: Any) -> bool:
    return not isinstance(kind, ListType) and bool(kind.dtype.is_float)


def _finite(value: Any) -> bool:
    if not isinstance(value, np.ndarray | np.generic):
        return True
    return value.dtype.kind in "biu" or bool(np.isfinite(value).all())


def _warn(op: Op, what: str) -> None:
    loc = innermost(op.locs)
    file, line = (loc.file, loc.line) if loc is not None else ("<program>", 0)
    text = f"{what} of finite numbers, by `{op.name}`"
    warnings.warn_explicit(text, RuntimeWarning, file, line, registry=_said)
