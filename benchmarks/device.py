"""What a device's training process takes: memory, and processor time from its start to its answer.

    python benchmarks/device.py [--json] [--repeats 5]

The very process that an agent starts (`delian.device.agent.worker`) is given one job over its
pipes, as the agent gives it: train the Omniglot network (four blocks of 64 filters, 28x28) for two
steps of ten drawings. Once its programs come from an artifact of `delian build`, once from a warm
cache. Everything is counted: the interpreter, imports, reading and verifying the bundle, the data,
two steps, rounding into the ring. Python's byte code is there, as an installation has it: a first
process, which is not counted, writes it. Quotes the least processor time and the largest memory of
all runs, in units of 10^6 bytes: the peak, and at the end what is the process's own (anonymous) and
what is pages of files, which the agent's process for the most part has in memory too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from delian.core.compiler.backends.native.toolchain.targets import find_target
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import DEVICE_PROGRAMS, Bundle
from delian.core.learning.data.sources import DataSettings
from delian.core.learning.export.artifact_build import build_for
from delian.core.learning.nn import sgd
from delian.core.learning.nn.zoo import OmniglotNet
from delian.core.node.sandbox import frames
from delian.core.node.sandbox.compiling import compiled
from delian.core.node.sandbox.worker_process import environment
from delian.device.agent.owner_limits import WorkerSettings

BATCH, STEPS, WAYS = 10, 2, 5
ROWS = 25  # of which a fifth is held back to judge by
HELD_BACK = 0.2
#: Processor seconds and 10^6 bytes that the process may take.
TARGET_CPU_S, TARGET_RSS_MB = 0.3, 45.0


def omniglot() -> Bundle:
    """The network, with plain SGD over one pass of a device's rows."""
    rows = SampleSet(
        np.zeros((ROWS, 28, 28, 1), np.uint8),
        np.zeros(ROWS, np.int32),
        np.array(BATCH * STEPS),
        np.array(ROWS - BATCH * STEPS),
    )
    task = Classification(
        "omniglot", lambda key: OmniglotNet.init(key, 1, 64, WAYS), Samples(BATCH, 1 / 255)
    )
    return build(
        task,
        FedAvg(local_steps=STEPS, local=sgd(0.1)),
        rows,
        example=TensorType(DType.F32, (BATCH, 28, 28, 1)),
        clip=5.0,
        clients_max=8,
        weight_max=float(BATCH * STEPS),
        seed=1,
    )


async def warm(bundle: Path) -> None:
    """Compiles the bundle into the cache of workers, as an agent has it done."""
    limits = WorkerSettings().limits
    seen = environment(limits.memory_mib)
    await compiled(bundle, DEVICE_PROGRAMS, limits, seen, wall_s=limits.wall_s)


def measure(folder: Path, bundle: Bundle, artifacts: tuple[str, ...]) -> dict[str, float]:
    """One process from its start to its answer: processor seconds, seconds, and memory."""
    ring = bundle.manifest.ring
    settings = WorkerSettings(
        data=DataSettings(source=str(folder / "rows.npz"), query_fraction=HELD_BACK),
        artifacts=artifacts,
    )
    job = {
        "ticket": 1,
        "program": "client_update",
        "bundle": str(folder / "omniglot.bundle"),
        "weights": str(folder / "weights.f32"),
        "key": [1, 2],
        "ring": [ring.clip, ring.clients_max, ring.dimension],
        "limits": [0, 0],
    }
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "delian.device.agent.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment(settings.memory_mib), "PYTHONPYCACHEPREFIX": str(folder / "pycache")},
    )
    assert process.stdin is not None and process.stdout is not None
    given = {"worker": settings.to_json(), "read": [str(folder)]}
    frames.write(process.stdin, {"parent": os.getpid(), "settings": given})
    frames.write(process.stdin, job)
    answer = frames.read(process.stdout, 4 * (ring.length + 1))
    wall = time.perf_counter() - began
    assert answer is not None and answer.head["done"], answer
    found = {"wall_s": wall, **_taken(process.pid)}
    process.stdin.close()
    process.wait()
    process.stdout.close()
    return found


def _taken(pid: int) -> dict[str, float]:
    """Of a process and its children that ended: processor time; of itself: memory, 10^6 bytes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    said = dict(line.split(":", 1) for line in lines)
    names = {"rss_mb": "VmHWM", "anonymous_mb": "RssAnon", "files_mb": "RssFile"}
    memory = {k: int(said[name].split()[0]) * 1024 / 1e6 for k, name in names.items()}
    return {"cpu_s": ticks / os.sysconf("SC_CLK_TCK"), **memory}


def best(runs: list[dict[str, float]]) -> dict[str, Any]:
    """The least times, and the largest memory."""
    least = {name: min(r[name] for r in runs) for name in ("cpu_s", "wall_s")}
    most = {name: max(r[name] for r in runs) for name in ("rss_mb", "anonymous_mb", "files_mb")}
    reached = least["cpu_s"] <= TARGET_CPU_S and most["rss_mb"] <= TARGET_RSS_MB
    return {**least, **most, "reached": reached}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ.setdefault("DELIAN_CACHE", str(folder / "cache"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        bundle = omniglot()
        bundle.bare().save(folder / "omniglot.bundle")
        bundle.weights.astype("<f4").tofile(folder / "weights.f32")
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (ROWS, 28, 28, 1)).astype(np.uint8)
        np.savez(folder / "rows.npz", x=x, y=np.arange(ROWS, dtype=np.int32) % WAYS)
        artifact = folder / "omniglot.dlo"
        artifact.write_bytes(build_for(bundle, find_target("native")).content)
        asyncio.run(warm(folder / "omniglot.bundle"))
        ways = {"artifact": (str(artifact),), "warm cache": ()}
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for artifacts in ways.values():
            measure(folder, bundle, artifacts)
        for _ in range(options.repeats):
            for way, artifacts in ways.items():
                runs[way].append(measure(folder, bundle, artifacts))
    result = {
        "target": {"cpu_s": TARGET_CPU_S, "rss_mb": TARGET_RSS_MB},
        "load": os.getloadavg()[0],
        "ways": {way: best(found) for way, found in runs.items()},
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"target: {TARGET_CPU_S} CPU-s, {TARGET_RSS_MB} MB; load {result['load']:.1f}")
    for way, found in result["ways"].items():
        print("  ".join([f"{way:<12}", *(f"{k} {v:.3g}" for k, v in found.items())]))


if __name__ == "__main__":
    main()
