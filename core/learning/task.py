"""A task: a model, a loss, metrics, and how batches are drawn from a device's data.

Algorithms know a `Task` by this protocol alone. `Classification` and `Regression` implement it, and
so may any class that defines a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..compiler import ops
from ..compiler.ir import Tensor
from .sampling import Batch, Episodes, Samples

#: Parameters of a `__call__(self, x)`.
SELF_AND_X = 2


class Metrics(NamedTuple):
    """Sums over rows, so that those of several batches or devices add up: each f32[]."""

    loss: Tensor
    """The rows' losses."""
    correct: Tensor
    """Right answers; of a regression the sum of absolute errors."""
    count: Tensor
    """Rows: the sum of their weights."""
    more: Any = ()
    """The divided sums of a task's own metrics, (above, below), by name."""


class Task(Protocol):
    """What an algorithm and a bundle's programs need to know of what is learnt.

    `init(key)` makes the model, a tree of f32 arrays that is called as `model(x)` or
    `model(x, weight)`; `source` draws batches. A model that is another function in training also
    has `in_training((x,), weight, key) -> (outputs, statistics)`, as those from PyTorch.

    It may judge by more than loss and right answers: a class attribute `metric_names`, and a method
    `more_metrics(model, batch)` that gives a dict of as many pairs of sums, (above, below), each
    f32[]. The sums of all batches and devices are added up and then divided.
    """

    @property
    def name(self) -> str: ...
    @property
    def init(self) -> Callable[[Tensor], Any]: ...
    @property
    def source(self) -> Samples | Episodes: ...
    def loss(self, model: Any, batch: Batch) -> Tensor:
        """What training lowers: the mean over the rows that count, f32[]."""

    def metrics(self, model: Any, batch: Batch) -> Metrics:
        """What a batch is judged by."""

    def infer(self, model: Any, x: Tensor) -> Tensor:
        """What the model says of inputs already scaled."""


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """[B, ...] of both -> [B, ...]."""
    errors = outputs - targets
    return errors * errors


@dataclass(frozen=True)
class Classification:
    """Labels from inputs, by softmax cross-entropy or another loss.

    A row has one label, or a sequence has one a position. The model gives logits [B, ..., C]. One
    logit, [B] or [B, ..., 1], is that of the second of two classes.
    """

    name: str
    init: Callable[[Tensor], Any]
    source: Samples | Episodes
    criterion: Callable[[Tensor, Tensor], Tensor] = field(default=ops.cross_entropy, kw_only=True)
    """`criterion(logits, labels)`: the losses of rows, f32[B, ...]."""
    padding: int | None = field(default=None, kw_only=True)
    """Of rows of token ids, [B, T], the id that stands for no token (`outputs_of`)."""

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """The mean over the rows that count (and over a sequence's positions), f32[]."""
        losses = self.criterion(logits_of(in_training(model, batch, self.padding)), batch.y)
        return mean_row(per_row(losses), batch)

    def metrics(self, model: Any, batch: Batch) -> Metrics:
        """Loss, right answers and rows of a batch; a sequence is one row."""
        logits = logits_of(outputs_of(model, batch.x, batch.weight, self.padding))
        losses = self.criterion(logits, batch.y)
        correct = (np.argmax(logits, axis=-1) == batch.y).astype(np.float32)
        return Metrics(
            np.sum(per_row(losses) * batch.weight),
            np.sum(per_row(correct) * batch.weight),
            np.sum(batch.weight),
        )

    def infer(self, model: Any, x: Tensor) -> Tensor:
        """Logits of inputs already scaled: [B, ...] -> f32[B, ..., C]."""
        every = np.ones(x.shape[0], np.float32)
        return logits_of(outputs_of(model, x, every, self.padding))


@dataclass(frozen=True)
class Regression:
    """Numbers from inputs, by the mean squared error or another loss.

    y is f32[B], one number a row, or f32[B, ...]; the model gives as many numbers a row. Whatever
    training lowers, models are judged by the squared error. With `shift` and `scale` it learns
    standardised numbers, (y - shift) * scale, and is judged, and answers, in the units of y.
    """

    name: str
    init: Callable[[Tensor], Any]
    source: Samples | Episodes
    criterion: Callable[[Tensor, Tensor], Tensor] = field(default=squared_errors, kw_only=True)
    """`criterion(outputs, targets)`, both of the targets' shape: losses of rows, f32[B, ...]."""
    shift: tuple[float, ...] = field(default=(), kw_only=True)
    """Of each number of a row, its mean; empty: y is learnt as it is."""
    scale: tuple[float, ...] = field(default=(), kw_only=True)
    """One by its standard deviation."""

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """The mean loss of the rows that count, f32[]: by default the mean squared error."""
        outputs = in_training(model, batch).reshape(batch.y.shape)
        return mean_row(per_row(self.criterion(outputs, self._standard(batch.y))), batch)

    def metrics(self, model: Any, batch: Batch) -> Metrics:
        """Squared errors, absolute errors and rows of a batch; a row counts by its mean."""
        errors = self.errors(model, batch)
        return Metrics(
            np.sum(per_row(errors * errors) * batch.weight),
            np.sum(per_row(np.abs(errors)) * batch.weight),
            np.sum(batch.weight),
        )

    def errors(self, model: Any, batch: Batch) -> Tensor:
        """What the model gives less what is right: f32, of the targets' shape."""
        outputs = outputs_of(model, batch.x, batch.weight)
        return self._in_units(outputs.reshape(batch.y.shape)) - batch.y

    def infer(self, model: Any, x: Tensor) -> Tensor:
        """Numbers for inputs already scaled: [B, ...] -> f32[B, ...]."""
        return self._in_units(outputs_of(model, x, np.ones(x.shape[0], np.float32)))

    def _standard(self, y: Tensor) -> Tensor:
        """Numbers [B, ...] as the model gives them."""
        if not self.shift:
            return y
        rows = (y.reshape(y.shape[0], -1) - np.array(self.shift, np.float32)) * np.array(
            self.scale, np.float32
        )
        return rows.reshape(y.shape)

    def _in_units(self, given: Tensor) -> Tensor:
        """The reverse."""
        if not self.shift:
            return given
        rows = given.reshape(given.shape[0], -1) / np.array(self.scale, np.float32)
        return (rows + np.array(self.shift, np.float32)).reshape(given.shape)


