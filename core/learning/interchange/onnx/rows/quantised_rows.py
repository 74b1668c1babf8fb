"""Quantised operators, exact: whole numbers are computed with as whole numbers.

y = saturate(round(x / scale) + zero point), a tie to the even number; scales and zero points of one
tensor, of each slice of an axis, or of each block of one.
"""

from __future__ import annotations

import numpy as np

from .....compiler.ir import Tensor
from ..element_types import CODED_TYPES, NUMPY_TYPES, SMALL_INTEGERS, Coded, numpy_type
from ..operator_rows import Row, Rows
from .cast_rows import cast_to, decoded, encoded, to_numpy
from .convolution_rows import convolve
from .shape_rows import placed


def _beside(value: Tensor, shape: tuple[int, ...], axis: int, block_size: int) -> Tensor:
    """A scale or zero point so that it broadcasts against a tensor."""
    if isinstance(value, Coded):
        value = decoded(value)
    if value.ndim == 0 or value.size == 1:
        return value.reshape(())
    axis = placed(axis, len(shape))
    if block_size == 0 and value.ndim == 1:
        sizes = [1] * len(shape)
        sizes[axis] = value.shape[0]
        return value.reshape(tuple(sizes))
    if block_size > 0:
        wide = np.repeat(value, block_size, axis)
        return wide[(*((slice(None),) * axis), slice(0, shape[axis]))]
    return value


def quantize(
    x: Tensor,
    scale: Tensor,
    zero: Tensor = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    """QuantizeLinear."""
    step = _beside(scale, x.shape, axis, block_size)
    if precision:
        kind = numpy_type(precision)
        ratio = x.astype(kind) / step.astype(kind)
    elif x.dtype.kind in "iu":
        ratio = x.astype(np.float32) / step.astype(np.float32)
    else:
        ratio = x / step.astype(x.dtype)
    offset = None if zero is None else _beside(zero, x.shape, axis, block_size)
    kind_of = zero.kind if isinstance(zero, Coded) else CODED_TYPES.get(output_dtype)
    if kind_of is not None:
        if kind_of in SMALL_INTEGERS:
            low, high = SMALL_INTEGERS[kind_of]
            return Coded(_saturated(ratio, offset, low, high).astype(np.int32), kind_of)
        if offset is not None and not kind_of.startswith("float8"):
            ratio = ratio + offset
        return encoded(ratio, kind_of, bool(saturate))
    dtype = np.uint8 if output_dtype == 0 else NUMPY_TYPES[output_dtype]
    if zero is not None:
        dtype = zero.dtype
    limits = np.iinfo(dtype)
    return _saturated(ratio, offset, limits.min, limits.max).astype(dtype)


def _saturated(ratio: Tensor, offset: Tensor, low: int, high: int) -> Tensor:
    """Rounded, moved by the zero point, and within its range; f64."""
    whole = np.rint(ratio).astype(np.float64)
    if offset is not None:
        whole = whole + offset.astype(np.float64)
    return np.minimum(np.maximum(whole, float(low)), float(high))


def dequantize(
    x: Tensor,
    scale: Tensor,
    zero: Tensor = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    """DequantizeLinear: (x - zero point) scale, in f32 and rounded to the scale's type."""
    held = decoded(x) if isinstance(x, Coded) else x
    wide = held.astype(np.float32)
    if zero is not None and held.dtype.kind in "iu":
        offset = _beside(zero, x.shape, axis, block_size)
        wide = (held.astype(np.int64) - offset.astype(np.int64)).astype(np.float32)
    step = _beside(scale, x.shape, axis, block_size)
    y = wide * step.astype(np.float32)
    return cast_to(y, output_dtype) if output_dtype else to_numpy(y, scale.dtype)


def _centred(x: Tensor, zero: Tensor, axis: int) -> Tensor:
    """i32: whole numbers less their zero point, of one tensor or of slices of an axis."""
    wide = x.astype(np.int32)
    if zero is None:
        return wide
    offset = zero.astype(np.int32)
    if offset.ndim == 1 and offset.shape[0] > 1:
        offset = offset.reshape((-1,) + (1,) * (x.ndim - 1 - placed(axis, x.ndim)))
    elif offset.ndim <= 1:
        offset = offset.reshape(())
    return wide - offset


def matmul_integer(a: Tensor, b: Tensor, a_zero: Tensor = None, b_zero: Tensor = None) -> Tensor:
    """MatMulInteger: i32."""
    return np.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))


def conv_integer(
    x: Tensor,
    kernel: Tensor,
    x_zero: Tensor = None,
    kernel_zero: Tensor = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """ConvInteger: i32. In f64 the sums of products of bytes are exact."""
    left = _centred(x, x_zero, 1).astype(np.float64)
    right = _centred(kernel, kernel_zero, 0).astype(np.float64)
    out = convolve(
        left, right, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides
    )
    return out.astype(np.int32)


def _requantized(whole: Tensor, factor: Tensor, zero: Tensor) -> Tensor:
    limits = np.iinfo(zero.dtype)
    moved = np.rint(whole.astype(np.float64) * factor.astype(np.float64) + zero.astype(np.float64))
    return np.minimum(np.maximum(moved, float(limits.min)), float(limits.max)).astype(zero.dtype)


def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    """QLinearMatMul."""
    whole = np.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))
    rows, columns = _scale_of(a_scale, -2), _scale_of(b_scale, -1)
    return _requantized(whole, rows * columns / _scale_of(y_scale, -2), y_zero)


def _scale_of(scale: Tensor, axis: int) -> Tensor:
    if scale.ndim == 1 and scale.shape[0] > 1:
        return scale[:, None] if axis == -2 else scale
    return scale.reshape(()) if scale.ndim <= 1 else scale


def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    kernel: Tensor,
    kernel_scale: Tensor,
    kernel_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """QLinearConv; the kernel's scale and zero point may be of each output channel."""
    whole = conv_integer(
        x,
        kernel,
        x_zero,
        kernel_zero,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        pads=pads,
        strides=strides,
    )
    channels = (-1,) + (1,) * (x.ndim - 2)
    if bias is not None:
        whole = whole + bias.reshape(channels)
    factor = x_scale.reshape(()) * kernel_scale / y_scale.reshape(())
    factor = factor.reshape(channels) if factor.size > 1 else factor.reshape(())
    return _requantized(whole, factor, y_zero.reshape(()))


QUANTISED_ROWS: Rows = {
    "ConvInteger": Row(conv_integer),
    "DequantizeLinear": Row(dequantize, fixed=(1,), wide=False),
    "MatMulInteger": Row(matmul_integer),
    "QLinearConv": Row(qlinear_conv, fixed=(1, 4, 6)),
    "QLinearMatMul": Row(qlinear_matmul, fixed=(1, 4, 6)),
    "QuantizeLinear": Row(quantize, fixed=(1,), wide=False),
}
