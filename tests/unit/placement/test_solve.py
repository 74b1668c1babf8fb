"""What the solver does with small problems whose answers are known by hand, and with bad ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from delian.core.placement.cut import exact, flow
from delian.core.placement.cut.flow_network import build
from delian.core.placement.cut.price import price
from delian.core.placement.cut.problem import (
    Crossing,
    Hop,
    Item,
    Objective,
    PlacementError,
    Problem,
    Tensor,
    Wire,
)
from delian.core.placement.cut.problem_table import Table
from delian.core.placement.cut.solver import runner_up, solve

MEGABYTE = 1_000_000


def chain(*nbytes: int, hop: Hop, device: float = 1.0, above: float = 0.1) -> Problem:
    """Items in a row; nbytes[0] is the input, nbytes[i + 1] what item i makes; the last returns."""
    count = len(nbytes) - 1
    items = tuple(Item((device, above), memory=10) for _ in range(count))
    tensors = [Tensor(None, (0,), (Wire("f32", nbytes[0]),))]
    tensors += [
        Tensor(i, () if i == count - 1 else (i + 1,), (Wire("f32", size),), result=i == count - 1)
        for i, size in enumerate(nbytes[1:])
    ]
    return Problem(items, tuple(tensors), (hop,))


def test_a_chain_is_cut_where_its_tensor_is_small() -> None:
    found = solve(chain(1000, 1000, 10, 1000, 0, hop=Hop(100.0, 100.0, latency_s=0.25)))
    assert found.labels == (0, 0, 1, 1)
    assert found.crossings == (Crossing(2, 0, True, 0), Crossing(4, 0, False, 0))
    assert found.tier_seconds == (2.0, 0.2)
    assert found.up_seconds == (0.1,) and found.fixed_seconds == (0.5,)
    assert found.cost == found.latency == pytest.approx(2.8)
    assert found.optimal and found.up_bytes == (10,)


def test_a_result_pays_its_way_down() -> None:
    free = chain(10, 10, 0, hop=Hop(100.0, 100.0))
    dear = chain(10, 10, 1000, hop=Hop(100.0, 100.0))
    assert solve(free).labels == (1, 1)
    assert solve(dear).labels == (0, 0)


def test_of_equal_placements_the_lowest_wins() -> None:
    assert solve(chain(0, 0, 0, hop=Hop(1.0, 1.0), above=1.0)).labels == (0, 0)


def test_a_tensor_that_many_read_above_is_sent_once() -> None:
    items = (Item((0.0, 100.0)), *(Item((1.0, 0.0)) for _ in range(3)))
    tensors = (Tensor(0, (1, 2, 3), (Wire("f32", 250),)),)
    found = solve(Problem(items, tensors, (Hop(100.0, 100.0),)))
    assert found.labels == (0, 1, 1, 1)
    assert found.cost == pytest.approx(2.5)


def test_work_comes_back_only_with_returns() -> None:
    """A slow middle between two items that only the device can run."""
    items = (Item((0.0, math.inf)), Item((9.0, 1.0)), Item((0.0, math.inf)))
    tensors = (
        Tensor(0, (1,), (Wire("f32", 100),)),
        Tensor(1, (2,), (Wire("f32", 200),)),
        Tensor(2, (), (), result=True),
    )
    there = Problem(items, tensors, (Hop(100.0, 100.0, latency_s=0.5),))
    assert solve(there).labels == (0, 0, 0)
    back = solve(replace(there, returns=True))
    assert back.labels == (0, 1, 0)
    assert back.up_seconds == (1.0,) and back.down_seconds == (2.0,)
    assert back.fixed_seconds == (1.0,) and back.cost == pytest.approx(5.0)


def test_a_message_pays_its_latency_whatever_it_carries() -> None:
    """Tensors of one turn share two latencies, and each further turn has two of its own."""
    items = (Item((0.0, 1.0), pin=0), Item((2.5, 1.0)), Item((1.5, 1.0)), Item((2.5, 0.5)))
    tensors = (
        *(Tensor(0, (1,), (Wire("f32", 10),)) for _ in range(5)),
        *(Tensor(1, (2,), (Wire("f32", 10),)) for _ in range(5)),
        Tensor(2, (3,), (Wire("f32", 10),)),
        Tensor(3, (), (Wire("f32", 10),), result=True),
    )
    problem = Problem(items, tensors, (Hop(1e9, 1e9, latency_s=1.0),), returns=True)
    expected = {(0, 1, 0, 0): 2.0, (0, 1, 0, 1): 4.0, (0, 1, 1, 1): 2.0, (0, 0, 0, 0): 0.0}
    for labels, seconds in expected.items():
        assert price(problem, labels).fixed_seconds == (seconds,)
    found = solve(problem)
    assert found.labels == (0, 1, 1, 1) and found.optimal, "a latency a tensor would keep it below"
    # With the third on the device as well there are two turns, which have to be worth it.
    below = (*items[:2], replace(items[2], pin=0), items[3])
    for latency_s, labels in ((0.5, (0, 1, 0, 1)), (0.9, (0, 0, 0, 1)), (1.1, (0, 0, 0, 0))):
        slower = replace(problem, items=below, hops=(Hop(1e9, 1e9, latency_s),))
        assert solve(slower).labels == labels


def test_a_private_tensor_stays_below_its_ceiling() -> None:
    problem = chain(10, 10, 10, 0, hop=Hop(1e9, 1e9))
    assert solve(problem).labels == (1, 1, 1)
    private = replace(problem.tensors[0], ceiling=0)
    assert solve(replace(problem, tensors=(private, *problem.tensors[1:]))).labels == (0, 1, 1)
    made = replace(problem.tensors[2], ceiling=0)  # neither its maker nor its reader goes up
    tensors = (*problem.tensors[:2], made, problem.tensors[3])
    assert solve(replace(problem, tensors=tensors)).labels == (0, 0, 0)


def test_each_crossing_takes_the_wire_that_costs_it_least() -> None:
    """Few bytes where the link is slow, no encoding where it is fast."""
    problem = chain(100, 0, hop=Hop(10.0, 10.0), device=100.0)
    wires = (Wire("f32", 100), Wire("i8", 25, seconds=1.0))
    problem = replace(problem, tensors=(Tensor(None, (0,), wires), problem.tensors[1]))
    assert solve(problem).crossings[0].wire == 1
    assert solve(replace(problem, hops=(Hop(1000.0, 10.0),))).crossings[0].wire == 0


def test_one_wire_serves_all_hops_of_a_tensor() -> None:
    """The first hop alone would not encode, the second does: together they do."""
    wires = (Wire("f32", 100), Wire("i8", 25, seconds=0.1))
    items = (Item((math.inf, math.inf, 0.0)),)
    hops = Hop(10_000.0, 1.0), Hop(10.0, 1.0)
    found = solve(Problem(items, (Tensor(None, (0,), wires),), hops))
    assert found.crossings == (Crossing(0, 0, True, 1), Crossing(0, 1, True, 1))
    assert found.up_seconds == pytest.approx((0.1025, 2.6))


def test_a_device_that_takes_long_to_start_is_left_out() -> None:
    problem = chain(100, 100, 0, hop=Hop(100.0, 100.0), device=0.5, above=0.1)
    assert solve(problem).labels == (0, 0)
    slow = solve(replace(problem, start_s=0.5))
    assert slow.labels == (1, 1) and slow.tier_seconds[0] == 0
    mixed = price(replace(problem, start_s=0.5), (0, 1))
    assert mixed.tier_seconds == (1.0, 0.1)


def test_energy_may_ask_for_another_cut_than_latency() -> None:
    items = (Item((1.0, 0.5), joules=(1.0, 0.0)),)
    tensors = (Tensor(None, (0,), (Wire("f32", 100),)),)
    problem = Problem(items, tensors, (Hop(1000.0, 1000.0, joules_per_byte=0.1),))
    assert solve(problem).labels == (1,)
    saving = solve(replace(problem, objective=Objective(latency=0, energy=1)))
    assert saving.labels == (0,) and saving.joules == 1.0


def test_memory_moves_the_cut() -> None:
    problem = chain(10, 10, 10, 10, 0, hop=Hop(1e9, 1e9))
    assert solve(problem).labels == (1, 1, 1, 1)
    tight = solve(replace(problem, memory=(None, 25)))
    assert tight.labels == (0, 0, 1, 1) and tight.memory == (20, 20) and tight.optimal


def test_a_stream_is_as_fast_as_its_slowest_stage() -> None:
    """One input is fastest above; many are, when both tiers work."""
    problem = chain(10, 10, 10, 10, 0, hop=Hop(1e9, 1e9), device=1.0, above=0.9)
    assert solve(problem).labels == (1, 1, 1, 1)
    stream = solve(replace(problem, objective=Objective(latency=0, throughput=1)))
    assert stream.labels == (0, 0, 1, 1)
    assert stream.cost == stream.slowest == pytest.approx(2.0)


def test_the_second_best_differs() -> None:
    problem = chain(1000, 1000, 10, 1000, 0, hop=Hop(100.0, 100.0, latency_s=0.25))
    best = solve(problem)
    second = runner_up(problem, best)
    assert second is not None and second.labels == (0, 0, 0, 0) and second.cost == 4.0
    only = replace(problem, items=tuple(replace(i, pin=0) for i in problem.items))
    assert runner_up(only, solve(only)) is None


def test_costs_of_very_different_size_are_kept_apart() -> None:
    """32 bits would round a nanosecond away beside an hour."""
    items = tuple(Item((3600.0 if i == 0 else 1e-9 * (i + 1), 3600.0 - i * 1e-9)) for i in range(9))
    tensors = tuple(
        Tensor(i, tuple(range(i + 1, 9)), (Wire("f32", 1),), result=i == 8) for i in range(9)
    )
    problem = Problem(items, tensors, (Hop(1e10, 1e10),))
    found = solve(problem)
    assert found.cost - found.bound <= flow.TOLERANCE * found.cost
    assert found.labels[1:] == (0,) * 8


def test_the_flow_agrees_with_the_price_of_its_cut() -> None:
    """The bound comes from the flow, the cost from the model: two ways to the same number."""
    rng = np.random.default_rng(3)
    items = tuple(Item(tuple(rng.uniform(0, 1, 3))) for _ in range(60))
    tensors = tuple(
        Tensor(i, tuple(sorted({i + 1, *rng.integers(i + 1, 60, 2).tolist()} - {60})), wires)
        for i in range(59)
        for wires in [(Wire("f32", int(rng.integers(1, 300))),)]
    )
    table = Table.of(Problem(items, tensors, (Hop(500.0, 500.0), Hop(900.0, 900.0))))
    network = build(table, table.allowed)
    found = flow.cut(table, network, lambda placement: flow.linear(table, placement))
    assert 0 < found.cost - found.bound + 1e-9 < 1e-8


def test_a_search_that_runs_out_of_time_says_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    items = tuple(
        Item((float(rng.uniform(1, 9)), float(rng.uniform(0, 1))), int(rng.integers(1, 1 << 20)))
        for _ in range(400)
    )
    tensors = tuple(
        Tensor(i, tuple({int(j) for j in rng.integers(i + 1, 400, 3)}), (Wire("f32", 90),))
        for i in range(399)
    )
    half = sum(item.memory for item in items) // 2
    problem = Problem(items, tensors, (Hop(100.0, 100.0),), memory=(None, half))
    found = solve(problem, seconds=0.05)
    assert found.memory[1] <= half
    assert found.optimal == (found.cost - found.bound <= exact.TOLERANCE * found.cost)
    assert found.bound > 0


GOOD = chain(10, 10, 0, hop=Hop(1.0, 1.0))
APART = replace(GOOD, items=(Item((1.0, math.inf)), Item((math.inf, 1.0))))


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (replace(GOOD, items=(Item((-1.0, 1.0)), GOOD.items[1])), "item 0 takes -1.0 s on tier 0"),
        (replace(GOOD, items=(Item((math.nan, 1.0)), GOOD.items[1])), "takes nan s"),
        (replace(GOOD, items=(Item((1.0,)), GOOD.items[1])), "item 0 has 1 seconds"),
        (replace(GOOD, items=(Item((1.0, 1.0), pin=2), GOOD.items[1])), "pinned to tier 2"),
        (replace(GOOD, items=(Item((1.0, 1.0), memory=-1), GOOD.items[1])), "holds -1 bytes"),
        (replace(GOOD, items=(Item((1.0, 1.0), 0, (math.inf, 0)), GOOD.items[1])), "joules"),
        (replace(GOOD, items=(Item((math.inf, math.inf)), GOOD.items[1])), "none of the 2 tiers"),
        (replace(GOOD, items=(Item((1.0, math.inf), pin=1), GOOD.items[1])), "item 0 can run on"),
        (replace(GOOD, items=(Item((math.inf, 1.0)), Item((1.0, math.inf)))), "must run above"),
        (replace(GOOD, tensors=(Tensor(None, (2,), ()),)), "read by item 2 of 2"),
        (replace(GOOD, tensors=(Tensor(7, (0,), ()),)), "item 7 of 2"),
        (replace(GOOD, tensors=(Tensor(1, (0,), ()),)), "comes no earlier"),
        (replace(GOOD, tensors=(Tensor(0, (0,), ()),)), "comes no earlier"),
        (replace(GOOD, tensors=(Tensor(0, (1,), (Wire("f32", -4),)),)), "takes -4"),
        (replace(GOOD, tensors=(Tensor(0, (1,), (Wire("f32", 4, math.nan),)),)), "nan s"),
        (replace(GOOD, tensors=(Tensor(0, (1,), (), ceiling=-1),)), "below tier 0"),
        (replace(GOOD, tensors=(Tensor(0, (1,), (Wire("f32", 4),) * 9),)), "9 wires"),
        (replace(GOOD, hops=()), "1 tiers"),
        (replace(GOOD, hops=GOOD.hops * 3), "4 tiers"),
        (replace(GOOD, hops=(Hop(0.0, 1.0),)), "carries 0.0 bytes/s"),
        (replace(GOOD, hops=(Hop(math.nan, 1.0),)), "carries nan"),
        (replace(GOOD, hops=(Hop(1.0, 1.0, math.inf),)), "inf s latency"),
        (replace(GOOD, start_s=math.nan), "nan s to start"),
        (replace(GOOD, memory=(1,)), "1 memory limits for 2 tiers"),
        (replace(GOOD, memory=(-1, None)), "below 0"),
        (replace(GOOD, memory=(5, 5)), "no placement fits"),
        (replace(GOOD, ties=((0, 2),)), "tie of items 0 and 2"),
        (
            replace(GOOD, ties=((0, 1),), items=(Item((1.0, math.inf)), Item((math.inf, 1.0)))),
            "share",
        ),
        (replace(GOOD, objective=Objective(0, 0, 0)), "weights"),
        (replace(GOOD, objective=Objective(math.nan)), "weights"),
    ],
)
def test_a_bad_problem_is_refused_in_words(problem: Problem, says: str) -> None:
    with pytest.raises(PlacementError, match=says):
        solve(problem)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ((0,), "not 2 numbers"),
        ((0, 2), "not 2 numbers"),
        ((1, 0), "reads what is made above it"),
    ],
)
def test_labels_that_break_a_rule_have_no_price(labels: tuple[int, ...], says: str) -> None:
    with pytest.raises(PlacementError, match=says):
        price(GOOD, labels)


def test_nothing_to_place_costs_nothing() -> None:
    found = solve(Problem((), (Tensor(None, (), (), result=True),), (Hop(1.0, 1.0),)))
    assert found.labels == () and found.cost == 0 and found.optimal
