"""Training steps on one core or two: Delian beside torch eager and jax.jit, in one process.

    python benchmarks/kernels.py [--model cnn] [--threads 1|2] [--seconds 6] [--json]

A training step is forward, loss, backward and SGD in place, in f32. Every engine first takes three
steps from the same weights: losses and parameters must be those of f64 to 1e-3, or within three
times of a peer's own error. Then all take turns, one timed call each, until the time is up, so that
a noisy machine is noisy for all. Quoted are the least and the median; ratios are of the least
(min/min). With --threads 1 the process has one processor, so no engine can use another. Where torch
or jax is not installed its columns are absent.

Beside the times: the machine's peak, by multiply-adds in registers compiled as the product's own
programs are, and the share of it that products and convolutions of a step reach, and convolutions
alone, timed step by step; what compilation costs with an empty cache; the artifact, the arena
against the sum of all tensors; and how many products plain loops compute. --json ends in `targets`,
each with its goal, what was measured, and whether it was met. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TOLERANCE = 1e-3
CHANCE = 3
STEPS_CHECKED = 3
#: Draws of the data to check on, of which the median counts. A pool's maximum that goes to another
#: pixel is a coin's toss, and exact MAML multiplies it: one draw says nothing, of any engine.
DRAWS = {"maml": 15}
ROUNDS_MIN = 5
CALLS_TIMED = 10
ARTIFACT_BYTES_MAX = 100_000
CONVOLUTIONS_PEAK_MIN = 0.65
#: (workload, batch) -> how many times faster than torch eager and than jax.jit, on one thread.
GOALS = {
    ("mlp", 10): (5.0, 2.0),
    ("mlp", 32): (2.5, 1.5),
    ("cnn", 10): (2.6, 2.4),
    ("cnn", 32): (1.9, 2.8),
    ("omniglot", 10): (3.0, 1.7),
    ("omniglot", 32): (2.6, 1.9),
    ("lstm", 10): (1.5, 3.0),
    ("resnet8", 32): (2.2, 1.9),
}
#: Measured against the best of eager and jax.jit: not slower.
AGAINST_BEST = ("mobilenet", "gru", "transformer", "maml")
CONVOLUTIONAL = ("cnn", "omniglot", "resnet8")
EAGER = ("torch eager", "torch channels_last")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def confine(threads: int) -> None:
    """Before anything starts threads: as many processors, and libraries told as much."""
    if hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, usable[-threads:])
    libraries = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")
    for name in (*libraries, "DELIAN_THREADS"):
        os.environ[name] = str(threads)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if threads == 1:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()


def peers(threads: int) -> dict[str, str]:
    """The peers that are here, and their versions."""
    found = {}
    try:
        import torch

        torch.set_num_threads(threads)
        found["torch"] = torch.__version__
    except ImportError:
        say("torch is not installed: its columns are absent")
    try:
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)
        found["jax"] = jax.__version__
    except ImportError:
        say("jax is not installed: its columns are absent")
    return found


def engines(
    name: str, batch: int, found: Mapping[str, str], steps: int, draw: int = 0
) -> tuple[Any, Any]:
    """What was built of Delian, and every engine with the same weights and data. draw: of these."""
    import delian as dl
    import numpy as np
    from kernel_models import WORKLOADS, DelianStep, build

    workload = WORKLOADS[name]
    model = workload.build()
    data = workload.data(np.random.default_rng(draw), batch)
    leaves = dl.tree.leaves(model)
    built = build(workload, model, data, steps)
    out: dict[str, Any] = {"delian": DelianStep(built.program, leaves, data)}
    if found:
        from kernel_peers import JaxStep, TorchStep

        if "torch" in found:
            out["torch eager"] = TorchStep(name, workload, leaves, data, last=False)
            if any(np.ndim(a) == 4 for a in data):
                out["torch channels_last"] = TorchStep(name, workload, leaves, data, last=True)
        if "jax" in found:
            out["jax.jit"] = JaxStep(name, workload, leaves, data)
    return built, out


def check(name: str, batch: int, found: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """The errors of every engine's loss and parameters, medians of `DRAWS` of the data."""
    drawn = [checked(name, batch, found, draw) for draw in range(DRAWS.get(name, 1))]
    return {
        engine: {
            what: statistics.median(errors[engine][what] for errors in drawn) for what in first
        }
        for engine, first in drawn[0].items()
    }


