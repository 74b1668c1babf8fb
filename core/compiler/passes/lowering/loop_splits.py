"""A loop over an array's numbers is cut where it changes a number that it reads in each round.

    for(lo, hi, k, %0) j {             c = take(%0, row + k)
      %2 = take(%0, row + k)           %1 = for(lo, a, c, %0) j { ... c in place of %2 ... }
      %3 = ...                    =>   %2 = for(a, b, k, %1) j { ... as it was ... }
      dynamic_update(%0, %3, row, j)   d = take(%2, row + k)
    }                                  for(b, hi, d, %2) j { ... d in place of %2 ... }

where a = min(max(k, lo), hi) and b = min(a + 1, hi): `d[i, j] = min(d[i, j], d[i, k] + d[k, j])`.
Rounds before and after the k-th then read a number that they do not change, so it stays in a
register and a C compiler may compute several of them at once. Where the loop's bounds say that it
never comes by that place, nothing is cut and the number is read once. No operation changes, nor
their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...ir import Block, Builder, DType, Function, Op, Value, Values, unshared
from ..condition_facts import Interval
from ..value_ranges import Form, are_inside, flat_form, forms, interval_of, intervals

#: Rounds that a loop may have at least: three loops in place of one are worth it.
TRIPS_MIN = 16
#: Operations of a body, of which there will be three.
OPS_MAX = 60


@dataclass(frozen=True, slots=True)
class _Cut:
    """A carry that a loop reads and changes at one place in each trip."""

    carry: int
    reads: tuple[Op, ...]
    """The operations that read the carry at that place."""
    flat: Value
    """The operand that gives the place."""
    round: Form | None
    """The trip in which the loop changes it, by the loop's constants; None: it never does."""


def split_loops(function: Function) -> Function:
    """The function with such loops cut; the same one where there are none."""
    if not any(op.name == "for" and _is_inner(op) for op in function.body.walk()):
        return function
    body = unshared(function.body)
    ranges = intervals(body)
    after = _Cutter(ranges, forms(body, ranges)).written(body)
    return function if after is body else function.with_body(after)


def _is_inner(op: Op) -> bool:
    ops = op.regions[0].ops
    if len(ops) > OPS_MAX or any(each.regions for each in ops):
        return False
    return any(each.name == "dynamic_update" for each in ops)


