"""Numbers meet: NumPy's promotion (NEP 50), broadcasting, and the elementwise operators.

The IR's elementwise operations want operands of one type; here they are made so. A Python number is
weak: it decides the kind of a result (bool < int < float) but never its width, unless there is
nothing else; `Tensor.weak` carries that through the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...complex_numbers import Complex, is_complex
from ...ir import DType, Value
from ...traced import ARRAY, BOOL, FLOAT, INT, SCALAR, has_own_operators
from ..values import NUMBERS, Tensor, describe

if TYPE_CHECKING:
    from ..specialise import Specialiser

_RANK = {DType.BOOL: 0, **{d: 1 for d in DType if d.is_int}}  # Floats are 2.
_WEAK = (DType.BOOL, DType.I64, DType.F64)


@lru_cache(maxsize=256)
def _join(a: DType, b: DType) -> DType:
    return DType.of(np.result_type(a.numpy, b.numpy))


def joined(s: Specialiser, a: DType, b: DType) -> DType:
    """What two element types promote to, by NumPy's rules; for bf16 by those of ml_dtypes."""
    try:
        return _join(a, b)
    except TypeError:
        text = f"{a.value} and {b.value} have no common type"
        raise s.error("DL116", text, "convert one of them: x.astype(np.float32)") from None


def dtype_of(s: Specialiser, value: Any) -> tuple[DType, bool]:
    """A number's element type, and whether it is weak."""
    kind = type(value)
    if kind is Tensor:
        return value.dtype, value.weak
    if kind is bool:
        return DType.BOOL, True
    if kind is int:
        return DType.I64, True
    if kind is float:
        return DType.F64, True
    if has_own_operators(value):
        text = f"a `{kind.__name__}` is an array with operators of its own"
        raise s.error("DL119", text, "use np.asarray(x), without a mask")
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "c":
        return numpy_dtype(s, value.dtype), False
    raise not_a_number(s, value)


def not_a_number(s: Specialiser, value: Any) -> Exception:
    """The error of an operand that is no real number and no array of them."""
    if type(value) is Complex or is_complex(value):
        text = f"a complex number ({describe(value)}) stands where a real one is needed"
        return s.error("DL116", text, "take z.real, z.imag or abs(z)")
    return s.error("DL119", f"expected an array or a number, not {describe(value)}")


def numpy_dtype(s: Specialiser, dtype: Any) -> DType:
    """The IR's element type for what a user may give as a dtype."""
    try:
        return DType.of(dtype)
    except (KeyError, TypeError, ValueError):
        names = ", ".join(DType.names())
        raise s.error(
            "DL116", f"there is no element type {describe(dtype)}", f"there are {names}"
        ) from None


#: Kinds of one class, or of two that are alike.
_ONE_CLASS = frozenset((BOOL, INT, FLOAT, SCALAR, ARRAY, SCALAR | ARRAY))


def alternatives(s: Specialiser, value: Any) -> list[tuple[DType, bool]]:
    """The element type, and whether it is weak, of each class that a number may have.

    The classes are Python's; which one it has depends on the program's path.
    """
    if type(value) is not Tensor or value.kind in _ONE_CLASS:
        return [dtype_of(s, value)]
    found = [
        (d, True) for bit, d in zip((BOOL, INT, FLOAT), _WEAK, strict=True) if value.kind & bit
    ]
    return [*found, (value.dtype, False)] if value.kind >= SCALAR else found


def depends(s: Specialiser, value: Any) -> Exception:
    """The error of an operation whose result's type depends on the class of this number."""
    names = "` or `".join(c.__name__ for c in value.classes)
    text = f"this number is in Python `{names}`, as the program takes its path, and the result's"
    text += " type depends on which"
    return s.error("DL108", text, f"convert it on each path: float(x), np.{value.dtype.numpy}(x)")


