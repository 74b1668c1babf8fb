"""What picks and gathers rows: embeddings, one-hot vectors, the largest, sums over segments.

Whole numbers that lie outside their range never read or write elsewhere: each function says what
becomes of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..intrinsics import put_add
from ..ir import Array


def embedding(table: Array, symbols: Array) -> Array:
    """Rows of a table: f32[symbols, width], integers [...] -> f32[..., width]."""
    return table[symbols]


def one_hot(labels: Array, classes: int, dtype: Any = np.float32) -> Array:
    """Integers [...] -> [..., classes]: one at the label; zeros for one out of range."""
    return (labels[..., None] == np.arange(classes)).astype(dtype)  # type: ignore[no-any-return]


def top_k(x: Array, k: int) -> tuple[Array, Array]:
    """The k largest along the last axis, falling, and their places.

    [..., n] -> [..., k] and i64[..., k].

    Of equals the first comes first. NaN counts as smaller than every number.
    """
    if not 1 <= k <= x.shape[-1]:
        raise ValueError(f"top_k: k is from 1 to {x.shape[-1]}, not {k}")
    falling = ~x if x.dtype.kind in "iu" else -x
    places = np.argsort(falling, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, places, axis=-1), places


def segment_sum(data: Array, segments: Array, count: int) -> Array:
    """Sums of the rows of each segment: [N, ...], integers [N] -> [count, ...].

    A row whose segment is not in 0..count-1 counts nowhere; a segment without rows is zero.
    """
    # One row more takes what counts nowhere.
    outside = (segments < 0) | (segments >= count)
    places = np.where(outside, count, segments)
    total = put_add(np.zeros((count + 1, *data.shape[1:]), data.dtype), places, data)
    return total[:count]


def segment_mean(data: Array, segments: Array, count: int) -> Array:
    """Means of the rows of each segment, as `segment_sum`; zero where there are none."""
    rows = segment_sum(np.ones(data.shape[0], data.dtype), segments, count)
    shape = (count, *[1] * (data.ndim - 1))
    return segment_sum(data, segments, count) / np.maximum(rows, 1).reshape(shape)


def segment_max(data: Array, segments: Array, count: int, empty: float = -np.inf) -> Array:
    """The largest of each segment's rows, element by element, as `segment_sum`.

    `empty` where there are none.

    Rows are put in the order of their segments; then each looks back 1, 2, 4... rows within its
    segment, so that the last of a segment has seen all: N log N work, and all of it in NumPy's
    terms.
    """
    rows = data.shape[0]
    order = np.argsort(segments, kind="stable")
    owner, best = segments[order], data[order]
    reach = 1
    while reach < rows:
        together = owner[reach:] == owner[:-reach]
        seen = together.reshape(-1, *[1] * (data.ndim - 1))
        later = np.where(seen, np.maximum(best[reach:], best[:-reach]), best[reach:])
        best = np.concatenate([best[:reach], later])
        reach *= 2
    # The last row of segment i comes before as many rows as have a segment of at most i.
    upto = np.sum(owner[None, :] <= np.arange(count)[:, None], axis=1)
    last = best[np.maximum(upto - 1, 0)]
    there = np.any(owner[None, :] == np.arange(count)[:, None], axis=1)
    return np.where(there.reshape(-1, *[1] * (data.ndim - 1)), last, np.asarray(empty, data.dtype))
