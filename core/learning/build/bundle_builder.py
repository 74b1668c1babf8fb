"""Builds a bundle from a task and an algorithm: traces the programs that every tier runs.

    init(key)                            -> state, memory
    client_state(state, frozen)          -> kept; if there is a client state
    client_update(state, frozen, data, key, kept)
                                         -> vector u32[L], loss f32[], finite bool[], kept
    server_update(state, memory, mean)   -> state, memory; also takes weight f32[], the sum of
                                            weights in `mean`, if the algorithm depends on
                                            the number of reports
    evaluate(model, frozen, data, key)   -> loss, correct, count (sums over the query set), and of a
                                            task with metrics of its own (above, below) of each
    personalise(state, frozen, data, key, kept) -> model
    infer(model, frozen, x)              -> logits; x is raw, as the rows of a device's data are

`frozen` are the leaves that are not trained (`partial_training`): most models have none.

With `windows` also the three of `window_programs`, for data that need not fit in memory; with
`split` those of `split_programs`, for devices that train with their edges.

`client_update` is a device's whole work in one program: every pass over its data, and at the end
the update clipped, rounded into the ring and laid out as the vector that is uploaded. `mean` is a
tree like the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...common.errors import DelianError
from ...compiler import random, tree
from ...compiler.frontend import trace
from ...compiler.ir import DType, Tensor, TensorType
from ...compiler.traced import Traced
from ...privacy.mechanisms import ring
from ...protocol.ports import DIMENSION_MAX
from ..aggregate import chains
from ..aggregate.chains import Chain
from ..aggregate.stages import Turn
from ..algorithm import Algorithm, evaluate
from ..bundle import Bundle, Manifest, check_metric_names
from ..disclosure.keys import check_keys
from ..frozen import packed, parts_of
from ..leaf import Leaf
from ..leaf_roles import Roles
from ..runtime import run_once
from ..task import Task
from . import program_contract, split_programs, window_programs
from .partial_training import Division, divided

#: Adds to a bundle of a task and an algorithm how it is trained on two tiers.
Split = Callable[[Bundle, Task, Algorithm], Bundle]
KEY = TensorType(DType.U32, (2,))
WEIGHT = TensorType(DType.F32, ())
#: A device that has anything to train on weighs at least this much.
WEIGHT_LEAST = 1.0


def build(
    task: Task,
    algorithm: Algorithm,
    data: Any,
    *,
    example: TensorType | None,
    clients_max: int,
    weight_max: float,
    seed: int,
    chain: Chain | None = None,
    clip: float = 0.0,
    releases: int = 1,
    survivors: int = 1,
    windows: bool = False,
    roles: Roles | None = None,
    split: Split | None = None,
) -> Bundle:
    """Compiles a task and an algorithm.

    Args:
        task: what is learnt.
        algorithm: how it is learnt.
        data: a SampleSet or an EpisodeTable of arrays or TensorTypes of the form of every device's.
        example: the batch that `infer` takes, not scaled: f32[B, ...], or integers for text. None:
            there is no `infer`, for what sites' scripts train.
        clients_max: the most updates in a sum, which must not overflow.
        weight_max: the largest weight of a device; weights are sent divided by it.
        seed: the seed of the first state.
        chain: the stages of an update. Its server's optimiser replaces the algorithm's. With noise
            all devices have the same weight, whatever `weight_max` is, because a weight would
            reveal something about the data.
        clip: short for chain(clip(...), quantise(), mean()).
        releases: the rounds that the noise must last for.
        survivors: the fewest devices in a round.
        windows: whether devices may also train on their rows in windows, of as many as `data` has
            room for.
        roles: which leaves of the model are frozen or personal, besides those that the model and
            the algorithm say are.
        split: adds to a bundle with the programs of `split_programs` the step that devices and
            their edges cut; None: devices train the whole model by themselves.

    Raises:
        ProgramError: the model or the algorithm does not fit the data; it names the source line.
        KeyMisuseError: a program uses a device's random key otherwise than for random numbers.
        DelianError: a leaf of the state is not f32, there is none, or too many numbers are in them;
            the ring plan would overflow, or has no room for the noise; the algorithm cannot train
            by windows.
    """
    chain = chain or chains.chain(chains.clip(clip), chains.quantise(), chains.mean())
    task, algorithm = settled(task, algorithm, chain)
    if windows:
        window_programs.check(algorithm, data)
    data = tree.map(_type_of, data)
    whole = divided(task, algorithm, roles or Roles(), seed)
    division = whole.without_values()
    init = trace(_init(division, algorithm), KEY, name="init")
    types = _results(init)
    state_structure, memory_structure = init.out_structure.children
    cut = state_structure.leaves
    names = [*division.state_names(state_structure), *memory_structure.paths()]
    _check_state(names[:cut], types[:cut])
    state = tree.unflatten(state_structure, types[:cut])
    memory = tree.unflatten(memory_structure, types[cut:])
    model, positions = _model(algorithm, division, state_structure, types[:cut])
    dimension = sum(t.size for t in types[:cut])
    promise = chain.promise(releases, survivors)
    plan = chain.ring(dimension, clients_max, promise).base
    weight_max = weight_max if promise is None else WEIGHT_LEAST
    f = functions(division, algorithm, chain, plan, weight_max, windows)
    frozen = division.types
    first_kept = trace(f["client_state"], state, frozen, name="client_state")
    kept_types = _results(first_kept)
    kept_names = division.kept_names(first_kept.out_structure)
    _check_kept(kept_names, kept_types)
    kept = tree.unflatten(first_kept.out_structure, kept_types)

    specs: dict[str, tuple[Any, ...]] = {
        "client_update": (state, frozen, data, KEY, kept),
        "server_update": (state, memory, state, *([WEIGHT] if counts_reports(algorithm) else [])),
        "evaluate": (model, frozen, data, KEY),
        "personalise": (state, frozen, data, KEY, kept),
    }
    if example is not None:
        specs["infer"] = (model, frozen, example)
    traced = {"init": init}
    traced |= {name: trace(f[name], *each, name=name) for name, each in specs.items()}
    if kept_types:
        traced["client_state"] = first_kept
    carry: tuple[Leaf, ...] = ()
    if windows:
        made = window_programs.traced(f, state, frozen, data, KEY, kept)
        carry, traced = window_programs.carried(made), traced | made
    if split is not None:
        traced |= split_programs.traced(
            division, algorithm, chain, plan, weight_max, state, data, KEY
        )
    manifest = Manifest(
        task=task.name,
        algorithm=type(algorithm).__name__,
        state=tuple(Leaf.of(n, t) for n, t in zip(names[:cut], types[:cut], strict=True)),
        memory=tuple(Leaf.of(n, t) for n, t in zip(names[cut:], types[cut:], strict=True)),
        model=positions,
        data=tuple(
            Leaf.of(n, t)
            for n, t in zip(tree.flatten(data)[1].paths("data"), tree.flatten(data)[0], strict=True)
        ),
        clip=plan.clip,
        clients_max=clients_max,
        weight_max=weight_max,
        noise=plan.noise,
        central=plan.central,
        rotated=plan.rotated,
        bits=plan.bits,
        client_state=tuple(Leaf.of(n, t) for n, t in zip(kept_names, kept_types, strict=True)),
        metrics=own_metrics(task),
        carry=carry,
        passes=algorithm.epochs if carry else 0,
        frozen=division.frozen,
        frozen_parts=parts_of(packed(whole.frozen, whole.arrays)),
    )
    first = run_once(init.function, [random.key(seed)])[:cut]
    weights = np.concatenate([np.asarray(leaf, np.float32).reshape(-1) for leaf in first])
    programs = {name: t.function for name, t in traced.items()}
    bundle = Bundle(manifest, programs, weights, frozen=whole.arrays)
    if split is not None:
        bundle = split(bundle, task, algorithm)
    return check_keys(bundle, excerpt=True)


def own_metrics(task: Task) -> tuple[str, ...]:
    """The names of the task's metrics in alphabetical order. Raises DelianError."""
    given = getattr(task, "metric_names", ())
    if not isinstance(given, tuple | list) or not all(isinstance(name, str) for name in given):
        raise DelianError(
            f"{type(task).__name__}.metric_names is {given!r:.80}",
            "a tuple of the metrics' names, as ('f1', 'top_5')",
        )
    names = tuple(sorted(given))
    check_metric_names(names)
    return names


