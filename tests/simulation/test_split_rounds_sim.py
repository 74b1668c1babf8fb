"""Rounds whose devices train with their edges, in virtual time: the model of devices that train
alone, and what becomes of a round whose edge or device is lost.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.cloud.protocol.run_plan import PlanError
from delian.core.common.errors import DelianError
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.split_training.measured_link import MeasuredLink
from delian.core.placement.split_training.run_step import RunStep
from delian.core.protocol.ports import SECOND, Outcome, ProgramStopped
from delian.core.wire.blob_pb2 import BlobRef
from delian.simulations.federation import split_rounds
from delian.simulations.federation.fault_settings import Crash, Faults
from delian.simulations.federation.federation import Federation
from delian.simulations.runs.stage import Stage
from delian.simulations.scenario.scenario_file import load, override

#: A device that is so slow that all but its first layer is best above; whole rounds.
SPLIT = {
    "split.enabled": True,
    "split.on_device": ["layers.0.*"],
    "split.device_gflops": 0.001,
    "split.edge_gflops": 5.0,
    "network.device_edge.latency_ms": 1.0,
    "network.device_edge.jitter_ms": 0.0,
}
COMMON = {
    "rounds": 2,
    "round.cohort": 6,
    "round.reports_min": 3,
    "round.timeout_ms": 180_000,
    "data.held_out_devices": 0,
    "algorithm.learning_rate": 0.05,
    "fleet.dropout": 0.0,
}


def run(**changes: Any) -> Any:
    settings = {**COMMON, **changes}
    return dl.simulate("digits", devices=6, algorithm="fedavg", settings=settings, threads=2)


def largest_difference(one: Any, other: Any) -> float:
    return max(float(np.abs(one.weights[n] - other.weights[n]).max()) for n in one.weights)


@pytest.fixture(scope="module")
def alone() -> Any:
    return run()


@pytest.fixture(scope="module")
def split() -> Any:
    return run(**SPLIT)


def test_devices_and_edges_make_the_update_that_devices_make_alone(alone: Any, split: Any) -> None:
    assert largest_difference(alone, split) < 1e-6
    one, other = ([r.reported for r in found.result.rounds] for found in (alone, split))
    assert one == other == [6, 6]


def test_what_devices_and_edges_exchange_is_counted_and_takes_virtual_time(
    alone: Any, split: Any
) -> None:
    for before, after in zip(alone.result.rounds, split.result.rounds, strict=True):
        assert after.bytes["device_edge_up"] > 5 * before.bytes["device_edge_up"]
        assert after.bytes["edge_cloud_up"] < 1.1 * before.bytes["edge_cloud_up"]
        assert after.virtual_seconds > before.virtual_seconds


def test_it_is_the_same_again_with_any_number_of_threads(split: Any) -> None:
    again = dl.simulate(
        "digits", devices=6, algorithm="fedavg", settings={**COMMON, **SPLIT}, threads=1
    )
    assert again.result.trace_hash == split.result.trace_hash
    assert largest_difference(again, split) == 0.0


def test_adapters_on_a_frozen_model_are_trained_by_both(alone: Any) -> None:
    adapters = {
        "partial.adapters": "lora",
        "partial.targets": ["all-linear"],
        "partial.rank": 2,
        "partial.alpha": 4.0,
        "split.on_device": ["layers.0.*"],
    }
    whole = run(**{k: v for k, v in adapters.items() if k.startswith("partial")})
    found = run(**{**SPLIT, **adapters})
    assert all(name.endswith((".a", ".b")) for name in found.weights)
    assert largest_difference(whole, found) < 1e-6
    exchanged = [r.bytes["device_edge_up"] for r in found.result.rounds]
    assert min(exchanged) > 2 * whole.result.rounds[0].bytes["device_edge_up"]


def test_updates_without_masks_are_added_alike() -> None:
    plain = {"privacy.aggregation": "plain"}
    assert largest_difference(run(**plain), run(**SPLIT, **plain)) < 1e-6


# ------------------------------------------------ faults


class Watched(split_rounds.SplitRounds):
    """Notes what edges and devices ended with."""

    sums: list[Any]
    ends: list[Any]

    def answer(self, edge: int, effect: Any, weights: Any) -> Any:
        made = super().answer(edge, effect, weights)
        if effect.program == "split_end" and effect.arguments[1]:
            type(self).sums.append(made)
        return made

    def ended(self, device: int, outcome: Any) -> Any:
        made, told = super().ended(device, outcome)
        type(self).ends.append(made)
        return made, told


def federation(monkeypatch: Any, faults: Faults | None = None, **changes: Any) -> Any:
    """A run of the scenario, with faults at moments of virtual time; and its records."""
    Watched.sums, Watched.ends = [], []
    monkeypatch.setattr(split_rounds, "SplitRounds", Watched)
    lines = [
        f"{name}={json.dumps(value)}"
        for name, value in {**COMMON, **SPLIT, "fleet.devices": 6, **changes}.items()
        if not name.startswith("algorithm.")
    ]
    fedavg = 'algorithm={name="fedavg", learning_rate=0.05}'
    scenario = override(load("digits"), [fedavg, *lines])
    stage = Stage(scenario, None, None, "native", lambda event: None)
    with stage.workers(1) as workers:
        training = stage.training(workers, lambda done, of: None)
        plan = stage.plan(training.ring)
        if faults is not None:
            plan = plan.but(faults=faults)
        made = Federation(plan, training, seed=1)
        return made.run(), training


def test_an_edge_that_crashes_in_a_round_loses_it_and_nothing_half_done_counts(
    monkeypatch: Any, split: Any
) -> None:
    # Trainings take some 10 s of virtual time; the edge is gone in their middle.
    crash = Faults(crashes=(Crash(edge=0, at_s=8.0, back_s=9.0),))
    result, training = federation(monkeypatch, crash)
    assert any(isinstance(end, ProgramStopped) for end in Watched.ends)
    applied = [r for r in result.rounds if r.succeeded]
    assert len(applied) == 2 and not result.failed
    assert np.isfinite(training.state).all()
    whole = sum(isinstance(end, Outcome) and end.split != b"" for end in Watched.ends)
    assert sum(len(r.reported) for r in result.rounds) <= whole


def test_a_device_that_vanishes_in_a_training_is_in_no_sum(monkeypatch: Any) -> None:
    result, _ = federation(monkeypatch, **{"fleet.dropout": 0.4})
    assert any(r.dropped for r in result.rounds)
    assert all(isinstance(total, Outcome) for total in Watched.sums)
    assert sum(r.succeeded for r in result.rounds) == 2


@pytest.mark.parametrize("other", [False, True], ids=["of_none", "of_another_device"])
def test_a_device_that_names_a_training_that_it_never_had_costs_its_edge_nothing(
    monkeypatch: Any, other: bool
) -> None:
    original = Watched.ended
    names: dict[int, bytes] = {}

    def ended(self: Any, device: int, outcome: Any) -> Any:
        made, told = original(self, device, outcome)
        names[device] = made.split
        if device == 4:
            others = [name for number, name in names.items() if other and number != 4]
            made = replace(made, split=[b"x" * 16, *others][-1])
        return made, told

    monkeypatch.setattr(Watched, "ended", ended)
    result, training = federation(monkeypatch)
    for record in result.rounds:
        assert record.succeeded
        assert sorted(record.reported) == sorted(set(range(6)) - {4})
        assert set(record.refused) == {4}
    assert all(isinstance(total, Outcome) for total in Watched.sums)
    assert np.isfinite(training.state).all()


def test_an_edge_that_has_lost_one_training_sends_no_sum(monkeypatch: Any) -> None:
    original = split_rounds.EdgeRound.total
    calls = []

    def total(self: Any, parts: Any) -> Any:
        calls.append(parts)
        if len(calls) == 1:
            parts = [(parts[0][0], b"x" * 16), *parts[1:]]
        return original(self, parts)

    monkeypatch.setattr(split_rounds.EdgeRound, "total", total)
    result, _ = federation(monkeypatch)
    assert isinstance(Watched.sums[0], ProgramStopped)
    first = result.rounds[0]
    lost = {device for device, _ in calls[0]}
    assert lost.isdisjoint(first.reported) and lost <= set(first.refused)


# ------------------------------------------------ the cut, and the link


def test_the_cut_moves_with_the_link_between_rounds(split: Any) -> None:
    step = RunStep.of(split.result.bundle)
    assert step is not None
    pieces = step.plan.pieces
    fast = step.best(LinkProfile(1e7, 1e7, 0.001))
    slow = step.best(LinkProfile(1e4, 1e4, 0.001))
    assert fast != slow and step.is_alone(slow) and not step.is_alone(fast)
    assert pieces[fast].up[0] > pieces[slow].up[0]
    # It stays where another gains little, and goes where it gains much.
    at = pieces[fast].low
    edge = LinkProfile(at * 0.999, at * 0.999, step.plan.links[0].latency_s)
    assert step.best(edge, fast) == fast
    assert step.best(LinkProfile(1e4, 1e4, 0.001), fast) == slow


@pytest.mark.parametrize("rate", [2.5e4, 1e6])
def test_a_link_is_measured_by_what_crosses_it(rate: float) -> None:
    measured = MeasuredLink(LinkProfile(1e6, 1e6, 0.02))
    there = LinkProfile(rate, rate / 2, 0.005)
    split_rounds.watch(measured, there, 40_000, 30_000, 32)
    found = measured.profile
    assert found.up == pytest.approx(rate, rel=0.1)
    assert found.down == pytest.approx(rate / 2, rel=0.15)
    assert found.latency_s == pytest.approx(0.005, rel=0.01)
    assert measured.exchanges == 32 and measured.profile.up * SECOND > 0


def test_devices_whose_link_is_slow_train_alone(monkeypatch: Any) -> None:
    _, training = federation(monkeypatch, **{"network.device_edge.bandwidth_mbps": 0.05})
    assert not Watched.sums and training.split is not None
    assert all(training.split.step.is_alone(n) for n in training.split.pieces.values())


# ------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": "fedprox"}, "trained on one tier"),
        ({"partial.personal": ["layers.1.*"]}, "personal leaves"),
        ({"privacy.rotated": True}, "noise and rotation"),
        ({"data.last_batch": "weigh"}, "last_batch"),
        ({"split.on_device": ["nothing.*"]}, "nothing"),
        ({"split.device_gflops": 1e5}, "fastest on the device alone"),
        ({"split.device_profile": "missing.json"}, "missing.json"),
        ({"split.enabled": False}, "split.enabled"),
    ],
)
def test_what_two_tiers_cannot_train_is_said(changes: dict[str, Any], words: str) -> None:
    given = dict(changes)
    algorithm = given.pop("algorithm", "fedavg")
    with pytest.raises(DelianError) as error:
        dl.simulate(
            "digits",
            devices=6,
            algorithm=algorithm,
            settings={**COMMON, **SPLIT, **given},
            threads=1,
        )
    assert words in f"{error.value} {error.value.hint}"


@pytest.mark.parametrize(
    "changes",
    [{"cohorts": 2, "aggregation": "secure"}, {"mode": "buffered", "buffer": 4, "concurrency": 8}],
)
def test_a_plan_that_edges_cannot_keep_is_refused(split: Any, changes: dict[str, Any]) -> None:
    scenario = override(load("digits"), ["fleet.devices=12", "data.held_out_devices=0"])
    stage = Stage(scenario, None, None, "reference", lambda event: None)
    plan = stage.plan(stage.runtime.ring).but(**changes)
    weights = BlobRef(digest=b"w" * 32, size=4 * plan.ring.dimension)
    asked = plan.run_plan(BlobRef(digest=b"b" * 32, size=9), weights, 1)
    with pytest.raises(PlanError, match="train with their edges"):
        replace(asked, split=True).check()


@pytest.mark.parametrize(
    "change",
    [
        {"ceilings": [[0, float("inf")]]},
        {"ties": [[0]]},
        {"states": float("nan")},
        {"epochs": "many"},
        {"epochs": 0},
        {"plan": None},
        {"plan": {"pieces": []}},
        {"ceilings": 3},
    ],
    ids=str,
)
def test_a_step_of_a_bundle_that_makes_no_sense_is_refused(
    split: Any, change: dict[str, Any]
) -> None:
    bundle = split.result.bundle
    said = {**bundle.manifest.split, **change}
    with pytest.raises(DelianError):
        RunStep.of(replace(bundle, manifest=replace(bundle.manifest, split=said)))
