"""One step of training as one program that can be cut: forward, backward and the optimiser.

    step(model, state, frozen, x, y, weight) -> loss, model', state'

A cut of it with work that comes back down is split learning (Vepakomma, Gupta, Swedish and Raskar
2018): activations go up, gradients come down, and no person chose what they are. The labels say
where operations run, reverse mode has long made the rest.

    device   forward ──┐                  ┌── backward, its weights' update
    edge               └── forward, loss, backward, its weights' update

Where labels stay on the device (`stays`), the same step is the U-shaped form of that paper's
figure 2b: the last layers run on the device too, between two visits of the edge.

    device   forward ──┐          ┌── head: forward, loss, backward ──┐           ┌── backward
    edge               └─ forward ┘                                   └─ backward ┘

A weight is on one tier and never travels, nor does what the optimiser keeps for it. So what reads
it, what makes its gradient and what makes its new value are tied together (`ties`), and a part
gives new values in addition to what it sends (`program_split.Part.updates`).

A *frozen* leaf (`learning.leaf_roles`) has neither gradient, state nor new value. It never travels
either, but may lie on several tiers, on each whose part reads it: nothing has to keep copies equal.
Of a model with adapters what is left of the way back is the gradient of activations and the
products of the adapters' rank, and it ends at the lowest adapter.

What saves values for the way back in a loop pushes them on a list, and a list cannot leave a part;
as far as their lengths are known they are tensors first (`passes.stacks`). A loop of which that is
not known runs forward and backward in one part, or the cut is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...common.errors import DelianError
from ...compiler import tree
from ...compiler.api import value_and_grad
from ...compiler.frontend import trace
from ...compiler.ir import Block, Builder, DType, Function, TensorType, Value
from ...compiler.passes.dce import dce
from ...compiler.passes.lowering.stacked_lists import lists_to_tensors
from ...compiler.passes.simplify import simplify
from ...compiler.traced import Traced
from ...learning.adapters.adapted import adapter_roles, settings_of
from ...learning.build.partial_training import partial_task
from ...learning.leaf_roles import Roles, roles_of
from ...learning.nn.optim import Optimizer, apply
from ...learning.partial import PartialTask
from ...learning.sampling import Batch
from ...learning.task import Task
from .cut import DEVICE, Cut
from .program_split import Parts, split
from .value_graph import Graph, bound_pairs, graph_of, values_of

#: Of x, y and weight.
INPUTS = 3
NUMBER = TensorType(DType.F32)
#: Operations that mix what they read.
PRODUCTS = ("dot", "conv", "conv_input_grad", "grouped_conv", "grouped_conv_input_grad")


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A step of training, ready to be cut."""

    function: Function
    """(model..., state..., frozen..., x, y, weight) -> (loss, model'..., state'...), leaf by
    leaf.
    """
    leaves: int
    """How many of the model are trained."""
    states: int
    """How many leaves the optimiser's state has; it begins with zeros."""
    ties: tuple[tuple[int, int], ...]
    """Pairs of operations that must be on one tier."""
    ceilings: Mapping[int, int]
    """By value's number, the highest tier that may see it: the device, for what reveals labels that
    stay.
    """
    frozen: int = 0
    """How many leaves of the model are not trained."""

    @property
    def owned(self) -> tuple[int, ...]:
        """The parameters that one tier has: trained leaves and the optimiser's state."""
        return tuple(range(self.leaves + self.states))

    @property
    def resident(self) -> tuple[int, ...]:
        """The parameters that each tier has whose part reads them: frozen leaves."""
        first = self.leaves + self.states
        return tuple(range(first, first + self.frozen))

    @property
    def inputs(self) -> tuple[int, ...]:
        """The parameters that the device is given: x, y, weight."""
        first = self.leaves + self.states + self.frozen
        return tuple(range(first, first + INPUTS))

    @property
    def updates(self) -> dict[int, int]:
        """By result, the parameter that it is the new value of."""
        return {1 + i: i for i in self.owned}

    def graph(self) -> Graph:
        """As placement sees it."""
        return graph_of(self.function, self.resident, self.owned)


