"""Primitives that make tensors and move their elements about, as operators of ONNX."""

from __future__ import annotations

import numpy as np

from ....compiler.ir import DType, Op
from .export_types import IN_EXTREME
from .graph_maker import GraphMaker
from .rows_elementwise import Made

#: Constants and counts up to so many elements are stored; longer counts are made by Range.
STORED_MAX = 1024
#: ONNX's way to say "to the first element, going backwards".
_BEFORE_FIRST = -(2**63) + 1


def constant(g: GraphMaker, op: Op) -> None:
    """An initialiser; one number where all elements are that."""
    array = op.attrs["value"]
    if array.size and (array.tobytes() == array.reshape(-1)[:1].tobytes() * array.size):
        g.known[op.result] = array.reshape(-1)[0]
        if array.ndim:
            g.bind_compact(op.result, g.constant(array.reshape(-1)[0]))
            return
    g.bind(op.result, g.constant(array))


def iota(g: GraphMaker, op: Op) -> None:
    """Counts along one axis; repeated along the others."""
    shape, axis, dtype = op.attrs["shape"], op.attrs["axis"], op.attrs["dtype"]
    count = shape[axis]
    column = (count, *[1] * (len(shape) - axis - 1))
    if count <= STORED_MAX:
        g.bind_compact(op.result, g.constant(np.arange(count).astype(dtype.numpy).reshape(column)))
        return
    bounds = [g.constant(np.array(v, np.int64)) for v in (0, count, 1)]
    counts = g.cast(g.node("Range", *bounds), DType.I64, dtype)
    g.bind_compact(op.result, g.reshape(counts, (count,), column))


def reshape(g: GraphMaker, op: Op) -> Made:
    (x,) = op.operands
    if x in g.known and g.is_compact(x):
        g.known[op.result] = g.known[x]
        g.bind_compact(op.result, g.number(x.dtype, g.known[x]))
        return None
    return g.reshape(g.value(x), x.shape, op.result.shape)


def broadcast(g: GraphMaker, op: Op) -> Made:
    """Kept compact: the operand with its axes in place."""
    (x,), shape, dims = op.operands, op.attrs["shape"], op.attrs["dims"]
    if x in g.known:
        g.known[op.result] = g.known[x]
        g.bind_compact(op.result, g.number(x.dtype, g.known[x]))
        return None
    if tuple(x.shape) == tuple(shape):
        return x
    first = dims[0] if dims else len(shape)
    sizes = dict(zip(dims, x.shape, strict=True))
    aligned = tuple(sizes.get(i, 1) for i in range(first, len(shape)))
    made = g.reshape(g.value(x), x.shape, aligned)
    if aligned == tuple(shape):
        return made
    g.bind_compact(op.result, made)
    return None


def transpose(g: GraphMaker, op: Op) -> str:
    return g.transpose(g.value(op.operands[0]), op.attrs["perm"])


def reverse(g: GraphMaker, op: Op) -> Made:
    axes = op.attrs["axes"]
    if not axes:
        return op.operands[0]
    count = len(axes)
    places = [[-1] * count, [_BEFORE_FIRST] * count, axes, [-1] * count]
    return g.node("Slice", g.value(op.operands[0]), *map(g.ints, places))


def slices(g: GraphMaker, op: Op) -> Made:
    (x,) = op.operands
    rows = zip(op.attrs["start"], op.attrs["stop"], op.attrs["step"], x.shape, strict=True)
    cut = [(i, *row) for i, row in enumerate(rows) if row[:3] != (0, row[3], 1)]
    if not cut:
        return op.operands[0]
    axes, start, stop, step, _ = zip(*cut, strict=True)
    return g.node("Slice", g.value(x), *map(g.ints, (start, stop, axes, step)))


def pad(g: GraphMaker, op: Op) -> str:
    """Pad; numbers between neighbours by an axis of their own, which is padded and merged."""
    x, value = op.operands
    dtype, shape = x.dtype, list(x.shape)
    if x.tensor.size == 0:
        return g.expand(g.value(value), op.result.shape, dtype)
    wide = IN_EXTREME.get(dtype, dtype)
    made = g.cast(g.value(x), dtype, wide)
    number = g.cast(g.value(value), dtype, wide)
    for axis, gap in enumerate(op.attrs["interior"]):
        if not gap or shape[axis] < 2:
            continue
        count = shape[axis]
        opened = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
        made = g.reshape(made, shape, opened)
        edges = [0] * (2 * len(opened))
        edges[len(opened) + axis + 1] = gap
        made = g.node("Pad", made, g.ints(edges), number)
        opened[axis + 1] = gap + 1
        shape[axis] = count * (gap + 1)
        made = g.reshape(made, opened, shape)
        shape[axis] -= gap
        made = g.node("Slice", made, *map(g.ints, ([0], [shape[axis]], [axis], [1])))
    low, high = op.attrs["low"], op.attrs["high"]
    if any(low) or any(high):
        made = g.node("Pad", made, g.ints((*low, *high)), number)
    return g.cast(made, wide, dtype)


def concat(g: GraphMaker, op: Op) -> Made:
    """Concat of the operands that have elements."""
    parts = [v for v in op.operands if v.tensor.size]
    if len(parts) == 1:
        return parts[0]
    return g.node("Concat", *[g.value(v) for v in parts], axis=op.attrs["axis"])
