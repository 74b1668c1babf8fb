"""Text as a task: the next token of a sequence, and tokens that were masked.

A row is token ids i32[T]; a label is an id, or `IGNORED` at a position that does not count, as in
PyTorch and transformers. The loss is the mean over the positions that count in the batch, that of
`torch.nn.functional.cross_entropy(..., ignore_index=-100)`. Models are judged by the loss of a
token, the share of right tokens and perplexity, the exponential of the mean loss.

One label a row (sequence classification) is `task.Classification` with `padding`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..compiler import ops, random
from ..compiler.ir import Tensor
from .data.tokens.token_facts import IGNORED
from .metrics import PERPLEXITY
from .sampling import Batch, Samples
from .task import Metrics, in_training, outputs_of

__all__ = ["MaskedToken", "NextToken"]

#: The metric of texts whose characters are counted (`NextToken.characters`).
BITS = "bits_per_character"
#: Devlin et al. 2019, section 3.1: the share of tokens that is predicted, and of these the share
#: that is masked; half of the others is another token, half is kept.
SHARE, MASKED, REPLACED = 0.15, 0.8, 0.9
#: Separates the draws of masks from a model's own, such as dropout's.
MASK_STREAM = 0x6D61736B


@dataclass(frozen=True)
class NextToken:
    """The token that follows each position of a row.

    y is i32[B, T], x shifted by one: the label of position t is the token of t + 1, and `IGNORED`
    where that is padding or of another document. The model gives logits f32[B, T, V], and position
    t must not see what follows it.
    """

    name: str
    init: Callable[[Tensor], Any]
    source: Samples
    criterion: Callable[[Tensor, Tensor], Tensor] = field(default=ops.cross_entropy, kw_only=True)
    """`criterion(logits, labels)`: the losses of positions, f32[B, T]."""
    padding: int | None = field(default=None, kw_only=True)
    """The id that stands for no token: a model with an argument `mask` gets its places."""
    characters: tuple[float, ...] = field(default=(), kw_only=True)
    """By id, characters of a token: then `bits_per_character` is a metric."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The task's own metrics."""
        return (BITS, PERPLEXITY) if self.characters else (PERPLEXITY,)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """The mean over the positions that count, f32[]; zero where none does."""
        logits = in_training(model, batch, self.padding)
        return _mean(_losses(self.criterion, logits, batch.y), batch.y, batch.weight)

    def metrics(self, model: Any, batch: Batch) -> Metrics:
        """Loss, right tokens and positions that count: sums over tokens, not rows."""
        logits = outputs_of(model, batch.x, batch.weight, self.padding)
        return _judged(self.criterion, logits, batch.y, batch.weight)

    def more_metrics(self, model: Any, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The sums of perplexity and, where characters are known, of bits."""
        found = self.metrics(model, batch)
        sums = {PERPLEXITY: (found.loss, found.count)}
        if self.characters:
            counted = _counted(batch.y, batch.weight)
            sizes = np.array(self.characters, np.float32)[_labels(batch.y)]
            sums[BITS] = found.loss / math.log(2.0), np.sum(sizes * counted)
        return sums

    def infer(self, model: Any, x: Tensor) -> Tensor:
        """Logits of ids: [B, T] -> f32[B, T, V], the t-th of the token after t."""
        return outputs_of(model, x, np.ones(x.shape[0], np.float32), self.padding)


@dataclass(frozen=True)
class MaskedToken:
    """Tokens that were masked, from those around them (BERT, Devlin et al. 2019, section 3.1).

    Of each batch `share` of the tokens is drawn by the batch's key, on the device: 80% of them
    become `mask`, 10% any token of the vocabulary, 10% stay; these are predicted. The same key
    draws the same. y is i32[B, T], the ids of x, and `IGNORED` where none may be drawn. The model
    gives logits f32[B, T, V]. Statistics of batch normalisation are those of rows without masks.
    """

    name: str
    init: Callable[[Tensor], Any]
    source: Samples
    """Has `keyed=True`: its batches have keys."""
    vocabulary: int
    """Ids are from 0 to one less."""
    mask: int
    """The id that stands for a token that is predicted."""
    special: tuple[int, ...] = field(default=(), kw_only=True)
    """Ids that are never predicted: padding, ends of documents."""
    share: float = field(default=SHARE, kw_only=True)
    """Of the tokens, how many are predicted on average."""
    criterion: Callable[[Tensor, Tensor], Tensor] = field(default=ops.cross_entropy, kw_only=True)
    """`criterion(logits, labels)`: the losses of positions, f32[B, T]."""
    padding: int | None = field(default=None, kw_only=True)
    """The id that stands for no token: a model with an argument `mask` gets its places."""

    metric_names = (PERPLEXITY,)

    def masked(self, batch: Batch) -> tuple[Batch, Tensor]:
        """The batch as the model sees it, and the labels i32[B, T].

        Raises ValueError for a batch without a key.
        """
        if batch.key is None:
            raise ValueError("MaskedToken draws masks: its source is Samples(..., keyed=True)")
        keys = random.split(random.fold_in(batch.key, MASK_STREAM), 3)
        shape = batch.x.shape
        free = batch.y != IGNORED
        for each in self.special:
            free = free & (batch.y != each)
        drawn = free & (random.uniform(keys[0], shape) < self.share)
        how = random.uniform(keys[1], shape)
        other = random.randint(keys[2], shape, 0, self.vocabulary).astype(batch.x.dtype)
        changed = np.where(how < REPLACED, other, batch.x)
        mask = np.full(shape, self.mask, batch.x.dtype)
        changed = np.where(how < MASKED, mask, changed)
        seen = np.where(drawn, changed, batch.x)
        return Batch(seen, batch.y, batch.weight, batch.key), np.where(drawn, batch.y, IGNORED)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """The mean over the tokens that were drawn, f32[]; zero where none was."""
        seen, labels = self.masked(batch)
        logits = in_training(model, seen, self.padding)
        return _mean(_losses(self.criterion, logits, labels), labels, batch.weight)

    def metrics(self, model: Any, batch: Batch) -> Metrics:
        """Loss, right tokens and drawn tokens: sums over tokens. The rows' own key draws them."""
        seen, labels = self.masked(batch)
        logits = outputs_of(model, seen.x, batch.weight, self.padding)
        return _judged(self.criterion, logits, labels, batch.weight)

    def more_metrics(self, model: Any, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The sums of perplexity."""
        found = self.metrics(model, batch)
        return {PERPLEXITY: (found.loss, found.count)}

    def infer(self, model: Any, x: Tensor) -> Tensor:
        """Logits of ids, some of which may be `mask`: [B, T] -> f32[B, T, V]."""
        return outputs_of(model, x, np.ones(x.shape[0], np.float32), self.padding)


def _labels(y: Tensor) -> Tensor:
    """Labels as ids, those that do not count as zero."""
    return np.where(y == IGNORED, 0, y)


def _counted(y: Tensor, weight: Tensor) -> Tensor:
    """f32[B, T]: one for a position that counts."""
    return (y != IGNORED).astype(np.float32) * weight[:, None]


def _losses(criterion: Callable[[Tensor, Tensor], Tensor], logits: Tensor, y: Tensor) -> Tensor:
    if logits.ndim != y.ndim + 1 or logits.shape[:-1] != y.shape:
        raise ValueError(
            f"a model of tokens gives logits [B, T, V]: of labels {list(y.shape)} this one gave"
            f" {list(logits.shape)}"
        )
    return criterion(logits, _labels(y))


def _mean(losses: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    counted = _counted(y, weight)
    return np.sum(losses * counted) / np.maximum(np.sum(counted), 1.0)


def _judged(
    criterion: Callable[[Tensor, Tensor], Tensor], logits: Tensor, y: Tensor, weight: Tensor
) -> Metrics:
    counted = _counted(y, weight)
    right = (np.argmax(logits, axis=-1) == y).astype(np.float32)
    losses = _losses(criterion, logits, y)
    return Metrics(np.sum(losses * counted), np.sum(right * counted), np.sum(counted))
