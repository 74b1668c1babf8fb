"""An edge's pool: which devices it takes, sends away, calls and forgets."""

from __future__ import annotations

import pytest
from delian.core.protocol.ports import (
    CLOUD,
    MS,
    RETRY_MS_MAX,
    SECOND,
    Ordered,
    SetTimer,
    Started,
    TimerFired,
)
from delian.core.wire.admission_pb2 import (
    EDGE_FULL,
    NO_WORK,
    NOT_CONSENTED,
    NOT_ELIGIBLE,
    POOL_FULL,
    PROTOCOL_TOO_OLD,
    TOO_SMALL,
    WORK_CAME,
    Accept,
    Pace,
    Reject,
    Requirements,
    RetryWindow,
)
from delian.core.wire.journal_pb2 import Left
from support import edge_bench as _bench

Bench = _bench.Bench
check_in = _bench.check_in
device = _bench.device
upload = _bench.upload


class TestPool:
    def test_it_says_hello_when_it_starts_and_asks_for_a_pace(self):
        (hello,) = Bench().does(Started()).said(CLOUD)
        assert (hello.edge, hello.incarnation, hello.sequence) == (4, 1, 1)
        assert hello.asks_pace and not hello.ready

    def test_the_cloud_hears_of_all_devices_in_one_hello_a_moment_later(self):
        bench = Bench().gathering()
        assert not bench.said(CLOUD)
        (hello,) = bench.does(TimerFired("hello"), after=500 * MS).said(CLOUD)
        assert list(hello.ready) == [1, 2, 3] and hello.sequence == 2
        assert bench.timer("hello") - bench.now == bench.machine.policy.heartbeat_ns

    def test_a_device_is_accepted_with_the_cloud_s_windows(self):
        pace = Pace(ready_max=10, lease_ms=7, after_task=RetryWindow(min_ms=1, max_ms=2))
        bench = Bench().gathering(devices=(), pace=pace).hears(device(1), check_in(1))
        expected = Accept(sequence=1, lease_ms=7, after_task=RetryWindow(min_ms=1, max_ms=2))
        assert bench.said(device(1)) == [expected]

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            (check_in(9, protocol=0), PROTOCOL_TOO_OLD),
            (check_in(9, consented=False), NOT_CONSENTED),
            (check_in(9), NOT_ELIGIBLE),
            (check_in(9, powered=True, idle=True, memory_mib=63), TOO_SMALL),
            (check_in(9, powered=True, idle=True, memory_mib=64), None),
            (check_in(9, powered=True, idle=True), None),
            (check_in(9, powered=True, idle=True, storage_mib=31), TOO_SMALL),
            (check_in(9, powered=True, idle=True, storage_mib=32), None),
        ],
    )
    def test_what_the_plan_asks_of_a_device_decides(self, message, reason):
        asked = Requirements(powered=True, idle=True, memory_mib=64, storage_mib=32)
        bench = Bench().gathering(devices=(), pace=Pace(ready_max=2, requirements=asked))
        (answer,) = bench.hears(device(9), message).said(device(9))
        assert (answer.reason if isinstance(answer, Reject) else None) == reason

    def test_a_plan_may_ask_for_new_data(self):
        pace = Pace(ready_max=2, requirements=Requirements(fresh=True))
        bench = Bench().gathering(devices=(), pace=pace)
        (answer,) = bench.hears(device(9), check_in(9)).said(device(9))
        assert answer.reason == NOT_ELIGIBLE
        (answer,) = bench.hears(device(9), check_in(9, fresh=True)).said(device(9))
        assert type(answer) is Accept

    def test_a_full_pool_sends_devices_away_the_longer_the_more_there_are(self):
        pace = Pace(ready_max=2, after_reject=RetryWindow(min_ms=10, max_ms=20))
        bench = Bench().gathering(devices=(1, 2), pace=pace)
        lowest = []
        for number in (3, 30, 31, 32, 33):
            (answer,) = bench.hears(device(number), check_in(number)).said(device(number))
            assert answer.reason == POOL_FULL
            assert answer.retry.max_ms == answer.retry.min_ms + 10
            lowest.append(answer.retry.min_ms)
        assert lowest == [12, 15, 17, 20, 22], "two in half a window, after the first 10 ms"
        again = bench.hears(device(1), check_in(1, sequence=2)).said(device(1))
        assert type(again[0]) is Accept, "who is in the pool stays in it"

    def test_who_knocks_often_delays_no_others(self):
        pace = Pace(ready_max=2, after_reject=RetryWindow(min_ms=10, max_ms=20))
        bench = Bench().gathering(devices=(1, 2), pace=pace)
        for sequence in range(1, 200):
            bench.hears(device(3), check_in(3, sequence=sequence))
        (answer,) = bench.hears(device(30), check_in(30)).said(device(30))
        assert answer.reason == POOL_FULL
        assert answer.retry.min_ms <= 40

    def test_nobody_is_sent_away_for_longer_than_devices_wait(self):
        pace = Pace(ready_max=1, after_reject=RetryWindow(min_ms=10, max_ms=RETRY_MS_MAX - 10))
        bench = Bench().gathering(devices=(1,), pace=pace)
        for number in range(2, 40):
            (answer,) = bench.hears(device(number), check_in(number)).said(device(number))
            assert answer.reason == POOL_FULL
            assert answer.retry.min_ms < answer.retry.max_ms <= RETRY_MS_MAX

    def test_an_edge_takes_no_more_devices_than_it_can_look_after(self):
        bench = Bench(devices_max=2).gathering(devices=(1, 2))
        (answer,) = bench.hears(device(3), check_in(3)).said(device(3))
        assert answer.reason == EDGE_FULL

    def test_devices_at_work_are_looked_after_too(self):
        bench = Bench(devices_max=2).collecting((1, 2))
        (answer,) = bench.hears(device(3), check_in(3)).said(device(3))
        assert answer.reason == EDGE_FULL
        bench.hears(device(1), upload(1)).hears(device(3), check_in(3))
        assert type(bench.said(device(3))[0]) is Accept

    def test_when_the_run_is_over_devices_are_sent_home(self):
        bench = Bench().gathering(pace=Pace(ready_max=0))
        (answer,) = bench.hears(device(5), check_in(5)).said(device(5))
        assert answer.reason == NO_WORK

    def test_who_is_called_when_there_is_work_asks_seldom_by_itself(self):
        usual = RetryWindow(min_ms=10_000, max_ms=60_000)
        bench = Bench().gathering(pace=Pace(ready_max=0, after_reject=usual))
        (answer,) = bench.hears(device(5), check_in(5)).said(device(5))
        assert answer.reason == NO_WORK
        assert answer.retry == RetryWindow(min_ms=20_000, max_ms=120_000)

    def test_when_there_is_work_again_devices_that_were_sent_home_are_called(self):
        bench = Bench().gathering(devices=(), pace=Pace(ready_max=0))
        for number in (5, 6, 7):
            bench.hears(device(number), check_in(number, sequence=number))
        bench.cloud(Pace(ready_max=2))
        for number in (7, 6):
            (call,) = bench.said(device(number))
            assert call.reason == WORK_CAME and call.sequence == number and call.retry.max_ms
        assert not bench.said(device(5)), "there is no place for it"
        assert not bench.cloud(Pace(ready_max=3)).said(device(5)), "who is wanted knows it already"

    def test_an_edge_that_drains_calls_nobody(self):
        bench = Bench().gathering(devices=(), pace=Pace(ready_max=0))
        bench.hears(device(5), check_in(5))
        assert not bench.cloud(Pace(ready_max=2, draining=True)).said(device(5))

    def test_a_check_in_that_comes_again_is_answered_again(self):
        bench = Bench().gathering().hears(device(1), check_in(1))
        assert type(bench.said(device(1))[0]) is Accept

    def test_a_check_in_older_than_the_newest_is_ignored(self):
        bench = Bench().gathering(devices=())
        bench.hears(device(1), check_in(1, sequence=5))
        assert bench.hears(device(1), check_in(1, sequence=4)).ignored()
        assert not bench.said(device(1))

    def test_a_device_whose_lease_is_over_is_forgotten(self):
        bench = Bench(lease_ms=1000).gathering()
        (hello,) = bench.does(TimerFired("hello"), after=1100 * MS).said(CLOUD)
        assert len(hello.ready) == 3, "the edge is a little more patient than the device"
        (hello,) = bench.does(TimerFired("hello"), after=100 * MS).said(CLOUD)
        assert not hello.ready

    def test_what_it_remembers_of_check_ins_is_limited(self):
        bench = Bench(devices_max=3).gathering(devices=range(50))
        assert len(bench.state.check_ins) == 6


