"""Comparisons of integers that are exact where the type that both promote to is not.

NumPy promotes u64 and i64 to f64, but compares them exactly; so does Python an int with a float.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ir import DType, Value
from ..values import Tensor
from . import arithmetic

if TYPE_CHECKING:
    from ..specialise import Specialiser

_I64, _U64 = range(-(2**63), 2**63), range(2**64)


def takes(s: Specialiser, a: Any, b: Any) -> bool:
    """Whether two numbers are to be compared here."""
    kinds = [arithmetic.dtype_of(s, v) for v in (a, b)]
    beyond = any(type(v) is int and v not in _I64 for v in (a, b))
    if beyond and (DType.BOOL, False) in kinds:
        return False  # NumPy makes an i64 of it.
    dtypes = [dtype for dtype, _ in kinds]
    return (beyond or DType.U64 in dtypes) and not any(dtype.is_float for dtype in dtypes)


def compared(s: Specialiser, name: str, a: Any, b: Any) -> Tensor:
    """a NAME b, with `name` of the IR. What is below 0 is less than all of u64."""
    shape = arithmetic.broadcast_shapes(s, (a, b))
    for value, other, first in ((a, b, True), (b, a, False)):
        if type(value) is int and not _is_among(s, value, other):
            less = (value < 0) == first
            known = {"eq": False, "ne": True}.get(name, less)
            return Tensor(s.scope.number(known, DType.BOOL, shape))
    (x, below_x), (y, below_y) = (_as_u64(s, value, shape) for value in (a, b))
    made = s.emit(name, x, y)
    for below, is_true in ((below_x, name in ("ne", "lt", "le")), (below_y, name == "ne")):
        if below is not None and is_true:
            made = s.emit("or", below, made)
        elif below is not None:
            made = s.emit("and", s.emit("not", below), made)
    return Tensor(made)


#: The floats below it hold every whole number.
_EXACT = 2**53
_I64_END = 2.0**63


def of_int_and_float(s: Specialiser, name: str, a: Any, b: Any) -> Tensor | None:
    """a NAME b of an int and a float of Python's, with `name` of the IR.

    None: comparing them as floats is exact, or they are others. Rounding keeps the order, so floats
    that differ decide; the floats equal, one that i64 has is a whole number.
    """
    kinds = [arithmetic.dtype_of(s, v) for v in (a, b)]
    if sorted(kinds, key=str) != sorted(((DType.I64, True), (DType.F64, True)), key=str):
        return None
    first = kinds[0][0] is DType.I64
    whole, other = (a, b) if first else (b, a)
    low, high = (whole, whole) if type(whole) is int else s.natural.of(whole.value)
    if (low >= -_EXACT and high <= _EXACT) or (type(other) is float and abs(other) < _EXACT):
        return None
    if type(whole) is int and whole not in _I64:
        return None
    x = arithmetic.materialise(s, whole, DType.I64, ())
    y = arithmetic.materialise(s, other, DType.F64, ())
    near = s.emit("convert", x, dtype=DType.F64)
    same = s.emit("eq", near, y)
    fits = s.emit("and", same, s.emit("lt", y, s.scope.number(_I64_END, DType.F64)))
    exact = s.emit("select", fits, y, s.scope.number(0, DType.F64))
    exact = s.emit("convert", exact, dtype=DType.I64)
    if name in ("eq", "ne"):
        made = s.emit("and", fits, s.emit("eq", x, exact))
        return Tensor(made if name == "eq" else s.emit("not", made))
    ends = (near, y) if first else (y, near)
    among = s.emit(name, *((x, exact) if first else (exact, x)))
    beyond = s.scope.number(first, DType.BOOL)  # The int is less.
    equals = s.emit("select", fits, among, beyond)
    return Tensor(s.emit("select", same, equals, s.emit("lt", *ends)))


def _is_among(s: Specialiser, value: int, other: Any) -> bool:
    """Whether an int of Python's is one of u64, or one of i64 that is compared with signed ones."""
    dtype, _ = arithmetic.dtype_of(s, other)
    return value in _U64 or (value in _I64 and not dtype.is_unsigned)


def _as_u64(s: Specialiser, value: Any, shape: tuple[int, ...]) -> tuple[Value, Value | None]:
    """A number as u64, and where it is below 0; None: nowhere."""
    dtype = DType.U64 if type(value) is int else arithmetic.dtype_of(s, value)[0]
    own = arithmetic.materialise(s, value, dtype, shape)
    signed = not dtype.is_unsigned and dtype is not DType.BOOL and own not in s.natural
    below = s.emit("lt", own, s.scope.number(0, dtype, shape)) if signed else None
    return arithmetic.convert(s, own, DType.U64), below
