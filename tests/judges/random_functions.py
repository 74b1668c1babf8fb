"""Judges random programs by JAX and torch: values and three orders of derivatives, in f64.

    python tests/judges/random_functions.py [PROGRAMS]

Needs JAX and torch. The programs are those of `random_sources.py`: Python
with branches, loops of unknown length, escapes, closures, choices among functions and recursion.
JAX and torch run them as Python, eagerly, with their own functions in NumPy's place; Delian
compiles them. Along a line through its operands a program is a function of one number t: its
derivatives at 0 by `dl.grad` of `dl.grad` of `dl.grad` against nested `jax.jvp` and nested
`torch.autograd.grad`. They agree when they differ by less than 1e-9 of the largest of the orders.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import delian as dl
import jax
import jax.numpy as jnp
import numpy as np
import torch

TOLERANCE = 1e-9
ORDERS = ("value", "first", "second", "third")
WEIGHTS = (1.0, 0.7, 0.3)
#: (x, y), the direction in which both move, and n.
LINES = (((0.3, -0.2), (1.0, 0.4), 2), ((-0.9, 0.7), (0.3, -0.8), 0), ((0.05, 0.11), (0.6, 1.0), 5))
_PROGRAMS = Path(__file__).with_name("random_sources.py")


def module_of(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TorchNumPy:
    """NumPy's names, as far as the programs go, on 0-d tensors of f64."""

    @staticmethod
    def tanh(x: Any) -> Any:
        return torch.tanh(torch.as_tensor(x, dtype=torch.float64))

    @staticmethod
    def sin(x: Any) -> Any:
        return torch.sin(torch.as_tensor(x, dtype=torch.float64))

    @staticmethod
    def where(test: Any, a: Any, b: Any) -> Any:
        kind = torch.float64
        chosen = torch.as_tensor(a, dtype=kind), torch.as_tensor(b, dtype=kind)
        return torch.where(torch.as_tensor(test), *chosen)


def line(f: Any, start: Any, direction: Any, n: int) -> Callable[[Any], Any]:
    """The program's floats along a line, as one number."""

    def along(t: Any) -> Any:
        x, y, z, _, _ = f(start[0] + t * direction[0], start[1] + t * direction[1], n)
        return WEIGHTS[0] * x + WEIGHTS[1] * y + WEIGHTS[2] * z

    return along


def ours(f: Any, start: Any, direction: Any, n: int) -> list[float]:
    def g(t: Any, count: Any) -> Any:
        x, y, z, _, _ = f(start[0] + t * direction[0], start[1] + t * direction[1], count)
        return WEIGHTS[0] * x + WEIGHTS[1] * y + WEIGHTS[2] * z

    def orders(t: Any, count: Any) -> Any:
        first = dl.grad(lambda t: g(t, count))
        second = dl.grad(lambda t: first(t))
        third = dl.grad(lambda t: second(t))
        return g(t, count), first(t), second(t), third(t)

    run = dl.compile(orders, backend="reference")
    return [float(v) for v in run(np.float64(0.0), np.int64(n))]


def jaxs(f: Any, start: Any, direction: Any, n: int) -> list[float]:
    def forward(h: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda t: jax.jvp(lambda s: jnp.asarray(h(s), jnp.float64), (t,), (1.0,))[1]

    out, h = [], line(f, start, direction, n)
    for _ in ORDERS:
        out.append(float(h(0.0)))
        h = forward(h)
    return out


def torchs(f: Any, start: Any, direction: Any, n: int) -> list[float]:
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value = torch.as_tensor(line(f, start, direction, n)(t), dtype=torch.float64)
    out = [float(value.detach())]
    for _ in ORDERS[1:]:
        slope = None
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value, t, create_graph=True, allow_unused=True)
        value = torch.zeros((), dtype=torch.float64) if slope is None else slope
        out.append(float(value.detach()))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="?", type=int, default=200)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    writer = module_of(_PROGRAMS).Writer
    judges = {"JAX": (jaxs, jnp), "torch": (torchs, TorchNumPy)}
    tried = dict.fromkeys(judges, 0)
    agree = {name: [0] * len(ORDERS) for name in judges}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.programs):
            path = Path(folder) / f"judged_{seed}.py"
            path.write_text(writer(10_000 + seed).function())
            program = module_of(path)
            for start, direction, n in LINES:
                program.np = np
                got = ours(program.f, start, direction, n)
                for name, (judge, namespace) in judges.items():
                    program.np = namespace
                    want = judge(program.f, start, direction, n)
                    tried[name] += 1
                    scale = TOLERANCE * max(1.0, *map(abs, want))
                    good = [
                        bool(np.isclose(a, b, rtol=TOLERANCE, atol=scale))
                        for a, b in zip(got, want, strict=True)
                    ]
                    agree[name] = [a + b for a, b in zip(agree[name], good, strict=True)]
                    if not all(good):
                        print(f"{name}, program {10_000 + seed}, n={n}: {got} and {want}")
    for name in judges:
        counts = ", ".join(f"{o} {k}" for o, k in zip(ORDERS, agree[name], strict=True))
        print(f"{name}: {tried[name]} runs of {options.programs} programs. Agree: {counts}.")
    whole = all(k == tried[name] for name in judges for k in agree[name])
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
