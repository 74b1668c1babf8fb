"""Training steps of models imported from PyTorch, beside the same models in Delian's vocabulary.

    python benchmarks/imported.py [--model cnn] [--seconds 4] [--json]

The workloads of benchmarks/kernels.py. Each torch model there becomes a module, is imported by
`dl.from_torch`, and trains from the same weights on the same batch; torch eager, contiguous and
channels_last, runs the same steps. All engines take turns in one process with one processor, one
timed call each. Quoted are the least and the median; ratios are of the least (min/min). After three
steps the losses must agree to 1e-3. --json ends in `targets`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
from typing import Any

#: An imported model's step is at most so much slower than the hand-written one's.
SLOWER_MAX = 1.05
#: The geometric mean of how many times faster than the best of torch it is.
FASTER_MIN = 1.5
TOLERANCE = 1e-3
MODELS = ("mlp", "cnn", "omniglot", "lstm", "gru", "transformer", "resnet8", "mobilenet")


def module_of(name: str, workload: Any, step: Any) -> Any:
    """The peer's model as a module, with the weights that its step has."""
    import torch
    from kernel_peers import _TORCH

    class Peer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(p.detach().clone() for p in step.params)

        def forward(self, x: Any) -> Any:
            return _TORCH[name](step.model, list(self.weights), x)

    return Peer()


def engines(name: str, batch: int, steps: int) -> dict[str, Any]:
    import delian as dl
    import numpy as np
    from kernel_models import WORKLOADS, DelianStep, build
    from kernel_peers import TorchStep

    workload = WORKLOADS[name]
    model = workload.build()
    data = workload.data(np.random.default_rng(0), batch)
    leaves = dl.tree.leaves(model)
    out: dict[str, Any] = {
        "hand-written": DelianStep(build(workload, model, data, steps).program, leaves, data)
    }
    eager = TorchStep(name, workload, leaves, data, last=False)
    images = data[0].ndim == 4
    imported = dl.from_torch(
        module_of(name, workload, eager), (eager.data[0],), channels_last=images
    )
    program = build(workload, imported, data, steps).program
    out["imported"] = DelianStep(program, dl.tree.leaves(imported), data)
    out["torch eager"] = eager
    if images:
        out["torch channels_last"] = TorchStep(name, workload, leaves, data, last=True)
    return out


def measure(name: str, batch: int, seconds: float) -> dict[str, Any]:
    import dataclasses

    import kernel_models
    from kernels import say, take_turns

    kept = kernel_models.WORKLOADS[name]
    say(f"{name} B{batch}: importing, compiling and checking")
    kernel_models.WORKLOADS[name] = dataclasses.replace(kept, steps=3)
    runs = engines(name, batch, 3)
    kernel_models.WORKLOADS[name] = kept
    for run in runs.values():
        run()
    want = runs["hand-written"].loss
    error = max(abs(run.loss - want) / max(abs(want), 1e-2) for run in runs.values())
    runs = engines(name, batch, kept.steps)
    say(f"{name} B{batch}: measuring")
    wall, _ = take_turns(runs, seconds)
    least = {engine: min(times) / kept.steps * 1e3 for engine, times in wall.items()}
    best = min(ms for engine, ms in least.items() if engine.startswith("torch"))
    return {
        "model": name,
        "batch": batch,
        "rounds": len(wall["imported"]),
        "error": error,
        "ms_min": least,
        "ms_median": {e: statistics.median(t) / kept.steps * 1e3 for e, t in wall.items()},
        "of_hand_written": least["imported"] / least["hand-written"],
        "faster_than_torch": best / least["imported"],
    }


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for row in rows:
        label = f"{row['model']} B{row['batch']}"
        slower = row["of_hand_written"]
        wanted = {"goal": SLOWER_MAX, "measured": slower, "met": slower <= SLOWER_MAX}
        out.append({"name": f"{label}: imported / hand-written", **wanted})
        close = {"goal": TOLERANCE, "measured": row["error"], "met": row["error"] <= TOLERANCE}
        out.append({"name": f"{label}: difference of losses", **close})
    if rows:
        mean = math.exp(statistics.fmean(math.log(row["faster_than_torch"]) for row in rows))
        faster = {"goal": FASTER_MIN, "measured": mean, "met": mean >= FASTER_MIN}
        out.append({"name": "best of torch / imported, geometric mean", **faster})
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring a model")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from kernels import confine

    confine(1)
    import torch

    torch.set_num_threads(1)
    from kernel_models import WORKLOADS

    before = os.getloadavg()[0]
    rows = [
        measure(name, WORKLOADS[name].batches[-1], options.seconds)
        for name in options.model or MODELS
    ]
    report = {
        "machine": platform.processor() or platform.machine(),
        "load": before,
        "torch": torch.__version__,
        "rows": rows,
        "targets": targets(rows),
    }
    if options.json:
        print(json.dumps(report, indent=1))
        return 0
    for row in rows:
        times = "  ".join(f"{engine} {ms:.3f} ms" for engine, ms in row["ms_min"].items())
        print(
            f"{row['model']} B{row['batch']}: {row['of_hand_written']:.3f} of hand-written,"
            f" {row['faster_than_torch']:.2f} times torch; {times}; differs {row['error']:.1e}"
        )
    print(f"load {before:.2f}; {report['targets'][-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
