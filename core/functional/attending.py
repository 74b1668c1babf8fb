"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1)."""

from __future__ import annotations

import math

import numpy as np

from ..ir import Array
from ..primitives import stop_gradient

#: Stands for minus infinity where nothing may be seen; finite, so that no derivative is NaN.
_UNSEEN = -1e30


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Array:
    """softmax(query key^T scale) value, of any leading axes (heads among them).

    Args:
        query: f32[..., T, D].
        key: f32[..., S, D].
        value: f32[..., S, E].
        mask: bool that broadcasts to [..., T, S], True where a query may look. A query that may
        look nowhere gets zeros. Or floats, which are added to the scores.
        causal: query t may look at keys up to t + S - T alone, so that the last ones line up.
        scale: None for 1 / sqrt(D).

    Returns:
        f32[..., T, E].
    """
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"attention takes queries [..., T, D], keys [..., S, D] and values [..., S, E], not "
            f"shapes {list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
        )
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * scale) @ np.swapaxes(key, -1, -2)
    if mask is not None and mask.dtype.kind != "b":
        scores, mask = scores + mask, None
    if causal:
        seen = causal_mask(query.shape[-2], key.shape[-2])
        mask = seen if mask is None else mask & seen
    if mask is None:
        raised = np.exp(scores - stop_gradient(np.max(scores, axis=-1, keepdims=True)))
        return (raised / np.sum(raised, axis=-1, keepdims=True)) @ value  # type: ignore[no-any-return]
    scores = np.where(mask, scores, _UNSEEN)
    top = stop_gradient(np.max(scores, axis=-1, keepdims=True))
    raised = np.where(mask, np.exp(scores - top), 0)
    total = np.sum(raised, axis=-1, keepdims=True)
    return (raised / np.where(total == 0, 1, total)) @ value


def causal_mask(queries: int, keys: int) -> Array:
    """bool[queries, keys]: query t sees the keys up to t + keys - queries."""
    seen: Array = np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)
    return seen
