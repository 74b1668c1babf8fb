"""Client updates a second of a cohort as one program on a GPU, checked and timed in one sitting.

    python benchmarks/gpu.py --json gpu.json              on a machine with a CUDA GPU, under 8 min
    python benchmarks/gpu.py --device cpu --models mlp    a dry run: the same steps, smaller cohorts

The work is a device's whole local training of the FedAvg paper's models: 60 examples of 28 x 28,
one epoch of batches of ten, SGD at rate 0.1. Delian also draws the batches' order, clips the update
and rounds it into the ring, as devices do. First the cohort's updates are held against the native
back end's. Then each engine runs alone, warmed up, until it has run for `--seconds`, and its
fastest run counts: Delian's cohort program by switches and by how convolutions are done, on tensors
that are on the device; the same with data and updates going through the host; torch.func's vmap of
gradient steps over stacked models; and a loop over devices in eager torch. What does not fit into
`--budget` seconds is broken off or left out, and named; an engine that fails says how and the
others go on. The file is written anew after each engine, so that it holds what there was should the
process be killed.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from delian.core import learning
from delian.core.common.errors import DelianError
from delian.core.common.files import write_whole
from delian.core.compiler import random
from delian.core.compiler.backends import Backend
from delian.core.compiler.backends.native.toolchain.toolchain import find
from delian.core.compiler.backends.torch.torch_program import compile_torch
from delian.core.compiler.backends.torch.torch_tensors import to_tensor
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples, SampleSet, nn
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.cohort_program import Cohort, Convolutions, Member
from delian.core.learning.runtime import Runtime

EXAMPLES, BATCH, CLASSES, RATE = 60, 10, 62, 0.1
STEPS = EXAMPLES // BATCH
#: Client updates a second on one H100.
GOALS = {"mlp": 40_000.0, "cnn": 5_000.0}
#: How far an update may be from the native one's, beside its length: steps of the ring, and the
#: rounding of products in the switch's number format. Training on noise makes much of it: with the
#: CNN in bf16 6% after one step and 25% after six.
TOLERANCE = {"": 1e-3, "tf32": 1.5e-1, "bf16": 5e-1}
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {"mlp": (8,), "cnn": (4,)},
    "gpu": {"mlp": (256, 1024), "cnn": (64, 256)},
}


@dataclass
class Row:
    """One engine. error: why there is no figure. apart: the distance from the native update,
    beside its length.
    """

    model: str
    engine: str
    devices: int
    updates_per_s: float | None = None
    ready_s: float | None = None
    apart: float | None = None
    error: str | None = None


def data(seed: int) -> SampleSet:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(EXAMPLES, 28, 28, 1)).astype(np.float32)
    count = np.array(EXAMPLES, np.int64)
    return SampleSet(x, rng.integers(0, CLASSES, EXAMPLES), count, np.array(0, np.int64))


def bundle(model: str) -> Any:
    def init(key: Any) -> Any:
        if model == "mlp":
            return nn.Mlp.init(key, 784, (200, 200), CLASSES)
        return nn.FedAvgCnn.init(key, 28, 28, 1, CLASSES)

    return build(
        Classification(model, init, Samples(BATCH, 1.0)),
        learning.FedAvg(),
        data(0),
        example=TensorType(DType.F32, (BATCH, 28, 28, 1)),
        clip=10.0,
        clients_max=100,
        weight_max=float(EXAMPLES),
        seed=1,
    )


class Bench:
    """What was measured. Whatever an engine does, what came before it is in the file."""

    def __init__(self, given: argparse.Namespace, models: list[str]) -> None:
        self.given, self.models = given, models
        self.device: str = given.device
        self.until = time.monotonic() + given.budget
        self.rows: list[Row] = []
        #: Bundles with their judges, made when they are first asked for.
        self._made: dict[str, tuple[Any, Runtime]] = {}
        #: The judge's updates of devices, by model and number: each is worked out once.
        self.native: dict[tuple[str, int], Any] = {}

    def made(self, model: str) -> tuple[Any, Runtime]:
        """A model's bundle, and its programs on the native back end; where there is no compiler,
        on the reference.
        """
        if model not in self._made:
            judge: Backend = "native" if find() is not None else "reference"
            found = bundle(model)
            self._made[model] = found, Runtime(found, judge, programs=["client_update"])
        return self._made[model]

    def largest(self, model: str) -> int:
        return sizes_of(self.given, model, "")[-1]

    def wait(self) -> None:
        if self.device != "cpu":
            torch.get_device_module(self.device).synchronize(self.device)

    def best(self, run: Callable[[], Any]) -> float:
        """Seconds of the fastest run."""
        fastest, end = float("inf"), time.perf_counter() + self.given.seconds
        while True:
            start = time.perf_counter()
            run()
            self.wait()
            now = time.perf_counter()
            fastest = min(fastest, now - start)
            if now > end:
                return fastest

    def part(self, model: str, name: str, job: Callable[[], None]) -> None:
        """Runs a part; where it fails before its engines do, that is a row of its own."""
        try:
            job()
        except Exception as error:  # the other parts' figures are still wanted
            self._add(Row(model, name, 0, error=told(error)))

    def engine(
        self, model: str, name: str, devices: int, ready: Callable[[Row], Callable[[], Any]]
    ) -> None:
        """Makes an engine ready and times it."""
        row = Row(model, name, devices)
        left = self.until - time.monotonic()
        if left <= 0:
            row.error = "left out: no time"
        else:
            try:
                with within(left):
                    self._measure(row, ready)
            except Exception as error:  # the other engines' figures are still wanted
                row.error = told(error)
        self._add(row)

    def _measure(self, row: Row, ready: Callable[[Row], Callable[[], Any]]) -> None:
        start = time.perf_counter()
        run = ready(row)
        run()
        self.wait()
        row.ready_s = time.perf_counter() - start
        row.updates_per_s = row.devices / self.best(run)

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        gc.collect()  # programs hold themselves, and so the device's memory
        if self.device != "cpu":
            torch.get_device_module(self.device).empty_cache()
        figure = "" if row.updates_per_s is None else f"{row.updates_per_s:10,.0f} updates/s"
        ready = "" if row.ready_s is None else f"   ready {row.ready_s:6.1f} s"
        apart = "" if row.apart is None else f"   apart {row.apart:.1e}"
        print(
            f"{row.model:4} {row.engine:38} {row.devices:5} devices"
            f" {row.error or figure + ready}{apart}",
            flush=True,
        )
        if self.given.json:
            write_whole(Path(self.given.json), json.dumps(self.result(), indent=1) + "\n")

    def result(self) -> dict[str, Any]:
        best = {model: best_of(self.rows, model) for model in self.models}
        return {
            "device": name_of(self.device),
            "torch": torch.__version__,
            "judge": "native" if find() is not None else "reference",
            "rows": [asdict(r) for r in self.rows],
            "targets": {
                model: {"updates_per_s": b, "goal": GOALS[model], "met": b >= GOALS[model]}
                for model, b in best.items()
            },
        }


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in what takes longer, where the system has such an alarm."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: object) -> None:
        raise TimeoutError("the time is over")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check(
    bench: Bench, made: Any, cohort: Cohort, members: list[Member], backend: str, row: Row
) -> None:
    """Holds two of a cohort's updates against the native ones."""
    runtime = cohort.runtime
    found = cohort.updates(made.weights, members)
    row.apart = 0.0
    for k in (0, len(members) - 1):
        member = members[k]
        if (row.model, k) not in bench.native:
            made_natively = runtime.client_update(made.weights, member.data, member.key)
            bench.native[row.model, k] = made_natively
        own = bench.native[row.model, k]
        # The weight, which follows the coordinates, is the same anyhow.
        one, other = (u.vector[: made.manifest.dimension] for u in (found[k], own))
        apart, length = (
            np.linalg.norm(v.astype(np.int32).astype(np.float64)) for v in (one - other, other)
        )
        row.apart = max(row.apart, float(apart / length))
        assert found[k].finite and own.finite
    limit = next(v for key, v in reversed(TOLERANCE.items()) if f"+{key}" in backend or not key)
    assert row.apart <= limit, f"an update is {row.apart:.2g} from the native one's"


