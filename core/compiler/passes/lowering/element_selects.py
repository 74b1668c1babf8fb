"""A branch that changes one number of an array becomes a choice of the number.

    %4 = if(%0, %1, %2, %3)                       %5 = take(%1, %3)
      then(%1, %2, %3) {                          %6 = select(%0, %2, %5)
        return dynamic_update(%1, %2, %3)    =>   %4 = dynamic_update(%1, %6, %3)
      }
      else(%1, %2, %3) { return %1 }

The number that is there is written again where the array is to stay as it was. So a loop over many
numbers has no jump that a processor must guess. Only where the branches compute little, and where
the places are known to lie in the array: both are computed now.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir import Block, Builder, Function, Op, TensorType, Value, Values, unshared
from ...primitives.control import block_cost
from ..condition_facts import Interval
from ..schedule.block_steps import is_elementwise
from ..value_ranges import are_inside, intervals, number_at

#: What a branch may cost: some ten additions.
COST_MAX = 12


def convert_branches_to_selects(function: Function) -> Function:
    """The function with choices for such branches; the same one where there are none."""
    if not any(_may_choose(op) for op in function.body.walk()):
        return function
    body = unshared(function.body)
    return function.with_body(_written(body, intervals(body, tested=False)))


def _may_choose(op: Op) -> bool:
    if op.name != "if" or any(block_cost(region) > COST_MAX for region in op.regions):
        return False
    inner = [each for region in op.regions for each in region.ops]
    return all(map(_is_small, inner)) and any(each.name == "dynamic_update" for each in inner)


def _is_small(op: Op) -> bool:
    if op.regions or not isinstance(op.results[0].type, TensorType):
        return False
    if op.name == "dynamic_update":
        return op.operands[1].tensor.size == 1
    if op.name == "reshape":
        return True
    numbers = all(v.tensor.size == 1 for v in op.results)
    return numbers and (op.name in ("constant", "take") or is_elementwise(op))


def _written(block: Block, ranges: Mapping[Value, Interval]) -> Block:
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in block.ops:
        if _may_choose(op):
            begun = len(b.ops)
            with b.at(op.locs):
                results = _chosen(b, op, [mapping[v] for v in op.operands], ranges)
            if results is not None:
                mapping.update(zip(op.results, results, strict=True))
                continue
            del b.ops[begun:]
        op = op.with_regions(_written(r, ranges) for r in op.regions)
        b.copy(op, mapping)
    return b.finish([mapping[r] for r in block.results])


class _Side:
    """A branch computed in advance. updates: results that change a number."""

    def __init__(self, b: Builder, region: Block, args: Values) -> None:
        self.mapping = dict(zip(region.params, args, strict=True))
        self.updates: dict[Value, tuple[Value, Value, tuple[Value, ...]]] = {}
        self.starts: dict[Value, tuple[Value, ...]] = {}
        for op in region.ops:
            if op.name == "dynamic_update":
                x, number, *starts = op.operands
                if x in self.mapping and number in self.mapping:
                    flat = b("reshape", self.mapping[number], shape=())
                    moved = tuple(self.mapping[s] for s in starts)
                    self.updates[op.result] = self.mapping[x], flat, moved
                    self.starts[op.result] = tuple(starts)
            elif all(v in self.mapping for v in op.operands):
                b.copy(op, self.mapping)
        self.results = region.results


def _chosen(
    b: Builder, op: Op, operands: Values, ranges: Mapping[Value, Interval]
) -> list[Value] | None:
    """What the results become; None where a choice does not say it."""
    pred, *args = operands
    then, otherwise = (_Side(b, region, args) for region in op.regions)
    results = []
    for yes, no in zip(then.results, otherwise.results, strict=True):
        if yes in then.updates or no in otherwise.updates:
            made = _update(b, pred, (then, yes), (otherwise, no), ranges)
        else:
            made = _number(b, pred, then.mapping.get(yes), otherwise.mapping.get(no))
        if made is None:
            return None
        results.append(made)
    return results


def _number(b: Builder, pred: Value, yes: Value | None, no: Value | None) -> Value | None:
    if yes is None or no is None or yes is no:
        return yes if yes is no else None
    return b("select", pred, yes, no) if yes.type == no.type and _is_number(yes) else None


def _is_number(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape == ()


def _update(
    b: Builder,
    pred: Value,
    yes: tuple[_Side, Value],
    no: tuple[_Side, Value],
    ranges: Mapping[Value, Interval],
) -> Value | None:
    """An array of which at least one branch changes one number."""
    found = [side.updates.get(result) for side, result in (yes, no)]
    first = found[0] or found[1]
    assert first is not None, "one of them changes"
    array, _, starts = first
    numbers: list[Value | None] = []
    for update, (side, result) in zip(found, (yes, no), strict=True):
        if update is None:
            if side.mapping.get(result) is not array:
                return None
            numbers.append(None)
        elif (
            update[0] is not array
            or update[2] != starts
            or not are_inside(array, side.starts[result], ranges)
        ):
            return None
        else:
            numbers.append(update[1])
    old = number_at(b, array, starts)  # Nothing reads it where both of them change.
    new = b("select", pred, *(old if n is None else n for n in numbers))
    part = b("reshape", new, shape=(1,) * array.tensor.rank)
    return b("dynamic_update", array, part, *starts)
