"""One attempt at an edge, event by event: one sum, or several parts."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.signed_task import sign
from delian.core.protocol.machine import IGNORE
from delian.core.protocol.ports import CLOUD, MS, SECOND, Ordered, Record, Send, SetTimer, Started
from delian.core.wire.admission_pb2 import Accept
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.journal_pb2 import Forget
from delian.core.wire.round_pb2 import (
    COUNTED,
    LATE,
    NON_FINITE,
    PROGRAM_FAILED,
    REFUSED,
    DeviceFailure,
    EdgeProgress,
    EdgeSumAck,
    Failure,
    Flush,
    RoundClosed,
    Upload,
)
from delian.edge.protocol.collection import TABLE, Attempt
from delian.edge.protocol.edge_state import PARTS_OUT_MAX, Stage
from delian.edge.protocol.machine import restore
from support import edge_bench as _bench

BUNDLE = _bench.BUNDLE
ROUND = _bench.ROUND
Bench = _bench.Bench
check_in = _bench.check_in
device = _bench.device
edge_task = _bench.edge_task
failure = _bench.failure
the_sum = _bench.the_sum
upload = _bench.upload
vector = _bench.vector


def test_every_action_in_the_table_is_one_of_the_collection():
    assert {r.action for r in TABLE} - {IGNORE} <= set(vars(Attempt).values())


def test_a_task_that_the_coordinator_has_not_signed_goes_to_no_device():
    for change, reason in (
        (lambda t: t.ClearField("signature"), "unsigned task"),
        (lambda t: setattr(t, "rng_key", b"otherkey"), "task signature"),
        (lambda t: sign(t, SimulatedIdentity(4, 1, "edge"), ends_s=60), "task signature"),
    ):
        bench, message = Bench().gathering((1, 2)), edge_task([1, 2])
        change(message.task)
        bench.cloud(message)
        assert not bench.said(device(1)) and not bench.state.collections
        refused = [e.fields["reason"] for e in bench.effects if isinstance(e, Record)]
        assert refused == [reason]
        bench.cloud(edge_task([1, 2]))
        assert bench.said(device(1)), "the true task is taken"


class TestOneSum:
    def test_a_task_goes_to_its_devices_and_they_leave_the_pool(self):
        bench = Bench().gathering((1, 2, 3, 4)).cloud(edge_task([1, 3]))
        assert [m.time_ms for m in bench.said(device(1))] == [10_000]
        assert bench.said(device(1))[0] is bench.said(device(3))[0], "one message for all"
        assert sorted(bench.state.pool) == [2, 4]
        progress = next(m for m in bench.said(CLOUD) if isinstance(m, EdgeProgress))
        assert progress == EdgeProgress(**ROUND, edge=4, counted=0, part=0)

    def test_it_waits_between_the_devices_time_and_the_cloud_s(self):
        assert Bench().collecting().timer("round") == 11_000 * MS

    def test_the_sum_is_the_sum_of_the_integers_of_exactly_those_who_answered(self):
        bench = Bench().reporting()
        message = the_sum(bench)
        expected = vector(1) + vector(2) + vector(3)
        assert list(message.devices) == [1, 2, 3] and message.count == 3
        assert message.sum == expected.tobytes()
        assert bench.of(Send)[-1].size == message.ByteSize()
        assert bench.stage() is Stage.REPORTING and bench.one().total is None

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
        message = the_sum(bench)
        assert list(message.devices) == [1]
        assert list(message.failures) == [DeviceFailure(device=2, reason=NON_FINITE)]

    def test_a_reason_that_nobody_knows_is_a_failure_all_the_same(self):
        bench = Bench().collecting((1,)).hears(device(1), failure(1, reason=77))
        assert list(the_sum(bench).failures) == [DeviceFailure(device=1, reason=PROGRAM_FAILED)]

    def test_an_update_after_a_failure_is_not_said_to_be_counted(self):
        bench = Bench().collecting().hears(device(1), failure(1))
        assert bench.hears(device(1), failure(1)).statuses(1) == [COUNTED]
        assert bench.hears(device(1), upload(1)).statuses(1) == [LATE]

    def test_a_vector_of_another_length_is_refused(self):
        bench = Bench().collecting((1, 2))
        for _ in range(2):
            bench.hears(device(1), Upload(**ROUND, device=1, vector=b"1234"))
            assert bench.statuses(1) == [REFUSED]
        message = the_sum(bench.cloud(Flush(**ROUND)))
        assert list(message.failures) == [DeviceFailure(device=1, reason=PROGRAM_FAILED)]
        assert message.count == 0 and message.sum == b""

    def test_at_the_deadline_the_missing_are_told_to_stop(self):
        bench = Bench().collecting()
        bench.hears(device(1), upload(1))
        assert bench.fires("round", after=10_999 * MS).ignored()
        bench.fires("round", after=1 * MS)
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
        (progress,) = bench.fires("progress", after=due - bench.now).said(CLOUD)
        assert progress.counted == 2

    def test_silent_devices_get_the_task_again_with_the_time_that_is_left(self):
        bench = Bench().collecting()
        bench.hears(device(1), FetchBlob(digest=BUNDLE))
        bench.fires("repeat", after=4 * SECOND)
        assert not bench.said(device(1))
        assert [m.left_ms for m in bench.said(device(2))] == [6_000]
        assert bench.one().task.task.time_ms == 10_000, "what was sent is never changed"

    def test_a_tasked_device_that_checks_in_gets_the_task_again(self):
        bench = Bench().collecting().hears(device(2), check_in(2, sequence=2), after=SECOND)
        assert [m.left_ms for m in bench.said(device(2))] == [9_000]
        assert 2 not in bench.state.pool

    def test_a_device_whose_time_is_over_may_come_back_before_the_attempt_ends(self):
        bench = Bench().collecting()
        bench.hears(device(2), check_in(2, sequence=2), after=10 * SECOND)
        assert [type(m) for m in bench.said(device(2))] == [Accept] and 2 in bench.state.pool
        bench.cloud(edge_task([2], attempt=2))
        bench.hears(device(2), upload(2)).hears(device(2), upload(2, attempt=2))
        assert list(the_sum(bench).devices) == [2]
        bench.cloud(Flush(**ROUND))
        assert list(the_sum(bench).devices) == [2], "its older update counted there"

    def test_devices_that_left_the_pool_are_not_waited_for(self):
        assert the_sum(Bench().gathering((1,)).cloud(edge_task([7, 8]))).count == 0

    def test_the_sum_is_sent_until_it_is_acknowledged(self):
        bench = Bench().reporting()
        first = the_sum(bench)
        bench.fires("sum", after=10 * SECOND)
        assert the_sum(bench) is first
        assert bench.cloud(EdgeSumAck(**ROUND)).stage() is Stage.OVER
        assert bench.fires("sum").ignored()

    def test_a_sum_that_nobody_wants_is_not_kept_for_ever(self):
        bench = Bench(sum_keep_ns=60 * SECOND).reporting()
        bench.fires("sum", after=70 * SECOND)
        assert the_sum(bench), "its attempt's time was eleven seconds"
        bench.fires("sum", after=SECOND)
        assert [r.kind for r in bench.of(Record)] == ["sum_expired"]
        assert bench.stage() is Stage.OVER and not bench.sums()

    @pytest.mark.parametrize("where", ["collecting", "reporting"])
    def test_a_newer_task_that_is_alone_drops_what_was_at_hand(self, where):
        bench = getattr(Bench(), where)()
        bench.hears(device(9), check_in(9)).cloud(edge_task([9], attempt=2, alone=True))
        assert bench.open == ["1.1.2"]
        told = [RoundClosed(**ROUND)] if where == "collecting" else []
        assert bench.said(device(2)) == told
        again = bench.hears(device(2), upload(2)).statuses(2)
        assert again == [LATE if where == "collecting" else COUNTED]
        bench.hears(device(9), upload(9, attempt=2))
        assert list(the_sum(bench).devices) == [9]
        assert bench.cloud(edge_task([1])).ignored(), "an older one is old for good"

    @pytest.mark.parametrize("where", ["collecting", "reporting"])
    def test_a_newer_task_that_is_not_alone_drops_nothing(self, where):
        bench = getattr(Bench(), where)()
        bench.hears(device(9), check_in(9)).cloud(edge_task([9], attempt=2))
        assert bench.open == ["1.1.1", "1.1.2"]

    @pytest.mark.parametrize("where", ["collecting", "reporting"])
    def test_the_same_task_again_is_answered_by_the_progress(self, where):
        bench = getattr(Bench(), where)().cloud(edge_task([1, 2, 3]))
        (progress,) = bench.said(CLOUD)
        assert progress.counted == (3 if where == "reporting" else 0)
        assert not bench.said(device(1))

    def test_a_task_that_is_over_is_ignored(self):
        bench = Bench().reporting().cloud(EdgeSumAck(**ROUND))
        assert bench.cloud(edge_task([1, 2, 3])).ignored()
        assert bench.open == []

    def test_a_task_that_comes_after_its_end_is_ignored(self):
        bench = Bench().gathering().cloud(RoundClosed(**ROUND))
        assert bench.cloud(edge_task([1, 2, 3])).ignored()
        assert len(bench.state.pool) == 3

    @pytest.mark.parametrize("devices", [[], [2, 1], [1, 1]])
    def test_a_task_for_no_proper_set_of_devices_is_ignored(self, devices):
        assert Bench().gathering().cloud(edge_task(devices)).ignored()

    def test_what_belongs_to_another_attempt_changes_nothing(self):
        bench = Bench().collecting()
        other = {**ROUND, "attempt": 2}
        for message in (Flush(**other), EdgeSumAck(**other)):
            assert bench.cloud(message).ignored()
        bench.cloud(RoundClosed(**other))
        assert bench.stage() is Stage.COLLECTING

    def test_a_closed_round_is_forgotten(self):
        bench = Bench().collecting().cloud(RoundClosed(**ROUND))
        assert bench.said(device(2)) == [RoundClosed(**ROUND)], "nobody waits for it"
        assert bench.stage() is Stage.OVER and not bench.state.collections
        assert bench.hears(device(1), upload(1)).of(Record)[0].kind == "late"


class TestParts:
    def test_who_has_answered_is_a_part_and_the_others_go_on(self):
        bench = Bench().flushed(counted=(1, 2), go_on=True)
        first = the_sum(bench)
        assert (first.part, first.more, list(first.devices)) == (0, True, [1, 2])
        assert first.sum == (vector(1) + vector(2)).tobytes()
        assert not bench.said(device(3)), "it has its time"
        bench.hears(device(3), upload(3))
        last = the_sum(bench)
        assert (last.part, last.more, list(last.devices)) == (1, False, [3])
        assert last.sum == vector(3).tobytes()

    def test_the_deadline_is_that_of_the_attempt(self):
        bench = Bench().flushed(go_on=True)
        assert not [e for e in bench.of(SetTimer) if e.name.endswith("round")]
        bench.fires("round", after=11_000 * MS)
        last = the_sum(bench)
        assert (last.part, last.more, last.count, last.sum) == (1, False, 0, b"")
        assert bench.said(device(2)) == [RoundClosed(**ROUND)]

    def test_nobody_is_counted_in_two_parts(self):
        bench = Bench().flushed(counted=(1,), go_on=True)
        assert bench.hears(device(1), upload(1)).statuses(1) == [COUNTED]
        bench.hears(device(2), upload(2)).cloud(Flush(**ROUND, part=1))
        assert list(the_sum(bench).devices) == [2]

    def test_failures_belong_to_their_part(self):
        bench = Bench().collecting().hears(device(1), failure(1)).cloud(Flush(**ROUND, go_on=True))
        assert [f.device for f in the_sum(bench).failures] == [1]
        bench.hears(device(2), failure(2)).hears(device(3), upload(3))
        assert [f.device for f in the_sum(bench).failures] == [2]

    def test_progress_counts_within_its_part(self):
        bench = Bench().flushed(counted=(1, 2), go_on=True)
        assert bench.fires("progress").ignored(), "what it would say is in the sum"
        bench.hears(device(3), upload(3))
        bench = (
            Bench().flushed((1, 2, 3, 4), counted=(1, 2), go_on=True).hears(device(3), upload(3))
        )
        (progress,) = bench.fires("progress", after=50 * MS).said(CLOUD)
        assert (progress.part, progress.counted) == (1, 1)

    def test_a_part_without_updates_is_a_part(self):
        bench = Bench().flushed(counted=(), go_on=True)
        assert (the_sum(bench).part, the_sum(bench).more, the_sum(bench).count) == (0, True, 0)

    def test_a_flush_that_comes_again_makes_no_second_part(self):
        bench = Bench().flushed(go_on=True).cloud(Flush(**ROUND, go_on=True))
        assert bench.ignored() and bench.one().part == 1
        assert bench.cloud(Flush(**ROUND, part=5, go_on=True)).ignored()

    def test_each_part_is_repeated_until_it_is_acknowledged_itself(self):
        bench = Bench().flushed((1, 2, 3), counted=(1,), go_on=True)
        bench.hears(device(2), upload(2)).cloud(Flush(**ROUND, part=1, go_on=True))
        assert [m.part for m in bench.sums()] == [1], "the first is on its way"
        assert [m.part for m in bench.fires("sum", after=SECOND).sums()] == [0, 1]
        bench.cloud(EdgeSumAck(**ROUND, part=0))
        assert [m.part for m in bench.fires("sum", after=SECOND).sums()] == [1]
        assert bench.cloud(EdgeSumAck(**ROUND, part=0)).ignored()
        bench.cloud(EdgeSumAck(**ROUND, part=1))
        assert bench.stage() is Stage.COLLECTING and bench.fires("sum").ignored()
        bench.hears(device(3), upload(3)).cloud(EdgeSumAck(**ROUND, part=2))
        assert bench.stage() is Stage.OVER

    def test_the_last_part_may_be_acknowledged_before_an_earlier_one(self):
        bench = Bench().flushed((1, 2), counted=(1,), go_on=True).hears(device(2), upload(2))
        assert bench.cloud(EdgeSumAck(**ROUND, part=1)).stage() is Stage.REPORTING
        assert bench.cloud(EdgeSumAck(**ROUND, part=0)).stage() is Stage.OVER

    def test_parts_that_nobody_acknowledges_are_limited(self):
        bench = Bench().collecting()
        for part in range(PARTS_OUT_MAX):
            assert the_sum(bench.cloud(Flush(**ROUND, part=part, go_on=True))).part == part
        assert bench.cloud(Flush(**ROUND, part=PARTS_OUT_MAX, go_on=True)).ignored()
        bench.cloud(EdgeSumAck(**ROUND, part=3))
        assert the_sum(bench.cloud(Flush(**ROUND, part=PARTS_OUT_MAX, go_on=True)))

    def test_sums_that_nobody_acknowledges_are_limited_in_bytes(self):
        # Two of 16 bytes: the one on its way up, and the running one.
        bench = Bench(sum_bytes_max=32).flushed(counted=(1,), go_on=True)
        bench.hears(device(2), upload(2))
        assert bench.cloud(Flush(**ROUND, part=1, go_on=True)).ignored()
        bench.cloud(EdgeSumAck(**ROUND, part=0))
        assert list(the_sum(bench.cloud(Flush(**ROUND, part=1, go_on=True))).devices) == [2]

    def test_it_goes_on_after_a_restart(self):
        bench = Bench().flushed((1, 2, 3), counted=(1,), go_on=True).hears(device(2), upload(2))
        again = Bench(restore(bench.machine.snapshot())).does(Started((BUNDLE,)), after=SECOND)
        assert [m.part for m in again.sums()] == [0]
        assert {e.name for e in again.of(SetTimer)} >= {
            f"1.1.1/{name}" for name in ("round", "repeat", "progress", "sum")
        }
        last = the_sum(again.hears(device(3), upload(3)))
        assert last.sum == (vector(2) + vector(3)).astype(np.uint32).tobytes()


class TestApart:
    """Rules of aggregation that need each update: they go up one after the other."""

    def answered(self, *numbers, **task):
        bench = Bench().collecting(apart=True, **task)
        for number in numbers:
            bench.hears(device(number), upload(number))
        return bench

    def test_updates_go_up_one_by_one_in_the_order_of_their_devices(self):
        bench = self.answered(3, 1, 2)
        message = the_sum(bench)
        assert list(message.devices) == [1, 2, 3] and message.count == 3
        assert message.sum == b"".join(vector(n).tobytes() for n in (1, 2, 3))
        assert bench.of(Send)[-1].size == message.ByteSize()
        assert not bench.one().apart

    def test_those_who_failed_or_sent_something_else_are_not_among_them(self):
        bench = self.answered(3)
        bench.hears(device(1), failure(1))
        misfit = upload(2)
        misfit.vector = b"short"
        bench.hears(device(2), misfit)
        message = the_sum(bench)
        assert list(message.devices) == [3] and message.sum == vector(3).tobytes()
        assert [f.device for f in message.failures] == [1, 2]

    def test_they_survive_a_restart_and_are_counted_once(self):
        bench = self.answered(3)
        again = Bench(restore(bench.machine.snapshot())).does(Started((BUNDLE,)), after=SECOND)
        again.hears(device(3), upload(3)).hears(device(1), upload(1))
        message = the_sum(again.cloud(Flush(**ROUND)))
        assert list(message.devices) == [1, 3]
        assert message.sum == vector(1).tobytes() + vector(3).tobytes()

    def test_nobody_answered(self):
        message = the_sum(self.answered().cloud(Flush(**ROUND)))
        assert message.count == 0 and message.sum == b""

    def test_room_is_kept_for_all_of_them_from_the_start(self):
        task = edge_task([1, 2, 3], apart=True)
        refused = the_sum(Bench(sum_bytes_max=47).gathering((1, 2, 3)).cloud(task))
        assert refused.count == 0 and not refused.devices
        assert not Bench(sum_bytes_max=48).gathering((1, 2, 3)).cloud(task).sums()

    def test_masked_updates_are_added_whatever_the_cloud_asks_for(self):
        bench = Bench().gathering()
        task = edge_task([1, 2, 3], apart=True)
        task.task.secure.suite, task.task.secure.cohort_min = 1, 3
        sign(task.task, _bench.COORDINATOR, ends_s=60)
        bench.cloud(task)
        for number in (1, 2, 3):
            bench.hears(device(number), upload(number))
        assert the_sum(bench).sum == (vector(1) + vector(2) + vector(3)).tobytes()


class TestRevoked:
    def test_nobody_waits_for_a_device_that_was_revoked(self):
        bench = Bench().collecting((1, 2)).hears(device(1), upload(1))
        bench.does(Ordered(Forget(device=2)))
        assert list(the_sum(bench).devices) == [1]
        assert bench.hears(device(2), upload(2)).statuses(2) == [LATE]

    def test_what_it_gave_before_stays_counted(self):
        bench = Bench().collecting((1, 2)).hears(device(1), upload(1))
        bench.does(Ordered(Forget(device=1))).hears(device(2), upload(2))
        assert list(the_sum(bench).devices) == [1, 2]