def checked(
    name: str, batch: int, found: Mapping[str, str], draw: int
) -> dict[str, dict[str, float]]:
    """Errors after a few steps on one draw of the data, against the same steps of torch in f64;
    without torch, Delian's against JAX's.
    """
    from dataclasses import replace

    import kernel_models
    from kernel_models import WORKLOADS, worst_error

    kept = WORKLOADS[name]
    WORKLOADS[name] = replace(kept, steps=STEPS_CHECKED)
    try:
        _, runs = engines(name, batch, found, STEPS_CHECKED, draw)
        for run in runs.values():
            run()
        truth = exact(name, batch, draw) if "torch" in found else runs.pop("jax.jit", None)
    finally:
        kernel_models.WORKLOADS[name] = kept
    errors = {}
    for engine, run in runs.items() if truth else ():
        loss = abs(run.loss - truth.loss) / max(abs(truth.loss), 1e-2)
        leaves = run.leaves if engine == "delian" else run.leaves()
        errors[engine] = {"loss": loss, "parameters": worst_error(leaves, truth.leaves())}
    return errors


def exact(name: str, batch: int, draw: int) -> Any:
    """Torch's steps in f64, taken."""
    import delian as dl
    import numpy as np
    import torch
    from kernel_models import WORKLOADS
    from kernel_peers import TorchStep

    workload = WORKLOADS[name]

    def wide(a: Any) -> Any:
        return np.asarray(a, np.float64) if np.asarray(a).dtype == np.float32 else a

    data = tuple(map(wide, workload.data(np.random.default_rng(draw), batch)))
    torch.set_default_dtype(torch.float64)
    try:
        step = TorchStep(
            name, workload, [wide(w) for w in dl.tree.leaves(workload.build())], data, last=False
        )
        step()
    finally:
        torch.set_default_dtype(torch.float32)
    return step


def disagreement(errors: Mapping[str, Mapping[str, float]]) -> float:
    """Delian's error, as many times smaller as peers are further off than the tolerance allows.

    Any rounding may send the maximum of a pool to another pixel, and with it all that follows. How
    far is chance: three times as far as a peer is no further.
    """
    worst = {engine: max(e["loss"], e["parameters"]) for engine, e in errors.items()}
    own = worst.pop("delian")
    return own * TOLERANCE / max([TOLERANCE, *(CHANCE * w for w in worst.values())])


def convolutions_gflops(function: Any, leaves: Any, data: Any) -> float:
    """The speed of a step's convolutions alone, forward and both gradients."""
    from delian.core.compiler.backends.native.toolchain.timing import time_steps

    steps = time_steps(function, [*leaves, *data], CALLS_TIMED)
    found = [s for s in steps if any(o.startswith("conv") and o != "convert" for o in s.operations)]
    return sum(s.flops * s.runs for s in found) / sum(s.seconds for s in found) / 1e9


