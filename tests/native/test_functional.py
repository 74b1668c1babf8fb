"""`delian.ops`: eager and compiled alike, and equal to plain loops or formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler import ops as ops
from delian.core.compiler.api import compile as compile_
from delian.core.compiler.api import grad

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 7, 6, 3)).astype(np.float32)
KERNEL = RNG.normal(size=(3, 2, 3, 4)).astype(np.float32)
LOGITS = RNG.normal(size=(5, 4)).astype(np.float32) * 3
LABELS = np.array([0, 3, 1, 2, 2], np.int32)


def run(f, *args):
    """Compiled, after checking that it equals eager."""
    got = compile_(f, backend="reference")(*args)
    want = f(*args)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return got


def plain_conv(x, k, stride, edges):
    x = np.pad(x, ((0, 0), *edges, (0, 0)))
    rows = (x.shape[1] - k.shape[0]) // stride[0] + 1
    columns = (x.shape[2] - k.shape[1]) // stride[1] + 1
    out = np.zeros((x.shape[0], rows, columns, k.shape[3]))
    for i in range(rows):
        for j in range(columns):
            top, left = i * stride[0], j * stride[1]
            window = x[:, top : top + k.shape[0], left : left + k.shape[1]]
            out[:, i, j] = np.tensordot(window, k, axes=3)
    return out


CONVS = [
    (1, "VALID", ((0, 0), (0, 0))),
    (1, "SAME", ((1, 1), (0, 1))),
    (2, "SAME", ((1, 1), (0, 0))),
    ((1, 3), 2, ((2, 2), (2, 2))),
]


@pytest.mark.parametrize("stride, padding, edges", CONVS)
def test_conv2d(stride, padding, edges):
    got = run(lambda x, k: ops.conv2d(x, k, stride, padding), IMAGES, KERNEL)
    strides = (stride, stride) if isinstance(stride, int) else stride
    np.testing.assert_allclose(got, plain_conv(IMAGES, KERNEL, strides, edges), rtol=1e-4)


def test_pooling_leaves_out_what_fills_no_window():
    most = run(lambda x: ops.max_pool(x), IMAGES)
    mean = run(lambda x: ops.avg_pool(x, 3), IMAGES)
    assert most.shape == (2, 3, 3, 3)
    assert mean.shape == (2, 2, 2, 3)
    assert most[1, 2, 0, 1] == IMAGES[1, 4:6, 0:2, 1].max()
    np.testing.assert_allclose(mean[0, 1, 1, 2], IMAGES[0, 3:6, 3:6, 2].mean(), rtol=1e-5)


def test_activations():
    x = np.array([-800.0, -2.0, 0.0, 3.0, 800.0], np.float32)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(run(ops.sigmoid, x), 1 / (1 + np.exp(-wide)), atol=1e-7)
        np.testing.assert_allclose(run(ops.softplus, x)[1:4], np.log1p(np.exp(wide[1:4])), 1e-6)
    np.testing.assert_allclose(run(ops.erf, x), [math.erf(v) for v in wide], rtol=1e-6)
    np.testing.assert_array_equal(run(ops.relu, x), np.maximum(x, 0))
    silu = wide[1:4] / (1 + np.exp(-wide[1:4]))
    np.testing.assert_allclose(run(ops.silu, x)[1:4], silu, rtol=1e-5)
    want = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in wide]
    np.testing.assert_allclose(run(ops.gelu, x), want, rtol=1e-5, atol=1e-6)


def test_relu_keeps_nan_and_has_derivative_zero_at_zero():
    assert np.isnan(run(ops.relu, np.float32("nan") * np.ones(1, np.float32)))
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    np.testing.assert_array_equal(grad(lambda x: np.sum(ops.relu(x)))(x), [0, 0, 1])


def test_softmax_family_does_not_overflow():
    x = np.array([[1000.0, 1001.0, 999.0], [0.0, -5.0, 2.0]], np.float32)
    p = run(ops.softmax, x)
    shifted = x.astype(np.float64) - x.max(-1, keepdims=True)
    total = np.log(np.exp(shifted).sum(-1, keepdims=True))
    np.testing.assert_allclose(p, np.exp(shifted - total), rtol=1e-5)
    np.testing.assert_allclose(run(ops.log_softmax, x), shifted - total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        run(ops.logsumexp, x), (total + x.max(-1, keepdims=True))[:, 0], 1e-6
    )
    assert run(lambda x: ops.logsumexp(x, 0, keepdims=True), x).shape == (1, 3)
    assert run(lambda x: ops.softmax(x), np.zeros((2, 0), np.float32)).shape == (2, 0)
    assert run(lambda x: ops.log_softmax(x), np.zeros((2, 0), np.float32)).shape == (2, 0)


def test_cross_entropy_and_its_gradient():
    losses = run(ops.cross_entropy, LOGITS, LABELS)
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    np.testing.assert_allclose(losses, -np.log(p[np.arange(5), LABELS]), rtol=1e-5)
    got = grad(lambda x, y: np.sum(ops.cross_entropy(x, y)))(LOGITS, LABELS)
    np.testing.assert_allclose(got, p - np.eye(4)[LABELS], rtol=1e-4, atol=1e-6)


def test_one_hot():
    got = run(lambda y: ops.one_hot(y, 4), np.array([[0, 3], [9, -1]]))
    np.testing.assert_array_equal(got[0], [[1, 0, 0, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(got[1], np.zeros((2, 4)))


def test_windows_are_moved_inwards():
    x = np.arange(20.0).reshape(4, 5)
    got = run(lambda x, i: ops.dynamic_slice(x, (i, 0), (2, 3)), x, np.int32(9))
    np.testing.assert_array_equal(got, x[2:4, :3])
    got = run(lambda x, i: ops.dynamic_update(x, np.ones((1, 2)), (1, i)), x, np.int64(2))
    assert got[1].tolist() == [5, 6, 1, 1, 9]


def test_no_gradient_flows_through_stop_gradient():
    f = lambda x: np.sum(x * ops.stop_gradient(x))  # noqa: E731
    x = np.array([2.0, 3.0])
    np.testing.assert_array_equal(grad(f)(x), x)


def test_misfits_are_told_in_the_functions_own_words():
    with pytest.raises(ValueError, match="3 channels and the kernel takes 5"):
        ops.conv2d(IMAGES, np.zeros((3, 3, 5, 4), np.float32))
    with pytest.raises(ProgramError, match="3 channels and the kernel takes 5"):
        compile_(ops.conv2d, backend="reference")(IMAGES, np.zeros((3, 3, 5, 4), np.float32))
    with pytest.raises(ValueError, match="labels"):
        ops.cross_entropy(LOGITS, LABELS[:3])
    with pytest.raises(ValueError, match="padding"):
        ops.conv2d(IMAGES, KERNEL, padding="FULL")
