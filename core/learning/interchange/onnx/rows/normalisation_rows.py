"""Normalisations."""

from __future__ import annotations

import numpy as np

from .....compiler.ir import Tensor
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows
from .shape_rows import placed


def _of_channels(value: Tensor, rank: int) -> Tensor:
    """[C] as [C, 1...], to broadcast against [N, C, space...]."""
    return value.reshape((-1,) + (1,) * (rank - 2))


def batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    outputs: tuple[bool, ...] = (True,),
) -> tuple[Tensor, ...]:
    """BatchNormalization: by the given statistics, or in training by the batch's."""
    rank = x.ndim
    used, spread = mean, variance
    if training_mode:
        axes = (0, *range(2, rank))
        used, spread = np.mean(x, axis=axes), np.var(x, axis=axes)
    centred = x - _of_channels(used, rank)
    root = np.sqrt(_of_channels(spread, rank) + epsilon)
    y = _of_channels(scale, rank) * centred / root + _of_channels(bias, rank)
    y = y.astype(x.dtype)
    if not training_mode or len(outputs) < 2:
        return (y,)
    mean = mean * momentum + used * (1 - momentum)
    variance = variance * momentum + spread * (1 - momentum)
    return y, mean, variance


def batch_norm_last(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    is_test: int | None = None,
    outputs: tuple[bool, ...] = (True,),
) -> tuple[Tensor, ...]:
    """BatchNormalization of images [N, space..., C], by the given statistics."""
    if training_mode or not spatial or is_test == 0:
        raise OnnxError("batch normalisation in training", "export the model in evaluation mode")
    y = scale * (x - mean) / np.sqrt(variance + epsilon) + bias
    return (y.astype(x.dtype),)


def instance_norm(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """InstanceNormalization: each channel of each row by itself."""
    axes = tuple(range(2, x.ndim))
    centred = x - np.mean(x, axis=axes, keepdims=True)
    root = np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + epsilon)
    return _of_channels(scale, x.ndim) * centred / root + _of_channels(bias, x.ndim)


def layer_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: tuple[bool, ...] = (True,),
) -> tuple[Tensor, ...]:
    """LayerNormalization over the axes from `axis` on, in f32; the mean and 1 / deviation too."""
    axes = tuple(range(placed(axis, x.ndim), x.ndim))
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    mean = np.mean(wide, axis=axes, keepdims=True)
    centred = wide - mean
    inverse = 1 / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + epsilon)
    y = (centred * inverse).astype(x.dtype) * scale
    y = y if bias is None else y + bias
    return (y, mean, inverse)[: len(outputs)]


def rms_norm(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """RMSNormalization over the axes from `axis` on, in f32."""
    axes = tuple(range(placed(axis, x.ndim), x.ndim))
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    root = np.sqrt(np.mean(wide * wide, axis=axes, keepdims=True) + epsilon)
    return (wide / root).astype(x.dtype) * scale


def group_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    """GroupNormalization; until version 20 a scale a group, then a channel."""
    rows = x.reshape(x.shape[0], num_groups, -1)
    wide = rows if x.dtype == np.float64 else rows.astype(np.float32)
    centred = wide - np.mean(wide, axis=2, keepdims=True)
    root = np.sqrt(np.mean(centred * centred, axis=2, keepdims=True) + epsilon)
    y = (centred / root).astype(x.dtype)
    if scale.shape[0] == num_groups:
        return (y * scale[:, None] + bias[:, None]).reshape(x.shape)
    y = y.reshape(x.shape)
    return y * _of_channels(scale, x.ndim) + _of_channels(bias, x.ndim)


def lp_norm(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """LpNormalization: divided by the 1- or 2-norm along an axis; zeros stay zeros."""
    if p == 1:
        size = np.sum(np.abs(x), axis=axis, keepdims=True)
    else:
        size = np.sqrt(np.sum(x * x, axis=axis, keepdims=True))
    return np.where(size == 0, 0, x / np.where(size == 0, 1, size)).astype(x.dtype)


def local_response(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    """LRN: divided by a power of the sum of squares of neighbouring channels."""
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    widths = ((0, 0), (before, after), *[(0, 0)] * (x.ndim - 2))
    squares = np.pad(x * x, widths)
    total = squares[:, 0 : x.shape[1]]
    for k in [*range(1, size)]:
        total = total + squares[:, k : k + x.shape[1]]
    return x / np.power(bias + (alpha / size) * total, beta)


def mean_variance(x: Tensor, *, axes: tuple[int, ...] = (0, 2, 3)) -> Tensor:
    """MeanVarianceNormalization over axes."""
    centred = x - np.mean(x, axis=axes, keepdims=True)
    return centred / (np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True)) + 1e-9)


NORMALISATION_ROWS: Rows = {
    "BatchNormalization": Row(
        batch_norm, fixed=(3, 4), several=True, counted=True, last=batch_norm_last
    ),
    "GroupNormalization": Row(group_norm),
    "InstanceNormalization": Row(instance_norm),
    "LRN": Row(local_response),
    "LayerNormalization": Row(layer_norm, several=True, counted=True),
    "LpNormalization": Row(lp_norm),
    "MeanVarianceNormalization": Row(mean_variance),
    "RMSNormalization": Row(rms_norm),
}
