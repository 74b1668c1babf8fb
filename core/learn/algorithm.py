"""What a federated algorithm is, and the loop that all of them share.

An algorithm is a frozen dataclass of hyperparameters; its methods are pure functions, compiled into
a bundle's programs. Its *state* is a tree of f32 arrays, known to everybody; its *memory* is the
server's own. A device runs `client_update` on the state that it was given and uploads the result's
`update`, a tree like the state; the server sees nothing but the weighted mean of many, and makes
the next state of it.

The shared loop is local descent:

    current <- state
    for each pass:  order <- shuffle
        for each step:  g <- gradient(current, ...)        # the algorithm's own part
                        current <- current + local(g)      # the local optimiser
    upload current - state, weighed by weight(data)

    state <- state + server(-mean)                         # the server's: FedOpt (Reddi 2021)

so an algorithm is a subclass that says what its gradient is, and now and then how many steps a pass
has, what a device weighs, where the model lies in the state, or how it is made personal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .. import random, tree
from ..api import value_and_grad
from ..ir import Tensor
from ..nn.optim import Optimizer, apply, sgd
from .sampling import SampleSet
from .task import Classification, Metrics


class ClientResult(NamedTuple):
    """`update`: a tree like the state; `weight`: f32[], what the mean weighs it by; `loss`: f32[],
    mean over steps.
    """

    update: Any
    weight: Tensor
    loss: Tensor


@dataclass(frozen=True)
class Algorithm:
    """Local descent. `data` is a SampleSet or an EpisodeTable, `key` u32[2].

    Attributes:
        epochs: passes over the device's data before it uploads. local: the device's optimiser; it
        starts anew each round. server: the server's optimiser, on the negative mean update. A unit
        step of SGD is plain averaging. personal_steps: gradient steps that make the model personal.
        personal_learning_rate: their rate.
    """

    epochs: int = 1
    local: Optimizer = field(default_factory=lambda: sgd(0.1))
    server: Optimizer = field(default_factory=lambda: sgd(1.0))
    personal_steps: int = 5
    personal_learning_rate: float = 0.1

    def init(self, task: Classification, key: Tensor) -> Any:
        """The first state."""
        return task.init(key)

    def model(self, state: Any) -> Any:
        """The model in the state."""
        return state

    def steps(self, task: Classification, data: Any) -> Any:
        """Local steps a pass."""
        return task.source.steps(data)

    def weight(self, data: Any) -> Tensor:
        """What the device counts for in the mean, f32[]: its examples, or one where all hold
        episodes alike.
        """
        if isinstance(data, SampleSet):
            return data.support.astype(np.float32)
        return np.float32(1.0)

    def gradient(
        self, task: Classification, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        """(loss f32[], what to descend on, a tree like the state) at `current`; `state` is where
        the device began.
        """
        batch = task.source.batch(data, order, step)
        return value_and_grad(task.loss)(current, batch)

    def client_update(
        self, task: Classification, state: Any, data: Any, key: Tensor
    ) -> ClientResult:
        """A device's whole local training."""
        current, memory = state, self.local.init(state)
        total, count = np.float32(0.0), np.float32(0.0)
        for epoch in range(self.epochs):
            order = task.source.order(data, random.fold_in(key, epoch))
            for step in range(self.steps(task, data)):
                loss, gradient = self.gradient(task, current, state, data, order, step)
                change, memory = self.local.update(gradient, memory, current)
                current = apply(current, change)
                total, count = total + loss, count + 1.0
        update = tree.map(np.subtract, current, state)
        return ClientResult(update, self.weight(data), total / np.maximum(count, 1.0))

    def memory(self, state: Any) -> Any:
        """What the server remembers before the first round."""
        return self.server.init(state)

    def server_update(self, state: Any, memory: Any, mean: Any) -> tuple[Any, Any]:
        """The next state and memory from the weighted mean update."""
        step, memory = self.server.update(tree.map(np.negative, mean), memory, state)
        return apply(state, step), memory

    def personalise(self, task: Classification, state: Any, data: Any, key: Tensor) -> Any:
        """The device's own model: fine-tuned on its support set."""
        order = task.source.order(data, key)
        model = self.model(state)
        for step in range(self.personal_steps):
            batch = task.source.adaptation(data, order, step)
            _, gradient = value_and_grad(task.loss)(model, batch)
            model = tree.map(lambda p, g: p - self.personal_learning_rate * g, model, gradient)
        return model


def evaluate(task: Classification, model: Any, data: Any, key: Tensor) -> Metrics:
    """Metrics on the query set."""
    order = task.source.order(data, key)
    loss, correct, count = np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for step in range(task.source.query_batches(data)):
        part = task.metrics(model, task.source.query(data, order, step))
        loss, correct, count = loss + part.loss, correct + part.correct, count + part.count
    return Metrics(loss, correct, count)
