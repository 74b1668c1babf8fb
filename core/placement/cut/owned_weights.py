"""The cut of a training step for weights whose tiers are given.

Which tier owns a weight is the user's choice (a first layer on the device, so that raw data stay; a
large middle above), and where the rest runs follows from it.

What reads a weight, makes its gradient or its new value is where the weight is (`training_step`).
All else goes where the fewest bytes cross, up and down together: a minimum cut (`solver`) whose
items are the step's operations. The batch itself stays on the device, and with it whatever the step
says may not leave (`TrainingStep.ceilings`). What stays of the batch is its input in any form: as
other numbers, scaled, in another order. It ends where a product with a weight, or a look-up in one,
gives something else (`_raw_of`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ...common.errors import DelianError
from ...compiler.ir import DType, ListType, TensorType
from .cut import DEVICE, SHARED, TIERS_MAX, Cut
from .problem import Hop, Item, Problem, Tensor, Wire
from .solver import solve
from .training_step import NUMBER, PRODUCTS, TrainingStep
from .value_graph import Graph
from .wire_formats import wires_of

#: What an operation costs, in bytes, so that of cuts with equal bytes the one with more work above
#: is taken: a step has fewer operations than this has parts.
_WORK = (2e-5, 1e-5, 1e-5)
#: Operations that give, of a weight and an input, something that is not the input in other words.
_MIXING = frozenset([*PRODUCTS, "take"])


def kept_below(step: TrainingStep) -> TrainingStep:
    """The step with its raw input, and what only rewrites it, kept on the device as well."""
    raw = _raw_of(step.graph(), step.inputs[0])
    return replace(step, ceilings={**step.ceilings, **dict.fromkeys(raw, DEVICE)})


def cut_at(step: TrainingStep, homes: Mapping[int, int], wire: str = "f32") -> Cut:
    """The cut with the fewest bytes that has these leaves at these tiers.

    homes: by leaf's number, its tier; the others' follow. wire: how f32 tensors travel.

    Raises:
        DelianError: a leaf or a tier that there is not, or a wire.
        PlacementError: no cut has the leaves there and keeps the batch, or labels, on the device.
    """
    tiers = max(homes.values(), default=DEVICE) + 1
    if any(not 0 <= i < step.leaves for i in homes) or not 1 <= tiers <= TIERS_MAX:
        raise DelianError(
            f"weights {sorted(homes)} at tiers {sorted(set(homes.values()))}, of a step with"
            f" {step.leaves} of them",
            f"leaves count from 0, tiers from 0 to {TIERS_MAX - 1}",
        )
    graph = step.graph()
    if tiers == 1:
        return Cut(tuple(DEVICE if moves else SHARED for moves in graph.moves))
    item = {n: k for k, n in enumerate(n for n, moves in enumerate(graph.moves) if moves)}
    pins = {item[n]: home for i, home in homes.items() for n in graph.consumers[i]}
    work = _WORK[:tiers]
    values, tensors = _tensors(graph, item, step)
    found = solve(
        Problem(
            items=tuple(Item(work, pin=pins.get(k)) for k in range(len(item))),
            tensors=tensors,
            hops=(Hop(1.0, 1.0),) * (tiers - 1),
            ties=tuple((item[a], item[b]) for a, b in step.ties),
            returns=True,
        )
    )
    labels = [SHARED] * len(graph.moves)
    for n, k in item.items():
        labels[n] = found.labels[k]
    crossing = {values[c.tensor] for c in found.crossings}
    wires = {v: wire for v in crossing if "f32" in wires_of(graph.values[v].tensor)}
    return Cut(tuple(labels), wires)


def _raw_of(graph: Graph, x: int) -> list[int]:
    """The input and what is made of it without a weight that mixes it.

    Two things end it besides: a single number, such as the norm of a gradient; and a bool for each
    element at most, such as which tokens are padding.
    """
    raw, of_weights = {x}, {*graph.owned, *graph.resident}
    most = math.prod(graph.values[x].tensor.shape)
    for op, read, gives in zip(graph.function.body.ops, graph.operands, graph.gives, strict=True):
        weights = of_weights.intersection(read)
        if weights and all(v in weights or graph.shared(v) for v in read):
            of_weights.update(gives)
        if raw.isdisjoint(read) or (weights and (op.name in _MIXING or op.regions)):
            continue
        types = [r.type for r in op.results]
        if not all(t == NUMBER or _is_mask(t, most) for t in types):
            raw.update(gives)
    return sorted(raw)


def _is_mask(type: TensorType | ListType, most: int) -> bool:
    return (
        isinstance(type, TensorType) and type.dtype is DType.BOOL and math.prod(type.shape) <= most
    )


def _tensors(
    graph: Graph, item: Mapping[int, int], step: TrainingStep
) -> tuple[list[int], tuple[Tensor, ...]]:
    """What may cross, by value's number and as the problem has it."""
    values, tensors = [], []
    for v, readers in enumerate(graph.consumers):
        is_loss = v == graph.results[0]
        if graph.shared(v) or v in graph.owned or not (readers or is_loss):
            continue
        type = graph.values[v].type
        wires = () if isinstance(type, ListType) else (Wire(type.dtype.value, type.nbytes),)
        values.append(v)
        tensors.append(
            Tensor(
                producer=None if graph.producer[v] < 0 else item[graph.producer[v]],
                consumers=tuple(item[n] for n in readers),
                wires=wires,
                ceiling=step.ceilings.get(v),
                result=is_loss,
            )
        )
    return values, tuple(tensors)
