"""Sums of products without terms as what they are, zeros: no kernel is given a tensor of nothing.

%2: f32[1, 3, 3, 8] = conv(%0: f32[1, 5, 5, 0], %1: f32[3, 3, 0, 8])
    =>
%2: f32[1, 3, 3, 8] = broadcast(constant(0))
"""

from __future__ import annotations

from ...ir import Block, Builder, Function, Op, Value

_PRODUCTS = frozenset(
    (
        "dot",
        "quantised_conv",
        *("conv", "conv_input_grad", "conv_weight_grad"),
        *("grouped_conv", "grouped_conv_input_grad", "grouped_conv_weight_grad"),
    )
)


def fold_empty_reductions(function: Function) -> Function:
    """The function with zeros for products and convolutions of an empty operand."""
    if not any(_is_empty(op) for op in function.body.walk()):
        return function
    return function.with_body(_written(function.body))


def _written(block: Block) -> Block:
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in block.ops:
        if op.regions:
            regions = tuple(_written(r) for r in op.regions)
            op = Op(op.name, op.operands, op.results, op.attrs, regions, op.locs)
        if not _is_empty(op):
            b.copy(op, mapping)
            continue
        with b.at(op.locs):
            mapping[op.result] = b.zeros(op.result.type)
    return b.finish([mapping[r] for r in block.results])


def _is_empty(op: Op) -> bool:
    return op.name in _PRODUCTS and any(v.tensor.size == 0 for v in op.operands)
