"""What compiling a training step takes: time and size, for each model.

    python benchmarks/compile.py [--json] [--model cnn] [--repeats 3]

The models are those of benchmarks/kernels.py, one step (forward, loss, backward, SGD) each, with an
empty cache, from IR to an object: `wall_s` on the clock, of which `emit_s` is the way to C in this
process; `cpu_s` the processor's, of which `compile_s` is the compilers'. A file with many loops is
compiled by two at once, so on the clock it takes less where there are two cores. The least of all
repeats. `kib` is the object on disk. $DELIAN_CC chooses another compiler, such as
DELIAN_CC="python -m ziglang cc".
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import delian as dl
import kernel_models as models
import numpy as np
from delian.core.compiler.backends.native.assemble import assembled
from delian.core.compiler.backends.native.toolchain import toolchain

#: Seconds on the clock, and KiB of the object.
TARGET_S, TARGET_KIB = 2.0, 100.0


def measure(name: str, repeats: int) -> dict[str, Any]:
    """One model's step: seconds, KiB, lines of C."""
    workload = models.WORKLOADS[name]
    model = workload.build()
    batch = workload.batches[0]
    data = workload.data(np.random.default_rng(0), batch)
    traced = dl.compile(models.training(workload, 1), donate=(0,)).trace(model, *data)
    tools = toolchain.find()
    assert tools is not None, "there is no C compiler"
    wall_s, emit_s, compile_s, size, lines = [], [], [], 0, 0
    for _ in range(repeats):
        begun, start = time.perf_counter(), time.process_time()
        text = assembled({"step": traced.function}, tools).text
        emit_s.append(time.process_time() - start)
        with tempfile.TemporaryDirectory() as scratch:
            source, output = Path(scratch) / "program.c", Path(scratch) / "program.so"
            source.write_text(text)
            before = _children_s()
            tools.compile(source, output)
            compile_s.append(_children_s() - before)
            wall_s.append(time.perf_counter() - begun)
            size, lines = output.stat().st_size, text.count("\n")
    return {
        "model": name,
        "batch": batch,
        "wall_s": min(wall_s),
        "cpu_s": min(emit_s) + min(compile_s),
        "emit_s": min(emit_s),
        "compile_s": min(compile_s),
        "kib": size / 1024,
        "lines": lines,
    }


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The goals, and what was measured."""
    return [
        {
            "name": f"{row['model']}, {name}",
            "goal": goal,
            "measured": row[key],
            "met": row[key] <= goal,
        }
        for row in rows
        for name, key, goal in (
            ("seconds on the clock", "wall_s", TARGET_S),
            ("KiB", "kib", TARGET_KIB),
        )
    ]


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--model", choices=list(models.WORKLOADS), action="append")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    tools = toolchain.find()
    result: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "compiler": tools.version if tools else None,
        "load": os.getloadavg()[0],
        "models": [],
    }
    for name in options.model or list(models.WORKLOADS):
        row = measure(name, options.repeats)
        result["models"].append(row)
        if not options.json:
            text = (f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print("  ".join(text), flush=True)
    result["targets"] = targets(result["models"])
    if options.json:
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
