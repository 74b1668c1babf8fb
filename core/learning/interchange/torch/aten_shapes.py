"""ATen's operators of shapes, and those that make tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....compiler.ir import Tensor
from .aten_row import Row


def view(x: Tensor, size: Sequence[int]) -> Tensor:
    return np.reshape(x, tuple(size))


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return np.transpose(x, tuple(dims)) if len(dims) else x


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    return np.swapaxes(x, dim0, dim1) if x.ndim else x


def t(x: Tensor) -> Tensor:
    return x if x.ndim < 2 else np.swapaxes(x, 0, 1)


def expand(x: Tensor, size: Sequence[int], implicit: bool = False) -> Tensor:
    """-1 keeps the size of an axis."""
    more = len(size) - x.ndim
    shape = [x.shape[k - more] if size[k] == -1 else size[k] for k in range(len(size))]
    return np.broadcast_to(x, tuple(shape))


def squeeze(x: Tensor, dim: Any = None) -> Tensor:
    """Without the axes that have one element; others of `dim` stay."""
    if x.ndim == 0:
        return x
    dims = (dim,) if isinstance(dim, int) else (range(x.ndim) if dim is None else dim)
    ones = [d % x.ndim for d in dims if x.shape[d] == 1]
    return np.squeeze(x, axis=tuple(ones)) if ones else x


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    return np.expand_dims(x, dim)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """An empty tensor of one axis fits anything, as in ATen's older programs."""
    kept = [x for x in tensors if x.shape != (0,)]
    return np.concatenate(kept, axis=dim) if kept else tensors[0]


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return np.stack(tensors, axis=dim)


