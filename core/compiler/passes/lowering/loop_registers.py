"""A number that a loop changes at one place of an array is carried as a number.

    for %0: f64[8,8] {                        %1 = take(%0, place)
      %2 = take(%0, place)                    for %1: f64[] {
      %3 = add(%2, ...)                         %3 = add(%1, ...)
      %4 = dynamic_update(%0, %3, i, j)  =>     return %3
      return %4                               }
    }                                         %4 = dynamic_update(%0, %3, i, j)

Sums in place (`c[i, j] += a[i, k] * b[k, j]`) are then kept in registers. Only where the loop reads
and changes the array at this place alone, and the place is known to lie in the array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...ir import Block, Builder, DType, Function, Op, TensorType, Value, unshared
from ..condition_facts import Interval
from ..value_ranges import Form, are_inside, flat_form, forms, intervals, number_at


@dataclass(frozen=True, slots=True)
class _Place:
    """A carry's one changed place by the loop's constants, the reads of it, and the update."""

    carry: int
    starts: tuple[Value, ...]
    reads: tuple[Op, ...]
    update: Op


def promote_elements_to_scalars(function: Function) -> Function:
    """The function with such numbers; the same one where there are none."""
    if not any(op.name == "for" and _updates(op) for op in function.body.walk()):
        return function
    body = unshared(function.body)
    ranges = intervals(body)
    after = _Registers(ranges, forms(body, ranges)).written(body)
    return function if after is body else function.with_body(after)


def _updates(op: Op) -> bool:
    return any(each.name == "dynamic_update" for each in op.regions[0].ops)


class _Registers:
    def __init__(self, ranges: Mapping[Value, Interval], places: Mapping[Value, Form]) -> None:
        self.ranges = ranges
        self.forms = places

    def written(self, block: Block) -> Block:
        b = Builder(block.params)
        mapping: dict[Value, Value] = {p: p for p in block.params}
        changed = False
        for op in block.ops:
            before, op = op, op.with_regions(map(self.written, op.regions))
            changed |= op is not before
            found = self._places(op) if op.name == "for" else []
            if not found:
                b.copy(op, mapping)
                continue
            changed = True
            with b.at(op.locs):
                self._carry(b, op, found, mapping)
        return b.finish([mapping[r] for r in block.results]) if changed else block

    # -- what is found

    def _places(self, op: Op) -> list[_Place]:
        body, first = op.regions[0], 1 + int(op.attrs["consts"])
        made = {r: each for each in body.ops for r in each.results}
        users: dict[Value, list[Op]] = {}
        for each in body.ops:
            for v in each.operands:
                users.setdefault(v, []).append(each)
        found = []
        for k, (param, result) in enumerate(zip(body.params[first:], body.results, strict=True)):
            update = made.get(result)
            if update is None or update.name != "dynamic_update" or update.operands[0] is not param:
                continue
            starts = update.operands[2:]
            fixed = all(v in body.params[1:first] or self._is_constant(v, made) for v in starts)
            single = update.operands[1].tensor.size == 1 and result not in users
            if not (fixed and single and are_inside(param, starts, self.ranges)):
                continue
            if body.results.count(result) > 1:
                continue
            reads = self._reads(param, update, users)
            if reads is not None:
                found.append(_Place(k, tuple(starts), tuple(reads), update))
        return found

    def _is_constant(self, value: Value, made: Mapping[Value, Op]) -> bool:
        return value in made and made[value].name == "constant"

    def _reads(self, param: Value, update: Op, users: Mapping[Value, list[Op]]) -> list[Op] | None:
        """The operations that read the number; None where anything reads the array otherwise."""
        place = flat_form(param, update.operands[2:], self.forms)
        if place is None:
            return None
        reads: list[Op] = []
        for user in users.get(param, ()):
            if user is update and update.operands.count(param) == 1:
                continue
            rows = [user] if user.name == "take" else users.get(user.results[0], [])
            if user.name not in ("take", "reshape") or not rows:
                return None
            for row in rows:
                whole = row.operands[0].tensor.size == param.tensor.size
                if row.name != "take" or row.operands[0].tensor.rank != 1 or not whole:
                    return None
                if row.result.shape != () or self.forms.get(row.operands[1]) != place:
                    return None
                reads.append(row)
        return reads

    # -- what is written

    def _carry(self, b: Builder, op: Op, found: list[_Place], mapping: dict[Value, Value]) -> None:
        """The loop with the numbers in place of the arrays."""
        body, count = op.regions[0], int(op.attrs["consts"])
        places = {place.carry: place for place in found}
        arrays = {k: mapping[op.operands[2 + count + k]] for k in places}
        outer = dict(zip(body.params[1 : 1 + count], op.operands[2 : 2 + count], strict=True))
        starts = {
            k: [
                mapping[outer[v]] if v in outer else b.constant(self.ranges[v][0], DType.I64)
                for v in place.starts
            ]
            for k, place in places.items()
        }
        operands = [mapping[v] for v in op.operands]
        for k in places:
            operands[2 + count + k] = number_at(b, arrays[k], starts[k])
        inner = self._body(body, 1 + count, places)
        made = b.emit("for", operands, op.attrs, (inner,))
        for k, (result, value) in enumerate(zip(op.results, made, strict=True)):
            if k in places:
                part = b("reshape", value, shape=(1,) * arrays[k].tensor.rank)
                value = b("dynamic_update", arrays[k], part, *starts[k])
            mapping[result] = value

    def _body(self, body: Block, first: int, places: Mapping[int, _Place]) -> Block:
        params = list(body.params)
        mapping: dict[Value, Value] = {p: p for p in params}
        results = list(body.results)
        dropped: set[Op] = set()
        for k, place in places.items():
            array = params[first + k]
            number = Value(TensorType(array.dtype))
            params[first + k] = number
            del mapping[array]
            mapping.update((read.result, number) for read in place.reads)
            dropped |= {place.update, *place.reads}
        inner = Builder(params)
        mapping.update((p, p) for p in params)
        for op in body.ops:
            if op in dropped or any(v not in mapping for v in op.operands):
                continue  # The rest is a reshape of the array, that only the reads read.
            inner.copy(op, mapping)
        for k, place in places.items():
            results[k] = inner("reshape", mapping[place.update.operands[1]], shape=())
        ends = [v if k in places else mapping[v] for k, v in enumerate(results)]
        return inner.finish(ends)
