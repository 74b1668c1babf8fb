"""Derivatives of elementwise functions as one factor: less is kept, the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian import ops
from delian.core.compiler.backends.native import emit
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Array, Block, Builder, DType, Function, TensorType, Value
from delian.core.compiler.passes.lowering.elementwise_slopes import fuse_elementwise_derivatives
from delian.core.compiler.passes.number_profiles import in_profile

F32 = DType.F32
RNG = np.random.default_rng(5)
LAYER = tuple(
    RNG.standard_normal(shape).astype(np.float32) for shape in ((20, 64), (64, 20), (16, 20))
)


def gradient(activation: Callable[[Any], Any]) -> Function:
    """Of a layer, its activation and another layer, by both layers' weights."""

    def loss(w: Any, u: Any, x: Any) -> Any:
        return np.sum(np.sin(activation(x @ w) @ u))

    return dl.compile(dl.grad(loss, (0, 1))).trace(*LAYER).function


def numbers(function: Function, args: tuple[Array, ...]) -> list[Array]:
    return [np.asarray(r) for r in run_block(function.body, args)]


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_a_slope_is_computed_where_its_function_is(name: str) -> None:
    before = gradient(getattr(ops, name))
    after = fuse_elementwise_derivatives(before)
    for a, b in zip(numbers(after, LAYER), numbers(before, LAYER), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    arenas = [emit.Unit().add("entry", f).arena_bytes for f in (before, after)]
    assert arenas[1] < arenas[0]
    assert fuse_elementwise_derivatives(after) is after


@pytest.mark.parametrize("activation", [np.tanh, ops.relu, ops.sigmoid])
def test_what_is_kept_as_one_value_stays(activation: Callable[[Any], Any]) -> None:
    before = gradient(activation)
    assert fuse_elementwise_derivatives(before) is before


def test_the_reproducible_profile_rounds_as_it_did() -> None:
    function = in_profile(gradient(ops.gelu), "reproducible")
    assert fuse_elementwise_derivatives(function) is function


def test_what_comes_back_twice_is_no_factor() -> None:
    """g * g, and what depends on g in any other way, is not linear in it."""
    b = Builder([TensorType(F32, (8, 8)), TensorType(F32, (8, 8))])
    x, w = b.params
    g = b("dot", x, w, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
    square, other = b("mul", g, g), b("mul", g, b("exp", g))
    function = Function("f", b.finish([square, other]), ("x", "w"), ("a", "b"))
    assert fuse_elementwise_derivatives(function) is function


def linear_chain(seed: int, count: int = 9) -> Block:
    """Random products with values that are there before, sums, differences and signs."""
    rng = np.random.default_rng(seed)
    b = Builder([TensorType(F32, (6, 6))] * 3)
    x, y, w = b.params
    factors = [b("exp", x), b("sin", y), b("mul", x, y), x, b.full(x.tensor, 0.5)]
    g = b("dot", x, w, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
    made: list[Value] = [g]
    for _ in range(count):
        v = made[rng.integers(len(made))]
        kind = ("mul", "mul", "add", "sub", "neg")[rng.integers(5)]
        if kind == "neg":
            made.append(b("neg", v))
            continue
        pool = factors if kind == "mul" else made
        pair = [v, pool[rng.integers(len(pool))]]
        made.append(b(kind, *(pair if kind == "sub" or rng.integers(2) else pair[::-1])))
    whole = made[-1]
    for v in made[1:-1:2]:
        whole = b("add", v, whole)
    return b.finish([b("reduce_sum", whole, axes=(0,))])


def test_any_chain_gives_the_same_numbers() -> None:
    args = [RNG.standard_normal((6, 6)).astype(np.float32) for _ in range(3)]
    changed = 0
    for seed in range(60):
        block = linear_chain(seed)
        before = Function("f", block, ("x", "y", "w"), ("total",))
        after = fuse_elementwise_derivatives(before)
        changed += after is not before
        wide = [np.abs(r).max() for r in run_block(block, args)]
        for a, b, size in zip(
            run_block(after.body, args), run_block(block, args), wide, strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-4 * float(size + 1))
    assert changed > 10


def test_a_slope_within_a_loop_is_found_there() -> None:
    def step(w: Any, u: Any, x: Any) -> Any:
        def loss(w: Any, u: Any) -> Any:
            return np.sum(np.sin(ops.gelu(x @ w) @ u))

        for _ in range(7):
            dw, du = dl.grad(loss, (0, 1))(w, u)
            w, u = w - 0.01 * dw, u - 0.01 * du
        return w, u

    small = tuple(0.1 * x for x in LAYER)  # many steps with large weights would magnify rounding
    before = dl.compile(step).trace(*small).function
    after = fuse_elementwise_derivatives(before)
    assert after is not before
    for a, b in zip(numbers(after, small), numbers(before, small), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
