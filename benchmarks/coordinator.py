"""What a coordinator costs: rounds of light devices, processor time a megabyte, ten thousand idle
devices.

    python benchmarks/coordinator.py --json

A whole coordinator (cloud, its own edge 0, SQLite, journals that are synced) runs in a process of
its own, as `delian cloud run --insecure` does; this process is all its devices. They speak the
protocol of a device and train nothing: at a task they fetch the weights (1 MiB), then upload an
update of the same size. In rounds each has a connection of its own; idle ones share some, as many
as the server allows.

- A round is counted from the first task that reaches a device to the moment when an operator who
  watches the run hears that the new model is made: weights out, updates in, journaled and added up,
  server update, model stored. How long rounds are apart is given too: in between the edge gathers
  who is ready (a tenth of a second by its policy).
- Processor time is the coordinator's own, with all of that in it, by megabyte of updates alone.
- Idle devices have connected and checked in, and come back when they were told to; processor time
  is counted once the longest such pause is over. Memory is the growth of the coordinator's resident
  set. A wake is a message to a random one, timed from `send` in the coordinator to its arrival
  here.
- A floor stands beside both: what the same calls, and idle streams, cost a server of grpc.aio that
  does nothing at all (`grpc_floor.py`).

Flower's figures on such a machine stand in the output beside them (1.42.0, light clients, 1 MiB
echo, gRPC, insecure; measured for this project, see docs/results.md).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
from coordinator_devices import EDGE_0, Fleet
from delian.core.node.net.grpc.grpc_guard import claim
from delian.core.wire.admission_pb2 import RetryWindow
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import PlanMessage, PutPart, SubmitRequest, WatchRequest
from delian.core.wire.operator_pb2_grpc import OperatorStub
from grpc_floor import calls_of, idle_streams

MIB = 2**20
#: (508 + 1) * 512 + (512 + 1) * 3: the first model of this shape that is not below a MiB.
MODEL = (508, 512, 3)
#: The server allows 64 calls on a connection; some stay free for transfers.
STREAMS_PER_CONNECTION = 56
#: The first rounds are not counted: caches warm up in them.
SKIPPED = 3
WAKES = 400
#: Rounds of 10 and 50 devices in seconds; ms of processor time a MB; idle cores; KiB; wake in ms.
GOALS = {10: 0.1, 50: 0.5, "cpu": 3.0, "idle": 0.1, "rss": 20.0, "wake": 250.0}
FLOWER = {
    "round of 10 devices x 1 MiB, s": 3.8,
    "round of 50 devices x 1 MiB, s": 21.0,
    "idle device, KiB": 150.0,
    "idle devices, largest usable number": 300,
    "wake of an idle device, p99, ms": 1200.0,
}


# ---------------------------------------------------------------- the coordinator's process


async def serve(folder: Path) -> None:
    """Runs a coordinator, and answers on standard output what standard input asks: `stat`, `wake
    COUNT`, end of file.
    """
    from delian.cli.fleet.cloud_commands import gatherer
    from delian.cloud.service.daemon import CloudDaemon, CloudSettings
    from delian.core.wire.round_pb2 import RoundClosed

    settings = CloudSettings(folder, listen="127.0.0.1:0", health="", insecure=True)
    daemon = CloudDaemon(settings, gatherer)
    try:
        await daemon.start()
        print(json.dumps(daemon.facts()), flush=True)
        lines = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(lines)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        process = psutil.Process()
        while line := (await lines.readline()).decode().split():
            if line[0] == "wake":
                for node in random.choices(daemon.hub.peers, k=int(line[1])):
                    daemon.switch.send(EDGE_0, node, RoundClosed(run=time.time_ns()))
                    await asyncio.sleep(0.02)
            elif line[0] == "collect":
                gc.collect()
            used = process.cpu_times()
            facts = {
                "cpu_s": used.user + used.system,
                "rss": process.memory_info().rss,
                "peers": len(daemon.hub.peers),
                "refused": dict(daemon.hub.faults.counts),
            }
            print(json.dumps(facts), flush=True)
    finally:
        await daemon.close()


class Coordinator:
    """The child, as this process sees it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process, self.port = process, port

    async def ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what}\n".encode())
        line = await self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line)
        return found


