"""NumPy's functions along axes: sums, extremes, means, sorting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType, Value
from .. import operators
from ..definitions import np_numbers
from ..flow import integer_fits
from ..operators import static_int, static_ints
from ..values import Tensor, describe
from . import arithmetic, indexing
from .arithmetic import numpy_dtype, tensor
from .formulas import fails, refuses
from .shapes import axes_of, axis_of, ravel, transpose

if TYPE_CHECKING:
    from ..specialise import Specialiser


def reduced(s: Specialiser, name: str, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    """A reduction `name` of the IR; over no axes it is the value."""
    value = s.emit(name, x, axes=axes) if axes else x
    if keepdims:
        shape = tuple(1 if k in axes else n for k, n in enumerate(x.shape))
        value = indexing.reshape(s, value, shape)
    return value


def _accumulated(s: Specialiser, a: Any, dtype: Any, where: Any, identity: int) -> Value:
    """What is summed up: bools and integers as i64 or, unsigned, as u64, as NumPy widens them."""
    x = tensor(s, a)
    kind = x.dtype if dtype is None else numpy_dtype(s, dtype)
    if dtype is None and not kind.is_float:
        kind = DType.U64 if kind.is_unsigned else DType.I64
    return _where(s, Tensor(arithmetic.convert(s, x.value, kind)), where, identity).value


def reduced_axes(s: Specialiser, x: Any, axis: Any) -> tuple[int, ...]:
    """Sorted axes of a reduction."""
    return axes_of(s, x, operators.no_list(s, axis))


def _where(s: Specialiser, x: Tensor, where: Any, identity: Any) -> Tensor:
    """The identity of a reduction in the place of what it leaves out."""
    if where is True:
        return x
    if isinstance(where, Tensor | np.ndarray) and tensor(s, where).dtype is not DType.BOOL:
        text = f"`where` takes bools, not {describe(where)}"
        raise s.error("DL116", text, "compare: where=x != 0")
    mask = tensor(s, where, DType.BOOL)
    longer = len(mask.shape) > len(x.shape)
    tails = zip(reversed(mask.shape), reversed(x.shape), strict=False)
    if longer or any(n not in (1, size) for n, size in tails):
        text = f"`where` is {describe(mask)}, and does not broadcast to {describe(x)}"
        raise s.error("DL115", text)
    kept = arithmetic.select(s, mask, x, identity)
    return tensor(s, kept, x.dtype)


def _begun(s: Specialiser, combine: Any, result: Tensor, initial: Any) -> Tensor:
    """With the value that a reduction starts from, which has the type that it reduces in."""
    if initial is None:
        return result
    if type(initial) is not Tensor:
        dtype = result.dtype.numpy
        initial = operators.python(s, lambda: np.array([initial], dtype)[0], "`initial`")
    if arithmetic.dtype_of(s, initial)[0].is_float and not result.dtype.is_float:
        text = f"`initial` of {result.dtype.value} is {describe(initial)}"
        raise s.error("DL116", text, "convert it first: int(initial)")
    integer_fits.check_fits(s, initial, result.dtype, item=True)
    return combine(s, result, tensor(s, initial, result.dtype))  # type: ignore[no-any-return]


def sum_(
    s: Specialiser,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    keepdims: Any = False,
    initial: Any = None,
    where: Any = True,
) -> Tensor:
    x = _accumulated(s, a, dtype, where, 0)
    if x.dtype is DType.BOOL:
        return _begun(s, arithmetic.bitwise_or, any_(s, Tensor(x), axis, keepdims), initial)
    total = Tensor(reduced(s, "reduce_sum", x, reduced_axes(s, Tensor(x), axis), keepdims))
    return _begun(s, arithmetic.add, total, initial)


def prod(
    s: Specialiser,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    keepdims: Any = False,
    initial: Any = None,
    where: Any = True,
) -> Tensor:
    x = _accumulated(s, a, dtype, where, 1)
    if x.dtype is DType.BOOL:
        return _begun(s, arithmetic.bitwise_and, all_(s, Tensor(x), axis, keepdims), initial)
    product = Tensor(reduced(s, "reduce_prod", x, reduced_axes(s, Tensor(x), axis), keepdims))
    return _begun(s, arithmetic.multiply, product, initial)


def _extreme(s: Specialiser, name: str, a: Any, axis: Any, keepdims: Any, initial: Any) -> Tensor:
    x = tensor(s, a)
    axes = reduced_axes(s, x, axis)
    if any(x.shape[k] == 0 for k in axes):
        raise s.error("DL115", f"{describe(x)} has no largest or smallest element: it is empty")
    found = Tensor(reduced(s, name, x.value, axes, keepdims))
    return _begun(
        s, arithmetic.maximum if name == "reduce_max" else arithmetic.minimum, found, initial
    )


def max_(
    s: Specialiser, a: Any, axis: Any = None, keepdims: Any = False, initial: Any = None
) -> Tensor:
    return _extreme(s, "reduce_max", a, axis, keepdims, initial)


def min_(
    s: Specialiser, a: Any, axis: Any = None, keepdims: Any = False, initial: Any = None
) -> Tensor:
    return _extreme(s, "reduce_min", a, axis, keepdims, initial)


def any_(
    s: Specialiser, a: Any, axis: Any = None, keepdims: Any = False, where: Any = True
) -> Tensor:
    x = _where(s, tensor(s, a, DType.BOOL), where, False)
    return Tensor(reduced(s, "reduce_max", x.value, reduced_axes(s, x, axis), keepdims))


def all_(
    s: Specialiser, a: Any, axis: Any = None, keepdims: Any = False, where: Any = True
) -> Tensor:
    x = _where(s, tensor(s, a, DType.BOOL), where, True)
    return Tensor(reduced(s, "reduce_min", x.value, reduced_axes(s, x, axis), keepdims))


def count_nonzero(s: Specialiser, a: Any, axis: Any = None, keepdims: Any = False) -> Tensor:
    return sum_(s, tensor(s, a, DType.BOOL), axis, None, keepdims)


def _floating(s: Specialiser, a: Any, dtype: Any) -> Tensor:
    x = tensor(s, a)
    if dtype is not None:
        return tensor(s, x, numpy_dtype(s, dtype))
    return Tensor(x.value) if x.dtype.is_float else tensor(s, x, DType.F64)


def count_along(x: Tensor, axes: tuple[int, ...]) -> int:
    """How many elements of x lie along some axes."""
    count = 1
    for k in axes:
        count *= x.shape[k]
    return count


def mean(
    s: Specialiser, a: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False
) -> Tensor:
    x = _floating(s, a, dtype)
    axes = reduced_axes(s, x, axis)
    wide = dtype is None and x.dtype is DType.F16  # NumPy sums these in f32: no sum overflows.
    value = arithmetic.convert(s, x.value, DType.F32) if wide else x.value
    total = Tensor(reduced(s, "reduce_sum", value, axes, keepdims))
    result = arithmetic.divide(s, total, count_along(x, axes))
    return result if x.dtype.is_float and not wide else tensor(s, result, x.dtype)


def average(
    s: Specialiser,
    a: Any,
    axis: Any = None,
    weights: Any = None,
    returned: Any = False,
    *,
    keepdims: Any = False,
) -> Any:
    axis = tuple(axis) if isinstance(axis, list) else axis
    if weights is None:
        result = mean(s, a, axis, None, keepdims)
        if not result.type.size:
            raise s.error("DL115", "np.average: NumPy divides by a number of no results, zero")
        count = count_along(tensor(s, a), reduced_axes(s, tensor(s, a), axis))
        return (
            (result, Tensor(s.scope.number(count, result.dtype, result.shape)))
            if returned
            else result
        )
    x = _floating(s, a, None)
    w = tensor(s, weights)
    w = tensor(s, w, arithmetic.result_dtype(s, (x, w))[0])
    if w.shape != x.shape:
        if axis is None:
            text = f"np.average of {describe(x)} with weights {describe(weights)} has no axis"
            raise s.error("DL115", text, "name the axes that the weights go along")
        axes = [axis_of(s, x, k) for k in static_ints(s, axis, "an axis")]
        if w.shape != tuple(x.shape[k] for k in axes):
            text = f"{describe(weights)} are no weights along {list(axes)} of {describe(x)}"
            raise s.error("DL115", text, "their shape is that of the array along these axes")
        w = transpose(s, w, *sorted(range(len(axes)), key=axes.__getitem__))
        shape = tuple(n if d in axes else 1 for d, n in enumerate(x.shape))
        w = Tensor(indexing.reshape(s, w.value, shape))
    total = sum_(s, arithmetic.multiply(s, x, w), axis, None, keepdims)
    spread = arithmetic.broadcast(s, w.value, arithmetic.broadcast_shapes(s, (x, w)))
    heavy = sum_(s, Tensor(spread), axis, None, keepdims)
    nothing = arithmetic.equal(s, heavy, 0).value
    fails(s, nothing, ZeroDivisionError, "Weights sum to zero, can't be normalized")
    result = arithmetic.divide(s, total, heavy)
    return (result, tensor(s, heavy, result.dtype)) if returned else result


def var(
    s: Specialiser,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
) -> Tensor:
    x = _floating(s, a, None)
    kind = x.dtype if dtype is None else numpy_dtype(s, dtype)
    if not kind.is_float:
        text = f"np.var and np.std in {kind.value} round at each step"
        raise s.error("DL116", text, "convert the result: np.var(x).astype(dtype)")
    axes = reduced_axes(s, x, axis)
    # NumPy takes the mean in `dtype`, and what it takes it from as it is.
    centred = arithmetic.subtract(s, x, mean(s, x, axis, kind.numpy, True))
    squares = tensor(s, arithmetic.multiply(s, centred, centred), kind)
    total = Tensor(reduced(s, "reduce_sum", squares.value, axes, keepdims))
    return arithmetic.divide(s, total, freedom(s, count_along(x, axes), ddof))


def freedom(s: Specialiser, count: int, ddof: Any) -> Any:
    """What a variance divides by, in Python's numbers: one of NumPy's may wrap around."""
    if not isinstance(ddof, int | float | np.number):
        raise s.needs_static(ddof, "`ddof`")
    return max(count - (ddof.item() if isinstance(ddof, np.number) else ddof), 0)


def std(
    s: Specialiser,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
) -> Tensor:
    squares = var(s, a, axis, dtype, ddof, keepdims)
    x = tensor(s, a)
    if (
        count_along(x, reduced_axes(s, x, axis)) == 1
    ):  # 0, or NaN: its own root, with a slope that is not NaN.
        return squares
    return Tensor(s.emit("sqrt", squares.value))


def _place(s: Specialiser, name: str, a: Any, axis: Any, keepdims: Any) -> Tensor:
    x = tensor(s, a)
    if axis is None:
        rank = len(x.shape)
        value = s.emit(name, ravel(s, x).value, axis=0)
        return Tensor(indexing.reshape(s, value, (1,) * rank) if keepdims else value)
    k = axis_of(s, x, axis)
    if x.shape[k] == 0:
        raise s.error("DL115", f"{describe(x)} has no largest or smallest element: it is empty")
    value = s.emit(name, x.value, axis=k)
    if keepdims:
        value = indexing.reshape(s, value, (*x.shape[:k], 1, *x.shape[k + 1 :]))
    return Tensor(value)


def argmax(s: Specialiser, a: Any, axis: Any = None, *, keepdims: Any = False) -> Tensor:
    return _place(s, "argmax", a, axis, keepdims)


def argmin(s: Specialiser, a: Any, axis: Any = None, *, keepdims: Any = False) -> Tensor:
    return _place(s, "argmin", a, axis, keepdims)


def check_sort(s: Specialiser, kind: Any, stable: Any) -> None:
    """NumPy says which sorts there are."""
    if kind is not None:
        if not isinstance(kind, str):
            raise s.error("DL119", f"a sort is named by a string, not {describe(kind)}")
        given = {"kind": kind} if stable is None else {"kind": kind, "stable": stable}
        operators.python(s, lambda: np.empty(0).sort(**given), "`np.sort`")


def argsort(
    s: Specialiser, a: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None
) -> Tensor:
    """Always stable, whatever `kind` asks for."""
    check_sort(s, kind, stable)
    x = tensor(s, a) if axis is not None else ravel(s, a)
    k = axis_of(s, x, 0 if axis is None else axis)
    return Tensor(s.emit("argsort", x.value, axis=k))


def sort(s: Specialiser, a: Any, axis: Any = -1, kind: Any = None, *, stable: Any = None) -> Tensor:
    check_sort(s, kind, stable)
    x = tensor(s, a) if axis is not None else ravel(s, a)
    k = axis_of(s, x, 0 if axis is None else axis)
    order = s.emit("argsort", x.value, axis=k)
    return Tensor(s.emit("take_along", x.value, order, axis=k))


def cumsum(s: Specialiser, a: Any, axis: Any = None, dtype: Any = None) -> Tensor:
    x = Tensor(_accumulated(s, a, dtype, True, 0))
    if axis is None:
        x, axis = ravel(s, x), 0
    return Tensor(s.emit("cumsum", x.value, axis=axis_of(s, x, axis)))


def cumprod(s: Specialiser, a: Any, axis: Any = None, dtype: Any = None) -> Tensor:
    x = Tensor(_accumulated(s, a, dtype, True, 0))
    if axis is None:
        x, axis = ravel(s, x), 0
    return s.call(np_numbers.running, np.multiply, x, axis_of(s, x, axis))  # type: ignore[no-any-return]


def bincount(s: Specialiser, x: Any, /, weights: Any = None, minlength: Any = 0) -> Tensor:
    """As long as `minlength`, which must be given: where NumPy's is longer, the call fails."""
    length = static_int(s, minlength, "minlength")
    index = tensor(s, x)
    if length <= 0 or len(index.shape) != 1 or index.dtype.is_float:
        text = f"np.bincount counts a vector of whole numbers below minlength, not {describe(x)}"
        raise s.error("DL119", text, "np.bincount(x, minlength=n): the result's length is n")
    kind = DType.I64 if weights is None else DType.F64
    weight = tensor(s, 1 if weights is None else weights, kind)
    if weights is not None and weight.shape != index.shape:
        raise s.error("DL115", "np.bincount: the weights and the list don't have the same length")
    inside = arithmetic.less(s, index, length)
    above = arithmetic.greater_equal(s, index, length).value
    refuses(s, above, "Python gives a longer np.bincount: `minlength` does not reach all numbers")
    if index.value not in s.scope.natural:
        natural = arithmetic.greater_equal(s, index, 0)
        words = "'list' argument must have no negative elements"
        fails(s, arithmetic.invert(s, natural).value, ValueError, words)
        inside = arithmetic.bitwise_and(s, inside, natural)
    heavy = arithmetic.select(s, inside, weight, Tensor(s.scope.number(0, kind)))
    counts = s.scope.number(0, kind, (length,))
    spread = arithmetic.broadcast(s, heavy.value, index.shape)
    return Tensor(s.emit("put_add", counts, index.value, spread, axis=0))
