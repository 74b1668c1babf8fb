"""The edge's protocol, event by event: its blobs, and many attempts at once."""

from __future__ import annotations

import pytest
from delian.core.node.net.message_limits import TRACEPARENT_MAX
from delian.core.node.storage.codec import envelope_bytes
from delian.core.protocol.machine import IGNORE
from delian.core.protocol.ports import (
    CLOUD,
    SECOND,
    BlobStored,
    DropBlob,
    Node,
    Ordered,
    ProtocolError,
    SendBlob,
    Started,
    StoreBlob,
    Tier,
    TimerFired,
)
from delian.core.wire.admission_pb2 import DRAINING as SENT_ON
from delian.core.wire.admission_pb2 import (
    Accept,
    EdgeHello,
    Pace,
    Reject,
    RetryWindow,
)
from delian.core.wire.blob_pb2 import Blob, FetchBlob
from delian.core.wire.journal_pb2 import Drain, Forget, Homes
from delian.core.wire.round_pb2 import (
    COUNTED,
    EVALUATE,
    LATE,
    EdgeSum,
    EdgeSumAck,
    Flush,
    RoundClosed,
    Task,
    Upload,
    UploadAck,
)
from delian.core.wire.secure_pb2 import (
    Cohort,
    Consent,
    Delivery,
    KeyBundle,
    SealedShares,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from delian.edge.protocol import edge_actions
from delian.edge.protocol.edge_actions import Edge
from delian.edge.protocol.edge_state import BUNDLES_KEPT, CLOSED_PER_RUN, COLLECTIONS_MAX, Phase
from delian.edge.protocol.machine import TABLE, restore
from support import edge_bench as _bench

BUNDLE = _bench.BUNDLE
ROUND = _bench.ROUND
WEIGHTS = _bench.WEIGHTS
Bench = _bench.Bench
check_in = _bench.check_in
device = _bench.device
edge_task = _bench.edge_task
the_sum = _bench.the_sum
upload = _bench.upload


def test_every_action_in_the_table_is_one_of_the_machine():
    assert {r.action for r in TABLE} - {IGNORE} <= set(vars(Edge).values())


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

    def test_a_blob_that_is_found_damaged_is_fetched_again_for_all_who_ask(self):
        bench = Bench().serving().does(BlobStored(WEIGHTS, False))
        assert bench.said(CLOUD) == [FetchBlob(digest=WEIGHTS)]
        assert not bench.hears(device(1), FetchBlob(digest=WEIGHTS)).of(SendBlob)
        sent = bench.does(BlobStored(WEIGHTS, True)).of(SendBlob)
        assert sent == [SendBlob(device(1), WEIGHTS)]

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

    def test_a_blob_is_kept_while_an_open_attempt_names_it(self):
        bench = Bench().serving()
        ready(bench, 8).cloud(edge_task([8], attempt=2)).cloud(RoundClosed(**ROUND, succeeded=True))
        assert not bench.of(DropBlob)
        bench.cloud(RoundClosed(run=1, round=1, attempt=2, succeeded=True))
        assert bench.of(DropBlob) == [DropBlob(WEIGHTS)]

    def test_weights_that_a_newer_round_replaced_are_not_kept(self):
        bench = Bench().reporting()
        bench.does(BlobStored(BUNDLE, True)).does(BlobStored(WEIGHTS, True)).cloud(
            EdgeSumAck(**ROUND)
        )
        bench.cloud(edge_task([1], round=2, weights=b"v" * 32))
        assert bench.of(DropBlob) == [DropBlob(WEIGHTS)], "its RoundClosed was lost"

    def test_a_round_begins_from_the_weights_that_were_evaluated(self):
        bench = Bench().collecting(purpose=EVALUATE).does(BlobStored(WEIGHTS, True))
        assert not bench.cloud(RoundClosed(**ROUND, succeeded=True)).of(DropBlob)

    def test_bundles_of_many_runs_take_turns(self):
        bench = Bench().gathering()
        for run in range(1, BUNDLES_KEPT + 3):
            bench.cloud(edge_task([99], run=run, bundle=bytes([run]) * 32))
            bench.does(BlobStored(bytes([run]) * 32, True))
            bench.cloud(EdgeSumAck(run=run, round=1, attempt=1))
        assert len(bench.state.have) == BUNDLES_KEPT

    def test_who_asked_for_a_blob_that_is_of_no_use_any_more_is_forgotten(self):
        bench = Bench().collecting().hears(device(1), FetchBlob(digest=WEIGHTS))
        assert not bench.cloud(RoundClosed(**ROUND)).state.asked
        assert bench.does(BlobStored(WEIGHTS, True)).ignored()

    def test_it_says_which_blobs_it_would_take(self):
        bench = Bench().collecting()
        assert bench.machine.wanted == {BUNDLE: 100, WEIGHTS: 12}
        assert bench.does(BlobStored(BUNDLE, True)).machine.wanted == {WEIGHTS: 12}

    def test_the_weights_of_a_failed_attempt_are_kept_for_the_next(self):
        bench = Bench().serving().cloud(RoundClosed(**ROUND, succeeded=False))
        assert not bench.of(DropBlob)
        bench.cloud(edge_task([1], attempt=2))
        assert not [m for m in bench.said(CLOUD) if isinstance(m, FetchBlob)]


def ready(bench, *numbers, sequence=2):
    for number in numbers:
        bench.hears(device(number), check_in(number, sequence=sequence))
    return bench


class TestSeveralAtOnce:
    def test_two_runs_share_the_fleet(self):
        bench = Bench().gathering((1, 2, 3, 4))
        bench.cloud(edge_task([1, 2], run=1, alone=True))
        bench.cloud(edge_task([3, 4], run=2, weights=b"v" * 32, alone=True))
        assert bench.open == ["1.1.1", "2.1.1"]
        bench.hears(device(1), upload(1)).hears(device(3), upload(3, run=2))
        bench.hears(device(2), upload(2))
        assert (the_sum(bench).run, list(the_sum(bench).devices)) == (1, [1, 2])
        bench.hears(device(4), upload(4, run=2))
        assert (the_sum(bench).run, list(the_sum(bench).devices)) == (2, [3, 4])
        bench.cloud(EdgeSumAck(run=2, round=1, attempt=1))
        assert bench.open == ["1.1.1"]

    def test_an_answer_to_another_run_than_its_own_is_in_no_sum(self):
        bench = Bench().gathering((1, 2)).cloud(edge_task([1], run=1))
        bench.cloud(edge_task([2], run=2))
        assert bench.hears(device(1), upload(1, run=2)).statuses(1) == [LATE]

    def test_a_device_works_for_one_attempt_at_a_time(self):
        bench = Bench().gathering((1, 2)).cloud(edge_task([1], run=1))
        bench.cloud(edge_task([1, 2], run=2))
        assert [m.run for m in bench.said(device(2))] == [2] and not bench.said(device(1))
        ready(bench, 1)
        assert [m.run for m in bench.said(device(1))] == [1], "it is told once more what it is at"

    def test_waves_of_one_run_overlap_and_come_in_any_order(self):
        bench = Bench().gathering((1, 2, 3))
        for attempt, number in ((3, 3), (1, 1), (2, 2)):
            bench.cloud(edge_task([number], attempt=attempt))
        assert bench.open == ["1.1.3", "1.1.1", "1.1.2"]
        for attempt in (2, 1, 3):
            bench.hears(device(attempt), upload(attempt, attempt=attempt))
            assert list(the_sum(bench).devices) == [attempt]
            bench.cloud(EdgeSumAck(run=1, round=1, attempt=attempt))
        assert bench.open == []

    def test_a_timer_is_that_of_its_attempt(self):
        bench = Bench().gathering((1, 2)).cloud(edge_task([1], attempt=1))
        bench.cloud(edge_task([2], attempt=2), after=SECOND)
        bench.fires("round", after=10 * SECOND)
        assert the_sum(bench).attempt == 1
        assert bench.fires("round", attempt="1.1.2").ignored(), "it has a second left"

    def test_a_repeated_answer_is_known_after_the_end_of_its_attempt(self):
        bench = Bench().gathering(range(1, 41))
        for round in range(1, 41):
            bench.cloud(edge_task([round], round=round, alone=True))
            bench.hears(device(round), upload(round, round=round))
            bench.cloud(EdgeSumAck(run=1, round=round, attempt=1))
            bench.cloud(RoundClosed(run=1, round=round, attempt=1, succeeded=True))
        assert len(bench.state.closed) == CLOSED_PER_RUN
        for round, status in ((40, COUNTED), (25, COUNTED), (24, LATE)):
            bench.hears(device(round), upload(round, round=round))
            assert bench.statuses(round) == [status]
        assert bench.cloud(edge_task([1], round=3)).ignored(), "also what it has forgotten is old"

    def test_what_it_remembers_of_answers_is_limited(self, monkeypatch):
        monkeypatch.setattr(edge_actions, "ANSWERS_REMEMBERED", 5)
        bench = Bench().gathering(range(1, 9))
        for run in (1, 2, 3, 4):
            numbers = [2 * run - 1, 2 * run]
            bench.cloud(edge_task(numbers, run=run))
            for number in numbers:
                bench.hears(device(number), upload(number, run=run))
            bench.cloud(EdgeSumAck(run=run, round=1, attempt=1))
        assert list(bench.state.closed) == ["3.1.1", "4.1.1"]
        assert bench.state.floor == {1: (1, 1), 2: (1, 1)}


class TestSessions:
    UP = (KeyBundle, SealedShares, Consent, UnmaskShares)
    DOWN = (Cohort, Delivery, Survivors, UnmaskRequest)

    @pytest.mark.parametrize("kind", UP)
    def test_a_message_of_a_session_goes_to_the_cloud_as_it_is(self, kind):
        message = kind(**ROUND, device=1)
        bench = Bench().collecting()
        before = bench.machine.snapshot()
        assert bench.hears(device(1), message).said(CLOUD) == [message]
        assert not bench.said(device(1))
        # Nothing is kept of it but that the device is alive.
        bench.machine.state.collections["1.1.1"].waiting[1] = False
        assert bench.machine.snapshot() == before

    def test_what_passes_through_needs_no_journal(self):
        bench = Bench().collecting()
        for _ in range(2):
            bench.cloud(Cohort(**ROUND, device=3))
            assert bench.machine.passed_on and not bench.machine.changed
        bench.hears(device(1), KeyBundle(**ROUND, device=1))
        assert bench.machine.changed, "a first sign of life is remembered"
        bench.hears(device(1), KeyBundle(**ROUND, device=1))
        assert bench.machine.passed_on and not bench.machine.changed
        assert not bench.hears(device(2), upload(2)).machine.passed_on

    @pytest.mark.parametrize("kind", (*DOWN, RoundClosed))
    def test_a_message_for_a_device_goes_to_it_as_it_is(self, kind):
        message = kind(**ROUND, device=3)
        bench = Bench().collecting()
        before = bench.machine.snapshot()
        assert bench.cloud(message).said(device(3)) == [message]
        assert not bench.said(CLOUD) and bench.machine.snapshot() == before

    def test_a_device_that_was_tasked_elsewhere_is_served_too(self):
        message = Consent(run=9, round=8, attempt=7, device=77)
        assert Bench().gathering().hears(device(77), message).said(CLOUD) == [message]

    def test_a_device_speaks_for_itself_alone(self):
        with pytest.raises(ProtocolError, match="names itself device 2"):
            Bench().collecting().hears(device(1), KeyBundle(**ROUND, device=2))

    def test_no_device_sends_what_the_cloud_sends_and_no_cloud_what_devices_do(self):
        with pytest.raises(ProtocolError, match="a device sends no Cohort"):
            Bench().collecting().hears(device(1), Cohort(**ROUND, device=1))
        with pytest.raises(ProtocolError, match="the cloud sends no Consent"):
            Bench().collecting().cloud(Consent(**ROUND, device=1))

    def test_keys_are_a_sign_of_life_of_a_device_that_was_tasked(self):
        bench = Bench().collecting().hears(device(1), KeyBundle(**ROUND, device=1))
        bench.does(TimerFired("1.1.1/repeat"), after=2 * SECOND)
        assert not bench.said(device(1)) and bench.said(device(2))

    def test_a_device_whose_update_is_in_the_sum_hears_that_somebody_is_here(self):
        bench = Bench().collecting().hears(device(1), upload(1))
        for _ in ("open", "closed"):
            (ack,) = bench.hears(device(1), SealedShares(**ROUND, device=1)).said(device(1))
            assert (ack.device, ack.status) == (1, COUNTED)
            bench.cloud(RoundClosed(**ROUND))


class TestLimits:
    def test_an_update_fits_with_its_envelope_whatever_the_numbers_and_the_trace(self):
        dimension = 20_000
        bench = Bench().collecting(dimension=dimension)
        largest = {"run": 2**63, "round": 2**31, "attempt": 2**31, "device": 2**63}
        answer = Upload(**largest, vector=bytes(4 * (dimension + 1)))
        far = Node(Tier.EDGE, 2**31)
        content = envelope_bytes(device(2**63), far, answer, "0" * TRACEPARENT_MAX)
        assert len(content) <= bench.machine.limit(device(1)) < len(content) + 1024

    def test_a_task_too_many_is_answered_by_an_empty_sum(self):
        bench = Bench().gathering(range(COLLECTIONS_MAX + 1))
        for number in range(COLLECTIONS_MAX):
            bench.cloud(edge_task([number], run=number + 1))
        bench.cloud(edge_task([COLLECTIONS_MAX], run=99))
        assert len(bench.open) == COLLECTIONS_MAX and COLLECTIONS_MAX in bench.state.pool
        assert the_sum(bench) == EdgeSum(run=99, round=1, attempt=1, edge=4)
        bench.cloud(edge_task([COLLECTIONS_MAX], run=1, round=2, alone=True))
        assert len(bench.open) == COLLECTIONS_MAX, "it takes the place of what it supersedes"

    def test_sums_take_no_more_than_the_operator_allows(self):
        bench = Bench(sum_bytes_max=40).gathering((1, 2, 3))
        bench.cloud(edge_task([1], run=1)).cloud(edge_task([2], run=2))
        assert the_sum(bench.cloud(edge_task([3], run=3))).count == 0
        assert bench.open == ["1.1.1", "2.1.1"]
        bench.hears(device(1), upload(1)).cloud(EdgeSumAck(**ROUND))
        assert the_sum(bench.cloud(edge_task([3], run=3))).count == 0, "as it has answered before"
        bench.cloud(edge_task([3], run=3, attempt=2))
        assert bench.open == ["2.1.1", "3.1.2"]

    def test_a_task_that_was_turned_down_is_not_opened_when_it_comes_twice(self):
        bench = Bench(sum_bytes_max=20).gathering((1, 2)).cloud(edge_task([1], run=1))
        bench.cloud(edge_task([2], run=2)).cloud(RoundClosed(**ROUND))
        assert bench.open == [] and the_sum(bench.cloud(edge_task([2], run=2))).count == 0
        assert bench.open == [] and 2 in bench.state.pool

    @pytest.mark.parametrize(
        "damage",
        [
            lambda t: t.ring.__setattr__("dimension", 2**28 + 1),
            lambda t: t.ring.__setattr__("bits", 64),
            lambda t: t.ring.__setattr__("clip", float("nan")),
            lambda t: t.weights.__setattr__("digest", b"short"),
            lambda t: t.bundle.__setattr__("size", 2**33),
            lambda t: t.__setattr__("rng_key", b""),
            lambda t: t.__setattr__("attempt", 0),
        ],
    )
    def test_a_task_beyond_the_limits_is_ignored(self, damage):
        message = edge_task([1])
        damage(message.task)
        assert Bench().gathering().cloud(message).ignored()

    def test_a_message_may_be_as_large_as_the_update_that_is_waited_for(self):
        bench = Bench().gathering()
        assert bench.machine.limit(device(1)) == 64 * 1024
        bench.cloud(edge_task([1], dimension=10**6))
        longest = Upload(
            run=2**63, round=2**31, attempt=2**31, device=2**63, vector=bytes(4 * 10**6 + 4)
        )
        assert bench.machine.limit(device(9)) >= longest.ByteSize()
        bench.cloud(RoundClosed(**ROUND))
        assert bench.machine.limit(device(1)) > 4 * 10**6, "a late one is answered too"
        assert (
            bench.machine.limit(CLOUD) >= edge_task(list(range(2**40, 2**40 + 100_000))).ByteSize()
        )


class TestOrders:
    def test_draining_it_sends_its_pool_on_and_ends_what_it_began(self):
        pace = Pace(ready_max=9, after_reject=RetryWindow(min_ms=1, max_ms=2))
        bench = Bench().gathering((1, 2, 3), pace=pace).cloud(edge_task([1]))
        bench.does(Ordered(Drain(draining=True)))
        for number in (2, 3):
            window = RetryWindow(min_ms=1, max_ms=2)
            assert bench.said(device(number)) == [Reject(sequence=1, reason=SENT_ON, retry=window)]
        assert not bench.said(device(1)) and not bench.state.pool
        (answer,) = bench.hears(device(9), check_in(9)).said(device(9))
        assert answer.reason == SENT_ON
        (hello,) = bench.does(TimerFired("hello"), after=SECOND).said(CLOUD)
        assert not hello.ready and hello.devices_max == 0
        assert the_sum(bench.hears(device(1), upload(1))).count == 1
        assert bench.does(Ordered(Drain(draining=True))).ignored(), "nothing new"

    def test_draining_it_has_no_device_for_a_new_task(self):
        bench = Bench().gathering().does(Ordered(Drain(draining=True)))
        assert the_sum(bench.cloud(edge_task([1, 2]))).count == 0

    def test_it_takes_devices_again(self):
        bench = Bench().gathering().does(Ordered(Drain(draining=True)))
        bench.does(Ordered(Drain()))
        (hello,) = bench.does(TimerFired("hello"), after=SECOND).said(CLOUD)
        assert hello.devices_max > 0
        assert type(ready(bench, 1).said(device(1))[0]) is Accept
        assert bench.does(Ordered(Drain())).ignored()

    def test_draining_survives_a_restart(self):
        bench = Bench().gathering().does(Ordered(Drain(draining=True)))
        again = Bench(restore(bench.machine.snapshot())).does(Started())
        assert again.state.phase is Phase.DRAINING

    def test_the_cloud_takes_it_out_of_service_and_puts_it_back_by_its_pace(self):
        bench = Bench().gathering((1, 2)).cloud(edge_task([1]))
        bench.cloud(Pace(ready_max=9, draining=True))
        assert [m.reason for m in bench.said(device(2))] == [SENT_ON] and not bench.said(device(1))
        (hello,) = bench.does(TimerFired("hello"), after=SECOND).said(CLOUD)
        assert hello.told_draining and not hello.ready and hello.devices_max == 0
        (answer,) = bench.hears(device(2), check_in(2, sequence=2)).said(device(2))
        assert answer.reason == SENT_ON
        assert not bench.cloud(Pace(ready_max=8, draining=True)).effects, "it has heard that"
        assert bench.state.pace.ready_max == 8
        assert the_sum(bench.hears(device(1), upload(1))).count == 1, "what was begun goes on"
        again = Bench(restore(bench.machine.snapshot())).does(Started())
        assert again.state.phase is Phase.DRAINING and again.said(CLOUD)[0].told_draining
        again.cloud(Pace(ready_max=9))
        (hello,) = again.does(TimerFired("hello"), after=SECOND).said(CLOUD)
        assert not hello.told_draining and hello.devices_max > 0
        assert type(ready(again, 2, sequence=3).said(device(2))[0]) is Accept

    def test_a_pace_that_was_under_way_for_long_is_ignored(self):
        bench = Bench().does(Started()).cloud(Pace(ready_max=5, number=7))
        assert bench.cloud(Pace(ready_max=0, number=6)).ignored()
        assert bench.cloud(Pace(ready_max=0, number=7)).ignored()
        assert bench.state.pace.ready_max == 5
        (hello,) = bench.does(TimerFired("hello"), after=SECOND).said(CLOUD)
        assert hello.pace == 7, "so that the cloud knows"

    def test_it_drains_while_its_own_side_or_the_cloud_wants_it(self):
        bench = Bench().gathering().does(Ordered(Drain(draining=True)))
        bench.cloud(Pace(ready_max=9, draining=True)).cloud(Pace(ready_max=9))
        assert bench.state.phase is Phase.DRAINING, "its own side has not taken it back"
        bench.does(Ordered(Drain()))
        assert bench.state.phase is Phase.SERVING
        bench.cloud(Pace(ready_max=9, draining=True)).does(Ordered(Drain(draining=True)))
        bench.does(Ordered(Drain()))
        assert bench.state.phase is Phase.DRAINING, "the cloud has not"
        assert bench.cloud(Pace(ready_max=9)).state.phase is Phase.SERVING

    def test_a_revoked_device_is_out_of_the_pool_and_gets_no_blob(self):
        bench = Bench().collecting((1, 2)).hears(device(2), FetchBlob(digest=BUNDLE))
        ready(bench, 7).does(Ordered(Forget(device=7)))
        bench.does(Ordered(Forget(device=2)))
        assert not bench.state.pool and 7 not in bench.state.check_ins
        assert not bench.does(BlobStored(BUNDLE, True)).of(SendBlob)

    def test_what_is_no_order_for_an_edge_is_refused(self):
        bench = Bench().gathering()
        with pytest.raises(ProtocolError):
            bench.does(Ordered(Homes()))


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
        (CLOUD, Task()),
    ],
)
def test_who_says_what_he_may_not_say_breaks_the_protocol(sender, message):
    bench = Bench().collecting()
    with pytest.raises(ProtocolError):
        bench.hears(sender, message)


@pytest.mark.parametrize(
    "name",
    ["fetch", "1.1.1/repeat", "1.1.1/round", "1.1.1/progress", "1.1.1/sum", "unheard of", "/"],
)
def test_a_timer_that_was_cancelled_may_still_fire(name):
    assert Bench().gathering().does(TimerFired(name)).ignored()


@pytest.mark.parametrize("where", ["gathering", "collecting", "reporting", "serving"])
def test_its_state_survives_a_snapshot_and_a_restart(where):
    bench = getattr(Bench(), where)()
    state = restore(bench.machine.snapshot())
    assert restore(Bench(state).machine.snapshot()) == state
    again = Bench(state).does(Started((BUNDLE,)), after=SECOND)
    assert again.stage() is bench.stage()
    if where == "reporting":
        assert the_sum(again)
    if where == "collecting":
        again.hears(device(1), upload(1)).hears(device(2), upload(2)).hears(device(3), upload(3))
        assert the_sum(again).count == 3
