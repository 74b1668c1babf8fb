"""The driver around a toy machine: what is durable when, in what order, and what ends a node."""

from __future__ import annotations

import asyncio

import pytest
from delian.core.node.driver.driver import Driver, DriverLimits
from delian.core.node.driver.inbox import PATIENT_MAX
from delian.core.node.storage.journal import JournalError
from delian.core.node.storage.memory_storage import MemoryDisk
from delian.core.protocol.ports import (
    RunProgram,
    Started,
    TimerFired,
)
from delian.core.protocol.snapshot import SnapshotError
from support import node_bench as _bench

Running, SlowJournal, Toy = _bench.Running, _bench.SlowJournal, _bench.Toy
check_in, parts, run = _bench.check_in, _bench.parts, _bench.run


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


def test_what_is_only_handed_on_is_not_journaled_and_leaves_all_the_same():
    async def main():
        async with Running(journal=SlowJournal(0)) as running:
            await running.tell(check_in(1), check_in(777))
            assert running.switch.accepted == [1, 777]
            assert running.journal.durable == [Started(()), check_in(1)]

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


def test_a_journal_that_fails_stops_the_node_before_any_effect(caplog):
    async def main():
        running = Running(journal=SlowJournal(0))
        async with running:
            running.journal.fault = JournalError("no room")
            await running.tell(check_in(1))
            with pytest.raises(JournalError, match="no room"):
                await running.task
            assert running.switch.sent == []

    run(main())
    (said,) = [r for r in caplog.records if r.levelname == "ERROR"]
    # The error says what to do: a traceback would hide it.
    assert "no room" in said.getMessage() and said.exc_info is None


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


def test_patient_events_wait_for_one_another_and_for_nothing_else():
    async def main():
        slow = SlowJournal(0)
        patient = [check_in(n) for n in range(1, 50)]
        running = Running(journal=slow, patience=lambda e: 3600.0 if e in patient else 0.0)
        async with running:
            before = slow.appends
            for sequence in range(1, 10):
                await running.tell(check_in(sequence))
            assert running.switch.accepted == []
            await running.tell(check_in(100))  # takes along what waits
            assert running.switch.accepted == [*range(1, 10), 100]
            assert slow.appends == before + 1
            await running.tell(check_in(20))
            assert running.switch.accepted[-1] == 100
            await running.driver.close()

        running = Running(patience=lambda e: 0.001 if e == check_in(30) else 3600.0)
        async with running:
            running.driver.post(check_in(20))
            await asyncio.sleep(0.01)
            assert running.switch.accepted == []
            running.driver.post(check_in(30))
            while not running.switch.accepted:
                await asyncio.sleep(0.001)
            assert running.switch.accepted == [20, 30]

    run(main())


def test_many_patient_events_wait_no_longer():
    async def main():
        async with Running(patience=lambda event: 3600.0) as running:
            for sequence in range(PATIENT_MAX):
                running.driver.post(check_in(sequence))
            await running.settle()
            assert len(running.switch.accepted) == PATIENT_MAX

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
