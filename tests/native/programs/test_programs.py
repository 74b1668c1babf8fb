"""Whole programs: compiled they give what they give as plain Python on NumPy, and their gradients
are those of finite differences, on both back ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.backends import compile_module
from delian.core.compiler.backends.native.toolchain.toolchain import find
from delian.core.compiler.backends.reference import ReferenceProgram
from delian.core.compiler.traced import Traced
from delian.core.compiler.verify import verify

STEP = 1e-6


def differentiable(program: Any) -> Callable[..., Any]:
    """The program as a loss: (one number made of all its floats, its own result)."""
    results = dl.tree.leaves(program.function(*program.args))
    floats = [k for k, r in enumerate(results) if np.asarray(r).dtype == np.float64]
    weights = [np.cos(1.0 + k + np.arange(np.size(r))) for k, r in enumerate(results)]
    function = program.function

    def loss(*args: Any) -> Any:
        result = function(*args)
        leaves = dl.tree.leaves(result)
        flat = [np.reshape(leaves[k], (-1,)) for k in floats]
        return sum(np.sum(x * weights[k]) for k, x in zip(floats, flat, strict=True)), result

    return loss


def traced(program: Any) -> Traced:
    """One IR function of the program's result and, where it has one, its gradient."""
    if not program.wrt:
        return dl.trace(program.function, *program.args)
    loss = differentiable(program)
    return dl.trace(dl.value_and_grad(loss, argnums=program.wrt, has_aux=True), *program.args)


def run(program: Any, compiled: Any, trace: Traced) -> tuple[Any, Any]:
    """(result, gradients or None)"""
    given = [np.asarray(a) for a in trace.arguments(*program.args)]
    out = trace.result(compiled(*given))
    return (out[0][1], out[1]) if program.wrt else (out, None)


def close(got: Any, want: Any, rtol: float, atol: float) -> None:
    xs, structure = dl.tree.flatten(got)
    ys, expected = dl.tree.flatten(want)
    assert structure == expected
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_allclose(x, np.asarray(y), rtol=rtol, atol=atol)


def derivative_along(program: Any, direction: Any) -> float:
    loss = differentiable(program)

    def at(step: float) -> float:
        args = list(program.args)
        for k, d in zip(program.wrt, direction, strict=True):
            args[k] = dl.tree.map(lambda x, v: x + step * v, args[k], d)
        return float(loss(*args)[0])

    return (at(STEP) - at(-STEP)) / (2 * STEP)


def test_a_program_is_what_it_is_in_python_and_its_gradient_what_it_measures(program: Any) -> None:
    trace = traced(program)
    verify(trace.function)
    result, gradients = run(program, ReferenceProgram(trace.function), trace)
    close(result, program.function(*program.args), 1e-9, 1e-10)
    if not program.wrt:
        return
    rng = np.random.default_rng(0)
    for _ in range(2):
        direction = dl.tree.map(lambda g: rng.normal(size=np.shape(g)), gradients)
        pairs = zip(dl.tree.leaves(gradients), dl.tree.leaves(direction), strict=True)
        slope = sum(float(np.sum(g * d)) for g, d in pairs)
        measured = derivative_along(program, direction)
        assert slope == pytest.approx(measured, rel=2e-5, abs=2e-5)


def test_lanes_are_what_each_of_them_is_alone(program: Any) -> None:
    """`vmap` over the first argument that is differentiated, or the first of all."""
    lanes, first = 3, program.wrt[0] if program.wrt else 0

    def spread(x: Any) -> Any:
        scale = [1.0, 1.03, 0.98] if np.asarray(x).dtype == np.float64 else [1] * lanes
        return np.stack([x * np.asarray(k, np.asarray(x).dtype) for k in scale])

    args = list(program.args)
    args[first] = dl.tree.map(spread, args[first])
    axes = tuple(0 if k == first else None for k in range(len(args)))
    trace = dl.trace(dl.vmap(program.function, axes), *args)
    got = trace.result(
        ReferenceProgram(trace.function)(*(np.asarray(a) for a in trace.arguments(*args)))
    )
    for k in range(lanes):
        own = [*program.args]
        own[first] = dl.tree.map(lambda x, k=k: x[k], args[first])
        close(dl.tree.map(lambda x, k=k: x[k], got), program.function(*own), 1e-9, 1e-10)


@pytest.mark.slow
def test_second_derivatives_are_those_that_the_first_measures(program: Any) -> None:
    """The Hessian times a vector, forward over reverse, beside differences of the gradient."""
    if not program.wrt:
        pytest.skip("it has no derivative")
    loss, wrt = differentiable(program), program.wrt

    def gradient(*moving: Any) -> Any:
        args = list(program.args)
        for k, x in zip(wrt, moving, strict=True):
            args[k] = x
        return dl.grad(lambda *a: loss(*a)[0], argnums=wrt)(*args)

    at = tuple(program.args[k] for k in wrt)
    rng = np.random.default_rng(1)
    along = dl.tree.map(lambda x: rng.normal(size=np.shape(x)), at)
    second = dl.compile(lambda x, v: dl.jvp(gradient, x, v)[1], backend="reference")
    first = dl.compile(lambda x: gradient(*x), backend="reference")
    got = dl.tree.leaves(second(at, along))
    ahead, behind = (
        dl.tree.leaves(first(dl.tree.map(lambda x, v, h=h: x + h * v, at, along)))
        for h in (STEP, -STEP)
    )
    for g, a, b in zip(got, ahead, behind, strict=True):
        measured = (a - b) / (2 * STEP)
        np.testing.assert_allclose(
            g, measured, rtol=1e-4, atol=1e-4 * (1 + np.max(np.abs(measured)))
        )


class Native:
    """Programs compiled together, into one file of C, when the first of them is asked for."""

    def __init__(self, programs: list[Any]) -> None:
        self.programs = programs
        self.traces: dict[str, Traced] = {}
        self.compiled: Mapping[str, Any] = {}

    def check(self, program: Any) -> None:
        if not self.compiled:
            self.traces = {p.name.replace("-", "_"): traced(p) for p in self.programs}
            functions = {name: trace.function for name, trace in self.traces.items()}
            self.compiled = compile_module(functions, "native")
        name = program.name.replace("-", "_")
        trace = self.traces[name]
        result, gradients = run(program, self.compiled[name], trace)
        expected, judged = run(program, ReferenceProgram(trace.function), trace)
        close(result, expected, 1e-9, 1e-10)
        close(gradients, judged, 1e-7, 1e-8)


@pytest.fixture(scope="module")
def together() -> Callable[..., Native]:
    if find() is None:
        pytest.skip("no C compiler here")
    made: dict[bool, Native] = {}
    return lambda quick, programs: made.setdefault(quick, Native(programs))


def test_native_agrees(quick_program: Any, quick_programs: list[Any], together: Any) -> None:
    together(True, quick_programs).check(quick_program)


@pytest.mark.slow
def test_native_agrees_on_the_rest(
    slow_program: Any, slow_programs: list[Any], together: Any
) -> None:
    together(False, slow_programs).check(slow_program)
