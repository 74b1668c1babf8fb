"""What the language costs: from source to IR, a loop's compilation, derivatives of derivatives.

    python benchmarks/language.py [--json] [--jax PYTHON]

Figures and their targets:

    cnn          source to optimised IR of a training step of the FedAvg CNN       <= 0.3 s
    nested       compile time of nested loops over a list of 100 lists of 100      <= 2 s
    product      compile time of the product of two lists of 60 lists of 60        <= 5 s
    trips        compile time of a loop of 100,000 trips over that of 10           <= 1.5
    growth       operations of each derivative of a `while` over the one before it <= 4
    scalar_loop  the gradient of a loop of 1,000 trips over one number, natively:
                 times faster than plain Python with a tape of its own             >= 100
                 over jax.grad of lax.fori_loop (with --jax)                       <= 3

The gradient that somebody derived by hand and wrote out in Python, on NumPy's numbers and on plain
floats, is measured too, without a target: it is no longer the function's own program.

Compilation is measured in processor time, the least of several runs. The CNN's is the first of a
process, its source unread and the compiler not yet imported, with the bytecode that an installed
package has. Lists are compiled natively, the C compiler included. The scalar loop is measured in
time of the clock, since it takes microseconds, as the least of many calls. `--jax` names a Python
that has JAX, which runs the same loop, jitted, in float64 and on one thread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
from delian.core.compiler.ir import count_ops
from delian.core.learning import nn

TRIPS = 1000
CNN_SECONDS_MAX = 0.3
NESTED_SECONDS_MAX = 2.0
PRODUCT_SECONDS_MAX = 5.0
TRIPS_RATIO_MAX = 1.5
GROWTH_MAX = 4.0
PYTHON_TIMES_MIN = 100.0
JAX_RATIO_MAX = 3.0

JAX = """
import json, time
import jax
jax.config.update("jax_enable_x64", True)
from jax import lax
import jax.numpy as jnp
def f(x):
    return lax.fori_loop(0, %d, lambda i, x: x + 0.01 * (3.0 * x * (1.0 - x) - x * x), x)
g = jax.jit(jax.grad(f))
x = jnp.float64(0.3)
g(x).block_until_ready()
best = 1e9
for _ in range(300):
    start = time.perf_counter()
    g(x).block_until_ready()
    best = min(best, time.perf_counter() - start)
print(json.dumps([float(g(x)), best, jax.__version__]))
"""


def least(run: Callable[[], Any], times: int, clock: Callable[[], float]) -> float:
    best = math.inf
    for _ in range(times):
        start = clock()
        run()
        best = min(best, clock() - start)
    return best


def cnn_in_processes() -> dict[str, float]:
    """`cnn_seconds` of fresh processes; the first of them writes the bytecode for the others."""
    runs = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(4):
            done = subprocess.run(
                [sys.executable, __file__, "--cnn-only"],
                capture_output=True,
                text=True,
                check=True,
                env=environment,
                timeout=300,
            )
            runs.append(json.loads(done.stdout))
    return {name: min(run[name] for run in runs[1:]) for name in runs[0]}


def cnn_seconds() -> dict[str, float]:
    """From source to optimised IR of a step of SGD: forward, loss, backward, update."""
    model = nn.FedAvgCnn.init(dl.random.key(0), 28, 28, 1, 10)
    images, labels = np.zeros((10, 28, 28, 1), np.float32), np.zeros(10, np.int32)
    weight = np.ones(10, np.float32)

    def step(model: Any, images: Any, labels: Any) -> Any:
        def loss(model: Any) -> Any:
            return np.mean(dl.ops.cross_entropy(model(images, weight), labels))

        value, gradient = dl.value_and_grad(loss)(model)
        return value, dl.tree.map(lambda w, g: w - 0.1 * g, model, gradient)

    start = time.process_time()
    traced = dl.trace(step, model, images, labels)
    first = time.process_time() - start
    again = least(lambda: dl.trace(step, model, images, labels), 5, time.process_time)
    return {"first": first, "seconds": again, "operations": count_ops(traced.function.body)}


def lists() -> dict[str, float]:
    """Loops over lists of lists of floats, compiled natively."""

    def nested(a: list[list[float]]) -> float:
        total = 0.0
        for row in a:
            for x in row:
                total += x * x
        return total

    def product(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
        return [
            [sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))]
            for i in range(len(a))
        ]

    def rows(count: int) -> list[list[float]]:
        return np.random.default_rng(0).normal(size=(count, count)).tolist()

    def seconds(f: Callable[..., Any], *given: Any) -> float:
        return least(lambda: dl.compile(f, backend="native")(*given), 3, processor_time)

    return {"nested": seconds(nested, rows(100)), "product": seconds(product, rows(60), rows(60))}


def processor_time() -> float:
    """Seconds, those of child processes (the C compiler) included."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def trips() -> dict[str, float]:
    """The time that `dl.grad` of a loop takes to compile, whatever its length."""

    def compiled(count: int) -> float:
        def f(x: Any) -> Any:
            for i in range(count):
                x = np.where(x > 2.0, x / 2.0, np.sin(x) + i * 0.1)
            return x

        return least(lambda: dl.trace(dl.grad(f), np.float64(0.5)), 20, time.process_time)

    few, many = compiled(10), compiled(100_000)
    return {"few": few, "many": many, "ratio": many / few}


