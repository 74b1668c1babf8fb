"""The cross-entropy over a large vocabulary, without the logits of all tokens.

Logits of 512 tokens over 50,257 symbols take 103 MB, and as much again on the way back. Here some
tokens at a time meet the whole vocabulary: their logits become their losses, and are computed again
for the derivative. Memory is that of one part, for one more product. (Chen et al. 2016, "Training
deep nets with sublinear memory cost": what is cheap to compute again is not kept.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..api import checkpoint
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
        weight: f32[D, V], or an object of that `shape` with `__rmatmul__`, such as a
            `QuantisedWeight` or the transposed table of an embedding. It has its derivative.
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
    at_once = max(_LOGITS // weight.shape[1], _ROWS_MIN) if rows is None else rows
    if count <= at_once:
        return cross_entropy(hidden @ weight, labels)
    flat, ids = hidden.reshape((count, hidden.shape[-1])), labels.reshape((count,))
    parts = -(-count // at_once)
    size = -(-count // parts)
    whole = count // size
    part = checkpoint(_part)
    losses = np.zeros((whole, size), np.float32)
    tokens = flat[: whole * size].reshape((whole, size, flat.shape[1]))
    wanted = ids[: whole * size].reshape((whole, size))
    for k in range(whole):
        losses[k] = part(tokens[k], weight, wanted[k])
    found = losses.reshape((whole * size,))
    if whole * size < count:
        last = part(flat[whole * size :], weight, ids[whole * size :])
        found = np.concatenate([found, last])
    return found.reshape(labels.shape)


def _part(hidden: Array, weight: Any, labels: Array) -> Array:
    return cross_entropy(hidden @ weight, labels)
