"""Steps of models with frozen leaves, in parts: what the whole step gives, and what lies where."""

from __future__ import annotations

from types import ModuleType

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import tree
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.bundle import pack, unpack
from delian.core.learning.nn import Mlp, optim
from delian.core.placement.cut.cut import DEVICE, EDGE, CutError
from delian.core.placement.cut.owned_weights import cut_at, kept_below
from delian.core.placement.cut.problem import PlacementError
from delian.core.placement.cut.training_step import step_of
from delian.core.placement.split_training.step_bundle import StepBundle
from delian.core.placement.split_training.step_sides import Stepper

STEPS = 5
#: A block's adapters: A and B of query and of value.
BLOCK = 4
#: Of two blocks and the wide layer.
LEAVES = 2 * BLOCK + 2
FIRST_BELOW = {i: DEVICE if i < BLOCK else EDGE for i in range(LEAVES)}
ALL_ABOVE = dict.fromkeys(range(LEAVES), EDGE)
BASE = "blocks.{}.attention.query.weight.base"


@pytest.fixture(scope="module")
def model(adapted_steps: ModuleType):
    return adapted_steps.classifier()


@pytest.fixture(scope="module")
def bundle(adapted_steps: ModuleType, model):
    return adapted_steps.bundle_of(model)


class SplitSteps:
    """Steps in two tiers: each side has the frozen leaves of its own part, and no others."""

    def __init__(self, bundle, cut, model, backend="reference"):
        self.bundle, self.parts = bundle, bundle.parts(cut)
        own, frozen = bundle.divided(model)
        sides = [bundle.held(self.parts, above, frozen) for above in (False, True)]
        self.held = sides
        self.stepper = Stepper(self.parts, backend, "reproducible", {**sides[0], **sides[1]})
        self.device, self.edge = (
            bundle.started(self.parts, up, {i: own[i] for i in bundle.owned_by(self.parts, up)})
            for up in (False, True)
        )

    def run(self, batches):
        losses = []
        for batch in batches:
            (self.device,), self.edge, (told,) = self.stepper.step(
                [self.device], self.edge, [batch]
            )
            losses.append(float(told[0]))
        every = {**self.device, **self.edge}
        return losses, {i: every[i] for i in range(self.bundle.step.leaves)}


def names_of(bundle, parts, above):
    return {bundle.frozen[k].name for k in bundle.frozen_of(parts, above)}


@pytest.mark.parametrize(
    ("homes", "backend"),
    [(FIRST_BELOW, "reference"), (ALL_ABOVE, "reference"), (FIRST_BELOW, "native")],
)
def test_steps_in_parts_give_the_bits_of_whole_steps(adapted_steps, model, bundle, homes, backend):
    given = adapted_steps.batches(STEPS)
    split = SplitSteps(bundle, cut_at(bundle.step, homes), model, backend)
    losses, leaves = split.run(given)
    wanted_losses, wanted = adapted_steps.whole_steps(bundle, model, given)
    assert losses == wanted_losses
    for i, leaf in wanted.items():
        assert leaves[i].tobytes() == leaf.tobytes(), bundle.leaves[i].name


def test_steps_are_those_of_plain_fine_tuning(adapted_steps, model, bundle):
    """By gradients of functions of NumPy arrays with respect to adapters alone."""
    given = adapted_steps.batches(STEPS)
    losses, leaves = SplitSteps(bundle, cut_at(bundle.step, FIRST_BELOW), model).run(given)
    plain = list(adapted_steps.plain_steps(model, given, optim.sgd(0.1, 0.9)))
    np.testing.assert_allclose(losses, [loss for loss, _ in plain], rtol=1e-6)
    first, last = bundle.divided(model)[0], plain[-1][1]
    for i, leaf in enumerate(bundle.leaves):
        np.testing.assert_allclose(leaves[i], last[leaf.name], rtol=1e-6, atol=1e-6)
        assert np.abs(leaves[i] - first[i]).max() > 1e-4, "a leaf that is trained moves"


def test_steps_are_those_of_pytorch(adapted_steps, model, bundle):
    pytest.importorskip("torch")
    given = adapted_steps.batches(STEPS)
    losses, leaves = SplitSteps(bundle, cut_at(bundle.step, FIRST_BELOW), model).run(given)
    wanted_losses, wanted = adapted_steps.torch_steps(model, given, 0.1, 0.9)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)
    for i, leaf in enumerate(bundle.leaves):
        np.testing.assert_allclose(leaves[i], wanted[leaf.name], rtol=1e-4, atol=1e-5)