def growth() -> dict[str, Any]:
    """Operations of derivatives of a loop of unknown length with a branch in it."""

    def f(x: Any) -> Any:
        while x < 30.0:
            if x > 3.0:
                x = x * np.exp(0.1 * x)
            else:
                x = x * x + 0.5
        return np.sin(x)

    sizes, g = [], f
    for _ in range(5):
        sizes.append(count_ops(dl.trace(g, np.float64(1.1)).function.body))
        g = dl.grad(g)
    ratios = [b / a for a, b in itertools.pairwise(sizes)]
    return {"operations": sizes, "ratios": ratios, "worst": max(ratios)}


def scalar_loop(jax: str | None) -> dict[str, Any]:
    def f(x: Any) -> Any:
        for _ in range(TRIPS):
            x = x + 0.01 * (3.0 * x * (1.0 - x) - x * x)
        return x

    gradient = dl.compile(dl.grad(f))
    x = np.float64(0.3)
    value = float(gradient(x))
    assert math.isclose(value, float(by_hand(x)), rel_tol=1e-9)
    out: dict[str, Any] = {"native": least(lambda: gradient(x), 300, time.perf_counter)}
    out["numpy"] = least(lambda: by_hand(x), 5, time.perf_counter)
    out["floats"] = least(lambda: by_hand(0.3), 5, time.perf_counter)
    assert math.isclose(value, by_tape(f, 0.3), rel_tol=1e-9)
    out["tape"] = least(lambda: by_tape(f, 0.3), 5, time.perf_counter)
    for other in ("tape", "numpy", "floats"):
        out[f"times_faster_than_{other}"] = out[other] / out["native"]
    if jax is not None:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        environment = {**os.environ, "XLA_FLAGS": flags}
        command = [jax, "-c", JAX % TRIPS]
        run = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, timeout=300
        )
        theirs, seconds, version = json.loads(run.stdout.splitlines()[-1])
        assert math.isclose(value, theirs, rel_tol=1e-9)
        out |= {"jax": seconds, "jax_version": version, "over_jax": out["native"] / seconds}
    return out


def by_hand(x: Any) -> Any:
    """The gradient in plain Python, on Python's or NumPy's numbers."""
    kept = []
    for _ in range(TRIPS):
        kept.append(x)
        x = x + 0.01 * (3.0 * x * (1.0 - x) - x * x)
    gradient = x * 0 + 1.0
    for x in reversed(kept):
        gradient = gradient * (1.0 + 0.01 * (3.0 * (1.0 - x) - 3.0 * x - 2.0 * x))
    return gradient


class Taped:
    """A number that remembers what it was made of: reverse mode in a few lines of Python."""

    __slots__ = ("gradient", "parents", "value")

    def __init__(self, value: float, *parents: tuple[Taped, float]) -> None:
        self.value = value
        self.parents = parents
        self.gradient = 0.0

    def __add__(self, other: Taped) -> Taped:
        return Taped(self.value + other.value, (self, 1.0), (other, 1.0))

    def __sub__(self, other: Taped) -> Taped:
        return Taped(self.value - other.value, (self, 1.0), (other, -1.0))

    def __rsub__(self, other: float) -> Taped:
        return Taped(other - self.value, (self, -1.0))

    def __mul__(self, other: Taped) -> Taped:
        return Taped(self.value * other.value, (self, other.value), (other, self.value))

    def __rmul__(self, other: float) -> Taped:
        return Taped(other * self.value, (self, other))


def by_tape(f: Callable[..., Any], x: float) -> float:
    """The gradient of the very same function, run in Python."""
    leaf = Taped(x)
    order: list[Taped] = []
    seen: set[int] = set()
    last = f(leaf)
    stack = [(last, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(parent, False) for parent, _ in node.parents]
    last.gradient = 1.0
    for node in reversed(order):
        for parent, slope in node.parents:
            parent.gradient += slope * node.gradient
    return leaf.gradient


def targets(figures: dict[str, Any]) -> list[dict[str, Any]]:
    loop = figures["scalar_loop"]
    found = [
        ("cnn", CNN_SECONDS_MAX, figures["cnn"]["first"]),
        ("nested", NESTED_SECONDS_MAX, figures["lists"]["nested"]),
        ("product", PRODUCT_SECONDS_MAX, figures["lists"]["product"]),
        ("trips", TRIPS_RATIO_MAX, figures["trips"]["ratio"]),
        ("growth", GROWTH_MAX, figures["growth"]["worst"]),
    ]
    if "over_jax" in loop:
        found.append(("scalar_loop over jax", JAX_RATIO_MAX, loop["over_jax"]))
    out = [{"name": n, "goal": g, "measured": m, "met": m <= g} for n, g, m in found]
    times = loop["times_faster_than_tape"]
    met = times >= PYTHON_TIMES_MIN
    name = "scalar_loop, times faster than a tape"
    return [*out, {"name": name, "goal": PYTHON_TIMES_MIN, "measured": times, "met": met}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--jax", help="a Python with JAX, to compare with")
    parser.add_argument("--cnn-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cnn_only:
        print(json.dumps(cnn_seconds()))
        return 0
    figures: dict[str, Any] = {
        "cnn": cnn_in_processes(),
        "lists": lists(),
        "trips": trips(),
        "growth": growth(),
        "scalar_loop": scalar_loop(args.jax),
        "load": os.getloadavg()[0],
    }
    goals = targets(figures)
    if args.json:
        print(json.dumps({"figures": figures, "targets": goals}, indent=1))
    else:
        for name, values in figures.items():
            print(name, values)
        for goal in goals:
            print(goal)
    return 0 if all(goal["met"] for goal in goals) else 1


if __name__ == "__main__":
    raise SystemExit(main())
