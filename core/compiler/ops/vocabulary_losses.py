"""The cross-entropy over a large vocabulary, without the logits of all tokens.

Logits of 512 tokens over 50,257 symbols take 103 MB, and as much again on the way back. Here some
tokens at a time meet the whole vocabulary. (Chen et al. 2016, "Training deep nets with sublinear
memory cost": what is cheap to compute again is not kept.)

    a weight that is trained   each part's logits are computed again for the derivative
    a frozen weight            the loss's slope by a token's hidden vector is one vector, whatever
                               comes back: (softmax(logits) - the label's one) weight^T. It is
                               computed with the loss, and no logits a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..api import checkpoint, custom_vjp
from ..ir import Array
from .losses import cross_entropy

#: Logits of one part: 8 MiB of f32.
_LOGITS = 1 << 21
#: Fewer tokens a part would read the weight for too little work, whatever the vocabulary.
_ROWS_MIN = 8


def vocabulary_cross_entropy(
    hidden: Array, weight: Any, labels: Array, rows: int | None = None
) -> Array:
    """`cross_entropy(hidden @ weight, labels)`, a part of the tokens at a time.

    Args:
        hidden: f32[..., D].
        weight: f32[D, V], or an object of that `shape` with `__rmatmul__`, which has its
            derivative. One whose `frozen` is true has none, and a `T`: a `QuantisedWeight`.
        labels: integers [...], from 0 to V - 1.
        rows: tokens of a part; None: as many as have 8 MiB of logits, at least 8.

    Returns:
        f32[...], the loss of each token.

    Raises:
        ValueError: the shapes do not fit, or `rows` is not positive.
    """
    if hidden.shape[:-1] != labels.shape or hidden.shape[-1] != weight.shape[0]:
        raise ValueError(
            "vocabulary_cross_entropy takes hidden [..., D], a weight [D, V] and labels [...], not "
            f"shapes {list(hidden.shape)}, {list(weight.shape)} and {list(labels.shape)}"
        )
    if rows is not None and rows < 1:
        raise ValueError(f"vocabulary_cross_entropy: {rows} rows a part")
    count = labels.size
    size = max(_LOGITS // weight.shape[1], _ROWS_MIN) if rows is None else rows
    # As many parts as that makes, all of one size.
    size = -(-count // -(-count // size))
    tokens, wanted = hidden.reshape((count, hidden.shape[-1])), labels.reshape((count,))
    if getattr(weight, "frozen", False):
        part = custom_vjp(_frozen_losses, _losses_and_slopes, _frozen_back)
        return part(tokens, weight, wanted, size).reshape(labels.shape)
    made = _losses if count <= size else checkpoint(_losses)
    return _in_parts(made, tokens, weight, wanted, size).reshape(labels.shape)


def _losses(hidden: Array, weight: Any, labels: Array) -> Array:
    return cross_entropy(hidden @ weight, labels)


def _in_parts(
    part: Callable[[Array, Any, Array], Array], hidden: Array, weight: Any, labels: Array, size: int
) -> Array:
    """`_losses` of all tokens: f32[T, D], a weight, integers [T] -> f32[T]."""
    whole = labels.size // size
    losses = np.zeros((whole, size), hidden.dtype)
    tokens, wanted = _parted(hidden, whole, size), _parted(labels, whole, size)
    for k in range(whole):
        losses[k] = part(tokens[k], weight, wanted[k])
    found, done = losses.reshape((whole * size,)), whole * size
    if done == labels.size:
        return found
    return np.concatenate([found, part(hidden[done:], weight, labels[done:])])


def _parted(x: Array, whole: int, size: int) -> Array:
    """The first rows as parts of one size: [T, ...] -> [whole, size, ...]."""
    return x[: whole * size].reshape((whole, size, *x.shape[1:]))


def _frozen_losses(hidden: Array, weight: Any, labels: Array, size: int) -> Array:
    return _in_parts(_losses, hidden, weight, labels, size)


def _losses_and_slopes(hidden: Array, weight: Any, labels: Array, size: int) -> tuple[Array, Array]:
    """The losses f32[T], and their slopes by the hidden vectors, f32[T, D]."""
    whole = labels.size // size
    losses = np.zeros((whole, size), hidden.dtype)
    slopes = np.zeros((whole, size, hidden.shape[1]), hidden.dtype)
    tokens, wanted = _parted(hidden, whole, size), _parted(labels, whole, size)
    for k in range(whole):
        losses[k], slopes[k] = _loss_and_slope(tokens[k], weight, wanted[k])
    done = whole * size
    found = losses.reshape((done,)), slopes.reshape((done, hidden.shape[1]))
    if done == labels.size:
        return found
    last = _loss_and_slope(hidden[done:], weight, labels[done:])
    return np.concatenate([found[0], last[0]]), np.concatenate([found[1], last[1]])


def _loss_and_slope(hidden: Array, weight: Any, labels: Array) -> tuple[Array, Array]:
    logits = hidden @ weight
    # First, so that nothing reads the logits any more where the exponentials take their place.
    right = np.take_along_axis(logits, labels[:, None], axis=-1)
    top = np.max(logits, axis=-1, keepdims=True)
    raised = np.exp(logits - top)
    total = np.sum(raised, axis=-1, keepdims=True)
    share = raised / total
    is_label = labels[:, None] == np.arange(logits.shape[1])
    slope = np.where(is_label, share - 1, share) @ weight.T
    return (np.log(total) + top - right)[:, 0], slope


def _frozen_back(slopes: Array, back: Array) -> tuple[Array, None, None, None]:
    return back[:, None] * slopes, None, None, None
