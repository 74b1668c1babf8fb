"""ATen's normalisations and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....compiler import ops, random
from ....compiler.ir import Tensor
from .aten_row import Row


def _wide(values: Tensor, rank: int, channels: int = 1) -> Tensor:
    """[C] as it meets the axis of channels, 1 or -1, of an array of this rank."""
    return values if channels == -1 else np.reshape(values, (-1, *[1] * (rank - 2)))


def _moments(x: Tensor, weight: Tensor | None, channels: int) -> tuple[Tensor, Tensor, Any]:
    """Mean and variance by channel, [C], and how many values they are of."""
    axes = tuple(range(x.ndim - 1)) if channels == -1 else (0, *range(2, x.ndim))
    each = x.size // (x.shape[0] * x.shape[channels])
    if weight is None:
        mean = np.mean(x, axis=axes)
        centred = x - _wide(mean, x.ndim, channels)
        return mean, np.mean(centred * centred, axis=axes), float(each * x.shape[0])
    rows = np.reshape(weight, (-1, *[1] * (x.ndim - 1))).astype(x.dtype)
    count = np.maximum(np.sum(weight) * float(each), 1.0)
    mean = np.sum(x * rows, axis=axes) / count
    centred = x - _wide(mean, x.ndim, channels)
    return mean, np.sum(centred * centred * rows, axis=axes) / count, count


def _scaled(
    x: Tensor, mean: Tensor, variance: Tensor, scale: Any, shift: Any, eps: float, channels: int
) -> Tensor:
    factor = 1.0 / np.sqrt(variance + eps)
    if scale is not None:
        factor = factor * scale
    y = (x - _wide(mean, x.ndim, channels)) * _wide(factor, x.ndim, channels)
    return y if shift is None else y + _wide(shift, x.ndim, channels)


def batch_norm(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    weight: Tensor | None = None,
    channels: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """By the batch's statistics in training, by the running ones otherwise.

    Args:
        x: [N, C, space...].
        scale, shift, running_mean, running_var: [C].
        training: whether the batch's statistics are used.
        momentum: what the batch contributes to the running ones.
        eps: added to the variance.
        weight: f32[N], zero for rows that fill up the batch.
        channels: the axis of channels, 1 or -1.

    Returns:
        The result, the batch's means and inverse deviations, and the new running statistics, whose
        variance is the unbiased one. In inference the second and the third are not PyTorch's.
    """
    if not training:
        y = _scaled(x, running_mean, running_var, scale, shift, eps, channels)
        return y, running_mean, running_var, running_mean, running_var
    mean, variance, count = _moments(x, weight, channels)
    y = _scaled(x, mean, variance, scale, shift, eps, channels)
    inverse = 1.0 / np.sqrt(variance + eps)
    if running_mean is None or running_var is None:
        return y, mean, inverse, mean, variance
    # A number of Python's keeps the type of the variance; NumPy's maximum would make it f64.
    more = max(count - 1.0, 1.0) if isinstance(count, float) else np.maximum(count - 1.0, 1.0)
    wide = variance * (count / more)
    new_mean = ops.stop_gradient(momentum * mean + (1.0 - momentum) * running_mean)
    new_variance = ops.stop_gradient(momentum * wide + (1.0 - momentum) * running_var)
    dtype = running_mean.dtype
    return y, mean, inverse, new_mean.astype(dtype), new_variance.astype(dtype)


def moments(x: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Means and variances of channels, [C], over the rows that count: x [N, ..., C]."""
    mean, variance, _ = _moments(x, weight, -1)
    return mean, variance


def batch_norm_without_statistics(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    weight: Tensor | None = None,
    channels: int = 1,
) -> tuple[Tensor]:
    mean, variance, _ = _moments(x, weight, channels)
    return (_scaled(x, mean, variance, scale, shift, eps, channels),)


