"""Devices that sleep, and that nobody can tell it from what happens."""

from __future__ import annotations

import pytest
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import CLOUD, SECOND, Node, Tier
from delian.device.protocol.device_state import DeviceState, Phase
from delian.simulations.federation import federation as driver
from delian.simulations.federation.dormant import ERA_NS, SLOT_NS, Dormant, may_sleep
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import CLASSES, DeviceClass, Fleet
from delian.simulations.federation.network import LINKS
from delian.simulations.scenario.federation_plan import FederationPlan
from support.stub_training import StubTraining

RING = RingPlan(clip=1.0, clients_max=64, dimension=20)


def federation_of(fleet, **changes):
    settings = {"rounds": 6, "cohort": 6, "ready_per_edge_max": 8, "pool_share": 0.02, **changes}
    return Federation(FederationPlan.of(ring=RING, fleet=fleet, **settings), StubTraining(RING), 3)


COMING_AND_GOING = {"phone": DeviceClass(speed_flops=4e9, availability=0.5, stay_s=20.0)}


@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(400, 2, link=LINKS["wifi"]),
        Fleet(400, 2, link=LINKS["poor"], dropout=0.2),
        Fleet(300, 2, classes=COMING_AND_GOING),
    ],
    ids=["wifi", "poor", "coming and going"],
)
def test_what_happens_is_the_same_where_nobody_sleeps(fleet, monkeypatch):
    asleep = federation_of(fleet)
    result = asleep.run()
    monkeypatch.setattr(driver, "REST_MIN_NS", 10**9 * SECOND)
    awake = federation_of(fleet)
    assert awake.run() == result and not result.failed
    assert len(asleep.hosts) <= len(awake.hosts)


def test_only_those_are_awake_who_have_something_to_do():
    federation = federation_of(Fleet(3_000, 3), rounds=4)
    most = 0

    def look(record):
        nonlocal most
        most = max(most, len(federation.hosts))

    assert not federation.run(look).failed
    assert most < 600, "those who come up just now, are in a pool, or have trained"


def test_a_sleeper_that_is_sent_something_is_as_it_was():
    federation = federation_of(Fleet(300, 2))
    federation.run()
    sleeper = next(
        d
        for d in range(300)
        if Node(Tier.DEVICE, d) not in federation.hosts and federation._dormant.is_up(d)
    )
    host = federation._wake(sleeper)
    state = host.machine.state
    assert host.online and state.phase is Phase.IDLE and state.sequence == 1
    assert state.homes == [sleeper % 2] and list(host.timers) == ["retry"]
    assert federation.hosts[CLOUD].online


class TestDormant:
    def test_who_wakes_first_is_first(self):
        dormant = Dormant(4)
        assert dormant.lay(2, 9) == 0
        assert dormant.lay(0, 7) is None and dormant.lay(1, 9) is None
        assert dormant.lay(3, SLOT_NS) is None
        assert dormant.open(0) == ([0, 1, 2], [SLOT_NS]) and dormant.open(SLOT_NS) == ([3], [])

    def test_what_is_to_be_opened_is_told_once(self):
        dormant = Dormant(4)
        assert dormant.lay(0, ERA_NS + 5) == ERA_NS and dormant.lay(1, 2 * ERA_NS - 1) is None
        assert dormant.lay(2, 2 * ERA_NS) == 2 * ERA_NS
        assert dormant.open(ERA_NS) == ([0], [2 * ERA_NS - SLOT_NS])
        # The era has begun: its slots are told one by one.
        assert dormant.lay(3, ERA_NS + SLOT_NS) == ERA_NS + SLOT_NS
        assert dormant.lay(0, ERA_NS + SLOT_NS) is None
        assert dormant.open(ERA_NS + SLOT_NS) == ([0, 3], [])

    def test_who_was_woken_before_its_time_is_not_woken_again(self):
        dormant = Dormant(2)
        for device in range(2):
            dormant.lay(device, 5)
        assert dormant.wake(0) == 5
        assert dormant.open(0) == ([1], [])
        dormant.lay(0, 2 * ERA_NS)
        dormant.wake(0)
        dormant.lay(0, 2 * ERA_NS + 1)
        assert dormant.open(2 * ERA_NS) == ([0], [])

    def test_an_era_may_begin_in_which_nobody_sleeps_any_more(self):
        dormant = Dormant(1)
        dormant.lay(0, ERA_NS)
        dormant.wake(0)
        assert dormant.open(ERA_NS) == ([], [])

    def test_counters_survive(self):
        dormant = Dormant(1)
        dormant.lay(0, 5)
        dormant.wake(0)
        dormant.remember(DeviceState(0, sequence=4, draws=7), (3, 2))
        dormant.lay(0, 9 * SECOND)
        state, sent, at = dormant.wake(0)
        assert (state.sequence, state.draws, sent, at) == (4, 7, (3, 2), 9 * SECOND)

    def test_who_has_ever_had_a_task_stays_awake(self):
        assert may_sleep(DeviceState(0, phase=Phase.IDLE, homes=[0], sequence=9))
        assert not may_sleep(DeviceState(0, phase=Phase.IDLE, homes=[0], done={1: (1, 1)}))
        assert not may_sleep(DeviceState(0, phase=Phase.READY, homes=[0]))
        assert CLASSES["phone"].availability == 1.0
