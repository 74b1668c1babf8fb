"""Judges the vocabulary's cases by JAX: values and derivatives of the first three orders, in f64.

    python tests/judges/jax_table.py [BASIC] [SMOOTH]

Needs JAX. Each differentiable case of `tests/support/vocabulary_cases.py`, `BASIC` (the
primitives) and `SMOOTH` (all else), is run with `jax.numpy` in NumPy's place. Along a line through
its operands the result is a function of one number t: its derivatives at 0 by `dl.grad` of
`dl.grad` of `dl.grad` on the reference back end, against JAX's nested forward mode. They agree when
they differ by less than 1e-9 of the largest of the orders.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import delian as dl
import jax
import jax.numpy as jnp
import numpy as np

TOLERANCE = 1e-9
ORDERS = ("value", "first", "second", "third")
_CASES = Path(__file__).parents[1] / "support" / "vocabulary_cases.py"


def table() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("vocabulary_cases", _CASES)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_jax(f: Any) -> Any:
    """The same code with jax.numpy for np."""
    return types.FunctionType(f.__code__, {**f.__globals__, "np": jnp}, f.__name__, f.__defaults__)


def scalar(values: Any) -> Any:
    y = np.ravel(values)
    return np.sum(y * np.cos(np.arange(np.size(y))))


def line(f: Any, operands: Any, directions: Any) -> Callable[[Any], Any]:
    def along(t: Any) -> Any:
        moved = [x + t * v for x, v in zip(operands, directions, strict=True)]
        return scalar(f(*moved))

    return along


def ours(f: Any, operands: Any, directions: Any) -> list[float]:
    g = line(f, operands, directions)

    def orders(t: Any) -> Any:
        first = dl.grad(g)
        second = dl.grad(lambda t: first(t))
        third = dl.grad(lambda t: second(t))
        return g(t), first(t), second(t), third(t)

    return [float(v) for v in dl.compile(orders, backend="reference")(0.0)]


def jaxs(f: Any, operands: Any, directions: Any) -> list[float]:
    plain = in_jax(scalar)
    call = in_jax(f)

    def g(t: Any) -> Any:
        return plain(call(*[x + t * v for x, v in zip(operands, directions, strict=True)]))

    out, h = [], g
    for _ in ORDERS:
        out.append(float(h(0.0)))
        h = jax.jacfwd(h)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lists", nargs="*", default=["BASIC", "SMOOTH"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    cases = table()
    arrays = cases.arrays(np.float64)
    rng = np.random.default_rng(3)
    tried, agree, failures = 0, [0] * len(ORDERS), []
    functions = [f for name in options.lists for f in getattr(cases, name)]
    for f in functions:
        names = list(inspect.signature(f).parameters)
        operands = [arrays[n] for n in names]
        directions = [rng.normal(size=x.shape) for x in operands]
        directions = [v + v.T if n == "a" else v for n, v in zip(names, directions, strict=True)]
        text = inspect.getsource(f).strip().rstrip(",")
        try:
            want = jaxs(f, operands, directions)
        except Exception as e:  # Whatever JAX has not is no judge.
            failures.append((text, f"JAX: {type(e).__name__}: {str(e).splitlines()[0][:90]}"))
            continue
        tried += 1
        got = ours(f, operands, directions)
        scale = max(1.0, *(abs(v) for v in want if np.isfinite(v)))
        good = [
            bool(np.isclose(g, w, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True))
            for g, w in zip(got, want, strict=True)
        ]
        agree = [n + k for n, k in zip(agree, good, strict=True)]
        if not all(good):
            bad = ", ".join(o for o, k in zip(ORDERS, good, strict=True) if not k)
            failures.append((text, f"{bad}: {got} and {want}"))
        print(good, text[:100], flush=True)
    counts = ", ".join(f"{o} {n}" for o, n in zip(ORDERS, agree, strict=True))
    print(
        f"JAX {jax.__version__}: {tried} of {len(functions)} cases run in JAX too. "
        f"Agree to 1e-9: {counts}."
    )
    for text, why in failures:
        print(f"- `{text}`: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