def ours(bench: Bench, model: str, size: int, tag: str) -> None:
    """Delian's cohort program: tag is the switches, then how convolutions are done."""
    made, runtime = bench.made(model)
    switches, _, how = tag.partition(" ")
    backend = f"torch:{bench.device}{switches}"
    convolutions: Convolutions = "grouped" if how == "grouped" else "patches"
    members = [Member(data(k), random.key(k)) for k in range(size)]
    kept: dict[str, Cohort] = {}

    def ready(row: Row) -> Callable[[], Any]:
        cohort = kept["cohort"] = Cohort(runtime, size, backend, convolutions)
        program: Any = cohort.program
        check(bench, made, cohort, members, backend, row)
        tensors = [to_tensor(a, bench.device) for a in cohort.arguments(made.weights, members)]
        return lambda: program.tensors(*tensors)

    bench.engine(model, f"cohort {switches} {how}".rstrip(), size, ready)
    if kept and "graphs" in switches:
        bench.engine(
            model,
            f"cohort {switches} {how}, host to host",
            size,
            lambda row: partial(kept["cohort"].updates, made.weights, members),
        )


class TorchMlp(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(-3),
            torch.nn.Linear(784, 200),
            torch.nn.ReLU(),
            torch.nn.Linear(200, 200),
            torch.nn.ReLU(),
            torch.nn.Linear(200, CLASSES),
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class TorchCnn(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 5, padding=2),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(32, 64, 5, padding=2),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(-3),
            torch.nn.Linear(3136, 512),
            torch.nn.ReLU(),
            torch.nn.Linear(512, CLASSES),
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def peers(bench: Bench, model: str, size: int) -> None:
    """torch.func's vmap over stacked models, and a loop over devices."""
    net = (TorchMlp if model == "mlp" else TorchCnn)().to(bench.device)
    start = {k: v.detach() for k, v in net.named_parameters()}
    rng = np.random.default_rng(0)
    images = rng.normal(size=(size, STEPS, BATCH, 1, 28, 28)).astype(np.float32)
    x = torch.from_numpy(images).to(bench.device)
    y = torch.from_numpy(rng.integers(0, CLASSES, (size, STEPS, BATCH))).to(bench.device)

    def loss(weights: Any, x: Any, y: Any) -> Any:
        out = torch.func.functional_call(net, weights, (x,))
        return torch.nn.functional.cross_entropy(out, y)

    slopes = torch.func.vmap(torch.func.grad(loss))

    def together() -> Any:
        weights = {k: v.expand(size, *v.shape) for k, v in start.items()}
        for step in range(STEPS):
            g = slopes(weights, x[:, step], y[:, step])
            weights = {k: v - RATE * g[k] for k, v in weights.items()}
        return {k: v - start[k] for k, v in weights.items()}

    one = torch.func.grad(loss)

    def in_turn() -> Any:
        for device in range(few):
            weights = dict(start)
            for step in range(STEPS):
                g = one(weights, x[device, step], y[device, step])
                weights = {k: v - RATE * g[k] for k, v in weights.items()}
        return weights

    def plain() -> Any:
        for device in range(few):
            net.load_state_dict(start)
            optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
            for step in range(STEPS):
                optimiser.zero_grad()
                out = net(x[device, step])
                torch.nn.functional.cross_entropy(out, y[device, step]).backward()
                optimiser.step()

    few = min(size, 8)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        bench.engine(model, "torch.func vmap, tf32", size, lambda row: together)
        bench.engine(model, "torch.func grad, a loop, tf32", few, lambda row: in_turn)
        bench.engine(model, "eager torch, a loop, tf32", few, lambda row: plain)
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False


def tags(device: str, model: str) -> list[str]:
    """Quick ones to make ready first."""
    if device == "cpu":
        return ["", "+bf16"] + ([" grouped"] if model == "cnn" else [])
    if not device.startswith("cuda"):
        return ["", "+bf16", "+bf16+compile"]
    found = ["", "+tf32+graphs", "+bf16+graphs", "+tf32+compile+graphs", "+bf16+compile+graphs"]
    return found + (["+tf32+graphs grouped", "+bf16+compile+graphs grouped"] * (model == "cnn"))


def best_of(rows: list[Row], model: str) -> float:
    """Updates a second of the fastest cohort program on tensors that are on the device."""
    ours = [r for r in rows if r.model == model and r.engine.startswith("cohort")]
    return max((r.updates_per_s or 0.0 for r in ours if "host" not in r.engine), default=0.0)


def name_of(device: str) -> str:
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return platform.processor() or platform.machine()


def sizes_of(given: argparse.Namespace, model: str, tag: str) -> list[int]:
    """A compiler is asked for the largest cohort alone: each size takes it up to a minute."""
    usual = SIZES["cpu" if given.device == "cpu" else "gpu"][model]
    sizes = [int(s) for s in given.sizes.split(",")] if given.sizes else list(usual)
    return sizes[-1:] if "compile" in tag else sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, npu or cpu")
    parser.add_argument("--models", default="cnn,mlp")
    parser.add_argument("--sizes", help="devices in a cohort, instead of the usual ones: 64,256")
    parser.add_argument("--tags", help="instead of the usual ones: ',+bf16,+bf16+compile grouped'")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each engine runs")
    parser.add_argument("--budget", type=float, default=420.0, help="no engine goes on after that")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    models = given.models.split(",")
    try:
        compile_torch({}, f"torch:{given.device}")  # whether there is such a device
    except DelianError as error:
        raise SystemExit(str(error)) from None
    bench = Bench(given, models)
    for model in models:
        bench.part(model, "peers", partial(peers, bench, model, bench.largest(model)))
    found = given.tags.split(",") if given.tags is not None else None
    wanted = {m: tags(given.device, m) if found is None else found for m in models}
    # What is quick to make ready comes first, of all models.
    every = dict.fromkeys(t for of in wanted.values() for t in of)
    for tag in sorted(every, key=lambda t: "compile" in t):
        for model in models:
            if tag in wanted[model]:
                for size in sizes_of(given, model, tag):
                    job = partial(ours, bench, model, size, tag)
                    bench.part(model, f"cohort {tag}".rstrip(), job)
    for model, target in bench.result()["targets"].items():
        print(f"{model}: {target['updates_per_s']:,.0f} of {target['goal']:,.0f} updates/s")


if __name__ == "__main__":
    main()