def settled(task: Task, algorithm: Algorithm, chain: Chain) -> tuple[Task, Algorithm]:
    """The task as the algorithm has it, and the algorithm with the chain's server."""
    if (stage := chain.get("server")) is not None:
        algorithm = replace(algorithm, server=stage.made())
    return algorithm.task(task), algorithm


def functions(
    division: Division,
    algorithm: Algorithm,
    chain: Chain,
    plan: ring.RingPlan,
    weight_max: float,
    windows: bool = False,
) -> dict[str, Callable[..., Any]]:
    """The programs as functions of trees, by name, of a task and an algorithm that are settled."""
    uploaded = _uploaded(division, algorithm, chain, plan, weight_max)
    by_windows: dict[str, Callable[..., Any]] = {}
    if windows:
        remembers = chain.remembers
        by_windows = window_programs.functions(division, algorithm, remembers, uploaded)
    return {
        **by_windows,
        "init": _init(division, algorithm),
        "client_state": _client_state(division, algorithm, chain, plan),
        "client_update": _client_update(division, algorithm, uploaded),
        "server_update": _server_update(division, algorithm, weight_max),
        "evaluate": _evaluate(division, algorithm),
        "personalise": _personalise(division, algorithm, chain),
        "infer": _infer(division),
    }


def _type_of(leaf: Any) -> TensorType:
    return leaf if isinstance(leaf, TensorType) else TensorType.of(leaf)


