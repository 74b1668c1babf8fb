"""Training with products in 16 bits learns what training in f32 learns; f16 scales its loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import api, tree
from delian.core.compiler.bfloat16 import bfloat16
from delian.core.compiler.ir import Builder, DType, TensorType
from delian.core.compiler.precision import LossScale, NoLossScale, all_finite, loss_scale
from delian.core.compiler.transforms.mixed_precision import mixed_precision
from delian.core.compiler.verify import verify

rng = np.random.default_rng(0)
X = rng.normal(size=(64, 12)).astype(np.float32)
LABELS = np.argmax(X @ rng.normal(size=(12, 3)), axis=1)
PARAMS = {
    "w1": (rng.normal(size=(12, 16)) * 0.3).astype(np.float32),
    "b1": np.zeros(16, np.float32),
    "w2": (rng.normal(size=(16, 3)) * 0.3).astype(np.float32),
}


def loss(p, x, labels):
    hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
    z = hidden @ p["w2"]
    z = z - np.max(z, axis=1, keepdims=True)
    logs = z - np.log(np.sum(np.exp(z), axis=1, keepdims=True))
    return -np.mean(np.take_along_axis(logs, labels[:, None], 1))


def train(f, scale, backend, steps=150):
    def step(p, scale, x, labels):
        value, grads, finite = scale.value_and_grad(f)(p, x, labels)
        if finite:
            p = tree.map(lambda w, g: w - np.float32(0.5) * g, p, grads)
        return p, scale.updated(finite), value

    run = api.compile(step, backend=backend)
    p, value = PARAMS, np.float32(0)
    for _ in range(steps):
        p, scale, value = run(p, scale, X, LABELS)
    return float(value), scale, run


@pytest.fixture(scope="module")
def f32_loss():
    return train(loss, loss_scale(np.float32), "native")[0]


@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=["f16", "bf16"])
def test_training_converges_as_in_f32(dtype, f32_loss):
    got, scale, run = train(api.mixed_precision(loss, dtype), loss_scale(dtype), "native")
    assert f32_loss < 0.2 and abs(got - f32_loss) < 0.03
    stateful = isinstance(scale, LossScale)
    assert stateful == (dtype is np.float16) and bool(tree.leaves(scale)) == stateful
    entry = next(iter(run._entries.values()))
    dots = [op for op in entry.traced.function.body.walk() if op.name == "dot"]
    assert dots and all(op.result.dtype.is_half for op in dots)


def test_both_back_ends_agree(f32_loss):
    values = [
        train(api.mixed_precision(loss, bfloat16), NoLossScale(), backend, steps=5)[0]
        for backend in ("native", "reference")
    ]
    assert values[0] == pytest.approx(values[1], rel=2e-2)


def test_a_step_that_overflows_is_skipped_and_halves_the_scale():
    def f(w):
        return np.sum(w * w)

    scale = LossScale(np.float32(2.0**20), np.int32(5), 7)
    value, grads, finite = api.compile(lambda s, w: s.value_and_grad(f)(w), backend="reference")(
        scale, np.array([1e33, 1.0], np.float32)
    )
    assert not finite and value == np.inf and not np.isfinite(grads[0])
    halved = scale.updated(finite)
    assert (float(halved.scale), int(halved.good_steps)) == (2.0**19, 0)


def test_the_scale_doubles_after_enough_finite_steps():
    scale: Any = loss_scale(np.float16, growth_steps=3)
    seen = []
    for _ in range(7):
        scale = scale.updated(np.True_)
        seen.append(float(scale.scale) / 2.0**15)
    assert seen == [1, 1, 2, 2, 2, 4, 4]


def test_gradients_too_small_for_f16_survive_by_the_scale():
    w = np.full((2, 2), 1e-4, np.float32)
    x = np.full((1, 2), 2e-5, np.float32)
    f = api.mixed_precision(lambda w: np.sum((x @ w) * np.float32(1e-4)), np.float16)
    plain = api.compile(api.grad(f), backend="reference")(w)
    scale = loss_scale(np.float16)
    _, scaled, finite = api.compile(lambda s, w: s.value_and_grad(f)(w), backend="reference")(
        scale, w
    )
    assert finite and np.all(plain == 0)
    np.testing.assert_allclose(scaled, np.full((2, 2), 2e-9), rtol=0.02)


def test_only_products_and_what_follows_them_are_narrow():
    b = Builder([TensorType(DType.F32, (4, 4)), TensorType(DType.F64, (4, 4))])
    x, y = b.params
    axes = {"contract_a": (1,), "contract_b": (0,), "batch_a": (), "batch_b": ()}
    product = b("max", b("dot", x, x, **axes), b.full(x.tensor, 0))
    total = b("reduce_sum", b("exp", product), axes=(0,))
    made = mixed_precision(b.finish([total, b("dot", y, y, **axes)]), DType.BF16)
    verify(made)
    kinds = {(op.name, op.result.dtype.value) for op in made.ops}
    assert {("dot", "bf16"), ("max", "bf16"), ("exp", "f32"), ("dot", "f64")} <= kinds
    assert ("reduce_sum", "f32") in kinds and [r.dtype.value for r in made.results] == [
        "f32",
        "f64",
    ]


def test_loops_keep_their_types():
    def f(x, w):
        for _ in range(4):
            x = np.tanh(x @ w)
        return np.sum(x)

    w = PARAMS["w1"][:, :12]
    narrow = api.compile(api.grad(api.mixed_precision(f, bfloat16), 1))(X, w)
    full = api.compile(api.grad(f, 1))(X, w)
    assert narrow.dtype == np.float32
    assert np.linalg.norm(narrow - full) < 0.05 * np.linalg.norm(full)


def test_other_types_are_refused():
    with pytest.raises(DelianError, match="float16 or bfloat16, not f64"):
        api.mixed_precision(lambda x: x, np.float64)(X)
    with pytest.raises(ValueError, match="bf16 or f16"):
        mixed_precision(Builder([]).finish([]), DType.F32)
    assert all_finite({"a": X}) and not all_finite([np.array([np.nan])])


def test_a_loss_is_of_floating_point() -> None:
    with pytest.raises(DelianError, match="floating point"):
        loss_scale(np.int32)
