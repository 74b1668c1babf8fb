"""Frozen parts on a device: fetched once, kept within its room, refused before they are fetched."""

from __future__ import annotations

import pytest
from delian.core.protocol.ports import (
    SECOND,
    BlobStored,
    DropBlob,
    Node,
    Ordered,
    RunProgram,
    Started,
    Tier,
    TimerFired,
)
from delian.core.wire.admission_pb2 import DeviceFacts, Eligibility
from delian.core.wire.blob_pb2 import BlobRef, FetchBlob
from delian.core.wire.journal_pb2 import Conditions, Connected
from delian.core.wire.link_pb2 import NODE_EDGE, Address
from delian.core.wire.round_pb2 import NO_ROOM, Failure, RoundClosed
from delian.device.protocol.device_state import FETCHES_MAX, DevicePolicy, Phase
from delian.device.protocol.machine import restore
from support import device_bench as _bench

BUNDLE = _bench.BUNDLE
EDGE = _bench.EDGE
WEIGHTS = _bench.WEIGHTS
Bench = _bench.Bench
make_task = _bench.make_task

MIB = 2**20
#: What the bench's tasks have besides frozen parts: a bundle of 100 bytes, weights of 12.
OTHERS = 112


def part(name: int, size: int = 1000) -> BlobRef:
    return BlobRef(digest=bytes([name]) * 32, size=size)


def asked(bench: Bench) -> list[bytes]:
    return [m.digest for m in bench.said if isinstance(m, FetchBlob)]


def fetched(bench: Bench) -> list[bytes]:
    """Has all that the device asks for arrive, in order; gives what it asked for."""
    every, waiting = [], asked(bench)
    while waiting:
        every.append(waiting[0])
        bench.does(BlobStored(waiting.pop(0), True))
        waiting += asked(bench)
    return every


def closed(bench: Bench, run: int = 1, round: int = 1) -> Bench:
    return bench.gets(RoundClosed(run=run, round=round, attempt=1))


def with_room(room: int) -> Bench:
    return Bench(policy=DevicePolicy(secure_required=False, blobs_bytes_max=room)).ready()


def test_it_asks_for_a_few_blobs_at_a_time_and_runs_the_program_with_all_in_order():
    parts = [part(n) for n in range(1, 8)]
    bench = Bench().fetching(frozen=parts)
    assert asked(bench) == [BUNDLE, WEIGHTS, parts[0].digest, parts[1].digest]
    assert len(asked(bench)) == FETCHES_MAX
    first = bench.timer("repeat")
    bench.does(BlobStored(BUNDLE, True), after=SECOND)
    assert asked(bench) == [parts[2].digest], "one more, in the place of the one that came"
    assert bench.timer("repeat") > first, "there was headway"
    for digest in (WEIGHTS, *(p.digest for p in parts[:-1])):
        assert not bench.does(BlobStored(digest, True)).of(RunProgram)
    (run,) = bench.does(BlobStored(parts[-1].digest, True)).of(RunProgram)
    assert run.blobs == (BUNDLE, WEIGHTS, *(p.digest for p in parts))


def test_a_repetition_asks_for_the_blobs_that_it_waits_for():
    parts = [part(n) for n in range(1, 8)]
    bench = Bench().fetching(frozen=parts)
    bench.does(BlobStored(parts[0].digest, True))
    bench.does(TimerFired("repeat"), after=60 * SECOND)
    assert asked(bench) == [BUNDLE, WEIGHTS, parts[1].digest, parts[2].digest]


def test_parts_are_fetched_once_for_two_rounds_and_two_runs():
    parts = [part(1), part(2)]
    bench = Bench().fetching(frozen=parts)
    assert fetched(bench) == [BUNDLE, WEIGHTS, *(p.digest for p in parts)]
    closed(bench).gets(make_task(round=2, weights=b"v" * 32, frozen=parts))
    assert fetched(bench) == [b"v" * 32]
    assert bench.phase is Phase.TRAINING
    closed(bench, round=2)
    bench.gets(make_task(run=2, bundle=b"c" * 32, weights=b"u" * 32, frozen=parts))
    assert fetched(bench) == [b"c" * 32, b"u" * 32], "another run's bundle, the same parts"


def test_a_part_that_a_task_names_twice_is_fetched_once():
    bench = Bench().fetching(frozen=[part(1), part(1)])
    assert fetched(bench) == [BUNDLE, WEIGHTS, part(1).digest]
    (run,) = bench.of(RunProgram)
    assert run.blobs[2:] == (part(1).digest, part(1).digest)


def test_parts_survive_a_restart():
    parts = [part(1), part(2)]
    bench = Bench().fetching(frozen=parts)
    fetched(bench)
    closed(bench)
    again = Bench(restore(bench.machine.snapshot()))
    again.does(Started((BUNDLE, *(p.digest for p in parts))), after=SECOND)
    again.gets(make_task(round=2, weights=b"v" * 32, frozen=parts))
    assert not again.of(DropBlob) and asked(again) == [b"v" * 32]


