"""ATen's gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....compiler import ops
from ....compiler.ir import Tensor
from .aten_row import Row


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """As NumPy's, with None for a whole axis."""
    return x[tuple([slice(None) if i is None else i for i in indices])]


def index_put(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    counted: bool = False,
) -> Tensor:
    mask = len(indices) == 1 and indices[0] is not None and indices[0].dtype.kind == "b"
    if mask and not counted:
        return _put_under(x, indices[0], values, accumulate)
    places: Any = tuple([slice(None) if i is None else i for i in indices])
    out = np.array(x)
    if accumulate:
        np.add.at(out, places, values)
    else:
        out[places] = values
    return out


def _put_under(x: Tensor, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """One value, or one for each trailing element, wherever the mask holds."""
    if values.ndim and values.shape[0] != 1 and values.ndim > x.ndim - mask.ndim:
        raise ValueError("index_put under a mask takes values that do not depend on its count")
    wide = np.reshape(mask, (*mask.shape, *[1] * (x.ndim - mask.ndim)))
    put = np.reshape(values, values.shape[1:]) if values.ndim > x.ndim - mask.ndim else values
    return x + np.where(wide, put, 0) if accumulate else np.where(wide, put, x)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if x.ndim == 0:
        return x
    return np.take(x, index.reshape(-1), axis=dim)


def _within(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`x` cut to the index's size along the other axes."""
    places = [slice(None) if k == dim % x.ndim else slice(0, index.shape[k]) for k in range(x.ndim)]
    return x[tuple(places)]


def gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    if x.ndim == 0 or index.ndim == 0:
        return np.reshape(np.reshape(x, (-1,))[np.reshape(index, (-1,))], index.shape)
    return np.take_along_axis(_within(x, dim, index), index, axis=dim)


def take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return np.reshape(x, (-1,))[indices.reshape(-1)]
    shape = np.broadcast_shapes(
        (*x.shape[:dim], 1, *x.shape[dim + 1 :]) if dim >= 0 else x.shape,
        (*indices.shape[:dim], 1, *indices.shape[dim + 1 :]) if dim >= 0 else indices.shape,
    )
    if dim < 0:
        return np.take_along_axis(x, indices, axis=dim)
    wide = np.broadcast_to(x, (*shape[:dim], x.shape[dim], *shape[dim + 1 :]))
    places = np.broadcast_to(indices, (*shape[:dim], indices.shape[dim], *shape[dim + 1 :]))
    return np.take_along_axis(wide, places, axis=dim)


def _places(dim: int, index: Tensor) -> tuple[Tensor, ...]:
    """An index tuple: `index` along an axis, each other axis its own number."""
    rank = index.ndim
    found = []
    for k in range(rank):
        if k == dim % rank:
            found.append(index)
        else:
            shape = [1] * rank
            shape[k] = index.shape[k]
            found.append(np.arange(index.shape[k]).reshape(tuple(shape)))
    return tuple(found)


def scatter(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """src: a number, or at least of the index's size along every axis."""
    if x.ndim == 0:
        return np.reshape(src, ()).astype(x.dtype) if np.size(src) == 1 else x
    values = src
    if np.ndim(src):
        values = src[tuple([slice(0, n) for n in index.shape])]
    out = np.array(x)
    out[_places(dim, index)] = values
    return out


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    if x.ndim == 0:
        return x + np.reshape(src, ())
    values = src[tuple([slice(0, n) for n in index.shape])]
    out = np.array(x)
    np.add.at(out, _places(dim, index), values)
    return out


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """Of `sum` and `mean`; the others have slopes at ties that no composition gives."""
    if reduce not in ("sum", "mean"):
        raise ValueError(f"scatter_reduce with reduce={reduce!r} is not imported: sum and mean are")
    if x.ndim == 0:
        x, index, src = x.reshape(1), index.reshape(1), src.reshape(1)
        return scatter_reduce(x, 0, index, src, reduce, include_self).reshape(())
    ones = np.ones(index.shape, x.dtype)
    hits = scatter_add(np.zeros(x.shape, x.dtype), dim, index, ones)
    start = x if include_self else np.where(hits > 0, 0, x)
    total = scatter_add(start, dim, index, src)
    if reduce == "sum":
        return total
    count = np.maximum(hits + 1 if include_self else hits, 1)
    return total / count if x.dtype.kind == "f" else np.floor_divide(total, count.astype(x.dtype))


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    if x.ndim == 0:
        return x + source.reshape(()) * alpha
    out = np.array(x)
    places = (*(slice(None),) * (dim % x.ndim), index.reshape(-1))
    np.add.at(out, places, source if alpha == 1 else source * alpha)
    return out


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if x.ndim == 0:
        return source.reshape(())
    out = np.array(x)
    out[(*(slice(None),) * (dim % x.ndim), index.reshape(-1))] = source
    return out


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    if x.ndim == 0:
        return np.asarray(value).astype(x.dtype)
    out = np.array(x)
    out[(*(slice(None),) * (dim % x.ndim), index.reshape(-1))] = np.asarray(value).astype(x.dtype)
    return out


def take(x: Tensor, index: Tensor) -> Tensor:
    return np.reshape(x, (-1,))[index]


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table; the row `padding_idx` has no slope."""
    if scale_grad_by_freq:
        raise ValueError("embedding with scale_grad_by_freq=True is not imported")
    rows = weight[indices]
    if padding_idx < 0:
        return rows
    return np.where((indices == padding_idx)[..., None], ops.stop_gradient(rows), rows)


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor]:
    """Sums (mode 0), means (1) or maxima (2) of bags of rows; an empty bag gives zeros.

    indices: of all bags, one after the other; `offsets` says where each begins. Those that are
    `padding_idx` count in no bag.
    """
    if scale_grad_by_freq:
        raise ValueError("embedding_bag with scale_grad_by_freq=True is not imported")
    count = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    bags = np.searchsorted(offsets, np.arange(indices.shape[0]), side="right") - 1
    if padding_idx >= 0:
        bags = np.where(indices == padding_idx, -1, bags)
    rows = weight[indices]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    if mode == 2:
        return (ops.segment_max(rows, bags, count, 0.0),)
    combine = ops.segment_mean if mode == 1 else ops.segment_sum
    return (combine(rows, bags, count),)


def nonzero(x: Tensor) -> Tensor:
    """Places of what is not zero, i64[found, rank]."""
    return np.argwhere(x)


def where_true(condition: Tensor) -> tuple[Tensor, ...]:
    """The places where a condition holds, i64[found] an axis."""
    return np.nonzero(condition)


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements under the mask, in order."""
    x, wide = np.broadcast_arrays(x, mask)
    return x[wide]


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The elements under the mask become the source's, in order."""
    x, wide = np.broadcast_arrays(x, mask)
    places = np.cumsum(np.reshape(wide, (-1,)).astype(np.int64)) - 1
    taken = np.reshape(source, (-1,))[np.clip(places, 0, source.size - 1)]
    return np.where(wide, np.reshape(taken, x.shape), x)


def as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Of an array without gaps: the elements at offset + sum(stride[k] * i[k])."""
    places = np.full((1,) * len(size), 0 if storage_offset is None else storage_offset)
    for k, count in enumerate(size):
        shape = [1] * len(size)
        shape[k] = count
        places = places + (np.arange(count) * stride[k]).reshape(tuple(shape))
    return np.reshape(x, (-1,))[places.reshape(tuple(size))]


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise ValueError("one_hot without num_classes has a shape that the data decide")
    return ops.one_hot(x, num_classes, np.int64)


def isin(
    elements: Tensor, test_elements: Tensor, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    found = np.any(np.expand_dims(elements, -1) == np.reshape(test_elements, (-1,)), axis=-1)
    return ~found if invert else found


def bucketize(
    x: Tensor, boundaries: Tensor, out_int32: bool = False, right: bool = False
) -> Tensor:
    places = np.searchsorted(boundaries, x, side="right" if right else "left")
    return places.astype(np.int32 if out_int32 else np.int64)


ROWS: dict[str, Row] = {
    "index": Row(index),
    "_unsafe_index": Row(index),
    "index_put": Row(index_put, extras=("counted",)),
    "_unsafe_index_put": Row(index_put, extras=("counted",)),
    "index_select": Row(index_select),
    "gather": Row(gather),
    "take_along_dim": Row(take_along_dim),
    "scatter": Row(scatter),
    "scatter_add": Row(scatter_add),
    "scatter_reduce": Row(scatter_reduce),
    "index_add": Row(index_add),
    "index_copy": Row(index_copy),
    "index_fill": Row(index_fill),
    "take": Row(take),
    "embedding": Row(embedding),
    "_embedding_bag": Row(embedding_bag, results=1),
    "_embedding_bag_forward_only": Row(embedding_bag, results=1),
    "nonzero": Row(nonzero),
    "where.default": Row(where_true),
    "masked_select": Row(masked_select),
    "masked_scatter": Row(masked_scatter),
    "as_strided": Row(as_strided),
    "one_hot": Row(one_hot),
    "isin": Row(isin),
    "bucketize": Row(bucketize),
}
