"""What a federated algorithm is, and the loop that all of them share.

An algorithm is a frozen dataclass of hyperparameters; its methods are pure functions, compiled into
a bundle's programs. Its *state* is a tree of f32 arrays that every device receives; its *memory* is
the server's. A device runs `client_update` on the state and uploads the result's `update`, a tree
like the state. The server sees only the weighted mean of many updates, and makes the next state
from it.

The shared loop is local descent:

    current <- state
    for each pass:  order <- shuffle
        for each step:  g <- gradient(current, ...)        # the algorithm's own part
                        current <- current + local(g)      # the local optimiser
    upload current - state, weighed by weight(data)

    state <- state + server(-mean)                         # the server's: FedOpt (Reddi 2021)

so an algorithm is a subclass that defines its gradient and, if they differ, the steps of a pass, a
device's weight, where the loop starts and what its result is, the model in the state, or
personalization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from ..compiler import random, tree
from ..compiler.api import value_and_grad
from ..compiler.ir import Tensor
from .hyperparameters import Bounds, Rate, Steps
from .leaf_roles import Role
from .nn.optim import Optimizer, apply, sgd
from .sampling import Batch, SampleSet, SeenRows
from .task import Metrics, Task, after_step, has_statistics, own_sums

#: (task, current, state, data, order, step) -> (loss f32[], what to descend on, like `current`).
Gradient: TypeAlias = Callable[[Task, Any, Any, Any, Tensor, Any], Any]


class ClientResult(NamedTuple):
    """What a device's local training returns."""

    update: Any
    """A tree like the state."""
    weight: Tensor
    """The update's weight in the mean, f32[]."""
    loss: Tensor
    """The mean loss over steps, f32[]."""
    kept: Any = ()
    """The next client state, of the form of the one before."""


class Descent(NamedTuple):
    """The shared loop under way: what it carries from step to step."""

    count: Tensor
    """How many steps there were, f32[]."""
    current: Any
    """The model as it is now."""
    memory: Any
    """The local optimiser's state."""
    total: Tensor
    """The sum of the steps' losses, f32[]."""

    def loss(self) -> Tensor:
        """The mean loss over steps, f32[]."""
        return self.total / np.maximum(self.count, 1.0)


@dataclass(frozen=True, slots=True)
class About:
    """What reports and documents show of an algorithm."""

    title: str = ""
    """Its name as the paper writes it; empty: the name of the class."""
    paper: str = ""
    """Authors and year of the paper."""
    uploads: str = "the model's change"
    """What a device uploads."""
    keeps: str = ""
    """The client state: what a device keeps from round to round; empty: nothing."""
    unused_model: str = ""
    """What the shared model is, if no device uses it; empty: a model like any other."""


