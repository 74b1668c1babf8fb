"""Golden test: the bytes of the plan that each scenario submits, and what a coordinator reads.

`plan_messages.json` was written once; a change of it is a change of behaviour. Data are stood in
for, so that scenarios whose data are not installed are covered too.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from delian.cloud.protocol.run_plan import RunPlan
from delian.core.common.errors import DelianError
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import PlanMessage
from delian.simulations.runs.stage import Stage
from delian.simulations.scenario.scenario_file import bundled, load, override

GOLDEN = Path(__file__).with_name("plan_messages.json")
DIMENSION = 1_000
BUFFERED = ["round.mode=buffered", "round.buffer=10"]
NOISE = ["privacy.epsilon=8.0", "round.reports_min=9"]
FEDERATED = ["evaluation.federated=true"]
LARGE = ["fleet.devices=20000", "privacy.clip=5.0"]
SECURE = "privacy.aggregation=secure"
PLAIN = "privacy.aggregation=plain"

#: Settings on top of a scenario, by a name.
VARIATIONS = {
    "rounds": ["rounds=7", "seed=9223372036854775807"],
    "cohort": ["round.cohort=9", "round.over_selection=1.3", "round.reports_min=4"],
    "cohort without over-selection": ["round.cohort=17", "round.over_selection=1.0"],
    "short deadline": ["round.timeout_ms=250"],
    "uneven deadline": ["round.timeout_ms=1000"],
    "longest deadline": ["round.timeout_ms=86400000"],
    "plain": [PLAIN],
    "secure": [SECURE, "privacy.cohort_min=4", "privacy.corrupt=0.3", "privacy.dropout=0.15"],
    "secure, silent about numbers": [SECURE],
    "three cohorts": [SECURE, "privacy.cohorts=3"],
    "2,000 devices": [*LARGE, SECURE, "round.cohort=2000"],
    "2,000 devices in four cohorts": [*LARGE, SECURE, "round.cohort=2000", "privacy.cohorts=4"],
    "2,000 devices, plain": [*LARGE, PLAIN, "round.cohort=2000"],
    "buffered": ["round.mode=buffered"],
    "buffered, plain": ["round.mode=buffered", "round.buffer=7", PLAIN],
    "buffered in numbers": [*BUFFERED, "round.concurrency=30", "round.staleness_max=5"],
    "helped": [*BUFFERED, "privacy.helpers=2"],
    "one helper": [*BUFFERED, "privacy.helpers=1", "privacy.cohort_min=5"],
    "noise by devices": [*NOISE, "privacy.noise=distributed"],
    "noise by devices in numbers": [
        *(*NOISE, "privacy.noise=distributed", "privacy.delta=1e-5", "privacy.corrupt=0.1"),
        *("privacy.cohort_min=10", "privacy.bits=28"),
    ],
    "noise by the coordinator": [*NOISE, "privacy.noise=central"],
    "rotated noise": [*NOISE, "privacy.noise=distributed", "privacy.rotated=true"],
    "adaptive clip": ["privacy.clip_quantile=0.5"],
    "adaptive clip in numbers": ["privacy.clip_quantile=0.9", "privacy.clip_rate=0.05", SECURE],
    "median": [PLAIN, "round.rule=median"],
    "trimmed mean": [PLAIN, "round.rule=trimmed_mean", "round.hostile=0.2"],
    "krum": [PLAIN, "round.rule=krum", "round.hostile=0.25"],
    "multi-krum": [PLAIN, "round.rule=multi_krum", "round.hostile=0.1"],
    "geometric median": [PLAIN, "round.rule=geometric_median"],
    "clipped mean": [PLAIN, "round.rule=clipped_mean", "round.hostile=0.1"],
    "median of cohorts": [SECURE, "round.rule=median", "privacy.cohorts=3", "privacy.cohort_min=3"],
    "trimmed mean of cohorts": [
        *(SECURE, "round.rule=trimmed_mean", "round.hostile=0.2", "privacy.cohorts=5"),
        *("round.cohort=25", "round.over_selection=1.0", "privacy.cohort_min=4"),
    ],
    "fewer bits": ["privacy.bits=16", "privacy.clip=1.5"],
    "rotated": ["privacy.rotated=true", "privacy.bits=12"],
    "random coordinates": ["privacy.random_k=0.1"],
    "largest coordinates": ["privacy.top_k=0.05", PLAIN],
    "evaluated": [*FEDERATED],
    "evaluated in numbers": [
        *(*FEDERATED, "evaluation.every=3", "evaluation.cohort=5", "evaluation.patience=4"),
        *("evaluation.improvement_min=0.01", "evaluation.rollback_worse=0.5"),
        "evaluation.rollback_accuracy=0.1",
    ],
    "evaluated, buffered": [*BUFFERED, *FEDERATED, "evaluation.patience=2"],
    "evaluated, helped": [*BUFFERED, *FEDERATED, "privacy.helpers=1", "evaluation.cohort=6"],
    "evaluated in cohorts": [*FEDERATED, SECURE, "privacy.cohorts=3"],
    "a chain": ["chain=clip(1) | quantise(16) | mask(least=5) | mean | server(adam, 0.01)"],
    "a chain with noise": [
        "round.reports_min=9",
        "chain=clip(1)|quantise|noise(8)|mask|mean",
    ],
    "a chain, buffered": ["chain=clip(2) | quantise | mask | fedbuff(7)"],
    "three edges, few devices": ["fleet.devices=20", "fleet.edges=2", "round.cohort=8"],
    "own tiers": ["fleet.devices=300", "fleet.edges=30", "network.edge_cloud.latency_ms=1.0"],
}
CASES = {
    **{name: (name, []) for name in bundled()},
    **{f"digits, {name}": ("digits", settings) for name, settings in VARIATIONS.items()},
    "shakespeare, masked": ("shakespeare", [SECURE]),
    "synthetic-mlp, 1,300 devices": ("synthetic-mlp", ["fleet.devices=5000", "round.cohort=1300"]),
}


def message_of(source: str, settings: list[str], masked: bool) -> PlanMessage:
    """The plan that a scenario submits. masked: by default."""
    scenario = override(load(source), settings)
    devices = scenario.fleet.devices or 40
    training = range(devices - getattr(scenario.data, "held_out_devices", 0))
    stage = object.__new__(Stage)
    stage.scenario, stage._given = scenario, None
    stage.data = SimpleNamespace(training=training)
    stage.bundle = SimpleNamespace(
        manifest=SimpleNamespace(metrics=("f1", "top_2"), frozen_parts=(), split={})
    )
    chain = stage.chain()
    plan = scenario.plan()
    promise = chain.promise(plan.rounds, plan.reports_min)
    ring = chain.ring(DIMENSION, plan.selected, promise).base
    bundle = BlobRef(digest=b"b" * 32, size=100)
    weights = BlobRef(digest=b"w" * 32, size=4 * DIMENSION)
    return stage.plan(ring, masked).message(bundle, weights, scenario.seed)


def read(message: PlanMessage) -> dict[str, object]:
    """What a coordinator makes of the plan, or the field that it refuses."""
    try:
        plan = RunPlan.from_message(1, message)
    except DelianError as fault:
        return {"refused": getattr(fault, "field", "")}
    enough = max(plan.selected, plan.round.pool_min or 0)
    times = [plan.timeout_ns, plan.margin_ns, plan.wait_ns, plan.rest_ns]
    return {
        "chain": str(plan.chain),
        "times_ms": [ns // 1_000_000 for ns in times],
        "devices": [plan.cohort, plan.selected, enough, plan.reports_min, plan.cohort_min],
        "cohorts": [plan.cohorts, plan.cohorts_min],
        "evaluation": [plan.evaluation_cohort, plan.evaluation_selected, plan.evaluation_min],
        "bytes": plan.report_bytes,
    }


def made() -> dict[str, dict[str, object]]:
    """All cases as the golden file has them; masked by default, those that differ then."""
    found: dict[str, dict[str, object]] = {}
    for name, (source, settings) in CASES.items():
        for masked in (False, True):
            message = message_of(source, settings, masked)
            content = message.SerializeToString(deterministic=True)
            entry = {"bytes": content.hex(), "read": read(message)}
            if not masked or entry != found[name]:
                found[f"{name}{', masked' * masked}"] = entry
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_scenario_submits_the_same_bytes_as_ever(name, masked):
    golden = json.loads(GOLDEN.read_text())
    expected = golden.get(f"{name}, masked", golden[name]) if masked else golden[name]
    message = message_of(*CASES[name], masked)
    assert message == PlanMessage.FromString(bytes.fromhex(expected["bytes"]))
    assert message.SerializeToString(deterministic=True).hex() == expected["bytes"]
    assert read(message) == expected["read"]