def own_sums(task: Any, names: tuple[str, ...], model: Any, batch: Batch) -> dict[str, Any]:
    """The sums of a task's own metrics over a batch. Raises ValueError for other sums."""
    name, found = type(task).__name__, task.more_metrics(model, batch)
    if not isinstance(found, dict) or sorted(found) != list(names):
        raise ValueError(
            f"{name}.more_metrics gives no dict with the keys of metric_names: {', '.join(names)}"
        )
    for each in names:
        if not isinstance(found[each], (tuple, list)) or len(found[each]) != 2:
            raise ValueError(f"{name}.more_metrics: {each} is no pair of sums, (above, below)")
        for part in found[each]:
            if part is None or np.ndim(part) != 0:
                is_now = "None" if part is None else f"{np.shape(part)}"
                raise ValueError(
                    f"{name}.more_metrics: a sum of {each} is {is_now}, and not one number"
                )
    return {each: tuple(np.float32(part) for part in found[each]) for each in names}


def in_training(model: Any, batch: Batch, padding: int | None = None) -> Tensor:
    """What the model gives for a batch that it is trained on. padding: as of `outputs_of`."""
    if hasattr(model, "in_training"):
        return model.in_training((batch.x,), batch.weight, batch.key)[0]
    return outputs_of(model, batch.x, batch.weight, padding)


def outputs_of(model: Any, x: Tensor, weight: Tensor, padding: int | None = None) -> Tensor:
    """What a model gives for a batch: `model(x)`, or `model(x, weight)` where it takes weights.

    Args:
        model: one with `__call__(self, x)` has no use for weights. Where `__call__` has an argument
            `mask`, it is bool[B, T], True for the tokens of x, and False for padding.
        x: the rows, [B, ...].
        weight: f32[B], one for a row that counts.
        padding: the id that stands for no token; None: there is none, and `mask` is left out.
    """
    call = type(model).__call__
    code = getattr(call, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    if "mask" in names:
        given = {} if padding is None else {"mask": x != padding}
        return model(x, weight=weight, **given) if "weight" in names else model(x, **given)
    if len(names) == SELF_AND_X:
        return model(x)
    return model(x, weight)


def logits_of(outputs: Tensor) -> Tensor:
    """A model's outputs as logits [B, ..., C]; one logit z, [B] or [B, ..., 1], becomes (0, z).

    The cross-entropy of (0, z) is the logistic loss of z, and its second class wins where z > 0.
    """
    if outputs.ndim > 1 and outputs.shape[-1] != 1:
        return outputs
    one = outputs[:, None] if outputs.ndim == 1 else outputs
    return np.concatenate([np.zeros_like(one), one], axis=-1)


def has_statistics(task: Task, model: Any) -> bool:
    """Whether a training step changes the model's running statistics."""
    return hasattr(model, "with_statistics") or hasattr(task, "after_step")


def after_step(task: Task, before: Any, after: Any, batch: Batch) -> Any:
    """The model after a training step, with the statistics of that step's forward pass.

    The forward pass is the one that the gradient is of, so it costs nothing more.
    """
    if hasattr(task, "after_step"):
        return task.after_step(before, after, batch)
    if not hasattr(before, "with_statistics"):
        return after
    _, statistics = before.in_training((batch.x,), batch.weight, batch.key)
    return after.with_statistics(statistics)


def mean_row(values: Tensor, batch: Batch) -> Tensor:
    """[B] -> f32[], the mean over the rows that count; zero where none does."""
    return np.sum(values * batch.weight) / np.maximum(np.sum(batch.weight), 1.0)


def per_row(values: Tensor) -> Tensor:
    """[B, ...] -> [B], the mean over what follows the first axis."""
    if values.ndim == 1:
        return values
    return np.mean(values.reshape(values.shape[0], -1), axis=1)
