"""The driver around a toy machine: what is durable when, in what order, and what ends a node."""

from __future__ import annotations

import asyncio
import runpy
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from delian.core.node.codec import decode
from delian.core.node.driver import Driver, DriverLimits
from delian.core.node.journal import JournalError
from delian.core.node.memory import MemoryBlobs, MemoryDisk
from delian.core.ports import (
    SECOND,
    BlobStored,
    CancelProgram,
    CancelTimer,
    DropBlob,
    NewModel,
    Node,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    RunProgram,
    SendBlob,
    SetTimer,
    Started,
    StoreBlob,
    Tier,
    TimerFired,
)
from delian.core.snapshot import SnapshotError
from delian.core.wire.blob_pb2 import Blob
from delian.core.wire.round_pb2 import PROGRAM_FAILED

_bench = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("node_bench.py"))))
Toy, check_in, parts, run = _bench.Toy, _bench.check_in, _bench.parts, _bench.run
DEVICE = Node(Tier.DEVICE, 7)


class Running:
    """A driver at work, for `async with`."""

    def __init__(self, script=None, limits=None, on_record=None, **changes) -> None:
        self.parts = parts(**changes)
        self.switch, self.blobs = self.parts["switch"], self.parts["blobs"]
        self.executor, self.journal = self.parts["executor"], self.parts["journal"]
        self.driver = Driver(
            lambda snapshot: Toy(snapshot, script),
            **self.parts,
            on_record=on_record,
            limits=limits,
        )

    @property
    def toy(self):
        return self.driver.machine

    @property
    def events(self):
        """What the machine was told after the start."""
        return [event for event, _ in self.toy.events if not isinstance(event, Started)]

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self.driver.run())
        await self.driver.started()
        return self

    async def __aexit__(self, *_):
        await self.driver.close()
        await asyncio.gather(self.task, return_exceptions=True)

    async def tell(self, *events):
        """Posts events and waits until their effects are done."""
        for event in events:
            self.driver.post(event)
        await self.settle()

    async def settle(self):
        for _ in range(20):
            await asyncio.sleep(0)


class SlowJournal:
    """A journal that takes its time, and remembers what is durable."""

    def __init__(self, seconds: float = 5.0) -> None:
        self.inner, self.seconds, self.durable = parts()["journal"], seconds, []
        self.appends, self.fault = 0, None
        self.load, self.checkpoint, self.close = (
            self.inner.load,
            self.inner.checkpoint,
            self.inner.close,
        )

    async def append(self, entries, records):
        await asyncio.sleep(self.seconds)
        if self.fault is not None:
            raise self.fault
        await self.inner.append(entries, records)
        self.appends += 1
        self.durable += [decode(entry)[0] for entry in entries]


def test_nothing_leaves_before_it_is_durable_and_a_slow_disk_reorders_nothing():
    async def main():
        slow = SlowJournal()
        running = Running(journal=slow, limits=DriverLimits(batch_events_max=3))
        send = running.switch.send

        def checked(sender, to, message, traceparent=""):
            assert check_in(message.sequence) in slow.durable
            send(sender, to, message, traceparent)

        running.switch.send = checked
        async with running:
            for sequence in range(1, 11):
                running.driver.post(check_in(sequence))
                await asyncio.sleep(sequence % 3)
            await asyncio.sleep(60)
            assert running.switch.accepted == list(range(1, 11))
            # What came while the disk was busy went in one append, within the limit.
            assert 5 <= slow.appends <= 7

    run(main())


def test_a_batch_ends_at_its_bytes():
    async def main():
        slow = SlowJournal()
        running = Running(journal=slow, limits=DriverLimits(batch_bytes_max=60))
        async with running:
            for sequence in range(1, 10):
                running.driver.post(check_in(sequence))
            await asyncio.sleep(100)
            assert running.switch.accepted == list(range(1, 10)) and slow.appends >= 4

    run(main())


