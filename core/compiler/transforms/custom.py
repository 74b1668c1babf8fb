"""Functions with a reverse rule of their own: the operation `custom_vjp`.

    custom_vjp(args...)     primal(args...)           -> results
                            forward(args...)          -> results, residuals
                            reverse(residuals, cts)   -> cotangents of the float arguments

Reverse mode puts `forward` in the operation's place and `reverse` where the cotangents flow back.
Where nothing is differentiated any more, `expand` puts `primal` there: no back end needs to know
the operation. There is no forward rule, as the reverse one need not be the transpose of anything.
"""

from __future__ import annotations

from ..ir import Block, Builder, Function, Op, Value, Values, replaced

NAME = "custom_vjp"


def expand(block: Block) -> Block:
    """The block with each custom function as its primal; the very same one when there is none."""
    if not any(op.name == NAME for op in block.walk()):
        return block

    def primal(b: Builder, op: Op, operands: list[Value]) -> Values:
        return b.inline(op.regions[0], operands)

    return replaced(block, lambda op: op.name == NAME, primal)


def expanded(function: Function) -> Function:
    """The function with custom derivatives written out; the same object without any."""
    body = expand(function.body)
    return function if body is function.body else function.with_body(body)
