"""Operators where an operand may be a number of Python's own: their rules are not NumPy's.

Two bools add up to an int, `not` gives a bool, a whole power below zero is a float. What a result
is in Python follows from what its operands are (`Tensor.kind`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir import DType, Value
from ..traced import ARRAY, BOOL, FLOAT, INT, SCALAR
from .definitions import np_scalars
from .flow import integer_fits, raises
from .numpy import arithmetic
from .values import Tensor, describe, is_number, kind_of

if TYPE_CHECKING:
    from .specialise import Specialiser

_PYTHON = BOOL | INT | FLOAT
_BITS = ("&", "|", "^")


def is_python(value: Any) -> bool:
    """Whether it is surely a number of Python's own."""
    return kind_of(value) < SCALAR


def _whole(s: Specialiser, value: Any) -> Any:
    """A bool of Python's as the int that it is."""
    if type(value) is bool:
        return int(value)
    if type(value) is Tensor and value.dtype is DType.BOOL:
        return Tensor(arithmetic.convert(s, value.value, DType.I64), True)
    return value


def binary(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """An operator but `@` on two numbers, at least one of which is a tensor."""
    x, y = kind_of(a), kind_of(b)
    if x < SCALAR and y < SCALAR:
        if op not in _BITS or not x == y == BOOL:
            a, b = _whole(s, a), _whole(s, b)
        if op == "**":
            a = _base(s, a, b)
        if op in ("<<", ">>") and type(b) is int and b < 0:
            raise s.error("DL113", f"`{op}` fails: ValueError: negative shift count")
        one, other = arithmetic.of_one_class(a), arithmetic.of_one_class(b)
        if s.tries and op in ("/", "//", "%"):
            other = _no_zero(s, other)
        made = Tensor(arithmetic.BINARY[op](s, one, other).value, True)
        if op == "**" and made.dtype.is_float:
            _check_power(s, made, a, b)
            if s.tries and type(one) is Tensor:
                one = raises.harmless(s, made, one, (a, b), 1.0)
                made = Tensor(arithmetic.BINARY[op](s, one, other).value, True)
        elif op in _FAILING:
            check(s, op, a, b)
        floats = made.kind == FLOAT and op != "/" and FLOAT not in (kind_of(a), kind_of(b))
        return Tensor(made.value, kind=INT | FLOAT) if floats and (x | y) != INT else made
    if not (x & _PYTHON and y & _PYTHON):
        return Tensor(arithmetic.BINARY[op](s, a, b).value)
    if op == "**" and not (type(b) is int and b >= 0) and _is_int(s, a) and _is_int(s, b):
        raise arithmetic.depends(s, a if x > SCALAR else b)  # 2 ** -1 is a float, or an error.
    found = {
        _result(s, op, one, other)
        for one in arithmetic.alternatives(s, a)
        for other in arithmetic.alternatives(s, b)
    }
    one, other = arithmetic.of_one_class(a), arithmetic.of_one_class(b)
    if op != "/":
        one, other = _fitting(s, op, one, other, (a, b)), _fitting(s, op, other, one, (a, b))
    made = arithmetic.BINARY[op](s, one, other)
    if op in ("/", "//", "%") or (op == "**" and made.dtype.is_float):
        _check_undecided(s, op, made, a, b)
    if op in _GROWING:
        _check_grown(s, op, arithmetic.BINARY[op], made, found, a, b)
    return _either(s, made.value, found, a if x > SCALAR else b)


def _fitting(s: Specialiser, op: str, value: Any, beside: Any, given: tuple[Any, Any]) -> Any:
    """An int of Python's in the type of a number that may be one of NumPy's narrow integers.

    If it does not fit there, NumPy raises an error, and Python's ints have a value.
    """
    running = type(value) is Tensor and value.weak and value.dtype.is_int
    if not running and type(value) is not int:
        return value
    dtype = arithmetic.result_dtype(s, (value, beside))[0]
    if not dtype.is_int:
        return value
    if not running:
        low, high = s.natural.of_type(dtype)
        if not low <= value <= high:
            raise arithmetic.depends(s, next(v for v in given if kind_of(v) > SCALAR))
        return value
    gone = integer_fits.lost(s, value, dtype)
    if gone is not None:
        name = dtype.numpy.name
        raises.ask(s, gone, partial(_beyond, op, name), *given, kind=raises.Uncaught)
    return Tensor(arithmetic.convert(s, value.value, dtype))


def _beyond(op: str, dtype: str, a: Any, b: Any) -> None:
    raise ArithmeticError(
        f"{a} {op} {b} is an error of NumPy's {dtype}, which does not hold one of them, and has a"
        " value among Python's ints; the path of the program decides which these are: convert them,"
        " int(x) or np.int64(x)"
    )


def _check_undecided(s: Specialiser, op: str, made: Tensor, a: Any, b: Any) -> None:
    """Where Python's numbers raise an error NumPy's have a value: which are these?

    Their path decides it, so that a program can do neither.
    """
    if op == "**":
        suspect = raises.gone(s, made, a, b)
    else:
        second = arithmetic.tensor(s, arithmetic.of_one_class(b))
        low, high = s.natural.of(second.value) if second.dtype.is_int else (0, 0)
        if not low <= 0 <= high or (type(b) is not Tensor and b):
            return
        suspect = arithmetic.equal(s, second, 0).value
    raises.ask(s, suspect, partial(_undecided, op), a, b, kind=raises.Uncaught)


def _undecided(op: str, a: Any, b: Any) -> None:
    raise ArithmeticError(
        f"{a} {op} {b} is an error of Python's numbers and has a value among NumPy's, and the path"
        " of the program decides which these are: convert them, float(x) or np.float64(x)"
    )


#: Operators whose result may leave the bits of integers that hold the operands.
_GROWING = ("+", "-", "*", "//", "**", "<<")


def _check_grown(
    s: Specialiser,
    op: str,
    compute: Callable[..., Tensor],
    made: Tensor,
    found: set[tuple[DType, bool]],
    *given: Any,
) -> None:
    """Where Python's ints grow NumPy's narrow integers wrap: which are these?

    `compute` in 64 bits says where; for u64, which holds nothing below 0, by the sign.
    """
    narrow = made.dtype.is_int and made.dtype is not DType.I64
    if not narrow or not any(weak for _, weak in found) or made.value in s.natural.known:
        return
    wide = compute(s, *(_in_i64(s, v) for v in given))
    grown = arithmetic.not_equal(s, Tensor(arithmetic.convert(s, made.value, DType.I64)), wide)
    if made.dtype is DType.U64:
        grown = arithmetic.bitwise_or(s, grown, arithmetic.less(s, wide, 0))
    name = made.dtype.numpy.name
    raises.ask(s, grown.value, partial(_grown, op, name), *given, kind=raises.Uncaught)


def _in_i64(s: Specialiser, value: Any) -> Any:
    if type(value) is not Tensor:
        return int(value)
    return Tensor(arithmetic.convert(s, arithmetic.of_one_class(value).value, DType.I64), True)


def _grown(op: str, dtype: str, *given: Any) -> None:
    text = f" {op} ".join(map(str, given)) if len(given) > 1 else f"{op}({given[0]})"
    raise ArithmeticError(
        f"Python gives for {text} an int that {dtype} does not hold, and NumPy's wraps; the path of"
        " the program decides which these are: convert them, int(x) or np.int64(x)"
    )


def _is_int(s: Specialiser, value: Any) -> bool:
    """Whether it may be an int of Python's own."""
    return any(weak and not dtype.is_float for dtype, weak in arithmetic.alternatives(s, value))


def _result(
    s: Specialiser, op: str, a: tuple[DType, bool], b: tuple[DType, bool]
) -> tuple[DType, bool]:
    """The type of an operator's result, and whether it is a number of Python's own."""
    dtype, weak = arithmetic.promoted(s, (a, b))
    if op == "/":
        dtype = arithmetic.quotient_kind(dtype)
    elif weak and dtype is DType.BOOL and op not in _BITS:
        dtype = DType.I64
    return dtype, weak


def _either(s: Specialiser, made: Value, found: set[tuple[DType, bool]], by: Any) -> Tensor:
    """A result that is of one class or another, `found`, as `by` is.

    Raises ProgramError DL108 where these have no type in common, as where paths meet.
    """
    dtypes = {dtype for dtype, weak in found if not weak}
    pythons = [dtype for dtype, weak in found if weak]
    fit = all(_fits(dtype, made.dtype) for dtype in pythons)
    if dtypes != {made.dtype} or not fit:
        raise arithmetic.depends(s, by)
    kind = SCALAR
    for dtype in pythons:
        kind |= BOOL if dtype is DType.BOOL else FLOAT if dtype.is_float else INT
    return Tensor(made, kind=kind)


def _no_zero(s: Specialiser, x: Any) -> Any:
    """A divisor within a `try`: not 0, where its quotient is not looked at but has a slope."""
    if type(x) is not Tensor or not x.dtype.is_float:
        return x
    zero = arithmetic.equal(s, x, 0).value
    return x.like(s.emit("select", zero, s.scope.number(1, x.dtype), x.value))


def _check_power(s: Specialiser, made: Tensor, a: Any, b: Any) -> None:
    lost = raises.gone(s, made, a, b)
    if not s.tries:
        raises.ask(s, lost, operator.pow, a, b)
        return
    known = s.emit("eq", made.value, made.value)
    zero = arithmetic.equal(s, arithmetic.tensor(s, a), 0).value
    infinite = s.emit("and", lost, known)
    by_zero = s.emit("and", infinite, zero)
    too_large = s.emit("and", infinite, s.emit("not", zero))
    raises.ask(s, by_zero, operator.pow, a, b, kind=ZeroDivisionError)
    raises.ask(s, too_large, operator.pow, a, b, kind=OverflowError)
    complex_ = s.emit("and", lost, s.emit("not", known))
    raises.ask(s, complex_, operator.pow, a, b, kind=raises.Uncaught)


def _fits(python: DType, dtype: DType) -> bool:
    """Whether a number of Python's own can be held as this type, where paths meet."""
    if DType.BOOL in (python, dtype):
        return python is dtype
    return dtype.is_float or not python.is_float


def check(s: Specialiser, op: str, a: Any, b: Any) -> None:
    """The errors of Python's operators on its own numbers: NumPy's have values there."""
    if raises.checks(s) is None or (type(b) is not Tensor and b):
        return
    if kind_of(a) >= SCALAR or kind_of(b) >= SCALAR or not (is_number(a) and is_number(b)):
        return
    second = arithmetic.tensor(s, b)
    if op in ("<<", ">>"):
        if second.value not in s.natural:
            less = arithmetic.less(s, second, 0).value
            raises.ask(s, less, _FAILING[op], a, b, kind=ValueError)
        return
    low, high = s.natural.of(second.value) if second.dtype.is_int else (0, 0)
    if low <= 0 <= high:
        zero = arithmetic.equal(s, second, 0).value
        raises.ask(s, zero, _FAILING[op], a, b, kind=ZeroDivisionError)


_FAILING = {
    "divmod": divmod,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "<<": operator.lshift,
    ">>": operator.rshift,
}


def _base(s: Specialiser, a: Any, b: Any) -> Any:
    """The base of a power: a whole number to a power below zero is a float in Python."""
    whole = all(arithmetic.dtype_of(s, v)[0].is_int for v in (a, b))
    if not whole:
        return a
    if type(b) is int:
        return arithmetic.convert_number(s, a, DType.F64) if b < 0 else a
    if b.value not in s.natural:
        raise s.needs_static(
            b,
            "the sign of the exponent of an int",
            "Python gives a float where it is negative: write float(x) ** n, or np.power(x, n)",
        )
    return a


def unary(s: Specialiser, op: str, a: Tensor) -> Tensor:
    """`-`, `+` or `~` of a number of Python's own: of a bool it is an int."""
    return _of_one(s, op, arithmetic.UNARY[op], a)


def _of_one(
    s: Specialiser, op: str, compute: Callable[[Specialiser, Any], Tensor], a: Tensor
) -> Tensor:
    """An operator on one number, whose result has its type; a bool of Python's becomes an int."""
    if a.weak:
        whole = _whole(s, a)
        return Tensor(compute(s, arithmetic.of_one_class(whole)).value, kind=whole.kind)
    made = compute(s, arithmetic.of_one_class(a))
    if not a.kind & _PYTHON:
        return Tensor(made.value)
    found = {
        (DType.I64 if weak and dtype is DType.BOOL else dtype, weak)
        for dtype, weak in arithmetic.alternatives(s, a)
    }
    _check_grown(s, op, compute, made, found, a)
    return _either(s, made.value, found, a)


def compare(s: Specialiser, op: str, a: Any, b: Any) -> Tensor:
    """A comparison, which is a bool of Python's where both operands are Python's own."""
    made = arithmetic.COMPARE[op](s, a, b)
    x, y = kind_of(a), kind_of(b)
    if x < SCALAR and y < SCALAR:
        return Tensor(made.value, True)
    may_be = BOOL if x & _PYTHON and y & _PYTHON and not made.shape else 0
    return Tensor(made.value, kind=SCALAR | may_be)


def absolute(s: Specialiser, a: Tensor) -> Tensor:
    """`abs`."""
    if a.kind & _PYTHON:
        return _of_one(s, "abs", lambda s, x: arithmetic.elementwise(s, "abs", x), a)
    made: Tensor = s.call(np.absolute, a)
    return made


#: 10 to this power is a float, and to the next one is none.
_DIGITS_MAX = 22
#: Twice 10 to this power is an int of 64 bits.
_WHOLE_DIGITS_MAX = 18


def rounded(s: Specialiser, a: Tensor, digits: Any) -> Tensor:
    """`round` of a number of Python's own."""
    if digits is None:
        value = a.value
        if a.dtype.is_float:
            integer_fits.ask_whole(s, a, round)
            value = s.emit("round", value)
        return Tensor(arithmetic.convert(s, value, DType.I64), True)
    if type(digits) is not int:
        raise s.needs_static(digits, "the digits of `round`")
    if not a.dtype.is_float:
        whole = arithmetic.convert(s, a.value, DType.I64)
        if -_WHOLE_DIGITS_MAX <= digits < 0:
            whole = s.call(np_scalars.whole_rounded_to, Tensor(whole), 10**-digits).value
        if digits >= -_WHOLE_DIGITS_MAX:
            return Tensor(whole, True)
    elif 0 <= digits <= _DIGITS_MAX:
        made = s.call(np_scalars.rounded_to, Tensor(a.value), 10.0**digits)
        kind = a.kind & ~BOOL | (INT if a.kind & BOOL else 0)  # An int is its own rounding.
        return Tensor(made.value, kind=kind)
    text = f"`round` of {describe(a)} to {digits} digits goes by its decimal text"
    raise s.error("DL119", text, "np.round(x, digits) multiplies, rounds and divides")


def extreme(s: Specialiser, greatest: bool, values: list[Any]) -> Any:
    """`max` or `min` of numbers: the first of those that no other one exceeds, as Python has it.

    A NaN exceeds nothing and is exceeded by nothing.
    """
    from .flow import joins

    result = values[0]
    for value in values[1:]:
        if value is result:
            continue
        better = compare_any(s, ">" if greatest else "<", value, result)
        kind = kind_of(value) | kind_of(result)
        if isinstance(better, bool):
            result = value if better else result
            continue
        if kind & ARRAY:
            text = "the result is one of two arrays, and only the running program knows which"
            raise s.error("DL111", text, "np.maximum and np.minimum give a new one; or float(x)")
        if not joins.join_leaf(s, value, result)[0]:  # As where a branch leaves one or the other.
            text = f"the result is {describe(value)} or {describe(result)}"
            raise s.error("DL108", text, "convert one of them: np.float64(x), x.astype(dtype)")
        pair = arithmetic.of_one_class(value), arithmetic.of_one_class(result)
        made = arithmetic.select(s, better, *pair)
        s.picks.note(s, made.value, better.value, value, result)
        result = made if made.shape else Tensor(made.value, kind=kind)
    return result


def compare_any(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """A comparison of any two values, as a bool or a truth of the running program."""
    from . import operators

    test = operators.condition(s, operators.compare(s, op, a, b))
    return test if isinstance(test, bool) else Tensor(test, True)