def test_a_node_that_is_started_again_is_where_it_was():
    disk = MemoryDisk()

    async def live(*sequences, known=()):
        async with Running(journal=_bench.journal(disk)) as running:
            assert running.toy.seen == list(known)
            await running.tell(*map(check_in, sequences))
            assert running.switch.accepted == list(sequences)

    run(live(1, 2, 3))
    run(live(4, known=[1, 2, 3]))
    run(live(known=[1, 2, 3, 4]))


def test_a_node_that_was_killed_is_replayed_without_its_effects():
    disk = MemoryDisk()

    async def first():
        running = Running(journal=_bench.journal(disk))
        async with running:
            await running.tell(*map(check_in, [5, 6, 5]))
            running.task.cancel()

    async def second():
        async with Running(journal=_bench.journal(disk)) as running:
            assert running.toy.seen == [5, 6]
            assert running.driver.counters["replayed"] == 3  # with Started, without the repetition
            assert running.switch.sent == []

    run(first())
    run(second())


def test_the_first_state_of_a_node_is_kept_so_that_its_maker_is_asked_once():
    disk, asked = MemoryDisk(), []

    def make(snapshot):
        asked.append(snapshot)
        return Toy(snapshot)

    async def main():
        for _ in range(2):
            driver = Driver(make, **parts(journal=_bench.journal(disk)))
            task = asyncio.ensure_future(driver.run())
            await driver.started()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(main())
    assert asked == [None, b"[]"]


def test_what_changes_nothing_is_not_journaled_but_counted():
    async def main():
        told = []
        async with Running(journal=SlowJournal(0), on_record=told.append) as running:
            await running.tell(*[check_in(1)] * 5)
            assert running.journal.durable == [Started(()), check_in(1)]
            assert [record.kind for record in told] == ["counted"] + ["ignored"] * 4
            counters = running.driver.counters
            assert counters["skipped"] == 4 and counters["record ignored"] == 4
            assert counters["events"] == 6 and counters["entries"] == 2

    run(main())