def one_type(s: Specialiser, value: Any) -> Any:
    """A number that becomes an array by itself: of the same type, whatever its class is."""
    if len({dtype for dtype, _ in alternatives(s, value)}) > 1:
        raise depends(s, value)
    return value


def of_one_class(value: Any) -> Any:
    """A number of one class or another as one of the widest."""
    if type(value) is not Tensor or value.kind in _ONE_CLASS:
        return value
    return Tensor(value.value, value.weak)


def result_dtype(
    s: Specialiser, values: Sequence[Any], then: Callable[[DType], DType] = lambda dtype: dtype
) -> tuple[DType, bool]:
    """The element type that these promote to, and whether it is weak.

    `then` makes the result's type of it.

    Raises:
        ProgramError: DL108, where the result's type depends on the path that the program takes:
            one of the values is in Python of one class or another.
    """
    kinds = [dtype_of(s, value) for value in values]
    found = promoted(s, kinds)
    several = [v for v in values if type(v) is Tensor and v.kind not in _ONE_CLASS]
    if several:
        others = {k for v, k in zip(values, kinds, strict=True) if not any(v is w for w in several)}
        sets = {frozenset(others)}
        for value in several:
            sets = {have | {kind} for have in sets for kind in alternatives(s, value)}
        if any(then(promoted(s, x)[0]) is not then(found[0]) for x in sets):
            raise depends(s, several[0])
    return found


def promoted(s: Specialiser, kinds: Iterable[tuple[DType, bool]]) -> tuple[DType, bool]:
    """NEP 50 for these element types, each with whether it is weak."""
    strong: DType | None = None
    weak = -1
    for dtype, is_weak in kinds:
        if is_weak:
            weak = max(weak, _RANK.get(dtype, 2))
        else:
            strong = dtype if strong is None or strong is dtype else joined(s, strong, dtype)
    if strong is None:
        return _WEAK[max(weak, 0)], True
    if weak > _RANK.get(strong, 2):
        return _WEAK[weak], False
    return strong, False


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape; () for what is not an array."""
    if type(value) is Tensor:
        return value.shape
    return value.shape if isinstance(value, np.ndarray) else ()


def broadcast_shapes(s: Specialiser, values: Sequence[Any]) -> tuple[int, ...]:
    """The shape that these broadcast to."""
    shapes = [shape_of(v) for v in values]
    first = shapes[0]
    if all(x == first for x in shapes):
        return first
    out: list[int] = []
    for sizes in zip(*(_aligned(x, max(map(len, shapes))) for x in shapes), strict=True):
        wide = [n for n in sizes if n != 1]
        if any(n != wide[0] for n in wide):
            text = " and ".join(str(list(x)) for x in shapes)
            hint = "sizes must be equal or 1, counted from the last axis; x[:, None] adds an axis"
            raise s.error("DL115", f"shapes {text} do not broadcast together", hint)
        out.append(wide[0] if wide else 1)
    return tuple(out)


def _aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def convert(s: Specialiser, value: Value, dtype: DType) -> Value:
    """A value of another element type; of a bool it says which elements are not zero."""
    have = value.dtype
    if have is dtype:
        return value
    if dtype is DType.BOOL:
        return s.emit("ne", value, s.scope.number(0, have, value.shape))
    return s.emit("convert", value, dtype=dtype)


def convert_number(s: Specialiser, value: Any, dtype: DType) -> Any:
    """A number of Python's own as another one of Python's."""
    if type(value) is Tensor:
        return Tensor(convert(s, value.value, dtype), True)
    return float(value) if dtype is DType.F64 else int(value)


def broadcast(s: Specialiser, value: Value, shape: tuple[int, ...]) -> Value:
    """NumPy's broadcasting to a shape that is known to fit."""
    have = value.shape
    if have == shape:
        return value
    dims = tuple(range(len(shape) - len(have), len(shape)))
    return s.emit("broadcast", value, shape=shape, dims=dims)


