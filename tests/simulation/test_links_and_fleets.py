"""Links, fleets and virtual time by themselves."""

from __future__ import annotations

import math

import pytest
from delian.core.protocol.ports import MS, SECOND
from delian.core.protocol.random_streams import Streams
from delian.simulations.federation.fleet import CLASSES, DeviceClass, Fleet
from delian.simulations.federation.network import Channel, LinkProfile
from delian.simulations.federation.process_tuning import keep_freed_memory
from delian.simulations.federation.virtual_time import Schedule

STREAMS = Streams(1)


def channel(mbps=8.0, **profile):
    return Channel(LinkProfile(**profile), mbps, STREAMS, (1, 2, 0))


class TestSchedule:
    def test_what_happens_at_the_same_time_happens_in_the_order_of_planning(self):
        schedule = Schedule()
        for item, time in enumerate([5, 3, 5, 3]):
            schedule.at(time, item)
        assert [schedule.pop()[1] for _ in range(4)] == [1, 3, 0, 2]
        assert schedule.now == 5

    def test_time_never_falls(self):
        schedule = Schedule()
        schedule.at(10, "late")
        schedule.pop()
        schedule.at(3, "for the past")
        assert schedule.pop()[1] == "for the past" and schedule.now == 10


class TestLink:
    def test_a_message_takes_its_bytes_and_the_latency(self):
        # 1,000 bytes at 8 Mbit/s are 1 ms.
        assert channel(latency_ms=20).carry(0, 1000) == (21 * MS,)

    def test_messages_wait_for_one_another(self):
        link = channel(latency_ms=20)
        assert [link.carry(0, 1000)[0] for _ in range(3)] == [21 * MS, 22 * MS, 23 * MS]
        assert link.carry(100 * MS, 1000) == (121 * MS,)

    def test_messages_are_lost_and_repeated_as_often_as_the_profile_says(self):
        link = channel(loss=0.2, duplication=0.1, latency_ms=1)
        arrivals = [len(link.carry(0, 10)) for _ in range(4000)]
        lost, twice = arrivals.count(0) / 4000, arrivals.count(2) / arrivals.count(1)
        assert lost == pytest.approx(0.2, abs=5 * math.sqrt(0.16 / 4000))
        assert twice == pytest.approx(0.1 / 0.9, abs=0.03)

    def test_jitter_is_exponential_and_makes_messages_overtake_one_another(self):
        link = channel(mbps=1e6, latency_ms=0, jitter_ms=10)
        times = [link.carry(0, 10)[0] / MS for _ in range(4000)]
        assert sum(times) / 4000 == pytest.approx(10, abs=5 * 10 / math.sqrt(4000))
        assert times != sorted(times)

    def test_a_lost_message_has_used_the_link(self):
        link = channel(loss=0.999999, latency_ms=0)
        assert link.carry(0, 1000) == ()
        assert link._free_at == 1 * MS

    def test_each_direction_and_node_has_draws_of_its_own(self):
        profile = LinkProfile(jitter_ms=5)
        draws = {
            Channel(profile, 8, STREAMS, ids).carry(0, 1)
            for ids in [(1, 2, 0), (1, 2, 1), (1, 3, 0)]
        }
        assert len(draws) == 3


class TestFleet:
    def test_classes_have_their_shares(self):
        fleet = Fleet(3000, 3, {"phone": 3.0, "board": 1.0})
        kinds = [fleet.profile(d, STREAMS).kind for d in range(3000)]
        assert kinds.count("phone") / 3000 == pytest.approx(0.75, abs=5 * math.sqrt(0.19 / 3000))

    def test_speeds_are_log_normal_around_the_median(self):
        fleet = Fleet(2001, 1)
        speeds = sorted(fleet.profile(d, STREAMS).speed_flops for d in range(2001))
        assert speeds[1000] == pytest.approx(CLASSES["phone"].speed_flops, rel=0.07)

    def test_devices_are_shared_out_evenly_among_edges(self):
        fleet = Fleet(10, 3)
        edges = [fleet.profile(d, STREAMS).edge for d in range(10)]
        assert sorted(edges.count(e) for e in range(3)) == [3, 3, 4]

    def test_a_device_takes_as_long_as_its_work_and_speed_say(self):
        steady = DeviceClass(speed_flops=1e9, speed_sigma=0, load_sigma=0, startup_s=0.5)
        profile = Fleet(1, 1, {"x": 1.0}, {"x": steady}).profile(0, STREAMS)
        assert profile.duration_ns(3e9, STREAMS, 1, 1) == 3.5 * SECOND

    def test_one_dropout_for_all_wins_over_the_classes(self):
        fleet = Fleet(1, 1, dropout=0.25)
        assert fleet.dropout_of(fleet.profile(0, STREAMS)) == 0.25
        assert Fleet(1, 1).dropout_of(fleet.profile(0, STREAMS)) == 0.0


def test_keeping_freed_memory_is_a_hint_that_may_be_repeated():
    assert keep_freed_memory() == keep_freed_memory()