def batch_norm_inference(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    channels: int = 1,
) -> tuple[Tensor]:
    # Noise and rounding may leave a mean of variances just below zero.
    return (_scaled(x, running_mean, np.maximum(running_var, 0), scale, shift, eps, channels),)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the means and the inverse deviations."""
    axes = tuple(range(-len(normalized_shape), 0))
    mean = np.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    inverse = 1.0 / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + eps)
    y = centred * inverse
    y = y if scale is None else y * scale
    return (y if shift is None else y + shift), mean, inverse


def group_norm(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float,
    channels: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the means and the inverse deviations, [N, group]."""
    axes: tuple[int, ...] = (2,)
    parted = np.reshape(x, (n, group, -1))
    if channels == -1:
        parted, axes = np.reshape(x, (n, -1, group, c // group)), (1, 3)
    mean = np.mean(parted, axis=axes, keepdims=True)
    centred = parted - mean
    inverse = 1.0 / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + eps)
    y = np.reshape(centred * inverse, x.shape)
    y = y if scale is None else y * _wide(scale, x.ndim, channels)
    y = y if shift is None else y + _wide(shift, x.ndim, channels)
    return y, np.reshape(mean, (n, group)), np.reshape(inverse, (n, group))


def rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    floor = float(np.finfo(x.dtype).eps) if eps is None else eps
    y = x * (1.0 / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + floor))
    return y if weight is None else y * weight


def dropout(x: Tensor, p: float, train: bool | None = True, draw: Tensor = None) -> Tensor:
    """Without a key nothing is dropped."""
    if not train or p == 0.0 or draw is None:
        return x
    return x * 0 if p == 1.0 else ops.dropout(x, p, draw)


def rand(size: Sequence[int], dtype: Any = None, draw: Tensor = None) -> Tensor:
    """Uniform in [0, 1)."""
    return random.uniform(_needed(draw), tuple(size)).astype(np.float32 if dtype is None else dtype)


def randn(size: Sequence[int], dtype: Any = None, draw: Tensor = None) -> Tensor:
    """Standard normal."""
    return random.normal(_needed(draw), tuple(size)).astype(np.float32 if dtype is None else dtype)


def rand_like(x: Tensor, dtype: Any = None, draw: Tensor = None) -> Tensor:
    return rand(x.shape, x.dtype if dtype is None else dtype, draw)


def randn_like(x: Tensor, dtype: Any = None, draw: Tensor = None) -> Tensor:
    return randn(x.shape, x.dtype if dtype is None else dtype, draw)


def _needed(draw: Tensor) -> Tensor:
    if draw is None:
        raise ValueError("the module draws random numbers in training: pass a key, u32[2]")
    return draw


def native_dropout(x: Tensor, p: float, train: bool | None, draw: Tensor = None) -> tuple[Tensor]:
    return (dropout(x, p, train, draw),)


ROWS: dict[str, Row] = {
    "_native_batch_norm_legit_functional": Row(
        batch_norm, results=5, layout="images", extras=("weight",)
    ),
    "_native_batch_norm_legit": Row(batch_norm, results=1, layout="images", extras=("weight",)),
    "_native_batch_norm_legit.no_stats": Row(
        batch_norm_without_statistics, results=1, layout="images", extras=("weight",)
    ),
    "_native_batch_norm_legit_no_training": Row(batch_norm_inference, results=1, layout="images"),
    "native_layer_norm": Row(layer_norm, results=3),
    "native_group_norm": Row(group_norm, results=3, layout="images"),
    "rms_norm": Row(rms_norm),
    "rand": Row(rand, extras=("draw",)),
    "randn": Row(randn, extras=("draw",)),
    "rand_like": Row(rand_like, extras=("draw",)),
    "randn_like": Row(randn_like, extras=("draw",)),
    "dropout": Row(dropout, layout="pointwise", extras=("draw",)),
    "native_dropout": Row(native_dropout, results=1, layout="pointwise", extras=("draw",)),
}

#: Operators of the importer's own, by name: what a graph of ATen's would compute over all rows.
OWN_ROWS: dict[str, Row] = {"moments": Row(moments, results=2, extras=("weight",))}