def materialise(s: Specialiser, value: Any, dtype: DType, shape: tuple[int, ...]) -> Value:
    """A number as an SSA value of this type; Python numbers become constants of it."""
    if type(value) is Tensor:
        if value.weak and dtype.is_int:
            from ..flow import integer_fits

            integer_fits.check_fits(s, value, dtype)
        return broadcast(s, convert(s, value.value, dtype), shape)
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return broadcast(s, s.scope.array(value, dtype), shape)
    check_range(s, value, dtype)
    return s.scope.number(value, dtype, shape)


def check_range(s: Specialiser, value: Any, dtype: DType) -> None:
    """NEP 50: a Python int that does not fit the array's type is an error, not a wider type."""
    if dtype.is_int and type(value) in (int, float):
        low, high = s.natural.of_type(dtype)
        if not low - 1 < value < high + 1:
            fits = f"does not fit {dtype.value} ({low} to {high})"
            hint = "convert the array to a wider type first: x.astype(np.int64)"
            refused = s.error("DL116", f"the number {describe(value)} {fits}", hint)
            if type(value) is int and dtype.numpy.itemsize < 8 and abs(value) < 2**63:
                words = f"Python integer {value} out of bounds for {dtype.numpy.name}"
                raise refused from OverflowError(words)
            raise refused


def tensor(s: Specialiser, value: Any, dtype: DType | None = None) -> Tensor:
    """Any number as a tensor; of `dtype`, which makes it strong, or of its own type.

    NumPy's functions take nested sequences for arrays, and so does this.
    """
    if isinstance(value, tuple | list) and len(value):
        value = s.array(value)
    if type(value) is Tensor and (dtype is None or value.dtype is dtype):
        return value if dtype is None or not value.weak else Tensor(value.value)
    own, weak = dtype_of(s, value)
    if dtype is None:
        return Tensor(materialise(s, value, own, shape_of(value)), weak)
    if type(value) is int and dtype.is_int:
        check_range(s, value, dtype)
    return Tensor(materialise(s, value, dtype, shape_of(value)))


def cast(s: Specialiser, value: Any) -> Any:
    """What NumPy converts without a look at it: an array, and a float of Python's too."""
    return strong(value) if type(value) is Tensor and value.dtype.is_float else value


def strong(value: Any) -> Any:
    """A number as np.asarray makes it: of a type of its own."""
    if type(value) is Tensor:
        return Tensor(value.value) if value.weak else value
    return np.asarray(value) if type(value) in (bool, int, float) else value


def operands(
    s: Specialiser, values: Sequence[Any], dtype: DType
) -> tuple[list[Value], tuple[int, ...]]:
    """The values as one element type and one shape, and that shape."""
    shape = broadcast_shapes(s, values)
    return [materialise(s, v, dtype, shape) for v in values], shape


def elementwise(s: Specialiser, name: str, *values: Any) -> Tensor:
    """An operation on numbers promoted to one type, whose result has that type."""
    return _in_type(s, name, values, *result_dtype(s, values))


def _in_type(s: Specialiser, name: str, values: Sequence[Any], dtype: DType, weak: bool) -> Tensor:
    args, _ = operands(s, values, dtype)
    return Tensor(s.emit(name, *args), weak)


def float_kind(dtype: DType) -> DType:
    """The float type that NumPy's functions of floats take integers in."""
    if dtype.is_float:
        return dtype
    return {1: DType.F16, 2: DType.F32}.get(dtype.itemsize, DType.F64)


def floating(s: Specialiser, name: str, *values: Any) -> Tensor:
    """Likewise, integers becoming floats first, as in NumPy's `exp`.

    They become f64, or f16 where that holds all of them.
    """
    dtype, weak = result_dtype(s, values, float_kind)
    return _in_type(s, name, values, float_kind(dtype), weak)


#: Two operands to a tensor.
Binary: TypeAlias = "Callable[[Specialiser, Any, Any], Tensor]"