@asynccontextmanager
async def coordinator() -> AsyncIterator[Coordinator]:
    """A coordinator in a process and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--child", str(Path(folder) / "cloud")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            facts = json.loads(await process.stdout.readline())
            yield Coordinator(process, facts["ports"]["grpc"])
        finally:
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
                await process.wait()


# ---------------------------------------------------------------- rounds


def bundle_and_update() -> tuple[Any, bytes]:
    """A model of a MiB, and an update that changes nothing of it."""
    from delian.core.compiler.ir import DType, TensorType
    from delian.core.learning import Classification, FedAvg, Samples, SampleSet
    from delian.core.learning.build.bundle_builder import build
    from delian.core.learning.nn import Mlp, sgd
    from delian.core.privacy.mechanisms import ring

    wide, hidden, classes = MODEL
    rows = SampleSet(
        np.zeros((6, wide), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2)
    )
    bundle = build(
        Classification("wide", lambda k: Mlp.init(k, wide, (hidden,), classes), Samples(2, 1.0)),
        FedAvg(local=sgd(0.1), server=sgd(1.0), personal_steps=1, epochs=1),
        rows,
        example=TensorType(DType.F32, (2, wide)),
        clip=1.0,
        clients_max=256,
        weight_max=6.0,
        seed=1,
    )
    told = bundle.manifest
    plan = ring.RingPlan(clip=told.clip, clients_max=told.clients_max, dimension=told.dimension)
    nothing = np.zeros(told.dimension, np.float32)
    vector = ring.encode(nothing, np.float32(1.0), np.array([1, 2], np.uint32), plan)
    return bundle, np.asarray(vector, "<u4").tobytes()


async def submit(stub: OperatorStub, bundle: Any, devices: int, rounds: int) -> int:
    """Puts the bundle and starts a run of it; its number."""
    refs = []
    me = claim("operator-0")
    for content in (bundle.bare().to_bytes(), bundle.weights.tobytes()):
        ref = BlobRef(digest=hashlib.sha256(content).digest(), size=len(content))
        parts = [PutPart(content=content[i : i + MIB]) for i in range(0, len(content), MIB)]
        refs.append(await stub.PutBlob(iter([PutPart(blob=ref), *parts]), metadata=me))
    told = bundle.manifest
    plan = PlanMessage(
        name="benchmark",
        rounds=rounds,
        cohort=devices,
        over_selection=1.0,
        reports_min=devices,
        bundle=refs[0],
        weights=refs[1],
        timeout_ms=60_000,
        wait_ms=60_000,
        after_task=RetryWindow(min_ms=1, max_ms=2),
        seed=7,
    )
    plan.ring.clip, plan.ring.clients_max = told.clip, told.clients_max
    plan.ring.bits, plan.ring.dimension = 32, told.dimension
    return int((await stub.Submit(SubmitRequest(plan=plan), metadata=me)).run)


async def rounds_of(devices: int, rounds: int, bundle: Any, vector: bytes) -> dict[str, Any]:
    """Rounds of so many devices, in a coordinator of their own."""
    async with (
        coordinator() as child,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{child.port}", [("grpc.enable_http_proxy", 0)]
        ) as channel,
    ):
        stub = OperatorStub(channel)
        run = await submit(stub, bundle, devices, SKIPPED + rounds)
        fleet = Fleet(child.port, 1, devices, devices, vector)
        await fleet.connect()
        ends: dict[int, float] = {}
        before: dict[str, Any] = {}

        async def watch() -> None:
            async for event in stub.WatchRun(WatchRequest(run=run), metadata=claim("operator-0")):
                if event.kind != "round":
                    continue
                facts = json.loads(event.facts)
                if not facts["model"]:
                    raise SystemExit(f"round {facts['round']} failed: {facts['why']}")
                ends[facts["round"]] = time.perf_counter()
                if len(ends) == SKIPPED:
                    before.update(await child.ask("stat"))

        await fleet.beside(watch())
        after = await child.ask("stat")
        await fleet.close()
    counted = sorted(ends)[SKIPPED:]
    spans = [ends[r] - fleet.tasked[r] for r in counted]
    gaps = [ends[r] - ends[r - 1] for r in counted]
    moved_mb = len(counted) * devices * len(vector) / 1e6
    return {
        "devices": devices,
        "rounds": len(counted),
        "round_s": round(statistics.median(spans), 4),
        "round_s_worst": round(max(spans), 4),
        "between_rounds_s": round(statistics.median(gaps), 4),
        "cpu_ms_per_mb": round(1000 * (after["cpu_s"] - before["cpu_s"]) / moved_mb, 3),
        "grpc_floor_ms_per_mb": round(await calls_of(devices, rounds), 3),
        "rss_mib": round(after["rss"] / MIB, 1),
        "refused": after["refused"],
    }


# ---------------------------------------------------------------- idle devices


async def idle(devices: int, seconds: float) -> dict[str, Any]:
    """So many devices that have nothing to do."""
    async with coordinator() as child:
        warm = Fleet(child.port, 1_000_000, 100, 2)
        await warm.connect()
        empty = await child.ask("collect")
        began = time.perf_counter()
        fleet = Fleet(child.port, 1, devices, -(-devices // STREAMS_PER_CONNECTION))
        await fleet.connect()
        connected_s = time.perf_counter() - began
        full = await child.ask("collect")
        # From here on so many come back in a second as ever will.
        await asyncio.sleep(fleet.longest_s)
        began = time.perf_counter()
        before = await child.ask("stat")
        await asyncio.sleep(seconds)
        after = await child.ask("stat")
        span = time.perf_counter() - began
        await child.ask(f"wake {WAKES}")
        await asyncio.sleep(1.0)
        wakes = sorted(fleet.wakes_ms + warm.wakes_ms)
        await warm.close()
        await fleet.close()
    if len(wakes) < WAKES:
        raise SystemExit(f"{len(wakes)} of {WAKES} wakes arrived")
    return {
        "devices": devices,
        "connects_per_s": round(devices / connected_s),
        "kib_each": round((full["rss"] - empty["rss"]) / devices / 1024, 2),
        "grpc_floor_kib_each": round(await idle_streams(devices), 2),
        "cores": round((after["cpu_s"] - before["cpu_s"]) / span, 4),
        "wake_p50_ms": round(wakes[len(wakes) // 2], 2),
        "wake_p99_ms": round(wakes[len(wakes) * 99 // 100], 2),
        "refused": after["refused"],
    }


def targets(rounds: list[dict[str, Any]], rest: dict[str, Any] | None) -> list[dict[str, Any]]:
    found = []
    for run in rounds:
        n = run["devices"]
        if n in GOALS:
            found.append((f"round of {n} devices x 1 MiB, s", GOALS[n], run["round_s"]))
        name = f"coordinator's processor time, {n} devices, ms/MB"
        found.append((name, GOALS["cpu"], run["cpu_ms_per_mb"]))
    if rest is not None:
        n = rest["devices"]
        found += [
            (f"{n} idle devices, cores", GOALS["idle"], rest["cores"]),
            (f"{n} idle devices, KiB each", GOALS["rss"], rest["kib_each"]),
            (f"{n} idle devices, wake p99, ms", GOALS["wake"], rest["wake_p99_ms"]),
        ]
    return [
        {"name": name, "goal": goal, "measured": measured, "met": measured <= goal}
        for name, goal, measured in found
    ]


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    rounds = []
    if args.rounds:
        bundle, vector = bundle_and_update()
        for devices in args.devices:
            rounds.append(await rounds_of(devices, args.rounds, bundle, vector))
            print(rounds[-1], file=sys.stderr)
    rest = await idle(args.idle, args.seconds) if args.idle else None
    return {
        "cores": psutil.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "rounds": rounds,
        "idle": rest,
        "flower": FLOWER,
        "targets": targets(rounds, rest),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="*", default=[10, 50])
    parser.add_argument("--rounds", type=int, default=30, help="of each size; 0: none")
    parser.add_argument("--idle", type=int, default=10_000, help="devices; 0: not measured")
    parser.add_argument("--seconds", type=float, default=30.0, help="of idleness")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        asyncio.run(serve(args.child))
        return
    result = asyncio.run(measure(args))
    if args.json:
        print(json.dumps(result, indent=2))
        return
    for target in result["targets"]:
        mark = "met" if target["met"] else "MISSED"
        print(f"{target['name']}: {target['measured']} (goal {target['goal']:g}): {mark}")


if __name__ == "__main__":
    main()
