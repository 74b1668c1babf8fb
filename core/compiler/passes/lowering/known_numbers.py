"""Numbers and truths that can only have one value become constants.

    for(0, 8) i {                      for(0, 8) i {
      %1 = lt(i, 0)                      %3 = add(i, 1)
      %2 = or(%1, le(9, i))       =>     ...
      %3 = add(i, 1)                   }
      fault = select(%2, 4, fault)
    }

Checks of indices that are in range go, by the intervals of `value_ranges`, and with them the fault
code that loops carry. Only programs with loops or branches have such numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir import Block, Builder, Function, Op, TensorType, Value, unshared
from ..condition_facts import Interval
from ..simplify import simplify
from ..value_ranges import intervals, known

#: A check that goes may let a loop carry less, and then more is known.
ROUNDS_MAX = 3


def fold_known_ranges(function: Function) -> Function:
    """The function with such constants, simplified; the same one where there are none."""
    for _ in range(ROUNDS_MAX):
        if not any(_compares(op) for op in function.body.walk() if op.regions):
            break
        body = unshared(function.body)
        after = _written(body, intervals(body))
        if after is body:
            break
        function = function.with_body(simplify(after))
    return function


def _compares(op: Op) -> bool:
    ops = (each for region in op.regions for each in region.ops)
    return any(_is_number(each) and each.operands[0].dtype.is_int for each in ops)


def _is_number(op: Op) -> bool:
    return op.name in ("lt", "le", "eq", "ne") and op.result.shape == ()


def _written(block: Block, ranges: Mapping[Value, Interval]) -> Block:
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    changed = False
    for op in block.ops:
        if op.regions:
            before, op = op, op.with_regions(_written(r, ranges) for r in op.regions)
            changed |= op is not before
        elif op.name != "constant" and (number := _known(op, ranges)) is not None:
            with b.at(op.locs):
                mapping[op.result] = b.constant(number, op.result.dtype)
            changed = True
            continue
        b.copy(op, mapping)
    return b.finish([mapping[r] for r in block.results]) if changed else block


def _known(op: Op, ranges: Mapping[Value, Interval]) -> int | None:
    result = op.results[0]
    if len(op.results) > 1 or not isinstance(result.type, TensorType) or result.shape:
        return None
    return known(ranges, result)