def or_bool(name: str, bool_name: str | None, verb: str) -> Binary:
    """An arithmetic operator, which on two bools is a logical one (or refused, as by NumPy)."""

    def handler(s: Specialiser, a: Any, b: Any) -> Tensor:
        dtype, weak = result_dtype(s, (a, b))
        if dtype is not DType.BOOL:
            return _in_type(s, name, (a, b), dtype, weak)
        if bool_name is None:
            hint = "convert one of them: x.astype(np.int32); or use ^, ~, &, |"
            raise s.error("DL116", f"bool arrays cannot be {verb}", hint)
        return _in_type(s, bool_name, (a, b), dtype, weak)

    return handler


add = or_bool("add", "or", "added")
subtract = or_bool("sub", None, "subtracted")
multiply = or_bool("mul", "and", "multiplied")
maximum = or_bool("max", "or", "compared")
minimum = or_bool("min", "and", "compared")


def _of_integers(handler: Binary) -> Binary:
    """An operator that NumPy has of no bools: it takes two as i8."""

    def run(s: Specialiser, a: Any, b: Any) -> Tensor:
        if result_dtype(s, (a, b))[0] is DType.BOOL:
            a, b = (tensor(s, v, DType.I8) for v in (a, b))
        return handler(s, a, b)

    return run


def _elementwise(name: str) -> Binary:
    return lambda s, a, b: elementwise(s, name, a, b)


floor_divide = _of_integers(_elementwise("floordiv"))
remainder = _of_integers(_elementwise("mod"))


def divide(s: Specialiser, a: Any, b: Any) -> Tensor:
    """True division, of integers in f64."""
    dtype, weak = result_dtype(s, (a, b), quotient_kind)
    return _in_type(s, "div", (a, b), quotient_kind(dtype), weak)


def quotient_kind(dtype: DType) -> DType:
    """The type that `/` computes in: integers become f64, also where f16 held them."""
    return dtype if dtype.is_float else DType.F64


def bitwise(name: str) -> Binary:
    """The handler of an operator on bits: it refuses floats."""

    def handler(s: Specialiser, a: Any, b: Any) -> Tensor:
        dtype, weak = result_dtype(s, (a, b))
        if dtype.is_float:
            hint = "they are for integers and bools; combine conditions, not numbers"
            have = [dtype_of(s, v)[0] for v in (a, b)]
            text = f"bitwise operators do not take {dtype.value}"
            if not any(d.is_float for d in have):
                text += f", which {have[0].value} and {have[1].value} promote to"
                hint = "convert one of them: x.astype(np.uint64)"
            raise s.error("DL116", text, hint)
        return _in_type(s, name, (a, b), dtype, weak)

    return handler


bitwise_and, bitwise_or, bitwise_xor = bitwise("and"), bitwise("or"), bitwise("xor")
left_shift, right_shift = _of_integers(bitwise("shl")), _of_integers(bitwise("shr"))


def compare(name: str, swap: bool = False) -> Binary:
    """The handler of a comparison; it compares integers of two ranges exactly."""

    def handler(s: Specialiser, a: Any, b: Any) -> Tensor:
        if swap:
            a, b = b, a
        dtype, _ = result_dtype(s, (a, b), lambda _: DType.BOOL)
        from . import wide_comparisons

        if wide_comparisons.takes(s, a, b):
            return wide_comparisons.compared(s, name, a, b)
        if (made := wide_comparisons.of_int_and_float(s, name, a, b)) is not None:
            return made
        if dtype.is_int and not all(_fits(v, dtype) for v in (a, b)):
            dtype = DType.I64  # Comparing u8 with 300 is a question with an answer.
        args, _ = operands(s, (a, b), dtype)
        return Tensor(s.emit(name, *args))

    return handler


