"""NumPy's functions of single elements, as the IR's operations.

What is longer than a few operations, or needs a loop, is written in NumPy itself and inlined: see
`definitions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ...traced import SCALAR
from .. import operators
from ..values import Tensor, is_number, kind_of
from . import arithmetic
from .arithmetic import tensor

if TYPE_CHECKING:
    from ..specialise import Specialiser

Handler = Callable[..., Any]


def array(s: Specialiser, value: Any) -> Any:
    """NumPy's functions take nested sequences for arrays."""
    return s.array(value) if isinstance(value, tuple | list) else value


def binary(handler: Handler) -> Handler:
    """Wraps a handler of two numbers: nested sequences become arrays first."""

    def run(s: Specialiser, x1: Any, x2: Any) -> Any:
        return handler(s, array(s, x1), array(s, x2))

    return run


def floats(name: str) -> Handler:
    """Integers become f64 first."""

    def run(s: Specialiser, x: Any) -> Tensor:
        return arithmetic.floating(s, name, array(s, x))

    return run


def numbers(name: str) -> Handler:
    """The handler of an operation that keeps the element type."""

    def run(s: Specialiser, x: Any) -> Tensor:
        return arithmetic.elementwise(s, name, array(s, x))

    return run


def whole(name: str) -> Handler:
    """Integers are left alone."""

    def run(s: Specialiser, x: Any) -> Tensor:
        value = tensor(s, x)
        return value if not value.dtype.is_float else arithmetic.elementwise(s, name, value)

    return run


def rint(s: Specialiser, x: Any) -> Tensor:
    return arithmetic.floating(s, "round", array(s, x))


def trunc(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, x)
    if not value.dtype.is_float:
        return value
    up, down = (arithmetic.elementwise(s, n, value) for n in ("ceil", "floor"))
    return arithmetic.select(s, arithmetic.less(s, value, 0), up, down)


def absolute(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, x)
    return value if value.dtype is DType.BOOL else arithmetic.elementwise(s, "abs", value)


def square(s: Specialiser, x: Any) -> Tensor:
    return arithmetic.multiply(s, x, x)


def reciprocal(s: Specialiser, x: Any) -> Tensor:
    """Of a whole number a whole one: itself where it is 1 or -1, else 0.

    Of 0 it is what the processor makes of an infinity, as in NumPy.
    """
    value = tensor(s, array(s, x))
    if not value.dtype.is_int:
        return arithmetic.divide(s, 1, value)
    unit = arithmetic.equal(s, absolute(s, value), 1)
    with np.errstate(all="ignore"):
        of_zero = int(np.reciprocal(np.zeros((), value.dtype.numpy)))
    others = arithmetic.select(s, unit, value, 0)
    if not of_zero:
        return others
    return arithmetic.select(s, arithmetic.equal(s, value, 0), of_zero, others)


def composed(handler: Handler) -> Handler:
    """Wraps a function made of several operations: integers become floats before the first.

    Those of f16 go by way of f32, as in NumPy: each operation would round.
    """

    def run(s: Specialiser, x: Any) -> Tensor:
        value = tensor(s, array(s, x))
        kind = arithmetic.float_kind(value.dtype)
        wide = DType.F32 if kind is DType.F16 else kind
        made = handler(s, Tensor(tensor(s, value, wide).value, value.weak))
        return made if wide is kind else Tensor(arithmetic.convert(s, made.value, kind), made.weak)

    return run


@composed
def tan(s: Specialiser, x: Any) -> Tensor:
    return arithmetic.divide(s, floats("sin")(s, x), floats("cos")(s, x))


def log_base(base: float) -> Handler:
    """The handler of a logarithm: the natural one divided by that of the base."""

    def run(s: Specialiser, x: Any) -> Tensor:
        return arithmetic.divide(s, floats("log")(s, x), float(np.log(base)))

    return composed(run)


def exp2(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, array(s, x))
    kind = arithmetic.float_kind(value.dtype)
    return arithmetic.elementwise(s, "pow", tensor(s, 2.0, kind), tensor(s, value, kind))


