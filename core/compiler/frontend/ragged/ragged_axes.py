"""Functions that add and remove axes of ragged arrays, or look along the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ragged import Ragged
from ..memory import stores
from ..numpy import arithmetic
from ..operators import static_int
from . import capacity, elementwise, plain, rank, refused
from .ragged_arguments import axis_of

if TYPE_CHECKING:
    from ..specialise import Specialiser


def _axes(s: Specialiser, axis: Any, count: int) -> list[int]:
    """Known axes, counted from the front."""
    given = axis if isinstance(axis, tuple | list) else (axis,)
    return [axis_of(s, "axis", static_int(s, k, "an axis"), count) for k in given]


def expand_dims(s: Specialiser, f: Any, a: Any, axis: Any) -> Any:
    many = len(axis) if isinstance(axis, tuple | list) else 1
    added = _axes(s, axis, rank(a) + many)
    data = s.call(np.expand_dims, plain(a), tuple(added))
    kept = [k for k in range(rank(a) + many) if k not in added]
    return Ragged(stores.guarded(s, data.value, [a.data]), a.count, kept[a.axis])


def squeeze(s: Specialiser, f: Any, a: Any, axis: Any = None) -> Any:
    gone = [a.axis] if axis is None else _axes(s, axis, rank(a))
    if a.axis in gone:  # It goes where it has one element, and stays where it has more.
        raise refused(s, "np.squeeze", a, "name the axes of one element")
    data = s.call(np.squeeze, plain(a), tuple(gone))
    kept = [k for k in range(rank(a)) if k not in gone]
    return Ragged(stores.guarded(s, data.value, [a.data]), a.count, kept.index(a.axis))


def broadcast_to(s: Specialiser, f: Any, array: Any, shape: Any) -> Any:
    """To a shape that has the array's own length in its place."""
    if type(array) is not Ragged:
        raise refused(s, "the shape of np.broadcast_to", shape)
    want = list(shape) if isinstance(shape, tuple | list) else [shape]
    at = len(want) - rank(array) + array.axis
    own = at >= 0 and getattr(want[at], "value", None) is array.count.value
    if not own or any(not isinstance(n, int) for k, n in enumerate(want) if k != at):
        raise refused(s, "np.broadcast_to", array)
    want[at] = capacity(array)
    data = s.call(np.broadcast_to, plain(array), tuple(want))
    return Ragged(stores.guarded(s, data.value, [array.data]), array.count, at)


def take_along_axis(s: Specialiser, f: Any, arr: Any, indices: Any, axis: Any = -1) -> Any:
    """Along an axis of known length: the others pair, that of unknown length among them."""
    some = [v for v in (arr, indices) if type(v) is Ragged]
    (along,) = _axes(s, axis, rank(some[0]))
    if type(arr) is Ragged and rank(arr) == 1:
        if type(indices) is not Ragged and arithmetic.shape_of(indices) == ():
            raise s.error("DL119", "np.take_along_axis takes an array of places, not a number")
        return s.subscript(arr, indices)
    if len(some) < 2 or any(v.axis == along for v in some):
        raise refused(s, "np.take_along_axis", some[0])
    return elementwise(s, (arr, indices), lambda x, k: s.call(np.take_along_axis, x, k, along))


#: By NumPy's names: handlers of (specialiser, function, arguments).
AXES: dict[str, Callable[..., Any]] = {
    "broadcast_to": broadcast_to,
    "expand_dims": expand_dims,
    "squeeze": squeeze,
    "take_along_axis": take_along_axis,
}