def step_of(
    task: Task,
    optimizer: Optimizer,
    model: Any,
    x: TensorType,
    y: TensorType,
    *,
    stays: bool = False,
    name: str = "step",
    frozen: Sequence[str] | None = None,
) -> TrainingStep:
    """The step of a task.

    Args:
        model: a tree of arrays or types: f32, frozen leaves of any dtype. x, y: of one batch; x is
            raw, as `infer` takes it.
        frozen: patterns of the names of leaves that are not trained (`learning.leaf_roles`); None:
            of a model with adapters all but these, of another none.
        stays: whether labels stay on the device, and with them whatever reveals them: the loss,
            and gradients until a product with a weight has mixed them, or all of them are summed
            up to one number. (What comes out of that still says something of the labels; it is what
            split learning sends.) A frozen weight mixes nothing: the base model undoes it.

    Raises:
        ProgramError: the model does not fit the batch, or cannot be differentiated.
        DelianError: a trained leaf of the model or one of the optimiser's state is not f32; a
            pattern fits no leaf, or all are frozen.
    """
    own, types, held = _divided(task, tree.map(_type_of, model), frozen_patterns(model, frozen))
    weight = TensorType(DType.F32, (x.shape[0],))
    gradient = trace(_gradient(own), types, held, x, y, weight, name="gradient")
    first = trace(optimizer.init, types, name="first_state")
    state_types = [t for t in first.function.result_types if isinstance(t, TensorType)]
    state = tree.unflatten(first.out_structure, state_types)
    update = trace(_update(optimizer), types, state, types, name="update")
    for leaf in (*tree.leaves(types), *state_types):
        if leaf.dtype is not DType.F32:
            raise DelianError(f"a leaf of {leaf} cannot be trained in parts", "use f32")
    function, gradients = _joined(name, gradient, update, len(state_types), len(held))
    if isinstance(own, PartialTask):
        function = _named(function, own, len(state_types))
    step = TrainingStep(function, len(tree.leaves(types)), len(state_types), (), {}, len(held))
    graph, (_, labels, _) = step.graph(), step.inputs
    return replace(
        step,
        ties=tuple(sorted({*bound_pairs(graph), *_ties(graph, gradients)})),
        ceilings=dict.fromkeys(_tell_of(graph, labels, gradients), DEVICE) if stays else {},
    )


def frozen_patterns(model: Any, frozen: Sequence[str] | None) -> tuple[str, ...]:
    """The patterns given; None: a model's own, all leaves but the adapters where it has some."""
    if frozen is not None:
        return tuple(frozen)
    return adapter_roles(model) if settings_of(model) is not None else ()


def step_parts(step: TrainingStep, cut: Cut) -> Parts:
    """The parts of a step.

    Its device's, edge's and cloud's programs, by phase, and the messages between them. Raises
    CutError for a cut that breaks what `program_split` and the step ask for.
    """
    return split(
        step.function,
        step.resident,
        cut,
        returns=True,
        updates=step.updates,
        ceilings=step.ceilings,
    )


# ---------------------------------------------------------------- the program


def _type_of(leaf: Any) -> TensorType:
    return leaf if isinstance(leaf, TensorType) else TensorType.of(leaf)


def _divided(
    task: Task, types: Any, frozen: Sequence[str]
) -> tuple[Task | PartialTask, Any, list[TensorType]]:
    """The task of what is trained, that tree of types, and the types of frozen leaves."""
    if not frozen:
        return task, types, []
    partial = partial_task(task, types, roles_of(types, Roles(frozen=tuple(frozen))))
    held: list[Any] = partial.frozen
    return partial, partial.trained(types), held


def _gradient(task: Task | PartialTask) -> Any:
    def gradient(model: Any, frozen: list[Any], x: Any, y: Any, weight: Any) -> Any:
        own = task.bound(frozen) if isinstance(task, PartialTask) else task

        def loss(model: Any) -> Any:
            return own.loss(model, Batch(own.source.scaled(x), y, weight))

        return value_and_grad(loss)(model)

    return gradient


def _update(optimizer: Optimizer) -> Any:
    def update(model: Any, state: Any, gradient: Any) -> Any:
        step, state = optimizer.update(gradient, state, model)
        return apply(model, step), state

    return update