def _fits(value: Any, dtype: DType) -> bool:
    if type(value) is Tensor:
        return not (value.weak and value.dtype is DType.I64 and dtype is not DType.I64)
    if type(value) is not int:
        return True
    info = np.iinfo(dtype.numpy)
    return bool(info.min <= value <= info.max)


equal, not_equal = compare("eq"), compare("ne")
less, less_equal = compare("lt"), compare("le")
greater, greater_equal = compare("lt", swap=True), compare("le", swap=True)

#: Powers by a static whole exponent up to this are multiplications, as NumPy's square is.
_POWER_MAX = 16


def power(s: Specialiser, a: Any, b: Any) -> Tensor:
    """`np.power`; a small whole exponent that is known becomes multiplications."""
    exponent = b.item() if isinstance(b, np.generic) else b
    if type(a) is Tensor and type(exponent) in (int, float):
        dtype, weak = result_dtype(s, (a, b))
        wide = DType.F32 if dtype is DType.F16 else dtype  # It is rounded once, as NumPy's is.
        base = Tensor(convert(s, a.value, wide), weak)
        if dtype.is_float:
            if exponent == 0.5:
                return Tensor(convert(s, s.emit("sqrt", base.value), dtype), weak)
            if 1 <= abs(exponent) <= _POWER_MAX and exponent == int(exponent):
                result = _repeated(s, base, abs(int(exponent)))
                result = divide(s, 1, result) if exponent < 0 else result
                return Tensor(convert(s, result.value, dtype), weak)
        elif exponent == 0:
            return Tensor(s.scope.number(1, dtype, base.shape), weak)
        elif 1 <= exponent <= _POWER_MAX:
            return _repeated(s, base, int(exponent))
    dtype, _ = result_dtype(s, (a, b))
    if not dtype.is_float:
        return _int_power(s, a, b, dtype)
    return elementwise(s, "pow", a, b)


def _squares_of_bools(exponent: int) -> None:
    raise ArithmeticError(
        f"NumPy's power {exponent} of bools is of i8, and other powers are of i64: convert the"
        " bools first, x.astype(np.int64)"
    )


def _is_int_of_python(x: Any) -> bool:
    """Whether it is an int of the running program."""
    return type(x) is Tensor and x.weak and x.dtype.is_int


def python_power(s: Specialiser, a: Any, b: Any) -> Tensor:
    """`a ** b`, with Python's rules for its own numbers and NumPy's for the others.

    NumPy takes the square root for 0.5 of an array, and in np.power; Python's floats and NumPy's
    scalars have an infinity for minus infinity there, and no negative zero.
    """
    if type(a) is Tensor and a.kind == ARRAY and a.dtype is DType.BOOL and type(b) is int:
        a = tensor(s, a, DType.I8) if b == 2 else a  # NumPy's square of bools is one of i8.
    if type(a) is Tensor and a.kind == ARRAY and a.dtype is DType.BOOL and _is_int_of_python(b):
        from ..flow import raises

        raises.ask(s, equal(s, b, 2).value, _squares_of_bools, b, kind=ArithmeticError)
    if (
        type(a) is Tensor
        and a.kind != ARRAY
        and not isinstance(b, Tensor | np.ndarray)
        and b == 0.5
    ):
        dtype, _ = result_dtype(s, (a, b))
        if dtype.is_float:
            return elementwise(s, "pow", a, b)
    return power(s, a, b)


def _int_power(s: Specialiser, a: Any, b: Any, dtype: DType) -> Tensor:
    if type(b) is int and b < 0:
        hint = "convert the base to float first: x.astype(np.float32)"
        raise s.error("DL116", "integers have no power by a negative number", hint)
    if dtype is DType.BOOL:  # NumPy has no powers of bools.
        dtype = DType.I8
    from ..definitions import np_numbers

    wide = [tensor(s, v, dtype) for v in (a, b)]
    exponent = wide[1].value
    if exponent not in s.natural and 0 not in wide[0].shape:
        from ..flow import raises

        negative = s.emit("lt", exponent, s.scope.number(0, dtype, exponent.shape))
        compute = partial(np.power, np.int64(2), np.int64(-1))
        raises.ask(s, any_of(s, negative), compute, kind=ValueError)
    return s.call(np_numbers.int_power, *wide)  # type: ignore[no-any-return]