def test_frozen_leaves_have_no_gradient_no_state_and_no_message(bundle):
    step = bundle.step
    assert (step.leaves, step.states, len(bundle.frozen)) == (LEAVES, LEAVES, step.frozen)
    assert len(step.function.body.results) == 1 + step.leaves + step.states
    frozen = {leaf.shape for leaf in bundle.frozen if len(leaf.shape) == 2}
    made = {r.type.shape for op in step.function.body.ops if op.name == "dot" for r in op.results}
    assert (16, 2) in made, "of an adapter"
    assert not made & frozen - {(16, 16)}  # of scores of heads no weight has the shape
    parts = bundle.parts(cut_at(step, FIRST_BELOW))
    travels = {p.value for m in parts.messages for p in m.ports}
    assert travels.isdisjoint(step.resident) and travels.isdisjoint(step.owned)
    assert not {i for p in parts.parts for i in p.updates} & set(step.resident)


def test_a_side_holds_the_frozen_leaves_of_its_part(bundle, model):
    parts = bundle.parts(cut_at(bundle.step, FIRST_BELOW))
    below, above = (names_of(bundle, parts, up) for up in (False, True))
    assert "embedding.table" in below - above
    assert BASE.format(0) in below - above and BASE.format(1) in above - below
    assert "head.weight" in above - below
    assert below | above == {leaf.name for leaf in bundle.frozen}


def test_without_adapters_below_only_the_loss_comes_down(bundle):
    parts = bundle.parts(cut_at(bundle.step, ALL_ABOVE))
    assert [p.type for p in parts.crossing(0, up=False)] == [TensorType(DType.F32)]
    assert [p.tier for p in parts.parts] == [DEVICE, EDGE]
    lower = bundle.parts(cut_at(bundle.step, FIRST_BELOW))
    assert len(lower.crossing(0, up=False)) > 1, "a gradient, for the device's adapters"


def test_tokens_do_not_leave_in_any_form(bundle):
    """Nor as 64-bit numbers: what indexes the table is on the device, and so the table."""
    graph = bundle.step.graph()
    tokens = bundle.step.inputs[0]
    rewritten = [v for v in bundle.step.ceilings if v != tokens]
    assert {graph.values[v].type.dtype for v in rewritten} == {DType.I64}
    labels = list(cut_at(bundle.step, ALL_ABOVE).labels)
    for n in graph.consumers[tokens]:
        labels[n] = DEVICE
    for v in rewritten:
        for n in (graph.producer[v], *graph.consumers[v]):
            raised = list(labels)
            raised[n] = EDGE
            with pytest.raises(CutError, match="may go no higher than 0"):
                bundle.parts(type(cut_at(bundle.step, ALL_ABOVE))(tuple(raised)))


def test_scaled_rows_do_not_leave_either():
    task = Classification("net", lambda key: Mlp.init(key, 5, (4,), 3), Samples(6, 0.25))
    x, y = TensorType(DType.F32, (6, 5)), TensorType(DType.I64, (6,))
    step = kept_below(step_of(task, optim.sgd(0.1), task.init(dl.random.key(3)), x, y))
    with pytest.raises(PlacementError):
        cut_at(step, {0: EDGE, 1: EDGE})


def test_labels_stay_below_a_head_that_is_trained(adapted_steps):
    model = adapted_steps.classifier(saved=("head",))
    bundle = adapted_steps.bundle_of(model, labels_stay=True)
    names = [leaf.name for leaf in bundle.leaves]
    homes = {i: DEVICE if n.startswith(("head", "blocks.0")) else EDGE for i, n in enumerate(names)}
    split = SplitSteps(bundle, cut_at(bundle.step, homes), model)
    y = bundle.step.inputs[1]
    assert y not in {p.value for p in split.parts.crossing(0, up=True)}
    assert [p.tier for p in split.parts.parts] == [0, 1, 0, 1, 0]
    given = adapted_steps.batches(STEPS)
    losses, leaves = split.run(given)
    wanted_losses, wanted = adapted_steps.whole_steps(bundle, model, given)
    assert losses == wanted_losses
    assert all(leaves[i].tobytes() == leaf.tobytes() for i, leaf in wanted.items())


def test_a_frozen_head_hides_no_labels(adapted_steps, model):
    """Its weight is known above, and a known product is undone: adapters then stay below."""
    bundle = adapted_steps.bundle_of(model, labels_stay=True)
    with pytest.raises(PlacementError):
        cut_at(bundle.step, ALL_ABOVE)


def test_patterns_freeze_leaves_of_any_model():
    """The first layer of a net, of which the second alone is trained, against both trained."""
    task = Classification("net", lambda key: Mlp.init(key, 5, (4,), 3), Samples(6, 1.0))
    model = task.init(dl.random.key(3))
    x, y = TensorType(DType.F32, (6, 5)), TensorType(DType.I64, (6,))
    bundle = StepBundle.of(task, optim.sgd(0.1), model, x, y, frozen=("layers.0.*",))
    whole = StepBundle.of(task, optim.sgd(0.1), model, x, y)
    assert [leaf.name for leaf in bundle.frozen] == ["layers.0.weight", "layers.0.bias"]
    assert [leaf.name for leaf in bundle.leaves] == ["layers.1.weight", "layers.1.bias"]
    rng = np.random.default_rng(0)
    batch = [rng.normal(size=(6, 5)).astype(np.float32), rng.integers(0, 3, 6)]
    batch.append(np.ones(6, np.float32))
    split = SplitSteps(bundle, cut_at(bundle.step, {0: EDGE, 1: EDGE}), model)
    every = SplitSteps(whole, cut_at(whole.step, {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE}), model)
    loss, leaves = split.run([batch])
    other, wanted = every.run([batch])
    assert loss == other
    assert all(np.array_equal(leaves[i], wanted[2 + i]) for i in (0, 1))
    assert not split.bundle.owned_by(split.parts, above=False)


