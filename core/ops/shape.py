"""Primitives that make tensors and move their elements about: nothing is computed, so cost is zero."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir import Block, DType, TensorType, Type
from .checks import NUMERIC, axes_of, axis_of, differ, dtype_of, fail, int_tuple, shape_text, tensor
from .table import Attrs, Primitive


def _constant_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    value = attrs["value"]
    if not isinstance(value, np.ndarray):
        fail("constant", f"value must be an array, not {type(value).__name__}")
    try:
        dtype = DType.of(value.dtype)
    except KeyError:
        fail("constant", f"there is no element type {value.dtype}")
    return (TensorType(dtype, value.shape),)


def _iota_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    shape = int_tuple("iota", attrs, "shape")
    axis_of("iota", attrs, len(shape))
    return (TensorType(dtype_of("iota", attrs, NUMERIC), shape),)


def _reshape_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    x = tensor("reshape", types[0])
    result = TensorType(x.dtype, int_tuple("reshape", attrs, "shape"))
    if result.size != x.size:
        fail("reshape", f"{x} has {x.size} elements and {result} has {result.size}")
    return (result,)


def _broadcast_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    x = tensor("broadcast", types[0])
    shape = int_tuple("broadcast", attrs, "shape")
    dims = int_tuple("broadcast", attrs, "dims", len(x.shape))
    last = -1
    for size, dim in zip(x.shape, dims, strict=True):
        if not last < dim < len(shape):
            fail("broadcast", f"dims {dims} must grow and stay within shape {shape_text(shape)}")
        if size != shape[dim] and size != 1:
            fail("broadcast", f"{x} does not fit shape {shape_text(shape)} along dims {dims}")
        last = dim
    return (TensorType(x.dtype, shape),)


def _transpose_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    x = tensor("transpose", types[0])
    perm = axes_of("transpose", attrs, "perm", len(x.shape))
    if len(perm) != len(x.shape):
        fail("transpose", f"perm {perm} must name each axis of {x}")
    return (TensorType(x.dtype, tuple([x.shape[p] for p in perm])),)


def _reverse_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    x = tensor("reverse", types[0])
    axes_of("reverse", attrs, "axes", len(x.shape))
    return (x,)


def _slice_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    x = tensor("slice", types[0])
    rank = len(x.shape)
    start = int_tuple("slice", attrs, "start", rank)
    stop = int_tuple("slice", attrs, "stop", rank)
    step = int_tuple("slice", attrs, "step", rank)
    shape = []
    for size, lo, hi, by in zip(x.shape, start, stop, step, strict=True):
        if not lo <= hi <= size or by < 1:
            fail("slice", f"start {start}, stop {stop}, step {step} do not fit {x}")
        shape.append((hi - lo + by - 1) // by)
    return (TensorType(x.dtype, tuple(shape)),)


def padded_size(size: int, low: int, high: int, interior: int) -> int:
    """The size of an axis after padding; `interior` goes between neighbours."""
    return low + high + (size + (size - 1) * interior if size else 0)


def _pad_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    x, value = tensor("pad", types[0]), types[1]
    if type(value) is not TensorType or value.dtype is not x.dtype or value.shape != ():
        fail("pad", f"the padding value must be {x.dtype.value}[], not {value}")
    rank = len(x.shape)
    edges = (int_tuple("pad", attrs, key, rank) for key in ("low", "high", "interior"))
    shape = tuple([padded_size(*row) for row in zip(x.shape, *edges, strict=True)])
    return (TensorType(x.dtype, shape),)


def _concat_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    if not types:
        fail("concat", "needs at least one operand")
    first = tensor("concat", types[0])
    axis = axis_of("concat", attrs, len(first.shape))
    shape = list(first.shape)
    shape[axis] = 0
    for type_ in types:
        t = tensor("concat", type_)
        if t.dtype is not first.dtype:
            differ("concat", first, t)
        if t.shape[:axis] != first.shape[:axis] or t.shape[axis + 1 :] != first.shape[axis + 1 :]:
            fail("concat", f"{first} and {t} differ off axis {axis}")
        shape[axis] += t.shape[axis]
    return (TensorType(first.dtype, tuple(shape)),)


def _row(name: str, rule: object, operands: int | None, *attrs: str) -> Primitive:
    return Primitive(
        name,
        rule,
        None,
        None,
        None,
        lambda op: 0,
        attrs=attrs,
        operands=operands,  # type: ignore[arg-type]
    )


ROWS = (
    _row("constant", _constant_type, 0, "value"),
    _row("iota", _iota_type, 0, "dtype", "shape", "axis"),
    _row("reshape", _reshape_type, 1, "shape"),
    _row("broadcast", _broadcast_type, 1, "shape", "dims"),
    _row("transpose", _transpose_type, 1, "perm"),
    _row("reverse", _reverse_type, 1, "axes"),
    _row("slice", _slice_type, 1, "start", "stop", "step"),
    _row("pad", _pad_type, 2, "low", "high", "interior"),
    _row("concat", _concat_type, None, "axis"),
)
