"""Methods of ufuncs: np.add.reduce, np.maximum.accumulate, np.multiply.outer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..definitions import np_numbers
from ..memory import array_changes
from ..numpy import arithmetic, reductions, shapes
from ..numpy.arithmetic import tensor
from ..operators import static_ints
from ..values import Tensor
from .vocabulary_table import Handler, Row, find

if TYPE_CHECKING:
    from ..specialise import Specialiser

REDUCE: dict[Any, Callable[..., Any]] = {
    np.add: reductions.sum_,
    np.multiply: reductions.prod,
    np.maximum: reductions.max_,
    np.minimum: reductions.min_,
    np.logical_and: reductions.all_,
    np.logical_or: reductions.any_,
}
#: Associative, so that a running one may be made by doubling.
ASSOCIATIVE = (
    *(np.multiply, np.maximum, np.minimum, np.fmax, np.fmin, np.logical_and, np.logical_or),
    *(np.logical_xor, np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.logaddexp, np.hypot),
    *(np.gcd, np.lcm),
)


def ufunc_method(ufunc: np.ufunc, name: str) -> Row | None:
    """The row of a ufunc's method, if there is one."""
    handler: Handler | None = None
    if name == "outer" and ufunc.nin == 2:
        handler = _outer(ufunc)
    elif name == "reduce" and ufunc in REDUCE:
        handler = _reduce(ufunc)
    elif name == "reduce" and ufunc in ASSOCIATIVE:
        handler = _fold(ufunc)
    elif name == "reduceat" and ufunc in (*REDUCE, *ASSOCIATIVE):
        handler = _reduceat(ufunc)
    elif name == "accumulate" and ufunc in _RUNNING:
        handler = _accumulate_all(_RUNNING[ufunc])
    elif name == "accumulate" and ufunc in ASSOCIATIVE:
        handler = _accumulate(ufunc)
    elif name == "at" and ufunc.nin == 2 and (row := find(ufunc)) is not None:
        return Row(ufunc.at, f"np.{ufunc.__name__}.at", array_changes.at(ufunc, row.handler), False)
    if handler is None:
        return None
    return Row(getattr(ufunc, name), f"np.{ufunc.__name__}.{name}", handler, True)


def _outer(ufunc: np.ufunc) -> Handler:
    def run(s: Specialiser, A: Any, B: Any) -> Any:
        # A number of Python's is an array here, with a type of its own.
        x, y = (arithmetic.strong(tensor(s, v)) for v in (A, B))
        last = tuple(range(len(x.shape), len(x.shape) + len(y.shape)))
        return s.call(ufunc, shapes.expand_dims(s, x, last), y)

    return run


def _reduce(ufunc: np.ufunc) -> Handler:
    reduction = REDUCE[ufunc]

    def run(
        s: Specialiser,
        array: Any,
        axis: Any = 0,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = False,
    ) -> Any:
        from ..calls import run_handler

        given = {"keepdims": keepdims} if dtype is None else {"keepdims": keepdims, "dtype": dtype}
        name = f"np.{ufunc.__name__}.reduce"
        made = run_handler(s, name, reduction, (array, axis), given)
        return made if out is None else array_changes.out(s, out, made, f"`{name}`", False)

    return run


#: Those that widen integers, as reductions do.
_RUNNING: dict[Any, Handler] = {np.add: reductions.cumsum, np.multiply: reductions.cumprod}


def _accumulate_all(running: Handler) -> Handler:
    return lambda s, array, axis=0: running(s, array, axis)


def _accumulate(ufunc: np.ufunc) -> Handler:
    def run(s: Specialiser, array: Any, axis: Any = 0) -> Any:
        x = tensor(s, array)
        try:
            kind = ufunc.resolve_dtypes((x.dtype.numpy, x.dtype.numpy, None))[-1]
        except TypeError as e:
            text = f"`np.{ufunc.__name__}` does not take {x.dtype.value}: {e}"
            raise s.error("DL116", text, "convert the array: x.astype(dtype)") from None
        x = tensor(s, x, arithmetic.numpy_dtype(s, kind))
        return s.call(np_numbers.running, ufunc, x, shapes.axis_of(s, x, axis))

    return run


def _fold(ufunc: np.ufunc) -> Handler:
    """A reduction of a ufunc that has none of its own: the last of the running ones.

    NumPy begins with the identity, which of one element makes another: gcd(0, -3) is 3.
    """

    def run(s: Specialiser, array: Any, axis: Any = 0) -> Any:
        x = tensor(s, array)
        k = shapes.axis_of(s, x, axis)
        if not x.shape[k]:
            raise s.error("DL115", f"`np.{ufunc.__name__}.reduce` of no elements")
        last = _last(s, ufunc, x, k)
        starts = x.shape[k] == 1 and ufunc.identity == 0
        return s.call(ufunc, last, s.call(np.zeros_like, last)) if starts else last

    return run


def _last(s: Specialiser, ufunc: np.ufunc, x: Tensor, axis: int) -> Any:
    return s.call(np.take, _accumulate(ufunc)(s, x, axis), -1, axis)


def _reduceat(ufunc: np.ufunc) -> Handler:
    def run(s: Specialiser, array: Any, indices: Any, axis: Any = 0) -> Any:
        places = static_ints(s, indices, "where a part begins")
        x = tensor(s, array)
        k = shapes.axis_of(s, x, axis)
        size = x.shape[k]
        if not places or not all(0 <= n < size for n in places):
            text = f"`np.{ufunc.__name__}.reduceat` takes places from 0 to {size - 1}"
            raise s.error("DL120", text)
        ends = (*places[1:], size)
        parts = [_part(s, x, k, a, max(b, a + 1)) for a, b in zip(places, ends, strict=True)]
        if ufunc in REDUCE:
            made = [s.call(ufunc.reduce, part, k) for part in parts]
        else:  # Without the identity.
            made = [_last(s, ufunc, part, k) for part in parts]
        return s.call(np.stack, made, k)

    return run


def _part(s: Specialiser, x: Tensor, axis: int, first: int, end: int) -> Any:
    return s.subscript(x, (*(slice(None),) * axis, slice(first, end)))
