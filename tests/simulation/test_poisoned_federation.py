"""A federation with hostile devices, through all three tiers: what a plan's rule is worth."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import Outcome
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.scenario.federation_plan import FederationPlan
from support.stub_training import StubTraining

RING = RingPlan(clip=10.0, clients_max=64, dimension=20)
MEAN, MEDIAN = "weighted_mean", "median"
HOSTILE = frozenset(range(0, 20, 5))


class Attacked(StubTraining):
    """Honest devices move every coordinate by one; a hostile one pulls the other way, as hard as
    the clip lets it.
    """

    def update_of(self, device, key):
        step = RING.scale * (-9.9 / np.sqrt(RING.dimension) if device in HOSTILE else 0.1)
        weight = self.weight_steps * (2 if device in HOSTILE else 1) / RING.weight_scale
        steps = np.full(RING.length, int(step * weight), np.int64)
        steps[-1] = weight * RING.weight_scale
        return steps.astype(np.uint32)

    def _train(self, device, key):
        return Outcome(self.update_of(device, key), examples=10, loss=1.0)


def trained(rule, **changes) -> tuple[np.ndarray, list]:
    settings = {"rounds": 3, "cohort": 14, "ring": RING, "fleet": Fleet(20, 3), **changes}
    records = []
    bears = {"rule": rule, "hostile": 0.3} if rule != MEAN else {}
    plan = FederationPlan.of(**settings, **bears, over_selection=1.0)
    federation = Federation(plan, Attacked(RING), seed=2)
    federation.run(records.append)
    return federation.weights, records


@pytest.mark.parametrize("rule", [MEDIAN, "trimmed_mean", "multi_krum"])
def test_hostile_devices_take_the_mean_where_they_want_and_a_rule_holds(rule):
    weights, records = trained(rule)
    assert all(r.succeeded and len(r.reported) == 14 for r in records)
    assert any(HOSTILE.intersection(r.reported) for r in records)
    np.testing.assert_allclose(weights, 0.3, atol=1e-4)
    lost, _ = trained(MEAN)
    assert (lost < -0.5).all()


def test_a_run_by_a_rule_is_the_same_twice():
    one, two = trained(MEDIAN), trained(MEDIAN)
    assert np.array_equal(one[0], two[0]) and one[1] == two[1]
