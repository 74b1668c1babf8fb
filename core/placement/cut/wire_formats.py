"""How a tensor is written where it crosses between tiers.

A tensor travels as it is, or, where the cut says so and it is f32, in fewer bytes:

    "f16"   IEEE 754 binary16: half of the bytes. |error| <= max(2^-11 |x|, 2^-25)
    "i8"    one byte, affine over the whole tensor: x ~ scale * (element - zero_point), a quarter of
            the bytes. |error| <= 0.501 scale, with scale = (max(x, 0) - min(x, 0)) / 254. Zero is
            exact, as the padding of a convolution and what a relu leaves want it.

254 steps over 255 numbers leave half a step at either end, so rounding the zero point never pushes
an extreme value out of i8's range, and half a step bounds the error of them all. (The usual 255
steps would let the ends be off by a whole one.) The rest of the bound is f32's own rounding.

A narrow wire is leave to lose digits, not numbers. A tensor that is not finite cannot be written in
i8, and one with a finite number of 65,520 or more not in f16: those are written as they are, and
`Encoded.dtype` says so. NaN and infinities are themselves in f16. Integers and bools travel as they
are.

A value is encoded once, where it was computed; a tier that passes it on sends the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...common.errors import DelianError
from ...compiler.ir import Array, DType, TensorType

#: The wires that lose digits, in the order of their codes.
NARROW = ("f16", "i8")
_WIRE_BYTES = {"f16": 2, "i8": 1}
#: Numbers of i8 that the range of a tensor is spread over.
_STEPS = 254
_LOW, _HIGH = -128, 127
#: From here on an f32 rounds to infinity in f16.
_F16_OVERFLOW = 65_520.0
_F32_MAX = float(np.finfo(np.float32).max)
_F32_TINY = np.finfo(np.float32).smallest_subnormal


class WireError(DelianError):
    """Bytes that are not the tensor that they should be."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tensor as it travels, field by field as `BoundaryTensor` has it.

    For "i8", value = scale * (element - zero_point).
    """

    dtype: str
    """What it travels as: "f16" or "i8", or the tensor's own ("f32", "bool"...)."""
    content: bytes
    """The elements, little-endian, row-major."""
    scale: float = 0.0
    """Of "i8"; 0 otherwise."""
    zero_point: int = 0
    """Of "i8"; 0 otherwise."""


def wires_of(type: TensorType) -> tuple[str, ...]:
    """The ways to write a tensor of this type: as it is first, then ever narrower."""
    own = type.dtype.value
    return (own, *NARROW) if type.dtype is DType.F32 else (own,)


def wire_bytes(type: TensorType, wire: str) -> int:
    """Bytes of the content of a tensor that is written so. Raises WireError where it cannot be."""
    if wire not in wires_of(type):
        raise WireError(f"{type} cannot be written as {wire}")
    return type.size * _WIRE_BYTES[wire] if wire in NARROW else type.nbytes


def encode(array: Array, wire: str) -> Encoded:
    """A tensor as it travels over a wire that its type has. Raises WireError for another wire."""
    type = TensorType.of(array)
    if wire not in wires_of(type):
        raise WireError(f"{type} cannot be written as {wire}")
    if wire == type.dtype.value or not array.size:
        return _as_it_is(array)
    return (_encode_i8 if wire == "i8" else _encode_f16)(array.reshape(-1))


def check(encoded: Encoded, type: TensorType) -> None:
    """Whether `decode` will make a tensor of it, at hardly any cost.

    Raises WireError when it was written in a way that this type has not, when the content is not as
    long as the type says, or when the scale or the zero point cannot be.
    """
    if encoded.dtype not in wires_of(type):
        raise WireError(f"a tensor {type} came as {encoded.dtype[:8]}")
    wanted = wire_bytes(type, encoded.dtype)
    if len(encoded.content) != wanted:
        raise WireError(
            f"a tensor {type} came as {len(encoded.content)} bytes of {encoded.dtype},"
            f" and has {wanted}"
        )
    if encoded.dtype == "i8" and type.dtype is DType.F32:
        if not 0 < encoded.scale <= _F32_MAX:
            raise WireError(f"an i8 tensor with the scale {encoded.scale}")
        if not _LOW <= encoded.zero_point <= _HIGH:
            raise WireError(f"an i8 tensor with the zero point {encoded.zero_point}")
    if type.dtype is DType.BOOL and (np.frombuffer(encoded.content, np.uint8) > 1).any():
        raise WireError("a bool that is neither 0 nor 1")


def decode(encoded: Encoded, type: TensorType) -> Array:
    """The tensor again, of its own dtype and a memory of its own. Raises WireError (`check`)."""
    check(encoded, type)
    if encoded.dtype == type.dtype.value:
        own = type.dtype.numpy
        flat: Array = np.frombuffer(encoded.content, own.newbyteorder("<")).astype(own)
    elif encoded.dtype == "f16":
        flat = np.frombuffer(encoded.content, "<f2").astype(np.float32)
    else:
        flat = _decode_i8(encoded)
    return flat.reshape(type.shape)


def _as_it_is(array: Array) -> Encoded:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return Encoded(DType.of(array.dtype).value, little.tobytes())


def _encode_f16(array: Array) -> Encoded:
    with np.errstate(over="ignore"):
        halves = array.astype("<f2")
    # An infinity that was none before: a comparison of maxima is cheaper than one of elements.
    if np.isinf(halves).any():
        finite = np.abs(array[np.isfinite(array)])
        if finite.size and finite.max() >= _F16_OVERFLOW:
            return _as_it_is(array)
    return Encoded("f16", halves.tobytes())


def _encode_i8(array: Array) -> Encoded:
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        return _as_it_is(array)
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        return Encoded("i8", bytes(array.size), 1.0, 0)
    step = (high - low) / _STEPS
    scale = np.float32(step)
    if float(scale) < step:  # rounded up, so that the range stays within the steps
        scale = np.nextafter(scale, np.float32(np.inf))
    scale = max(scale, _F32_TINY)
    zero_point = round(_LOW + 0.5 - low / float(scale))
    steps = np.rint(array / scale)
    steps += np.float32(zero_point)
    np.clip(steps, _LOW, _HIGH, out=steps)
    return Encoded("i8", steps.astype(np.int8).tobytes(), float(scale), zero_point)


def _decode_i8(encoded: Encoded) -> Array:
    scale, zero_point = encoded.scale, encoded.zero_point
    steps = np.frombuffer(encoded.content, np.int8).astype(np.float32)
    steps -= np.float32(zero_point)
    with np.errstate(over="ignore"):
        steps *= np.float32(scale)
    if scale * (_HIGH - _LOW) > _F32_MAX:
        np.clip(steps, -_F32_MAX, _F32_MAX, out=steps)
    return steps
