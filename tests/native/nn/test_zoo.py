"""The zoo: sizes as published, shapes, and a step of training that compiles and descends."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian import nn

KEY = dl.random.key(1)
RNG = np.random.default_rng(6)


def count(model: Any) -> int:
    return sum(leaf.size for leaf in dl.tree.leaves(model))


def test_sizes_are_as_published():
    assert count(nn.lenet(KEY, (28, 28, 1), 10)) == 61_706
    assert count(nn.femnist_cnn(KEY)) == 6_603_710
    # He et al. 2016, table 6: 0.27 million.
    assert round(count(nn.resnet(KEY, (32, 32, 3), 10)) / 1e6, 2) == 0.27
    assert round(count(nn.resnet(KEY, (32, 32, 3), 10, depth=8)) / 1e6, 2) == 0.08
    # The count of torchvision; 0.35 times as wide, 1.66 million in Sandler et al.'s own tables,
    # which leave out the normalisation.
    assert count(nn.mobilenet_v2(KEY, (96, 96, 3), 1000, width=1.0)) == 3_504_872
    small = nn.mobilenet_v2(KEY, (96, 96, 3), 1000)
    norms = zip(dl.tree.leaves(small), dl.tree.leaves(nn.within(small, nn.GroupNorm)), strict=True)
    assert round(sum(leaf.size for leaf, on in norms if not on) / 1e6, 2) == 1.66


SMALL = {
    "lenet": (lambda: nn.lenet(KEY, (12, 12, 1), 3), (4, 12, 12, 1), (4,), 3),
    "resnet": (lambda: nn.resnet(KEY, (8, 8, 1), 3, depth=8), (4, 8, 8, 1), (4,), 3),
    "tagger": (lambda: nn.tagger(KEY, 9, 4, nn.GruCell, 3, 5), (3, 6), (3, 6), 4),
    "transformer": (lambda: nn.transformer(KEY, 9, None, 8, 2, 2), (3, 6), (3, 6), 9),
}


@pytest.fixture(
    scope="module", params=["reference", pytest.param("native", marks=pytest.mark.slow)]
)
def trained(request: Any) -> Any:
    """Twenty steps of every small model, as one program: losses run eagerly, before and after."""
    models, xs, ys = {}, {}, {}
    for name, (make, shape, labels, classes) in SMALL.items():
        models[name] = make()
        ys[name] = RNG.integers(0, classes, labels)
        xs[name] = (
            RNG.normal(size=shape).astype(np.float32)
            if len(shape) == 4
            else RNG.integers(0, 9, shape)
        )

    def losses(models: Any, xs: Any, ys: Any) -> Any:
        out = {}
        for name in models:
            x = xs[name]
            logits = models[name](x, np.ones(x.shape[0], np.float32))
            out[name] = np.mean(dl.ops.cross_entropy(logits, ys[name]))
        return out

    optimizer = nn.adam(0.01)

    def train(models: Any, xs: Any, ys: Any) -> Any:
        def total(models: Any) -> Any:
            each = losses(models, xs, ys)
            return sum(each.values()), each

        state = optimizer.init(models)
        first = losses(models, xs, ys)
        for _ in range(20):
            gradient, _ = dl.grad(total, has_aux=True)(models)
            step, state = optimizer.update(gradient, state, models)
            models = nn.apply(models, step)
        return first, losses(models, xs, ys)

    eager = losses(models, xs, ys)
    return eager, *dl.compile(train, backend=request.param)(models, xs, ys)


@pytest.mark.parametrize("name", SMALL)
def test_a_compiled_step_of_training_descends(trained, name):
    eager, first, last = trained
    np.testing.assert_allclose(first[name], eager[name], rtol=1e-4)
    assert last[name] < 0.9 * first[name]


def test_mobilenet_halves_five_times_and_runs_eagerly_as_compiled():
    model = nn.mobilenet_v2(KEY, (32, 32, 3), 5)
    x, weight = RNG.normal(size=(2, 32, 32, 3)).astype(np.float32), np.ones(2, np.float32)
    eager = model(x, weight)
    assert eager.shape == (2, 5)
    got = dl.compile(lambda m, x, w: m(x, w), backend="reference")(model, x, weight)
    np.testing.assert_allclose(got, eager, rtol=1e-3, atol=1e-3)


def test_normalised_by_the_batch_a_row_of_weight_zero_changes_nothing():
    model = nn.resnet(KEY, (8, 8, 1), 3, depth=8, norm="batch")
    x = RNG.normal(size=(4, 8, 8, 1)).astype(np.float32)
    weight = np.array([1, 1, 1, 0], np.float32)
    alone = model(x[:3], np.ones(3, np.float32))
    np.testing.assert_allclose(model(x, weight)[:3], alone, rtol=1e-3, atol=1e-3)


def test_a_character_model_reads_from_the_left():
    model, x = nn.char_model(KEY, 9, nn.LstmCell, 3, 5), RNG.integers(0, 9, (3, 6))
    weight = np.ones(3, np.float32)
    logits = model(x, weight)
    assert logits.shape == (3, 6, 9)
    np.testing.assert_allclose(model(x[:, :2], weight), logits[:, :2], rtol=1e-5, atol=1e-6)


def test_a_causal_model_sees_nothing_of_what_follows():
    x = RNG.integers(0, 9, (2, 6))
    other = x.copy()
    other[:, 4:] = (other[:, 4:] + 1) % 9
    weight = np.ones(2, np.float32)
    for causal in (True, False):
        model = nn.transformer(KEY, 9, None, 8, 2, 2, causal)
        same = np.allclose(model(x, weight)[:, :4], model(other, weight)[:, :4], atol=1e-6)
        assert same == causal


def test_misfits_say_why():
    with pytest.raises(ValueError, match="8, 14, 20"):
        nn.resnet(KEY, (8, 8, 1), 3, depth=18)
    with pytest.raises(ValueError, match='"group" or "batch"'):
        nn.resnet(KEY, (8, 8, 1), 3, norm="layer")
