"""Gradients of loops that change arrays in place: exact, and with work in what is read and written.

Forward mode is the oracle: it saves nothing, and shares no rule with what is tested here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import Function, ListType, TensorType

_SPEC = importlib.util.spec_from_file_location(
    "delian_in_place_kernels", Path(__file__).parents[3] / "benchmarks/in_place_kernels.py"
)
assert _SPEC is not None and _SPEC.loader is not None
kernels: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(kernels)

SIDE = 6
RNG = np.random.default_rng(5)
SQUARE = RNG.uniform(0.5, 1.5, (SIDE, SIDE))
VECTOR = RNG.uniform(0.5, 1.5, SIDE)


def loss_of(name: str, size: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The sum of the squares of what a kernel gives, by its floats alone."""
    kernel, given = kernels.KERNELS[name], kernels.arguments(name, size)
    if name == "lu_pivoted":

        def loss(*args: Any) -> Any:
            factors, _ = kernel(*args)
            return np.sum(factors * factors)
    elif name == "heat":
        given = given[:1]

        def loss(*args: Any) -> Any:
            out = kernel(args[0] * args[0], 3)
            return np.sum(out * out)
    else:

        def loss(*args: Any) -> Any:
            out = kernel(*args)
            return np.sum(out * out)

    return loss, given


def powers(x: Any) -> Any:
    """One array, each element of which is read and changed many times."""
    x = x.copy()
    for i in range(1, SIDE):
        for j in range(SIDE):
            x[j] = x[j] * x[i - 1] + 0.1 * x[i]
    return np.sum(x * x)


def branches(x: Any) -> Any:
    """Branches that read, that change, and that hold loops."""
    y = x.copy()
    for i in range(1, SIDE):
        if y[i] > y[i - 1]:
            y[i] *= y[i - 1]
        elif y[i] > 0.9:
            for j in range(i):
                y[j] += y[i] * y[j]
        else:
            y[i - 1] = np.sin(y[i])
    return np.sum(y * y)


def early_exit(x: Any) -> Any:
    """A `while` and a `break`: trips that depend on the elements."""
    y = x.copy()
    k = 0
    while y[0] < 40.0:
        for i in range(SIDE):
            if y[i] > 30.0:
                break
            y[i] = y[i] * y[(i + k) % SIDE] + 1.0
        k += 1
    return np.sum(y * y)


def moved(x: Any) -> Any:
    """Places that the elements decide."""
    y = x.copy()
    for i in range(SIDE):
        at = 0
        for j in range(SIDE):
            if y[j] > y[at]:
                at = j
        y[at] = y[at] * y[i] * 0.4
        y[i] += np.sqrt(y[at])
    return np.sum(y * y)


def swapped(x: Any) -> Any:
    """Two buffers that take turns."""
    a, b = x.copy(), x * 2.0
    for _ in range(4):
        for i in range(1, SIDE):
            b[i] = a[i] * a[i - 1]
        a, b = b, a
    return np.sum(a * b)


def whole_and_part(x: Any) -> Any:
    """Each round needs the whole array, and changes an element."""
    y = x.copy()
    for i in range(SIDE):
        y[i] = np.sum(y * y) * 0.1
        y = y * y[i]
    return np.sum(y)


def rows(x: Any) -> Any:
    """Rows are read and changed."""
    y = np.outer(x, x)
    for i in range(1, SIDE):
        y[i] = y[i] * y[i - 1] + y[0]
        y[:, i] *= y[i, i]
    return np.sum(y * y)


PROGRAMS: list[Callable[[Any], Any]] = [
    *(powers, branches, early_exit, moved, swapped, whole_and_part, rows)
]


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", sorted(kernels.KERNELS))
def test_kernels_against_forward_mode(name: str, backend: Any) -> None:
    loss, given = loss_of(name, SIDE if name != "kalman" else 2)
    every = tuple(range(len(given)))
    got = dl.compile(dl.grad(loss, argnums=every), backend=backend)(*given)
    want = dl.compile(dl.jacfwd(loss, argnums=every), backend=backend)(*given)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", sorted(kernels.KERNELS))
