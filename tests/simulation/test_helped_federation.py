"""Buffered runs whose updates helpers unmask, from end to end in virtual time: the models are those
of a run whose updates are not masked, whatever is lost, and the helpers see what they may.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import delian.simulations.federation.federation as federation
import numpy as np
import pytest
from delian.cloud.protocol import buffered, staleness
from delian.cloud.protocol.staleness import staleness_weight
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import Node, Received, RunProgram, Tier
from delian.core.wire.helper_pb2 import HelpRequest
from delian.device.protocol.device_state import DevicePolicy
from delian.simulations.federation import nodes
from delian.simulations.federation.fault_settings import Crash, Faults, Silence
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import DeviceClass, Fleet
from delian.simulations.federation.network import LINKS, LinkProfile
from delian.simulations.scenario.federation_plan import FederationPlan
from support.stub_training import StubTraining

RING = RingPlan(clip=1.0, clients_max=64, dimension=100)
INSTANT = LinkProfile(latency_ms=0.0, up_mbps=1e9, down_mbps=1e9)
MIXED = {"fast": DeviceClass(1e11), "slow": DeviceClass(4e8)}


def secure(helpers=0, cohort_min=3):
    return {
        "aggregation": "secure",
        "cohort_min": cohort_min,
        "corrupt": 0.1,
        "dropout": 0.1,
        "helpers": helpers,
    }


def plan(**changes):
    settings = {
        "rounds": 6,
        "cohort": 6,
        "mode": "buffered",
        "buffer": 6,
        "concurrency": 12,
        "ring": RING,
        "fleet": Fleet(20, 3),
        "over_selection": 1.0,
        **changes,
    }
    return FederationPlan.of(**settings)


def run(made, seed=1, observer=None):
    one = Federation(made, StubTraining(made.ring), seed, observer=observer)
    return one.run(), one.weights


@pytest.fixture
def steps(monkeypatch):
    """What each model was made of: [(age, devices)], the step, and what FedBuff would have made."""
    found = []
    aggregate = buffered.Buffered._aggregate

    def spy(self):
        before = len(self.out.effects)
        aggregate(self)
        for effect in self.out.effects[before:]:
            if isinstance(effect, RunProgram):
                ages = [(self.state.round - p.round, len(p.unused)) for p in self.state.batch]
                found.append((ages, [b.factor for b in self.state.opening], *effect.arguments))

    monkeypatch.setattr(buffered.Buffered, "_aggregate", spy)
    return found


@pytest.mark.parametrize(("helpers", "bits"), [((3,), 32), ((3, 4), 32), ((3, 4), 24)])
def test_where_ages_count_alike_the_models_are_those_of_a_run_without_masks(
    helpers, bits, monkeypatch
):
    """What is asked of helpers takes no time here: both runs see the same at the same moments."""
    monkeypatch.setitem(federation.TAKES_NS, "masks", 0)
    monkeypatch.setattr(staleness, "staleness_weight", lambda tau: 1.0)
    fleet = Fleet(20, 3, {"fast": 1.0, "slow": 1.0}, MIXED, link=INSTANT)
    ring = replace(RING, bits=bits)
    instant = plan(fleet=fleet, edge_link=INSTANT, rounds=8, ring=ring)
    plain, weights = run(instant)
    helped, same = run(instant.but(**secure(len(helpers))))
    assert [r.reported for r in helped.rounds] == [r.reported for r in plain.rounds]
    assert len(plain.rounds) == 8 and helped.counts["helped"] >= 8 * len(helpers)
    np.testing.assert_allclose(same, weights, rtol=1e-5, atol=1e-5 * abs(weights).max())


def test_updates_of_several_ages_weigh_what_they_weigh_on_average(steps, monkeypatch):
    monkeypatch.setitem(federation.TAKES_NS, "masks", 0)
    fleet = Fleet(20, 3, {"fast": 1.0, "slow": 1.0}, MIXED, link=INSTANT)
    mixed = plan(fleet=fleet, edge_link=INSTANT, rounds=8)
    run(mixed)
    plain = [(ages, step, weight) for ages, _, step, weight in steps]
    steps.clear()
    run(mixed.but(**secure(1)))
    assert [sorted(a) for a, *_ in steps] == [sorted(a) for a, *_ in plain]
    assert any(len({age for age, _ in ages}) > 1 for ages, *_ in steps), "some have several ages"
    for (ages, factors, step, weight), (_, expected, same) in zip(steps, plain, strict=True):
        assert weight == same
        if len({age for age, _ in ages}) == 1:
            np.testing.assert_array_equal(step, expected)
        if len(factors) == 1:
            count = sum(n for _, n in ages)
            mean = sum(staleness_weight(age) * n for age, n in ages) / count
            assert factors[0] == pytest.approx(mean)


def test_devices_that_are_slow_away_or_lost_on_a_poor_link_hold_nobody_up():
    fleet = Fleet(24, 3, {"phone": 1.0, "board": 1.0}, link=LINKS["poor"], dropout=0.2)
    result, _ = run(plan(fleet=fleet, **secure(2), edge_link=LINKS["lte"]), seed=3)
    assert not result.failed and [r.round for r in result.rounds if r.succeeded] == [*range(1, 7)]
    assert result.counts["helped"] >= 12


def test_helpers_see_batches_of_enough_devices_and_no_seed_twice():
    seen, batches = Counter(), {}

    def observe(_, host, event):
        if isinstance(event, Received) and isinstance(event.message, HelpRequest):
            request = event.message
            named = [
                (part.task.round, part.task.attempt, one.device)
                for part in request.parts
                for one in part.devices
            ]
            if batches.setdefault((host.node, request.batch), named) is named:
                seen.update((host.node, *name) for name in named)
                assert len({device for *_, device in named}) >= 4

    fleet = Fleet(20, 3, {"phone": 1.0, "board": 1.0}, link=LINKS["wifi"], dropout=0.1)
    result, _ = run(plan(fleet=fleet, **secure(2, cohort_min=4)), 2, observe)
    assert not result.failed and {node for node, _ in batches} == {
        Node(Tier.EDGE, 3),
        Node(Tier.EDGE, 4),
    }
    assert set(seen.values()) == {1}


def test_a_helper_that_is_silent_for_a_while_only_delays_a_model():
    silent = Faults(silences=(Silence(edge=3, from_s=3.0, to_s=20.0),))
    result, _ = run(plan(**secure(2), faults=silent))
    assert not result.failed and all(r.succeeded for r in result.rounds)
    assert result.virtual_ns > 20e9


def test_a_helper_that_loses_its_key_costs_what_was_sealed_to_it_and_no_more():
    crash = Faults(crashes=(Crash(edge=3, at_s=3.0, back_s=6.0),))
    result, _ = run(plan(**secure(1), faults=crash, timeout_ms=20_000))
    assert not result.failed
    assert [r.round for r in result.rounds if r.succeeded] == [*range(1, 7)]


def test_a_coordinator_that_restarts_asks_for_the_same_again():
    again = Faults(restarts_s=(2.0, 3.0, 4.0, 5.0, 6.0))
    result, _ = run(plan(**secure(2), faults=again))
    assert not result.failed and len(result.rounds) == 6


def test_evaluations_beside_it_have_sessions():
    result, _ = run(plan(**secure(1), evaluation_every=2, evaluation_cohort=5))
    assert not result.failed and len(result.evaluations) == 3
    assert result.counts["session"] >= 3 and result.counts["helped"] >= 6


def test_without_helpers_nothing_is_done():
    """A plan that names an edge that is nobody: no wave begins, and the run says why."""
    named = plan(**secure(1), attempts_max=2)
    made = Federation(named, StubTraining(RING), 1)
    made.hosts[Node(Tier.EDGE, 3)].machine.edge.mask_helper.helper = None
    result = made.run()
    assert result.failed == "edge 3 has not said that it helps" and result.updates == 0


def test_devices_whose_owners_let_nobody_help_do_not_train(monkeypatch):
    monkeypatch.setattr(nodes, "trust_in", lambda plan: DevicePolicy().helpers)
    made = Federation(plan(**secure(1), attempts_max=1, timeout_ms=60_000), StubTraining(RING), 1)
    result = made.run()
    assert result.failed == "no updates come" and result.updates == 0


def test_one_seed_gives_one_trace():
    made = plan(**secure(2), fleet=Fleet(16, 2, link=LINKS["wifi"], dropout=0.1))
    one, other = run(made, seed=5)[0], run(made, seed=5)[0]
    assert one.trace_hash == other.trace_hash
