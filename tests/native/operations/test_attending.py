"""Attention by the primitive is the formula with a whole tensor of scores, whatever the axes."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian import ops
from delian.core.compiler.ir import Array
from delian.core.compiler.ops import scaled_attention

RNG = np.random.default_rng(3)
#: Leading axes, of the mask too; T, S.
CASES = [
    ((), None, 4, 5),
    ((), (4, 5), 4, 5),
    ((3,), (5,), 4, 5),
    ((3,), (3, 1, 5), 4, 5),
    ((3,), (1, 4, 5), 4, 5),
    ((2, 3), (2, 1, 1, 5), 4, 5),
    ((2, 3), (3, 4, 1), 4, 5),
    ((2, 3), (2, 3, 4, 4), 4, 4),
    ((2, 1, 3), (2, 1, 1, 4, 5), 4, 5),
    ((2, 3, 2), (1, 3, 1, 4, 5), 4, 5),
]


def full(q: Array, k: Array, v: Array, mask: Array | None, causal: bool) -> Array:
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    seen = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    if causal:
        seen = np.tril(seen, scores.shape[-1] - scores.shape[-2])
    raised = np.where(seen, np.exp(scores), 0)
    total = raised.sum(axis=-1, keepdims=True)
    return np.asarray((raised / np.where(total == 0, 1, total)) @ v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_mask_that_broadcasts(case: Any, causal: bool) -> None:
    leading, axes, t, s = case
    q, k, v = (RNG.normal(size=(*leading, *z)) for z in ((t, 6), (s, 6), (s, 3)))
    mask = None if axes is None else RNG.uniform(size=axes) < 0.6
    expected = full(q, k, v, mask, causal)

    def f(q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, mask, causal)

    np.testing.assert_allclose(f(q, k, v), expected, atol=1e-12)
    traced = dl.compile(f, backend="reference")
    assert any(op.name == "attention" for op in traced.trace(q, k, v).function.body.ops)
    np.testing.assert_allclose(traced(q, k, v), expected, atol=1e-12)


def test_leading_axes_that_differ_are_broadcast() -> None:
    q, k, v = RNG.normal(size=(2, 3, 4, 6)), RNG.normal(size=(3, 5, 6)), RNG.normal(size=(1, 5, 2))
    np.testing.assert_allclose(ops.attention(q, k, v), full(q, k, v, None, False), atol=1e-12)


def test_gradients_are_those_of_the_formula() -> None:
    q, k, v = (RNG.normal(size=(2, 2, *z)) for z in ((4, 6), (5, 6), (5, 3)))
    mask = RNG.uniform(size=(4, 5)) < 0.5
    mask[2] = False

    def loss(q: Any, k: Any, v: Any) -> Any:
        return np.sum(np.sin(ops.attention(q, k, v, mask)))

    def plain(q: Any, k: Any, v: Any) -> Any:
        return np.sum(np.sin(scaled_attention._in_full(q / np.sqrt(6), k, v, mask, False)))

    for a, b in zip(
        dl.grad(loss, (0, 1, 2))(q, k, v), dl.grad(plain, (0, 1, 2))(q, k, v), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_lanes_give_what_each_gives_alone() -> None:
    q, k, v = (RNG.normal(size=(3, 2, *z)) for z in ((4, 6), (5, 6), (5, 3)))
    masks = RNG.uniform(size=(3, 4, 5)) < 0.7

    def one(q: Any, m: Any) -> Any:
        return ops.attention(q, k[0], v[0], m)

    found = dl.vmap(one)(q, masks)
    for lane, row in enumerate(found):
        expected = full(q[lane], k[0], v[0], masks[lane], False)
        np.testing.assert_allclose(row, expected, atol=1e-12)