def split_with_sizes(x: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    parts, start = [], 0
    whole = (slice(None),) * (dim % x.ndim)
    for size in split_sizes:
        parts.append(x[(*whole, slice(start, start + size))])
        start = start + size
    return tuple(parts)


def split(x: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    length = x.shape[dim]
    count = max(1, -(-length // split_size) if split_size else 1)
    sizes = [min(split_size, length - k * split_size) for k in range(count)]
    return split_with_sizes(x, sizes, dim)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    whole = (slice(None),) * (dim % x.ndim)
    return tuple([x[(*whole, k)] for k in range(x.shape[dim])])


def select(x: Tensor, dim: int, index: int) -> Tensor:
    return x[(*(slice(None),) * (dim % x.ndim), index)]


def bounds(length: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Where a slice begins and ends, counted from the front."""
    first = 0 if start is None else start
    last = length if end is None else end
    first = max(0, first + length) if first < 0 else min(first, length)
    last = max(0, last + length) if last < 0 else min(last, length)
    return first, max(first, last)


def slice_of(
    x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    first, last = bounds(x.shape[dim], start, end)
    if first == 0 and last == x.shape[dim] and step == 1:
        return x
    return x[(*(slice(None),) * (dim % x.ndim), slice(first, last, step))]


def slice_scatter(
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    first, last = bounds(x.shape[dim], start, end)
    out = np.array(x)
    out[(*(slice(None),) * (dim % x.ndim), slice(first, last, step))] = src
    return out


def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    out = np.array(x)
    out[(*(slice(None),) * (dim % x.ndim), index)] = src
    return out


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return np.diagonal(x, offset, dim1, dim2)


def diagonal_scatter(
    x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    moved = np.array(np.moveaxis(x, (dim1, dim2), (-2, -1)))
    count = src.shape[-1]
    rows, columns = np.arange(count) + max(-offset, 0), np.arange(count) + max(offset, 0)
    moved[..., rows, columns] = src
    return np.moveaxis(moved, (-2, -1), (dim1, dim2))


def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    return np.flip(x, axis=tuple(dims)) if x.ndim and len(dims) else x


def roll(x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    shifts = tuple(shifts) if isinstance(shifts, list | tuple) else (shifts,)
    if x.ndim == 0:
        return x
    return np.roll(x, shifts, tuple(dims)) if len(dims) else np.roll(x, shifts[0])


def repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    return np.tile(x, tuple(repeats))


def constant_pad(x: Tensor, pad: Sequence[int], value: Any = 0) -> Tensor:
    """Pads from the last axis backwards; a negative number cuts off."""
    for k in range(len(pad) // 2):
        axis, (before, after) = x.ndim - 1 - k, (pad[2 * k], pad[2 * k + 1])
        whole = (slice(None),) * axis
        x = x[(*whole, slice(max(0, -before), x.shape[axis] - max(0, -after)))]
        widths = [(0, 0)] * x.ndim
        widths = [*widths[:axis], (max(0, before), max(0, after)), *widths[axis + 1 :]]
        x = np.pad(x, widths, constant_values=value)
    return x


def reflection_pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    return _padded_by(x, padding, "reflect")


def replication_pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    return _padded_by(x, padding, "edge")


def _padded_by(x: Tensor, pad: Sequence[int], mode: str) -> Tensor:
    for k in range(len(pad) // 2):
        axis, length = x.ndim - 1 - k, x.shape[x.ndim - 1 - k]
        places = [i - pad[2 * k] for i in range(length + pad[2 * k] + pad[2 * k + 1])]
        if mode == "edge":
            places = [min(max(i, 0), length - 1) for i in places]
        else:
            places = [length - 1 - abs(length - 1 - abs(i)) for i in places]
        x = np.take(x, np.array(places), axis=axis)
    return x


def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows along an axis, their elements last."""
    axis = dimension % max(x.ndim, 1)
    if x.ndim == 0:
        return x.reshape(1)
    count = (x.shape[axis] - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    return np.moveaxis(np.take(x, places, axis=axis), axis + 1, -1)


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return np.tril(x, diagonal)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return np.triu(x, diagonal)


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    r, (c, h, w) = upscale_factor, x.shape[-3:]
    lead, wide = x.shape[:-3], x.ndim - 3
    parted = np.reshape(x, (*lead, c // (r * r), r, r, h, w))
    order = (*range(wide), wide, wide + 3, wide + 1, wide + 4, wide + 2)
    return np.reshape(np.transpose(parted, order), (*lead, c // (r * r), h * r, w * r))


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    r, (c, h, w) = downscale_factor, x.shape[-3:]
    lead, wide = x.shape[:-3], x.ndim - 3
    parted = np.reshape(x, (*lead, c, h // r, r, w // r, r))
    order = (*range(wide), wide, wide + 2, wide + 4, wide + 1, wide + 3)
    return np.reshape(np.transpose(parted, order), (*lead, c * r * r, h // r, w // r))


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    parted = np.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return np.reshape(np.swapaxes(parted, 1, 2), x.shape)


# What makes tensors


def arange(end: Any, dtype: Any = None) -> Tensor:
    return np.arange(end, dtype=dtype)


def arange_from(start: Any, end: Any, dtype: Any = None) -> Tensor:
    return np.arange(start, end, dtype=dtype)


def arange_by(start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Tensor:
    """ATen computes start + i step, in f64 for floats."""
    count = max(0, math.ceil((end - start) / step))
    return (start + np.arange(count) * step).astype(dtype)


def tril_indices(row: int, col: int, offset: int = 0, dtype: Any = None) -> Tensor:
    return np.stack(np.tril_indices(row, offset, col)).astype(dtype or np.int64)


def triu_indices(row: int, col: int, offset: int = 0, dtype: Any = None) -> Tensor:
    return np.stack(np.triu_indices(row, offset, col)).astype(dtype or np.int64)


def full(size: Sequence[int], fill_value: Any, dtype: Any = None) -> Tensor:
    return np.full(tuple(size), fill_value, dtype)


def full_like(x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    return np.full(x.shape, fill_value, x.dtype if dtype is None else dtype)


def zeros(size: Sequence[int], dtype: Any = None) -> Tensor:
    return np.zeros(tuple(size), np.float32 if dtype is None else dtype)


def ones(size: Sequence[int], dtype: Any = None) -> Tensor:
    return np.ones(tuple(size), np.float32 if dtype is None else dtype)


def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: Any = None) -> Tensor:
    """What has no values yet is zeros here."""
    return zeros(size, dtype)


def zeros_like(x: Tensor, dtype: Any = None) -> Tensor:
    return np.zeros(x.shape, x.dtype if dtype is None else dtype)


def ones_like(x: Tensor, dtype: Any = None) -> Tensor:
    return np.ones(x.shape, x.dtype if dtype is None else dtype)


def new_zeros(x: Tensor, size: Sequence[int], dtype: Any = None) -> Tensor:
    return np.zeros(tuple(size), x.dtype if dtype is None else dtype)


def new_ones(x: Tensor, size: Sequence[int], dtype: Any = None) -> Tensor:
    return np.ones(tuple(size), x.dtype if dtype is None else dtype)


def new_full(x: Tensor, size: Sequence[int], fill_value: Any, dtype: Any = None) -> Tensor:
    return np.full(tuple(size), fill_value, x.dtype if dtype is None else dtype)


def scalar_tensor(s: Any, dtype: Any = None) -> Tensor:
    return np.full((), s, np.float32 if dtype is None else dtype)


def fill(x: Tensor, value: Any) -> Tensor:
    return np.broadcast_to(np.asarray(value).astype(x.dtype), x.shape)


def copy(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return np.broadcast_to(src.astype(x.dtype), x.shape)


def eye(n: int, m: int | None = None, dtype: Any = None) -> Tensor:
    return np.eye(n, n if m is None else m, dtype=np.float32 if dtype is None else dtype)


def eye_wide(n: int, m: int, dtype: Any = None) -> Tensor:
    return eye(n, m, dtype)


def linspace(start: float, end: float, steps: int, dtype: Any = None) -> Tensor:
    return np.linspace(start, end, steps, dtype=np.float32 if dtype is None else dtype)


ROWS: dict[str, Row] = {
    "view": Row(view),
    "_unsafe_view": Row(view),
    "reshape": Row(view),
    "permute": Row(permute, layout="axes"),
    "transpose": Row(transpose),
    "t": Row(t),
    "expand": Row(expand),
    "squeeze": Row(squeeze),
    "unsqueeze": Row(unsqueeze),
    "cat": Row(cat, layout="axes"),
    "stack": Row(stack),
    "split_with_sizes": Row(split_with_sizes, layout="axes"),
    "split": Row(split),
    "unbind": Row(unbind),
    "select": Row(select),
    "slice": Row(slice_of, layout="axes"),
    "slice_scatter": Row(slice_scatter),
    "select_scatter": Row(select_scatter),
    "diagonal": Row(diagonal),
    "diagonal_scatter": Row(diagonal_scatter),
    "flip": Row(flip),
    "roll": Row(roll),
    "repeat": Row(repeat),
    "constant_pad_nd": Row(constant_pad),
    "reflection_pad1d": Row(reflection_pad),
    "reflection_pad2d": Row(reflection_pad),
    "reflection_pad3d": Row(reflection_pad),
    "replication_pad1d": Row(replication_pad),
    "replication_pad2d": Row(replication_pad),
    "replication_pad3d": Row(replication_pad),
    "unfold": Row(unfold),
    "tril": Row(tril),
    "triu": Row(triu),
    "pixel_shuffle": Row(pixel_shuffle),
    "pixel_unshuffle": Row(pixel_unshuffle),
    "channel_shuffle": Row(channel_shuffle),
    "arange": Row(arange),
    "arange.start": Row(arange_from),
    "arange.start_step": Row(arange_by),
    "full": Row(full),
    "full_like": Row(full_like),
    "zeros": Row(zeros),
    "ones": Row(ones),
    "empty": Row(zeros),
    "empty_strided": Row(empty_strided),
    "zeros_like": Row(zeros_like),
    "ones_like": Row(ones_like),
    "empty_like": Row(zeros_like),
    "new_zeros": Row(new_zeros),
    "new_ones": Row(new_ones),
    "new_full": Row(new_full),
    "new_empty": Row(new_zeros),
    "scalar_tensor": Row(scalar_tensor),
    "fill": Row(fill),
    "copy": Row(copy),
    "eye": Row(eye),
    "eye.m": Row(eye_wide),
    "linspace": Row(linspace),
    "tril_indices": Row(tril_indices),
    "triu_indices": Row(triu_indices),
}