def float_power(s: Specialiser, x1: Any, x2: Any) -> Tensor:
    """In f64, whatever the arguments are."""
    wide = [tensor(s, array(s, v), DType.F64) for v in (x1, x2)]
    return arithmetic.elementwise(s, "pow", *wide)


def arctan2(s: Specialiser, x1: Any, x2: Any) -> Tensor:
    return arithmetic.floating(s, "atan2", array(s, x1), array(s, x2))


def arctan(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, array(s, x))
    kind = arithmetic.float_kind(value.dtype)
    return arithmetic.elementwise(s, "atan2", tensor(s, value, kind), tensor(s, 1.0, kind))


def _beside(s: Specialiser, x: Any) -> Tensor:
    """sqrt(1 - x^2), in factors, so that it is right near 1."""
    product = arithmetic.multiply(s, arithmetic.subtract(s, 1, x), arithmetic.add(s, 1, x))
    return floats("sqrt")(s, product)  # type: ignore[no-any-return]


@composed
def arcsin(s: Specialiser, x: Any) -> Tensor:
    return arithmetic.floating(s, "atan2", x, _beside(s, x))


@composed
def arccos(s: Specialiser, x: Any) -> Tensor:
    return arithmetic.floating(s, "atan2", _beside(s, x), x)


def logaddexp(s: Specialiser, x1: Any, x2: Any) -> Tensor:
    """The larger plus log(1 + e^-gap). One choice for both, so that it is smooth where they tie."""
    kind, weak = arithmetic.result_dtype(s, (array(s, x1), array(s, x2)))
    kind = arithmetic.float_kind(kind)
    if (wider := _wider(s, logaddexp, x1, x2)) is not None:
        return wider
    x1, x2 = (Tensor(tensor(s, v, kind).value, weak) for v in (x1, x2))
    gap = arithmetic.subtract(s, array(s, x1), array(s, x2))
    first = arithmetic.greater(s, gap, 0)
    top = arithmetic.select(s, first, x1, x2)
    down = arithmetic.select(s, first, arithmetic.negative(s, gap), gap)
    # Equal infinities have no gap.
    lost = arithmetic.bitwise_and(s, arithmetic.equal(s, x1, x2), isnan(s, gap))
    down = arithmetic.select(s, lost, 0.0, down)
    return arithmetic.add(s, top, floats("log1p")(s, floats("exp")(s, down)))


def _wider(s: Specialiser, handler: Handler, x1: Any, x2: Any) -> Tensor | None:
    """A function of numbers of f16 by way of f32, as NumPy computes it; None for other types."""
    kind, weak = arithmetic.result_dtype(s, (array(s, x1), array(s, x2)))
    if arithmetic.float_kind(kind) is not DType.F16:
        return None
    wide = handler(s, *(Tensor(tensor(s, v, DType.F32).value, weak) for v in (x1, x2)))
    return Tensor(arithmetic.convert(s, wide.value, DType.F16), weak)


def hypot(s: Specialiser, x1: Any, x2: Any) -> Tensor:
    """Scaled by the larger, so that squares stay within range; the scale has no derivative."""
    kind, weak = arithmetic.result_dtype(s, (array(s, x1), array(s, x2)))
    kind = arithmetic.float_kind(kind)
    if (wider := _wider(s, hypot, x1, x2)) is not None:
        return wider
    x, y = (Tensor(tensor(s, v, kind).value, weak) for v in (x1, x2))
    top = arithmetic.maximum(s, absolute(s, x), absolute(s, y))
    scale = Tensor(s.emit("stop_gradient", top.value), top.weak)
    usable = arithmetic.bitwise_and(s, arithmetic.greater(s, scale, 0), isfinite(s, scale))
    scale = arithmetic.select(s, usable, scale, 1.0)
    squares = [square(s, arithmetic.divide(s, v, scale)) for v in (x, y)]
    size = arithmetic.multiply(s, floats("sqrt")(s, arithmetic.add(s, *squares)), scale)
    infinite = arithmetic.bitwise_or(s, isinf(s, x), isinf(s, y))  # Also where the other is NaN.
    return arithmetic.select(s, infinite, np.inf, size)