def _check_state(names: Sequence[str], types: Sequence[TensorType]) -> None:
    """A state is what travels and is averaged: f32, some of it and not too much."""
    for name, found in zip(names, types, strict=True):
        if found.dtype is not DType.F32:
            raise DelianError(
                f"the model's `{name or 'array'}` is {found}, and a model is made of f32 arrays",
                "make it with .astype(np.float32), or mark a field that is not learnt"
                " dl.static_field()",
            )
    count = sum(t.size for t in types)
    if not 0 < count <= DIMENSION_MAX:
        raise DelianError(
            f"the model has {count} numbers to learn; from 1 to {DIMENSION_MAX} can be sent",
            "its init function gives a tree of f32 arrays",
        )


def _check_kept(names: Sequence[str], types: Sequence[TensorType]) -> None:
    """Client state is f32, and bounded: each keeps two of it on its disk."""
    for name, found in zip(names, types, strict=True):
        if found.dtype is not DType.F32:
            raise DelianError(
                f"the client state's `{name}` is {found}, and it is made of f32 arrays",
                "make it with .astype(np.float32)",
            )
    count = sum(t.size for t in types)
    if count > DIMENSION_MAX:
        raise DelianError(
            f"the client state has {count} numbers; a device keeps {DIMENSION_MAX} at most"
        )


def _results(traced: Traced) -> list[TensorType]:
    types = []
    for t in traced.function.result_types:
        assert isinstance(t, TensorType)
        types.append(t)
    return types


def _model(
    algorithm: Algorithm,
    division: Division,
    structure: tree.Structure,
    types: Sequence[TensorType],
) -> tuple[Any, tuple[int, ...]]:
    """The model's leaves as types, and where they lie: in the state, or after it in `frozen`."""
    every = [*types, *division.types]
    first = len(every) - len(division.split.state)
    state = tree.unflatten(structure, range(len(types)))
    places = algorithm.model(division.opened(state, list(range(first, len(every)))))
    positions = tuple(tree.flatten(places)[0])
    return tree.map(lambda i: every[i], places), positions


def _init(division: Division, algorithm: Algorithm) -> Any:
    def init(key: Tensor) -> Any:
        state = algorithm.init(division.task, key)
        memory = algorithm.memory(state)
        return division.shared(state), division.shared_memory(memory)

    return init


def _client_state(
    division: Division, algorithm: Algorithm, chain: Chain, plan: ring.RingPlan
) -> Any:
    def client_state(state: Any, frozen: Any) -> Any:
        whole = division.opened(state, division.first_personal(frozen))
        own = algorithm.client_state(division.task_of(frozen), whole)
        return division.kept(whole, (own, chain.remembered(plan)) if chain.remembers else own)

    return client_state


