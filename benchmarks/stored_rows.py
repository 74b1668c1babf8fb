"""A device trains on 100 GB of images: memory of its training process, rows a second, kill -9.

    python benchmarks/stored_rows.py [--gigabytes 100] [--folder DIR] [--json]

The rows are images of 224x224x3 bytes in a sparse `x.npy`: it takes little of a disk, and is read
as any other file of its size. A few rows hold numbers, the rest are zeros; labels are random. The
agent's own runner starts the training process, confined and with its checkpoints, and gives it one
task: a pass over all rows in windows, which trains a network of two dense layers. Then the same
task again, whose process is killed with SIGKILL after half of the pass; another one goes on from
the last checkpoint. The peak memory is the kernel's (VmHWM), pages of files counted; the page cache
is not the process's. The files go when the benchmark ends.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import Bundle
from delian.core.learning.data.rows import DataSettings
from delian.core.learning.nn import Mlp, sgd
from delian.core.protocol.ports import Outcome, RunProgram
from delian.core.wire.round_pb2 import RingPlan
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.runner import WorkerRunner
from delian.device.agent.window_checkpoints import WindowCheckpoints

GOAL_MB = 200.0
SHAPE, CLASSES, HIDDEN, BATCH = (224, 224, 3), 10, 8, 32
ROW_BYTES = 224 * 224 * 3
#: Rows of a window, and every how many rows of the file one holds numbers.
WINDOW, FILLED = 256, 4096


def rows_on_disk(folder: Path, size: float) -> int:
    """Writes `x.npy`, mostly a hole, and `y.npy`; gives how many rows they have."""
    rows = int(size // ROW_BYTES)
    rng = np.random.default_rng(0)
    with (folder / "x.npy").open("wb") as file:
        kind = {"descr": "|u1", "fortran_order": False, "shape": (rows, *SHAPE)}
        np.lib.format.write_array_header_1_0(file, kind)
        begin = file.tell()
        for row in range(0, rows, FILLED):
            file.seek(begin + row * ROW_BYTES)
            file.write(rng.integers(0, 256, ROW_BYTES, np.uint8).tobytes())
        file.truncate(begin + rows * ROW_BYTES)
    np.save(folder / "y.npy", rng.integers(0, CLASSES, rows))
    return rows


def bundle() -> Bundle:
    """One pass of SGD in windows."""
    task = Classification(
        "photos",
        lambda key: Mlp.init(key, ROW_BYTES, (HIDDEN,), CLASSES),
        Samples(BATCH, 1 / 255),
    )
    window = SampleSet(
        np.zeros((WINDOW, *SHAPE), np.uint8), np.zeros(WINDOW, np.int32), np.array(1), np.array(1)
    )
    return build(
        task,
        FedAvg(local=sgd(0.01), server=sgd(1.0), epochs=1),
        window,
        example=TensorType(DType.F32, (2, *SHAPE)),
        clip=5.0,
        clients_max=8,
        weight_max=1e6,
        seed=1,
        windows=True,
    )


class Stored(WindowCheckpoints):
    """Notes the memory of the training process, and kills it once after half of the pass."""

    def __init__(self, folder: Path, every_s: float, half: int) -> None:
        super().__init__(folder, every_s)
        self.half, self.runner, self.peak_mb, self.count = half, None, 0.0, 0
        self.killed_at = 0

    def write(self, program: RunProgram, record: Any) -> None:
        super().write(program, record)
        self.count += 1
        self.peak_mb = max(self.peak_mb, peak_of(self.runner))
        window = int(bytes(record[:4096]).split(b'"window":', 1)[1].split(b"}", 1)[0])
        if self.half and window >= self.half and self.runner is not None:
            self.killed_at, self.half = window, 0
            os.kill(self.runner.pid, signal.SIGKILL)


def peak_of(runner: Any) -> float:
    """VmHWM of a runner's training process, 10^6 bytes."""
    lines = Path(f"/proc/{runner.pid}/status").read_text().splitlines()
    said = dict(line.split(":", 1) for line in lines)
    return int(said["VmHWM"].split()[0]) * 1024 / 1e6


def trained(scratch: Path, task: RunProgram, every_s: float, half: int) -> dict[str, Any]:
    """One task, by the agent's runner. half: the window to be killed after; 0: it is not killed."""
    settings = WorkerSettings(
        data=DataSettings(str(scratch / "rows")),
        wall_s=24 * 3600,
        cpu_s=24 * 3600,
        checkpoint_s=int(every_s),
        nice=0,
    )
    store = Stored(scratch / f"checkpoints-{half}", every_s, half)
    runner = WorkerRunner(settings, lambda name: scratch / name.hex(), windows=store)
    store.runner = runner

    async def scene() -> tuple[Any, float]:
        try:
            return await runner.run(task), peak_of(runner)
        finally:
            await runner.close()

    began = time.perf_counter()
    outcome, peak = asyncio.run(scene())
    seconds = time.perf_counter() - began
    assert isinstance(outcome, Outcome) and outcome.finite, outcome
    return {
        "seconds": round(seconds, 1),
        "peak_mb": round(max(peak, store.peak_mb), 1),
        "processes": runner.starts,
        "checkpoints": store.count,
        "killed_after_window": store.killed_at,
        "rows_trained_on": outcome.examples,
        "loss": outcome.loss,
        "update": hashlib.sha256(outcome.vector.tobytes()).hexdigest(),
    }


def measured(scratch: Path, size: float, every_s: float) -> dict[str, Any]:
    """Both runs, and what was asked of them."""
    (scratch / "rows").mkdir()
    rows = rows_on_disk(scratch / "rows", size)
    made = bundle()

    def keep(content: bytes) -> bytes:
        digest = hashlib.sha256(content).digest()
        (scratch / digest.hex()).write_bytes(content)
        return digest

    manifest = made.manifest
    facts = {"clip": manifest.clip, "clients_max": manifest.clients_max}
    ring = RingPlan(**facts, bits=32, dimension=manifest.dimension)
    blobs = keep(made.bare().to_bytes()), keep(made.weights.astype("<f4").tobytes())
    task = RunProgram(1, "client_update", blobs, (np.array([1, 2], np.uint32), ring))
    whole = trained(scratch, task, every_s, 0)
    killed = trained(scratch, task, every_s, max(1, rows // WINDOW // 2))
    peak = max(whole["peak_mb"], killed["peak_mb"])
    same = whole["update"] == killed["update"] and killed["processes"] == 2
    stat = (scratch / "rows" / "x.npy").stat()
    return {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "x_gb": stat.st_size / 1e9,
        "on_disk_gb": stat.st_blocks * 512 / 1e9,
        "rows": rows,
        "rows_a_second": round(rows / whole["seconds"]),
        "undisturbed": whole,
        "killed": killed,
        "targets": [
            {
                "name": f"{size / 1e9:g} GB trained from: peak memory of the process, MB",
                "goal": GOAL_MB,
                "measured": peak,
                "met": peak < GOAL_MB,
            },
            {
                "name": "kill -9 in the middle of a pass: the update's bits are the same",
                "goal": True,
                "measured": same,
                "met": same,
            },
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=100.0)
    parser.add_argument("--folder", type=Path, help="where the files go; absent: a temporary one")
    parser.add_argument("--checkpoint-s", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        report = measured(Path(scratch), args.gigabytes * 1e9, args.checkpoint_s)
    if args.json:
        print(json.dumps(report, indent=1))
        return
    for name, value in report.items():
        if name == "targets":
            print("\n".join(str(target) for target in value))
        else:
            print(f"{name}: {value}")


if __name__ == "__main__":
    main()
