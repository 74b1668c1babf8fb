"""Frozen parts at the coordinator: they are in each task, served to edges, and not let go."""

from __future__ import annotations

from delian.cloud.protocol.machine import restore
from delian.core.protocol.ports import BlobStored, DropBlob, RunProgram, SendBlob
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.round_pb2 import NO_ROOM, DeviceFailure, EdgeTask
from support import run_bench as _bench

Bench = _bench.Bench
PARTS = [_bench.blob("f"), _bench.blob("g")]


def collecting(**changes) -> Bench:
    return Bench(frozen=PARTS, **changes).collecting()


def test_each_task_names_the_parts_in_the_plans_order():
    bench = collecting()
    tasks = [
        e.message.task for e in bench.effects if isinstance(getattr(e, "message", 0), EdgeTask)
    ]
    assert tasks and all(list(task.frozen) == PARTS for task in tasks)
    again = Bench(restore(bench.machine.snapshot()), frozen=PARTS)
    plan = again.machine.state.runs[1].plan
    assert list(plan.frozen) == PARTS


def test_edges_may_ask_for_the_parts():
    bench = collecting()
    for ref in PARTS:
        sent = bench.hears(1, FetchBlob(digest=ref.digest)).of(SendBlob)
        assert sent == [SendBlob(_bench.edge(1), ref.digest)]


def test_a_server_update_reads_none_of_them_and_drops_none():
    bench = Bench(frozen=PARTS).aggregating()
    (program,) = bench.of(RunProgram)
    assert not {ref.digest for ref in PARTS} & set(program.blobs)
    dropped = {e.digest for e in bench.updated().of(DropBlob)}
    assert not {ref.digest for ref in PARTS} & dropped


def test_a_run_one_of_whose_parts_is_gone_pauses_and_says_which():
    bench = collecting().does(BlobStored(PARTS[1].digest, False))
    run = bench.machine.state.runs[1]
    assert run.pausing and PARTS[1].digest.hex() in run.stopped_by


def test_devices_without_room_are_counted_and_said():
    bench = collecting(reports_min=4)
    share = bench.machine.state.runs[1].open[0].shares
    for number, one in share.items():
        declined = [DeviceFailure(device=d, reason=NO_ROOM) for d in sorted(one.devices)]
        bench.sum(number, {}, failures=declined)
    (fact,) = bench.records("round")
    assert set(fact["refused"].values()) == {NO_ROOM}
    assert "no room" in fact["why"] and "frozen parts" in fact["why"]
