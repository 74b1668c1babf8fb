"""The edge's protocol, event by event."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.machine import IGNORE
from delian.core.ports import (
    CLOUD,
    MS,
    SECOND,
    BlobStored,
    DropBlob,
    Node,
    ProtocolError,
    Received,
    Record,
    Send,
    SendBlob,
    SetTimer,
    Started,
    StoreBlob,
    Tier,
    TimerFired,
)
from delian.core.wire.admission_pb2 import (
    EDGE_FULL,
    NO_WORK,
    NOT_ELIGIBLE,
    POOL_FULL,
    PROTOCOL_TOO_OLD,
    TOO_SMALL,
    Accept,
    CheckIn,
    DeviceFacts,
    EdgeHello,
    Eligibility,
    Pace,
    Reject,
    Requirements,
    RetryWindow,
)
from delian.core.wire.blob_pb2 import Blob, BlobRef, FetchBlob
from delian.core.wire.round_pb2 import (
    COUNTED,
    LATE,
    NON_FINITE,
    PROGRAM_FAILED,
    REFUSED,
    DeviceFailure,
    EdgeProgress,
    EdgeSum,
    EdgeSumAck,
    EdgeTask,
    Failure,
    Flush,
    RingPlan,
    RoundClosed,
    Task,
    Upload,
    UploadAck,
)
from delian.edge.machine import TABLE, EdgeMachine, restore
from delian.edge.state import EdgePolicy, EdgeState, Phase

BUNDLE, WEIGHTS = b"b" * 32, b"w" * 32
ROUND = {"run": 1, "round": 1, "attempt": 1}


def device(number):
    return Node(Tier.DEVICE, number)


def check_in(number, sequence=1, protocol=1, memory_mib=0, **eligibility):
    return CheckIn(
        device=number,
        sequence=sequence,
        protocol=protocol,
        facts=DeviceFacts(memory_mib=memory_mib),
        eligibility=Eligibility(**{"consented": True, **eligibility}),
    )


def edge_task(devices, round=1, attempt=1, weights=WEIGHTS, time_ms=10_000, edge_ms=12_000):
    task = Task(
        run=1,
        round=round,
        attempt=attempt,
        bundle=BlobRef(digest=BUNDLE, size=100),
        weights=BlobRef(digest=weights, size=12),
        ring=RingPlan(clip=1, clients_max=10, bits=32, dimension=3),
        time_ms=time_ms,
        rng_key=b"roundkey",
    )
    return EdgeTask(task=task, devices=devices, time_ms=edge_ms)


def vector(number):
    return np.array([number, 2**32 - number, 7, 1], np.uint32)


def upload(number, attempt=1):
    return Upload(run=1, round=1, attempt=attempt, device=number, vector=vector(number).tobytes())


class Bench:
    """An edge and a clock."""

    def __init__(self, state=None, **policy):
        self.machine = EdgeMachine(state or EdgeState(4, incarnation=1), EdgePolicy(**policy))
        self.now = 0
        self.effects = []

    def does(self, event, after=0):
        self.now += after
        self.effects = self.machine.handle(event, self.now)
        return self

    def hears(self, sender, message, after=0):
        return self.does(Received(sender, message), after)

    def cloud(self, message, after=0):
        return self.hears(CLOUD, message, after)

    @property
    def state(self):
        return self.machine.state

    @property
    def phase(self):
        return self.machine.state.phase

    def said(self, to):
        return [e.message for e in self.effects if isinstance(e, Send) and e.to == to]

    def of(self, kind):
        return [e for e in self.effects if isinstance(e, kind)]

    def timer(self, name):
        return next(e.at for e in reversed(self.of(SetTimer)) if e.name == name)

    def ignored(self):
        return [r for r in self.of(Record) if r.kind == "ignored"]

    # Ways to a phase.

    def gathering(self, devices=(1, 2, 3), pace=None):
        self.does(Started())
        if pace is not None:
            self.cloud(pace)
        for number in devices:
            self.hears(device(number), check_in(number))
        return self

    def collecting(self, devices=(1, 2, 3), **task):
        return self.gathering(devices).cloud(edge_task(devices, **task))

    def reporting(self, devices=(1, 2, 3)):
        self.collecting(devices)
        for number in devices:
            self.hears(device(number), upload(number))
        return self

    def serving(self):
        self.collecting()
        self.does(BlobStored(BUNDLE, True))
        return self.does(BlobStored(WEIGHTS, True))


def the_sum(bench):
    (message,) = bench.said(CLOUD)
    assert type(message) is EdgeSum
    return message


def test_every_action_in_the_table_is_one_of_the_machine():
    assert all(r.action == IGNORE or callable(getattr(EdgeMachine, r.action)) for r in TABLE)


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
            (check_in(9, consented=False), NOT_ELIGIBLE),
            (check_in(9), NOT_ELIGIBLE),
            (check_in(9, powered=True, idle=True, memory_mib=63), TOO_SMALL),
            (check_in(9, powered=True, idle=True, memory_mib=64), None),
            (check_in(9, powered=True, idle=True), None),
        ],
    )
    def test_what_the_plan_asks_of_a_device_decides(self, message, reason):
        asked = Requirements(powered=True, idle=True, memory_mib=64)
        bench = Bench().gathering(devices=(), pace=Pace(ready_max=2, requirements=asked))
        (answer,) = bench.hears(device(9), message).said(device(9))
        assert (answer.reason if isinstance(answer, Reject) else None) == reason

    def test_a_full_pool_sends_devices_away_the_longer_the_more_there_are(self):
        pace = Pace(ready_max=2, after_reject=RetryWindow(min_ms=10, max_ms=20))
        bench = Bench().gathering(devices=(1, 2), pace=pace)
        highest = []
        for number in (3, 30, 31, 32, 33):
            (answer,) = bench.hears(device(number), check_in(number)).said(device(number))
            assert answer.reason == POOL_FULL and answer.retry.min_ms == 10
            highest.append(answer.retry.max_ms)
        assert highest == sorted(highest) and highest[0] < highest[-1]
        again = bench.hears(device(1), check_in(1, sequence=2)).said(device(1))
        assert type(again[0]) is Accept, "who is in the pool stays in it"

    def test_an_edge_takes_no_more_devices_than_it_can_look_after(self):
        bench = Bench(devices_max=2).gathering(devices=(1, 2))
        (answer,) = bench.hears(device(3), check_in(3)).said(device(3))
        assert answer.reason == EDGE_FULL

    def test_when_the_run_is_over_devices_are_sent_home(self):
        bench = Bench().gathering(pace=Pace(ready_max=0))
        (answer,) = bench.hears(device(5), check_in(5)).said(device(5))
        assert answer.reason == NO_WORK

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


class TestBlobs:
    def test_bundle_and_weights_are_fetched_once_and_served_to_all_who_asked(self):
        bench = Bench().collecting()
        fetches = [m for m in bench.said(CLOUD) if isinstance(m, FetchBlob)]
        assert fetches == [FetchBlob(digest=BUNDLE), FetchBlob(digest=WEIGHTS)]
        for number in (3, 1, 1):
            bench.hears(device(number), FetchBlob(digest=BUNDLE))
            assert not bench.of(SendBlob) and not bench.said(CLOUD)
        blob = Blob(digest=BUNDLE, size=1, content=b"x")
        assert bench.cloud(blob).of(StoreBlob) == [StoreBlob(blob)]
        sent = bench.does(BlobStored(BUNDLE, True)).of(SendBlob)
        assert sent == [SendBlob(device(3), BUNDLE), SendBlob(device(1), BUNDLE)]
        bench.hears(device(2), FetchBlob(digest=BUNDLE))
        assert bench.of(SendBlob) == [SendBlob(device(2), BUNDLE)]

    def test_a_blob_that_does_not_come_is_asked_for_again(self):
        bench = Bench().collecting().does(BlobStored(BUNDLE, True))
        bench.does(TimerFired("fetch"), after=5 * SECOND)
        assert bench.said(CLOUD) == [FetchBlob(digest=WEIGHTS)]
        assert bench.does(BlobStored(WEIGHTS, False)).ignored()
        bench.does(BlobStored(WEIGHTS, True))
        assert bench.does(TimerFired("fetch")).ignored()

    def test_a_digest_that_no_task_named_is_not_fetched(self):
        bench = Bench().collecting().hears(device(1), FetchBlob(digest=b"?" * 32))
        assert bench.ignored() and not bench.said(CLOUD)

    def test_the_bundle_is_kept_for_the_next_round_and_the_weights_are_not(self):
        bench = Bench().serving().cloud(RoundClosed(**ROUND, succeeded=True))
        assert bench.of(DropBlob) == [DropBlob(WEIGHTS)]
        bench.cloud(edge_task([1], round=2, weights=b"v" * 32))
        assert [m for m in bench.said(CLOUD) if isinstance(m, FetchBlob)] == [
            FetchBlob(digest=b"v" * 32)
        ]

    def test_the_weights_of_a_failed_attempt_are_kept_for_the_next(self):
        bench = Bench().serving().cloud(RoundClosed(**ROUND, succeeded=False))
        assert not bench.of(DropBlob)
        bench.cloud(edge_task([1], attempt=2))
        assert not [m for m in bench.said(CLOUD) if isinstance(m, FetchBlob)]


class TestRound:
    def test_a_task_goes_to_its_devices_and_they_leave_the_pool(self):
        bench = Bench().gathering((1, 2, 3, 4)).cloud(edge_task([1, 3]))
        assert [m.time_ms for m in bench.said(device(1))] == [10_000]
        assert bench.said(device(1))[0] is bench.said(device(3))[0], "one message for all"
        assert sorted(bench.state.pool) == [2, 4]
        progress = next(m for m in bench.said(CLOUD) if isinstance(m, EdgeProgress))
        assert progress == EdgeProgress(**ROUND, edge=4, counted=0)

    def test_it_waits_between_the_devices_time_and_the_cloud_s(self):
        assert Bench().collecting().timer("round") == 11_000 * MS

    def test_the_sum_is_the_sum_of_the_integers_of_exactly_those_who_answered(self):
        bench = Bench().reporting()
        message = the_sum(bench)
        expected = vector(1) + vector(2) + vector(3)
        assert list(message.devices) == [1, 2, 3] and message.count == 3
        assert message.sum == expected.tobytes()
        assert bench.of(Send)[-1].size == message.ByteSize()
        assert bench.phase is Phase.REPORTING and bench.state.total is None

    def test_an_answer_that_comes_twice_is_counted_once_and_acknowledged_twice(self):
        bench = Bench().collecting()
        for _ in range(2):
            bench.hears(device(2), upload(2))
            assert [a.status for a in bench.said(device(2))] == [COUNTED]
        message = the_sum(bench.cloud(Flush(**ROUND)))
        assert list(message.devices) == [2] and message.sum == vector(2).tobytes()

    def test_a_failure_is_an_answer_and_not_in_the_sum(self):
        bench = Bench().collecting((1, 2))
        bench.hears(device(1), upload(1))
        bench.hears(device(2), Failure(**ROUND, device=2, reason=NON_FINITE))
        message = the_sum_of(bench)
        assert list(message.devices) == [1]
        assert list(message.failures) == [DeviceFailure(device=2, reason=NON_FINITE)]

    def test_a_vector_of_another_length_is_refused(self):
        bench = Bench().collecting((1, 2))
        bench.hears(device(1), Upload(**ROUND, device=1, vector=b"1234"))
        assert [a.status for a in bench.said(device(1))] == [REFUSED]
        message = the_sum(bench.cloud(Flush(**ROUND)))
        assert list(message.failures) == [DeviceFailure(device=1, reason=PROGRAM_FAILED)]
        assert message.count == 0 and message.sum == b""

    def test_at_the_deadline_the_missing_are_told_to_stop(self):
        bench = Bench().collecting()
        bench.hears(device(1), upload(1))
        assert bench.does(TimerFired("round"), after=10_999 * MS).ignored()
        bench.does(TimerFired("round"), after=1 * MS)
        assert list(the_sum(bench).devices) == [1]
        assert bench.said(device(2)) == bench.said(device(3)) == [RoundClosed(**ROUND)]
        assert not bench.said(device(1))

    def test_an_answer_after_the_sum_is_late(self):
        bench = Bench().collecting().cloud(Flush(**ROUND)).hears(device(3), upload(3))
        assert [a.status for a in bench.said(device(3))] == [LATE]
        assert [r.kind for r in bench.of(Record)] == ["late"]

    def test_an_answer_of_a_device_that_was_not_asked_is_late(self):
        bench = Bench().collecting((1, 2)).hears(device(9), upload(9))
        assert [a.status for a in bench.said(device(9))] == [LATE]

    def test_a_repeated_answer_is_no_late_one_even_after_the_sum_is_acknowledged(self):
        bench = Bench().reporting().cloud(EdgeSumAck(**ROUND)).hears(device(3), upload(3))
        assert [a.status for a in bench.said(device(3))] == [COUNTED]

    def test_the_cloud_hears_of_answers_a_moment_later_and_once(self):
        bench = Bench().collecting().hears(device(1), upload(1))
        due = bench.timer("progress")
        assert not bench.hears(device(2), upload(2)).of(SetTimer)
        (progress,) = bench.does(TimerFired("progress"), after=due - bench.now).said(CLOUD)
        assert progress.counted == 2

    def test_silent_devices_get_the_task_again_with_the_time_that_is_left(self):
        bench = Bench().collecting()
        bench.hears(device(1), FetchBlob(digest=BUNDLE))
        bench.does(TimerFired("repeat"), after=4 * SECOND)
        assert not bench.said(device(1))
        assert [m.time_ms for m in bench.said(device(2))] == [6_000]
        assert bench.state.task.task.time_ms == 10_000, "what was sent is never changed"

    def test_a_tasked_device_that_checks_in_gets_the_task_again(self):
        bench = Bench().collecting().hears(device(2), check_in(2, sequence=2), after=SECOND)
        assert [m.time_ms for m in bench.said(device(2))] == [9_000]
        assert 2 not in bench.state.pool

    def test_devices_that_left_the_pool_are_not_waited_for(self):
        message = next(
            m
            for m in Bench().gathering((1,)).cloud(edge_task([7, 8])).said(CLOUD)
            if isinstance(m, EdgeSum)
        )
        assert message.count == 0

    def test_the_sum_is_sent_until_it_is_acknowledged(self):
        bench = Bench().reporting()
        first = the_sum(bench)
        bench.does(TimerFired("repeat"), after=10 * SECOND)
        assert the_sum(bench) is first
        assert bench.cloud(EdgeSumAck(**ROUND)).phase is Phase.GATHERING
        assert bench.does(TimerFired("repeat")).ignored()

    @pytest.mark.parametrize("where", ["collecting", "reporting"])
    def test_a_newer_task_drops_what_was_at_hand(self, where):
        bench = getattr(Bench(), where)()
        bench.hears(device(9), check_in(9)).cloud(edge_task([9], attempt=2))
        assert bench.phase is Phase.COLLECTING and bench.state.total is None
        assert bench.hears(device(2), upload(2)).of(Record)[0].kind == "late"
        bench.hears(device(9), upload(9, attempt=2))
        assert list(the_sum_of(bench).devices) == [9]

    @pytest.mark.parametrize("where", ["collecting", "reporting"])
    def test_the_same_task_again_is_answered_by_the_progress(self, where):
        bench = getattr(Bench(), where)().cloud(edge_task([1, 2, 3]))
        (progress,) = bench.said(CLOUD)
        assert progress.counted == (3 if where == "reporting" else 0)
        assert not bench.said(device(1))

    def test_an_older_task_is_ignored(self):
        bench = Bench().collecting(round=3)
        assert bench.cloud(edge_task([1], round=2)).ignored()

    @pytest.mark.parametrize("devices", [[], [2, 1], [1, 1]])
    def test_a_task_for_no_proper_set_of_devices_is_ignored(self, devices):
        assert Bench().gathering().cloud(edge_task(devices)).ignored()

    def test_what_belongs_to_another_attempt_changes_nothing(self):
        bench = Bench().collecting()
        other = {**ROUND, "attempt": 2}
        for message in (Flush(**other), EdgeSumAck(**other), RoundClosed(**other)):
            assert bench.cloud(message).ignored() and bench.phase is Phase.COLLECTING

    def test_a_closed_round_is_forgotten(self):
        bench = Bench().collecting().cloud(RoundClosed(**ROUND))
        assert bench.phase is Phase.GATHERING and bench.state.task is None
        assert bench.hears(device(1), upload(1)).of(Record)[0].kind == "late"


def the_sum_of(bench):
    return next(
        e.message for e in bench.effects if isinstance(getattr(e, "message", None), EdgeSum)
    )


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (device(1), check_in(2)),
        (device(1), upload(2)),
        (device(1), Flush()),
        (device(1), EdgeHello()),
        (CLOUD, upload(1)),
        (CLOUD, UploadAck()),
        (Node(Tier.EDGE, 9), check_in(1)),
    ],
)
def test_who_says_what_he_may_not_say_breaks_the_protocol(sender, message):
    bench = Bench().collecting()
    with pytest.raises(ProtocolError):
        bench.hears(sender, message)


@pytest.mark.parametrize("name", ["fetch", "repeat", "round", "progress", "unheard of"])
def test_a_timer_that_was_cancelled_may_still_fire(name):
    assert Bench().gathering().does(TimerFired(name)).ignored()


@pytest.mark.parametrize("where", ["gathering", "collecting", "reporting", "serving"])
def test_its_state_survives_a_snapshot_and_a_restart(where):
    bench = getattr(Bench(), where)()
    state = restore(bench.machine.snapshot())
    assert restore(Bench(state).machine.snapshot()) == state
    again = Bench(state).does(Started((BUNDLE,)), after=SECOND)
    assert again.phase is bench.phase
    if where == "reporting":
        assert [m for m in again.said(CLOUD) if isinstance(m, EdgeSum)]
    if where == "collecting":
        again.hears(device(1), upload(1)).hears(device(2), upload(2)).hears(device(3), upload(3))
        assert the_sum_of(again).count == 3
