"""Primitives that make tensors and move their elements about; nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Blocks, Builder, DType, Op, TensorType, Type, Types, Value
from . import batching, table, type_checks
from .rules import free, linear, one_result, zeros_like

#: A slice is a small part of a tensor of at least so many times its size: its cotangent is added
#: to the tensor's where it lies, and not as a tensor of zeros around it.
SMALL_PART = 8


def _constant_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    value: Array = attrs["value"]
    try:
        dtype = DType.of(value.dtype)
    except KeyError:
        type_checks.fail("constant", f"there is no element type {value.dtype}")
    return (TensorType(dtype, value.shape),)


def _iota_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    shape: tuple[int, ...] = attrs["shape"]
    type_checks.axis_of("iota", attrs, len(shape))
    return (TensorType(type_checks.dtype_of("iota", attrs, type_checks.NUMERIC), shape),)


def _reshape_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    x = type_checks.tensor("reshape", types[0])
    result = TensorType(x.dtype, attrs["shape"])
    if result.size != x.size:
        type_checks.fail("reshape", f"{x} has {x.size} elements and {result} has {result.size}")
    return (result,)


def _broadcast_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    x = type_checks.tensor("broadcast", types[0])
    shape: tuple[int, ...] = attrs["shape"]
    dims = type_checks.int_tuple("broadcast", attrs, "dims", len(x.shape))
    last = -1
    for size, dim in zip(x.shape, dims, strict=True):
        if not last < dim < len(shape):
            type_checks.fail(
                "broadcast",
                f"dims {dims} must grow and stay within shape {type_checks.shape_text(shape)}",
            )
        if size != shape[dim] and size != 1:
            type_checks.fail(
                "broadcast",
                f"{x} does not fit shape {type_checks.shape_text(shape)} along dims {dims}",
            )
        last = dim
    return (TensorType(x.dtype, shape),)


def _transpose_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    x = type_checks.tensor("transpose", types[0])
    perm = type_checks.axes_of("transpose", attrs, "perm", len(x.shape))
    if len(perm) != len(x.shape):
        type_checks.fail("transpose", f"perm {perm} must name each axis of {x}")
    return (TensorType(x.dtype, tuple([x.shape[p] for p in perm])),)


def _reverse_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    x = type_checks.tensor("reverse", types[0])
    type_checks.axes_of("reverse", attrs, "axes", len(x.shape))
    return (x,)


def _slice_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    x = type_checks.tensor("slice", types[0])
    rank = len(x.shape)
    start = type_checks.int_tuple("slice", attrs, "start", rank)
    stop = type_checks.int_tuple("slice", attrs, "stop", rank)
    step = type_checks.int_tuple("slice", attrs, "step", rank)
    shape = []
    for size, lo, hi, by in zip(x.shape, start, stop, step, strict=True):
        if not lo <= hi <= size:
            type_checks.fail("slice", f"start {start}, stop {stop}, step {step} do not fit {x}")
        shape.append((hi - lo + by - 1) // by)
    return (TensorType(x.dtype, tuple(shape)),)


def padded_size(size: int, low: int, high: int, interior: int) -> int:
    """The size of an axis after padding; `interior` goes between neighbours."""
    return low + high + (size + (size - 1) * interior if size else 0)


def _pad_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    x, value = type_checks.tensor("pad", types[0]), types[1]
    if type(value) is not TensorType or value.dtype is not x.dtype or value.shape != ():
        type_checks.fail("pad", f"the padding value must be {x.dtype.value}[], not {value}")
    rank = len(x.shape)
    edges = (type_checks.int_tuple("pad", attrs, key, rank) for key in ("low", "high", "interior"))
    shape = tuple([padded_size(*row) for row in zip(x.shape, *edges, strict=True)])
    return (TensorType(x.dtype, shape),)


def _concat_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    if not types:
        type_checks.fail("concat", "needs at least one operand")
    first = type_checks.tensor("concat", types[0])
    axis = type_checks.axis_of("concat", attrs, len(first.shape))
    shape = list(first.shape)
    shape[axis] = 0
    for type_ in types:
        t = type_checks.tensor("concat", type_)
        if t.dtype is not first.dtype:
            type_checks.differ("concat", first, t)
        if t.shape[:axis] != first.shape[:axis] or t.shape[axis + 1 :] != first.shape[axis + 1 :]:
            type_checks.fail("concat", f"{first} and {t} differ off axis {axis}")
        shape[axis] += t.shape[axis]
    return (TensorType(first.dtype, tuple(shape)),)


def _iota(attrs: table.Attrs) -> Array:
    shape, axis = attrs["shape"], attrs["axis"]
    column = [-1 if i == axis else 1 for i in range(len(shape))]
    counts = np.arange(shape[axis]).astype(attrs["dtype"].numpy)
    return np.broadcast_to(counts.reshape(column), shape)


def _broadcast(x: Array, attrs: table.Attrs) -> Array:
    sizes = dict(zip(attrs["dims"], x.shape, strict=True))
    aligned = x.reshape([sizes.get(i, 1) for i in range(len(attrs["shape"]))])
    return np.broadcast_to(aligned, attrs["shape"])


def _windows(start: Sequence[int], stop: Sequence[int], step: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(*row) for row in zip(start, stop, step, strict=True))


def _inside(x: Sequence[int], attrs: table.Attrs) -> dict[str, tuple[int, ...]]:
    """Where padding puts the tensor: the attributes of the slice that takes it out again."""
    low, step = attrs["low"], tuple([i + 1 for i in attrs["interior"]])
    ends = zip(low, x, step, strict=True)
    stop = tuple([lo + (n - 1) * by + 1 if n else lo for lo, n, by in ends])
    return {"start": low, "stop": stop, "step": step}


def _pad(x: Array, value: Array, attrs: table.Attrs) -> Array:
    edges = zip(x.shape, attrs["low"], attrs["high"], attrs["interior"], strict=True)
    padded = np.full([padded_size(*row) for row in edges], value, dtype=x.dtype)
    padded[_windows(**_inside(x.shape, attrs))] = x
    return padded


def _reshape_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    return (b("reshape", g, shape=op.operands[0].shape),)


def _broadcast_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    """Sums over every axis that was made or stretched."""
    x, dims = op.operands[0], op.attrs["dims"]
    whole = {d for d, n in zip(dims, x.shape, strict=True) if n == g.shape[d]}
    axes = tuple([i for i in range(len(g.shape)) if i not in whole])
    summed = b("reduce_sum", g, axes=axes) if axes else g
    return (summed if summed.shape == x.shape else b("reshape", summed, shape=x.shape),)


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes this one."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def _transpose_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    return (b("transpose", g, perm=inverse(op.attrs["perm"])),)


def _reverse_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    return (b("reverse", g, axes=op.attrs["axes"]),)


def _slice_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    x, low, step = op.operands[0], op.attrs["start"], op.attrs["step"]
    interior = tuple([by - 1 for by in step])
    rows = zip(x.shape, low, g.shape, interior, strict=True)
    high = tuple([size - padded_size(n, lo, 0, gap) for size, lo, n, gap in rows])
    zero = b.zeros(TensorType(x.dtype))
    return (b("pad", g, zero, low=low, high=high, interior=interior),)


def _slice_put(b: Builder, op: Op, total: Value, g: Value) -> table.Maybe:
    if g.tensor.size * SMALL_PART > total.tensor.size or any(by != 1 for by in op.attrs["step"]):
        return None
    starts = [b.constant(at, DType.I64) for at in op.attrs["start"]]
    part = b.emit("slice", (total,), op.attrs)[0]
    return b("dynamic_update", total, b("add", part, g), *starts)


def _pad_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    """The tensor's part is sliced out; the value's is the sum of what lies outside of that."""
    x, attrs = op.operands[0], op.attrs
    inside = b.full(TensorType(DType.BOOL, x.shape), True)
    outside = b.constant(False, DType.BOOL)
    mask = b.emit("pad", (inside, outside), attrs)[0]
    left = b("select", mask, zeros_like(b, g), g)
    value = b("reduce_sum", left, axes=tuple(range(len(g.shape))))
    return (b("slice", g, **_inside(x.shape, attrs)), value)


def _concat_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    axis, at = op.attrs["axis"], 0
    parts = []
    for x in op.operands:
        start = tuple([at if i == axis else 0 for i in range(len(g.shape))])
        at += x.shape[axis]
        stop = tuple([at if i == axis else n for i, n in enumerate(g.shape)])
        parts.append(b("slice", g, start=start, stop=stop, step=(1,) * len(stop)))
    return parts


def _row(
    name: str,
    rule: table.InferRule,
    f: Callable[..., Any],
    back: Callable[[Builder, Op, Value], Sequence[table.Maybe]] | None,
    operands: int | None,
    attrs: str,
    batch: table.BatchRule | None = None,
    put: table.PutRule | None = None,
) -> table.Primitive:
    """A row of what moves numbers. back: the transpose; None: nothing flows back."""
    vjp, jvp = (None, None) if back is None else linear(back)
    named, reference = tuple(attrs.split()), one_result(f)
    return table.Primitive(
        name, rule, reference, vjp, jvp, free, attrs=named, operands=operands, batch=batch, put=put
    )


def _reshape(x: Array, attrs: table.Attrs) -> Array:
    return x.reshape(attrs["shape"])


def _transpose(x: Array, attrs: table.Attrs) -> Array:
    return x.transpose(attrs["perm"])


def _reverse(x: Array, attrs: table.Attrs) -> Array:
    return np.flip(x, attrs["axes"])


def _slice(x: Array, attrs: table.Attrs) -> Array:
    return x[_windows(**attrs)]


def _concat(*args: Any) -> Array:
    return np.concatenate(args[:-1], axis=args[-1]["axis"])


_SAME_AXES = batching.same_attrs("axes")
_SAME_AXIS = batching.same_attrs(axes=("axis",))
_SIZES = batching.leading(shape="size")
_PLACES = batching.leading(start=0, stop="size", step=1)

ROWS = (
    _row("constant", _constant_type, lambda attrs: attrs["value"], None, 0, "value"),
    _row("iota", _iota_type, _iota, None, 0, "dtype shape axis"),
    _row("reshape", _reshape_type, _reshape, _reshape_back, 1, "shape", _SIZES),
    _row(
        "broadcast",
        _broadcast_type,
        _broadcast,
        _broadcast_back,
        1,
        "shape dims",
        batching.broadcast,
    ),
    _row("transpose", _transpose_type, _transpose, _transpose_back, 1, "perm", batching.transpose),
    _row("reverse", _reverse_type, _reverse, _reverse_back, 1, "axes", _SAME_AXES),
    _row("slice", _slice_type, _slice, _slice_back, 1, "start stop step", _PLACES, _slice_put),
    _row("pad", _pad_type, _pad, _pad_back, 2, "low high interior", batching.pad),
    _row("concat", _concat_type, _concat, _concat_back, None, "axis", _SAME_AXIS),
)
