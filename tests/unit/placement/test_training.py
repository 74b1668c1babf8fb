"""Steps of training in parts: what the whole step gives, with weights that stay where they are."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import tree
from delian.core.compiler.api import module, value_and_grad
from delian.core.compiler.backends import compile_function
from delian.core.compiler.ir import DType, ListType, TensorType
from delian.core.compiler.verify import verify
from delian.core.learning.nn import optim, zoo
from delian.core.learning.sampling import Batch, Samples
from delian.core.learning.task import Classification, Regression
from delian.core.placement.cut.batched_parts import lanes
from delian.core.placement.cut.cut import DEVICE, Cut, CutError
from delian.core.placement.cut.execute import Tiers, run
from delian.core.placement.cut.owned_weights import cut_at
from delian.core.placement.cut.training_step import TrainingStep, step_of, step_parts

MODELS = ("lenet", "resnet20", "mobilenet", "lstm", "transformer")
#: Without blocks that repeat others.
SHALLOW = ("lenet", "resnet8", "short mobilenet", "lstm", "transformer")
#: mobilenet's many cuts take as long as all others' together; its blocks are in `SHALLOW`.
QUICK = tuple(name for name in MODELS if name != "mobilenet")
#: Relative to each result's largest: as for inference, and a gradient on top.
FAST = 1e-4


@module
class Linear:
    """The least that is a model."""

    matrix: np.ndarray

    def __call__(self, x: Any, weight: Any) -> Any:
        return x @ self.matrix


class Whole:
    """A step, what it gives, and how its parts compare."""

    def __init__(
        self, models: ModuleType, name: str, backend: str, profile: Any, stays: bool = False
    ) -> None:
        self.step, self.held = models.step(name, stays)
        self.batch = models.batch(name)
        self.backend, self.profile = backend, profile
        program = compile_function(self.step.function, backend, profile)
        self.results = program(*self.held, *self.batch)

    def agrees(self, cut: Cut) -> Any:
        parts = step_parts(self.step, cut)
        for part in parts.parts:
            verify(part.program)
        found = run(parts, self.held, self.batch, self.backend, self.profile)
        for new, wanted in zip(found, self.results, strict=True):
            if self.profile == "reproducible":
                assert new.tobytes() == wanted.tobytes()
            else:
                assert np.abs(new - wanted).max() <= FAST * max(np.abs(wanted).max(), 1e-3)
        return parts


def forward_ops(step: TrainingStep) -> int:
    """The operations that move, up to the loss."""
    graph = step.graph()
    return sum(graph.moves[: graph.producer[graph.results[0]] + 1])


@pytest.mark.parametrize("name", MODELS)
def test_split_training_gives_the_bits_of_the_whole_step(
    placed_models: ModuleType, name: str
) -> None:
    whole = Whole(placed_models, name, "reference", "reproducible")
    count = forward_ops(whole.step)
    parts = whole.agrees(placed_models.training_cut(whole.step, count // 3))
    # Forward, forward and backward, backward; on either tier weights are renewed, and none travels.
    assert [(p.tier, p.phase) for p in parts.parts] == [(0, 0), (1, 0), (0, 1)]
    device, edge, after = parts.parts
    assert device.updates == () and edge.updates and after.updates
    assert sorted(edge.updates + after.updates) == list(whole.step.owned)
    travels = {p.value for m in parts.messages for p in m.ports}
    assert travels.isdisjoint(whole.step.owned)


@pytest.mark.parametrize("name", ["lenet", "lstm"])
def test_three_tiers_train_too(placed_models: ModuleType, name: str) -> None:
    whole = Whole(placed_models, name, "reference", "reproducible")
    count = forward_ops(whole.step)
    parts = whole.agrees(placed_models.training_cut(whole.step, count // 3, 2 * count // 3))
    assert [p.tier for p in parts.parts] == [0, 1, 2, 1, 0]


@pytest.mark.parametrize("name", ["lenet", "transformer"])
def test_labels_that_stay_make_it_u_shaped(placed_models: ModuleType, name: str) -> None:
    whole = Whole(placed_models, name, "reference", "reproducible", stays=True)
    count = forward_ops(whole.step)
    parts = whole.agrees(placed_models.training_cut(whole.step, count // 3))
    assert [p.tier for p in parts.parts] == [0, 1, 0, 1, 0]
    up = {p.value for p in parts.crossing(0, up=True)}
    y = len(whole.step.owned) + 1
    assert whole.step.ceilings[y] == DEVICE and up and up.isdisjoint(whole.step.ceilings)
    # What comes down in the first turn is the head's input, what goes up then its gradient.
    down, back = (
        [p.type for p in parts.crossing(0, up, turn) if p.type.rank]
        for up, turn in ((0, 0), (1, 1))
    )
    assert down == back and len(down) == 1
    free, _ = placed_models.step(name)
    with pytest.raises(CutError, match="may go no higher than 0"):
        step_parts(whole.step, placed_models.training_cut(free, count // 3))


@pytest.mark.parametrize("name", QUICK)
def test_every_cut_of_a_step_that_a_sweep_finds_gives_the_same_bits(
    placed_models: ModuleType, name: str
) -> None:
    whole = Whole(placed_models, name, "reference", "reproducible")
    for cut in placed_models.swept_training_cuts(name):
        whole.agrees(cut)


def test_native_parts_of_a_step_give_the_bits_of_the_native_whole(
    placed_models: ModuleType,
) -> None:
    whole = Whole(placed_models, "lenet", "native", "reproducible")
    whole.agrees(placed_models.training_cut(whole.step, forward_ops(whole.step) // 2))


def test_steps_follow_one_another_and_the_loss_falls(placed_models: ModuleType) -> None:
    step, held = placed_models.step("lenet")
    batch = placed_models.batch("lenet")
    parts = step_parts(step, placed_models.training_cut(step, forward_ops(step) // 2))
    tiers, losses = Tiers(parts, "reference"), []
    assert parts.resident == step.owned
    for _ in range(8):
        loss, *held = tiers(held, batch)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("copied", [False, True])
def test_an_edge_trains_for_several_devices_in_one_call(
    placed_models: ModuleType, copied: bool
) -> None:
    """Each lane's new weights are those of its device alone, from weights that all share or from
    its own copy; their mean is the step of the mean gradient.
    """
    step, held = placed_models.step("lenet")
    cut = placed_models.training_cut(step, forward_ops(step) // 3)
    _, edge, _ = step_parts(step, cut).parts
    own = [held[i] for i in edge.resident]
    rng = np.random.default_rng(0)
    weights = [np.stack([w, w + np.float32(0.125), w]) if copied else w for w in own]
    inputs = []
    for port in edge.inputs:
        shape = (3, *port.type.shape)
        whole_numbers = port.type.dtype.is_int
        drawn = rng.integers(0, 10, shape) if whole_numbers else rng.uniform(0.5, 1, shape)
        inputs.append(drawn.astype(port.type.dtype.numpy))
    many = lanes(edge, 3, copied=edge.resident if copied else ())
    verify(many.program)
    run_many = compile_function(many.program, "reference", "reproducible")
    run_one = compile_function(edge.program, "reference", "reproducible")
    found = run_many(*weights, *inputs)
    for k in range(3):
        alone = run_one(*(w[k] if copied else w for w in weights), *(x[k] for x in inputs))
        assert placed_models.arrays_equal([f[k] for f in found], alone)


def test_what_a_loop_saves_for_the_way_back_is_a_tensor(placed_models: ModuleType) -> None:
    step, _ = placed_models.step("lstm")
    graph = step.graph()
    assert any(op.name == "for" for op in step.function.body.ops)
    assert not any(isinstance(v.type, ListType) for v in graph.values)


def test_a_weight_its_gradient_and_its_new_value_are_tied(placed_models: ModuleType) -> None:
    step, _ = placed_models.step("lenet")
    graph = step.graph()
    ops = step.function.body.ops
    tied: dict[int, int] = {}
    for a, b in step.ties:
        tied[b] = tied.get(a, a)
    kernel = 0  # of the first convolution
    reader = graph.consumers[kernel][0]
    renewed = graph.producer[graph.results[1 + kernel]]
    group = {n for n in range(len(ops)) if tied.get(n, n) == tied.get(reader, reader)}
    assert renewed in group and "conv_weight_grad" in {ops[n].name for n in group}
    labels = list(placed_models.training_cut(step, 0).labels)
    labels[renewed] = 0
    with pytest.raises(CutError):
        step_parts(step, Cut(tuple(labels)))


@pytest.mark.parametrize("optimizer", [optim.adam(0.01), optim.sgd(0.1), optim.adamw(0.01)])
def test_any_optimiser_takes_part(placed_models: ModuleType, optimizer: optim.Optimizer) -> None:
    task, model, x = placed_models.task("lenet")
    x_array, y, weight = placed_models.batch("lenet")
    step = step_of(task, optimizer, model, x, TensorType.of(y))
    types = step.function.param_types[step.leaves : step.leaves + step.states]
    held = [*placed_models.step("lenet")[1][: step.leaves]]
    held += [np.zeros(t.shape, np.float32) for t in types]
    whole = compile_function(step.function, "reference")(*held, x_array, y, weight)
    parts = step_parts(step, placed_models.training_cut(step, 12))
    found = run(parts, held, [x_array, y, weight])
    assert {p.tier for p in parts.parts} == {0, 1}
    assert placed_models.arrays_equal(found, whole)


def test_clipping_by_the_norm_of_all_gradients_leaves_labels_where_they_are() -> None:
    """One number goes up for it; a leaf of one number, too, is tied to its gradient."""
    task = Regression("line", lambda key: zoo.Mlp.init(key, 4, (8,), 1), Samples(2, 1.0))
    model = task.init(np.array([0, 1], np.uint32))
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.sgd(0.1))
    x, y = TensorType(DType.F32, (2, 4)), TensorType(DType.F32, (2,))
    step = step_of(task, optimizer, model, x, y, stays=True)
    graph = step.graph()
    read = {v for ops in graph.operands for v in ops}.union(graph.results)
    assert all(v in read for gives in graph.gives for v in gives)  # nothing is dead
    # The first layer above, the second below with the labels.
    parts = step_parts(step, cut_at(step, {0: 1, 1: 1, 2: 0, 3: 0}))
    assert parts.homes == {0: 1, 1: 1, 2: 0, 3: 0}
    up = [p.type for p in parts.crossing(0, up=True)]
    assert TensorType(DType.F32) in up
    held = tree.leaves(model)
    batch = [np.ones((2, 4), np.float32), np.ones(2, np.float32), np.ones(2, np.float32)]
    whole = compile_function(step.function, "reference")(*held, *batch)
    found = run(parts, held, batch)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, whole, strict=True))


def test_a_step_is_what_training_is(placed_models: ModuleType) -> None:
    """Against the task's gradient and the optimiser, called as plain functions."""
    task, model, _ = placed_models.task("lenet")
    batch = placed_models.batch("lenet")
    optimizer = optim.sgd(0.1, 0.9)
    loss, gradient = value_and_grad(task.loss)(model, Batch(*batch))
    change, _ = optimizer.update(gradient, optimizer.init(model), model)
    wanted = tree.leaves(optim.apply(model, change))
    step, held = placed_models.step("lenet")
    found = compile_function(step.function, "reference")(*held, *batch)
    np.testing.assert_allclose(found[0], loss, rtol=1e-5)
    for new, expected in zip(found[1 : 1 + step.leaves], wanted, strict=True):
        np.testing.assert_allclose(new, expected, rtol=1e-4, atol=1e-6)


