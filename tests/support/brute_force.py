"""Placement by trying everything: the definition of cost, in loops, and random problems to try.

Knows nothing of `delian.core.placement.cut` but its types: what `problem` says in words is said
here again in plain Python, an item and a tensor at a time.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

from delian.core.placement.cut.problem import Hop, Item, Objective, Problem, Tensor, Wire


def cost(problem: Problem, labels: tuple[int, ...]) -> float:
    """By the definition; math.inf where a rule is broken."""
    weights, top = problem.objective, problem.tiers
    busy, up, down = [0.0] * top, [0.0] * (top - 1), [0.0] * (top - 1)
    held, joules, fixed = [0] * top, 0.0, 0.0
    for item, tier in zip(problem.items, labels, strict=True):
        if item.seconds[tier] == math.inf or item.pin not in (None, tier):
            return math.inf
        busy[tier] += item.seconds[tier]
        held[tier] += item.memory
        joules += item.joules[tier] if item.joules else 0.0
    if any(most is not None and h > most for h, most in zip(held, problem.memory, strict=False)):
        return math.inf
    if any(labels[i] != labels[j] for i, j in problem.ties):
        return math.inf
    back = 0
    for tensor in problem.tensors:
        start = 0 if tensor.producer is None else labels[tensor.producer]
        ends = [labels[c] for c in tensor.consumers]
        if tensor.ceiling is not None and max([*ends, start]) > tensor.ceiling:
            return math.inf
        if not problem.returns and tensor.producer is not None and min([*ends, start]) < start:
            return math.inf
        if tensor.result:
            ends.append(0)
            back = max(back, start)
        for rises, taken in ((True, up), (False, down)):
            crossed = [
                k
                for k in range(top - 1)
                if (rises and start <= k and any(end > k for end in ends))
                or (not rises and start > k and any(end <= k for end in ends))
            ]
            if not crossed:
                continue
            ways = []
            for number, wire in enumerate(tensor.wires):
                hops = [problem.hops[k] for k in crossed]
                each = [wire.nbytes / (h.up if rises else h.down) + wire.seconds for h in hops]
                spent = sum(h.joules_per_byte * wire.nbytes for h in hops)
                total = (weights.latency + weights.throughput) * sum(each) + weights.energy * spent
                ways.append((total, number, each, spent))
            if not ways:
                return math.inf
            _, _, each, spent = min(ways)
            for k, seconds in zip(crossed, each, strict=True):
                taken[k] += seconds
            joules += spent
    beyond = max(labels, default=0)
    for k, hop in enumerate(problem.hops):
        count = messages(problem, labels, k) if problem.returns else (beyond > k) + (back > k)
        fixed += hop.latency_s * count
    if 0 in labels:
        busy[0] += problem.start_s
    latency = sum(busy) + sum(up) + sum(down) + fixed
    slowest = max([*busy, *up, *down])
    return weights.latency * latency + weights.throughput * slowest + weights.energy * joules


def messages(problem: Problem, labels: tuple[int, ...], hop: int) -> int:
    """How many cross a hop where work comes back: a token runs what is ready, and goes on."""
    makers: list[set[int]] = [set() for _ in labels]
    readers: list[set[int]] = [set() for _ in labels]
    fed: set[int] = set()
    for tensor in problem.tensors:
        for item in tensor.consumers:
            if tensor.producer is None:
                fed.add(item)
            else:
                makers[item].add(tensor.producer)
                readers[tensor.producer].add(item)
    for item in range(len(labels)):
        if makers[item] & fed:
            fed.add(item)
    # What follows from no input and stays on its tier is made when it is needed.
    wanted = {tensor.producer for tensor in problem.tensors if tensor.result}
    unfed = [i for i in range(len(labels)) if i not in fed | wanted]
    early = {i for i in unfed if {labels[j] for j in readers[i]} <= {labels[i]}}
    run: set[int] = set()
    here, rising, passes = 0, True, 0

    def ready(tier: int) -> set[int]:
        known = set(run)
        for i in sorted(early):
            if makers[i] <= known:
                known.add(i)
        later = set(range(len(labels))) - known
        return {i for i in later if labels[i] == tier and makers[i] <= known}

    while any(ready(tier) for tier in range(problem.tiers)):
        while more := ready(here):
            run |= more
        above = [t for t in range(here + 1, problem.tiers) if ready(t)]
        below = [t for t in reversed(range(here)) if ready(t)]
        if not above and not below:
            break
        rising = bool(above) and (rising or not below)
        there = above[0] if rising else below[0]
        passes += here <= hop < there
        here = there
    return 2 * max(passes, int(max(labels, default=0) > hop))


def ranked(problem: Problem) -> list[tuple[float, tuple[int, ...]]]:
    """All placements that break no rule, the cheapest first."""
    every = itertools.product(range(problem.tiers), repeat=len(problem.items))
    return sorted((c, labels) for labels in every if (c := cost(problem, labels)) < math.inf)


def random_problem(rng: random.Random, tiers: int, items_max: int) -> Problem:
    """Any of: skips, fan-out, inputs, results, pins, ties, ceilings, returns, limits, wires."""
    n = rng.randint(1, items_max)
    returns = rng.random() < 0.35
    items = tuple(_item(rng, tiers) for _ in range(n))
    tensors = tuple(_tensors(rng, n, tiers))
    hops = tuple(
        Hop(
            rng.choice([1e3, 1e4, 1e5, 1e6]) * rng.uniform(0.5, 2),
            rng.choice([1e3, 1e4, 1e5, 1e6]) * rng.uniform(0.5, 2),
            rng.choice([0.0, 0.0, rng.uniform(0, 0.2)]),
            rng.choice([0.0, rng.uniform(0, 1e-4)]),
        )
        for _ in range(tiers - 1)
    )
    limited = rng.random() < 0.4
    total = sum(item.memory for item in items)
    memory = tuple(rng.choice([None, int(total * rng.uniform(0.2, 1.1))]) for _ in range(tiers))
    pairs = [(rng.randrange(n), rng.randrange(n)) for _ in range(rng.choice([0, 0, 1, 2]))]
    return Problem(
        items,
        tensors,
        hops,
        memory=memory if limited else (),
        ties=tuple(pairs),
        returns=returns,
        start_s=rng.choice([0.0, rng.uniform(0, 0.3)]),
        objective=rng.choice(
            [
                Objective(),
                Objective(),
                Objective(latency=1, energy=rng.uniform(0, 2)),
                Objective(latency=0, energy=1),
                Objective(latency=0, throughput=1),
                Objective(rng.uniform(0, 1), rng.uniform(0, 3), rng.uniform(0, 1)),
            ]
        ),
    )


def _item(rng: random.Random, tiers: int) -> Item:
    slow = rng.choice([1.0, 2.0, 10.0])
    seconds = [rng.uniform(0, 0.2) * slow**-t * rng.choice([0, 1, 1, 1]) for t in range(tiers)]
    if rng.random() < 0.1:
        seconds[rng.randrange(tiers)] = math.inf
    pin = rng.randrange(tiers) if rng.random() < 0.08 else None
    if pin is not None and seconds[pin] == math.inf:
        pin = None
    joules = tuple(rng.uniform(0, 1) for _ in range(tiers)) if rng.random() < 0.6 else ()
    return Item(tuple(seconds), rng.randint(0, 1000), joules, pin)


def _tensors(rng: random.Random, n: int, tiers: int) -> Iterator[Tensor]:
    for _ in range(rng.randint(1, 2)):
        readers = sorted(rng.sample(range(n), rng.randint(1, min(n, 3))))
        yield _tensor(rng, None, readers, tiers, rng.random() < 0.1)
    density = rng.choice([0.15, 0.35, 0.6])
    for i in range(n):
        readers = [j for j in range(i + 1, n) if rng.random() < density or j == i + 1]
        yield _tensor(rng, i, readers, tiers, i == n - 1 or rng.random() < 0.15)


def _tensor(
    rng: random.Random, producer: int | None, readers: list[int], tiers: int, result: bool
) -> Tensor:
    size = int(rng.lognormvariate(7, 1.5))
    wires = [
        Wire("f32", size),
        Wire("f16", size // 2, rng.uniform(0, 0.02)),
        Wire("i8", size // 4, rng.uniform(0, 0.04)),
    ]
    kept = wires[: rng.randint(1, 3)] if rng.random() < 0.97 else []
    ceiling = rng.randrange(tiers) if rng.random() < 0.06 else None
    return Tensor(producer, tuple(readers), tuple(kept), ceiling, result)
