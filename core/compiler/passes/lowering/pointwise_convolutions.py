"""Convolutions of single pixels as products of matrices: the same sums, and all that products have.

%2: f32[8, 24, 24, 48] = conv(%0: f32[8, 24, 24, 8], %1: f32[1, 1, 8, 48])
    =>
%3: f32[4608, 8] = reshape(%0)      %4: f32[8, 48] = reshape(%1)
%5: f32[4608, 48] = dot(%3, %4)     %2: f32[8, 24, 24, 48] = reshape(%5)
"""

from __future__ import annotations

from ...ir import Block, Builder, Function, Op, Value

#: Which axes of both matrices, a row for each pixel and one for each channel, are summed over.
_SUMMED = {
    "conv": ((1,), (0,)),
    "conv_input_grad": ((1,), (1,)),
    "conv_weight_grad": ((0,), (0,)),
}


def pointwise_convolutions_to_products(function: Function) -> Function:
    """The function without convolutions of single pixels; the same one where there are none."""
    if not any(_is_pointwise(op) for op in function.body.walk()):
        return function
    return function.with_body(_products(function.body))


def _products(block: Block) -> Block:
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in block.ops:
        if op.regions:
            regions = tuple(_products(r) for r in op.regions)
            op = Op(op.name, op.operands, op.results, op.attrs, regions, op.locs)
        if not _is_pointwise(op):
            b.copy(op, mapping)
            continue
        with b.at(op.locs):
            sides = []
            for v in op.operands:
                matrix = (v.tensor.size // v.shape[-1], v.shape[-1])
                sides.append(b("reshape", mapping[v], shape=matrix))
            contract_a, contract_b = _SUMMED[op.name]
            attrs = {
                "contract_a": contract_a,
                "contract_b": contract_b,
                "batch_a": (),
                "batch_b": (),
            }
            made = b("dot", *sides, **attrs)
            mapping[op.result] = b("reshape", made, shape=op.result.shape)
    return b.finish([mapping[r] for r in block.results])


def _is_pointwise(op: Op) -> bool:
    if op.name not in _SUMMED:
        return False
    kernel = op.result if op.name == "conv_weight_grad" else op.operands[1]
    whole = all(v.tensor.size for v in (*op.operands, op.result))
    steps, edges = op.attrs["strides"], op.attrs["padding"]
    plain = all(s == 1 for s in steps) and not any(e for pair in edges for e in pair)
    return whole and plain and kernel.shape[:2] == (1, 1)
