"""The five models that are cut, small, with their weights and a batch; cuts along a chain, and
those that a sweep over bandwidth finds.

Tests reach this module through the fixture `placed_models` (conftest.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from delian.core.compiler import random, tree
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import DType, Function, TensorType
from delian.core.compiler.primitives import PRIMITIVES
from delian.core.learning.nn import optim, zoo
from delian.core.learning.runtime import run_once
from delian.core.learning.sampling import Samples
from delian.core.learning.task import Classification
from delian.core.placement.cut.breakpoints import sweep
from delian.core.placement.cut.cut import DEVICE, SHARED, Cut
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.cut.profile import NodeProfile
from delian.core.placement.cut.program_costs import Model, Options, problem_of
from delian.core.placement.cut.training_step import TrainingStep, step_of
from delian.core.placement.cut.value_graph import graph_of

F32, I32 = DType.F32, DType.I32
KEY = TensorType(DType.U32, (2,))
SYMBOLS = 20
MODELS: dict[str, tuple[Callable[[Any], Any], TensorType]] = {
    "lenet": (lambda k: zoo.lenet(k, (28, 28, 1), 10), TensorType(F32, (2, 28, 28, 1))),
    "resnet20": (lambda k: zoo.resnet(k, (8, 8, 3), 10), TensorType(F32, (2, 8, 8, 3))),
    "mobilenet": (lambda k: zoo.mobilenet_v2(k, (32, 32, 3), 10), TensorType(F32, (2, 32, 32, 3))),
    "lstm": (
        lambda k: zoo.char_model(k, SYMBOLS, embedding=8, width=16),
        TensorType(I32, (2, 8)),
    ),
    "transformer": (
        lambda k: zoo.transformer(k, SYMBOLS, width=16, depth=2, heads=2),
        TensorType(I32, (2, 8)),
    ),
}
# The same with one block of each kind, in place of those that repeat it: where all cuts are tried.
MODELS["resnet8"] = (lambda k: zoo.resnet(k, (8, 8, 3), 10, depth=8), MODELS["resnet20"][1])
MODELS["short mobilenet"] = MODELS["mobilenet"]
#: Not widened; smaller, then joined; wider.
_SHORT_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 1, 1))


@functools.cache
def task(name: str) -> tuple[Classification, Any, TensorType]:
    """The task, its model's weights and the type of a batch."""
    make, x = MODELS[name]
    made = Classification(name, make, Samples(2, 1.0))
    if name == "short mobilenet":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(zoo, "_MOBILE_STAGES", _SHORT_STAGES)
            return made, make(random.key(1)), x
    init = trace(make, KEY, name="init")
    leaves = run_once(init.function, [random.key(1)])
    return made, tree.unflatten(init.out_structure, leaves), x


def batch(name: str, seed: int = 0) -> list[np.ndarray]:
    """x, y and the rows' weights."""
    x = MODELS[name][1]
    rng = np.random.default_rng(seed)
    if x.dtype is F32:
        inputs = rng.normal(size=x.shape).astype(np.float32)
        labels = rng.integers(0, 10, x.shape[:1])
    else:
        inputs = rng.integers(0, SYMBOLS, x.shape).astype(np.int32)
        labels = rng.integers(0, SYMBOLS, x.shape)
    return [inputs, labels.astype(np.int32), np.ones(x.shape[0], np.float32)]


@functools.cache
def infer(name: str) -> tuple[Function, list[np.ndarray]]:
    """The program that a bundle has as `infer`, and the weights that are resident."""
    made, model, x = task(name)
    return trace(made.infer, model, x, name="infer").function, tree.leaves(model)


@functools.cache
def step(name: str, stays: bool = False) -> tuple[TrainingStep, list[np.ndarray]]:
    """A step of training with momentum, and what tiers own."""
    made, model, x = task(name)
    y = TensorType.of(batch(name)[1])
    trained = step_of(made, optim.sgd(0.1, 0.9), model, x, y, stays=stays)
    states = trained.function.param_types[trained.leaves : trained.leaves + trained.states]
    return trained, [*tree.leaves(model), *(np.zeros(t.shape, np.float32) for t in states)]


