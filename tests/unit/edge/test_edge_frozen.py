"""Frozen parts at an edge: fetched once for all devices, kept within the edge's room."""

from __future__ import annotations

from delian.core.protocol.ports import (
    CLOUD,
    SECOND,
    BlobStored,
    DropBlob,
    SendBlob,
    Started,
    TimerFired,
)
from delian.core.wire.blob_pb2 import BlobRef, FetchBlob
from delian.core.wire.round_pb2 import RoundClosed
from delian.edge.protocol.edge_state import FETCHES_MAX
from delian.edge.protocol.machine import restore
from support import edge_bench as _bench

BUNDLE = _bench.BUNDLE
WEIGHTS = _bench.WEIGHTS
Bench = _bench.Bench
check_in = _bench.check_in
device = _bench.device
edge_task = _bench.edge_task

#: What the bench's tasks have besides frozen parts: a bundle of 100 bytes, weights of 12.
OTHERS = 112


def part(name: int, size: int = 1000) -> BlobRef:
    return BlobRef(digest=bytes([name]) * 32, size=size)


def asked(bench: Bench) -> list[bytes]:
    return [m.digest for m in bench.said(CLOUD) if isinstance(m, FetchBlob)]


def fetched(bench: Bench) -> list[bytes]:
    """Has all that the edge asks for arrive, in order; gives what it asked for."""
    every, waiting = [], asked(bench)
    while waiting:
        every.append(waiting[0])
        bench.does(BlobStored(waiting.pop(0), True))
        waiting += asked(bench)
    return every


def closed(bench: Bench, run: int = 1, round: int = 1) -> Bench:
    return bench.cloud(RoundClosed(run=run, round=round, attempt=1, succeeded=True))


def tasked(bench: Bench, sequence: int, **task) -> Bench:
    """Device 1 has checked in again and gets another task."""
    bench.hears(device(1), check_in(1, sequence))
    return bench.cloud(edge_task([1], **task))


def test_it_asks_the_cloud_for_a_few_blobs_at_a_time():
    parts = [part(n) for n in range(1, 20)]
    bench = Bench().collecting(frozen=parts)
    assert asked(bench) == [BUNDLE, WEIGHTS, *(p.digest for p in parts[: FETCHES_MAX - 2])]
    due = bench.timer("fetch")
    bench.does(BlobStored(WEIGHTS, True), after=SECOND)
    assert asked(bench) == [parts[FETCHES_MAX - 2].digest] and bench.timer("fetch") > due
    bench.does(TimerFired("fetch"), after=3600 * SECOND)
    assert asked(bench) == [BUNDLE, *(p.digest for p in parts[: FETCHES_MAX - 1])]


def test_a_part_is_fetched_once_and_sent_to_all_devices_that_asked():
    parts = [part(n) for n in range(1, 20)]
    bench = Bench().collecting(frozen=parts)
    last = parts[-1].digest
    for number in (3, 1):
        bench.hears(device(number), FetchBlob(digest=last))
        assert not bench.of(SendBlob), "it has not come yet, and is not asked for yet"
    bench.does(BlobStored(last, True))
    assert bench.of(SendBlob) == [SendBlob(device(3), last), SendBlob(device(1), last)]
    bench.hears(device(2), FetchBlob(digest=last))
    assert bench.of(SendBlob) == [SendBlob(device(2), last)]


def test_parts_serve_the_next_round_and_other_runs():
    parts = [part(1), part(2)]
    bench = Bench().collecting(frozen=parts)
    fetched(bench)
    assert [e.digest for e in closed(bench).of(DropBlob)] == [WEIGHTS]
    tasked(bench, 2, round=2, weights=b"v" * 32, frozen=parts)
    assert fetched(bench) == [b"v" * 32]
    tasked(bench, 3, run=2, bundle=b"c" * 32, weights=b"u" * 32, frozen=parts)
    assert fetched(bench) == [b"c" * 32, b"u" * 32]


def test_parts_survive_a_restart():
    bench = Bench().collecting(frozen=[part(1)])
    fetched(bench)
    closed(bench)
    again = Bench(restore(bench.machine.snapshot()))
    again.does(Started((BUNDLE, part(1).digest)))
    tasked(again, 2, round=2, weights=b"v" * 32, frozen=[part(1)])
    assert not again.of(DropBlob) and fetched(again) == [b"v" * 32]


def test_the_parts_that_were_used_least_recently_make_room():
    bench = Bench(blobs_bytes_max=OTHERS + 2000).gathering()
    for run in (1, 2):
        tasked(bench, run + 1, run=run, frozen=[part(run)])
        fetched(bench)
        closed(bench, run)
    tasked(bench, 4, run=3, frozen=[part(3)])
    assert [e.digest for e in bench.of(DropBlob)] == [part(1).digest]


def test_what_an_open_attempt_needs_is_never_dropped():
    bench = Bench(blobs_bytes_max=OTHERS + 2000).gathering()
    tasked(bench, 2, run=1, frozen=[part(1)])
    fetched(bench)
    bench.hears(device(2), check_in(2, 2))
    bench.cloud(edge_task([2], run=2, frozen=[part(2)]))
    assert not bench.of(DropBlob) and fetched(bench) == [part(2).digest]
    closed(bench, 1)
    assert part(1).digest not in [e.digest for e in bench.of(DropBlob)], "there is room"


def test_a_task_that_the_store_has_no_room_for_is_answered_at_once():
    bench = Bench(blobs_bytes_max=OTHERS + 1000).gathering()
    bench.cloud(edge_task([1], frozen=[part(1, 1001)]))
    assert not asked(bench) and not bench.open
    (nothing,) = bench.sums()
    assert not nothing.count and not nothing.devices
    tasked(bench, 2, run=2, frozen=[part(1, 1000)])
    assert asked(bench) and bench.open == ["2.1.1"]


def test_room_is_what_open_attempts_leave():
    bench = Bench(blobs_bytes_max=OTHERS + 1500).collecting([1], frozen=[part(1)])
    bench.hears(device(2), check_in(2, 2))
    bench.cloud(edge_task([2], run=2, frozen=[part(2)]))
    assert bench.open == ["1.1.1"], "together they would not fit"
    bench.cloud(edge_task([2], run=3, frozen=[part(1), part(3, 500)]))
    assert bench.open == ["1.1.1", "3.1.1"], "a part that both name counts once"
