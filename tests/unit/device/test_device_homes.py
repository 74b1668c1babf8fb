"""Where a device goes, and what its owner may change: homes, conditions, consent."""

from __future__ import annotations

import pytest
from delian.core.protocol.ports import (
    CLOUD,
    MS,
    SECOND,
    BlobStored,
    CancelProgram,
    Node,
    Ordered,
    Outcome,
    ProgramFinished,
    ProtocolError,
    Received,
    Started,
    Tier,
    TimerFired,
)
from delian.core.wire.admission_pb2 import (
    DRAINING,
    EDGE_FULL,
    NO_WORK,
    NOT_CONSENTED,
    POOL_FULL,
    Accept,
    CheckIn,
    DeviceFacts,
    Eligibility,
    Reject,
    RetryWindow,
)
from delian.core.wire.journal_pb2 import Conditions, Drain, Homes
from delian.core.wire.link_pb2 import NODE_CLOUD, NODE_DEVICE, NODE_EDGE, Address
from delian.core.wire.round_pb2 import PROGRAM_FAILED, Failure, RoundClosed, UploadAck
from delian.device.protocol.machine import DeviceState, Phase, restore
from support import device_bench as _bench

BUNDLE = _bench.BUNDLE
VECTOR = _bench.VECTOR
WEIGHTS = _bench.WEIGHTS
Bench = _bench.Bench
make_task = _bench.make_task

FIRST, SECOND_HOME, THIRD = (Node(Tier.EDGE, n) for n in (2, 5, 9))
CONSENT = Eligibility(consented=True)


def bench_of(*homes):
    return Bench(homes=homes or (FIRST, SECOND_HOME))


def fire_repeat(bench):
    return bench.does(TimerFired("repeat"), after=bench.timer("repeat") - bench.now)


def moved_to(bench):
    """Where its newest check-in went."""
    (to,) = {to for to, message in bench.sent if isinstance(message, CheckIn)}
    return to


def homes(*numbers, tier=NODE_EDGE):
    return Ordered(Homes(homes=[Address(tier=tier, number=n) for n in numbers]))


def conditions(memory_mib=512, **eligibility):
    facts = DeviceFacts(memory_mib=memory_mib)
    return Ordered(Conditions(facts=facts, eligibility=Eligibility(**eligibility)))


class TestSilence:
    def test_after_several_check_ins_without_an_answer_it_tries_the_next_home(self):
        bench = bench_of().does(Started())
        places, sequences, pauses = [], [], []
        for _ in range(7):
            places.append(moved_to(bench).number)
            sequences.append(bench.said[0].sequence)
            pauses.append(bench.timer("repeat") - bench.now)
            fire_repeat(bench)
        assert places == [2, 2, 2, 5, 5, 5, 2], "and the first again after the last"
        assert sequences == [1, 1, 1, 2, 2, 2, 3], "a move is another check-in"
        assert pauses == sorted(pauses), "whoever finds nobody asks less and less often"

    def test_with_one_home_it_stays(self):
        bench = bench_of(FIRST).does(Started())
        for _ in range(7):
            assert moved_to(fire_repeat(bench)) == FIRST
        assert bench.machine.state.sequence == 1

    def test_an_answer_of_the_home_that_it_left_is_late(self):
        bench = bench_of().does(Started())
        for _ in range(3):
            fire_repeat(bench)
        assert bench.machine.state.home_node == SECOND_HOME
        for message in (Accept(sequence=1), Reject(sequence=2), make_task()):
            assert bench.does(Received(FIRST, message)).ignored()
        assert bench.phase is Phase.CHECKING_IN
        bench.does(Received(SECOND_HOME, Accept(sequence=2, lease_ms=5_000)))
        assert bench.phase is Phase.READY

    def test_who_never_was_a_home_breaks_the_protocol(self):
        bench = bench_of().does(Started())
        for stranger in (THIRD, CLOUD, Node(Tier.DEVICE, 2)):
            with pytest.raises(ProtocolError):
                bench.does(Received(stranger, Accept(sequence=1)))

    def test_while_it_works_it_stays_with_who_tasked_it_to_the_deadline(self):
        bench = bench_of().uploading()
        for _ in range(20):
            fire_repeat(bench)
            assert [to for to, _ in bench.sent] == [FIRST]
            if bench.timer("repeat") >= 10 * SECOND:
                break
        bench.does(TimerFired("task"), after=10 * SECOND - bench.now)
        assert moved_to(bench.does(TimerFired("retry"), after=2 * SECOND)) == FIRST
        for _ in range(3):
            fire_repeat(bench)
        assert moved_to(bench) == SECOND_HOME


