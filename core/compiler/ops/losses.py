"""Losses, one number for each row or element: the caller takes the mean that its weights ask for.

Arguments come as (what the model says, what is so).
"""

from __future__ import annotations

import numpy as np

from ..intrinsics import sigmoid
from ..ir import Array
from .activations import log_softmax

#: Keeps a norm away from zero.
NORM_LEAST = 1e-8


def cross_entropy(logits: Array, labels: Array, smoothing: float = 0.0) -> Array:
    """-log softmax(logits) at the label: f32[..., C], integers [...] -> f32[...].

    Args:
        logits: f32[..., C].
        labels: integers [...], or a distribution f32[..., C] (one-hot among them).
        smoothing: this share of each target is spread over all classes evenly (Szegedy et al. 2016,
            section 7).
    """
    if labels.shape == logits.shape and labels.dtype.kind not in "biu":
        losses = -np.sum(labels * log_softmax(logits), axis=-1)
        if smoothing == 0.0:
            return losses  # type: ignore[no-any-return]
        weight = np.sum(labels, axis=-1)
        return (1.0 - smoothing) * losses - smoothing * weight * np.mean(  # type: ignore[no-any-return]
            log_softmax(logits), axis=-1
        )
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"cross_entropy takes logits [..., C] and labels [...], "
            f"not shapes {list(logits.shape)} and {list(labels.shape)}"
        )
    if smoothing == 0.0:
        return -np.take_along_axis(log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    said = log_softmax(logits)
    right = np.take_along_axis(said, labels[..., None], axis=-1)[..., 0]
    return -(1.0 - smoothing) * right - smoothing * np.mean(said, axis=-1)  # type: ignore[no-any-return]


def nll(log_probabilities: Array, labels: Array) -> Array:
    """Minus the log-probability of the label: f32[..., C], integers [...] -> f32[...]."""
    if log_probabilities.shape[:-1] != labels.shape:
        raise ValueError(
            f"nll takes log-probabilities [..., C] and labels [...], "
            f"not shapes {list(log_probabilities.shape)} and {list(labels.shape)}"
        )
    return -np.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]


def binary_cross_entropy(logits: Array, targets: Array) -> Array:
    """-t log s(x) - (1 - t) log(1 - s(x)) by element, of logits x, without overflow."""
    return np.maximum(logits, 0) - logits * targets + np.log1p(np.exp(-np.abs(logits)))  # type: ignore[no-any-return]


def sigmoid_focal(logits: Array, targets: Array, alpha: float = 0.25, gamma: float = 2.0) -> Array:
    """By element, the cross-entropy of logits, less where they are right (Lin et al. 2017).

    alpha (1 - p)^gamma of the cross-entropy, where p is the probability of the target, 0 or 1, and
    1 - alpha stands for alpha where it is 0.
    """
    share = sigmoid(logits)
    right = share * targets + (1 - share) * (1 - targets)
    weight = alpha * targets + (1 - alpha) * (1 - targets)
    return weight * binary_cross_entropy(logits, targets) * (1 - right) ** gamma  # type: ignore[no-any-return]


def squared_error(prediction: Array, target: Array) -> Array:
    """(prediction - target)^2, element by element; its mean is the MSE."""
    error = prediction - target
    return error * error  # type: ignore[no-any-return]


def absolute_error(prediction: Array, target: Array) -> Array:
    """|prediction - target|, element by element; its mean is the L1 loss."""
    return np.abs(prediction - target)  # type: ignore[no-any-return]


def huber(prediction: Array, target: Array, delta: float = 1.0) -> Array:
    """By element, e^2 / 2 up to delta, then delta (|e| - delta / 2) (Huber 1964)."""
    error: Array = np.abs(prediction - target)
    return np.where(error <= delta, 0.5 * error * error, delta * (error - 0.5 * delta))


def kl_divergence(log_probabilities: Array, target: Array) -> Array:
    """sum t log(t / p): log p f32[..., C], distribution t f32[..., C] -> f32[...]."""
    # 0 log 0 = 0, and its derivative must not be NaN either.
    known = target > 0
    logs = np.log(np.where(known, target, 1))
    return np.sum(np.where(known, target * (logs - log_probabilities), 0), axis=-1)  # type: ignore[no-any-return]


def hinge(scores: Array, targets: Array) -> Array:
    """max(0, 1 - t score) for t of -1 or 1, element by element; derivative 0 at the hinge."""
    gap = 1.0 - targets * scores
    return np.where(gap <= 0, 0, gap)


def cosine_similarity(a: Array, b: Array, axis: int = -1) -> Array:
    """a . b / (|a| |b|) along an axis; a norm counts as at least 1e-8. 1 minus it is the loss."""
    if a.shape != b.shape:
        shape = np.broadcast_shapes(a.shape, b.shape)
        a, b = np.broadcast_to(a, shape), np.broadcast_to(b, shape)
    squares_a = np.sum(a * a, axis=axis)
    squares_b = np.sum(b * b, axis=axis)
    least = NORM_LEAST * NORM_LEAST
    norms = np.sqrt(np.maximum(squares_a, least)) * np.sqrt(np.maximum(squares_b, least))
    return np.sum(a * b, axis=axis) / norms  # type: ignore[no-any-return]


def triplet(anchor: Array, positive: Array, negative: Array, margin: float = 1.0) -> Array:
    """max(0, |a - p| - |a - n| + margin) over the last axis: f32[..., D] thrice -> f32[...].

    Schroff et al. 2015, with distances not squared.
    """
    near = _distance(anchor, positive)
    far = _distance(anchor, negative)
    gap = near - far + margin
    return np.where(gap <= 0, 0, gap)


def _distance(a: Array, b: Array) -> Array:
    """|a - b| along the last axis, with a derivative where they are equal."""
    error = a - b
    least = NORM_LEAST * NORM_LEAST
    return np.sqrt(np.maximum(np.sum(error * error, axis=-1), least))  # type: ignore[no-any-return]
