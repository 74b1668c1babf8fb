"""Lists of known length become tensors: what one loop pushes and another pops, trip by trip.

    %l = for(0, 80, ..., list_empty)             %t = for(0, 80, ..., zeros[80, ...])
           list_push(%l', x)                            dynamic_update(%t', x, i)
    ... = for(0, 80, ..., %l)              =>    ... = for(0, 80, ..., %t)
           list_pop(%l') -> rest, x                     x = %t[79 - i], %t as a constant

Reverse mode makes such pairs of every loop. As a tensor the values need no memory from outside the
arena, and other passes see all trips at once. Both loops must run the same number of trips, known
beforehand, with one push and one pop a trip; any other list stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...ir import Block, Builder, DType, ListType, Op, TensorType, Value
from .trip_counts import Trips, integers, trips_of, uses_of

#: A longer stack stays a list, which takes memory as it grows.
STACK_BYTES_MAX = 64 * 2**20


@dataclass(slots=True)
class _Change:
    """What becomes of one loop: carries that it fills, and carries that it only reads."""

    fills: dict[int, Op] = field(default_factory=dict)  # carry -> its list_push
    reads: dict[int, Op] = field(default_factory=dict)  # carry -> its list_pop


def lists_to_tensors(block: Block) -> Block:
    """The block with such lists as tensors; the very same one where there is none."""
    if not any(isinstance(r.type, ListType) for op in block.walk() for r in op.results):
        return block
    ops = [op.with_regions(map(lists_to_tensors, op.regions)) for op in block.ops]
    block = Block(block.params, ops, block.results)
    known = integers(ops)
    changes = _changes(block, known)
    if not changes:
        return block
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    for op in ops:
        trips = trips_of(op, known)
        if op in changes and trips is not None:
            with b.at(op.locs):
                _rebuild(b, op, changes[op], trips, mapping)
        else:
            b.copy(op, mapping)
    return b.finish([mapping[r] for r in block.results])


def _changes(block: Block, known: dict[Value, int]) -> dict[Op, _Change]:
    uses = uses_of(block)
    empty = {op.results[0] for op in block.ops if op.name == "list_empty"}
    changes: dict[Op, _Change] = {}
    for op in block.ops:
        trips = trips_of(op, known)
        if trips is None:
            continue
        start = 2 + int(op.attrs["consts"])
        for c, result in enumerate(op.results):
            if op.operands[start + c] not in empty or not isinstance(result.type, ListType):
                continue
            push = _only_push(op, c, trips)
            pops = [_only_pop(user, i, trips, known, uses) for user, i in uses.get(result, [])]
            if push is None or None in pops:
                continue
            changes.setdefault(op, _Change()).fills[c] = push
            for found in pops:
                assert found is not None
                reader, slot, pop = found
                changes.setdefault(reader, _Change()).reads[slot] = pop
    return changes


def _only_push(op: Op, c: int, trips: Trips) -> Op | None:
    """The push that makes carry c what the next trip has, if that is all that happens to it."""
    body = op.regions[0]
    param, result = body.params[1 + int(op.attrs["consts"]) + c], body.results[c]
    push = next((o for o in body.ops if result in o.results), None)
    if push is None or push.name != "list_push" or push.operands[0] is not param:
        return None
    type_ = push.operands[1].type
    if not isinstance(type_, TensorType) or type_.nbytes * trips.count > STACK_BYTES_MAX:
        return None
    inner = uses_of(body)
    plain = isinstance(result.type, ListType) and not result.type.lanes
    return push if plain and len(inner[param]) == len(inner[result]) == 1 else None


def _only_pop(
    user: Op | None,
    i: int,
    trips: Trips,
    known: dict[Value, int],
    uses: dict[Value, list[tuple[Op | None, int]]],
) -> tuple[Op, int, Op] | None:
    """(loop, carry, pop) where a loop of as many trips pops the list once a trip, to its end."""
    if user is None:
        return None
    own = trips_of(user, known)
    if own is None or own.count != trips.count:
        return None
    consts = int(user.attrs["consts"])
    slot = i - 2 - consts
    if slot < 0 or uses.get(user.results[slot]):
        return None
    body = user.regions[0]
    param, result = body.params[1 + consts + slot], body.results[slot]
    inner = uses_of(body)
    readers = inner.get(param, [])
    pop = readers[0][0] if len(readers) == 1 else None
    if pop is None or pop.name != "list_pop" or pop.results[0] is not result:
        return None
    return (user, slot, pop) if len(inner[result]) == 1 else None


def _rebuild(
    b: Builder, op: Op, change: _Change, trips: Trips, mapping: dict[Value, Value]
) -> None:
    """Adds the loop with tensors in place of lists."""
    body, split = op.regions[0], 2 + int(op.attrs["consts"])
    kept = [c for c in range(len(op.results)) if c not in change.reads]
    consts = [mapping[v] for v in op.operands[2:split]]
    arrays = {c: mapping[op.operands[split + c]] for c in change.reads}
    starts = []
    for c in kept:
        if c in change.fills:
            type_ = change.fills[c].operands[1].tensor
            starts.append(b.zeros(TensorType(type_.dtype, (trips.count, *type_.shape))))
        else:
            starts.append(mapping[op.operands[split + c]])
    given = [*consts, *arrays.values(), *starts]
    inner = Builder([TensorType(DType.I64), *(v.type for v in given)], op.locs)
    index, *rest = inner.params
    own = {body.params[0]: index}
    own |= dict(zip(body.params[1 : split - 1], rest, strict=False))
    stacks = dict(zip(arrays, rest[len(consts) :], strict=False))
    params = body.params[split - 1 :]
    carried = dict(zip(kept, rest[len(consts) + len(arrays) :], strict=True))
    own |= {params[c]: v for c, v in carried.items()}
    pushes = {push: c for c, push in change.fills.items()}
    pops = {pop: c for c, pop in change.reads.items()}
    for step in body.ops:
        if step in pushes:
            at = _moved(inner, index, -trips.lo)
            value = own[step.operands[1]]
            own[step.results[0]] = put_row(inner, carried[pushes[step]], value, at)
        elif step in pops:
            last = inner.constant(trips.count - 1 + trips.lo, DType.I64)
            own[step.results[1]] = row_of(inner, stacks[pops[step]], inner("sub", last, index))
        else:
            inner.copy(step, own)
    region = inner.finish([own[body.results[c]] for c in kept])
    bounds = [mapping[v] for v in op.operands[:2]]
    attrs = {"consts": len(consts) + len(arrays)}
    made = b.emit("for", (*bounds, *given), attrs, (region,))
    mapping.update({op.results[c]: v for c, v in zip(kept, made, strict=True)})


def _moved(b: Builder, index: Value, by: int) -> Value:
    return b("add", index, b.constant(by, DType.I64)) if by else index


def _zeros(b: Builder, count: int) -> list[Value]:
    return [b.constant(0, DType.I64) for _ in range(count)]


def put_row(b: Builder, stack: Value, value: Value, at: Value) -> Value:
    """The tensor with a value as one of its rows."""
    row = b("reshape", value, shape=(1, *value.shape))
    return b("dynamic_update", stack, row, at, *_zeros(b, len(value.shape)))


def row_of(b: Builder, stack: Value, at: Value) -> Value:
    """One row of a tensor, without its axis."""
    rest = stack.shape[1:]
    row = b("dynamic_slice", stack, at, *_zeros(b, len(rest)), sizes=(1, *rest))
    return b("reshape", row, shape=rest)
