"""What calls on arrays whose length the data decide refuse, before any function is looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ragged import Ragged
from ..numpy import arithmetic, positional_arguments
from ..values import is_number

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: Parameters of NumPy's that say how a function works, and are no data.
_SETTINGS = frozenset(
    (
        *("axis", "axes", "dtype", "order", "keepdims", "initial", "ddof", "decimals", "side"),
        *("kind", "stable", "shape", "ndmin", "n", "fill_value", "return_inverse", "device"),
        *("copy", "nan", "posinf", "neginf"),
    )
)

#: Functions that give the array itself where they can.
_KEEPING = frozenset(("np.asarray", "np.asanyarray"))


def _is_of_rows(args: Sequence[Any]) -> bool:
    return bool(args) and type(args[0]) is Ragged and len(args[0].data.shape) > 1


def checked(
    s: Specialiser, name: str, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raises ProgramError: these are not taken with such an array."""
    given = {**_named(f, args), **kwargs}
    if given.get("out") is not None:
        text = f"`{name}` cannot write to an array whose length depends on the data"
        raise s.error("DL115", text, "take the result: y = np.add(a, b)")
    if given.get("where", True) is not True:
        text = f"`where` of `{name}` is not taken with an array whose length depends on the data"
        raise s.error("DL115", text, "choose elements by both masks before, as in x[a & b]")
    if given.get("shape") is not None and name.endswith("_like"):
        text = f"`shape` of `{name}` is not taken with an array whose length depends on the data"
        raise s.error("DL105", text, "make one of a known shape: np.zeros(shape)")
    kept = name in _KEEPING or (name == "np.array" and given.get("copy", True) is not True)
    if kept and given.get("order") not in (None, "K") and _is_of_rows(args):
        text = f"whether `{name}` with an order copies depends on how the array lies in memory"
        raise s.error("DL105", text, "copy it, or leave out the order")
    for key in _SETTINGS.intersection(given):
        value = given[key]
        if type(value) is Ragged or (is_number(value) and arithmetic.shape_of(value) != ()):
            raise s.error("DL115", f"`{key}` of `{name}` cannot be an array")
    if not isinstance(given.get("order", "K"), str | type(None)):
        raise s.error("DL119", f"`order` of `{name}` is 'C', 'F', 'A' or 'K'")


def _named(f: Any, args: Sequence[Any]) -> dict[str, Any]:
    """What is given by its place, by NumPy's names."""
    if isinstance(f, np.ufunc):
        return {"out": args[f.nin]} if len(args) > f.nin else {}
    theirs = positional_arguments.numpys(f) or {}
    plain = [n for n, p in theirs.items() if p.kind is not p.VAR_POSITIONAL]
    return dict(zip(plain, args, strict=False)) if len(plain) == len(theirs) else {}


def axis_of(s: Specialiser, name: str, axis: int, count: int) -> int:
    """A known axis of `count`, from the front. Raises ProgramError: it is none of them."""
    if not -count <= axis < count:
        raise s.error("DL115", f"{name}: axis {axis} is out of range for {count} axes")
    return axis % count
