"""All breakpoints of a bandwidth, and what must hold of the least cost as links change."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from delian.core.placement.cut.breakpoints import Piece, sweep
from delian.core.placement.cut.problem import (
    Hop,
    Item,
    Objective,
    PlacementError,
    Problem,
    Tensor,
    Wire,
)
from delian.core.placement.cut.solver import solve
from hypothesis import given, settings
from hypothesis import strategies as st

LOW, HIGH = 1e2, 1e7


def at(problem: Problem, hop: int, bandwidth: float) -> Problem:
    """The problem with that hop's way up at `bandwidth`, its way down scaled along."""
    old = problem.hops[hop]
    new = replace(old, up=bandwidth, down=old.down * bandwidth / old.up)
    return replace(problem, hops=(*problem.hops[:hop], new, *problem.hops[hop + 1 :]))


def linear(brute_force, seed: int, tiers: int = 2, items: int = 7) -> Problem | None:
    """A random problem without throughput that has a placement; None: this seed has none."""
    problem = brute_force.random_problem(random.Random(seed), tiers, items)
    if problem.objective.throughput:
        problem = replace(problem, objective=Objective(latency=1, energy=0.3))
    return problem if brute_force.ranked(problem) else None


def test_breakpoints_of_three_cuts_by_hand() -> None:
    """All below: 6 s. Input up: 1 s and 1000 bytes. In between: 3 s and 100 bytes. Lines meet at
    s = 3/100 and s = 2/900 seconds a byte.
    """
    items = (Item((2.0, 0.0)), Item((4.0, 1.0)))
    tensors = (
        Tensor(None, (0,), (Wire("f32", 1000),)),
        Tensor(0, (1,), (Wire("f32", 100),)),
        Tensor(1, (), (), result=False),
    )
    pieces = sweep(Problem(items, tensors, (Hop(1.0, 1.0),)), 0, 1.0, 1e6)
    assert [p.placement.labels for p in pieces] == [(0, 0), (0, 1), (1, 1)]
    assert [pieces[0].low, pieces[-1].high] == [1.0, 1e6]
    assert pieces[0].high == pieces[1].low == pytest.approx(100 / 3)
    assert pieces[1].high == pieces[2].low == pytest.approx(450)


@pytest.mark.parametrize("tiers", [2, 3])
def test_pieces_cover_the_range_and_cost_what_exhaustive_search_finds(
    brute_force, tiers: int
) -> None:
    several = 0
    for seed in range(24):
        problem = linear(brute_force, seed, tiers, 6 if tiers == 2 else 5)
        if problem is None:
            continue
        hop = seed % (tiers - 1)
        pieces = sweep(problem, hop, LOW, HIGH)
        several += len(pieces) > 1
        assert pieces[0].low == pytest.approx(LOW) and pieces[-1].high == pytest.approx(HIGH)
        for before, after in itertools.pairwise(pieces):
            assert before.high == after.low
            assert before.placement.labels != after.placement.labels or (
                before.placement.crossings != after.placement.crossings
            )
        for piece in pieces:
            for share in (0.001, 0.5, 0.999):
                bandwidth = piece.low ** (1 - share) * piece.high**share
                there = at(problem, hop, bandwidth)
                best = brute_force.ranked(there)[0][0]
                mine = brute_force.cost(there, piece.placement.labels)
                assert mine == pytest.approx(best, rel=1e-6, abs=1e-12)
    assert several > 3


def test_a_piece_is_priced_at_its_geometric_mean(brute_force) -> None:
    problem = linear(brute_force, 3)
    assert problem is not None
    for piece in sweep(problem, 0, LOW, HIGH):
        middle = at(problem, 0, math.sqrt(piece.low * piece.high))
        assert piece.placement.cost == pytest.approx(solve(middle).cost, rel=1e-6)
        assert piece.placement.optimal


def test_a_range_of_one_bandwidth_is_one_piece(brute_force) -> None:
    problem = linear(brute_force, 3)
    assert problem is not None
    (piece,) = sweep(problem, 0, 1000.0, 1000.0)
    assert isinstance(piece, Piece)
    assert piece.placement.cost == pytest.approx(solve(at(problem, 0, 1000.0)).cost)


def test_what_cannot_be_swept_is_refused(brute_force) -> None:
    problem = linear(brute_force, 3)
    assert problem is not None
    stream = replace(problem, objective=Objective(latency=1, throughput=1))
    for bad, hop, low, high in (
        (stream, 0, 1.0, 2.0),
        (problem, 1, 1.0, 2.0),
        (problem, 0, 2.0, 1.0),
        (problem, 0, 0.0, 1.0),
        (problem, 0, 1.0, math.inf),
    ):
        with pytest.raises(PlacementError):
            sweep(bad, hop, low, high)


@given(seed=st.integers(0, 10_000), tiers=st.sampled_from([2, 3]), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_least_cost_falls_with_bandwidth_and_is_concave_in_its_inverse(
    seed: int, tiers: int, data: st.DataObject
) -> None:
    problem = _drawn(random.Random(seed), tiers)
    hop = data.draw(st.integers(0, tiers - 2))
    inverse = sorted(data.draw(st.floats(1 / HIGH, 1 / LOW)) for _ in range(3))
    low, middle, high = (solve(at(problem, hop, 1 / s)).cost for s in inverse)
    assert low <= middle * (1 + 1e-9) and middle <= high * (1 + 1e-9)
    if inverse[2] > inverse[0]:
        share = (inverse[1] - inverse[0]) / (inverse[2] - inverse[0])
        assert middle >= (low + (high - low) * share) * (1 - 1e-8)


@given(seed=st.integers(0, 10_000), factor=st.floats(0.01, 100.0))
@settings(max_examples=40, deadline=None)
def test_everything_slower_by_a_factor_is_the_same_placement_at_that_factor(
    seed: int, factor: float
) -> None:
    problem = _drawn(random.Random(seed), 3)
    slower = replace(
        problem,
        items=tuple(
            replace(item, seconds=tuple(s * factor for s in item.seconds)) for item in problem.items
        ),
        tensors=tuple(
            replace(v, wires=tuple(replace(w, seconds=w.seconds * factor) for w in v.wires))
            for v in problem.tensors
        ),
        hops=tuple(
            Hop(hop.up / factor, hop.down / factor, hop.latency_s * factor) for hop in problem.hops
        ),
    )
    assert solve(slower).cost == pytest.approx(solve(problem).cost * factor, rel=1e-8)


def _drawn(rng: random.Random, tiers: int) -> Problem:
    """A problem with nothing but work and links, of a size that no exhaustive search could do."""
    n = rng.randint(2, 40)
    items = tuple(
        Item(tuple(rng.uniform(0, 0.2) * 3.0**-t for t in range(tiers))) for _ in range(n)
    )
    tensors = [Tensor(None, (0,), (Wire("f32", rng.randint(1, 10_000)),))]
    for i in range(n):
        readers = {j for j in (i + 1, rng.randint(i + 1, n), rng.randint(i + 1, n)) if j < n}
        size = int(rng.lognormvariate(6, 2))
        wires = (Wire("f32", size), Wire("i8", size // 4, 1e-4))
        tensors.append(Tensor(i, tuple(sorted(readers)), wires, result=i == n - 1))
    hops = tuple(
        Hop(10 ** rng.uniform(2, 7), 10 ** rng.uniform(2, 7), rng.uniform(0, 0.02))
        for _ in range(tiers - 1)
    )
    return Problem(items, tuple(tensors), hops, returns=rng.random() < 0.3)
