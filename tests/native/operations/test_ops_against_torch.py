"""Pooling, resizing, attention, activations, losses and CTC equal torch's, with their gradients."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler import ops as ops

RNG = np.random.default_rng(11)


def first(x: Any) -> Any:
    return x.movedim(-1, 1)


def last(x: Any) -> Any:
    return x.movedim(1, -1)


def images(*shape: int) -> Any:
    return RNG.normal(size=shape)


@pytest.fixture
def fn():
    return pytest.importorskip("torch").nn.functional


def test_pooling_and_resizing(case, check, fn):
    line, image, volume = images(2, 9, 3), images(2, 7, 6, 2), images(1, 4, 5, 4, 2)

    def theirs(f: Any, *a: Any, **k: Any) -> Any:
        return lambda x: last(f(first(x), *a, **k))

    rows = [
        (lambda x: ops.max_pool(x, 2), theirs(fn.max_pool2d, 2), image),
        (lambda x: ops.max_pool(x, 3, 2, 1), theirs(fn.max_pool2d, 3, 2, 1), image),
        (lambda x: ops.max_pool(x, (2, 3), 1), theirs(fn.max_pool2d, (2, 3), 1), image),
        (lambda x: ops.max_pool(x, 3, 1), theirs(fn.max_pool1d, 3, 1), line),
        (lambda x: ops.max_pool(x, 2, 1), theirs(fn.max_pool3d, 2, 1), volume),
        (
            lambda x: ops.max_pool(x, 2, 3, 1, (1, 2), ceil=True),
            theirs(fn.max_pool2d, 2, 3, 1, (1, 2), ceil_mode=True),
            image,
        ),
        (
            lambda x: ops.avg_pool(x, 2, 3, 1, count_padding=True, ceil=True),
            theirs(fn.avg_pool2d, 2, 3, 1, ceil_mode=True),
            image,
        ),
        (lambda x: ops.avg_pool(x, 3), theirs(fn.avg_pool1d, 3), line),
        (
            lambda x: ops.avg_pool(x, 3, 2, 1),
            theirs(fn.avg_pool2d, 3, 2, 1, count_include_pad=False),
            image,
        ),
        (
            lambda x: ops.avg_pool(x, 2, 1, 1, count_padding=True),
            theirs(fn.avg_pool3d, 2, 1, 1),
            volume,
        ),
        (lambda x: ops.lp_pool(x, 3.0, 2), theirs(fn.lp_pool2d, 3.0, 2), np.abs(image) + 0.1),
        (
            lambda x: ops.adaptive_avg_pool(x, (3, 4)),
            theirs(fn.adaptive_avg_pool2d, (3, 4)),
            image,
        ),
        # Windows far larger than an axis: as of a model that pools all pixels of a larger image.
        (
            lambda x: ops.max_pool(x, 41, 3, 20),
            theirs(fn.max_pool2d, 41, 3, 20),
            image,
        ),
        (
            lambda x: ops.avg_pool(x, 10**6, ceil=True),
            theirs(fn.avg_pool2d, 10**6, ceil_mode=True),
            image,
        ),
        (lambda x: ops.adaptive_avg_pool(x, 4), theirs(fn.adaptive_avg_pool1d, 4), line),
        (lambda x: ops.global_avg_pool(x), lambda x: x.mean((1, 2, 3)), volume),
        (lambda x: ops.global_max_pool(x), lambda x: x.amax(1), line),
        (
            lambda x: ops.resize(x, (4, 11), "nearest"),
            theirs(fn.interpolate, (4, 11), mode="nearest"),
            image,
        ),
        (
            lambda x: ops.resize(x, (4,)),
            theirs(fn.interpolate, 4, mode="linear", align_corners=False),
            line,
        ),
        (
            lambda x: ops.resize(x, (4, 11)),
            theirs(fn.interpolate, (4, 11), mode="bilinear", align_corners=False),
            image,
        ),
        (
            lambda x: ops.resize(x, (10, 3), "bilinear", align_corners=True),
            theirs(fn.interpolate, (10, 3), mode="bilinear", align_corners=True),
            image,
        ),
    ]
    check([case(f"pool{n}", *row) for n, row in enumerate(rows)])


def test_activations(case, check, fn):
    x = np.concatenate([[-3.0, -90.0, 0.0, 90.0, 6.0, 3.0], RNG.normal(size=12) * 3])
    rows = [
        (ops.relu6, fn.relu6),
        (lambda x: ops.leaky_relu(x, 0.2), lambda x: fn.leaky_relu(x, 0.2)),
        (lambda x: ops.elu(x, 1.3), lambda x: fn.elu(x, 1.3)),
        (ops.selu, fn.selu),
        (ops.softplus, fn.softplus),
        (ops.softsign, fn.softsign),
        (ops.silu, fn.silu),
        (ops.mish, fn.mish),
        (ops.gelu, fn.gelu),
        (lambda x: ops.gelu(x, True), lambda x: fn.gelu(x, approximate="tanh")),
        (ops.hardsigmoid, lambda x: fn.relu6(x + 3) / 6),  # torch's own has a slope of f32
        (ops.hardswish, lambda x: x * fn.relu6(x + 3) / 6),
        (lambda x: ops.glu(x.reshape(3, 6)), lambda x: fn.glu(x.reshape(3, 6))),
    ]
    made = [case(f"activation{n}", *row, x) for n, row in enumerate(rows)]
    y = RNG.normal(size=(3, 4)) * 30
    made += [
        case("softmax", lambda x: ops.softmax(x, 0), lambda x: fn.softmax(x, 0), y),
        case("log_softmax", ops.log_softmax, lambda x: fn.log_softmax(x, -1), y),
        case("logsumexp", ops.logsumexp, lambda x: x.logsumexp(-1), y),
    ]
    check(made, native=False)  # elementwise operations, each tried natively by itself


def test_attention(case, check, fn):
    q, k, v = images(2, 3, 4, 5), images(2, 3, 6, 5), images(2, 3, 6, 2)
    seen = RNG.uniform(size=(4, 6)) < 0.6
    seen[1] = False  # A query that may look nowhere: zeros, and no NaN in a gradient.
    seen[:, 0] |= np.arange(4) != 1
    theirs = fn.scaled_dot_product_attention

    def masked(q: Any, k: Any, v: Any, m: Any) -> Any:
        import torch

        rows = m.any(-1, keepdim=True)
        return torch.where(rows, theirs(q, k, v, attn_mask=m | ~rows), 0.0)

    same = images(2, 3, 6, 5)
    check(
        [
            case(
                "biased",
                ops.attention,
                lambda *a: theirs(*a[:3], attn_mask=a[3]),
                q,
                k,
                v,
                seen * 2.0,
            ),
            case("plain", ops.attention, theirs, q * 9, k * 9, v),
            case("masked", ops.attention, masked, q, k, v, seen),
            case(
                "causal",
                lambda q, k, v: ops.attention(q, k, v, causal=True, scale=0.3),
                lambda q, k, v: theirs(q, k, v, is_causal=True, scale=0.3),
                same,
                k,
                v,
            ),
        ]
    )


def test_losses(case, check, fn):
    torch = pytest.importorskip("torch")
    logits, other = RNG.normal(size=(5, 4)) * 3, RNG.normal(size=(5, 4))
    labels = np.array([0, 3, 1, 2, 2])
    wide = np.random.default_rng(1).dirichlet(np.ones(4), 5)
    wide[0] = [0.0, 1.0, 0.0, 0.0]
    ones, signs = (other > 0).astype(np.int64), np.where(other > 0, 1, -1)
    some, third = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 4))
    none = {"reduction": "none"}

    def torch_hinge(x: Any, t: Any) -> Any:
        return torch.clamp(1 - t * x, min=0)

    check(
        [
            case(
                "smoothed",
                lambda x, y: ops.cross_entropy(x, y, 0.1),
                lambda x, y: fn.cross_entropy(x, y, label_smoothing=0.1, **none),
                logits,
                labels,
            ),
            case(
                "soft",
                lambda x: ops.cross_entropy(x, wide.astype(x.dtype), 0.2),
                lambda x: fn.cross_entropy(x, torch.tensor(wide), label_smoothing=0.2, **none),
                logits,
            ),
            case("nll", ops.nll, lambda x, y: fn.nll_loss(x, y, **none), logits, labels),
            case(
                "binary",
                ops.binary_cross_entropy,
                lambda x, y: fn.binary_cross_entropy_with_logits(x, y.double(), **none),
                logits * 40,
                ones,
            ),
            case("mse", ops.squared_error, lambda x, y: fn.mse_loss(x, y, **none), logits, other),
            case("l1", ops.absolute_error, lambda x, y: fn.l1_loss(x, y, **none), logits, other),
            case(
                "huber",
                lambda x, y: ops.huber(x, y, 0.7),
                lambda x, y: fn.huber_loss(x, y, delta=0.7, **none),
                logits,
                other,
            ),
            case(
                "kl",
                lambda x: ops.kl_divergence(ops.log_softmax(x), wide.astype(x.dtype)),
                lambda x: fn.kl_div(fn.log_softmax(x, -1), torch.tensor(wide), **none).sum(-1),
                logits,
            ),
            case("hinge", ops.hinge, torch_hinge, logits, signs),
            case(
                "cosine",
                ops.cosine_similarity,
                lambda a, b: fn.cosine_similarity(a, b),
                logits,
                other,
            ),
            case(
                "cosines",  # of a number that is broadcast the slope is zero: it is no argument
                lambda a: ops.cosine_similarity(a[None], other[:3, None].astype(a.dtype), 1),
                lambda a: fn.cosine_similarity(a[None], torch.tensor(other[:3, None]), 1),
                logits[:2],
            ),
            case(
                "triplet",
                ops.triplet,
                lambda a, p, n: fn.triplet_margin_loss(a, p, n, eps=0, **none),
                *(some, other, third),
            ),
        ],
        native=False,  # sums of elementwise operations
    )


def test_ctc(case, check, fn):
    logits = RNG.normal(size=(4, 9, 5)) * 2
    labels = np.array([[1, 2, 2], [3, 3, 3], [4, 1, 0], [2, 0, 0]])
    lengths, frames = np.array([3, 3, 2, 0]), np.array([9, 7, 5, 4])

    def theirs(x: Any) -> Any:
        import torch

        said = fn.log_softmax(x, -1).transpose(0, 1)
        given = (torch.tensor(v) for v in (labels, frames, lengths))
        return fn.ctc_loss(said, *given, reduction="none")

    def ours(x: Any) -> Any:
        return ops.ctc(x, frames, labels, lengths)

    check([case("ctc", ours, theirs, logits)])
    few = ops.ctc(logits[1:2], np.array([4]), labels[1:2], lengths[1:2])
    assert np.isinf(few).all(), "three equal labels need five frames"
    slope = dl.grad(lambda x: np.sum(ops.ctc(x, np.array([4]), labels[1:2], lengths[1:2])))(
        logits[1:2]
    )
    np.testing.assert_array_equal(slope, 0)
