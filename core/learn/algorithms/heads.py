"""A shared body and a head of one's own: FedPer, FedRep and FedBABU.

A model's *head* is its last leaves, in its tree's order: the weight and the bias of the last layer.
The rest is the body, which all devices learn together. An upload has the model's form, with zeros
in the place of the head: what a head learns of a device's labels never leaves the device.

- FedPer: Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization
  Layers", arXiv:1912.00818, algorithm 1: body and head are trained together.
- FedRep: Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for
  Personalized Federated Learning", ICML 2021, algorithm 1: the head first, for some passes, with
  the body fixed; then the body, with the head fixed.
- FedBABU: Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image
  Classification", ICLR 2022, algorithm 1: the head stays as it was first drawn, the same one for
  everybody, until the body is done; then each device fine-tunes both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import random, tree
from ...api import grad
from ...ir import Tensor
from ..algorithm import Algorithm, ClientResult, Gradient
from ..task import Task


def head_of(model: Any, leaves: int) -> list[Tensor]:
    """The last `leaves` leaves."""
    return list(tree.leaves(model)[-leaves:])


def with_head(model: Any, head: list[Tensor]) -> Any:
    """The model with these for its last leaves."""
    leaves, structure = tree.flatten(model)
    return tree.unflatten(structure, [*leaves[: -len(head)], *head])


def body_only(change: Any, leaves: int) -> Any:
    """The tree with zeros in the place of the head."""
    return with_head(change, [np.zeros_like(leaf) for leaf in head_of(change, leaves)])


def head_only(change: Any, leaves: int) -> Any:
    """The tree with zeros in the place of the body."""
    return with_head(tree.map(np.zeros_like, change), head_of(change, leaves))


@dataclass(frozen=True)
class FedBabu(Algorithm):
    """`head_leaves`: how many leaves the head has."""

    head_leaves: int = 2

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        loss, gradient = Algorithm.gradient(self, task, current, state, data, order, step)
        return loss, body_only(gradient, self.head_leaves)


@dataclass(frozen=True)
class FedPer(Algorithm):
    """The head is the client state; a device that never took part begins with the shared first
    one.
    """

    head_leaves: int = 2

    def client_state(self, task: Task, state: Any) -> Any:
        return head_of(state, self.head_leaves)

    def client_update(
        self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()
    ) -> ClientResult:
        start = with_head(state, kept)
        end, loss = self.trained(task, start, data, key)
        update = body_only(tree.map(np.subtract, end, start), self.head_leaves)
        return ClientResult(update, self.weight(data), loss, head_of(end, self.head_leaves))

    def trained(self, task: Task, start: Any, data: Any, key: Tensor) -> tuple[Any, Tensor]:
        """(body and head after the local training, the mean loss)."""
        return self.descend(task, start, start, data, key)

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        """The shared body under the device's head, which is fine-tuned alone."""
        order = task.source.order(data, key)
        model = with_head(state, kept)
        for step in range(self.personal_steps):
            batch = task.source.adaptation(data, order, step)
            gradient = head_only(grad(task.loss)(model, batch), self.head_leaves)
            model = tree.map(lambda p, g: p - self.personal_learning_rate * g, model, gradient)
        return model


@dataclass(frozen=True)
class FedRep(FedPer):
    """`head_epochs` is the paper's tau, in passes; `epochs` are the body's."""

    head_epochs: int = 1

    def trained(self, task: Task, start: Any, data: Any, key: Tensor) -> tuple[Any, Tensor]:
        keys = random.split(key, 2)
        masked = self._masked(head_only)
        model, _ = self.descend(task, start, start, data, keys[0], masked, self.head_epochs)
        return self.descend(task, model, model, data, keys[1], self._masked(body_only))

    def _masked(self, part: Any) -> Gradient:
        def gradient(
            task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
        ) -> Any:
            loss, slope = Algorithm.gradient(self, task, current, state, data, order, step)
            return loss, part(slope, self.head_leaves)

        return gradient