def test_kernels_against_differences(name: str) -> None:
    loss, given = loss_of(name, SIDE if name != "kalman" else 2)
    got = dl.compile(dl.grad(loss))(*given)
    run, step = dl.compile(loss), 1e-6
    for at in np.ndindex(given[0].shape):
        low, high = given[0].copy(), given[0].copy()
        low[at] -= step
        high[at] += step
        want = (run(high, *given[1:]) - run(low, *given[1:])) / (2 * step)
        np.testing.assert_allclose(got[at], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("f", PROGRAMS)
def test_programs_against_forward_mode(f: Any, backend: Any, dtype: Any) -> None:
    x = VECTOR.astype(dtype)
    got = dl.compile(dl.grad(f), backend=backend)(x)
    want = dl.compile(dl.jacfwd(f), backend="reference")(x)
    close = 1e-10 if dtype is np.float64 else 2e-4
    np.testing.assert_allclose(got, want, rtol=close, atol=close)


@pytest.mark.parametrize("f", PROGRAMS)
def test_second_derivatives(f: Any) -> None:
    """Reverse over reverse, and forward over reverse."""
    want = dl.compile(dl.jacfwd(dl.jacfwd(f)), backend="reference")(VECTOR)
    for other in (dl.jacrev, dl.jacfwd):
        got = dl.compile(other(dl.grad(f)))(VECTOR)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_third_derivatives() -> None:
    want = dl.compile(dl.jacfwd(dl.jacfwd(dl.jacfwd(powers))), backend="reference")(VECTOR)
    got = dl.compile(dl.jacrev(dl.jacrev(dl.grad(powers))))(VECTOR)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("f", PROGRAMS)
def test_lanes(f: Any) -> None:
    many = RNG.uniform(0.5, 1.5, (3, SIDE))
    got = dl.compile(dl.vmap(dl.grad(f)))(many)
    want = [dl.compile(dl.grad(f))(x) for x in many]
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_complex_elements() -> None:
    def loss(x: Any) -> Any:
        z = x + 1j * x[::-1]
        for i in range(1, SIDE):
            z[i] = z[i] * z[i - 1]
        return np.sum(np.abs(z) ** 2)

    got = dl.compile(dl.grad(loss))(VECTOR)
    np.testing.assert_allclose(got, dl.compile(dl.jacfwd(loss))(VECTOR), rtol=1e-10)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_numbers_of_rounds(backend: Any) -> None:
    """Fixed, one less each time, from an argument, and none at all."""

    def loss(x: Any, n: Any) -> Any:
        y = np.outer(x, x)
        for i in range(SIDE):
            for j in range(i + 1, SIDE):
                y[i, j] = y[i, j] * y[j, i]
            for j in range(i - 1, i + 2):
                if 0 <= j < SIDE:
                    y[j, i] = np.sin(y[i, j])
            for j in range(n):
                y[i, j] *= y[j, j]
            for j in range(i + 2, i):
                y[i, j] = 7.0
        return np.sum(y * y)

    for n in (0, 2, SIDE):
        got = dl.compile(dl.grad(loss), backend=backend)(VECTOR, np.int64(n))
        want = dl.compile(dl.jacfwd(loss), backend="reference")(VECTOR, np.int64(n))
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


# -- what it costs

#: What changes an array where it lies, or names it.
_IN_PLACE = {"dynamic_update", "put_add", "reshape", "for", "while", "if"}


def kept_sizes(function: Function) -> list[int]:
    """The numbers that are kept at once: those at the bottom of each list."""
    types = [r.type for op in function.body.walk() for r in op.results]
    sizes = []
    for type_ in types:
        if isinstance(type_, ListType):
            while isinstance(type_, ListType):
                type_ = type_.element
            sizes.append(type_.size)
    return sizes


def in_loops(function: Function) -> list[Any]:
    """The operations within loops."""
    loops = [op for op in function.body.ops if op.name in ("for", "while")]
    return [inner for op in loops for region in op.regions for inner in region.walk()]


@pytest.mark.parametrize("name", sorted(kernels.KERNELS))
def test_kernels_do_no_work_in_the_size_of_an_array(name: str) -> None:
    side = 7
    loss, given = loss_of(name, side * side if name == "insertion_sort" else side)
    floats = tuple(range(len(given)))
    function = trace(dl.grad(loss, argnums=floats), *(TensorType.of(a) for a in given)).function
    inside = in_loops(function)
    dense = [
        op.name
        for op in inside
        for r in op.results
        if isinstance(r.type, TensorType) and r.type.size >= side * side
    ]
    assert set(dense) <= _IN_PLACE


@pytest.mark.parametrize("name", ["floyd_warshall", "lu", "lu_pivoted"])
@pytest.mark.parametrize("side", [8, 17])
def test_what_is_kept_at_once_is_no_more_than_a_loop_reads(name: str, side: int) -> None:
    """At most a number for each round of an innermost loop, and no array of n * n."""
    loss, given = loss_of(name, side)
    kept = kept_sizes(trace(dl.grad(loss), *(TensorType.of(a) for a in given)).function)
    assert kept
    assert max(kept) <= side


def test_a_checkpoint_runs_segments_again() -> None:
    """It keeps the array for each segment, and no element that a segment reads."""

    def loss(x: Any) -> Any:
        y = x.copy()
        for i in range(1, 1000):
            y[i % SIDE] = np.sin(y[(i - 1) % SIDE])
        return np.sum(y)

    plain, saving = dl.grad(loss), dl.grad(dl.checkpoint(loss))
    np.testing.assert_allclose(dl.compile(saving)(VECTOR), dl.compile(plain)(VECTOR), rtol=1e-12)
    outer = [op for op in trace(saving, TensorType.of(VECTOR)).function.body.ops if op.regions]
    lists = [r.type for op in outer for r in op.results if isinstance(r.type, ListType)]
    assert not any(isinstance(t.element, ListType) for t in lists)
