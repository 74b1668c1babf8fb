"""Operators that gather, scatter, sort and count elements."""

from __future__ import annotations

import numpy as np

from .....compiler.ir import Tensor
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows
from .shape_rows import ints, moved, placed


def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Gather: rows along an axis; a negative index counts from the end."""
    return moved(_taken, x, indices, axis)


def _taken(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    axis = placed(axis, x.ndim)
    return x[(*((slice(None),) * axis), from_front(indices, x.shape[axis]))]


def from_front(indices: Tensor, size: int) -> Tensor:
    """Indices without negative ones, i64."""
    wide = np.asarray(indices).astype(np.int64)
    return np.where(wide < 0, wide + size, wide)


def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """GatherElements: an element for each index, along an axis."""
    return x[_places(x.shape, indices, axis)]


def _places(shape: tuple[int, ...], indices: Tensor, axis: int) -> tuple[Tensor, ...]:
    """For each index its place in a tensor, an array an axis."""
    rank = len(shape)
    axis = placed(axis, rank)
    found = []
    for k in range(rank):
        own = np.arange(indices.shape[k]).reshape((1,) * k + (-1,) + (1,) * (rank - 1 - k))
        found.append(from_front(indices, shape[axis]) if k == axis else own)
    return tuple(found)


def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """GatherND: a slice for each vector of indices, after shared leading axes."""
    return x[_vectors(x.shape, indices, batch_dims)]


def _vectors(shape: tuple[int, ...], indices: Tensor, batch: int) -> tuple[Tensor, ...]:
    rank = indices.ndim - 1
    found = []
    for k in range(batch):
        found.append(np.arange(shape[k]).reshape((1,) * k + (-1,) + (1,) * (rank - 1 - k)))
    for k in range(indices.shape[-1]):
        found.append(from_front(indices[..., k], shape[batch + k]))
    return tuple(found)


def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """ScatterElements: a copy with an element replaced, or combined, for each index."""
    return _written(x, _places(x.shape, indices, axis), updates, reduction)


def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """ScatterND: a copy with a slice replaced, or combined, for each vector of indices."""
    return _written(x, _vectors(x.shape, indices, 0), updates, reduction)


def _written(x: Tensor, index: tuple[Tensor, ...], updates: Tensor, reduction: str) -> Tensor:
    out = x.copy()
    if reduction == "none":
        out[index] = updates
    elif reduction == "add":
        np.add.at(out, index, updates)
    elif reduction == "mul":
        np.multiply.at(out, index, updates)
    elif reduction == "max":
        np.maximum.at(out, index, updates)
    elif reduction == "min":
        np.minimum.at(out, index, updates)
    else:
        raise OnnxError(f"a scatter's reduction {reduction!r} is unknown")
    return out


def one_hot(labels: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    """OneHot: a new axis, `values` [off, on]; labels out of range give off throughout."""
    count = int(np.reshape(depth, (-1,))[0])
    where = placed(axis, labels.ndim + 1)
    whole = labels.astype(np.int64)
    whole = np.where(whole < 0, whole + count, whole)
    found = whole[..., None] == np.arange(count)
    return np.moveaxis(np.where(found, values[1], values[0]), -1, where)


def top_k(
    x: Tensor,
    count: Tensor = None,
    *,
    axis: int = -1,
    k: int | None = None,
    largest: int = 1,
    sorted: int = 1,
) -> tuple[Tensor, Tensor]:
    """TopK: the k largest or smallest and their places; of equals the first."""
    many = ints(count)[0] if k is None else k
    last = np.moveaxis(x, axis, -1)
    key = last
    if largest:
        key = -last if last.dtype.kind == "f" else ~last
    places = np.argsort(key, axis=-1, kind="stable")[..., :many]
    found = np.take_along_axis(last, places, axis=-1)
    return np.moveaxis(found, -1, axis), np.moveaxis(places, -1, axis)


def cumulative_sum(x: Tensor, along: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """CumSum."""
    return _cumulative(x, along, exclusive, reverse, 0)


def cumulative_product(x: Tensor, along: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """CumProd."""
    return _cumulative(x, along, exclusive, reverse, 1)


def _cumulative(x: Tensor, along: Tensor, exclusive: int, reverse: int, product: int) -> Tensor:
    axis = placed(ints(along)[0], x.ndim)
    if reverse:
        x = np.flip(x, axis)
    whole = np.cumprod(x, axis) if product else np.cumsum(x, axis)
    whole = whole.astype(x.dtype)
    if exclusive:
        first = (*((slice(None),) * axis), slice(0, 1))
        before = (*((slice(None),) * axis), slice(0, x.shape[axis] - 1))
        start = np.full(x[first].shape, product, x.dtype)
        whole = np.concatenate([start, whole[before]], axis)
    return np.flip(whole, axis) if reverse else whole


def reverse_sequence(
    x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    """ReverseSequence: the first elements of each sequence in reverse."""
    order = (batch_axis, time_axis, *range(2, x.ndim))
    rows = np.transpose(x, order)
    steps = np.arange(rows.shape[1])
    reach = np.asarray(lengths).astype(np.int64)[:, None]
    places = np.where(steps < reach, reach - 1 - steps, steps)
    back = rows[np.arange(rows.shape[0])[:, None], places]
    return np.transpose(back, order)


def nonzero(x: Tensor) -> Tensor:
    """NonZero: places of what is not zero, an axis a row; of values that are known."""
    return np.stack(np.nonzero(x))


def compress(x: Tensor, kept: Tensor, *, axis: int | None = None) -> Tensor:
    """Compress: elements or rows where a condition holds."""
    if axis is None:
        x, axis = np.reshape(x, (-1,)), 0
    places = np.flatnonzero(kept)
    return np.take(x, places, axis=axis)


def unique(
    x: Tensor, *, axis: int | None = None, sorted: int = 1, outputs: tuple[bool, ...] = (True,)
) -> tuple[Tensor, ...]:
    """Unique elements, where each is first, which one each is, how many there are of each.

    Their number is known when the program runs.
    """
    if axis is not None and x.ndim > 1:
        raise OnnxError(
            "Unique along an axis gives a matrix whose size the data decide",
            "keep the shape, or take the unique elements after the model",
        )
    values, first, which, counts = np.unique(
        np.reshape(x, (-1,)), return_index=True, return_inverse=True, return_counts=True
    )
    if not sorted:
        order = np.argsort(first)
        values, first, counts = values[order], first[order], counts[order]
        which = np.argsort(order)[which]
    return (values, first, which, counts)[: len(outputs)]


def tensor_scatter(
    cache: Tensor, update: Tensor, starts: Tensor = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """TensorScatter: a copy with a stretch of an axis replaced, from a start for each row."""
    axis = placed(axis, cache.ndim)
    rows = cache.shape[0]
    first = np.zeros(rows, np.int64) if starts is None else starts.astype(np.int64)
    steps = first[:, None] + np.arange(update.shape[axis])
    if mode == "circular":
        steps = steps % cache.shape[axis]
    held = np.moveaxis(cache, axis, 1).copy()
    held[np.arange(rows)[:, None], steps] = np.moveaxis(update, axis, 1)
    return np.moveaxis(held, 1, axis)


GATHER_ROWS: Rows = {
    "Compress": Row(compress, known=(1,)),
    "CumProd": Row(cumulative_product, known=(1,)),
    "CumSum": Row(cumulative_sum, known=(1,)),
    "Gather": Row(gather),
    "GatherElements": Row(gather_elements),
    "GatherND": Row(gather_nd),
    "NonZero": Row(nonzero, known=(0,)),
    "OneHot": Row(one_hot, known=(1,)),
    "ReverseSequence": Row(reverse_sequence),
    "Scatter": Row(scatter_elements),
    "ScatterElements": Row(scatter_elements),
    "ScatterND": Row(scatter_nd),
    "TensorScatter": Row(tensor_scatter),
    "TopK": Row(top_k, known=(1,), several=True),
    "Unique": Row(unique, several=True, counted=True),
}