class TestSentAway:
    @pytest.mark.parametrize("reason", [DRAINING, EDGE_FULL])
    def test_it_goes_to_the_next_home_in_a_moment(self, reason):
        bench = bench_of().does(Started())
        far = RetryWindow(min_ms=60_000, max_ms=60_000)
        bench.gets(Reject(sequence=1, reason=reason, retry=far))
        assert bench.phase is Phase.IDLE
        assert 100 * MS <= bench.timer("retry") <= 2_000 * MS
        assert moved_to(bench.does(TimerFired("retry"), after=2 * SECOND)) == SECOND_HOME

    def test_a_crowd_that_is_sent_on_does_not_arrive_together(self):
        times = set()
        for number in range(20):
            bench = Bench(DeviceState(number), homes=(FIRST, THIRD)).does(Started())
            bench.gets(Reject(sequence=1, reason=DRAINING))
            times.add(bench.timer("retry"))
        assert len(times) == 20

    def test_also_out_of_the_pool(self):
        bench = bench_of().ready().gets(Reject(sequence=1, reason=DRAINING))
        assert bench.phase is Phase.IDLE and bench.machine.state.home_node == SECOND_HOME
        assert bench.does(TimerFired("lease")).ignored()

    def test_when_nobody_takes_it_it_comes_back_in_the_window(self):
        bench = bench_of().does(Started()).gets(Reject(sequence=1, reason=EDGE_FULL))
        bench.does(TimerFired("retry"), after=2 * SECOND)
        window = RetryWindow(min_ms=60_000, max_ms=60_000)
        full = Reject(sequence=2, reason=EDGE_FULL, retry=window)
        bench.does(Received(SECOND_HOME, full))
        assert bench.timer("retry") - bench.now == 60 * SECOND
        assert bench.machine.state.home_node == FIRST

    @pytest.mark.parametrize("reason", [POOL_FULL, DRAINING])
    def test_otherwise_it_stays(self, reason):
        bench = bench_of(*((FIRST,) if reason == DRAINING else (FIRST, THIRD))).does(Started())
        window = RetryWindow(min_ms=60_000, max_ms=60_000)
        bench.gets(Reject(sequence=1, reason=reason, retry=window))
        assert bench.timer("retry") == 60 * SECOND and bench.machine.state.home_node == FIRST


