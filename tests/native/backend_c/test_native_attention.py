"""Attention natively: block by block, in memory linear in the length, on any number of threads."""

from __future__ import annotations

import sys
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian import ops
from delian.core.compiler.backends.native import emit
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.ir import Array
from delian.core.compiler.passes.number_profiles import in_profile
from delian.core.compiler.passes.pipeline import lowered

HEADS = 2


def tensors(length: int, seed: int = 0) -> tuple[Array, ...]:
    """Queries, keys, values, and what comes back to the output: f32[1, HEADS, length, 8]."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4, 1, HEADS, length, 8), dtype=np.float32)
    return x[0], x[1], x[2], x[3]


def loss(q: Any, k: Any, v: Any, g: Any) -> Any:
    return np.sum(g * ops.attention(q, k, v, None, True))


def gradient(*args: Array) -> Any:
    return dl.compile(dl.grad(loss, (0, 1, 2))).trace(*args).function


def test_memory_is_linear_in_the_length() -> None:
    arenas = []
    for length in (1024, 4096):
        function = lowered(gradient(*tensors(length)))
        arenas.append(emit.Unit().add("entry", function).arena_bytes)
    assert arenas[1] < 4.1 * arenas[0]
    assert arenas[1] < 4 * HEADS * 4096 * 4096 // 8  # an eighth of one tensor of scores


@pytest.mark.skipif(sys.platform != "linux", reason="threads are Linux's")
def test_threads_give_the_same_bits(toolchain: Toolchain) -> None:
    args = tensors(130)
    step = dl.grad(loss, (0, 1, 2))
    alone = dl.compile(step, backend="native", threads=1)(*args)
    for found, wanted in zip(
        dl.compile(step, backend="native", threads=3)(*args), alone, strict=True
    ):
        assert found.tobytes() == wanted.tobytes()


def test_a_query_that_may_look_nowhere_gives_and_takes_nothing(toolchain: Toolchain) -> None:
    q, k, v, g = tensors(40)
    mask = np.random.default_rng(1).uniform(size=(40, 40)) < 0.5
    mask[7], mask[:, 3] = False, False

    def f(q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, mask)

    assert not dl.compile(f, backend="native")(q, k, v)[:, :, 7].any()
    back = dl.grad(lambda q, k, v: np.sum(g * f(q, k, v)), (0, 1, 2))
    dq, dk, dv = dl.compile(back, backend="native")(q, k, v)
    assert not dq[:, :, 7].any() and not dk[:, :, 3].any() and not dv[:, :, 3].any()
    assert all(np.isfinite(x).all() and x.any() for x in (dq, dk, dv))


def test_scores_too_large_for_exponentials_do_no_harm(toolchain: Toolchain) -> None:
    q, k, v, _ = tensors(300)
    many = dl.compile(lambda q, k, v: ops.attention(q, k, v), backend="native")(q * 300, k, v)
    np.testing.assert_allclose(many, ops.attention(q * 300, k, v), rtol=2e-3, atol=2e-3)


def test_a_number_that_is_none_is_seen(toolchain: Toolchain) -> None:
    q, k, v, _ = tensors(20)
    q[0, 1, 4, 0] = np.nan
    out = dl.compile(lambda q, k, v: ops.attention(q, k, v), backend="native")(q, k, v)
    assert np.isnan(out[0, 1, 4]).all() and np.isnan(out).sum() == 8


def test_second_derivatives_are_those_of_the_reference(toolchain: Toolchain) -> None:
    q, k, v, g = (x[:, :, :9] for x in tensors(12))
    inner = dl.grad(loss, (0, 1, 2))

    def outer(q: Any, k: Any, v: Any, g: Any) -> Any:
        first = inner(q, k, v, g)
        return sum(np.sum(x * x) for x in first)

    step = dl.grad(outer, (0, 1, 2, 3))
    found = dl.compile(step, backend="native")(q, k, v, g)
    wide = [x.astype(np.float64) for x in (q, k, v, g)]
    for a, b in zip(found, dl.compile(step, backend="reference")(*wide), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_the_reproducible_profile_computes_whole_tensors_of_scores() -> None:
    function = in_profile(gradient(*tensors(6)), "reproducible")
    assert not any(op.name.startswith("attention") for op in function.body.walk())
