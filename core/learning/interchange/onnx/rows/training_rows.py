"""Steps of optimisers: ai.onnx.preview.training."""

from __future__ import annotations

import numpy as np

from .....compiler.ir import Tensor
from ..operator_rows import Row, Rows


def adagrad(
    rate: Tensor,
    step: Tensor,
    *values: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Tensor, ...]:
    """Adagrad: parameters, gradients, sums of squares -> parameters and sums."""
    many = len(values) // 3
    now = rate / (1 + step * decay_factor)
    moved, sums = [], []
    for k in range(many):
        x, g, h = values[k], values[many + k], values[2 * many + k]
        g = norm_coefficient * x + g
        total = h + g * g
        moved.append((x - now * g / (np.sqrt(total) + epsilon)).astype(x.dtype))
        sums.append(total.astype(x.dtype))
    return (*moved, *sums)


def adam(
    rate: Tensor,
    step: Tensor,
    *values: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Tensor, ...]:
    """Adam: parameters, gradients, two running means -> parameters and means."""
    many = len(values) // 4
    moved, firsts, seconds = [], [], []
    for k in range(many):
        x, g, v, h = [values[part * many + k] for part in range(4)]
        g = norm_coefficient * x + g
        first = alpha * v + (1 - alpha) * g
        second = beta * h + (1 - beta) * g * g
        root = np.sqrt(second) + epsilon
        # Without its corrections, step 0 divides by nothing.
        began = step > 0
        power = np.where(began, step, 1).astype(np.float64)
        right = np.sqrt(1 - np.power(beta, power)) / (1 - np.power(alpha, power))
        now = np.where(began, rate * right, rate).astype(x.dtype)
        new = (1 - norm_coefficient_post) * (x - now * first / root)
        moved.append(new.astype(x.dtype))
        firsts.append(first.astype(x.dtype))
        seconds.append(second.astype(x.dtype))
    return (*moved, *firsts, *seconds)


def momentum(
    rate: Tensor,
    step: Tensor,
    *values: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Tensor, ...]:
    """Momentum: parameters, gradients, running sums -> parameters and sums."""
    many = len(values) // 3
    moved, sums = [], []
    for k in range(many):
        x, g, v = values[k], values[many + k], values[2 * many + k]
        g = norm_coefficient * x + g
        new = alpha * v + g * np.where(step > 0, beta, 1)
        change = g + alpha * new if mode == "nesterov" else new
        moved.append((x - rate * change).astype(x.dtype))
        sums.append(new.astype(x.dtype))
    return (*moved, *sums)


TRAINING_ROWS: Rows = {
    "Adagrad": Row(adagrad, several=True),
    "Adam": Row(adam, several=True),
    "Momentum": Row(momentum, several=True),
}
