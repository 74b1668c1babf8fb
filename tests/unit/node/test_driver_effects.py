"""What the driver does to the outside for a toy machine: timers, blobs, programs."""

from __future__ import annotations

import asyncio

import pytest
from delian.core.node.storage.memory_storage import MemoryBlobs, MemoryDisk
from delian.core.protocol.ports import (
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
from delian.core.wire.blob_pb2 import Blob
from delian.core.wire.round_pb2 import PROGRAM_FAILED
from support import node_bench as _bench

Running, SlowJournal, Toy = _bench.Running, _bench.SlowJournal, _bench.Toy
check_in, parts, run = _bench.check_in, _bench.parts, _bench.run
DEVICE = Node(Tier.DEVICE, 7)


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


def test_a_timer_whose_events_were_long_on_their_way_to_the_disk_waits_as_much_longer():
    """An attempt that a database holds up for 17 s would be over before its tasks went out."""

    async def main():
        script = {1: [SetTimer("timer", at(10))]}
        async with Running(script, journal=SlowJournal(0)) as running:
            running.journal.seconds = 17
            running.driver.post(check_in(1))
            await asyncio.sleep(26)
            assert running.events == [check_in(1)]
            await asyncio.sleep(20)
            assert running.events == [check_in(1), TimerFired("timer")]
            assert running.toy.events[-1][1] >= at(27)

    run(main())


def test_a_node_that_stood_still_takes_what_came_meanwhile_before_its_timers_fire():
    async def main():
        async with Running({1: [SetTimer("timer", at(10))]}) as running:
            await running.tell(check_in(1))
            await asyncio.sleep(5)
            asyncio.get_running_loop().seconds += 17  # as when the process is stopped
            await asyncio.sleep(0)
            await running.tell(check_in(2))  # read from its socket only now
            assert running.events == [check_in(1), check_in(2)]
            await asyncio.sleep(60)
            assert running.events[2:] == [TimerFired("timer")]
            assert at(32) < running.toy.events[-1][1] < at(36)

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

    _bench.run(main())


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


@pytest.mark.parametrize(
    "effect", [SendBlob(DEVICE, b"?" * 32), RunProgram(3, "p", (b"?" * 32,), ())]
)
def test_a_machine_is_told_of_a_blob_that_it_counts_on_and_the_store_has_not_got(effect):
    async def main():
        async with Running({1: [effect]}) as running:
            await running.tell(check_in(1))
            await running.settle()
            assert BlobStored(b"?" * 32, intact=False) in running.events
            assert running.driver.counters["blobs gone"] == 1
            assert not running.executor.running
            stopped = ProgramFinished(3, ProgramStopped(PROGRAM_FAILED))
            assert (stopped in running.events) == isinstance(effect, RunProgram)

    run(main())
