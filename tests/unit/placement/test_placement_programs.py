"""Programs as placement problems, and plans for all bandwidths."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import DType, TensorType
from delian.core.placement.cut.cut import SHARED, Cut
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.cut.placement_plan import PlacementPlan
from delian.core.placement.cut.planning import plan_of
from delian.core.placement.cut.price import price
from delian.core.placement.cut.problem import Objective, PlacementError
from delian.core.placement.cut.profile import NodeProfile, Sample
from delian.core.placement.cut.program_costs import Options, memory_of, placed, problem_of
from delian.core.placement.cut.solver import solve

F32, U8 = DType.F32, DType.U8
SLOW = LinkProfile.parse("1Mbit/s,1ms")
FAST = LinkProfile.parse("1Gbit/s,1ms")
KIB = 1024


def node(factor=1.0, memory=None, **changes):
    """100 MFLOP/s for products, 100 M units a second for loops."""
    samples = {
        "loop": (Sample((1000.0, 10.0, 4.0), 4e-5),),
        "product": (Sample((8.0, 10.0, 10.0, 1.0), 1.6e-5),),
    }
    made = NodeProfile(
        *("n", "c", "2026-01-01", 1, samples, {}, 1e9, memory, 0.0, 0.0),
        encode_s={"f32": 0.0, "f16": 1e-9, "i8": 1e-9},
    )
    return replace(made, **changes).scaled(factor)


def narrowing(scale, a, b, x):
    """The input becomes small, then the work is heavy: the place to cut is in between."""
    small = np.maximum(x @ (a * scale), 0)
    return np.tanh(small @ b) @ b.T


SHAPES = ((), (2000, 16), (16, 3000), (4, 2000))
RESIDENT = (0, 1, 2)


@pytest.fixture(scope="module")
def function():
    return trace(narrowing, *(TensorType(F32, s) for s in SHAPES)).function


def model_of(function, links=(SLOW,), profiles=None, **options):
    profiles = profiles or [node(20.0), node()]
    return problem_of(function, RESIDENT, profiles, links, Options(**options))


def test_each_operation_that_moves_is_of_one_item_and_items_are_in_order(function):
    model = model_of(function)
    owned = [n for ops in model.groups for n in ops]
    assert sorted(owned) == [n for n, moves in enumerate(model.graph.moves) if moves]
    for tensor in model.problem.tensors:
        assert all(tensor.producer is None or tensor.producer < c for c in tensor.consumers)
    labels = model.labels([1] * len(model.groups))
    shared = [n for n, tier in enumerate(labels) if tier == SHARED]
    assert shared == [n for n, moves in enumerate(model.graph.moves) if not moves]


def test_a_weight_that_is_made_into_another_counts_where_it_is_read(function):
    model = model_of(function)
    held = sum(item.memory for item in model.problem.items)
    assert held >= 4 * (2000 * 16 + 16 * 3000)


def test_the_cut_lies_where_the_tensor_is_small_and_follows_the_bandwidth(function):
    narrow = placed(model_of(function), solve)
    assert {0, 1} <= set(narrow.cut.labels)
    assert narrow.placement.up_bytes == (4 * 4 * 16,)
    wide = placed(model_of(function, [FAST], [node(50.0), node()]), solve)
    assert set(wide.cut.labels) - {SHARED} == {1}
    alone = placed(model_of(function, [replace(SLOW, latency_s=10.0)]), solve)
    assert set(alone.cut.labels) - {SHARED} == {0}


def test_what_the_model_says_of_its_cut_is_what_it_said_of_the_placement(function):
    link = LinkProfile.parse("100kbit/s,1ms")
    model = model_of(function, [link], wires=("f32", "f16", "i8"))
    best = solve(model.problem)
    cut = Cut.from_bytes(model.cut(best, "ab" * 32, "infer").to_bytes())
    again = model.of_cut(cut)
    assert again.cost == pytest.approx(best.cost) and again.up_bytes == best.up_bytes
    assert set(cut.wires.values()) == {"i8"}
    assert again.up_bytes == (4 * 16,)
    assert not set(cut.wires) & set(model.graph.results)


def test_a_cut_through_a_fused_loop_is_refused(function):
    model = model_of(function)
    fused = next(ops for ops in model.groups if len(ops) > 1)
    labels = list(model.labels([1] * len(model.groups)))
    labels[fused[0]] = 0
    with pytest.raises(PlacementError, match="fused loop"):
        model.of_cut(Cut(tuple(labels)))


def test_an_input_that_must_stay_keeps_what_reads_it_on_the_device(function):
    free = placed(model_of(function, [FAST], [node(50.0), node()]), solve)
    assert free.placement.up_bytes == (4 * 4 * 2000,)
    pinned = model_of(function, [FAST], [node(50.0), node()], ceilings={3: 0})
    kept = placed(pinned, solve)
    assert kept.placement.up_bytes[0] < free.placement.up_bytes[0]
    readers = pinned.graph.consumers[3]
    assert all(kept.cut.labels[n] == 0 for n in readers)


def test_an_operation_runs_where_it_is_pinned(function):
    dot = next(n for n, op in enumerate(function.body.ops) if op.name == "dot")
    made = placed(model_of(function, [FAST], [node(50.0), node()], pins={dot: 0}), solve)
    assert made.cut.labels[dot] == 0
    group = next(ops for ops in model_of(function).groups if len(ops) > 1)
    with pytest.raises(PlacementError, match="pinned to different"):
        model_of(function, pins={group[0]: 0, group[1]: 1})


def test_parts_fit_the_memory_that_tiers_have(function):
    limits = (300 * KIB, None)
    made = placed(model_of(function, [replace(SLOW, latency_s=10.0)], memory=limits), solve)
    assert made.memory[0] <= 300 * KIB < 4 * 16 * 3000 + 4 * 16 * 2000
    assert set(made.cut.labels) - {SHARED} != {0}
    assert made.memory == memory_of(made.model.parts(made.cut), 2)
    with pytest.raises(PlacementError):
        placed(model_of(function, memory=(KIB, KIB)), solve)


def test_bytes_stay_bytes_and_results_are_written_as_they_are():
    f = trace(
        lambda w, x: (x.astype(np.float32) @ w) @ w.T,
        TensorType(F32, (64, 8)),
        TensorType(U8, (2, 64)),
    ).function
    model = problem_of(f, (0,), [node(99.0), node()], [SLOW], Options(wires=("i8",)))
    wires = {
        v: [w.dtype for w in t.wires]
        for v, t in zip(model.values, model.problem.tensors, strict=True)
    }
    assert wires[1] == ["u8"]
    assert all(wires[r] == ["f32"] for r in model.graph.results)
    assert ["i8"] in wires.values()


def test_three_tiers_and_energy_are_part_of_the_problem(function):
    device = node(20.0, joules_per_second=2.0, joules_per_byte=1e-6)
    model = problem_of(
        *(function, RESIDENT, [device, node(4.0), node()], [SLOW, FAST]),
        Options(objective=Objective(latency=0.0, energy=1.0)),
    )
    alone = price(model.problem, [0] * len(model.groups))
    assert alone.joules == pytest.approx(2.0 * alone.tier_seconds[0])
    assert solve(model.problem).joules < alone.joules
    with pytest.raises(PlacementError, match="links between"):
        problem_of(function, RESIDENT, [device, node()], [SLOW, FAST])


# -- plans


def test_a_plan_has_the_best_cut_for_every_bandwidth(function):
    profiles = [node(20.0), node()]
    plan = plan_of(function, RESIDENT, profiles, [SLOW], bundle="ab" * 32, program="infer")
    assert plan.pieces[0].low < plan.pieces[-1].high
    pairs = zip(plan.pieces, plan.pieces[1:], strict=False)
    assert all(a.high == b.low for a, b in pairs) and len(plan.pieces) >= 2
    for k, piece in enumerate(plan.pieces):
        up = (piece.low * piece.high) ** 0.5
        assert plan.at(up) == k
        link = replace(SLOW, up=up, down=up)
        times = [p.seconds([link]) for p in plan.pieces]
        assert min(times) == pytest.approx(times[k])
        model = problem_of(function, RESIDENT, profiles, [link])
        assert times[k] == pytest.approx(solve(model.problem).latency)
        assert piece.memory == memory_of(model.parts(Cut.from_bytes(piece.cut)), 2)
    assert plan.at(0.0) == 0 and plan.at(1e12) == len(plan.pieces) - 1


def test_a_plan_for_a_stream_counts_the_slowest_stage(function):
    options = Options(objective=Objective(latency=0.0, throughput=1.0))
    plan = plan_of(function, RESIDENT, [node(20.0), node()], [SLOW], options)
    slowest = [max(p.tiers) for p in plan.pieces]
    assert slowest[-1] < slowest[0]


def test_a_plan_is_read_as_it_was_written_and_damage_is_told(function):
    plan = plan_of(function, RESIDENT, [node(20.0), node()], [SLOW])
    assert PlacementPlan.from_json(plan.to_json()) == plan
    body = json.loads(plan.to_json())
    damaged = [
        {**body, "format": 9},
        {**body, "pieces": []},
        {**body, "links": []},
        {**body, "links": [{"up": -1, "down": 1, "latency_s": 0, "loss": 0}]},
        {**body, "pieces": [{**body["pieces"][0], "cut": "?"}]},
        {**body, "pieces": [{**body["pieces"][0], "tiers": [1, float("inf")]}]},
        {**body, "pieces": [{**body["pieces"][0], "up": []}]},
        {**body, "pieces": body["pieces"][::-1]},
        {k: v for k, v in body.items() if k != "profiles"},
    ]
    for one in damaged:
        with pytest.raises(DelianError, match=r"plan\.json"):
            PlacementPlan.from_json(json.dumps(one), "plan.json")
