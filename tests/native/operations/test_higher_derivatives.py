"""Second and third derivatives of what has branches, windows, masks and loops."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian import nn
from delian.core.compiler import ops as ops

RNG = np.random.default_rng(17)
SEEN = RNG.uniform(size=(4, 5)) < 0.7
SEGMENTS = np.array([1, 0, 1, 3])
LABELS, LENGTHS = np.array([[1, 2], [2, 2]]), np.array([2, 2])
NORM = dl.tree.map(lambda p: p.astype(np.float64), nn.GroupNorm.init(4, 2))
CELL = dl.tree.map(
    lambda p: p.astype(np.float64), nn.Recurrent.init(nn.GruCell, dl.random.key(0), 3, 2)
)


def looked_up(x: Any) -> Any:
    mask = SEEN.copy()
    mask[1] = False
    return ops.attention(x, x[:, :5] * 2.0, np.sin(x[:, :5]), mask)


#: name -> (function of one array, its shape)
FUNCTIONS = {
    "conv": (lambda x: ops.conv2d(x, x[0, :2, :2, :1].reshape(2, 2, 1, 1), 2), (1, 5, 4, 1)),
    "grouped": (lambda x: ops.conv1d(x, np.tanh(x[0, :2, None]), 1, "SAME", 2, 3), (1, 5, 3)),
    "transposed": (
        lambda x: ops.conv_transpose2d(x, x[:1, :2, :2, :1].reshape(2, 2, 1, 1), 2),
        (1, 3, 3, 1),
    ),
    "max_pool": (lambda x: ops.max_pool(x, 3, 1, 1), (1, 4, 4, 2)),
    "lp_pool": (lambda x: ops.lp_pool(2.5 + np.tanh(x), 3.0, 2, 1), (1, 4, 3, 1)),
    "resize": (lambda x: ops.resize(x, (5, 2)), (1, 3, 4, 2)),
    "attention": (
        lambda x: ops.attention(x[:4], np.cos(x), x, SEEN, causal=False),
        (5, 3),
    ),
    "segment_max": (lambda x: ops.segment_max(x, SEGMENTS, 3, 0.0), (4, 2)),
    "top_k": (lambda x: ops.top_k(x, 2)[0], (3, 4)),
    "ctc": (lambda x: ops.ctc(x, np.array([4, 5]), LABELS, LENGTHS), (2, 5, 3)),
    "cosine": (lambda x: ops.cosine_similarity(x, x[::-1]), (3, 4)),
    "triplet": (lambda x: ops.triplet(x, x[::-1] + 1.0, x * 2.0, 3.0), (3, 4)),
    "gelu": (ops.gelu, (6,)),
    "mish": (ops.mish, (6,)),
    "group_norm": (NORM, (2, 2, 3, 4)),
    "gru": (lambda x: CELL(x), (2, 4, 3)),
}


def pairs(point: Any, along: Any) -> tuple[Any, Any]:
    """Second derivatives along a direction, and third ones along it twice."""
    out2, out3 = {}, {}
    for name, (f, _) in FUNCTIONS.items():

        def energy(x: Any, f: Any = f) -> Any:
            y = f(x)
            return np.sum(y * y * y)

        def second(x: Any, energy: Any = energy, name: str = name) -> Any:
            return dl.jvp(dl.grad(energy), (x,), (along[name],))[1]

        out2[name] = second(point[name])
        out3[name] = dl.jvp(second, (point[name],), (along[name],))[1]
    return out2, out3


def slopes(point: Any, along: Any) -> tuple[Any, Any]:
    """Gradients, and second derivatives along a direction."""
    first = {}
    for name, (f, _) in FUNCTIONS.items():

        def energy(x: Any, f: Any = f) -> Any:
            y = f(x)
            return np.sum(y * y * y)

        first[name] = dl.grad(energy)(point[name])
    return first, pairs(point, along)[0]


@pytest.fixture(scope="module")
def found() -> Any:
    """Exact, and by differences of the next lower order; all of it as two programs."""
    point = {n: RNG.normal(size=shape) for n, (_, shape) in FUNCTIONS.items()}
    along = {n: RNG.normal(size=shape) for n, (_, shape) in FUNCTIONS.items()}
    exact = dl.compile(pairs, backend="reference")(point, along)
    lower = dl.compile(slopes, backend="reference")
    h = 1e-5
    ahead = lower({n: point[n] + h * along[n] for n in point}, along)
    behind = lower({n: point[n] - h * along[n] for n in point}, along)
    return exact, dl.tree.map(lambda a, b: (a - b) / (2 * h), ahead, behind)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("order", [2, 3])
def test_derivatives_are_the_differences_of_the_order_below(found, name, order):
    got, want = (side[order - 2][name] for side in found)
    scale = np.abs(want).max() + 1e-3
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * scale)