@pytest.mark.parametrize("over", [0, 1])
def test_a_task_that_is_larger_than_its_room_is_declined_before_anything_is_fetched(over):
    parts = [part(1, 700), part(2, 188 + over)]
    bench = with_room(OTHERS + 888).gets(make_task(frozen=parts))
    if not over:
        assert bench.phase is Phase.FETCHING
        return
    assert bench.said == [Failure(run=1, round=1, attempt=1, device=7, reason=NO_ROOM)]
    assert bench.phase is Phase.READY and bench.machine.wanted == {}
    assert asked(bench.gets(make_task(round=2, frozen=parts[:1]))), "a smaller one is taken"


def test_a_task_that_is_larger_than_what_its_disk_has_is_declined():
    bench = Bench().ready()
    facts = DeviceFacts(storage_mib=300)
    bench.does(Ordered(Conditions(facts=facts, eligibility=Eligibility(consented=True))))
    bench.gets(make_task(frozen=[part(1, 300 * MIB)]))
    assert [m.reason for m in bench.said] == [NO_ROOM]
    bench.gets(make_task(frozen=[part(1, 299 * MIB)]))
    assert bench.phase is Phase.FETCHING


def test_the_parts_that_were_used_least_recently_make_room():
    bench = with_room(2 * OTHERS + 2000)
    for run, ref in enumerate((part(1), part(2)), start=1):
        bench.gets(make_task(run=run, frozen=[ref]))
        assert not bench.of(DropBlob)
        fetched(bench)
        closed(bench, run)
    bench.gets(make_task(run=1, round=2, frozen=[part(1)]))
    assert asked(bench) == [WEIGHTS], "used again: the other one is older now"
    fetched(bench)
    closed(bench, 1, 2)
    bench.gets(make_task(run=3, frozen=[part(3)]))
    assert [e.digest for e in bench.of(DropBlob)] == [part(2).digest]
    fetched(bench)
    closed(bench, 3)
    assert asked(bench.gets(make_task(run=4, frozen=[part(1)]))) == [WEIGHTS]


def test_what_the_task_needs_is_never_dropped():
    parts = [part(n) for n in range(1, 6)]
    room = OTHERS + 5000
    bench = with_room(room).gets(make_task(frozen=parts[:3]))
    fetched(bench)
    closed(bench)
    bench.gets(make_task(round=2, weights=b"v" * 32, frozen=parts))
    assert not bench.of(DropBlob), "all that it has is named again, and fits to the byte"
    assert fetched(bench) == [b"v" * 32, *(p.digest for p in parts[3:])]
    assert bench.phase is Phase.TRAINING
    closed(bench, 1, 2)
    bench.gets(make_task(run=2, bundle=b"c" * 32, frozen=[part(9, 5000)]))
    assert {e.digest for e in bench.of(DropBlob)} == {BUNDLE, *(p.digest for p in parts)}
    assert sum(bench.machine.state.kept.values()) + 12 <= room
    fetched(bench)
    assert bench.phase is Phase.TRAINING


def test_a_part_that_is_gone_or_torn_is_fetched_again_and_then_it_trains():
    bench = Bench().fetching(frozen=[part(1), part(2)])
    fetched(bench)
    bench.does(BlobStored(part(2).digest, False))
    assert bench.phase is Phase.FETCHING and asked(bench) == [part(2).digest]
    (run,) = bench.does(BlobStored(part(2).digest, True)).of(RunProgram)
    assert run.blobs[2:] == (part(1).digest, part(2).digest)


def test_connected_anew_it_asks_again_for_what_it_waits_for():
    bench = Bench().fetching(frozen=[part(1)])
    bench.does(BlobStored(BUNDLE, True))
    home = Address(tier=NODE_EDGE, number=EDGE.number)
    bench.does(Ordered(Connected(home=home)), after=SECOND)
    assert asked(bench) == [WEIGHTS, part(1).digest] and bench.phase is Phase.FETCHING


@pytest.mark.parametrize(
    "frozen",
    [
        [part(1, 0)],
        [part(1, 2**32 + 1)],
        [BlobRef(digest=b"short", size=1)],
        [part(1, 1)] * 1025,
    ],
)
def test_a_task_with_an_impossible_list_is_ignored(frozen):
    task = make_task()
    task.frozen.extend(frozen)
    bench = Bench().ready().gets(task)
    assert bench.ignored() and bench.phase is Phase.READY


def test_a_task_whose_parts_were_changed_on_the_way_is_not_begun():
    task = make_task(frozen=[part(1)])
    task.frozen[0].digest = b"x" * 32
    bench = Bench().ready().gets(task)
    assert bench.phase is Phase.READY and not asked(bench)
    assert Node(Tier.EDGE, 2) == EDGE and isinstance(bench.said[0], Failure)