def test_a_peer_that_breaks_the_protocol_is_counted_and_logged_and_ends_nothing(caplog):
    async def main():
        async with Running(journal=SlowJournal(0)) as running:
            await running.tell(check_in(1), check_in(666), check_in(2))
            assert running.switch.accepted == [1, 2]
            assert check_in(666) not in running.journal.durable
            assert running.driver.counters["refused CheckIn"] == 1

    run(main())
    (line,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert "CheckIn of device 7: not a number that one says" in line.getMessage()


def test_a_fault_of_the_machine_stops_the_node_with_nothing_half_done(caplog):
    disk = MemoryDisk()

    async def main():
        running = Running(journal=_bench.journal(disk))
        async with running:
            await running.tell(check_in(1))
            await running.tell(check_in(2), check_in(999), check_in(3))
            with pytest.raises(AssertionError, match="a fault of the machine"):
                await running.task
            with pytest.raises(AssertionError):
                await running.driver.started()
            assert running.switch.accepted == [1]
            running.driver.post(check_in(4))
            assert not await running.driver.offer(check_in(4))

    async def again():
        async with Running(journal=_bench.journal(disk)) as running:
            assert running.toy.seen == [1]

    run(main())
    assert any("edge 1 stops" in r.getMessage() and r.levelname == "ERROR" for r in caplog.records)
    run(again())


def test_a_journal_that_fails_stops_the_node_before_any_effect():
    async def main():
        running = Running(journal=SlowJournal(0))
        async with running:
            running.journal.fault = JournalError("no room")
            await running.tell(check_in(1))
            with pytest.raises(JournalError, match="no room"):
                await running.task
            assert running.switch.sent == []

    run(main())


def test_a_journal_without_its_snapshot_is_not_taken_for_a_new_node():
    async def main():
        disk = MemoryDisk()
        journal = _bench.journal(disk)
        await journal.load()
        await journal.append([b"entry"], [])
        driver = Driver(Toy, **parts(journal=_bench.journal(disk)))
        with pytest.raises(SnapshotError, match="no snapshot"):
            await driver.run()

    run(main())


def test_a_full_inbox_drops_messages_only_and_a_link_can_wait_for_room():
    async def main():
        limits = DriverLimits(inbox_events_max=4)
        async with Running(journal=SlowJournal(1), limits=limits) as running:
            driver = running.driver
            for sequence in range(1, 8):
                driver.post(check_in(sequence))
            driver.post(TimerFired("mine"))
            assert driver.counters["dropped"] == 3
            waiting = [asyncio.ensure_future(driver.offer(check_in(n))) for n in range(10, 30)]
            await asyncio.sleep(0)
            assert not all(task.done() for task in waiting)
            assert all(await asyncio.gather(*waiting))
            await asyncio.sleep(30)
            assert running.switch.accepted == [1, 2, 3, 4, *range(10, 30)]
            assert TimerFired("mine") in running.events

    run(main())


def test_the_bytes_that_wait_are_limited_too():
    async def main():
        limits = DriverLimits(inbox_bytes_max=100)
        async with Running(journal=SlowJournal(1), limits=limits) as running:
            for sequence in range(1, 6):
                running.driver.post(check_in(sequence), size=60)
            await asyncio.sleep(10)
            assert running.switch.accepted == [1, 2] and running.driver.counters["dropped"] == 3
            assert await running.driver.offer(check_in(9), size=60)

    run(main())


def test_who_waits_for_room_is_let_go_when_the_node_ends():
    async def main():
        limits = DriverLimits(inbox_events_max=1)
        async with Running(journal=SlowJournal(1), limits=limits) as running:
            await running.tell(check_in(1))  # on its way to the disk
            running.driver.post(check_in(2))
            waiting = asyncio.ensure_future(running.driver.offer(check_in(3)))
            await asyncio.sleep(0)
            assert not waiting.done()
            await running.driver.close()
            assert await waiting is False and running.switch.accepted == [1]

    run(main())


def test_a_trace_goes_on_with_what_a_message_leads_to():
    script = {1: [RunProgram(3, "client_update", (), ())]}

    async def main():
        async with Running(script) as running:
            running.driver.post(check_in(1), "00-aa-bb-01")
            running.driver.post(check_in(2))
            await running.settle()
            assert [(m.sequence, t) for _, m, t in running.switch.sent] == [
                (1, "00-aa-bb-01"),
                (2, ""),
            ]

    run(main())


# ---------------------------------------------------------------- timers


def at(seconds: float) -> int:
    return _bench.START_NS + round(seconds * SECOND)


def test_timers_fire_at_their_time_once_and_in_order():
    script = {
        1: [SetTimer("late", at(5000)), SetTimer("soon", at(2)), SetTimer("past", at(-1))],
        2: [SetTimer("late", at(9000)), CancelTimer("soon"), CancelTimer("unknown")],
    }

    async def main():
        async with Running(script) as running:
            await running.tell(check_in(1))
            assert running.events[1:] == [TimerFired("past")]
            await running.tell(check_in(2))
            await asyncio.sleep(5001)
            assert running.events[3:] == []
            await asyncio.sleep(5000)
            assert running.events[3:] == [TimerFired("late")]
            fired = next(now for event, now in running.toy.events if event == TimerFired("late"))
            assert fired >= at(9000)

    run(main())


def test_a_timer_that_is_cancelled_while_it_waits_in_the_inbox_does_not_fire():
    script = {1: [SetTimer("timer", at(1))], 2: [CancelTimer("timer")]}

    async def main():
        async with Running(script, journal=SlowJournal(0)) as running:
            await running.tell(check_in(1))
            running.journal.seconds = 10
            running.driver.post(check_in(2))  # on its way to the disk when the timer fires
            await asyncio.sleep(30)
            assert running.events == [check_in(1), check_in(2)]

    run(main())


def test_timers_end_with_the_node():
    async def main():
        async with Running({1: [SetTimer("timer", at(10))]}) as running:
            await running.tell(check_in(1))
        await asyncio.sleep(20)
        assert running.events == [check_in(1)]

    run(main())


@pytest.mark.parametrize("changed_s", [-100_000, 0, 5])
def test_time_never_falls_and_goes_on_when_the_clock_was_set_back(changed_s):
    disk, lives = MemoryDisk(), []

    async def live(start_s, sequence, timer_at):
        clock, script = _bench.LoopClock(at(start_s)), {sequence: [SetTimer("timer", timer_at)]}
        async with Running(script, journal=_bench.journal(disk), clock=clock) as running:
            await asyncio.sleep(7)
            await running.tell(check_in(sequence))
            await asyncio.sleep(11)
            assert running.events[-2:] == [check_in(sequence), TimerFired("timer")]
            lives.append([now for _, now in running.toy.events])
            if sequence == 1:
                running.task.cancel()

    run(live(0, 1, at(10)))
    run(live(changed_s, 2, lives[0][-1] + 12 * SECOND))
    first, second = lives
    assert second[:3] == first and second == sorted(second)
    # Time went on, also where the clock was far behind what was known.
    assert 7 * SECOND <= second[-1] - second[3] < 30 * SECOND


# ---------------------------------------------------------------- blobs


def blob(data: bytes, **changes) -> Blob:
    digest = _bench.hashlib.sha256(data).digest()
    return Blob(**{"digest": digest, "size": len(data), "content": data, **changes})


GOOD = blob(b"content")


@pytest.mark.parametrize(
    ("sent", "intact"),
    [
        (GOOD, True),
        (blob(b"large" * 100_000), True),
        (blob(b""), True),
        (blob(b"content", content=b"other"), False),
        (blob(b"content", content=b""), False),  # no link has put it there
        (blob(b"content", digest=b"short"), False),
        (blob(b"content", digest=b"short", content=b""), False),
    ],
)
def test_a_stored_blob_is_checked_against_its_digest(sent, intact):
    async def main():
        async with Running({1: [StoreBlob(sent)]}) as running:
            running.driver.post(check_in(1))
            while len(running.events) < 2:
                await asyncio.sleep(0.001)
            assert running.events[1] == BlobStored(sent.digest, intact)
            assert await running.blobs.digests() == ((sent.digest,) if intact else ())

    asyncio.run(main())


def test_what_a_link_has_put_into_the_store_is_there():
    async def main():
        script = {1: [StoreBlob(blob(b"content", content=b""))]}
        async with Running(script) as running:
            await running.blobs.put(b"content")
            await running.tell(check_in(1))
            assert running.events[1] == BlobStored(GOOD.digest, True)

    run(main())


def test_a_blob_that_finds_no_room_has_not_arrived():
    async def main():
        async with Running({1: [StoreBlob(GOOD)]}, blobs=MemoryBlobs(3)) as running:
            await running.tell(check_in(1))
            assert running.events[1] == BlobStored(GOOD.digest, False)
            assert running.driver.counters["store failed"] == 1

    run(main())


def test_what_the_machine_has_is_pinned_until_it_drops_it():
    script = {
        1: [StoreBlob(GOOD), SendBlob(DEVICE, GOOD.digest)],
        2: [DropBlob(GOOD.digest), DropBlob(GOOD.digest)],
    }

    async def main():
        store = MemoryBlobs()
        before = await store.put(b"before")
        async with Running(script, blobs=store) as running:
            assert running.toy.events[0][0] == Started((before.digest,))
            await running.tell(check_in(1))
            assert running.switch.sent[1][1] == GOOD.digest
            for digest in (GOOD.digest, before.digest):
                await store.drop(digest)
                assert await store.size(digest) is not None
            await running.tell(check_in(2))
            assert await store.digests() == (before.digest,)
        await store.drop(before.digest)
        assert await store.digests() == ()

    run(main())


# ---------------------------------------------------------------- programs


def test_a_program_runs_beside_and_its_end_is_an_event():
    script = {1: [RunProgram(3, "client_update", (), ())]}

    async def main():
        async with Running(script) as running:
            await running.tell(check_in(1), check_in(2))
            assert running.switch.accepted == [1, 2]
            outcome = Outcome(None, 5, 0.5, False)
            running.executor.running[3].set_result(outcome)
            await running.settle()
            assert running.events[-1] == ProgramFinished(3, outcome)

    run(main())


def test_a_new_model_is_pinned_and_a_runner_that_breaks_is_a_stopped_program(caplog):
    script = {1: [RunProgram(3, "server_update", (), ())]}

    async def main():
        store = MemoryBlobs()
        model = NewModel(await store.put(b"weights"), await store.put(b"memory"))
        for ref in (model.weights, model.memory):
            store.contents.pop(ref.digest)
        async with Running(script, blobs=store, executor=_bench.Runner(model)) as running:
            await running.tell(check_in(1))
            assert running.events[1] == ProgramFinished(3, model)
            for content in (b"weights", b"memory"):
                ref = await store.put(content)
                await store.drop(ref.digest)
                assert await store.size(ref.digest) is not None
        async with Running(script, executor=_bench.Runner(OSError("broken"))) as running:
            await running.tell(check_in(1))
            assert running.events[1] == ProgramFinished(3, ProgramStopped(PROGRAM_FAILED))

    run(main())
    assert "could not be run" in caplog.text


def test_a_cancelled_program_is_stopped_and_says_nothing():
    script = {1: [RunProgram(3, "client_update", (), ())], 2: [CancelProgram(3), CancelProgram(8)]}

    async def main():
        async with Running(script) as running:
            await running.tell(check_in(1), check_in(2))
            assert running.executor.cancelled == [3]
            assert running.events == [check_in(1), check_in(2)]

    run(main())


def test_programs_end_with_the_node():
    async def main():
        async with Running({1: [RunProgram(3, "client_update", (), ())]}) as running:
            await running.tell(check_in(1))
        assert running.executor.cancelled == [3] and not running.executor.running

    run(main())


# ---------------------------------------------------------------- checkpoints, the end


@pytest.mark.parametrize("limits", [{"checkpoint_entries": 4}, {"checkpoint_bytes": 90}])
def test_a_snapshot_takes_the_place_of_many_entries(limits):
    disk = MemoryDisk()

    async def main():
        async with Running(
            journal=_bench.journal(disk), limits=DriverLimits(batch_events_max=1, **limits)
        ) as running:
            for sequence in range(1, 21):
                await running.tell(check_in(sequence))
            assert 4 <= running.driver.counters["checkpoints"] <= 8
            running.task.cancel()
        async with Running(journal=_bench.journal(disk)) as running:
            assert running.toy.seen == list(range(1, 21))
            assert running.driver.counters["replayed"] < 6

    run(main())


def test_a_node_that_is_closed_has_nothing_to_replay():
    disk = MemoryDisk()

    async def main():
        async with Running(journal=_bench.journal(disk)) as running:
            await running.tell(check_in(1))
        snapshot, entries = await _bench.journal(disk).load()
        assert snapshot and entries == []
        await running.driver.close()

    run(main())


def test_a_driver_that_never_ran_can_be_closed():
    closed = []

    async def main():
        journal = SlowJournal()
        inner = journal.close

        async def close():
            closed.append(True)
            await inner()

        journal.close = close
        await Driver(Toy, **parts(journal=journal)).close()

    run(main())
    assert closed == [True]


def test_events_may_come_from_another_thread():
    async def main():
        async with Running() as running:
            thread = threading.Thread(target=running.driver.post_threadsafe, args=(check_in(1),))
            thread.start()
            thread.join()
            while running.switch.accepted != [1]:
                await asyncio.sleep(0.001)

    asyncio.run(main())
