"""A task: what is learnt. A model, a loss, metrics, and how batches come from a device's data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import functional
from ..ir import Tensor
from .sampling import Batch, Episodes, Samples


class Metrics(NamedTuple):
    """Sums over rows, so that those of several batches or devices add up: each f32[]."""

    loss: Tensor
    correct: Tensor
    count: Tensor


@dataclass(frozen=True)
class Classification:
    """Labels from inputs, by softmax cross-entropy; of one label a row, or one a position of a
    sequence.

    `init(key)` makes the model, a tree of f32 arrays that is called as `model(x, weight)` and gives
    logits [B, ..., C].
    """

    name: str
    init: Callable[[Tensor], Any]
    source: Samples | Episodes

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """The mean over the rows that count (and over a sequence's positions), f32[]."""
        losses = functional.cross_entropy(model(batch.x, batch.weight), batch.y)
        return np.sum(per_row(losses) * batch.weight) / np.maximum(np.sum(batch.weight), 1.0)

    def metrics(self, model: Any, batch: Batch) -> Metrics:
        """Loss, right answers and rows of a batch; a sequence counts as one row, its share of right
        positions.
        """
        logits = model(batch.x, batch.weight)
        losses = functional.cross_entropy(logits, batch.y)
        correct = (np.argmax(logits, axis=-1) == batch.y).astype(np.float32)
        return Metrics(
            np.sum(per_row(losses) * batch.weight),
            np.sum(per_row(correct) * batch.weight),
            np.sum(batch.weight),
        )

    def infer(self, model: Any, x: Tensor) -> Tensor:
        """Logits of inputs already scaled: [B, ...] -> f32[B, ..., C]."""
        return model(x, np.ones(x.shape[0], np.float32))


def per_row(values: Tensor) -> Tensor:
    """[B, ...] -> [B], the mean over what follows the first axis."""
    if values.ndim == 1:
        return values
    return np.mean(values.reshape(values.shape[0], -1), axis=1)
