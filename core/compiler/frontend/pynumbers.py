"""Operators where an operand may be a number of Python's own: their rules are not NumPy's.

Two bools add up to an int, `not` gives a bool, a whole power below zero is a float. What a result
is in Python follows from what its operands are (`Tensor.kind`).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from ..ir import DType
from ..traced import BOOL, FLOAT, INT, SCALAR
from .flow import raises
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
        made = Tensor(arithmetic.BINARY[op](s, a, b).value, True)
        if op == "**" and made.dtype.is_float:
            raises.ask(s, raises.gone(s, made, a, b), operator.pow, a, b)
        elif op in _FAILING:
            check(s, op, a, b)
        floats = made.kind == FLOAT and op != "/" and FLOAT not in (kind_of(a), kind_of(b))
        return Tensor(made.value, kind=INT | FLOAT) if floats and (x | y) != INT else made
    for value, kind, other in ((a, x, b), (b, y, a)):
        several = kind in (INT | FLOAT, BOOL | FLOAT, BOOL | INT | FLOAT)
        if several and not arithmetic.dtype_of(s, other)[0].is_float:
            text = (
                f"{describe(value)} is in Python an int or a float, as the program takes its path,"
            )
            text += f" and {describe(other)} takes another type with each"
            raise s.error("DL108", text, "make it a float on each path: float(x), 1.0")
    made = arithmetic.BINARY[op](s, a, b)
    return _either(Tensor(made.value), bool(x & _PYTHON and y & _PYTHON))


def check(s: Specialiser, op: str, a: Any, b: Any) -> None:
    """The errors of Python's operators on its own numbers: NumPy's have values there."""
    if raises.checks(s) is None or (type(b) is not Tensor and b):
        return
    if kind_of(a) >= SCALAR or kind_of(b) >= SCALAR or not (is_number(a) and is_number(b)):
        return
    second = arithmetic.tensor(s, b)
    if op in ("<<", ">>"):
        if second.value not in s.natural:
            raises.ask(s, arithmetic.less(s, second, 0).value, _FAILING[op], a, b)
        return
    low, high = s.natural.of(second.value) if second.dtype.is_int else (0, 0)
    if low <= 0 <= high:
        raises.ask(s, arithmetic.equal(s, second, 0).value, _FAILING[op], a, b)


_FAILING = {
    "divmod": divmod,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "<<": operator.lshift,
    ">>": operator.rshift,
}


def _either(made: Tensor, python: bool) -> Tensor:
    """A result that is a number of Python's own where the operands are (`python`: both may be)."""
    if made.shape or not python:
        return made
    kind = {DType.BOOL: BOOL}.get(made.dtype, FLOAT if made.dtype.is_float else INT)
    return Tensor(made.value, kind=made.kind | kind)


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
    if a.weak:
        a = _whole(s, a)
        made = arithmetic.UNARY[op](s, a)
        return Tensor(made.value, kind=a.kind)
    made = arithmetic.UNARY[op](s, a)
    return _either(Tensor(made.value), bool(a.kind & _PYTHON))


def compare(s: Specialiser, op: str, a: Any, b: Any) -> Tensor:
    made = arithmetic.COMPARE[op](s, a, b)
    x, y = kind_of(a), kind_of(b)
    if x < SCALAR and y < SCALAR:
        return Tensor(made.value, True)
    return _either(made, bool(x & _PYTHON and y & _PYTHON))


def absolute(s: Specialiser, a: Tensor) -> Tensor:
    """`abs` of a number of Python's own."""
    whole = _whole(s, a)
    return Tensor(arithmetic.elementwise(s, "abs", whole).value, kind=whole.kind)


def rounded(s: Specialiser, a: Tensor, digits: Any) -> Tensor:
    """`round` of a number of Python's own."""
    if digits is None:
        value = a.value
        if a.dtype.is_float:
            raises.ask(s, s.emit("not", s.emit("is_finite", value)), round, a)
            value = s.emit("round", value)
        return Tensor(arithmetic.convert(s, value, DType.I64), True)
    if type(digits) is int and digits >= 0 and not a.dtype.is_float:
        return Tensor(arithmetic.convert(s, a.value, DType.I64), True)
    raise s.error(
        "DL119",
        f"`round` of {describe(a)} to digits goes by its decimal text",
        "np.round(x, digits) multiplies, rounds and divides",
    )


def extreme(s: Specialiser, greatest: bool, values: list[Any]) -> Any:
    """`max` or `min` of numbers: the first of those that no other one exceeds, as Python has it.

    A NaN exceeds nothing and is exceeded by nothing.
    """
    from .flow import joins

    result = values[0]
    for value in values[1:]:
        better = compare_any(s, ">" if greatest else "<", value, result)
        kind = kind_of(value) | kind_of(result)
        if isinstance(better, bool):
            result = value if better else result
            continue
        if not joins.join_leaf(s, value, result)[0]:  # As where a branch leaves one or the other.
            text = f"the result is {describe(value)} or {describe(result)}"
            raise s.error("DL108", text, "convert one of them: np.float64(x), x.astype(dtype)")
        made = arithmetic.select(s, better, value, result)
        result = made if made.shape else Tensor(made.value, kind=kind)
    return result


def compare_any(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    from . import operators

    test = operators.condition(s, operators.compare(s, op, a, b))
    return test if isinstance(test, bool) else Tensor(test, True)