def test_nothing_is_frozen_where_nothing_says_so(adapted_steps):
    model = dl.adapters.without(adapted_steps.classifier(depth=1))
    assert not adapted_steps.bundle_of(model).frozen
    with pytest.raises(DelianError, match="no leaf of the model is shared"):
        adapted_steps.bundle_of(model, frozen=("*",))
    with pytest.raises(DelianError, match="no leaf of the model fits"):
        adapted_steps.bundle_of(model, frozen=("body.*",))


# ---------------------------------------------------------------- the bundle


def test_a_bundle_names_frozen_leaves_and_has_none_of_their_bytes(bundle, model, tmp_path):
    bundle.save(tmp_path / "step.dlb")
    read = StepBundle.load(tmp_path / "step.dlb")
    assert read.content_hash() == bundle.content_hash()
    assert (read.frozen, read.frozen_parts) == (bundle.frozen, bundle.frozen_parts)
    assert read.step.resident == bundle.step.resident
    table = model.embedding.table
    assert np.asarray(table).tobytes() not in bundle.to_bytes()
    cut = cut_at(bundle.step, FIRST_BELOW)
    assert cut_at(read.step, FIRST_BELOW) == cut
    assert read.parts(cut).messages == bundle.parts(cut).messages


def test_a_leaf_of_another_base_model_is_refused(bundle, model):
    parts = bundle.parts(cut_at(bundle.step, FIRST_BELOW))
    _, frozen = bundle.divided(model)
    name = BASE.format(1)
    other = {**frozen, name: frozen[name] + np.float32(1e-3)}
    assert bundle.held(parts, False, other), "the device's part has no need of it"
    with pytest.raises(DelianError, match="not the one that the step names"):
        bundle.held(parts, True, other)
    with pytest.raises(DelianError, match="is f32"):
        bundle.held(parts, True, {**frozen, name: frozen[name][:4]})
    del other[name]
    with pytest.raises(DelianError, match="is missing"):
        bundle.held(parts, True, other)


def test_a_model_of_other_leaves_is_refused(bundle, adapted_steps):
    with pytest.raises(DelianError, match="not the step's"):
        bundle.divided(adapted_steps.classifier(depth=1))


def changed(bundle, change):
    found = unpack(bundle.to_bytes(), "it")
    body, parts = found.body, found.parts
    kept = {k: v for k, v in body.items() if k not in ("format", "parts")}
    first, *others = kept["frozen"]
    return pack({**kept, "frozen": [{**first, **change}, *others] if change else others}, parts)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"digest": "0" * 63},
        {"digest": None},
        {"shape": [3, 3]},
        {"dtype": "f64"},
        {"dtype": "nothing"},
        {"name": "head.weight"},
        {"shape": "wide"},
    ],
)
def test_a_manifest_whose_frozen_leaves_are_not_the_programs_is_refused(bundle, change):
    with pytest.raises(DelianError):
        StepBundle.parse(changed(bundle, change))


def test_frozen_leaves_have_any_dtype(adapted_steps):
    """A table in f64 and one of whole numbers, which no gradient could be of."""

    @dl.module
    class TwoTables:
        table: dl.Tensor
        counts: dl.Tensor
        head: dl.nn.Dense

        def __call__(self, x):
            rows = self.table[x] * self.counts[x][..., None]
            return self.head(np.sum(rows.astype(np.float32), axis=1))

    rng = np.random.default_rng(0)
    net = TwoTables(
        rng.normal(size=(adapted_steps.SYMBOLS, 4)),
        rng.integers(1, 4, adapted_steps.SYMBOLS).astype(np.int8),
        dl.nn.Dense.init(dl.random.key(0), 4, adapted_steps.CLASSES),
    )
    bundle = adapted_steps.bundle_of(net, frozen=("table", "counts"))
    assert [leaf.dtype for leaf in bundle.frozen] == ["f64", "i8"]
    given = adapted_steps.batches(2)
    split = SplitSteps(bundle, cut_at(bundle.step, {0: EDGE, 1: EDGE}), net)
    losses, leaves = split.run(given)
    wanted_losses, wanted = adapted_steps.whole_steps(bundle, net, given)
    assert losses == wanted_losses
    assert all(leaves[i].tobytes() == wanted[i].tobytes() for i in wanted)
    assert len(tree.leaves(net)) == 4
