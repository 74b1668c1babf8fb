"""What the model of `problem` says of given labels: every figure of a placement, from sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...compiler.ir import Array
from .problem import Crossing, Placement, PlacementError, Problem
from .problem_table import Table
from .walk import next_tier


def price(problem: Problem, labels: Sequence[int]) -> Placement:
    """The placement with these labels, an item's tier each.

    A tier's memory limit is the caller's to compare with `Placement.memory`. Raises PlacementError
    if they break another rule.
    """
    return priced(Table.of(problem), labels)


def fits(problem: Problem, placement: Placement) -> bool:
    """Whether every tier has the memory for it."""
    limits = problem.memory or (None,) * problem.tiers
    return all(
        limit is None or used <= limit for limit, used in zip(limits, placement.memory, strict=True)
    )


def priced(table: Table, labels: Sequence[int] | Array) -> Placement:
    """As `price`, of a problem that is a table already."""
    problem, tiers = table.problem, table.problem.tiers
    tier = np.asarray(labels, np.int64)
    up, down = _crossed(table, tier)
    _check(table, tier, up, down)
    at = np.arange(tiers)
    on = tier[:, None] == at
    busy = np.where(on, table.seconds, 0.0).sum(axis=0)
    busy[0] += problem.start_s if on[:, 0].any() else 0.0
    up_wire, down_wire = table.up.wires(up), table.down.wires(down)
    up_seconds, up_bytes = _carried(table, up, up_wire, [hop.up for hop in problem.hops])
    down_seconds, down_bytes = _carried(table, down, down_wire, [hop.down for hop in problem.hops])
    if problem.returns:
        trips = 2 * np.array(turns(table, tier.tolist()), np.int64)
    else:
        back = tier[table.makes_result].max(initial=0)
        trips = (tier.max(initial=0) > at[:-1]).astype(np.int64) + (back > at[:-1])
    fixed = [int(n) * hop.latency_s for n, hop in zip(trips, problem.hops, strict=True)]
    carried = (up_bytes + down_bytes).tolist()
    sent = sum(n * hop.joules_per_byte for n, hop in zip(carried, problem.hops, strict=True))
    found = Placement(
        labels=tuple(tier.tolist()),
        crossings=tuple(
            Crossing(v, k, way, int(wire[v, k]))
            for crosses, wire, way in ((up, up_wire, True), (down, down_wire, False))
            for v, k in np.argwhere(crosses).tolist()
        ),
        cost=0.0,
        tier_seconds=tuple(busy.tolist()),
        up_seconds=tuple(up_seconds.tolist()),
        down_seconds=tuple(down_seconds.tolist()),
        fixed_seconds=tuple(fixed),
        up_bytes=tuple(up_bytes.tolist()),
        down_bytes=tuple(down_bytes.tolist()),
        memory=tuple(np.where(on, table.memory[:, None], 0).sum(axis=0).tolist()),
        joules=float(np.where(on, table.joules, 0.0).sum()) + sent,
    )
    weigh = problem.objective
    cost = weigh.latency * found.latency
    cost += weigh.throughput * found.slowest + weigh.energy * found.joules
    return replace(found, cost=cost)


def turns(table: Table, tier: Sequence[int]) -> list[int]:
    """How often the token of `program_split` goes up each hop, in a problem with returns.

    Items that follow from no input wait for the first of their tier that reads them.
    """
    count, tiers = len(tier), table.problem.tiers
    feeds: list[list[int]] = [[] for _ in range(count)]
    waits, fed = [0] * count, [False] * count
    makers = table.producer[table.read_tensor].tolist()
    for maker, item in zip(makers, table.read_item.tolist(), strict=True):
        if maker < 0:
            fed[item] = True
        else:
            waits[item] += 1
            feeds[maker].append(item)
    for item in range(count):  # makers come before readers
        for reader in feeds[item] if fed[item] else ():
            fed[reader] = True
    for item in table.makes_result.tolist():  # wanted by itself
        fed[item] = True
    own = [not fed[i] and all(tier[r] == tier[i] for r in feeds[i]) for i in range(count)]
    ready: list[list[int]] = [[] for _ in range(tiers)]

    def run(items: list[int]) -> None:
        while items:
            for reader in feeds[items.pop()]:
                waits[reader] -= 1
                if not waits[reader]:
                    (items if own[reader] else ready[tier[reader]]).append(reader)

    first = [i for i in range(count) if not waits[i]]
    for item in first:
        if not own[item]:
            ready[tier[item]].append(item)
    run([i for i in first if own[i]])
    passes, here, up = [0] * (tiers - 1), 0, True
    while any(ready):
        there, up = next_tier(here, up, ready)
        for hop in range(here, there):
            passes[hop] += 1
        here = there
        while ready[here]:
            run([ready[here].pop()])
    top = max(tier, default=0)  # where nothing but such items may be
    return [max(n, int(hop < top)) for hop, n in enumerate(passes)]


def _crossed(table: Table, tier: Array) -> tuple[Array, Array]:
    """bool[m,h] each: which tensors cross which hops, up and down."""
    if (
        tier.shape != (len(table.seconds),)
        or not ((tier >= 0) & (tier < table.problem.tiers)).all()
    ):
        raise PlacementError(
            f"labels that are not {len(table.seconds)} numbers of tiers",
            f"an item's tier each, 0 to {table.problem.tiers - 1}",
        )
    made = table.producer >= 0
    start = np.where(made, tier[table.producer * made] if len(tier) else 0, 0)
    last, first = start.copy(), np.where(table.result, 0, start)
    np.maximum.at(last, table.read_tensor, tier[table.read_item])
    np.minimum.at(first, table.read_tensor, tier[table.read_item])
    hop = np.arange(table.problem.tiers - 1)
    up = (start[:, None] <= hop) & (last[:, None] > hop)
    down = (start[:, None] > hop) & (first[:, None] <= hop)
    return up, down


def _check(table: Table, tier: Array, up: Array, down: Array) -> None:
    """Raises PlacementError for the first rule that these labels break."""
    problem = table.problem
    bad = ~table.allowed[np.arange(len(tier)), tier]
    if bad.any():
        i = int(bad.argmax())
        raise PlacementError(
            f"item {i} cannot run on tier {tier[i]}",
            "see its seconds, its pin and the ceilings of the tensors that it makes and reads",
        )
    for i, j in problem.ties:
        if tier[i] != tier[j]:
            raise PlacementError(f"items {i} and {j} are tied, but on tiers {tier[i]}, {tier[j]}")
    if not problem.returns:
        source = table.producer[table.read_tensor]
        low = (source >= 0) & (tier[source] > tier[table.read_item])
        if low.any():
            i = int(table.read_item[low][0])
            raise PlacementError(
                f"item {i} on tier {tier[i]} reads what is made above it",
                "work comes back down only in a problem with returns",
            )
    stays = (up | down).any(axis=1) & (table.wired.sum(axis=1) == 0)
    if stays.any():
        raise PlacementError(f"tensor {int(stays.argmax())} has no wire, but crosses")


def _carried(
    table: Table, crosses: Array, wire: Array, bandwidth: list[float]
) -> tuple[Array, Array]:
    """Seconds f64[h] and bytes i64[h] that each hop takes one way."""
    v, k = np.nonzero(crosses)
    nbytes, encode = table.nbytes[v, wire[v, k]], table.encode[v, wire[v, k]]
    seconds = np.bincount(k, nbytes / np.array(bandwidth)[k] + encode, len(bandwidth))
    return seconds, np.bincount(k, nbytes, len(bandwidth)).astype(np.int64)