def any_of(s: Specialiser, truths: Value) -> Value:
    """Whether one of some bools is true."""
    if not truths.shape:
        return truths
    if 0 in truths.shape:
        return s.scope.number(False, DType.BOOL)
    wide = s.emit("convert", truths, dtype=DType.I32)
    most = s.emit("reduce_max", wide, axes=tuple(range(len(truths.shape))))
    return s.emit("ne", most, s.scope.number(0, DType.I32))


def _repeated(s: Specialiser, base: Tensor, exponent: int) -> Tensor:
    """By squaring."""
    power_of_two, result = base.value, None
    while True:
        if exponent & 1:
            result = power_of_two if result is None else s.emit("mul", result, power_of_two)
        exponent >>= 1
        if not exponent:
            assert result is not None
            return Tensor(result, base.weak)
        power_of_two = s.emit("mul", power_of_two, power_of_two)


def negative(s: Specialiser, a: Any) -> Tensor:
    """`-a`; refused for bools, as in NumPy."""
    dtype, _ = dtype_of(s, a)
    if dtype is DType.BOOL:
        raise s.error("DL116", "a bool array has no negative", "use ~x or np.logical_not(x)")
    return elementwise(s, "neg", a)


def positive(s: Specialiser, a: Any) -> Tensor:
    """`+a`; refused for NumPy's bools, not for Python's."""
    if dtype_of(s, a) == (DType.BOOL, False):
        raise s.error("DL116", "NumPy has no + of a bool", "convert it: x.astype(np.int32)")
    return tensor(s, a)


def invert(s: Specialiser, a: Any) -> Tensor:
    """`~a`: of bools `not`, of integers each bit; refused for floats."""
    dtype, _ = dtype_of(s, a)
    if dtype.is_float:
        raise s.error("DL116", f"~ does not take {dtype.value}", "it is for integers and bools")
    return elementwise(s, "not", a)


def truth(s: Specialiser, value: Any) -> Value:
    """A scalar as a bool, for a condition."""
    if shape_of(value) != ():
        raise s.error(
            "DL115",
            f"a condition must be one number, not {describe(value)}",
            "reduce it with np.all or np.any, or choose elementwise with np.where",
        )
    return convert(s, tensor(s, value).value, DType.BOOL)


def select(s: Specialiser, condition: Any, a: Any, b: Any) -> Tensor:
    """NumPy's three-argument `where`, where an int of Python's that does not fit wraps."""
    dtype, weak = result_dtype(s, (a, b))
    a, b = (strong(v) if type(v) is Tensor else v for v in (a, b))
    shape = broadcast_shapes(s, (condition, a, b))
    test = materialise(s, tensor(s, condition, DType.BOOL), DType.BOOL, shape)
    args = [materialise(s, v, dtype, shape) for v in (a, b)]
    return Tensor(s.emit("select", test, *args), weak)


BINARY = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "//": floor_divide,
    "%": remainder,
    "**": python_power,
    "&": bitwise_and,
    "|": bitwise_or,
    "^": bitwise_xor,
    "<<": left_shift,
    ">>": right_shift,
}
COMPARE = {
    "==": equal,
    "!=": not_equal,
    "<": less,
    "<=": less_equal,
    ">": greater,
    ">=": greater_equal,
}
UNARY = {"-": negative, "+": positive, "~": invert}


def is_operand(value: Any) -> bool:
    """Whether the operators above take it with a tensor."""
    return type(value) is Tensor or (isinstance(value, NUMBERS) and not isinstance(value, Enum))