class TestOrders:
    def test_other_homes_are_for_the_next_move(self):
        bench = bench_of().ready().does(homes(2, 9))
        assert bench.phase is Phase.READY and bench.machine.state.home_node == FIRST
        bench.gets(Reject(sequence=1, reason=DRAINING))
        assert bench.machine.state.home_node == THIRD
        assert bench.does(homes(2, 9)).ignored(), "nothing new"

    def test_without_its_home_in_them_it_offers_itself_to_the_first(self):
        bench = bench_of().ready().does(homes(9, 5))
        assert bench.phase is Phase.CHECKING_IN and moved_to(bench) == THIRD
        assert bench.does(Received(FIRST, make_task())).ignored(), "a former home is no stranger"

    def test_the_cloud_is_edge_zero(self):
        assert moved_to(bench_of().ready().does(homes(0, tier=NODE_CLOUD))) == Node(Tier.EDGE, 0)

    def test_a_working_device_answers_the_home_that_it_had(self):
        bench = bench_of().training().does(homes(9))
        bench.does(ProgramFinished(1, Outcome(VECTOR)))
        assert [to for to, _ in bench.sent] == [FIRST]
        bench.gets(UploadAck(run=1, round=1, attempt=1, device=7))
        assert moved_to(bench.does(TimerFired("retry"), after=2 * SECOND)) == THIRD

    @pytest.mark.parametrize(
        "order",
        [Ordered(Homes()), homes(1, tier=NODE_DEVICE), homes(*range(65)), Ordered(Drain())],
    )
    def test_what_is_no_order_for_a_device_is_refused(self, order):
        bench = bench_of().ready()
        with pytest.raises(ProtocolError):
            bench.does(order)
        assert bench.machine.state.home_node == FIRST

    def test_conditions_are_told_at_once_while_it_is_on_offer(self):
        bench = bench_of().ready().does(conditions(consented=True, powered=True))
        (check_in,) = bench.said
        assert check_in.sequence == 2 and check_in.eligibility.powered
        assert bench.does(conditions(consented=True, powered=True)).ignored(), "nothing new"

    def test_conditions_change_nothing_in_work_but_the_next_check_in(self):
        bench = bench_of().training().does(conditions(memory_mib=1, consented=True))
        assert bench.phase is Phase.TRAINING and not bench.said
        bench.gets(RoundClosed(run=1, round=1, attempt=1))
        (check_in,) = bench.does(TimerFired("retry"), after=2 * SECOND).said
        assert check_in.facts.memory_mib == 1

    @pytest.mark.parametrize("where", ["fetching", "training", "uploading"])
    def test_work_stops_when_consent_is_taken_back(self, where):
        bench = getattr(bench_of(), where)().does(conditions())
        assert bench.said == [Failure(run=1, round=1, attempt=1, device=7, reason=PROGRAM_FAILED)]
        assert bench.phase is Phase.IDLE and bench.machine.state.upload is None
        assert bool(bench.of(CancelProgram)) == (where == "training")

    def test_an_owner_that_agrees_is_not_kept_waiting(self):
        bench = bench_of().ready().does(conditions())
        bench.gets(Reject(sequence=bench.machine.state.sequence, reason=NOT_CONSENTED))
        assert bench.phase is Phase.IDLE
        assert not bench.does(conditions(idle=True)).said, "other conditions wait for the window"
        bench.does(conditions(consented=True))
        assert bench.phase is Phase.CHECKING_IN
        assert [m.eligibility.consented for m in bench.said if isinstance(m, CheckIn)] == [True]
        bench.gets(Reject(sequence=bench.machine.state.sequence, reason=NO_WORK))
        bench.does(conditions(consented=False))
        assert [m.eligibility.consented for m in bench.said if isinstance(m, CheckIn)] == [False]

    def test_without_consent_no_task_is_taken(self):
        bench = bench_of().ready().does(conditions()).gets(make_task())
        assert bench.phase is Phase.CHECKING_IN
        assert [m.reason for m in bench.said] == [PROGRAM_FAILED]

    def test_what_its_configuration_says_later_is_an_order_not_an_argument(self):
        bench = bench_of().ready().does(homes(9)).does(conditions(consented=True, idle=True))
        again = Bench(restore(bench.machine.snapshot()), homes=(FIRST,))
        assert again.machine.state.home_node == THIRD
        assert again.machine.state.eligibility.idle


def test_a_fresh_blob_of_a_task_that_is_over_is_ignored():
    bench = bench_of().fetching().gets(RoundClosed(run=1, round=1, attempt=1))
    assert bench.does(BlobStored(BUNDLE, True)).ignored()
    assert bench.does(BlobStored(WEIGHTS, False)).ignored()
