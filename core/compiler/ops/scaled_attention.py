"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1)."""

from __future__ import annotations

import math

import numpy as np

from ..intrinsics import attend, stop_gradient
from ..ir import Array

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
    query = query * scale
    known = mask is None or (mask.dtype.kind == "b" and mask.ndim <= query.ndim)
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    if known and same and min(query.size, value.size) > 0:
        heads = [_by_head(x) for x in (query, key, value)]
        seen = None if mask is None else _over_heads(mask, query.shape, key.shape[-2])
        out = np.transpose(attend(heads[0], heads[1], heads[2], seen, causal), (0, 2, 1, 3))
        return out.reshape((*query.shape[:-1], value.shape[-1]))
    return _in_full(query, key, value, mask, causal)


def _by_head(x: Array) -> Array:
    """[..., H, T, D] -> [N, T, H, D]; without an axis of heads there is one head."""
    heads = x.shape[-3] if x.ndim > 3 else 1
    return np.transpose(x.reshape((-1, heads, x.shape[-2], x.shape[-1])), (0, 2, 1, 3))


def _over_heads(mask: Array, shape: tuple[int, ...], keys: int) -> Array:
    """A mask that broadcasts to [..., H, T, S] as [N or 1, H or 1, T or 1, S]."""
    axes = (1,) * (len(shape) - mask.ndim) + mask.shape
    split = len(shape) - (3 if len(shape) > 3 else 2)
    leading = (1,) * split if math.prod(axes[:split]) == 1 else shape[:split]
    wide = np.broadcast_to(mask, (*leading, *axes[split:-1], keys))
    heads = axes[-3] if len(shape) > 3 else 1
    return wide.reshape((-1, heads, axes[-2], keys))


def _in_full(query: Array, key: Array, value: Array, mask: Array | None, causal: bool) -> Array:
    """Attention with the whole tensor of scores; `query` is scaled."""
    scores = query @ np.swapaxes(key, -1, -2)
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
