"""Products of all trips of a loop as one product, before the loop or after it.

A loop of known trips (`trip_counts`) that multiplies small matrices trip by trip goes through its
weights every time. Three rewritings make one large product of many small ones; S[i] is row i of a
tensor, and rows may be gone through from the end.

    before   p = S[i] @ w, S and w constants      P = S @ w before the loop, p = P[i]
    after    the trips' u = v @ w are only put    the v are put into V, and V @ w comes after
             into row i of a carry
    summed   carry + x^T @ y, a weight's          the x and y are put into X and Y, unless they are
             gradient                             rows of such already; X^T @ Y comes after

They are what makes a recurrent layer's weight gradient one product over batch and time. Two more
rewritings clear the way, both of carries that reverse mode makes:

    put_add at a row of its own in each trip, to zeros, is dynamic_update
    a carry whose rows are read and then cleared, each in its own trip, is a constant

A sum is then added up in another order than trip by trip, as in any larger product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...ir import Block, Builder, DType, Op, TensorType, Value
from .stacked_lists import put_row, row_of
from .trip_counts import Place, Places, Trips, integers, trips_of, uses_of

#: What is held for all trips at once is no larger than this.
GATHERED_BYTES_MAX = 64 * 2**20
#: A sum of products is left in its loop where what it would hold for later outweighs, by so much,
#: the sum that it would go through in each trip.
HELD_PER_SUM_MAX = 1


def batch_loop_products(block: Block, dtypes: frozenset[DType]) -> Block:
    """The block with such products, of these element types, outside of loops."""
    ops = [op.with_regions(batch_loop_products(r, dtypes) for r in op.regions) for op in block.ops]
    known = integers(ops)
    if not any(trips_of(op, known) for op in ops):
        same = all(a is b for a, b in zip(ops, block.ops, strict=True))
        return block if same else Block(block.params, ops, block.results)
    uses = uses_of(Block(block.params, ops, block.results))
    zeros = _zeros_among(ops)
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    changed = False
    for op in ops:
        trips = trips_of(op, known)
        if trips is not None and trips.count > 1:
            loop = _Loop(op, trips, zeros, {r for r in op.results if r in uses}, dtypes)
            if loop.plan():
                changed = True
                with b.at(op.locs):
                    loop.rebuild(b, mapping)
                continue
        b.copy(op, mapping)
    if not changed and all(a is b for a, b in zip(ops, block.ops, strict=True)):
        return block
    return b.finish([mapping[r] for r in block.results])


def _zeros_among(ops: Sequence[Op]) -> set[Value]:
    """Tensors of zeros."""
    zero: set[Value] = set()
    for op in ops:
        null = op.name == "constant" and not op.attrs["value"].shape and not op.attrs["value"]
        if null or (op.name == "broadcast" and op.operands[0] in zero):
            zero.add(op.results[0])
    return zero


@dataclass(frozen=True, slots=True)
class _Rows:
    """A value of the body as rows of a tensor: a constant, the carry, or one yet to be made."""

    place: Place
    param: Value | None = None
    stack: int | None = None


class _Loop:
    """One loop: what is to become of it, then its new form."""

    def __init__(
        self, op: Op, trips: Trips, zeros: set[Value], used: set[Value], dtypes: frozenset[DType]
    ) -> None:
        self.op = op
        self.trips = trips
        self.dtypes = dtypes
        self.body = body = op.regions[0]
        self.split = 2 + int(op.attrs["consts"])
        self.consts = body.params[1 : self.split - 1]
        self.carries = body.params[self.split - 1 :]
        self.outer = dict(zip(self.consts, op.operands[2:], strict=False))
        self.from_zero = [v in zeros for v in op.operands[self.split :]]
        self.unused = [r not in used for r in op.results]
        self.made = {r: o for o in body.ops for r in o.results}
        self.uses = uses_of(body)
        self.places = Places(body)
        self.zeros = _zeros_among(body.ops)
        # The plan: what changes.
        self.updates: dict[Op, int] = {}  # put_add that becomes dynamic_update, and its carry
        self.fixed: dict[int, Op] = {}  # carry that is a constant, and the update that clears it
        self.stacks: dict[int, tuple[Value, Place]] = {}  # carry: the value that it collects
        self.before: dict[Op, Place] = {}  # product to be done before the loop
        self.after: dict[int, Op] = {}  # carry that collects a product's results, and the product
        self.sums: dict[int, Op] = {}  # carry that sums up a product's results, and the product
        self.new: dict[Value, Place] = {}  # values to be collected

    # -- what to do

    def plan(self) -> bool:
        for c, carry in enumerate(self.carries):
            if isinstance(carry.type, TensorType):
                self._plan_rows(c, carry)
        for c in range(len(self.carries)):
            self._plan_sum(c)
        for op in self.body.ops:
            self._plan_before(op)
        return bool(self.updates or self.fixed or self.before or self.after or self.sums)

    def _once(self, value: Value) -> bool:
        return len(self.uses.get(value, ())) == 1

    def _plan_rows(self, c: int, carry: Value) -> None:
        """A carry of which each trip writes one row."""
        made = self.made.get(self.body.results[c])
        if made is None or made.operands[:1] != (carry,) or not self._once(made.results[0]):
            return
        found = self._written(made)
        if found is None:
            return
        value, place = found
        if made.name == "put_add":
            if not self.from_zero[c] or not self._once(carry):
                return
            self.updates[made] = c
        elif self._cleared(c, carry, made):
            self.fixed[c] = made
            return
        elif not self._once(carry):
            return
        if self.trips.count == carry.shape[0] and value.shape == carry.shape[1:]:
            self.stacks[c] = value, place
            product = self.made.get(value)
            if product is not None and self._is_free_row_product(product):
                self.after[c] = product

    def _written(self, op: Op) -> tuple[Value, Place] | None:
        """(the row, its place) that an update writes, in each trip another."""
        x = op.operands[0]
        if op.name == "put_add" and op.attrs["axis"] == 0 and op.operands[1].shape == ():
            row, at = op.operands[2], op.operands[1]
        elif op.name == "dynamic_update" and op.operands[1].shape == (1, *x.shape[1:]):
            row = self._unreshaped(op.operands[1], x.shape[1:])
            at, *rest = op.operands[2:]
            if any(self.places.of(r) != Place(0, 0) for r in rest):
                return None
        else:
            return None
        place = self.places.of(at)
        if place is None or not place.within(self.trips, x.shape[0]):
            return None
        return row, place

    def _unreshaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The value of this shape that another is a reshape of, or that other."""
        inner = self.made.get(value)
        if inner is not None and inner.name == "reshape" and inner.operands[0].shape == shape:
            return inner.operands[0]
        return value

    def _cleared(self, c: int, carry: Value, update: Op) -> bool:
        """Whether each trip reads one row of a carry and clears it for good."""
        if update.name != "dynamic_update" or update.operands[1] not in self.zeros:
            return False
        at = update.operands[2:]
        return self.unused[c] and all(
            user is update or (user is not None and self._reads_at(user, i, at))
            for user, i in self.uses[carry]
        )

    def _reads_at(self, op: Op, i: int, at: tuple[Value, ...]) -> bool:
        if op.name != "dynamic_slice" or i != 0 or op.attrs["sizes"][0] != 1:
            return False
        return self.places.of(op.operands[1]) == self.places.of(at[0])

    def _is_product(self, op: Op) -> bool:
        return (
            op.name == "dot"
            and op.result.dtype in self.dtypes
            and not op.attrs["batch_a"]
            and len(op.operands[0].shape) > len(op.attrs["contract_a"])
        )

    def _is_free_row_product(self, op: Op) -> bool:
        """v @ w with w a constant, its result used once, by what puts it into a row."""
        if not self._is_product(op) or op.operands[1] not in self.outer:
            return False
        only = self._once(op.result)
        reader = self.uses[op.result][0][0] if only else None
        if reader is not None and reader.name == "reshape":
            only = self._once(reader.result)
        return only and self._fits(op.operands[0].tensor)

    def _fits(self, type_: TensorType) -> bool:
        return type_.nbytes * self.trips.count <= GATHERED_BYTES_MAX

    def _rows_of(self, value: Value) -> _Rows | None:
        """Where the value of each trip is to be found, or will be."""
        found = self._read(value)
        if found is not None and found[0] in self.outer:
            return _Rows(found[1], param=found[0])
        for c, (row, place) in self.stacks.items():
            if row is value and c not in self.after:
                return _Rows(place, stack=c)
        return None

    def _read(self, value: Value) -> tuple[Value, Place] | None:
        """(tensor, place) where a value is one of its rows, in each trip another."""
        op = self.made.get(value)
        if op is not None and op.name == "take":
            x, at = op.operands
            if op.attrs["axis"] != 0 or at.shape != ():
                return None
            place = self.places.of(at)
        elif op is not None and op.name == "reshape":
            cut = self.made.get(op.operands[0])
            if cut is None or cut.name != "dynamic_slice":
                return None
            x, at, *rest = cut.operands
            whole = cut.attrs["sizes"] == (1, *x.shape[1:]) and value.shape == x.shape[1:]
            if not whole or any(self.places.of(r) != Place(0, 0) for r in rest):
                return None
            place = self.places.of(at)
        else:
            return None
        if place is None or not place.within(self.trips, x.shape[0]):
            return None
        return x, place

    def _plan_sum(self, c: int) -> None:
        """A carry to which each trip adds a product."""
        carry, result = self.carries[c], self.body.results[c]
        add = self.made.get(result)
        if add is None or add.name != "add" or carry not in add.operands:
            return
        product = self.made.get(add.operands[1 if add.operands[0] is carry else 0])
        if product is None or product.name != "dot" or product.attrs["batch_a"]:
            return
        if product.result.dtype not in self.dtypes:
            return
        if not (self._once(carry) and self._once(result) and self._once(product.result)):
            return
        lacking = [v for v in product.operands if self._rows_of(v) is None]
        held = sum(v.tensor.size for v in set(lacking) - set(self.new))
        if held > HELD_PER_SUM_MAX * product.result.tensor.size:
            return
        if any(v in self.outer or not self._fits(v.tensor) for v in lacking):
            return
        for v in lacking:
            self.new.setdefault(v, Place(1, -self.trips.lo))
        self.sums[c] = product

    def _plan_before(self, op: Op) -> None:
        """A product of a constant's row with a constant."""
        if not self._is_product(op) or op.operands[1] not in self.outer:
            return
        found = self._read(op.operands[0])
        if found is None or found[0] not in self.outer or not self._fits(op.result.tensor):
            return
        if found[0].shape[0] == self.trips.count and op not in self.after.values():
            self.before[op] = found[1]

    # -- the new form

    def rebuild(self, b: Builder, mapping: dict[Value, Value]) -> None:
        """Adds what comes before the loop, the loop, and what comes after."""
        for c, product in self.after.items():
            self.new.setdefault(product.operands[0], self.stacks[c][1])
        gone = {*self.fixed, *self.sums, *self.after}
        kept = [c for c in range(len(self.carries)) if c not in gone]
        consts = [mapping[v] for v in self.op.operands[2 : self.split]]
        fixed = [mapping[self.op.operands[self.split + c]] for c in self.fixed]
        early = [self._product(b, op, mapping) for op in self.before]
        rows = [b.zeros(TensorType(v.dtype, (self.trips.count, *v.shape))) for v in self.new]
        starts = [*rows, *(mapping[self.op.operands[self.split + c]] for c in kept)]
        given = [*consts, *fixed, *early, *starts]
        inner = Builder([TensorType(DType.I64), *(v.type for v in given)], self.op.locs)
        region = self._region(inner, kept)
        bounds = [mapping[v] for v in self.op.operands[:2]]
        fixed_count = {"consts": len(given) - len(starts)}
        made = b.emit("for", (*bounds, *given), fixed_count, (region,))
        collected = dict(zip(self.new, made, strict=False))
        given_by = dict(zip(kept, made[len(rows) :], strict=True))
        for c, result in enumerate(self.op.results):
            if c in given_by:
                mapping[result] = given_by[c]
        for c, product in self.after.items():
            left, right = product.operands
            gathered = self._late(b, collected[left], self.new[left], self.stacks[c][1])
            attrs = _with_rows(product)
            (value,) = b.emit("dot", (gathered, mapping[self.outer[right]]), attrs)
            mapping[self.op.results[c]] = value
        for c, product in self.sums.items():
            start = mapping[self.op.operands[self.split + c]]
            total = self._sum(b, product, collected, given_by, mapping)
            total = total if self.from_zero[c] else b("add", start, total)
            mapping[self.op.results[c]] = total

    def _product(self, b: Builder, op: Op, mapping: Mapping[Value, Value]) -> Value:
        found = self._read(op.operands[0])
        assert found is not None, "the plan looked"
        stack, right = mapping[self.outer[found[0]]], mapping[self.outer[op.operands[1]]]
        return b.emit("dot", (stack, right), _with_rows(op))[0]

    def _region(self, inner: Builder, kept: Sequence[int]) -> Block:
        index, *rest = inner.params
        own = {self.body.params[0]: index}
        supply = iter(rest)
        own |= {p: next(supply) for p in self.consts}
        own |= {self.carries[c]: next(supply) for c in self.fixed}
        early = {op: next(supply) for op in self.before}
        collected = {v: next(supply) for v in self.new}
        own |= {self.carries[c]: next(supply) for c in kept}
        skipped = {self.made[self.body.results[c]] for c in (*self.sums, *self.after)}
        skipped |= set(self.fixed.values())
        skipped |= set(self.sums.values()) | set(self.after.values())
        skipped |= {
            user
            for product in self.after.values()
            for user, _ in self.uses[product.result]
            if user is not None
        }
        for op in self.body.ops:
            if op in early:
                row = row_of(inner, early[op], _at(inner, index, self.before[op]))
                own[op.result] = row
            elif op in skipped:
                continue
            elif op in self.updates:
                x, at, value = (own[v] for v in op.operands)
                own[op.result] = put_row(inner, x, value, at)
            else:
                inner.copy(op, own)
        rows = [
            put_row(inner, stack, own[v], _at(inner, index, self.new[v]))
            for v, stack in collected.items()
        ]
        return inner.finish([*rows, *(own[self.body.results[c]] for c in kept)])

    def _late(self, b: Builder, stack: Value, place: Place, wanted: Place) -> Value:
        """The collected rows in the order of other places."""
        return stack if place.step == wanted.step else b("reverse", stack, axes=(0,))

    def _sum(
        self,
        b: Builder,
        product: Op,
        collected: Mapping[Value, Value],
        given_by: Mapping[int, Value],
        mapping: Mapping[Value, Value],
    ) -> Value:
        """The sum over all trips, as one product that contracts the rows too."""
        sides = []
        for v in product.operands:
            rows = self._rows_of(v)
            if rows is None:
                sides.append((collected[v], self.new[v]))
            elif rows.param is not None:
                stack = mapping[self.outer[rows.param]]
                sides.append((_cut(b, stack, rows.place.rows(self.trips)), rows.place))
            else:
                assert rows.stack is not None
                sides.append((given_by[rows.stack], rows.place))
        (left, first), (right, second) = sides
        if first.step != second.step:
            right = b("reverse", right, axes=(0,))
        attrs = {
            "contract_a": (0, *(d + 1 for d in product.attrs["contract_a"])),
            "contract_b": (0, *(d + 1 for d in product.attrs["contract_b"])),
            "batch_a": (),
            "batch_b": (),
        }
        return b.emit("dot", (left, right), attrs)[0]


def _with_rows(product: Op) -> dict[str, tuple[int, ...]]:
    """The attributes of a product whose first operand has one more axis, the first."""
    contract = tuple(d + 1 for d in product.attrs["contract_a"])
    return {**product.attrs, "contract_a": contract}


def _cut(b: Builder, stack: Value, rows: range) -> Value:
    """The rows of a stack, in the order in which they lie."""
    start, stop = min(rows), max(rows) + 1
    if (start, stop) == (0, stack.shape[0]):
        return stack
    rest = stack.shape[1:]
    zeros, ones = (0,) * len(rest), (1,) * len(stack.shape)
    return b("slice", stack, start=(start, *zeros), stop=(stop, *rest), step=ones)


def _at(b: Builder, index: Value, place: Place) -> Value:
    start = b.constant(place.start, DType.I64)
    if place.step == 1:
        return index if place.start == 0 else b("add", index, start)
    return b("sub", start, index)