@dataclass(frozen=True)
class Algorithm:
    """Local descent, and a mean of the updates.

    `data` is a SampleSet or an EpisodeTable, `key` u32[2]. A field with `Bounds` is a key of a
    scenario (`hyperparameters`).
    """

    about: ClassVar[About] = About()
    """What reports and documents show of it."""
    source_keys: ClassVar[tuple[str, ...]] = ()
    """Fields of `Samples` or `Episodes`, besides the batch size, that are keys of its scenarios."""
    splits_rows: ClassVar[bool] = False
    """Whether a step cuts its rows in two: some are adapted on, the others make the step."""
    labels_only: ClassVar[str] = ""
    """Why it cannot learn numbers (a regression); empty: it can."""

    epochs: Steps = 1
    """Passes over a device's data in a round (E). 1: the least drift between devices."""
    local_steps: Annotated[int, Bounds(ge=0, le=10_000)] = 0
    """Steps a pass, however much data a device has. 0: as many as it has batches or episodes."""
    local: Optimizer = field(default_factory=lambda: sgd(0.1))
    """The device's optimiser; its state is zero at the start of each round."""
    server: Optimizer = field(default_factory=lambda: sgd(1.0))
    """The server's optimiser, on the negative mean update. A unit step of SGD is the mean."""
    personal_steps: Annotated[int, Bounds(ge=0, le=10_000)] = 5
    """Gradient steps of personalization. 0: none, as for a model that a device keeps (Ditto)."""
    personal_learning_rate: Rate = 0.1
    """The learning rate of the personal steps."""

    def init(self, task: Task, key: Tensor) -> Any:
        """The first state."""
        return task.init(key)

    def task(self, task: Task) -> Task:
        """The task as this algorithm has it."""
        return task

    def model(self, state: Any) -> Any:
        """The model in the state."""
        return state

    def roles(self, model: Any) -> Sequence[Role]:
        """The role of each leaf of the model's tree; empty: all are shared.

        A frozen leaf is no part of any tree that the methods get. A personal one is trained like
        the others, and no part of what travels, but of the client state: `state` has the device's
        own value of it in all methods that run on a device. Not compiled.
        """
        return ()

    def alone(self, state: Any, update: Any) -> Any:
        """The state that a device alone would go on with: where its personal leaves come from."""
        return tree.map(np.add, state, update)

    def client_state(self, task: Task, state: Any) -> Any:
        """The client state before a device first takes part, given the state it receives."""
        return ()

    def fixed_steps(self) -> int:
        """Local steps of a round that do not depend on how much data a device has; 0: they do."""
        return self.epochs * self.local_steps

    def steps(self, task: Task, data: Any) -> Any:
        """Local steps a pass."""
        return self.local_steps or task.source.steps(data)

    def batch(self, task: Task, data: Any, order: Tensor, step: Any) -> Any:
        """The batch of a step of a pass."""
        if self.local_steps:
            return task.source.cyclic(data, order, step)
        return task.source.batch(data, order, step)

    def step_share(self, task: Task, data: Any, step: Any) -> Any:
        """How much of a step that batch makes; the local optimiser's step is multiplied by it."""
        return 1.0 if self.local_steps else task.source.share(data, step)

    def whole_steps(self, task: Task, data: Any) -> Tensor:
        """How many whole steps the local training takes, one at least: the sum of all shares."""
        each = self.local_steps or task.source.length(data)
        return np.maximum(np.float32(self.epochs * each), 1.0)

    def weight(self, data: Any) -> Tensor:
        """The device's weight in the mean, f32[]: its examples, or one if it holds episodes."""
        if isinstance(data, SampleSet | SeenRows):
            return data.support.astype(np.float32)
        return np.float32(1.0)

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        """(loss f32[], gradient like the state) at `current`; `state`: as the device began."""
        return value_and_grad(task.loss)(current, self.batch(task, data, order, step))

    def starts(self, task: Task, state: Any, kept: Any) -> tuple[Any, Any]:
        """(the model that the shared loop begins with, what `gradient` gets as its state)."""
        return state, state

    def result(
        self, task: Task, state: Any, end: Any, loss: Tensor, data: Any, kept: Any
    ) -> ClientResult:
        """What a device uploads and keeps after the shared loop.

        Args:
            task: what is learnt.
            state: as the device received it.
            end: the model that the loop ended with.
            loss: the mean loss over steps, f32[].
            data: the device's data, or what was seen of it (`SeenRows`): for `weight` and
                `whole_steps`, which take either.
            kept: the client state before.
        """
        return ClientResult(tree.map(np.subtract, end, state), self.weight(data), loss, kept)

    def client_update(
        self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()
    ) -> ClientResult:
        """A device's whole local training. kept: its client state.

        An algorithm that leaves this as it is, and defines `starts` and `result`, also trains on
        data that does not fit in memory, one window of rows after the other.
        """
        start, around = self.starts(task, state, kept)
        end, loss = self.descend(task, start, around, data, key)
        return self.result(task, state, end, loss, data, kept)

    def descend(
        self,
        task: Task,
        start: Any,
        state: Any,
        data: Any,
        key: Tensor,
        gradient: Gradient | None = None,
        epochs: int | None = None,
    ) -> tuple[Any, Tensor]:
        """The shared loop: (the model that it ends with, the mean loss over steps, f32[]).

        Args:
            task: what is learnt.
            start: the model that the loop begins with.
            state: passed to `gradient`; usually the same as `start`.
            data: the device's data.
            key: orders the data, u32[2].
            gradient: in place of the algorithm's own.
            epochs: in place of the algorithm's own.
        """
        way = self.begun(start)
        for epoch in range(self.epochs if epochs is None else epochs):
            order = task.source.order(data, random.fold_in(key, epoch))
            way = self.passed(task, way, state, data, order, gradient)
        return way.current, way.loss()

    def begun(self, start: Any) -> Descent:
        """The shared loop before its first step."""
        return Descent(np.float32(0.0), start, self.local.init(start), np.float32(0.0))

    def passed(
        self,
        task: Task,
        way: Descent,
        state: Any,
        data: Any,
        order: Tensor,
        gradient: Gradient | None = None,
    ) -> Descent:
        """The shared loop after one more pass over the data, in this order."""
        gradient = gradient or self.gradient
        count, current, memory, total = way
        for step in range(self.steps(task, data)):
            loss, slope = gradient(task, current, state, data, order, step)
            change, memory = self.local.update(slope, memory, current)
            after = apply(current, shortened(change, self.step_share(task, data, step)))
            current = self.after_step(task, current, after, data, order, step)
            total, count = total + loss, count + 1.0
        return Descent(count, current, memory, total)

    def after_step(
        self, task: Task, before: Any, after: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        """What a step of the shared loop ends with: new running statistics, where the model has."""
        if not has_statistics(task, before):
            return after
        return after_step(task, before, after, self.batch(task, data, order, step))

    def memory(self, state: Any) -> Any:
        """The server state before the first round."""
        return self.server.init(state)

    def reported(self, count: Tensor) -> Algorithm | None:
        """The algorithm for the server's update of a round with so many reports, f32[].

        In a buffered run the count is the sum of the updates' discounts. None: the update does not
        depend on it. Only an algorithm whose devices all have weight one may depend on it.
        """
        return None

    def server_update(self, state: Any, memory: Any, mean: Any) -> tuple[Any, Any]:
        """The next state and memory from the weighted mean update."""
        step, memory = self.server.update(tree.map(np.negative, mean), memory, state)
        return apply(state, step), memory

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        """The device's own model: the shared one, fine-tuned on its support set."""
        return self.fine_tuned(task, self.model(state), data, key)

    def metrics(self, task: Task, model: Any, batch: Batch) -> Metrics:
        """Metrics of a model, global or personalized, on a query batch."""
        return task.metrics(model, batch)

    def fine_tuned(self, task: Task, model: Any, data: Any, key: Tensor) -> Any:
        """The model after `personal_steps` gradient steps on the support set."""
        order = task.source.order(data, key)
        for step in range(self.personal_steps):
            batch = task.source.adaptation(data, order, step)
            _, gradient = value_and_grad(task.loss)(model, batch)
            after = tree.map(lambda p, g: p - self.personal_learning_rate * g, model, gradient)
            model = after_step(task, model, after, batch)
        return model


def shortened(change: Any, share: Any) -> Any:
    """A step, or a share of it; one, where a source has no shares, leaves no operation."""
    return change if isinstance(share, float) else tree.map(lambda c: share * c, change)


def evaluate(
    task: Task,
    model: Any,
    data: Any,
    key: Tensor,
    names: tuple[str, ...] = (),
    algorithm: Algorithm | None = None,
) -> Metrics:
    """Metrics of a model on the query set.

    Args:
        task: what is learnt.
        model: a global or a personalized model.
        data: a device's data.
        key: orders the data, u32[2].
        names: of the metrics of the task's own.
        algorithm: whose `metrics` these are; None: the task's.
    """
    judge = algorithm or Algorithm()
    order = task.source.order(data, key)
    loss, correct, count = np.float32(0.0), np.float32(0.0), np.float32(0.0)
    more = {name: (np.float32(0.0), np.float32(0.0)) for name in names}
    for step in range(task.source.query_batches(data)):
        batch = task.source.query(data, order, step)
        part = judge.metrics(task, model, batch)
        loss, correct, count = loss + part.loss, correct + part.correct, count + part.count
        if names:
            more = tree.map(np.add, more, own_sums(task, names, model, batch))
    return Metrics(loss, correct, count, more if names else ())
