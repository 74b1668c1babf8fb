"""The solver against exhaustive search over random problems: pins, ties, ceilings, memory limits,
returns, wires, latencies, every objective; best placement, second best, and their prices.
"""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from delian.core.placement.cut.price import fits, price
from delian.core.placement.cut.problem import PlacementError, Problem
from delian.core.placement.cut.solver import runner_up, solve

#: Of a cost: what a cut, and what a search by HiGHS may be off.
EXACT, SEARCHED = 1e-9, 1e-6
#: The same where latencies are paid by turns, and the one that is found is not proved to be best.
TURNS = 0.15


def kind(problem: Problem) -> str:
    """What the problem asks of the solver, for counting that a run saw all of it."""
    if problem.objective.throughput:
        return "throughput"
    return "memory" if any(m is not None for m in problem.memory) else "cut"


def agrees(brute_force, problem: Problem) -> bool:
    """Best and second best cost what exhaustive search finds; whether there is a placement.

    Where messages pay latencies, so that no sum of crossings has the cost, they may not be the
    best; then they say so, and their bound holds.
    """
    ranked = brute_force.ranked(problem)
    if not ranked:
        with pytest.raises(PlacementError):
            solve(problem)
        return False
    allowance = EXACT if kind(problem) == "cut" else SEARCHED
    found = solve(problem)
    by_turns = problem.returns and any(hop.latency_s for hop in problem.hops)
    assert found.bound <= found.cost and (found.optimal or by_turns)
    assert found.bound <= ranked[0][0] * (1 + allowance) + 1e-12
    assert fits(problem, found)
    assert found.cost == pytest.approx(brute_force.cost(problem, found.labels), rel=EXACT)
    off = allowance if found.optimal else TURNS
    assert found.cost == pytest.approx(ranked[0][0], rel=off, abs=1e-12)
    others = [cost for cost, labels in ranked if labels != found.labels]
    second = runner_up(problem, found)
    if not others:
        assert second is None
    else:
        assert second is not None and second.labels != found.labels
        assert second.cost == pytest.approx(brute_force.cost(problem, second.labels), rel=EXACT)
        off = TURNS if by_turns else allowance
        assert second.cost == pytest.approx(others[0], rel=off, abs=1e-12)
    return True


def compare(brute_force, tiers: int, items_max: int, seeds: range) -> int:
    """How many of the problems have a placement; for all, the solver finds what there is."""
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in seeds:
        problem = brute_force.random_problem(random.Random(seed), tiers, items_max)
        try:
            seen[kind(problem), agrees(brute_force, problem)] += 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {tiers} tiers") from error
    # The draw is not one-sided: each kind was solved, and some problems had no placement.
    for each in ("cut", "memory", "throughput"):
        assert seen[each, True] > len(seeds) / 20
    assert any(count for (_, feasible), count in seen.items() if not feasible)
    return sum(count for (_, feasible), count in seen.items() if feasible)


def test_two_tiers(brute_force) -> None:
    compare(brute_force, 2, 7, range(100))


def test_three_tiers(brute_force) -> None:
    compare(brute_force, 3, 5, range(60))


@pytest.mark.slow
def test_many_graphs_of_up_to_ten_items_over_two_tiers(brute_force) -> None:
    assert compare(brute_force, 2, 10, range(10_000, 10_800)) >= 600


@pytest.mark.slow
def test_many_graphs_over_three_tiers(brute_force) -> None:
    assert compare(brute_force, 3, 8, range(20_000, 20_260)) >= 200


def test_prices_of_any_labels(brute_force) -> None:
    rng = random.Random(5)
    compared = 0
    for _ in range(300):
        problem = brute_force.random_problem(rng, rng.choice([2, 3]), 6)
        labels = tuple(rng.randrange(problem.tiers) for _ in problem.items)
        expected = brute_force.cost(problem, labels)
        try:
            found = price(problem, labels)
        except PlacementError:
            assert expected == math.inf
            continue
        assert (expected == math.inf) == (not fits(problem, found))
        if expected < math.inf:
            assert found.cost == pytest.approx(expected, rel=EXACT, abs=1e-15)
            compared += 1
    assert compared > 20