def _client_update(
    division: Division, algorithm: Algorithm, uploaded: window_programs.Uploaded
) -> Any:
    def client_update(state: Any, frozen: Any, data: Any, key: Tensor, kept: Any) -> Any:
        task = division.task_of(frozen)

        def trained(whole: Any, own: Any) -> Any:
            return algorithm.client_update(task, whole, data, random.split(key, 2)[0], own)

        return uploaded(state, kept, key, trained)

    return client_update


def _uploaded(
    division: Division, algorithm: Algorithm, chain: Chain, plan: ring.RingPlan, weight_max: float
) -> window_programs.Uploaded:
    """What a device uploads and keeps of the result of a training."""
    name = type(algorithm).__name__

    def uploaded(state: Any, kept: Any, key: Tensor, trained: Callable[[Any, Any], Any]) -> Any:
        keys = random.split(key, 2)
        whole, mine = division.opened_by(state, kept), division.own(kept)
        own, memory = mine if chain.remembers else (mine, chain.remembered(plan))
        result = program_contract.checked(name, whole, own, trained(whole, own))
        update = ring.parts(tree.leaves(division.shared(result.update)))
        # A share of the largest weight, so that the ring's bound on one update holds for every
        # device.
        weight = np.minimum(result.weight / weight_max, 1.0)
        vector, memory = chain.program(update, memory, Turn(plan, weight, keys[1]))
        after = (result.kept, memory) if chain.remembers else result.kept
        if division.has_personal:
            after = division.kept(algorithm.alone(whole, result.update), after)
        finite = np.isfinite(result.loss) & np.isfinite(ring.squares(update))
        for leaf in tree.leaves((result.kept, division.personal_of(after))):
            finite = finite & np.isfinite(np.sum(leaf))
        return vector, result.loss, finite, after

    return uploaded


def counts_reports(algorithm: Algorithm) -> bool:
    """Whether the server's update depends on how many devices reported."""
    return algorithm.reported(np.float32(1.0)) is not None


def _server_update(division: Division, algorithm: Algorithm, weight_max: float) -> Any:
    name = type(algorithm).__name__

    def updated(algorithm: Algorithm, state: Any, memory: Any, mean: Any) -> Any:
        before, known = division.opened_server(state), division.opened_memory(memory)
        after, remembered = algorithm.server_update(before, known, division.opened_server(mean))
        after = program_contract.like(
            f"the next state of {name}.server_update", "the state", before, after
        )
        remembered = program_contract.like(
            f"the memory of {name}.server_update", "that of memory()", known, remembered
        )
        return division.shared(after), division.shared_memory(remembered)

    def server_update(state: Any, memory: Any, mean: Any) -> Any:
        return updated(algorithm, state, memory, mean)

    def weighed_update(state: Any, memory: Any, mean: Any, weight: Tensor) -> Any:
        # Weights travel as shares of the largest; a device's own is one.
        own: Any = algorithm.reported(weight * weight_max)
        return updated(own, state, memory, mean)

    return weighed_update if counts_reports(algorithm) else server_update


def _evaluate(division: Division, algorithm: Algorithm) -> Any:
    names = own_metrics(division.task)

    def evaluate_model(model: Any, frozen: Any, data: Any, key: Tensor) -> Any:
        return evaluate(division.task_of(frozen), model, data, key, names, algorithm)

    return evaluate_model


def _personalise(division: Division, algorithm: Algorithm, chain: Chain) -> Any:
    name, shared = type(algorithm).__name__, algorithm.model

    def personalise(state: Any, frozen: Any, data: Any, key: Tensor, kept: Any) -> Any:
        mine = division.own(kept)
        own = mine[0] if chain.remembers else mine
        whole = division.opened_by(state, kept)
        model = algorithm.personalise(division.task_of(frozen), whole, data, key, own)
        return program_contract.like(
            f"what {name}.personalise gives", "the model", shared(whole), model
        )

    return personalise


def _infer(division: Division) -> Any:
    def infer(model: Any, frozen: Any, x: Tensor) -> Any:
        task = division.task_of(frozen)
        return task.infer(model, task.source.scaled(x))

    return infer
