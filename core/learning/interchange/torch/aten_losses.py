"""ATen's losses, kept whole where a composition would have other slopes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....compiler.ir import Tensor
from .aten_row import Row

#: ATen's Reduction enum.
_NONE, _MEAN, _SUM = 0, 1, 2


def reduced(losses: Tensor, reduction: int) -> Tensor:
    if reduction == _NONE:
        return losses
    return np.mean(losses) if reduction == _MEAN else np.sum(losses)


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Minus the log-probability at the target: [N, C, ...] (or [C]), [N, ...] -> [N, ...]."""
    axis = 1 if x.ndim > 1 else 0
    counts = target != ignore_index
    safe = np.where(counts, target, 0)
    picked = np.squeeze(np.take_along_axis(x, np.expand_dims(safe, axis), axis=axis), axis=axis)
    factor = counts.astype(x.dtype)
    if weight is not None:
        factor = np.where(counts, weight[safe], 0)
    losses = np.where(counts, -picked * factor, 0)
    total = np.sum(factor)
    if reduction == _NONE:
        return losses, np.zeros((), x.dtype)
    summed = np.sum(losses)
    return (summed / total if reduction == _MEAN else summed), total


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """[N, C] (or [C]) and as many targets, of which those before the first -1 count."""
    rows = np.reshape(x, (-1, x.shape[-1])) if x.ndim else np.reshape(x, (1, 1))
    wanted = np.reshape(target, rows.shape)
    counts = np.cumprod((wanted >= 0).astype(np.int64), axis=1) > 0
    classes = np.arange(rows.shape[1])
    hits = (np.expand_dims(wanted, -1) == classes) & np.expand_dims(counts, -1)
    is_target = np.any(hits, axis=1)
    picked = np.take_along_axis(rows, np.where(counts, wanted, 0), axis=1)
    gaps = 1.0 - (np.expand_dims(picked, -1) - np.expand_dims(rows, 1))
    pairs = np.expand_dims(counts, -1) & ~np.expand_dims(is_target, 1) & (gaps > 0)
    losses = np.sum(np.where(pairs, gaps, 0), axis=(1, 2)) / float(rows.shape[1])
    losses = losses if x.ndim > 1 else losses[0]
    return reduced(losses, reduction), np.reshape(is_target, target.shape).astype(x.dtype)


def mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return reduced((x - target) * (x - target), reduction)


def binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    """Logarithms count as at least -100."""
    tiny = float(np.exp(-100.0))
    here = np.where(x > tiny, np.log(np.where(x > tiny, x, 1)), -100.0)
    left = 1.0 - x
    there = np.where(left > tiny, np.log(np.where(left > tiny, left, 1)), -100.0)
    losses = -(target * here + (1.0 - target) * there)
    return reduced(losses if weight is None else losses * weight, reduction)


def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    below = np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)
    factor = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    losses = (1 - target) * x + factor * below
    return reduced(losses if weight is None else losses * weight, reduction)


def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Tensor:
    error = np.abs(x - target)
    if beta == 0:
        return reduced(error, reduction)
    losses = np.where(error < beta, 0.5 * error * error / beta, error - 0.5 * beta)
    return reduced(losses, reduction)


def huber_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Tensor:
    error = np.abs(x - target)
    losses = np.where(error <= delta, 0.5 * error * error, delta * (error - 0.5 * delta))
    return reduced(losses, reduction)


def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return reduced(np.log1p(np.exp(-target * x)), reduction)


def kl_div(x: Tensor, target: Tensor, reduction: int = _MEAN, log_target: bool = False) -> Tensor:
    if log_target:
        return reduced(np.exp(target) * (target - x), reduction)
    nothing = target == 0
    logs = np.where(nothing, 0, target * np.log(np.where(nothing, 1, target)))
    return reduced(logs - target * x, reduction)


def log_sigmoid_forward(x: Tensor) -> tuple[Tensor]:
    return (np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))),)


def cdist(x: Tensor, y: Tensor, p: Any, compute_mode: int | None = None) -> Tensor:
    """p-norms of all differences, with slope 0 where they are 0."""
    return _lengths(np.expand_dims(x, -2) - np.expand_dims(y, -3), p)


def pdist(x: Tensor, p: Any = 2.0) -> Tensor:
    """p-norms of the differences of rows i < j."""
    first, second = np.triu_indices(x.shape[0], 1)
    return _lengths(x[first] - x[second], p)


def _lengths(apart: Tensor, p: Any) -> Tensor:
    if p == np.inf:
        return np.max(np.abs(apart), axis=-1)
    if p == 0:
        return np.sum((apart != 0).astype(apart.dtype), axis=-1)
    if p == 1:
        return np.sum(np.abs(apart), axis=-1)
    powers = (
        apart * apart
        if p == 2
        else np.where(apart == 0, 0, np.abs(np.where(apart == 0, 1, apart)) ** p)
    )
    total = np.sum(powers, axis=-1)
    return np.where(total == 0, 0, np.where(total == 0, 1, total) ** (1.0 / p))


def cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    from .aten_reductions import vector_norm

    lengths = [np.maximum(vector_norm(each, 2, dim, True), eps) for each in (x, y)]
    return np.sum((x / lengths[0]) * (y / lengths[1]), axis=dim)


ROWS: dict[str, Row] = {
    "nll_loss_forward": Row(nll_loss, results=2),
    "nll_loss2d_forward": Row(nll_loss, results=2),
    "multilabel_margin_loss_forward": Row(multilabel_margin_loss, results=2),
    "mse_loss": Row(mse_loss, "same", 2),
    "binary_cross_entropy": Row(binary_cross_entropy),
    "binary_cross_entropy_with_logits": Row(binary_cross_entropy_with_logits),
    "smooth_l1_loss": Row(smooth_l1_loss, "same", 2),
    "huber_loss": Row(huber_loss, "same", 2),
    "soft_margin_loss": Row(soft_margin_loss, "same", 2),
    "kl_div": Row(kl_div),
    "log_sigmoid_forward": Row(log_sigmoid_forward, results=1),
    "_cdist_forward": Row(cdist),
    "_pdist_forward": Row(pdist),
    "cosine_similarity": Row(cosine_similarity),
}
