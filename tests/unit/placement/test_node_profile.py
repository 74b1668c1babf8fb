"""A node's profile: its file, and what operations cost by it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import DType, TensorType
from delian.core.compiler.ir_codec import content_hash
from delian.core.placement.cut.costs import (
    Rates,
    Work,
    amount,
    modelled_seconds,
    op_seconds,
    steps_of,
)
from delian.core.placement.cut.profile import NodeProfile, Sample

F32 = DType.F32


def profile(**changes):
    """1 G units a second for loops, 10 GFLOP/s for products, 1 GB/s for moves."""
    samples = {
        "loop": (Sample((1000.0, 10.0, 4.0), 4e-6), Sample((100.0, 10.0, 4.0), 4e-7)),
        "product": (Sample((8.0, 10.0, 10.0, 1.0), 1.6e-7),),
        "move": (Sample((1000.0,), 1e-6),),
    }
    facts = {
        **{"name": "n", "cpu": "c", "date": "2026-01-01", "threads": 1, "samples": samples},
        **{"element_s": {"exp": 1e-9}, "bandwidth": 1e9, "memory": 1 << 20, "call_s": 1e-6},
        **{"argument_s": 0.0, "encode_s": {"f32": 0.0}},
    }
    return NodeProfile(**{**facts, **changes})


def traced(f, *shapes):
    return trace(f, *(TensorType(F32, s) for s in shapes)).function


def test_a_profile_is_read_as_it_was_written():
    made = profile(programs={"ab": (0.0, 1e-6)}, joules_per_second=3.0)
    again = NodeProfile.from_json(made.to_json())
    assert again == made and again.digest() == made.digest()
    assert made.scaled(2).digest() != made.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"bandwidth": float("nan")},
        {"bandwidth": 0},
        {"samples": {"loop": [[1, 2]]}},
        {"samples": {"loop": [[1, 2, 3, 0]]}},
        {"samples": {"flying": []}},
        {"samples": {"loop": [[1, 2, 3, 1]] * 10_001}},
        {"programs": {"x": "abc"}},
        {"name": "n" * 300},
        {"memory": "much"},
    ],
)
def test_a_profile_that_is_none_is_refused_by_name(change):
    body = {**json.loads(profile().to_json()), **change}
    with pytest.raises(DelianError, match=r"node\.json"):
        NodeProfile.from_json(json.dumps(body), "node.json")
    with pytest.raises(DelianError, match="not JSON"):
        NodeProfile.from_json("[", "node.json")


def test_a_slower_node_takes_so_many_times_as_long():
    f = traced(lambda x, y: np.exp(x @ y) + 1, (8, 10), (10, 10))
    fast, slow = (sum(op_seconds(f, p)) for p in (profile(), profile().scaled(5)))
    assert slow == pytest.approx(5 * fast)


def test_a_sample_is_met_exactly_and_between_samples_nothing_jumps():
    rates = Rates(profile())
    assert rates.seconds(Work("product", (8.0, 10.0, 10.0, 1.0))) == pytest.approx(1.6e-7)
    times = [rates.seconds(Work("loop", (n, 10.0, 4.0))) for n in (100.0, 300.0, 1000.0)]
    assert times == sorted(times) and times[0] == pytest.approx(4e-7)
    assert amount("convolution", (4.0, 3.0, 2.0, 9.0)) == 2 * 4 * 3 * 2 * 9


def test_a_chain_of_arithmetic_is_one_step_and_views_are_free():
    f = traced(lambda x: (np.exp(x) * 2 + x).T.reshape(-1)[3:], (20, 30))
    steps = [s for s in steps_of(f) if s.works]
    names = [op.name for op in f.body.ops]
    assert {names[i] for i in steps[0].ops} >= {"exp", "mul", "add"}
    seconds = modelled_seconds(f, profile())
    free = {"broadcast", "reshape", "constant"}
    assert all(s == 0 for n, s in zip(names, seconds, strict=True) if n in free)
    alone = traced(lambda x: np.exp(x), (20, 30))
    assert sum(seconds) < 4 * sum(modelled_seconds(alone, profile()))


def test_a_loop_costs_as_often_as_it_runs():
    def f(trips):
        def body(x, w):
            for _ in range(trips):
                x = np.exp(x @ w)
            return x

        return traced(body, (8, 10), (10, 10))

    short, long = (sum(modelled_seconds(f(n), profile())) for n in (100, 400))
    assert 3.5 < long / short < 4.5


def test_measured_times_of_a_program_go_before_classes():
    f = traced(lambda x: np.exp(x), (8, 10))
    own = tuple(float(i) for i in range(len(f.body.ops)))
    known = profile().with_program(content_hash(f), own)
    assert op_seconds(f, known) == own
    assert modelled_seconds(f, known) != own


def test_a_profile_without_loops_says_so():
    f = traced(lambda x: np.exp(x), (8, 10))
    with pytest.raises(DelianError, match="without loops"):
        op_seconds(f, profile(samples={}))


def test_a_program_is_measured_where_its_work_is():
    from delian.core.placement.cut.measure import measured_seconds

    f = traced(lambda x, y, z: np.tanh(x @ y) @ z, (64, 256), (256, 512), (512, 4))
    seconds = measured_seconds(f)
    by_name = {}
    for op, s in zip(f.body.ops, seconds, strict=True):
        by_name.setdefault(op.name, []).append(s)
    assert len(seconds) == len(f.body.ops)
    first, second = by_name["dot"]
    assert first > second > 0


@pytest.mark.parametrize(
    "name",
    [
        *("lenet", "lstm", "transformer"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet20", "mobilenet")),
    ],
)
def test_the_steps_of_models_are_those_that_the_back_end_times(name, placed_models):
    from delian.core.compiler.backends.native import emit
    from delian.core.compiler.passes.pipeline import lowered
    from delian.core.placement.cut.costs import ops_of, tagged

    for function in (placed_models.infer(name)[0], placed_models.step(name)[0].function):
        unit = emit.Unit()
        unit.times = []
        unit.add("timed", lowered(tagged(function)))
        written = [tuple(op.name for op in ops_of(s)) or ("copy",) for s in unit.times]
        found = steps_of(function)
        assert [s.names for s in found if s.timed] == written
        assert all(s.ops for s in found)


@pytest.mark.slow
def test_a_node_is_measured_and_its_profile_tells_what_a_program_takes():
    from delian.core.placement.cut.measure import measure_node, measured_seconds

    made = measure_node(name="here", cpu="this", date="today", memory=None, seconds=1.0)
    assert NodeProfile.from_json(made.to_json()) == made
    f = traced(lambda x, y, z: np.tanh(x @ y) @ z, (64, 256), (256, 512), (512, 64))
    # Two real measurements, of which a busy machine may slow down either: a wrong unit is 1,000.
    assert 1 / 50 < sum(op_seconds(f, made)) / sum(measured_seconds(f)) < 50