def logical(handler: Handler) -> Handler:
    """Wraps a handler of two bools: numbers are true where they are not zero."""

    def run(s: Specialiser, x1: Any, x2: Any) -> Any:
        return handler(s, tensor(s, x1, DType.BOOL), tensor(s, x2, DType.BOOL))

    return run


def logical_not(s: Specialiser, x: Any) -> Tensor:
    return Tensor(s.emit("not", tensor(s, x, DType.BOOL).value))


def isnan(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, x)
    return arithmetic.not_equal(s, value, value)


def isfinite(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, x)
    if not value.dtype.is_float:
        return Tensor(s.scope.number(True, DType.BOOL, value.shape))
    return Tensor(s.emit("is_finite", value.value))


def isinf(s: Specialiser, x: Any) -> Tensor:
    value = tensor(s, x)
    lost = logical_not(s, isfinite(s, value))
    return arithmetic.bitwise_and(s, lost, arithmetic.equal(s, value, value))


def signbit(s: Specialiser, x: Any) -> Tensor:
    """Whether the sign is set, also that of a zero or a NaN."""
    value = tensor(s, x)
    if value.dtype is DType.BOOL:
        return Tensor(s.scope.number(False, DType.BOOL, value.shape))
    if not value.dtype.is_float:
        return arithmetic.less(s, value, 0)
    kind = DType.I64 if value.dtype is DType.F64 else DType.I32
    if value.dtype.itemsize != kind.itemsize:
        value = tensor(s, value, DType.F32)
    return arithmetic.less(s, Tensor(s.emit("bitcast", value.value, dtype=kind)), 0)


def where(s: Specialiser, condition: Any, x: Any = None, y: Any = None) -> Tensor:
    if x is None or y is None:
        raise s.error(
            "DL115",
            "np.where(condition) alone has a shape that depends on the data",
            "give both values: np.where(condition, x, y)",
        )
    both = array(s, x), array(s, y)
    dtype, _ = arithmetic.result_dtype(s, both)
    if WHERE_WRAPS:
        both = array(s, _wrapped(x, dtype)), array(s, _wrapped(y, dtype))
    else:
        for given in (x, y):
            if is_number(given) and kind_of(given) < SCALAR:
                arithmetic.materialise(s, given, dtype, ())
    return arithmetic.select(s, array(s, condition), *both)


def _wrapped(value: Any, dtype: DType) -> Any:
    """An int of Python's that does not fit a type of integers, as NumPy casts it."""
    if type(value) is not int or not dtype.is_int or not -(2**63) <= value < 2**63:
        return value
    return value if value == (cast := np.asarray(value).astype(dtype.numpy)[()]) else cast


#: Whether an int of Python's that does not fit wraps in `np.where`: an OverflowError from 2.5 on.
WHERE_WRAPS = np.lib.NumpyVersion(np.__version__) < "2.5.0"


#: An argument that is not given.
_MISSING: Any = vars(np)["_NoValue"]


def conjugate(s: Specialiser, x: Any) -> Any:
    """`np.conjugate` of real numbers."""
    return arithmetic.positive(s, arithmetic.one_type(s, x))


def clip(
    s: Specialiser,
    a: Any,
    a_min: Any = _MISSING,
    a_max: Any = _MISSING,
    *,
    min: Any = None,
    max: Any = None,
) -> Any:
    """`np.clip`, which wants both ends or names."""
    if (a_min is _MISSING) is not (a_max is _MISSING):
        missing = "a_min" if a_min is _MISSING else "a_max"
        raise s.error("DL105", f"`np.clip`: missing a required argument: '{missing}'")
    low, high = (None if v is _MISSING else v for v in (a_min, a_max))
    return clipped(s, a, low, high, min=min, max=max)


