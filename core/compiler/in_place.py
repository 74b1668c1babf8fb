"""A compiled call that changes the caller's arrays, as the Python function would.

The program gives what the arrays hold afterwards as further results (`Traced.changed`); they are
copied into the caller's arrays once it has run. What cannot be equal to Python is refused before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..common.errors import ProgramError
from .traced import Traced

#: NumPy's search for an element that two strided arrays share may take exponential time.
_WORK_MAX = 10_000


def targets(traced: Traced, passed: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The caller's arrays that a call changes.

    Raises:
        ProgramError: one of them is no writable ndarray, or shares its memory with another
            argument or with an array that the function reads from outside.
    """
    out = []
    names = traced.function.param_names
    captured = [seen.owner for seen in traced.seen if isinstance(seen.owner, np.ndarray)]
    for k in traced.changed:
        array = passed[k]
        if not isinstance(array, np.ndarray):
            raise _refused(names[k], f"it is of the type {type(array).__name__}, not an ndarray")
        if not array.flags.writeable:
            raise _refused(names[k], "it is read-only")
        others = [v for j, v in enumerate(passed) if j != k and isinstance(v, np.ndarray)]
        if any(_overlap(array, v) for v in others):
            raise _refused(names[k], "another argument shares its memory")
        if any(_overlap(array, v) for v in captured):
            raise _refused(names[k], "the function also reads it from outside")
        if _overlaps_itself(array):
            raise _refused(names[k], "some of its elements share their memory")
        out.append(array)
    return out


def written(targets: Sequence[np.ndarray[Any, Any]], results: Sequence[Any]) -> list[Any]:
    """Copies what the arrays hold into them; gives the results, none a view of such an array."""
    out = list(results)
    first = len(out) - len(targets)
    for k, result in enumerate(out):
        if isinstance(result, np.ndarray) and any(np.may_share_memory(result, t) for t in targets):
            out[k] = result.copy()
    for array, new in zip(targets, out[first:], strict=True):
        np.copyto(array, np.asarray(new))
    return out


def _overlap(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=_WORK_MAX)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(array: np.ndarray[Any, Any]) -> bool:
    """Whether a stride of 0 or a sliding window makes elements share memory."""
    pairs = sorted((abs(k), n) for k, n in zip(array.strides, array.shape, strict=True) if n > 1)
    reach = array.itemsize
    for stride, size in pairs:
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def _refused(name: str, why: str) -> ProgramError:
    return ProgramError(
        "DL111",
        f"the function changes its argument `{name}` in place, and {why}",
        (),
        "pass a writable array of its own: np.array(x)",
    )
