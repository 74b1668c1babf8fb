"""Primitives that read and write at places known only when the program runs, as ONNX's.

Places are brought into range first, as the IR has it; ONNX would refuse them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....compiler.ir import DType, Op, Value
from .graph_maker import GraphMaker
from .rows_elementwise import Made


def _start(g: GraphMaker, start: Value, room: int) -> str:
    """i64[]: a window's first place along an axis, from 0 to `room`."""
    known = g.known.get(start)
    if known is not None:
        return g.number(DType.I64, min(max(int(known), 0), room))
    low = g.node("Max", g.value(start), g.number(DType.I64, 0))
    return g.node("Min", low, g.number(DType.I64, room))


def _cut(whole: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The axes along which a window is smaller than the tensor."""
    return [i for i, (n, m) in enumerate(zip(whole, sizes, strict=True)) if n != m]


def dynamic_slice(g: GraphMaker, op: Op) -> Made:
    x, *starts = op.operands
    sizes = op.attrs["sizes"]
    cut = _cut(x.shape, sizes)
    if not cut:
        return op.operands[0]
    firsts = [g.reshape(_start(g, starts[i], x.shape[i] - sizes[i]), (), (1,)) for i in cut]
    first = firsts[0] if len(firsts) == 1 else g.node("Concat", *firsts, axis=0)
    last = g.node("Add", first, g.ints(sizes[i] for i in cut))
    return g.node("Slice", g.value(x), first, last, g.ints(cut))


def dynamic_update(g: GraphMaker, op: Op) -> Made:
    """ScatterND along the first axis; along others by places in the flat tensor."""
    x, update, *starts = op.operands
    cut = _cut(x.shape, update.shape)
    if not cut:
        return update
    if update.tensor.size == 0:
        return op.operands[0]
    if cut == [0]:
        first = _start(g, starts[0], x.shape[0] - update.shape[0])
        steps = g.constant(np.arange(update.shape[0], dtype=np.int64).reshape(-1, 1))
        places = g.node("Add", first, steps)
        return g.node("ScatterND", g.value(x), places, g.value(update))
    strides = [math.prod(x.shape[i + 1 :]) for i in range(len(x.shape))]
    inside = np.zeros(update.shape, np.int64)
    for i, size in enumerate(update.shape):
        column = [-1 if j == i else 1 for j in range(len(update.shape))]
        inside = inside + (np.arange(size) * strides[i]).reshape(column)
    flat = g.constant(inside.reshape(-1))
    for i in cut:
        first = _start(g, starts[i], x.shape[i] - update.shape[i])
        flat = g.node("Add", flat, g.node("Mul", first, g.number(DType.I64, strides[i])))
    count, size = x.tensor.size, update.tensor.size
    whole = g.reshape(g.value(x), x.shape, (count,))
    put = g.reshape(g.value(update), update.shape, (size,))
    made = g.node("ScatterElements", whole, flat, put, axis=0)
    return g.reshape(made, (count,), x.shape)


def _places(g: GraphMaker, indices: Value, size: int) -> str:
    """Indices as i64 in range."""
    known = g.known.get(indices)
    made = g.cast(g.value(indices), indices.dtype, DType.I64)
    if known is not None and 0 <= int(known) < size:
        return made
    low = g.node("Max", made, g.number(DType.I64, 0))
    return g.node("Min", low, g.number(DType.I64, size - 1))


def take(g: GraphMaker, op: Op) -> str:
    x, indices = op.operands
    axis = op.attrs["axis"]
    return g.node("Gather", g.value(x), _places(g, indices, x.shape[axis]), axis=axis)


def take_along(g: GraphMaker, op: Op) -> str:
    x, indices = op.operands
    axis = op.attrs["axis"]
    return g.node("GatherElements", g.value(x), _places(g, indices, x.shape[axis]), axis=axis)


def put_add(g: GraphMaker, op: Op) -> Made:
    """ScatterElements with a sum: each index for every element off its axis."""
    x, indices, updates = op.operands
    axis = op.attrs["axis"]
    count = indices.tensor.size
    if updates.tensor.size == 0:
        return op.operands[0]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    places = _places(g, indices, x.shape[axis])
    column = [count if i == axis else 1 for i in range(len(shape))]
    places = g.reshape(places, indices.shape, column)
    if tuple(column) != shape:
        places = g.node("Expand", places, g.ints(shape))
    put = g.reshape(g.value(updates), updates.shape, shape)
    return g.node("ScatterElements", g.value(x), places, put, axis=axis, reduction="add")


def put_along_add(g: GraphMaker, op: Op) -> Made:
    x, indices, updates = op.operands
    axis = op.attrs["axis"]
    if updates.tensor.size == 0:
        return op.operands[0]
    places = _places(g, indices, x.shape[axis])
    operands = (g.value(x), places, g.value(updates))
    return g.node("ScatterElements", *operands, axis=axis, reduction="add")
