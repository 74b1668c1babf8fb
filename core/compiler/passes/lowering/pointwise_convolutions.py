"""Convolutions of single pixels as products of matrices: the same sums, and all that products have.

%2: f32[8, 24, 24, 48] = conv(%0: f32[8, 24, 24, 8], %1: f32[1, 1, 8, 48])
    =>
%3: f32[4608, 8] = reshape(%0)      %4: f32[8, 48] = reshape(%1)
%5: f32[4608, 48] = dot(%3, %4)     %2: f32[8, 24, 24, 48] = reshape(%5)
"""

from __future__ import annotations

from ...ir import Builder, Function, Op, Value, Values, replaced_in

#: Which axes of both matrices, a row for each pixel and one for each channel, are summed over.
_SUMMED = {
    "conv": ((1,), (0,)),
    "conv_input_grad": ((1,), (1,)),
    "conv_weight_grad": ((0,), (0,)),
}


def pointwise_convolutions_to_products(function: Function) -> Function:
    """The function without convolutions of single pixels; the same one where there are none."""
    return replaced_in(function, _is_pointwise, _product)


def _product(b: Builder, op: Op, operands: list[Value]) -> Values:
    shapes = [(v.tensor.size // v.shape[-1], v.shape[-1]) for v in operands]
    a, k = (b("reshape", v, shape=shape) for v, shape in zip(operands, shapes, strict=True))
    of_a, of_k = _SUMMED[op.name]
    made = b("dot", a, k, contract_a=of_a, contract_b=of_k, batch_a=(), batch_b=())
    return (b("reshape", made, shape=op.result.shape),)


def _is_pointwise(op: Op) -> bool:
    if op.name not in _SUMMED:
        return False
    kernel = op.result if op.name == "conv_weight_grad" else op.operands[1]
    whole = all(v.tensor.size for v in (*op.operands, op.result))
    steps, edges = op.attrs["strides"], op.attrs["padding"]
    plain = all(s == 1 for s in steps) and not any(e for pair in edges for e in pair)
    return whole and plain and kernel.shape[:2] == (1, 1)