def test_a_model_of_other_than_f32_is_refused(placed_models: ModuleType) -> None:
    wrong = Classification("wrong", lambda key: None, Samples(2, 1.0))
    x, y = TensorType(DType.F64, (2, 3)), TensorType(DType.I32, (2,))
    with pytest.raises(DelianError, match="cannot be trained in parts"):
        step_of(wrong, optim.sgd(0.1), Linear(np.ones((3, 4))), x, y)


# All of it


@pytest.mark.slow
@pytest.mark.parametrize("name", SHALLOW)
@pytest.mark.parametrize("stays", [False, True])
def test_training_cut_along_the_chain(placed_models: ModuleType, name: str, stays: bool) -> None:
    whole = Whole(placed_models, name, "reference", "reproducible", stays)
    count = forward_ops(whole.step)
    for at in np.unique(np.linspace(0, count, 16).astype(int)):
        whole.agrees(placed_models.training_cut(whole.step, at))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_u_shaped_cuts_of_a_sweep(placed_models: ModuleType, name: str) -> None:
    whole = Whole(placed_models, name, "reference", "reproducible", stays=True)
    for cut in placed_models.swept_training_cuts(name, stays=True):
        whole.agrees(cut)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "name"), [(p, m) for m in SHALLOW for p in ("reproducible", "fast")]
)
def test_native_training_cuts_of_the_sweep(
    placed_models: ModuleType, name: str, profile: str
) -> None:
    whole = Whole(placed_models, name, "native", profile)
    cuts = sorted(placed_models.swept_training_cuts(name), key=lambda c: c.labels)
    for cut in cuts[:: -(-len(cuts) // (4 if profile == "reproducible" else 2))]:  # C is slow
        whole.agrees(cut)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHALLOW)
@pytest.mark.parametrize("profile", ["reproducible", "fast"])
def test_native_training_cut_along_the_chain(
    placed_models: ModuleType, name: str, profile: str
) -> None:
    whole = Whole(placed_models, name, "native", profile)
    count = forward_ops(whole.step)
    for at in np.unique(np.linspace(0, count, 5).astype(int))[1:-1]:  # the ends are whole
        whole.agrees(placed_models.training_cut(whole.step, at))