def _joined(
    name: str, gradient: Traced, update: Traced, states: int, frozen: int
) -> tuple[Function, tuple[int, ...]]:
    """The step, and by leaf its gradient's value number; -1 for one without a reader."""
    first, then = gradient.function, update.function
    leaves = len(first.body.params) - frozen - INPUTS
    model, batch = first.body.params[:leaves], first.body.params[leaves:]
    state = then.body.params[leaves : leaves + states]
    builder = Builder([p.type for p in (*model, *state, *batch)])
    own, kept = builder.params[:leaves], builder.params[leaves : leaves + states]
    loss, *slopes = builder.inline(first.body, (*own, *builder.params[leaves + states :]))
    renewed = builder.inline(then.body, (*own, *kept, *slopes))
    # The gradients are results while operations are rewritten, so that they are still known after.
    body = simplify(lists_to_tensors(builder.finish((loss, *renewed, *slopes))))
    slopes = _read_in(body, body.results[1 + len(renewed) :])
    body = dce(Block(body.params, body.ops, body.results[: 1 + len(renewed)]))
    number = {v: i for i, v in enumerate(values_of(body))}
    names = (
        *first.param_names[:leaves],
        *(f"state.{n}" for n in then.param_names[leaves : leaves + states]),
        *first.param_names[leaves:],
    )
    results = ("loss", *(f"new.{n}" for n in names[: leaves + states]))
    found = tuple(number.get(v, -1) for v in slopes)
    return Function(name, body, names, results), found


def _named(function: Function, task: PartialTask, states: int) -> Function:
    """With the names that trained and frozen leaves have in the whole model."""
    roles = zip(task.structure.paths(), task.roles, strict=True)
    frozen = [name for name, role in roles if role == "frozen"]
    leaves = [f"model.{name}" for name in task.names]
    state = function.param_names[len(leaves) : len(leaves) + states]
    names = (
        *leaves,
        *state,
        *(f"model.{name}" for name in frozen),
        *function.param_names[-INPUTS:],
    )
    results = ("loss", *(f"new.{n}" for n in names[: len(leaves) + states]))
    return Function(function.name, function.body, names, results)


def _read_in(body: Block, slopes: Sequence[Value]) -> list[Value]:
    """The gradients as the optimiser reads them: it may look past a reshape."""
    maker = {r: op for op in body.ops for r in op.results}
    read = {v for op in body.ops for v in op.operands}
    out = []
    for slope in slopes:
        while slope not in read and slope in maker and len(maker[slope].operands) == 1:
            slope = maker[slope].operands[0]
        out.append(slope)
    return out


# ---------------------------------------------------------------- what belongs together


def _ties(graph: Graph, gradients: Sequence[int]) -> Iterator[tuple[int, int]]:
    """By leaf, what reads it, handles its gradient, and makes its new value."""
    for param in sorted(graph.owned):
        value = graph.results[1 + param]
        members = {*graph.consumers[param], graph.producer[value]}
        if param < len(gradients) and gradients[param] >= 0:
            slope = gradients[param]
            members |= {*graph.consumers[slope], *_made_by(graph, slope)}
        together = sorted(n for n in members if n >= 0 and graph.moves[n])
        yield from ((together[0], n) for n in together[1:])


def _made_by(graph: Graph, value: int) -> Iterator[int]:
    """The operation that makes a value, and those before it that only prepare it."""
    made = graph.producer[value]
    while made >= 0 and graph.moves[made]:
        yield made
        moving = [v for v in graph.operands[made] if not graph.shared(v)]
        alone = len(moving) == 1 and len(graph.consumers[moving[0]]) == 1
        if not alone or moving[0] in graph.results:
            return
        made = graph.producer[moving[0]]


def _tell_of(graph: Graph, labels: int, gradients: Sequence[int]) -> list[int]:
    """The labels and what is made of them.

    It ends at products with a weight, and at single numbers made of gradients, such as a norm that
    they are clipped by.
    """
    revealing, of_weights, of_gradients = {labels}, set(graph.owned), set(gradients)
    ops = graph.function.body.ops
    for op, read, gives in zip(ops, graph.operands, graph.gives, strict=True):
        weights = of_weights.intersection(read)
        if weights and all(v in weights or graph.shared(v) for v in read):
            of_weights.update(gives)
        late = not of_gradients.isdisjoint(read)
        if late:
            of_gradients.update(gives)
        mixed = weights and op.name in PRODUCTS
        summed = late and all(r.type == NUMBER for r in op.results)
        if not revealing.isdisjoint(read) and not mixed and not summed:
            revealing.update(gives)
    return sorted(revealing)