def chain_cut(function: Function, resident: Iterable[int], *at: int) -> Cut:
    """The first at[0] operations that move on the device, those from at[1] on in the cloud."""
    moves = graph_of(function, set(resident)).moves
    labels, seen = [], 0
    for flag in moves:
        labels.append(sum(seen >= a for a in at) if flag else SHARED)
        seen += flag
    return Cut(tuple(labels))


def moving(function: Function, resident: Iterable[int]) -> int:
    """How many operations have a tier."""
    return sum(graph_of(function, set(resident)).moves)


def training_cut(step: TrainingStep, *at: int) -> Cut:
    """The forward pass cut as `chain_cut` cuts; what is tied to it where it is; and of the way back
    what one tier alone reads on that tier. Where labels stay, what tells of them is on the device,
    with what is tied to that and all of the forward pass behind it: the head.
    """
    graph = step.graph()
    home = list(range(len(graph.moves)))

    def find(n: int) -> int:
        while home[n] != n:
            n = home[n]
        return n

    for a, b in step.ties:
        home[find(a)] = find(b)
    moves = [n for n, flag in enumerate(graph.moves) if flag]
    told = {
        find(n)
        for n in moves
        if any(v in step.ceilings for v in (*graph.operands[n], *graph.gives[n]))
    }
    groups = dict.fromkeys(told, DEVICE)  # by group, its tier
    head: set[int] = set()
    for seen, n in enumerate(moves):
        if n > graph.producer[graph.results[0]]:
            break
        if find(n) in told or any(graph.producer[v] in head for v in graph.operands[n]):
            head.add(n)
        wanted = DEVICE if n in head else sum(seen >= a for a in at)
        groups[find(n)] = min(groups.get(find(n), wanted), wanted)
    labels = [SHARED] * len(home)
    for n in reversed(moves):
        readers = [labels[c] for v in graph.gives[n] for c in graph.consumers[v]]
        labels[n] = groups.setdefault(find(n), max(readers, default=DEVICE))
    return Cut(tuple(labels))


#: A node of which nothing is measured: what operations take is given beside it.
_NODE = NodeProfile(
    name="any",
    cpu="",
    date="",
    threads=1,
    samples={},
    element_s={},
    bandwidth=1e9,
    memory=None,
    call_s=0.0,
    argument_s=0.0,
    encode_s={"f32": 0.0},
)
#: How many times as fast as the device the tiers are.
_SPEEDS = (1, 4, 16)


def _model(function: Function, resident: Iterable[int], options: Options) -> Model:
    """The placement problem with 10 ns for each operation on numbers and 2 ns for each byte."""
    device = [
        1e-8 * PRIMITIVES[op.name].cost(op)
        + 2e-9 * sum(v.type.nbytes for v in op.operands if isinstance(v.type, TensorType))
        for op in function.body.ops
    ]
    links = [LinkProfile(1e6, 1e6, 2e-4, 0.0), LinkProfile(1e8, 1e8, 5e-4, 0.0)]
    tiers = [[s / speed for s in device] for speed in _SPEEDS]
    return problem_of(function, set(resident), [_NODE] * len(tiers), links, options, tiers)


def swept_cuts(name: str) -> set[Cut]:
    """Every cut of `infer` that is best for some bandwidth of the first link."""
    function, weights = infer(name)
    model = _model(function, range(len(weights)), Options())
    return {model.cut(piece.placement) for piece in sweep(model.problem, 0, 1e3, 1e11)}


def swept_training_cuts(name: str, stays: bool = False) -> set[Cut]:
    """The same of a step of training."""
    trained, _ = step(name, stays)
    options = Options(returns=True, owned=trained.owned, ceilings=trained.ceilings)
    model = _model(trained.function, (), options)
    item = {op: i for i, ops in enumerate(model.groups) for op in ops}
    ties = {(item[a], item[b]) for a, b in trained.ties if item[a] != item[b]}
    problem = replace(model.problem, ties=tuple(sorted({*ties, *model.problem.ties})))
    return {model.cut(piece.placement) for piece in sweep(problem, 0, 1e3, 1e11)}


def arrays_equal(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(found, wanted, strict=True))
