"""Views by strides: `x.strides`, `as_strided` and `sliding_window_view`.

The places of their elements in the array follow from shapes and strides, which are known: reading
such a view takes the elements at these places. It sees changes of the array, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import stride_tricks

from ...ir import Value
from ...traced import ARRAY
from .. import operators
from ..memory import stores
from ..memory.views_of_arrays import Reshape, Window
from ..operators import static_ints
from ..values import Tensor, describe, is_static
from . import arithmetic, shapes

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: Elements of a view: their places are constants of the program.
SIZE_MAX = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The elements at known places of an array in row-major order, in a shape of their own.

    seen: the same view of an array of NumPy's.
    """

    places: np.ndarray[Any, Any]
    seen: Callable[[Any], Any]

    def get(self, s: Specialiser, whole: Value) -> Value:
        flat = s.emit("reshape", whole, shape=(whole.tensor.size,))
        return s.emit("take", flat, s.emit("constant", value=self.places), axis=0)

    def put(self, s: Specialiser, whole: Value, part: Value) -> Value:
        raise s.error(
            "DL111",
            "a view by strides cannot be changed in a program",
            "change the array, or a copy of the view: x.copy()",
        )

    def of(self, layout: Any) -> Any:
        return self.seen(layout)


def strides_of(s: Specialiser, x: Tensor) -> tuple[int, ...]:
    """Bytes from an element to the next along each axis."""
    memory = _memory(s, x, "`strides`")
    # The stride of an axis with one element can be any, and so can all of an array with none.
    of_caller = memory.argument and any(n < 2 for n in memory.value.shape)
    if of_caller or (1 in x.shape and any(isinstance(lens, Reshape) for lens in x.lenses)):
        raise _unknown(s, x, "`strides`")
    return tuple(n * x.dtype.itemsize for n in stores.layout_of(memory, x.lenses).strides)


def _memory(s: Specialiser, x: Tensor, what: str) -> stores.Memory:
    """That of a tensor, whose elements lie in it in a known order."""
    memory = stores.memory_of(s, x)
    sure = memory is not None and (memory.row_major or len(memory.value.shape) < 2)
    if memory is not None and sure and memory.guard is None:
        return memory
    raise _unknown(s, x, what)


def _unknown(s: Specialiser, x: Tensor, what: str) -> Exception:
    return s.error(
        "DL107",
        f"{what} needs to know how {describe(x)} lies in memory",
        "make a copy: np.array(x)",
    )


def as_strided(
    s: Specialiser,
    x: Any,
    shape: Any = None,
    strides: Any = None,
    subok: Any = False,
    writeable: Any = True,
) -> Tensor:
    """Of all that lies in the array's memory, from its first element on."""
    what = "np.lib.stride_tricks.as_strided"
    array = arithmetic.tensor(s, x)
    memory = _memory(s, array, what)
    windows = (lens for lens in array.lenses if isinstance(lens, Window))
    if not all(isinstance(a, int) for lens in windows for a in lens.starts):
        raise s.error("DL107", f"{what} of a view whose place is not known", "copy it: x.copy()")
    unit = array.dtype.itemsize
    sizes = array.shape if shape is None else static_ints(s, shape, f"the shape of {what}")
    steps = (
        strides_of(s, array)
        if strides is None
        else static_ints(s, strides, f"the strides of {what}")
    )
    if len(sizes) != len(steps) or min(sizes, default=0) < 0 or any(n % unit for n in steps):
        text = f"{what}: the shape {sizes} and the strides {steps} do not fit"
        raise s.error("DL115", text, f"an element has {unit} bytes")

    def seen(layout: Any) -> Any:
        item = layout.itemsize
        for lens in array.lenses:
            layout = lens.of(layout)
        return stride_tricks.as_strided(layout, sizes, [k // unit * item for k in steps])

    whole = Tensor(memory.value, kind=ARRAY)
    whole.memory = memory
    every = np.arange(whole.type.size).reshape(whole.shape)
    start = every
    for lens in array.lenses:
        start = lens.of(start)
    moves = [(n - 1) * k // unit for n, k in zip(sizes, steps, strict=True)]
    if 0 not in sizes:
        first = int(start.flat[0]) if start.size else every.size
        ends = first + sum(min(m, 0) for m in moves), first + sum(max(m, 0) for m in moves)
        if ends[0] < 0 or ends[1] >= every.size:
            raise s.error(
                "DL114",
                f"{what}: the shape {sizes} and the strides {steps} reach what lies outside of the"
                " array",
            )
    return _view(s, whole, seen, what)


def sliding_window_view(
    s: Specialiser,
    x: Any,
    window_shape: Any,
    axis: Any = None,
    *,
    subok: Any = False,
    writeable: Any = False,
) -> Tensor:
    """All windows of a size."""
    what = "np.lib.stride_tricks.sliding_window_view"
    array = arithmetic.tensor(s, x)
    window = static_ints(s, window_shape, f"the window of {what}")
    axes = None if axis is None else static_ints(s, axis, f"the axis of {what}")

    def seen(layout: Any) -> Any:
        return stride_tricks.sliding_window_view(layout, window, axes)

    return _view(s, array, seen, what)


def as_array(
    s: Specialiser, a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None
) -> Any:
    """`np.asarray`: the array itself, where NumPy need not copy it (`shared_memory`)."""
    if order not in (None, "C", "K", "A"):
        text = f"np.asarray knows the orders C, K and A, not {describe(order)}"
        raise s.error("DL119", text, "a program's arrays lie in row-major order")
    if not is_static(copy):
        raise s.needs_static(copy, "`copy` of np.asarray")
    uncopied = False if copy is not None and not copy else None
    return shapes.array(s, a, dtype, uncopied)


def _view(s: Specialiser, x: Tensor, seen: Callable[[Any], Any], what: str) -> Tensor:
    every = np.arange(x.type.size).reshape(x.shape)
    view = operators.python(s, lambda: seen(every), what)
    if view.size > SIZE_MAX:
        text = f"{what}: {view.size} elements are more than {SIZE_MAX}"
        raise s.error("DL122", text, "take the windows in a loop: x[i : i + n]")
    places = np.array(view)
    places.setflags(write=False)
    lens = Places(places, seen)
    value = lens.get(s, x.value)
    if stores.memory_of(s, x) is None:
        return Tensor(value, kind=x.kind)
    return stores.view(s, x, value, (lens,))
