"""A compiled call that changes the caller's arrays, lists, dicts and objects, as Python would.

The program gives what they hold afterwards as further results (`Traced.changed`, `Traced.filled`);
these are copied into the caller's arrays, or put into the lists, dicts and objects, once it has
run. What cannot be equal to Python is refused before.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..common.errors import ProgramError
from . import tree
from .traced import Filled, Item, Static, Traced

#: NumPy's search for an element that two strided arrays share may take exponential time.
_WORK_MAX = 10_000
#: Programs of one function that make an argument longer, before there is a warning.
GROWN_MAX = 16


class Targets:
    """What of the caller's a call changes.

    values, passed: the arguments, and the leaves of them that the program takes. Raises
    ProgramError where an array is no writable ndarray, or shares its memory with another argument
    or with an array that the function reads from outside; where a list, dict or object is in two
    places of the arguments, or is read from outside.
    """

    def __init__(self, traced: Traced, values: tuple[Any, ...], passed: Sequence[Any]) -> None:
        self._traced = traced
        self._arrays = _arrays(traced, passed)
        self._values = values
        self._owners = _owners(traced, values) if traced.filled else []

    def written(self, results: Sequence[Any]) -> Any:
        """Changes them. `results`: the program's; gives the function's."""
        if self._arrays:
            results = _written(self._arrays, results)
        result = self._traced.as_python(results)
        if not self._owners:
            return result
        result, *made = result
        # All is looked up before anything changes.
        contents = [
            [_held(item, owner, self._values, made) for item in filled.items]
            for owner, filled in zip(self._owners, self._traced.filled, strict=True)
        ]
        for owner, filled, content in zip(self._owners, self._traced.filled, contents, strict=True):
            _fill(owner, filled, content)
        return result


def warn_of_growth(name: str, programs: Iterable[Traced]) -> None:
    """Warns where each call makes a list or dict larger, and so needs another program."""
    growing = [each.filled for each in programs if any(f.grows for f in each.filled)]
    if len(growing) == GROWN_MAX:
        what = next(f.name for f in growing[-1] if f.grows)
        warnings.warn(
            f"`{name}` was compiled for {GROWN_MAX} lengths of its argument `{what}`, which it"
            " makes longer: return what is new, and add it where the function is called",
            RuntimeWarning,
            stacklevel=4,
        )


def child_of(node: Any, key: Any) -> Any:
    """The child of a tree's node that has this key."""
    if isinstance(node, dict) or (isinstance(node, tuple | list) and isinstance(key, int)):
        return node[key]
    return getattr(node, key)


def _at(values: tuple[Any, ...], path: tuple[Any, ...]) -> Any:
    node: Any = values
    for key in path:
        node = child_of(node, key)
    return node


def _owners(traced: Traced, values: tuple[Any, ...]) -> list[Any]:
    met = Counter(id(node) for node in _nodes(values))
    outside = {id(seen.owner) for seen in traced.seen}
    owners = []
    for filled in traced.filled:
        owner = _at(values, filled.path)
        if met[id(owner)] > 1 or id(owner) in outside:
            where = "outside" if id(owner) in outside else "another place of the arguments"
            raise ProgramError(
                "DL111",
                f"the function changes its argument `{filled.name}`, and reads the same"
                f" {type(owner).__name__} from {where}",
                (),
                "pass a copy",
            )
        owners.append(owner)
    return owners


def _nodes(value: Any) -> Iterator[Any]:
    """The lists, dicts and objects of a tree."""
    if isinstance(value, Static) or (parts := tree.children(value)) is None:
        return
    if not isinstance(value, tuple | None):
        yield value
    for child in parts[1]:
        yield from _nodes(child)


def _held(item: Item, owner: Any, values: tuple[Any, ...], made: Sequence[Any]) -> Any:
    match item.kind:
        case "kept":
            return child_of(owner, item.of)
        case "given":
            return _at(values, item.of)
        case "known":
            return item.of
    return made[item.of]


def _fill(owner: Any, filled: Filled, content: list[Any]) -> None:
    if isinstance(owner, list):
        owner[:] = content
        return
    held = owner if isinstance(owner, dict) else vars(owner)
    if isinstance(owner, dict):
        held.clear()
    held.update(zip(filled.keys, content, strict=True))
    for name in filled.gone:
        del held[name]


def _arrays(traced: Traced, passed: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The caller's arrays that a call changes. Raises ProgramError."""
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


def _written(targets: Sequence[np.ndarray[Any, Any]], results: Sequence[Any]) -> list[Any]:
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
