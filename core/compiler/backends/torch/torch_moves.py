"""The primitives that make tensors and move their elements about, in torch.

Places that are known only when the program runs stay on the device: windows are taken by index, so
that nothing waits for the device and a CUDA graph can hold it all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .torch_tensors import Tensor

#: A start that is known when the program is built, or None.
Starts = Sequence["int | None"]


def iota(*, dtype: torch.dtype, shape: Sequence[int], axis: int, device: str) -> Tensor:
    column = [-1 if i == axis else 1 for i in range(len(shape))]
    return torch.arange(shape[axis], device=device).to(dtype).reshape(column).expand(tuple(shape))


def reshape(x: Tensor, *, shape: Sequence[int]) -> Tensor:
    return x.reshape(tuple(shape))


def broadcast(x: Tensor, *, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    sizes = dict(zip(dims, x.shape, strict=True))
    return x.reshape([sizes.get(i, 1) for i in range(len(shape))]).expand(tuple(shape))


def transpose(x: Tensor, *, perm: Sequence[int]) -> Tensor:
    return x.permute(tuple(perm))


def reverse(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    return torch.flip(x, tuple(axes))


def slices(x: Tensor, *, start: Sequence[int], stop: Sequence[int], step: Sequence[int]) -> Tensor:
    return x[tuple([slice(*row) for row in zip(start, stop, step, strict=True)])]


def pad(
    x: Tensor,
    value: Tensor,
    *,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int],
    number: float | int | bool | None,
) -> Tensor:
    """number: the padding value where it is known when the program is built."""
    if number is not None and not any(interior):
        edges = [e for pair in zip(reversed(low), reversed(high), strict=True) for e in pair]
        return torch.nn.functional.pad(x, edges, value=number) if any(edges) else x
    inside, shape = [], []
    for n, lo, hi, gap in zip(x.shape, low, high, interior, strict=True):
        width = n + (n - 1) * gap if n else 0
        inside.append(slice(lo, lo + width, gap + 1))
        shape.append(lo + width + hi)
    out = value.expand(shape).clone(memory_format=torch.contiguous_format)
    out[tuple(inside)] = x
    return out


def concat(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, dim=axis)


def _places(start: Tensor, known: int | None, size: int, whole: int) -> Tensor:
    """The indices of a window of an axis, moved to lie within it."""
    steps = torch.arange(size, device=start.device)
    if known is not None:
        return steps + min(max(known, 0), whole - size)
    return steps + torch.clamp(start, 0, whole - size)


def dynamic_slice(x: Tensor, *starts: Tensor, sizes: Sequence[int], known: Starts) -> Tensor:
    for axis, (start, size, at) in enumerate(zip(starts, sizes, known, strict=True)):
        whole = x.shape[axis]
        if size == whole:
            continue
        if at is not None:
            x = x.narrow(axis, min(max(at, 0), whole - size), size)
        else:
            x = x.index_select(axis, _places(start, None, size, whole))
    return x


def dynamic_update(x: Tensor, update: Tensor, *starts: Tensor, known: Starts) -> Tensor:
    cut = [i for i, (n, m) in enumerate(zip(x.shape, update.shape, strict=True)) if n != m]
    if not cut:
        return update
    places = {i: _places(starts[i], known[i], update.shape[i], x.shape[i]) for i in cut}
    if len(cut) == 1:
        return x.index_copy(cut[0], places[cut[0]], update)
    grid = []
    for i, size in enumerate(update.shape):
        index = places.get(i)
        index = torch.arange(size, device=x.device) if index is None else index
        grid.append(index.reshape([-1 if j == i else 1 for j in range(x.dim())]))
    return x.index_put(tuple(grid), update)


def _clamped(indices: Tensor, size: int) -> Tensor:
    return torch.clamp(indices.to(torch.int64), 0, max(size - 1, 0))


def take(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if math.prod(shape) == 0:
        return x.new_zeros(shape)
    return x.index_select(axis, _clamped(indices, x.shape[axis]).reshape(-1)).reshape(shape)


def put_add(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int) -> Tensor:
    if updates.numel() == 0:
        return x
    shape = (*x.shape[:axis], indices.numel(), *x.shape[axis + 1 :])
    places = _clamped(indices, x.shape[axis]).reshape(-1)
    return x.index_add(axis, places, updates.reshape(shape))


def take_along(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return torch.gather(x, axis, _clamped(indices, x.shape[axis]))


def put_along_add(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int) -> Tensor:
    return x.scatter_add(axis, _clamped(indices, x.shape[axis]), updates)
