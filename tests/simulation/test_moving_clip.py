"""Runs whose clip follows their devices' updates, through all tiers: the devices say under their
masks whether they were within it, and the coordinator moves it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delian.cloud.protocol.run_plan import PlanError, RunPlan
from delian.core.privacy.mechanisms import noise_mechanism
from delian.core.privacy.mechanisms.noise_mechanism import PrivacyTarget
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import GEOMETRIC_MEDIAN, Aggregation
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.scenario.federation_plan import FederationPlan
from support.stub_training import StubTraining

COHORT, QUANTILE = 20, 0.6
PLAIN = RingPlan(clip=8.0, clients_max=COHORT, dimension=60)
SECURE = {"aggregation": "secure", "cohort_min": COHORT - 2, "corrupt": 0.1, "dropout": 0.1}
#: Lengths of devices' updates: a sixth of the clip is the middle.
NORMS = np.exp(np.random.default_rng(3).normal(np.log(8 / 6), 0.5, COHORT))


class Training(StubTraining):
    """Each device's update has its own length, in the same direction."""

    def update_of(self, device, key):
        steps = np.full(self.plan.made, 0, np.uint32)
        each = NORMS[device] / np.sqrt(self.plan.dimension)
        steps[:-1] = np.int32(each * self.plan.scale)
        steps[-1] = int(self.plan.weight_scale)
        return steps


def noise_of(promise):
    """The settings of a privacy target."""
    if promise is None:
        return {}
    asked = {"epsilon": promise.epsilon, "delta": promise.delta, "noise_corrupt": promise.corrupt}
    return {"noise": "central" if promise.central else "distributed", **asked}


def plan_of(rounds, ring=PLAIN, promise=None, **changes):
    settings = {
        "rounds": rounds,
        "cohort": COHORT,
        "reports_min": COHORT - 2,
        "ring": ring,
        "fleet": Fleet(COHORT, 2),
        "over_selection": 1.0,
        **SECURE,
        **noise_of(promise),
        "clip_quantile": QUANTILE,
        "clip_rate": 0.6,
        **changes,
    }
    return FederationPlan.of(**settings)


def federation(*settings, **changes):
    plan = plan_of(*settings, **changes)
    return Federation(plan, Training(plan.ring.base), seed=1)


def steps_of(made, monkeypatch):
    """Runs it; the clip of each round, as its tasks had it."""
    from delian.core.privacy.secagg.transcript import Session

    clips, true = {}, Session.of

    def of(task):
        clips.setdefault(task.round, task.ring.within)
        assert clips[task.round] == task.ring.within, "one clip a round"
        return true(task)

    monkeypatch.setattr(Session, "of", of)
    result = made.run()
    assert not result.failed
    return [clips[n] for n in sorted(clips)], result


@pytest.mark.parametrize("noised", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_clip_comes_to_the_asked_quantile_of_lengths(noised, monkeypatch):
    rounds, ring, promise = 30 if noised else 20, PLAIN, None
    if noised:
        promise = PrivacyTarget(epsilon=300.0, delta=1e-6, releases=rounds, survivors=COHORT - 2)
        ring = noise_mechanism.planned(PLAIN, promise)
    clips, _ = steps_of(federation(rounds, ring, promise), monkeypatch)
    assert clips[0] > 7.8 and len(clips) == rounds
    settled = [(clip >= NORMS).mean() for clip in clips[-8:]]
    assert np.mean(settled) == pytest.approx(QUANTILE, abs=0.1 if noised else 0.05)


def test_models_are_the_mean_of_updates_that_were_cut(monkeypatch):
    made = federation(2)
    clips, result = steps_of(made, monkeypatch)
    assert [len(r.reported) for r in result.rounds] == [COHORT] * 2
    each = sum(np.minimum(NORMS, clip).mean() for clip in clips) / np.sqrt(PLAIN.dimension)
    np.testing.assert_allclose(made.weights, each, rtol=1e-3)


def test_sparse_updates_of_a_moving_clip_go_together(monkeypatch):
    made = federation(3, replace(PLAIN, kept=20))
    _, result = steps_of(made, monkeypatch)
    assert not result.failed and np.count_nonzero(made.weights) > 20


def message(**changes):
    plan = plan_of(2, changes.pop("ring", PLAIN))
    bundle = BlobRef(digest=bytes(32), size=10)
    weights = BlobRef(digest=bytes(31) + b"1", size=4 * PLAIN.dimension)
    return plan.but(**changes).message(bundle, weights, 1)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("moving_clip.quantile", message(mode="buffered", buffer=6, reports_min=3)),
        (
            "ring.kept",
            message(
                ring=replace(PLAIN, kept=5),
                mode="buffered",
                buffer=6,
                reports_min=3,
                clip_quantile=None,
                clip_rate=0.2,
            ),
        ),
        ("moving_clip.quantile", message(clip_quantile=1.5)),
        ("moving_clip.rate", message(clip_rate=0.0)),
        ("ring.within", message(ring=replace(PLAIN, within=1.0))),
    ],
    ids=["waves", "kept in waves", "quantile", "rate", "within"],
)
def test_what_cannot_be_is_refused_when_it_is_submitted(field, said):
    with pytest.raises(PlanError) as caught:
        RunPlan.from_message(1, said)
    assert caught.value.field == field


def test_a_rule_of_aggregation_is_not_for_it():
    said = message()
    said.ClearField("secure")
    said.aggregation.CopyFrom(Aggregation(rule=GEOMETRIC_MEDIAN, hostile=0.1))
    with pytest.raises(PlanError) as caught:
        RunPlan.from_message(1, said)
    assert caught.value.field == "moving_clip.quantile"
