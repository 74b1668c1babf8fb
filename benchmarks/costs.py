"""How near the cost model of placement comes to what programs and their parts really take.

    python benchmarks/costs.py [--profile node.json] [--model resnet20] [--batch 1] [--cuts 12]
        [--seconds 2] [--json]

For each model: the whole program's time; what is predicted of it from this node's classes of
operations, and from the times of its own operations (`delian profile --bundle`); then the same for
programs cut in two and three, at cuts that the sweep over bandwidths finds and at others in even
steps through the program: every part is compiled and timed by itself, and the sum of the parts is
compared. Times are the processor's, the least over many calls that take turns. Without --profile
this node is measured first. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
from delian.core.common.aligned_arrays import aligned
from delian.core.compiler.backends import compile_function
from delian.core.compiler.backends.native.toolchain.tune import example_of
from delian.core.compiler.ir import DType, Function, TensorType
from delian.core.learning import nn
from delian.core.placement.cut.breakpoints import sweep
from delian.core.placement.cut.cut import Cut
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.cut.measure import measure_node, measured_seconds
from delian.core.placement.cut.profile import NodeProfile
from delian.core.placement.cut.program_costs import Model, problem_of
from delian.simulations.runs.host_facts import cpu_name

_KEY = dl.random.key(0)
#: Name: the model, and its input for a batch.
MODELS: dict[str, Any] = {
    "lenet": (lambda: nn.lenet(_KEY, (28, 28, 1), 10), DType.F32, (28, 28, 1)),
    "resnet20": (lambda: nn.resnet(_KEY, (32, 32, 3), 10, depth=20), DType.F32, (32, 32, 3)),
    "mobilenet": (lambda: nn.mobilenet_v2(_KEY, (96, 96, 3), 10), DType.F32, (96, 96, 3)),
    "lstm": (lambda: nn.CharLstm.init(_KEY, 80, 8, 256, 2), DType.I32, (80,)),
    "transformer": (lambda: nn.transformer(_KEY, 80), DType.I32, (64,)),
}
#: Tiers as many times slower, and a fast link, so that the sweep finds cuts.
_SLOWER = (40.0, 4.0, 1.0)
_LINK = LinkProfile(1e6, 1e6, 0.0005)
_LOW, _HIGH = 1e4, 1e9
_CALLS_MIN = 30


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def program(name: str, batch: int) -> tuple[Function, int]:
    """A model's forward pass, and how many of its parameters are weights."""
    build, dtype, shape = MODELS[name]
    model = build()
    traced = dl.compile(lambda m, x: m(x, None)).trace(model, TensorType(dtype, (batch, *shape)))
    return traced.function, len(dl.tree.leaves(model))


def timed(functions: Sequence[Function], seconds: float) -> list[float]:
    """The least processor time of a call of each, taking turns."""
    calls = [(compile_function(f), [aligned(a) for a in example_of(f)]) for f in functions]
    least = [float("inf")] * len(calls)
    end, turns = time.perf_counter() + seconds, 0
    while turns < _CALLS_MIN or time.perf_counter() < end:
        turns += 1
        for i, (run, args) in enumerate(calls):
            begin = time.thread_time()
            run(*args)
            least[i] = min(least[i], time.thread_time() - begin)
    return least


def cuts_of(model: Model, count: int) -> list[Cut]:
    """Cuts of the sweep, and others in two in even steps."""
    found = [model.cut(p.placement) for p in sweep(model.problem, 0, _LOW, _HIGH)]
    items = len(model.groups)
    for k in range(1, count + 1):
        at = k * items // (count + 1)
        found.append(Cut(model.labels([int(i >= at) for i in range(items)])))
    return list(dict.fromkeys(found))


def study(name: str, profile: NodeProfile, batch: int, count: int, seconds: float) -> Any:
    function, weights = program(name, batch)
    resident = range(weights)
    own = measured_seconds(function, seconds=seconds)
    tiers = [profile.scaled(f) for f in _SLOWER]
    model = problem_of(function, resident, tiers, [_LINK, _LINK])
    here = problem_of(function, resident, [profile] * 3, [_LINK, _LINK])
    exact = problem_of(function, resident, [profile] * 3, [_LINK, _LINK], seconds=[own] * 3)
    (whole,) = timed([function], seconds)
    rows = []
    for cut in cuts_of(model, count):
        parts = [p.program for p in model.parts(cut).parts if p.program.body.ops]
        if len(parts) < 2:
            continue
        took = sum(timed(parts, seconds / 2))
        calls = (len(parts) - 1) * profile.call_s
        predicted = [sum(m.of_cut(cut).tier_seconds) + calls for m in (here, exact)]
        rows.append([took, *predicted])
        say(
            f"  {len(parts)} parts: {1e6 * took:.0f} us, predicted {1e6 * predicted[0]:.0f} by"
            f" class, {1e6 * predicted[1]:.0f} by operation"
        )
    table = np.array(rows).reshape(-1, 3)
    errors = np.abs(table[:, 1:] / table[:, :1] - 1)
    alone = [sum(m.of_cut(Cut(m.labels([0] * len(m.groups)))).tier_seconds) for m in (here, exact)]
    return {
        "model": name,
        "batch": batch,
        "whole_us": 1e6 * whole,
        "by_class": alone[0] / whole - 1,
        "by_operation": alone[1] / whole - 1,
        "cuts": len(rows),
        "worst_by_class": float(errors[:, 0].max(initial=0.0)),
        "worst_by_operation": float(errors[:, 1].max(initial=0.0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--model", choices=[*MODELS], action="append")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--cuts", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.profile is not None:
        profile = NodeProfile.from_json(args.profile.read_text(), str(args.profile))
    else:
        profile = measure_node(name="here", cpu=cpu_name(), date="", memory=None, say=say)
    rows = []
    for name in args.model or MODELS:
        say(name)
        rows.append(study(name, profile, args.batch, args.cuts, args.seconds))
    if args.json:
        print(json.dumps({"cpu": profile.cpu, "rows": rows}))
        return
    print("| model | batch | whole | by class | by operation | cuts | worst, class | worst, op |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for r in rows:
        print(
            f"| {r['model']} | {r['batch']} | {r['whole_us']:.0f} us | {r['by_class']:+.1%} |"
            f" {r['by_operation']:+.1%} | {r['cuts']} | {r['worst_by_class']:.1%} |"
            f" {r['worst_by_operation']:.1%} |"
        )


if __name__ == "__main__":
    main()
