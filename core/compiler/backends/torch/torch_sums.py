"""Reductions, order and running sums in torch. Integers wrap; an axis list may be empty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .torch_tensors import Tensor


def _ordered(x: Tensor) -> Tensor:
    """As something that has an order: torch has none of bools."""
    return x.to(torch.uint8) if x.dtype is torch.bool else x


def reduce_sum(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    return torch.sum(x, dim=tuple(axes), dtype=x.dtype) if axes else x


def reduce_prod(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    if not axes:
        return x
    kept = [i for i in range(x.dim()) if i not in axes]
    count = math.prod([x.shape[i] for i in axes])
    rows = x.permute([*kept, *axes]).reshape([*(x.shape[i] for i in kept), count])
    return torch.prod(rows, dim=-1, dtype=x.dtype)


def reduce_max(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    if not axes:
        return x
    if x.dtype is torch.bool:
        return torch.any(x, dim=tuple(axes))
    return torch.amax(x, dim=tuple(axes))


def reduce_min(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    if not axes:
        return x
    if x.dtype is torch.bool:
        return torch.all(x, dim=tuple(axes))
    return torch.amin(x, dim=tuple(axes))


def argmax(x: Tensor, *, axis: int) -> Tensor:
    """The first of equals."""
    return torch.argmax(_ordered(x), dim=axis)


def argmin(x: Tensor, *, axis: int) -> Tensor:
    """The first of equals."""
    return torch.argmin(_ordered(x), dim=axis)


def argsort(x: Tensor, *, axis: int) -> Tensor:
    return torch.argsort(_ordered(x), dim=axis, stable=True)


def cumsum(x: Tensor, *, axis: int) -> Tensor:
    return torch.cumsum(x, dim=axis, dtype=x.dtype)
