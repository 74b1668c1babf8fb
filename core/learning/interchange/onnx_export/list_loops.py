"""Loops of few trips are written out where they carry lists that ONNX has no form for.

    for(0, 3, ..., list<list<f32[4]>>)    =>    the body three times; each list_pop meets the
                                                list_push that it undoes, and `simplify` drops both

Derivatives of derivatives of loops save lists of lists. ONNX's sequences hold tensors alone.
"""

from __future__ import annotations

from ....compiler.ir import Block, Builder, DType, Function, ListType, Value, count_ops
from ....compiler.passes.lowering.trip_counts import Trips, integers, trips_of
from .rows_control import list_refusal

#: Operations that a program may have when its loops are written out.
OPERATIONS_MAX = 20_000


def unroll_nested_lists(function: Function) -> Function:
    """The function without loops that carry lists, if it has lists without a form in ONNX.

    Loops of unknown length stay, and so does a program that would become too long.
    """
    values = (v for op in function.body.walk() for v in (*op.operands, *op.results))
    if not any(list_refusal(v.type) for v in values):
        return function
    if _length(function.body) > OPERATIONS_MAX:
        return function
    return function.with_body(_unrolled(function.body))


def _length(block: Block) -> int:
    """Operations of the block once its loops over lists are written out."""
    known, total = integers(block.ops), 0
    for op in block.ops:
        trips = trips_of(op, known)
        if trips is not None and any(isinstance(r.type, ListType) for r in op.results):
            total += trips.count * _length(op.regions[0])
        else:
            total += 1 + sum(count_ops(region) for region in op.regions)
    return total


def _unrolled(block: Block) -> Block:
    known = integers(block.ops)
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in block.ops:
        op = op.with_regions([_unrolled(region) for region in op.regions])
        trips = trips_of(op, known)
        if trips is None or not any(isinstance(r.type, ListType) for r in op.results):
            b.copy(op, mapping)
            continue
        operands = [mapping[v] for v in op.operands[2:]]
        with b.at(op.locs):
            made = _written_out(b, op.regions[0], trips, operands, op.attrs["consts"])
        mapping.update(zip(op.results, made, strict=True))
    return b.finish([mapping[r] for r in block.results])


def _written_out(
    b: Builder, body: Block, trips: Trips, operands: list[Value], count: int
) -> list[Value]:
    """The body once a trip; what the carries are at the end."""
    consts, carries = operands[:count], operands[count:]
    for index in range(trips.lo, trips.lo + trips.count):
        carries = [*b.inline(body, [b.constant(index, DType.I64), *consts, *carries])]
    return carries
