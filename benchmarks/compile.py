"""What compiling a training step takes: processor time and size, for each model.

    python benchmarks/compile.py [--json] [--model cnn] [--repeats 3]

The models are those of benchmarks/kernels.py, one step (forward, loss, backward, SGD) each, with an
empty cache. `emit` is the way from IR to C, `compile` the compiler's processes; the least of all
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
from delian.core.backends.native import toolchain
from delian.core.backends.native.assemble import assembled

#: Processor seconds of all of it, and KiB of the object.
TARGET_CPU_S, TARGET_KIB = 2.0, 100.0


def measure(name: str, repeats: int) -> dict[str, Any]:
    """One model's step: seconds of processor time, KiB, lines of C."""
    workload = models.WORKLOADS[name]
    model = workload.build()
    batch = workload.batches[0]
    data = workload.data(np.random.default_rng(0), batch)
    traced = dl.compile(models.training(workload, 1), donate=(0,)).trace(model, *data)
    tools = toolchain.find()
    assert tools is not None, "there is no C compiler"
    emit_s, compile_s, size, lines = [], [], 0, 0
    for _ in range(repeats):
        start = time.process_time()
        text, _ = assembled({"step": traced.function}, tools)
        emit_s.append(time.process_time() - start)
        with tempfile.TemporaryDirectory() as scratch:
            source, output = Path(scratch) / "program.c", Path(scratch) / "program.so"
            source.write_text(text)
            before = _children_s()
            tools.compile(source, output)
            compile_s.append(_children_s() - before)
            size, lines = output.stat().st_size, text.count("\n")
    total = min(emit_s) + min(compile_s)
    return {
        "model": name,
        "batch": batch,
        "emit_s": min(emit_s),
        "compile_s": min(compile_s),
        "cpu_s": total,
        "kib": size / 1024,
        "lines": lines,
        "reached": total <= TARGET_CPU_S and size / 1024 <= TARGET_KIB,
    }


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
        "target": {"cpu_s": TARGET_CPU_S, "kib": TARGET_KIB},
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
    if options.json:
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
