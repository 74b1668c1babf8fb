"""Sums of products without terms as what they are, zeros: no kernel is given a tensor of nothing.

%2: f32[1, 3, 3, 8] = conv(%0: f32[1, 5, 5, 0], %1: f32[3, 3, 0, 8])
    =>
%2: f32[1, 3, 3, 8] = broadcast(constant(0))
"""

from __future__ import annotations

from ...ir import Function, Op, replaced_in

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
    return replaced_in(function, _is_empty, lambda b, op, _: (b.zeros(op.result.type),))


def _is_empty(op: Op) -> bool:
    return op.name in _PRODUCTS and any(v.tensor.size == 0 for v in op.operands)
