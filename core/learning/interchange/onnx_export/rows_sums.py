"""Primitives along axes as operators of ONNX: sums, extremes, order, running sums.

Where an extreme's row holds NaN the IR gives NaN, or its place, as NumPy does; ONNX does not say
what its operators give, so the rows look for NaN themselves.

ONNX Runtime adds and multiplies whole numbers of ReduceSum and ReduceProd in f64, which holds 53
bits: the rows use them where no sum can be longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....compiler.ir import DType, Op, Value
from .export_types import IN_ORDER, IN_SUM
from .graph_maker import GraphMaker
from .rows_elementwise import Made, Row

_TOP_BIT = 2**63
#: Bits of a whole number that f64 holds.
_EXACT_BITS = 53
#: Floats that are added in one node. ONNX Runtime adds the elements of some axes one after another,
#: and of 65,536 the rounding is 100 times what it is in stages.
_STAGE = 256


def _keys(g: GraphMaker, x: str, dtype: DType) -> tuple[str, DType]:
    """Numbers in a type that ordering operators have, in the same order."""
    if dtype is DType.U64:
        x = g.node("BitwiseXor", x, g.number(dtype, _TOP_BIT))
    wide = IN_ORDER.get(dtype, dtype)
    return g.cast(x, dtype, wide), wide


def _from_keys(g: GraphMaker, x: str, wide: DType, dtype: DType) -> str:
    x = g.cast(x, wide, dtype)
    return g.node("BitwiseXor", x, g.number(dtype, _TOP_BIT)) if dtype is DType.U64 else x


def _rows(g: GraphMaker, x: Value, axes: Sequence[int], wide: DType) -> tuple[str, int, int]:
    """The tensor as [what is kept, what is reduced], in a wider type, and these two sizes."""
    kept = [i for i in range(len(x.shape)) if i not in axes]
    count = math.prod(x.shape[i] for i in axes)
    rows = x.tensor.size // count
    turned = g.transpose(g.value(x), (*kept, *axes))
    made = g.reshape(turned, [x.shape[i] for i in (*kept, *axes)], (rows, count))
    return g.cast(made, x.dtype, wide), rows, count


def _sum_in_stages(g: GraphMaker, name: str, shape: tuple[int, ...], axes: Sequence[int]) -> str:
    """A sum axis by axis, those that are long in parts."""
    sizes: list[int] = []
    summed: list[int] = []
    for axis, size in enumerate(shape):
        parts = _parts(size) if axis in axes else (size,)
        if axis in axes:
            summed.extend(range(len(sizes), len(sizes) + len(parts)))
        sizes.extend(parts)
    name = g.reshape(name, shape, sizes)
    for axis in reversed(summed):
        name = g.node("ReduceSum", name, g.ints([axis]), keepdims=0)
    return name


def _parts(size: int) -> tuple[int, ...]:
    """Factors of a size, of at most a stage where it has such."""
    part = next((n for n in range(_STAGE, 1, -1) if size % n == 0), size)
    return (size,) if size <= _STAGE or part == size else (*_parts(size // part), part)


def reduce_sum(g: GraphMaker, op: Op) -> Made:
    """ReduceSum, where it is exact; else whole numbers are multiplied by a column of ones."""
    (x,), axes, dtype = op.operands, op.attrs["axes"], op.result.dtype
    if not axes:
        return op.operands[0]
    if x.tensor.size == 0:
        return g.zeros(dtype, op.result.shape)
    count = math.prod(x.shape[i] for i in axes)
    if dtype in (DType.F32, DType.F64) and count > _STAGE:
        return _sum_in_stages(g, g.value(x), x.shape, axes)
    bits = g.bits.get(x, dtype.itemsize * 8)
    if dtype.is_float or bits + count.bit_length() <= _EXACT_BITS:
        wide = dtype if dtype.is_float else DType.I64
        wider = g.cast(g.value(x), dtype, wide)
        return g.cast(g.node("ReduceSum", wider, g.ints(axes), keepdims=0), wide, dtype)
    made, rows, count = _rows(g, x, axes, dtype)
    made = g.node("MatMul", made, g.full(dtype, (count, 1), 1))
    return g.reshape(made, (rows, 1), op.result.shape)


def reduce_prod(g: GraphMaker, op: Op) -> Made:
    """ReduceProd of floats; whole numbers are multiplied half by half."""
    (x,), axes, dtype = op.operands, op.attrs["axes"], op.result.dtype
    if not axes:
        return op.operands[0]
    if x.tensor.size == 0:
        return g.full(dtype, op.result.shape, 1)
    if dtype.is_float:
        return g.node("ReduceProd", g.value(x), g.ints(axes), keepdims=0)
    made, rows, count = _rows(g, x, axes, DType.I64)
    while count > 1:
        half = (count + 1) // 2
        if count % 2:
            made = g.node("Pad", made, g.ints((0, 0, 0, 1)), g.number(DType.I64, 1))
        left = g.node("Slice", made, *map(g.ints, ([0], [half], [1], [1])))
        right = g.node("Slice", made, *map(g.ints, ([half], [2 * half], [1], [1])))
        made, count = g.node("Mul", left, right), half
    return g.reshape(g.cast(made, DType.I64, dtype), (rows, 1), op.result.shape)


def extreme(op_type: str) -> Row:
    """ReduceMax and ReduceMin; of bools any and all."""

    def row(g: GraphMaker, op: Op) -> Made:
        (x,), axes, dtype = op.operands, op.attrs["axes"], op.result.dtype
        if not axes:
            return op.operands[0]
        if x.tensor.size == 0:
            return g.full(dtype, op.result.shape, op_type == "ReduceMin")
        name = g.value(x)
        if dtype.is_float:
            made = g.node(op_type, name, g.ints(axes), keepdims=0)
            found = g.node("ReduceMax", g.node("IsNaN", name), g.ints(axes), keepdims=0)
            return g.where(found, g.number(dtype, np.nan), made, dtype)
        keys, wide = _keys(g, name, dtype)
        return _from_keys(g, g.node(op_type, keys, g.ints(axes), keepdims=0), wide, dtype)

    return row


def first(op_type: str) -> Row:
    """ArgMax and ArgMin: the first place, of NaN where there is one."""

    def row(g: GraphMaker, op: Op) -> str:
        (x,), axis, dtype = op.operands, op.attrs["axis"], op.operands[0].dtype
        name = g.value(x)
        keys, _ = _keys(g, name, dtype)
        made = g.node(op_type, keys, axis=axis, keepdims=0)
        if not dtype.is_float:
            return made
        wrong = g.node("IsNaN", name)
        place = g.node("ArgMax", g.cast(wrong, DType.BOOL, DType.I32), axis=axis, keepdims=0)
        found = g.node("ReduceMax", wrong, g.ints([axis]), keepdims=0)
        return g.where(found, place, made, DType.I64)

    return row


def argsort(g: GraphMaker, op: Op) -> str:
    """TopK of all, smallest first: it keeps the order of equal ones. NaN goes to the end."""
    (x,), axis, dtype = op.operands, op.attrs["axis"], op.operands[0].dtype
    count = g.ints([x.shape[axis]])

    def order(keys: str) -> str:
        return g.emit("TopK", (keys, count), 2, axis=axis, largest=0, sorted=1)[1]

    name = g.value(x)
    if not dtype.is_float:
        return order(_keys(g, name, dtype)[0])
    wrong = g.node("IsNaN", name)
    numbers = order(g.where(wrong, g.number(dtype, np.inf), name, dtype))
    # Sorted again by whether they are NaN: infinities come before.
    marks = g.node("GatherElements", g.cast(wrong, DType.BOOL, DType.I32), numbers, axis=axis)
    return g.node("GatherElements", numbers, order(marks), axis=axis)


def cumsum(g: GraphMaker, op: Op) -> str:
    """CumSum, in a type that it has."""
    dtype = op.result.dtype
    wide = IN_SUM.get(dtype, dtype)
    wider = g.cast(g.value(op.operands[0]), dtype, wide)
    return g.cast(g.node("CumSum", wider, g.number(DType.I64, op.attrs["axis"])), wide, dtype)
