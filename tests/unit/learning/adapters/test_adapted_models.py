"""Adapters on layers of `dl.nn`: what they compute, what is trained, and what is refused."""

import re

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.tree import flatten
from delian.core.learning.adapters.adapted import settings_of
from delian.core.learning.adapters.adapter_settings import AdapterSettings
from delian.core.learning.adapters.module_places import Place
from delian.core.learning.adapters.target_rules import chosen, matches


@dl.module
class Small:
    """A table of vectors, a block, a convolution without a use, a head."""

    words: dl.nn.Embedding
    block: dl.nn.TransformerBlock
    filter: dl.nn.Conv
    own: dl.Tensor
    head: dl.nn.Dense

    def __call__(self, ids):
        x = self.block(self.words(ids))
        return self.head(x @ self.own)


def small():
    keys = dl.random.split(dl.random.key(3), 5)
    return Small(
        dl.nn.Embedding.init(keys[0], 11, 8),
        dl.nn.TransformerBlock.init(keys[1], 8, 2),
        dl.nn.Conv.init(keys[2], 3, 1, 1),
        dl.random.normal(keys[3], (8, 8)),
        dl.nn.Dense.init(keys[4], 8, 3),
    )


IDS = np.array([[1, 4, 2], [0, 10, 3]])
MAKERS = {
    "lora": lambda m: dl.lora(m, 2, ("query", "value", "up", "own", "words"), 8),
    "dora": lambda m: dl.dora(m, 2, ("query", "down", "own"), 4),
    "ia3": lambda m: dl.ia3(m, ("key", "value", "down"), ("down",)),
}