class TestAbsence:
    """The edge's hello lists devices that are present and not ready, each with its reason."""

    def away(self, bench):
        (hello,) = bench.does(TimerFired("hello"), after=500 * MS).said(CLOUD)
        return {a.reason: list(a.devices) for a in hello.away}

    def test_a_hello_names_who_was_sent_away_by_reason(self):
        asked = Requirements(idle=True)
        bench = Bench().gathering(devices=(), pace=Pace(ready_max=1, requirements=asked))
        for message in (
            check_in(1, idle=True),
            check_in(2, idle=True),
            check_in(3, consented=False),
            check_in(4),
        ):
            bench.hears(device(message.device), message)
        assert self.away(bench) == {NOT_ELIGIBLE: [4], POOL_FULL: [2], NOT_CONSENTED: [3]}

    def test_one_that_agrees_is_ready_and_no_more_away(self):
        bench = Bench().gathering(devices=(), pace=Pace(ready_max=2, lease_ms=60_000))
        bench.hears(device(1), check_in(1, consented=False))
        bench.hears(device(1), check_in(1, sequence=2))
        assert self.away(bench) == {} and 1 in bench.machine.state.pool

    def test_the_same_answer_again_is_no_news(self):
        bench = Bench().gathering(devices=(), pace=Pace(ready_max=0, number=1))
        bench.hears(device(1), check_in(1))
        assert bench.timer("hello") == bench.now + 500 * MS
        assert self.away(bench) == {NO_WORK: [1]}
        bench.hears(device(1), check_in(1, sequence=2), after=SECOND)
        assert not bench.of(SetTimer)

    def test_one_that_does_not_come_back_in_its_time_is_left_out(self):
        window = RetryWindow(min_ms=1_000, max_ms=2_000)
        bench = Bench().gathering(devices=(), pace=Pace(ready_max=1, after_reject=window))
        bench.hears(device(1), check_in(1, consented=False))
        bench.does(TimerFired("hello"), after=20 * SECOND)
        assert self.away(bench) == {NOT_CONSENTED: [1]}
        bench.now += 2 * SECOND
        assert self.away(bench) == {}

    def test_one_whose_connection_is_lost_is_in_no_list(self):
        bench = Bench().gathering(devices=(1, 2))
        bench.hears(device(3), check_in(3, consented=False))
        for number in (1, 3):
            bench.does(Ordered(Left(device=number)))
        (hello,) = bench.does(TimerFired("hello"), after=500 * MS).said(CLOUD)
        assert list(hello.ready) == [2] and not hello.away
        assert bench.does(Ordered(Left(device=9))).ignored(), "it is not known"
        bench.hears(device(1), check_in(1, sequence=2))
        assert 1 in bench.machine.state.pool, "it is back"