def take_turns(
    runs: Mapping[str, Callable[[], None]], seconds: float
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Times of calls in seconds: on the clock, and of this process's processor."""
    wall: dict[str, list[float]] = {n: [] for n in runs}
    used: dict[str, list[float]] = {n: [] for n in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < ROUNDS_MIN or time.perf_counter() < end:
        for engine, run in runs.items():
            cpu, start = time.process_time(), time.perf_counter()
            run()
            wall[engine].append(time.perf_counter() - start)
            used[engine].append(time.process_time() - cpu)
        rounds += 1
    return wall, used


def measure(name: str, batch: int, options: Any, found: Mapping[str, str], peak: Any) -> Any:
    from kernel_models import WORKLOADS, plain_products, product_flops

    say(f"{name} B{batch}: compiling and checking")
    errors = check(name, batch, found)
    steps = WORKLOADS[name].steps
    if errors and not disagreement(errors) <= TOLERANCE:
        say(f"{name} B{batch}: WRONG: {errors}")
    built, runs = engines(name, batch, found, steps)
    say(f"{name} B{batch}: measuring")
    wall, used = take_turns(runs, options.seconds)
    peak.measure()
    clock = used if options.clock == "cpu" else wall
    report = built.program.report
    flops = product_flops(built.function.body) / steps
    row: dict[str, Any] = {
        "model": name,
        "batch": batch,
        "steps_a_call": steps,
        "rounds": len(wall["delian"]),
        "errors": errors,
        "engines": {
            engine: {
                "ms_min": min(clock[engine]) / steps * 1e3,
                "ms_median": statistics.median(clock[engine]) / steps * 1e3,
            }
            for engine in runs
        },
        "mflop": flops / 1e6,
        "compile_cpu_s": built.compile_cpu_s,
        "compile_s": built.compile_s,
        "trace_s": built.trace_s,
        "artifact_bytes": report.library.stat().st_size,
        "arena_bytes": report.arena_bytes,
        "tensor_bytes": report.tensor_bytes,
        "fallbacks": plain_products(built.function.body),
    }
    if name in CONVOLUTIONAL:
        rate = convolutions_gflops(built.function, runs["delian"].leaves, runs["delian"].data)
        row["convolutions_of_peak"] = rate / peak.gflops
    own = row["engines"]["delian"]["ms_min"]
    for times in row["engines"].values():
        times["of_peak"] = flops / (times["ms_min"] * 1e6) / (peak.gflops * options.threads)
        times["delian_is_faster"] = times["ms_min"] / own
    return row


def targets(rows: list[Any], threads: int) -> list[dict[str, Any]]:
    """The goals that these rows speak of."""
    out: list[dict[str, Any]] = []

    def goal(name: str, at_least: float, measured: float | None, most: bool = False) -> None:
        met = measured is not None and (measured <= at_least if most else measured >= at_least)
        out.append({"name": name, "goal": at_least, "measured": measured, "met": met})

    def ratio(row: Any, engine: str) -> float | None:
        found = row["engines"].get(engine)
        return found and found["delian_is_faster"]

    for row in rows:
        key = (row["model"], row["batch"])
        label = f"{key[0]} B{key[1]}"
        if row["errors"]:
            goal(f"{label} error", TOLERANCE, disagreement(row["errors"]), most=True)
        if key in GOALS and threads == 1:
            goal(f"{label} vs torch eager", GOALS[key][0], ratio(row, "torch eager"))
            goal(f"{label} vs jax.jit", GOALS[key][1], ratio(row, "jax.jit"))
        if key[0] in AGAINST_BEST and threads == 1:
            ratios = [r for e in (*EAGER, "jax.jit") if (r := ratio(row, e)) is not None]
            goal(f"{label} vs the best", 1.0, min(ratios, default=None))
        if "convolutions_of_peak" in row:
            share = row["convolutions_of_peak"]
            goal(f"{label} convolutions of peak", CONVOLUTIONS_PEAK_MIN, share)
        goal(f"{label} artifact bytes", ARTIFACT_BYTES_MAX, row["artifact_bytes"], most=True)
        goal(f"{label} fallbacks", 0, row["fallbacks"], most=True)
    return out


def table(rows: list[Any]) -> str:
    lines = [
        f"{'model':16}{'engine':22}{'min ms':>9}{'median':>9}{'% peak':>8}{'x':>7}"
        f"{'compile':>9}{'KB':>6}{'arena MB':>10}{'of MB':>7}"
    ]
    for row in rows:
        label = f"{row['model']} B{row['batch']}"
        for engine, t in row["engines"].items():
            line = f"{label:16}{engine:22}{t['ms_min']:9.3f}{t['ms_median']:9.3f}"
            line += f"{100 * t['of_peak']:8.1f}{t['delian_is_faster']:7.2f}"
            if engine == "delian":
                line += f"{row['compile_cpu_s']:9.2f}{row['artifact_bytes'] / 1000:6.0f}"
                line += f"{row['arena_bytes'] / 1e6:10.2f}{row['tensor_bytes'] / 1e6:7.1f}"
            lines.append(line)
            label = ""
        if "convolutions_of_peak" in row:
            share = 100 * row["convolutions_of_peak"]
            lines.append(f"{'':16}{'convolutions alone':22}{'':18}{share:8.1f}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", help="a workload, or several; default: all")
    parser.add_argument("--batch", type=int, help="this batch size alone")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="of measuring, a row")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: of a machine that is busy"
    )
    parser.add_argument("--no-peers", action="store_true", help="Delian alone")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    confine(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DELIAN_CACHE"] = folder  # every program is compiled here and now
        run(options)


def run(options: argparse.Namespace) -> None:
    from kernel_models import WORKLOADS, Peak

    found = {} if options.no_peers else peers(options.threads)
    names = options.model or list(WORKLOADS)
    if unknown := [n for n in names if n not in WORKLOADS]:
        raise SystemExit(f"no workload {unknown[0]!r}: they are {', '.join(WORKLOADS)}")
    peak = Peak()
    peak.measure()
    rows = []
    for name in names:
        for batch in [options.batch] if options.batch else WORKLOADS[name].batches:
            rows.append(measure(name, batch, options, found, peak))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    machine = {
        "processor": processor(),
        "lanes": peak.lanes,
        "peak_gflops": peak.gflops,
        "threads": options.threads,
        "clock": options.clock,
        "load": load,
        "peers": found,
    }
    for row in rows:  # the peak may have been seen higher since
        for times in row["engines"].values():
            rate = row["mflop"] / times["ms_min"]
            times["of_peak"] = rate / (peak.gflops * options.threads)
    if options.json:
        goals = targets(rows, options.threads)
        print(json.dumps({"machine": machine, "rows": rows, "targets": goals}, indent=2))
        return
    print(
        f"{machine['processor']}, peak {peak.gflops:.0f} GFLOP/s a core ({peak.lanes} lanes),"
        f" {options.threads} thread(s), {options.clock} clock, load {load:.1f}, {found}"
    )
    print(table(rows))
    for t in targets(rows, options.threads):
        if not t["met"]:
            measured = "absent" if t["measured"] is None else f"{t['measured']:.3g}"
            print(f"not met: {t['name']}: {measured}, goal {t['goal']:g}")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
