"""Simplification: the block that computes the same with fewer operations.

Rounds of one forward rewriting pass (`rewrite`, with the rules of `arithmetic`, `layout` and
`regions`) and one backward pass that drops what is not needed (`dce`), until nothing changes. Then
products are computed in part where only a part is read (`dead_elements`), and the rounds go on. A
region that came through a round unchanged is not looked at again: it is closed, so nothing around
it can give it more to do.

    (%0: f32[3]) {                                   (%0: f32[3]) {
      %1: f32[] = constant() {value=f32[](1.0)}        return %0
      %2: f32[3] = broadcast(%1) {shape=[3], ...}    }
      %3: f32[3] = mul(%0, %2)                  =>
      %4: f32[3] = neg(%3)
      %5: f32[3] = neg(%4)
      return %5
    }

What it computes is kept exactly for integers, and for floating point up to the sign of a zero, to
how a sum of equal numbers rounds (it becomes a product), to a sum over several axes being done in
one step, to how a product of fewer rows rounds, and to where the rows of a sparse gradient are
scaled and added up: what is put into zeros is scaled before it is put, and then put into what it is
to be added to. (Rows that nothing is put into stay as they are even where the scale is infinite.)
"""

from __future__ import annotations

from ..ir import Block
from . import arithmetic_rules, layout_rules, region_rules
from .dce import dce
from .dead_elements import drop_dead_elements
from .rewrite import Rewriter, Shared

_RULES = {**arithmetic_rules.RULES, **layout_rules.RULES}
_MULTI_RULES = {**layout_rules.MULTI_RULES, **region_rules.MULTI_RULES}
#: Each round undoes at least one level of what a rule could only see after the last; programs take
#: two to four.
ROUNDS_MAX = 16


def simplify(block: Block) -> Block:
    """The simplified block: same parameters, same results.

    The very same block when nothing is to be done.

    >>> from delian.core.compiler.ir import Builder, DType, TensorType
    >>> b = Builder([TensorType(DType.F32, (3,))])
    >>> y = b("neg", b("neg", b("mul", b.params[0], b.full(b.params[0].tensor, 1))))
    >>> simplify(b.finish([y])).ops
    []
    """
    shared = Shared()
    block = dce(block)
    for _ in range(ROUNDS_MAX):
        after = dce(Rewriter(_RULES, _MULTI_RULES, shared).block(block))
        if after is block:
            after = dce(drop_dead_elements(block))
            if after is block:
                break
        block = after
    return block