class _Cutter:
    def __init__(self, ranges: Mapping[Value, Interval], places: Mapping[Value, Form]) -> None:
        self.ranges = ranges
        self.forms = places
        #: Of the block that is written, by the number that another block may know by another name.
        self.scope: dict[Value, Value] = {}

    def written(self, block: Block) -> Block:
        b = Builder(block.params)
        mapping: dict[Value, Value] = {p: p for p in block.params}
        changed = False
        self.scope = {}
        self._enter(block.params)
        for op in block.ops:
            found = self._cut(op) if op.name == "for" and _is_inner(op) else None
            if found is not None:
                changed = True
                with b.at(op.locs):
                    self._write(b, op, found, mapping)
                continue
            if op.regions:
                outer = self.scope
                before, op = op, op.with_regions(map(self.written, op.regions))
                self.scope = outer
                changed |= op is not before
            b.copy(op, mapping)
            self._enter(op.results)
        return b.finish([mapping[r] for r in block.results]) if changed else block

    def _enter(self, values: Values) -> None:
        """The block's numbers by what they are: indices of loops around it are given to it."""
        for value in values:
            form = self.forms.get(value)
            if form is not None and list(form.terms.values()) == [1] and not form.constant:
                self.scope.setdefault(next(iter(form.terms)), value)

    # -- what is found

    def _cut(self, op: Op) -> _Cut | None:
        body, first = op.regions[0], 1 + int(op.attrs["consts"])
        low, high = (self.ranges.get(v) for v in op.operands[:2])
        if low is None or high is None or high[1] - low[0] < TRIPS_MIN:
            return None
        if op.operands[0].dtype is not DType.I64:
            return None
        made = {r: each for each in body.ops for r in each.results}
        users: dict[Value, list[Op]] = {}
        for each in body.ops:
            for v in each.operands:
                users.setdefault(v, []).append(each)
        for k, (param, result) in enumerate(zip(body.params[first:], body.results, strict=True)):
            update = made.get(result)
            if update is None or update.name != "dynamic_update" or update.operands[0] is not param:
                continue
            if result in users or body.results.count(result) > 1:
                continue
            if update.operands[1].tensor.size == 1:
                found = self._of_carry(op, k, update, users)
                if found is not None:
                    return found
        return None

    def _of_carry(self, op: Op, k: int, update: Op, users: Mapping[Value, list[Op]]) -> _Cut | None:
        body, first = op.regions[0], 1 + int(op.attrs["consts"])
        param, index = body.params[first + k], body.params[0]
        given = set(body.params[1:first])
        place = flat_form(param, update.operands[2:], self.forms)
        if place is None or index not in place.terms:
            return None
        if not are_inside(param, update.operands[2:], self.ranges):
            return None
        inside = dict(zip(body.params[1:first], op.operands[2 : 1 + first], strict=True))
        for row in _rows(param, users):
            flat = row.operands[1]
            at, interval = self.forms.get(flat), self.ranges.get(flat)
            whole = row.operands[0].tensor.rank == 1 and row.result.shape == ()
            if at is None or interval is None or not whole or flat not in given:
                continue
            if index in at.terms or interval[0] < 0 or interval[1] >= param.tensor.size:
                continue
            is_known, round_ = self._met(op, place.plus(at, -1), index)
            if not is_known:
                continue
            reads = [r for r in _rows(param, users) if self.forms.get(r.operands[1]) == at]
            if round_ is not None and not all(v in self.scope for v in round_.terms):
                continue
            return _Cut(k, tuple(reads), inside[flat], round_)
        return None

    def _met(self, op: Op, apart: Form, index: Value) -> tuple[bool, Form | None]:
        """Whether the round where two places meet is known, and it; None: no round."""
        factor = apart.terms[index]
        rest = apart.plus(Form({index: 1}, 0), -factor)
        if rest.constant % factor or any(c % factor for c in rest.terms.values()):
            return False, None
        round_ = Form({v: -c // factor for v, c in rest.terms.items()}, -rest.constant // factor)
        low, high = (self.forms.get(v) for v in op.operands[:2])
        before = None if low is None else round_.plus(low, -1)
        after = None if high is None else round_.plus(high, -1)
        if before is not None and not before.terms and before.constant < 0:
            return True, None
        if after is not None and not after.terms and after.constant >= 0:
            return True, None
        return True, round_

    # -- what is written

    def _write(self, b: Builder, op: Op, cut: _Cut, mapping: dict[Value, Value]) -> None:
        low, high, *rest = [mapping[v] for v in op.operands]
        count = int(op.attrs["consts"])
        constants, carried = rest[:count], rest[count:]
        flat = mapping[cut.flat]
        if cut.round is None:
            carried = self._part(b, op, cut, (low, high), constants, carried, flat)
        else:
            first, second = self._bounds(b, op, cut.round, mapping)
            carried = self._part(b, op, cut, (low, first), constants, carried, flat)
            body = _copied(op.regions[0])
            operands = [first, second, *constants, *carried]
            carried = list(b.emit("for", operands, op.attrs, (body,)))
            carried = self._part(b, op, cut, (second, high), constants, carried, flat)
        mapping.update(zip(op.results, carried, strict=True))

    def _part(
        self,
        b: Builder,
        op: Op,
        cut: _Cut,
        bounds: tuple[Value, Value],
        constants: Values,
        carried: Values,
        flat: Value,
    ) -> list[Value]:
        """The rounds between two bounds, with the number as one more constant of the loop."""
        array = carried[cut.carry]
        row = b("reshape", array, shape=(array.tensor.size,)) if array.tensor.rank > 1 else array
        number = b("take", row, flat, axis=0)
        body, count = op.regions[0], int(op.attrs["consts"])
        first = 1 + count
        known = Value(number.type)
        params = [Value(p.type) for p in body.params]
        inner = Builder([*params[:first], known, *params[first:]])
        mapping = dict(zip(body.params, params, strict=True))
        mapping.update((read.result, known) for read in cut.reads)
        for each in body.ops:
            if each not in cut.reads:
                inner.copy(each, mapping)
        region = inner.finish([mapping[r] for r in body.results])
        operands = [*bounds, *constants, number, *carried]
        return list(b.emit("for", operands, {**op.attrs, "consts": count + 1}, (region,)))

    def _bounds(
        self, b: Builder, op: Op, round_: Form, mapping: Mapping[Value, Value]
    ) -> tuple[Value, Value]:
        """Where the round begins and ends, within the loop's bounds."""
        low, high = (mapping[v] for v in op.operands[:2])
        one, first = b.constant(1, DType.I64), self._number(b, round_, mapping)
        (_, least), (most, _) = (self.ranges[v] for v in op.operands[:2])
        found = interval_of(round_, self.ranges)
        if found is None or found[0] < least:
            first = b("max", first, low)
        if found is not None and found[1] < most:
            return first, b("add", first, one)
        first = b("min", first, high)
        return first, b("min", b("add", first, one), high)

    def _number(self, b: Builder, form: Form, mapping: Mapping[Value, Value]) -> Value:
        total = b.constant(form.constant, DType.I64) if form.constant or not form.terms else None
        for value, factor in form.terms.items():
            term = mapping[self.scope[value]]
            if factor != 1:
                term = b("mul", term, b.constant(factor, DType.I64))
            total = term if total is None else b("add", total, term)
        assert total is not None, "a form without terms is a constant"
        return total


def _rows(param: Value, users: Mapping[Value, list[Op]]) -> list[Op]:
    """The reads of an array's single elements, by their places in row-major order."""
    rows = []
    for user in users.get(param, ()):
        if user.name == "take" and user.operands[0] is param:
            rows.append(user)
        elif user.name == "reshape" and user.result.tensor.rank == 1:
            rows += [each for each in users.get(user.result, ()) if each.name == "take"]
    return rows


def _copied(block: Block) -> Block:
    params = [Value(p.type) for p in block.params]
    b = Builder(params)
    mapping: dict[Value, Value] = dict(zip(block.params, params, strict=True))
    for op in block.ops:
        b.copy(op, mapping)
    return b.finish([mapping[r] for r in block.results])
