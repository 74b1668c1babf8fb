"""Attention as products, sums and exponentials, where a back end has no kernel of its own for it.

%3, %4 = attention(%0, %1, %2)   =>   %5 = dot(%0, %1)     the scores, all of them
                                      %6 = reduce_max(%5)
                                      ...
                                      %3 = dot(%9, %2)
"""

from __future__ import annotations

from ...ir import Block, Builder, DType, Function, Op, Value
from ...primitives.attention import composed

NAMES = frozenset(["attention", "attention_grad"])


def decompose_attention(function: Function, kept: DType | None = None) -> Function:
    """The function with attention of other types than `kept` written as products."""
    if not any(_goes(op, kept) for op in function.body.walk()):
        return function
    return function.with_body(_composed(function.body, kept))


def _goes(op: Op, kept: DType | None) -> bool:
    return op.name in NAMES and op.operands[0].dtype is not kept


def _composed(block: Block, kept: DType | None) -> Block:
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in block.ops:
        if op.regions:
            regions = tuple(_composed(r, kept) for r in op.regions)
            op = Op(op.name, op.operands, op.results, op.attrs, regions, op.locs)
        if not _goes(op, kept):
            b.copy(op, mapping)
            continue
        with b.at(op.locs):
            made = composed(b, op, [mapping[v] for v in op.operands])
        mapping.update(zip(op.results, made, strict=True))
    return b.finish([mapping[r] for r in block.results])