def moved(model):
    """The model after its adapters were moved by random numbers."""
    parts, draw = dl.adapters.split(model), np.random.default_rng(1)
    trained = {
        name: (value + 0.3 * draw.standard_normal(value.shape)).astype(np.float32)
        for name, value in parts.trained.items()
    }
    return parts.join(trained, parts.frozen)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_model_with_new_adapters_computes_what_it_did(kind):
    model = small()
    np.testing.assert_allclose(MAKERS[kind](model)(IDS), model(IDS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", MAKERS)
def test_python_program_and_merged_model_are_equal(kind):
    model = moved(MAKERS[kind](small()))
    want = model(IDS)
    assert np.abs(want - small()(IDS)).max() > 0.05
    np.testing.assert_allclose(dl.compile(Small.__call__)(model, IDS), want, rtol=1e-4, atol=1e-5)
    plain = dl.adapters.merged(model)
    assert flatten(plain)[1] == flatten(small())[1]
    np.testing.assert_allclose(plain(IDS), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_base_is_what_it_was(kind):
    base = dl.adapters.without(moved(MAKERS[kind](small())))
    assert flatten(base)[1] == flatten(small())[1]
    for got, want in zip(dl.tree.leaves(base), dl.tree.leaves(small()), strict=True):
        np.testing.assert_array_equal(got, want)


def test_first_values_are_drawn_as_peft_draws_them():
    dense = {"query": dl.nn.Dense.init(dl.random.key(0), 400, 30)}
    weight = dl.lora(dense, 16, ("query",), 16, seed=4)["query"].weight
    a, b = weight.a, weight.b
    assert a.shape == (400, 16) and b.shape == (16, 30) and not b.any()
    assert 0.0495 < np.abs(a).max() <= 0.05  # uniform within 1 / sqrt(400)
    assert abs(a.mean()) < 1e-3 and abs(a.std() - 0.05 / np.sqrt(3)) < 1e-3
    again = dl.lora(dense, 16, ("query",), 16, seed=5)["query"].weight
    assert not np.array_equal(a, again.a)


def test_the_scale_is_that_of_the_papers():
    dense = {"query": dl.nn.Dense.init(dl.random.key(0), 4, 4)}
    assert dl.lora(dense, 4, ("query",), 8)["query"].weight.scale == 2.0
    assert dl.lora(dense, 4, ("query",), 8, use_rslora=True)["query"].weight.scale == 4.0


def test_trained_are_adapters_and_saved_modules_alone():
    model = dl.lora(small(), 2, ("query",), 8, modules_to_save=("head",))
    parts = dl.adapters.split(model)
    assert sorted(parts.trained) == [
        "block.attention.query.weight.a",
        "block.attention.query.weight.b",
        "head.bias",
        "head.weight",
    ]
    frozen = dl.adapters.adapter_roles(model)
    assert "block.attention.query.weight.base" in frozen and "words.table" in frozen
    assert {*frozen} | {*parts.trained} == {*flatten(model)[1].paths()}
    assert not {*frozen} & {*parts.trained}


def test_a_step_that_changes_its_factors_in_place_is_compiled_once():
    parts = dl.adapters.split(moved(dl.lora(small(), 2, ("query",), 6)))

    def step(trained, frozen):
        slopes = dl.grad(lambda t: np.sum(parts.join(t, frozen)(IDS) ** 2))(trained)
        return dl.tree.map(lambda p, g: p - np.float32(0.1) * g, trained, slopes)

    traced = dl.compile(step, donate=(0,)).trace(parts.trained, parts.frozen)
    for leaf in parts.trained.values():
        leaf += 1
    assert traced.current()
    assert all(s.owner is IDS for s in traced.seen if isinstance(s.owner, np.ndarray))


def test_the_slopes_are_those_of_the_merged_weight():
    """dL/dA = s dL/dW B^T and dL/dB = s A^T dL/dW of the merged weight W."""
    model = moved(dl.lora(small(), 2, ("query",), 6))
    parts = dl.adapters.split(model)

    def by_adapters(trained, frozen):
        return np.sum(parts.join(trained, frozen)(IDS) ** 2)

    def by_weights(model):
        return np.sum(model(IDS) ** 2)

    got = dl.compile(dl.grad(by_adapters))(parts.trained, parts.frozen)
    dense = dl.compile(dl.grad(by_weights))(dl.adapters.merged(model)).block.attention.query.weight
    own = model.block.attention.query.weight
    name = "block.attention.query.weight"
    np.testing.assert_allclose(got[f"{name}.a"], 3 * dense @ own.b.T, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got[f"{name}.b"], 3 * own.a.T @ dense, rtol=1e-3, atol=1e-3)


def test_no_dense_slope_is_computed():
    wide = dl.nn.Dense.init(dl.random.key(0), 40, 30)
    parts = dl.adapters.split(dl.lora({"query": wide}, 2, ("query",), 4))

    def loss(trained, frozen, x):
        return np.sum(parts.join(trained, frozen)["query"](x) ** 2)

    x = np.ones((5, 40), np.float32)
    program = dl.trace(dl.grad(loss), parts.trained, parts.frozen, x).function
    made = {result.type.shape for op in program.body.ops for result in op.results}
    assert {(5, 2), (40, 2), (2, 30), (5, 30)} <= made
    assert not {(40, 30), (30, 40)} & made


def test_dropout_acts_in_training_alone():
    model = moved(dl.lora(small(), 2, ("query", "value"), 8, dropout=0.5))
    key = dl.random.key(5)
    np.testing.assert_array_equal(
        model(IDS), moved(dl.lora(small(), 2, ("query", "value"), 8))(IDS)
    )

    def in_training(model, key):
        return dl.adapters.with_key(model, key)(IDS)

    got = dl.compile(in_training)(model, key)
    np.testing.assert_allclose(got, in_training(model, key), rtol=1e-4, atol=1e-5)
    assert np.abs(got - model(IDS)).max() > 1e-3
    assert np.abs(got - in_training(model, dl.random.key(6))).max() > 1e-3


def test_dora_lengths_are_those_of_the_columns():
    weight = moved(dl.dora(small(), 2, ("query",), 4)).block.attention.query.weight
    whole = weight.base + 2.0 * weight.a @ weight.b
    want = whole / np.linalg.norm(whole, axis=0) * weight.magnitude
    np.testing.assert_allclose(weight.merged(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        (("query",), "layer.0.query", True),
        (("query",), "query", True),
        (("query",), "layer.0.subquery", False),
        (("0.query",), "layer.10.query", False),
        (("0.query",), "layer.0.query", True),
        ("query", "layer.0.query", False),
        (r".*\.(query|key)", "layer.0.key", True),
        (r".*\.que", "layer.0.query", False),
    ],
)
def test_names_are_matched_as_peft_matches_them(pattern, name, found):
    assert matches(pattern, name) is found


def test_all_linear_leaves_out_the_head_and_what_is_no_layer():
    found = [
        Place("a.q", "linear", ()),
        Place("a.c", "conv1d", ()),
        Place("wte", "embedding", ()),
        Place("own", "linear", (), is_named=True),
        Place("lm_head", "linear", (), is_head=True),
    ]
    picked = chosen(found, AdapterSettings("lora", "all-linear"))
    assert [place.name for place in picked] == ["a.q", "a.c"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda m: dl.lora(m, targets=("quary",)), "no layer of the model is named by 'quary'"),
        (lambda m: dl.lora(m, targets=("query", "q")), "no layer of the model is named by 'q'"),
        (lambda m: dl.lora(m, targets="(query"), "no regular expression"),
        (lambda m: dl.lora(m, targets=("filter",)), "filter is a layer Conv"),
        (lambda m: dl.dora(m, targets=("words",)), "takes no dora adapter"),
        (lambda m: dl.lora(m, rank=0), "rank of an adapter cannot be 0"),
        (lambda m: dl.lora(m, rank=2.5), "rank of an adapter cannot be 2.5"),
        (lambda m: dl.lora(m, dropout=1.0), "dropout cannot be 1.0"),
        (lambda m: dl.lora(m, dropout="0.1"), "dropout cannot be '0.1'"),
        (lambda m: dl.lora(m, alpha="16"), "alpha cannot be '16'"),
        (lambda m: dl.lora(m, targets=5), "targets cannot be 5"),
        (lambda m: dl.lora(m, targets=[3]), "targets cannot be "),
        (lambda m: dl.lora(m, alpha=float("nan")), "alpha cannot be nan"),
        (lambda m: dl.lora(m, modules_to_save=("tail",)), "no module of the model ends with"),
        (lambda m: dl.lora(dl.lora(m)), "has adapters already"),
        (dl.adapters.adapter_roles, "has no adapters"),
        (lambda m: dl.adapters.save_adapter(m, "nowhere"), "has no adapters"),
    ],
)
def test_what_has_no_meaning_is_refused(make, text):
    with pytest.raises(DelianError, match=re.escape(text)):
        make(small())


def test_settings_go_with_the_model():
    model = dl.lora(small(), 2, ("query",), 8)
    assert settings_of(model) == AdapterSettings("lora", ("query",), 2, 8)
    assert settings_of(dl.adapters.merged(model)) is None


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
def test_a_base_in_few_bits_takes_adapters(kind):
    dense = {"query": dl.nn.Dense.init(dl.random.key(0), 64, 12)}
    few = {"query": dl.nn.Dense(dl.quantise_weight(dense["query"].weight), dense["query"].bias)}
    near = {"query": dl.nn.Dense(few["query"].weight.expanded(), dense["query"].bias)}
    make = {
        "lora": lambda m: dl.lora(m, 2, ("query",), 8),
        "dora": lambda m: dl.dora(m, 2, ("query",), 8),
        "ia3": lambda m: dl.ia3(m, ("query",)),
    }[kind]
    x = np.random.default_rng(3).standard_normal((5, 64)).astype(np.float32)
    ours, wanted = moved(make(few)), moved(make(near))

    def run(model, x):
        return model["query"](x)

    np.testing.assert_allclose(dl.compile(run)(ours, x), run(wanted, x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        run(dl.adapters.merged(ours), x), run(wanted, x), rtol=1e-4, atol=1e-4
    )
    codes = dl.adapters.without(ours)["query"].weight.codes
    assert codes.dtype == np.int8
    assert "query.weight.base.codes" in dl.adapters.adapter_roles(ours)
    parts = dl.adapters.split(ours)

    def loss(trained, frozen, x):
        return np.sum(run(parts.join(trained, frozen), x) ** 2)

    other = dl.adapters.split(wanted)

    def wanted_loss(trained, frozen, x):
        return np.sum(run(other.join(trained, frozen), x) ** 2)

    got = dl.compile(dl.grad(loss))(parts.trained, parts.frozen, x)
    want = dl.compile(dl.grad(wanted_loss))(other.trained, other.frozen, x)
    for name, value in want.items():
        limit = 1e-4 * np.abs(value).max()
        np.testing.assert_allclose(got[name], value, rtol=1e-3, atol=limit, err_msg=name)