def clipped(
    s: Specialiser,
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    *,
    min: Any = None,
    max: Any = None,
) -> Any:
    """`x.clip`."""
    a = arithmetic.strong(arithmetic.one_type(s, a))  # NumPy calls a method of it, as an array.
    if arithmetic.dtype_of(s, array(s, a))[0] is DType.BOOL and all(
        v is None for v in (a_min, a_max, min, max)
    ):
        raise s.error("DL116", "NumPy clips bools by at least one end", "leave np.clip out")
    low = _end(s, a, a_min if a_min is not None else min, False)
    high = _end(s, a, a_max if a_max is not None else max, True)
    if low is not None and high is not None:  # All three promote at once.
        own, _ = arithmetic.dtype_of(s, array(s, a))
        kind, _ = arithmetic.result_dtype(s, [array(s, v) for v in (a, low, high)])
        if own.is_int and kind is not own and (_is_weak_int(low) or _is_weak_int(high)):
            text = f"NumPy drops an end of np.clip that no {own.value} exceeds"
            raise s.error("DL116", text, "convert the array first: np.clip(x.astype(dtype), a, b)")
        a, low, high = (tensor(s, array(s, v), kind) for v in (a, low, high))
    out: Any = array(s, a) if low is None else arithmetic.maximum(s, array(s, a), array(s, low))
    return out if high is None else arithmetic.minimum(s, out, array(s, high))


def _is_weak_int(value: Any) -> bool:
    """Whether it is a running int of Python's."""
    return type(value) is Tensor and value.weak and value.dtype.is_int


def _end(s: Specialiser, a: Any, end: Any, greatest: bool) -> Any:
    """An end; none where no integer of the array's type exceeds it, as NumPy's `_clip` has it."""
    dtype, weak = arithmetic.dtype_of(s, array(s, a))
    if not dtype.is_int or weak or type(end) not in (int, Tensor):
        return end
    info = np.iinfo(dtype.numpy)
    last = info.max if greatest else info.min
    if type(end) is int:
        return None if (end >= last if greatest else end <= last) else end
    if not end.weak or not end.dtype.is_int or last > np.iinfo(np.int64).max:
        return end
    name = "min" if greatest else "max"
    return Tensor(s.emit(name, end.value, s.scope.number(last, end.dtype)), True)


#: Powers of ten beyond are no floats.
_DECIMALS_MAX = 300


def round_(s: Specialiser, a: Any, decimals: Any = 0) -> Tensor:
    """Half to even, as NumPy rounds."""
    places = operators.static_int(s, decimals, "the number of decimals")
    if abs(places) > _DECIMALS_MAX:
        raise s.error("DL119", f"no float has {places} decimals")
    x = tensor(s, a)
    if x.dtype is DType.BOOL:
        hint = "convert it first: x.astype(np.float32)"
        raise s.error("DL116", "NumPy rounds bools as f16 numbers", hint)
    if not x.dtype.is_float:
        if places >= 0:
            return x
        return tensor(s, round_(s, tensor(s, x, DType.F64), places), x.dtype)
    if places == 0:
        return arithmetic.elementwise(s, "round", x)
    # As NumPy: a power of ten that is a whole number, multiplied or divided by.
    power = 10.0 ** abs(places)
    there, back = arithmetic.multiply, arithmetic.divide
    if places < 0:
        there, back = back, there
    return back(s, arithmetic.elementwise(s, "round", there(s, x, power)), power)


def nan_to_num(
    s: Specialiser, x: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Tensor:
    """NaN to `nan`; infinities to the largest numbers, or to what is given for them."""
    value = tensor(s, x)
    if not value.dtype.is_float:
        return value
    limit = value.dtype.largest
    kept: Any = value
    if posinf is None and neginf is None:
        kept = clipped(s, value, -limit, limit)
    else:
        ends = (limit if posinf is None else posinf, -limit if neginf is None else neginf)
        for end, sign in zip(ends, (1.0, -1.0), strict=True):
            kept = arithmetic.select(s, arithmetic.equal(s, value, sign * np.inf), end, kept)
    return arithmetic.select(s, isnan(s, value), nan, kept)


def constructor(dtype: DType) -> Handler:
    """The handler of a scalar type of NumPy called as a function, as `np.float32(x)`."""

    def run(s: Specialiser, x: Any = 0) -> Tensor:
        if dtype.is_float and type(x) is int:  # It may be too large for an integer of the IR.
            x = operators.python(s, lambda: float(x), f"`np.{dtype.numpy.name}`")
        return tensor(s, array(s, x), dtype)

    return run
