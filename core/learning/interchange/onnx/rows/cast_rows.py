"""Casts between the element types of ONNX, those that programs have not among them.

A number of `Coded` is rounded to the nearest of its type's values, a tie to the even code: the
values are in a table, and the place among the midpoints of neighbours is the code. So every cast is
exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....compiler.ir import Tensor
from ..element_types import (
    BOOL,
    CODED_TYPES,
    NUMPY_TYPES,
    SMALL_INTEGERS,
    STRING,
    Coded,
    numpy_type,
)
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows

#: Of each float type: bits of the exponent, of the fraction, the exponent's bias, and the codes of
#: NaN and of infinity where there are some.
_FORMATS: dict[str, tuple[int, int, int, int | None, int | None]] = {
    "float8_e4m3fn": (4, 3, 7, 0x7F, None),
    "float8_e4m3fnuz": (4, 3, 8, 0x80, None),
    "float8_e5m2": (5, 2, 15, 0x7F, 0x7C),
    "float8_e5m2fnuz": (5, 2, 16, 0x80, None),
    "float4_e2m1fn": (2, 1, 1, None, None),
    "float6_e2m3fn": (2, 3, 1, None, None),
    "float6_e3m2fn": (3, 2, 3, None, None),
}
#: What NaN becomes in float4, which has none: minus zero, as in ml_dtypes.
_NAN_OF_FLOAT4 = 0x8


def values_of(kind: str) -> Tensor:
    """f64: the value of each code of a float type, by its bits as a whole number."""
    if kind == "float8_e8m0fnu":
        powers = np.ldexp(np.ones(256), np.arange(256) - 127)
        return np.where(np.arange(256) == 255, np.nan, powers)
    exponent, fraction, bias, none, infinite = _FORMATS[kind]
    codes = np.arange(2 ** (1 + exponent + fraction))
    power = (codes >> fraction) % 2**exponent
    part = codes % 2**fraction
    whole = np.where(power == 0, part, part + 2**fraction).astype(np.float64)
    size = np.ldexp(whole, np.maximum(power, 1) - bias - fraction)
    values = np.where(codes >> (exponent + fraction) == 1, -size, size)
    # Codes from these on, of either sign, are no numbers.
    half = 2 ** (exponent + fraction)
    if infinite is not None:
        values = np.where(codes % half > infinite, np.nan, values)
        return np.where(codes % half == infinite, np.where(codes < half, np.inf, -np.inf), values)
    if none is None:
        return values
    return np.where((codes if none == half else codes % half) == none, np.nan, values)


def decoded(x: Coded) -> Tensor:
    """The numbers of a `Coded`: f32, or i32 of whole numbers."""
    if x.kind in SMALL_INTEGERS:
        return x.bits
    return np.take(values_of(x.kind).astype(np.float32), x.bits.astype(np.int64))


def encoded(x: Tensor, kind: str, saturate: bool = True, round_mode: str = "up") -> Coded:
    """Numbers as a `Coded`: the nearest of its values, a tie to the even code.

    Args:
        x: floats, whole numbers or bools.
        kind: of `CODED_TYPES`.
        saturate: what is larger than the largest becomes the largest; else an infinity, or NaN.
        round_mode: of float8_e8m0: "up", "down" or "nearest".
    """
    if kind in SMALL_INTEGERS:
        return _whole(x, kind)
    if kind not in _FORMATS:
        return _power_of_two(x, saturate, round_mode)
    exponent, fraction, _, none, infinite = _FORMATS[kind]
    wide, half = x.astype(np.float64), 2 ** (exponent + fraction)
    last = half - 1
    if infinite is not None:
        last = infinite - 1
    elif none is not None and none < half:
        last = none - 1
    finite = values_of(kind)[: last + 1]
    between = (finite[1:] + finite[:-1]) / 2
    size = np.abs(wide)
    low = np.searchsorted(between, size, side="left")
    high = np.searchsorted(between, size, side="right")
    code = np.where(low % 2 == 0, low, high)
    beyond = none if infinite is None else infinite
    if beyond is not None and not saturate:
        limit = finite[-1] + (finite[-1] - finite[-2]) / 2
        code = np.where(size > limit if last % 2 == 0 else size >= limit, beyond, code)
    negative = np.signbit(wide) & (code < half)
    if kind.endswith("fnuz"):
        negative = negative & (code != 0)
    code = np.where(negative, code + half, code)
    if none is None:
        none = _NAN_OF_FLOAT4
    return Coded(np.where(np.isnan(wide), none, code).astype(np.uint8), kind)


def _whole(x: Tensor, kind: str) -> Coded:
    """Whole numbers of 4 and 2 bits: floats cut off their fraction; then the low bits."""
    low, high = SMALL_INTEGERS[kind]
    bits = high - low + 1
    whole = x.astype(np.int64) % bits
    if low < 0:
        whole = np.where(whole > high, whole - bits, whole)
    return Coded(whole.astype(np.int32), kind)


def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """Cast."""
    return cast_to(x, to, bool(saturate), round_mode)


def cast_to(x: Tensor, to: int, saturate: bool = True, round_mode: str = "up") -> Tensor:
    """A tensor with elements of a type of ONNX, by its number."""
    if to == STRING:
        raise OnnxError("strings are no numbers of a program", "cast after the model")
    if isinstance(x, Coded):
        if CODED_TYPES.get(to) == x.kind:
            return x
        x = decoded(x)
    if to in CODED_TYPES:
        return encoded(x, CODED_TYPES[to], saturate, round_mode)
    return to_numpy(x, numpy_type(to))


def to_numpy(x: Tensor, dtype: Any) -> Tensor:
    """An array with elements of a type of NumPy."""
    if x.dtype == dtype:
        return x
    return x.astype(dtype)


def cast_like(x: Tensor, like: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """CastLike."""
    if isinstance(like, Coded):
        if isinstance(x, Coded):
            if x.kind == like.kind:
                return x
            x = decoded(x)
        return encoded(x, like.kind, bool(saturate), round_mode)
    if isinstance(x, Coded):
        x = decoded(x)
    return to_numpy(x, like.dtype)


def bit_cast(x: Tensor, *, to: int) -> Tensor:
    """BitCast: the same bits as elements of a type of the same size."""
    if isinstance(x, Coded) or to in CODED_TYPES:
        bits = x.bits if isinstance(x, Coded) else x
        kind = CODED_TYPES.get(to)
        if kind is None:
            return bits.view(numpy_type(to))
        if kind in SMALL_INTEGERS:
            raise OnnxError(f"bit casts to {kind} are not written")
        return Coded(bits.view(np.uint8), kind)
    if x.dtype.kind == "b" or to == BOOL:
        if x.dtype.itemsize != 1 or NUMPY_TYPES.get(to) not in (np.uint8, np.int8, np.bool_):
            raise OnnxError("bit casts of bools are to and from bytes")
        return x.astype(numpy_type(to))
    return x.view(numpy_type(to))


def _power_of_two(x: Tensor, saturate: bool, round_mode: str) -> Coded:
    """float8_e8m0: the exponent of an f32, up or down by its fraction."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.int64)
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    if round_mode == "up":
        more = fraction > 0
    elif round_mode == "nearest":
        # Half way goes up, but for numbers below the least power.
        more = (fraction > 0x400000) | ((fraction == 0x400000) & (exponent > 0))
    elif round_mode == "down":
        more = fraction < 0
    else:
        raise OnnxError(f"the round_mode {round_mode!r} is unknown")
    top = 0xFE if saturate else 0xFF
    moved = np.minimum(exponent + more.astype(np.int64), top)
    return Coded(np.where(exponent == 0xFF, 0xFF, moved).astype(np.uint8), "float8_e8m0fnu")


CAST_ROWS: Rows = {
    "BitCast": Row(bit_cast, wide=False),
    "Cast": Row(cast, wide=False),
    "CastLike": Row(cast_like, wide=False),
}
