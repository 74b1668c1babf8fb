"""Prototypical networks.

Snell, Swersky and Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017, algorithm 1:
a class is the mean c_k of its support rows in the space of the features f, and a row belongs to the
nearest class (equations 1 and 2):

    c_k = mean of f(x) over the support rows of class k
    p(y = k | x) = softmax_k(-|f(x) - c_k|^2)

The squared length of f(x) is the same for every class, so this is a linear layer on the features,
with weights 2 c_k and biases -|c_k|^2 (their section 2.4): an adaptation is a head put in place,
and the device's own model is of the same form as the shared one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...compiler import ops
from ...compiler.ir import Tensor
from ..algorithm import About
from ..heads import head_of, with_head
from ..hyperparameters import Steps
from ..sampling import Batch
from ..task import Metrics, Task, outputs_of
from .maml import Maml

#: The bias of a class without support rows, below that of any prototype (-|c_k|^2): no row is
#: assigned to it. A power of two, so that it is the same number in f32.
ABSENT = -(2.0**100)


@dataclass(frozen=True)
class ProtoNet(Maml):
    """Prototypical networks: a class is the mean of its rows' features (Snell et al. 2017).

    The model's last two leaves must be a dense layer's weight f32[F, C] and bias f32[C]; what is
    before it makes the features. That layer itself is not learnt.
    """

    about: ClassVar[About] = About(
        "ProtoNet", "Snell et al. 2017", "the change by gradients through prototypes"
    )
    source_keys: ClassVar[tuple[str, ...]] = ("training_ways",)
    labels_only: ClassVar[str] = "makes prototypes of classes"

    local_steps: int = 0
    """A key of Python only: a pass has as many steps as a device has episodes."""
    personal_steps: Steps = 5
    """Batches of the support set that prototypes are made of."""
    personal_learning_rate: float = 0.1
    """Not used: prototypes are means."""
    inner_steps: int = 1
    """Not used."""
    inner_learning_rate: float = 0.1
    """Not used."""

    def features(self, state: Any, batch: Batch) -> Tensor:
        """f(x), f32[B, F]: the model with an identity for its last layer."""
        weight, _ = head_of(state, 2)
        width = weight.shape[0]
        identity = [np.eye(width, dtype=np.float32), np.zeros(width, np.float32)]
        return outputs_of(with_head(state, identity), batch.x, batch.weight)

    def adapt(self, task: Task, state: Any, batch: Batch) -> Any:
        """The model with the prototypes of one support batch for its head."""
        return self.classifier(state, *self.sums(state, batch))

    def judged(self, state: Any, support: Batch, query: Batch) -> Batch:
        """The query batch, with weight zero for rows whose class has no support row.

        Such a class has no prototype: episodes of the paper have none, and the loss of these rows
        would be that of `ABSENT`.
        """
        present = np.sum(self.members(state, support), axis=0) > 0.0
        return query._replace(weight=query.weight * present[query.y].astype(np.float32))

    def metrics(self, task: Task, model: Any, batch: Batch) -> Metrics:
        """Metrics on a query batch.

        Rows of a class without prototype have the mean loss of the others: they weigh nothing in
        the loss, which would be that of `ABSENT`, and are errors in the accuracy, as in that of any
        other algorithm.
        """
        present = (head_of(model, 2)[1] != ABSENT).astype(np.float32)
        of_all = task.metrics(model, batch)
        judged = task.metrics(model, batch._replace(weight=batch.weight * present[batch.y]))
        mean = judged.loss / np.maximum(judged.count, 1.0)
        return of_all._replace(loss=mean * of_all.count)

    def members(self, state: Any, batch: Batch) -> Tensor:
        """f32[B, C]: one where a row that counts is of the class."""
        classes = head_of(state, 2)[1].shape[0]
        return ops.one_hot(batch.y, classes) * batch.weight[:, None]

    def sums(self, state: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """By class, the sum of features f32[C, F] and the number of rows f32[C]."""
        member = self.members(state, batch)
        return np.transpose(member) @ self.features(state, batch), np.sum(member, axis=0)

    def classifier(self, state: Any, sums: Tensor, counts: Tensor) -> Any:
        """The model with these prototypes for its head."""
        prototypes = sums / np.maximum(counts, 1.0)[:, None]
        biases = np.where(counts > 0.0, -np.sum(prototypes * prototypes, axis=1), ABSENT)
        return with_head(state, [2.0 * np.transpose(prototypes), biases])

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        """Prototypes of `personal_steps` batches of the support set."""
        order = task.source.order(data, key)
        sums, counts = self.sums(state, task.source.adaptation(data, order, 0))
        for step in range(1, self.personal_steps):
            more, others = self.sums(state, task.source.adaptation(data, order, step))
            sums, counts = sums + more, counts + others
        return self.classifier(state, sums, counts)
