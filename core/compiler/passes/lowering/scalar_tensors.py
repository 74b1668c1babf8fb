"""Arithmetic on tensors of one element becomes arithmetic on numbers, which need no memory.

    %2: f64[1,1] = add(%0, %1)     =>     %2 = reshape(add(reshape(%0), reshape(%1)))

Unrolled loops over the elements of small matrices are full of it.
"""

from __future__ import annotations

from ...ir import Block, Builder, Function, Op, TensorType, Value
from ..schedule.block_steps import is_elementwise


def scalarize(function: Function) -> Function:
    """The function with such arithmetic on numbers; the same one where there is none."""
    if not any(_is_one(op) for op in function.body.walk()):
        return function
    return function.with_body(_written(function.body))


def _is_one(op: Op) -> bool:
    if op.name == "constant":
        return op.result.shape != () and op.result.tensor.size == 1
    if not op.operands or not is_elementwise(op):
        return False
    types = [v.type for v in (*op.operands, *op.results)]
    return all(isinstance(t, TensorType) and t.shape and t.size == 1 for t in types)


def _written(block: Block) -> Block:
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in block.ops:
        if op.regions:
            regions = tuple(_written(r) for r in op.regions)
            op = Op(op.name, op.operands, op.results, op.attrs, regions, op.locs)
        if not _is_one(op):
            b.copy(op, mapping)
            continue
        with b.at(op.locs):
            if op.name == "constant":
                number = b.constant(op.attrs["value"].reshape(()))
                mapping[op.result] = b("reshape", number, shape=op.result.shape)
                continue
            numbers = [b("reshape", mapping[v], shape=()) for v in op.operands]
            made = b.emit(op.name, numbers, op.attrs)
            for result, number in zip(op.results, made, strict=True):
                mapping[result] = b("reshape", number, shape=result.shape)
    return b.finish([mapping[r] for r in block.results])
