"""What a report on a cascade says, with models whose every answer is known."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp
from delian.core.placement.cascade.hard_examples import make
from delian.core.placement.cut.link_model import LinkProfile
from delian.simulations.placement.cascading import (
    Goal,
    Surroundings,
    interval,
    lines_of,
    measure,
    page,
)

#: 1 kB/s and 10 ms: a row of two f32 takes 8 ms up, an answer of two 8 ms down.
AROUND = Surroundings(LinkProfile(1000.0, 1000.0, 0.01))


def linear(weights):
    """A bundle whose answer to x is x @ weights, f32[2, 2]."""
    data = SampleSet(np.zeros((4, 2), np.float32), np.zeros(4, np.int64), np.array(4), np.array(0))
    made = build(
        Classification("linear", lambda key: Mlp.init(key, 2, (), 2), Samples(4, 1.0)),
        FedAvg(),
        data,
        example=TensorType(DType.F32, (4, 2)),
        clip=5.0,
        clients_max=4,
        weight_max=4.0,
        seed=1,
    )
    leaves = {leaf.name: leaf for leaf in made.manifest.state}
    matrix = np.array(weights, np.float32)
    given = [
        matrix.reshape(-1) if leaf.shape == (2, 2) else np.zeros(leaf.size, np.float32)
        for leaf in leaves.values()
    ]
    return replace(made, weights=np.concatenate(given))


@pytest.fixture(scope="module")
def models():
    """The large one sees which number is larger; the small one only the first, and is torn where
    that is near zero.
    """
    return linear([[0.0, 1.0], [0.0, 0.0]]), linear([[-3.0, 3.0], [-3.0, 3.0]])


@pytest.fixture(scope="module")
def rows():
    x = np.random.default_rng(5).normal(size=(1001, 2)).astype(np.float32)
    return x, (x.sum(axis=1) > 0).astype(np.int64)


def report(models, rows, goal, chosen="Threshold", **more):
    return measure(*models, *rows, make(chosen), goal, backend="reference", **more)


def test_half_of_the_rows_choose_and_the_others_judge(models, rows):
    facts = report(models, rows, Goal(share=0.3), around=AROUND)
    assert facts["rows"] == {"calibrating": 500, "judging": 501}
    assert facts["calibrated"]["share"] == 0.3
    assert abs(facts["cascade"]["share"] - 0.3) < 0.07
    assert facts["large"]["accuracy"] == 1.0
    assert 0.7 < facts["small"]["accuracy"] < 0.8
    # What the filter sends up is what the small model gets wrong, more than chance would have it.
    at_random = 0.7 * facts["small"]["accuracy"] + 0.3
    assert facts["cascade"]["accuracy"] > at_random + 0.03
    assert facts["oracle"] == facts["oracle"] | {
        "accuracy": 1.0,
        "share": pytest.approx(1 - facts["small"]["accuracy"]),
    }


def test_other_seeds_judge_by_other_rows(models, rows):
    first, again, other = (
        report(models, rows, Goal(share=0.3), around=AROUND, seed=seed) for seed in (1, 1, 2)
    )
    assert first["cascade"]["accuracy"] == again["cascade"]["accuracy"]
    assert first["threshold"] == again["threshold"] != other["threshold"]


def test_bytes_and_latency_are_those_of_the_link(models, rows):
    facts = report(models, rows, Goal(share=0.25), around=AROUND)
    assert facts["bytes"] == {"up": 8, "down": 8, "wire": "f32"}
    one = facts["cascade"]
    assert one["bytes_up"] == pytest.approx(8 * one["share"])
    both = facts["small"]["seconds"] + facts["large"]["seconds"]
    assert one["hard_latency_s"] == pytest.approx(0.02 + 0.016 + both)
    above = 0.036 + facts["large"]["seconds"]
    assert one["latency_s"] == pytest.approx(facts["small"]["seconds"] + one["share"] * above)


def test_a_narrow_wire_is_fewer_bytes_and_what_the_large_model_is_judged_on(models, rows):
    x = rows[0].copy()
    x[:, 0] *= 1000.0  # in 254 steps of several units the second number is lost
    labels = (x[:, 1] > 0).astype(np.int64)
    only_second = linear([[0.0, 0.0], [-3.0, 3.0]])
    goal, narrow = Goal(share=1.0), replace(AROUND, wire="i8")
    exact = report((models[0], only_second), (x, labels), goal, around=AROUND)
    lossy = report((models[0], only_second), (x, labels), goal, around=narrow)
    assert (exact["bytes"]["up"], lossy["bytes"]["up"]) == (8, 2)
    assert exact["large"]["accuracy"] == 1.0 > lossy["large"]["accuracy"] + 0.1


def test_an_accuracy_is_asked_for_or_promised(models, rows):
    asked = report(models, rows, Goal(accuracy=0.9), around=AROUND)
    promised = report(models, rows, Goal(accuracy=0.9, failure=0.01), around=AROUND)
    assert asked["calibrated"]["accuracy"] >= 0.9
    assert promised["calibrated"]["share"] > asked["calibrated"]["share"]
    assert promised["cascade"]["accuracy"] >= 0.9


def test_the_curve_runs_from_one_model_to_the_other(models, rows):
    facts = report(models, rows, Goal(share=0.3), "CrossEntropy", around=AROUND)
    first, last = facts["curve"][0], facts["curve"][-1]
    assert (first["share"], first["accuracy"]) == (0.0, facts["small"]["accuracy"])
    assert (last["share"], last["accuracy"]) == (1.0, facts["large"]["accuracy"])
    assert json.loads(json.dumps(facts)) == facts
    assert any(line.startswith("chosen") for line in lines_of(facts))
    assert "<svg" in page(facts) and "CrossEntropy" in page(facts)


def test_an_interval_is_wilson_s():
    # 8 of 10: worked by hand, (0.8 + 0.19207) / 1.38414 -+ 0.22628 / 1.38414
    low, high = interval(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=2e-4)
    assert interval(10, 10)[1] == 1.0


def test_what_cannot_be_measured_is_refused(models, rows):
    x, y = rows
    for wrong, goal, words in (
        ((x[:, :1], y), Goal(share=0.1), "infer takes rows"),
        ((x, y[:5]), Goal(share=0.1), "one label for each"),
        ((x, y.astype(np.float32)), Goal(share=0.1), "whole numbers"),
        ((x, y), Goal(), "for a share or for an accuracy"),
        ((x, y), Goal(share=0.1, accuracy=0.9), "for a share or for an accuracy"),
    ):
        with pytest.raises(DelianError) as refused:
            report(models, wrong, goal, around=AROUND)
        assert words in str(refused.value)
