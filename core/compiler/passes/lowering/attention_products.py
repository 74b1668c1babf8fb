"""Attention as products, sums and exponentials, where a back end has no kernel of its own for it.

%3, %4 = attention(%0, %1, %2)   =>   %5 = dot(%0, %1)     the scores, all of them
                                      %6 = reduce_max(%5)
                                      ...
                                      %3 = dot(%9, %2)
"""

from __future__ import annotations

from ...ir import DType, Function, Op, replaced_in
from ...primitives.attention import composed

NAMES = frozenset(["attention", "attention_grad"])


def decompose_attention(function: Function, kept: DType | None = None) -> Function:
    """The function with attention of other types than `kept` written as products."""

    def goes(op: Op) -> bool:
        return op.name in NAMES and op.operands[0].dtype is not kept

    return replaced_in(function, goes, composed)
