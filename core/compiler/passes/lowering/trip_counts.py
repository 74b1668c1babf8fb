"""What is known about a `for` loop before it runs: how often, and which row each trip looks at.

A place is an index that moves by one row a trip, either way: `step` * trip's index + `start`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...ir import Block, Op, TensorType, Value


@dataclass(frozen=True, slots=True)
class Trips:
    """The indices lo, lo + 1, ... of `count` trips."""

    lo: int
    count: int


@dataclass(frozen=True, slots=True)
class Place:
    """The row `step` * i + `start` in trip i; `step` is 1 or -1, or 0 for the same row always."""

    step: int
    start: int

    def rows(self, trips: Trips) -> range:
        """The rows of all trips, in their order."""
        first = self.step * trips.lo + self.start
        return range(first, first + self.step * trips.count, self.step)

    def within(self, trips: Trips, size: int) -> bool:
        """Whether every trip has a row of its own among `size` rows."""
        if self.step == 0:
            return False
        rows = self.rows(trips)
        return bool(rows) and min(rows) >= 0 and max(rows) < size


def integers(ops: Iterable[Op]) -> dict[Value, int]:
    """The rank-0 integer constants among operations."""
    return {
        op.results[0]: int(op.attrs["value"])
        for op in ops
        if op.name == "constant"
        and op.attrs["value"].shape == ()
        and op.attrs["value"].dtype.kind in "iu"
    }


def trips_of(op: Op, known: Mapping[Value, int]) -> Trips | None:
    """The trips of a `for` whose bounds are known; None for another, or one without trips."""
    if op.name != "for" or any(v not in known for v in op.operands[:2]):
        return None
    lo, hi = known[op.operands[0]], known[op.operands[1]]
    return Trips(lo, hi - lo) if hi > lo else None


class Places:
    """The places that values of a loop's body are, found as they are asked for."""

    def __init__(self, body: Block) -> None:
        self._made = {r: op for op in body.ops for r in op.results}
        self._found: dict[Value, Place | None] = {body.params[0]: Place(1, 0)}
        self._found |= {v: Place(0, n) for v, n in integers(body.ops).items()}

    def of(self, value: Value) -> Place | None:
        if value not in self._found:
            self._found[value] = self._work_out(value)
        return self._found[value]

    def _work_out(self, value: Value) -> Place | None:
        op = self._made.get(value)
        if op is None or not isinstance(value.type, TensorType) or value.shape != ():
            return None
        if op.name == "reshape":
            return self.of(op.operands[0])
        if op.name not in ("add", "sub", "neg"):
            return None
        parts = [self.of(v) for v in op.operands]
        if None in parts:
            return None
        first, *rest = (p for p in parts if p is not None)
        if op.name == "neg":
            return Place(-first.step, -first.start)
        (second,) = rest
        sign = 1 if op.name == "add" else -1
        step = first.step + sign * second.step
        return Place(step, first.start + sign * second.start) if abs(step) <= 1 else None


def uses_of(block: Block) -> dict[Value, list[tuple[Op | None, int]]]:
    """The readers of each value: (operation, which operand), or (None, which result)."""
    found: dict[Value, list[tuple[Op | None, int]]] = {}
    for op in block.ops:
        for i, v in enumerate(op.operands):
            found.setdefault(v, []).append((op, i))
    for i, v in enumerate(block.results):
        found.setdefault(v, []).append((None, i))
    return found


def overwritten(op: Op, trips: Trips) -> set[int]:
    """The carries of a `for` whose first values are never read.

    Each trip writes another row of them until all are written, and nothing reads them meanwhile.
    """
    (body,) = op.regions
    carries = body.params[1 + int(op.attrs["consts"]) :]
    uses, places = uses_of(body), Places(body)
    made = {r: o for o in body.ops for r in o.results}
    found = set()
    for c, (carry, result) in enumerate(zip(carries, body.results, strict=True)):
        update = made.get(result)
        if update is None or update.name != "dynamic_update" or update.operands[0] is not carry:
            continue
        _, row, at, *_ = update.operands
        place = places.of(at)
        alone = len(uses[carry]) == len(uses[result]) == 1
        whole = row.shape == (1, *carry.shape[1:]) and trips.count == carry.shape[0]
        if alone and whole and place is not None and place.within(trips, carry.shape[0]):
            found.add(c)
    return found
