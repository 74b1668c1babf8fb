"""The device's protocol, event by event."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.protocol.machine import IGNORE
from delian.core.protocol.ports import (
    CLOUD,
    MS,
    SECOND,
    BlobStored,
    CancelProgram,
    DropBlob,
    Ordered,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    ProtocolError,
    Received,
    RunProgram,
    Send,
    Started,
    StoreBlob,
    TimerFired,
)
from delian.core.protocol.random_streams import device_key
from delian.core.protocol.run_names import named
from delian.core.wire.admission_pb2 import (
    NO_WORK,
    POOL_FULL,
    WORK_CAME,
    Accept,
    CheckIn,
    Reject,
    RetryWindow,
)
from delian.core.wire.blob_pb2 import Blob, FetchBlob
from delian.core.wire.journal_pb2 import Connected
from delian.core.wire.link_pb2 import NODE_EDGE, Address
from delian.core.wire.round_pb2 import (
    COUNTED,
    DEADLINE,
    EVALUATE,
    LATE,
    NON_FINITE,
    OUT_OF_MEMORY,
    PROGRAM_FAILED,
    Failure,
    RoundClosed,
    Upload,
    UploadAck,
)
from delian.device.protocol.device_actions import Device
from delian.device.protocol.device_state import DeviceState, Phase
from delian.device.protocol.machine import TABLE, restore
from support import device_bench as _bench

BUNDLE = _bench.BUNDLE
EDGE = _bench.EDGE
VECTOR = _bench.VECTOR
WEIGHTS = _bench.WEIGHTS
Bench = _bench.Bench
make_task = _bench.make_task


def test_every_action_in_the_table_is_one_of_the_machine():
    actions = {r.action for r in TABLE} - {IGNORE}
    assert all(getattr(Device, action.__name__) is action for action in actions)


def test_it_checks_in_when_it_starts_and_repeats_until_it_is_answered():
    bench = Bench().does(Started())
    first = bench.said
    assert [type(m) for m in first] == [CheckIn]
    assert (first[0].device, first[0].sequence, first[0].protocol) == (7, 1, 1)
    pauses = []
    for _ in range(3):
        pauses.append(bench.timer("repeat") - bench.now)
        bench.does(TimerFired("repeat"), after=pauses[-1])
        assert bench.said == first, "a repetition is the same message"
    assert pauses == sorted(pauses) and pauses[0] < pauses[-1]


def test_accepted_it_waits_and_checks_in_again_when_the_lease_is_over():
    bench = Bench().ready()
    assert bench.phase is Phase.READY
    assert bench.timer("lease") == 60_000 * MS
    bench.does(TimerFired("lease"), after=60_000 * MS)
    assert bench.phase is Phase.CHECKING_IN
    assert bench.said[0].sequence == 2


def test_rejected_it_comes_back_within_the_window():
    bench = Bench().does(Started())
    window = RetryWindow(min_ms=3000, max_ms=5000)
    bench.gets(Reject(sequence=1, reason=POOL_FULL, retry=window))
    assert bench.phase is Phase.IDLE
    assert 3000 * MS <= bench.timer("retry") <= 5000 * MS
    bench.does(TimerFired("retry"), after=bench.timer("retry"))
    assert bench.said[0].sequence == 2


def test_connected_anew_it_offers_itself_again():
    bench = Bench().does(Started())
    home = Ordered(Connected(home=Address(tier=NODE_EDGE, number=EDGE.number)))
    bench.does(home)
    assert bench.phase is Phase.CHECKING_IN and bench.said[0].sequence == 2
    bench.gets(Accept(sequence=2, lease_ms=60_000))
    bench.does(home)
    assert bench.phase is Phase.CHECKING_IN and bench.said[0].sequence == 3
    bench.gets(Accept(sequence=3, lease_ms=60_000))
    other = Ordered(Connected(home=Address(tier=NODE_EDGE, number=EDGE.number + 1)))
    assert bench.does(other).ignored(), "it does not speak to that one"
    bench.gets(make_task()).does(home)
    assert bench.phase is Phase.FETCHING, "it has work"
    assert bench.said == [FetchBlob(digest=BUNDLE), FetchBlob(digest=WEIGHTS)], "some may be lost"
    assert bench.does(other).ignored()


def test_called_it_comes_back_sooner_than_it_was_told():
    bench = Bench().does(Started())
    call = Reject(sequence=1, reason=WORK_CAME, retry=RetryWindow(min_ms=0, max_ms=500))
    assert bench.gets(call).ignored(), "it has not been sent away"
    bench.gets(Reject(sequence=1, reason=NO_WORK, retry=RetryWindow(min_ms=9000, max_ms=9000)))
    bench.gets(call)
    assert bench.phase is Phase.IDLE and bench.timer("retry") <= 500 * MS
    bench.does(TimerFired("retry"), after=500 * MS)
    assert bench.said[0].sequence == 2
    assert bench.gets(call).ignored(), "it has come"
    bench.gets(Reject(sequence=2, retry=RetryWindow(min_ms=9000, max_ms=9000)))
    assert bench.gets(call).ignored(), "it was for an earlier check-in"


def test_rejected_without_a_window_it_takes_its_own():
    bench = Bench().does(Started()).gets(Reject(sequence=1))
    low, high = bench.machine.owner.policy.retry_ms
    assert low * MS <= bench.timer("retry") <= high * MS


def test_a_window_that_is_no_window_is_brought_into_its_limits():
    bench = Bench().does(Started())
    bench.gets(Reject(sequence=1, retry=RetryWindow(min_ms=2**32 - 1, max_ms=5)))
    assert bench.timer("retry") == 7 * 24 * 3600 * SECOND


def test_devices_that_are_sent_away_together_do_not_come_back_together():
    times = set()
    for device in range(20):
        bench = Bench(DeviceState(device)).does(Started())
        bench.gets(Reject(sequence=1, retry=RetryWindow(min_ms=0, max_ms=1000)))
        times.add(bench.timer("retry"))
    assert len(times) == 20


@pytest.mark.parametrize("answer", [Accept(sequence=9, lease_ms=1), Reject(sequence=9)])
def test_an_answer_to_another_check_in_is_ignored(answer):
    bench = Bench().does(Started()).gets(answer)
    assert bench.phase is Phase.CHECKING_IN and bench.ignored()


def test_a_lease_that_ends_at_once_is_no_loop():
    bench = Bench().does(Started()).gets(Accept(sequence=1, lease_ms=0))
    assert bench.timer("lease") == SECOND


def test_a_task_makes_it_fetch_what_it_has_not_got():
    bench = Bench().fetching()
    assert bench.said == [FetchBlob(digest=BUNDLE), FetchBlob(digest=WEIGHTS)]
    bench.does(BlobStored(BUNDLE, True))
    bench.does(TimerFired("repeat"), after=5 * SECOND)
    assert bench.said == [FetchBlob(digest=WEIGHTS)]


def test_a_task_reaches_a_device_whose_accept_was_lost():
    bench = Bench().does(Started()).gets(make_task())
    assert bench.phase is Phase.FETCHING


def test_blobs_are_stored_and_then_it_trains_with_its_own_key():
    bench = Bench().fetching()
    blob = Blob(digest=BUNDLE, size=1, content=b"x")
    assert bench.gets(blob).of(StoreBlob) == [StoreBlob(blob)]
    assert not bench.does(BlobStored(BUNDLE, True)).of(RunProgram)
    (run,) = bench.does(BlobStored(WEIGHTS, True)).of(RunProgram)
    assert (run.program, run.blobs) == ("client_update", (BUNDLE, WEIGHTS))
    key, plan = run.arguments
    assert tuple(key) == device_key(b"roundkey", 7, b"k" * 32) and plan.dimension == 3
    assert bench.phase is Phase.TRAINING


def test_an_evaluation_is_a_task_like_any_other_but_for_its_program():
    bench = Bench().training(purpose=EVALUATE)
    (run,) = bench.of(RunProgram)
    assert (run.program, run.blobs) == ("evaluate", (BUNDLE, WEIGHTS))
    (upload,) = bench.does(ProgramFinished(1, Outcome(VECTOR))).said
    assert upload.vector == VECTOR.tobytes()


def test_the_bundles_of_the_last_few_tasks_are_kept():
    bench = Bench().ready()
    for run in range(1, 7):
        bench.gets(make_task(run=run, bundle=bytes([run]) * 32))
        dropped = [e.digest for e in bench.of(DropBlob)]
        assert dropped == ([bytes([run - 4]) * 32] if run > 4 else [])
        bench.does(BlobStored(bytes([run]) * 32, True))
        bench.gets(RoundClosed(run=run, round=1, attempt=1))
    assert bench.gets(make_task(run=7, bundle=bytes([4]) * 32)).said == [FetchBlob(digest=WEIGHTS)]


def test_it_says_which_blobs_it_would_take():
    bench = Bench().ready()
    assert bench.machine.wanted == {}
    assert bench.gets(make_task()).machine.wanted == {BUNDLE: 100, WEIGHTS: 12}
    assert bench.does(BlobStored(BUNDLE, True)).machine.wanted == {WEIGHTS: 12}


def test_a_corrupt_blob_is_asked_for_again():
    bench = Bench().fetching().does(BlobStored(BUNDLE, False))
    assert bench.phase is Phase.FETCHING
    assert FetchBlob(digest=BUNDLE) in bench.does(TimerFired("repeat"), after=SECOND).said


def test_a_blob_that_nobody_asked_for_is_not_stored():
    bench = Bench().fetching().gets(Blob(digest=b"?" * 32))
    assert bench.ignored() and not bench.of(StoreBlob)


def test_it_uploads_the_vector_until_it_is_acknowledged():
    bench = Bench().uploading()
    (upload,) = bench.said
    assert upload == Upload(run=1, round=1, attempt=1, device=7, vector=VECTOR.tobytes())
    assert bench.of(Send)[0].size == upload.ByteSize()
    assert bench.does(TimerFired("repeat"), after=SECOND).said == [upload]
    bench.gets(UploadAck(run=1, round=1, attempt=1, device=7, status=COUNTED))
    assert bench.phase is Phase.IDLE
    assert bench.now + 1000 * MS <= bench.timer("retry") <= bench.now + 2000 * MS
    assert bench.of(DropBlob) == [DropBlob(WEIGHTS)], "the bundle serves the next round"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome(VECTOR, finite=False), NON_FINITE),
        (Outcome(None), PROGRAM_FAILED),
        (Outcome(VECTOR[:2]), PROGRAM_FAILED),
        (Outcome(np.array([1, 2, 3, 2**27 + 1], np.uint32)), PROGRAM_FAILED),  # weighs more than 1
        (Outcome(np.array([1, 2, 3, 2**32 - 1], np.uint32)), PROGRAM_FAILED),  # less than nothing
        (ProgramStopped(OUT_OF_MEMORY), OUT_OF_MEMORY),
    ],
)
def test_without_a_finite_update_it_says_so_and_uploads_nothing(outcome, reason):
    bench = Bench().training().does(ProgramFinished(1, outcome))
    failure = Failure(run=1, round=1, attempt=1, device=7, reason=reason)
    assert bench.said == [failure]
    assert bench.does(TimerFired("repeat"), after=SECOND).said == [failure]
    assert bench.gets(UploadAck(run=1, round=1, attempt=1, device=7)).phase is Phase.IDLE


@pytest.mark.parametrize("where", ["fetching", "training"])
def test_when_time_is_over_it_says_so_once(where):
    bench = getattr(Bench(), where)()
    bench.does(TimerFired("task"), after=10_000 * MS)
    assert [m.reason for m in bench.said] == [DEADLINE]
    assert bench.phase is Phase.IDLE
    assert bool(bench.of(CancelProgram)) == (where == "training")


def test_when_time_is_over_while_uploading_it_gives_up():
    bench = Bench().uploading().does(TimerFired("task"), after=10_000 * MS)
    assert bench.phase is Phase.IDLE and not bench.said


@pytest.mark.parametrize("where", ["fetching", "training", "uploading"])
def test_when_its_answer_is_not_needed_it_stops(where):
    bench = getattr(Bench(), where)()
    assert bench.gets(RoundClosed(run=1, round=1, attempt=2)).phase is not Phase.IDLE
    assert bench.gets(RoundClosed(run=1, round=1, attempt=1)).phase is Phase.IDLE
    assert bool(bench.of(CancelProgram)) == (where == "training")
    assert bench.machine.state.task is None


@pytest.mark.parametrize("where", ["fetching", "training", "uploading"])
def test_a_working_device_takes_no_second_task(where):
    bench = getattr(Bench(), where)()
    before = bench.phase
    assert bench.gets(make_task(round=2)).phase is before and bench.ignored()


def test_a_task_is_never_taken_twice_but_whoever_asks_again_is_told():
    bench = Bench().uploading().gets(UploadAck(run=1, round=1, attempt=1, device=7, status=LATE))
    assert bench.gets(make_task()).phase is Phase.IDLE
    assert bench.said == [Failure(run=1, round=1, attempt=1, device=7, reason=DEADLINE)]
    assert bench.gets(make_task(attempt=2)).phase is Phase.FETCHING
    bench.gets(RoundClosed(run=1, round=1, attempt=2))
    assert bench.gets(make_task()).ignored(), "an older one is a message that was late"


def test_tasks_of_another_run_are_counted_on_their_own():
    bench = Bench().fetching(round=5, run=3).gets(RoundClosed(run=3, round=5, attempt=1))
    assert bench.gets(make_task(round=4, run=3)).ignored()
    assert bench.gets(make_task(round=1, run=2)).phase is Phase.FETCHING


def test_it_remembers_a_limited_number_of_runs():
    bench = Bench().ready()
    for run in range(1, 50):
        bench.gets(make_task(run=run)).gets(RoundClosed(run=run, round=1, attempt=1))
    assert len(bench.machine.state.done) == 16


def test_restarts_of_the_coordinator_push_out_no_run_that_keeps_its_name():
    """A run that promises privacy keeps its name for this: none of its rounds is done again."""
    private = named(1, 100)
    bench = Bench().fetching(round=5, run=private)
    bench.gets(RoundClosed(run=private, round=5, attempt=1))
    for start in range(101, 150):
        bench.gets(make_task(run=named(2, start)))
        bench.gets(RoundClosed(run=named(2, start), round=1, attempt=1))
    assert bench.gets(make_task(round=4, run=private)).ignored()
    assert len(bench.machine.state.done) == 16


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.ring.__setattr__("dimension", 0),
        lambda t: t.ring.__setattr__("dimension", 2**28 + 1),
        lambda t: t.__setattr__("rng_key", b"short"),
        lambda t: t.weights.__setattr__("digest", b"short"),
        lambda t: t.weights.__setattr__("size", 2**40),
        lambda t: t.bundle.__setattr__("size", 2**40),
        lambda t: t.ring.__setattr__("bits", 7),
        lambda t: t.ring.__setattr__("clip", float("nan")),
        lambda t: t.ring.__setattr__("clip", float("inf")),
        lambda t: t.ring.__setattr__("clip", -1.0),
        lambda t: t.ring.__setattr__("clients_max", 0),
        lambda t: t.ring.__setattr__("clients_max", 2**31),
        lambda t: t.__setattr__("time_ms", 2**32 - 1),
        lambda t: t.__setattr__("purpose", 7),
        lambda t: t.__setattr__("run", 0),
        lambda t: t.__setattr__("round", 0),
        lambda t: t.__setattr__("attempt", 0),
    ],
)
def test_a_task_beyond_the_limits_is_not_taken(damage):
    task = make_task()
    damage(task)
    bench = Bench().ready().gets(task)
    assert bench.phase is Phase.READY and bench.ignored()


def test_the_outcome_of_an_abandoned_program_is_ignored():
    bench = Bench().training().gets(RoundClosed(run=1, round=1, attempt=1))
    assert bench.does(ProgramFinished(1, Outcome(VECTOR))).ignored()


@pytest.mark.parametrize("name", ["retry", "repeat", "lease", "task", "unheard of"])
def test_a_timer_that_was_cancelled_may_still_fire(name):
    bench = Bench().training()
    assert bench.does(TimerFired(name)).phase is Phase.TRAINING and bench.ignored()


def test_messages_of_other_senders_and_other_tiers_are_protocol_errors():
    bench = Bench().ready()
    with pytest.raises(ProtocolError):
        bench.does(Received(CLOUD, make_task()))
    with pytest.raises(ProtocolError):
        bench.gets(CheckIn(device=7))
    with pytest.raises(ProtocolError):
        bench.gets(UploadAck(device=8))
    assert bench.phase is Phase.READY


def test_started_again_it_trains_from_the_start_with_what_its_store_still_has():
    bench = Bench().training().does(Started((BUNDLE,)), after=SECOND)
    assert bench.phase is Phase.FETCHING and bench.said == [FetchBlob(digest=WEIGHTS)]
    assert bench.timer("task") == 10 * SECOND
    (run,) = bench.does(BlobStored(WEIGHTS, True)).of(RunProgram)
    assert run.ticket == 2, "the outcome of the first program would be another's"


def test_started_again_it_still_sends_the_answer_that_it_had():
    bench = Bench().uploading()
    upload = bench.said
    again = Bench(restore(bench.machine.snapshot())).does(Started())
    assert again.said == upload


@pytest.mark.parametrize("where", ["ready", "fetching", "training", "uploading"])
def test_its_state_survives_a_snapshot(where):
    state = getattr(Bench(), where)().machine.state
    assert restore(Bench(state).machine.snapshot()) == state


def test_a_blob_that_is_found_damaged_while_it_trains_is_fetched_again_and_it_trains():
    bench = Bench().training().does(BlobStored(WEIGHTS, False))
    assert bench.phase is Phase.FETCHING and bench.said == [FetchBlob(digest=WEIGHTS)]
    bench.does(ProgramFinished(1, ProgramStopped(PROGRAM_FAILED)))  # the program without it
    assert bench.phase is Phase.FETCHING and not bench.said
    (run,) = bench.does(BlobStored(WEIGHTS, True)).of(RunProgram)
    assert run.ticket == 2 and bench.phase is Phase.TRAINING


def test_a_blob_that_is_found_damaged_at_rest_is_fetched_with_the_next_task():
    bench = Bench().training().gets(RoundClosed(run=1, round=1, attempt=1))
    assert not bench.does(BlobStored(BUNDLE, False)).said
    assert bench.does(BlobStored(BUNDLE, False)).ignored()  # it is known
    bench.gets(make_task(round=2))
    assert FetchBlob(digest=BUNDLE) in bench.said
