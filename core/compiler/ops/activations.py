"""Activations: floats of any shape to the same shape, but for `glu` and `logsumexp`.

Each is written so that no branch that is not taken overflows: its derivative would be NaN.
"""

from __future__ import annotations

import numpy as np

from ..intrinsics import erf, sigmoid, stop_gradient
from ..ir import Array

#: Klambauer et al. 2017, equation 14: the fixed point with mean zero and variance one.
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805

_SQRT_HALF = 0.7071067811865476
_SQRT_2_OVER_PI = 0.7978845608028654
_GELU_CUBIC = 0.044715


def relu(x: Array) -> Array:
    """max(x, 0), with derivative 0 at 0; NaN stays NaN."""
    return np.where(x <= 0, 0, x)


def relu6(x: Array) -> Array:
    """min(max(x, 0), 6), with derivative 0 at both ends (Howard et al. 2017)."""
    return np.where(x <= 0, 0, np.where(x >= 6, 6, x))


def leaky_relu(x: Array, slope: float = 0.01) -> Array:
    """x where it is positive, else slope x (Maas et al. 2013)."""
    return np.where(x > 0, x, slope * x)


def elu(x: Array, alpha: float = 1.0) -> Array:
    """x where it is positive, else alpha (exp(x) - 1) (Clevert et al. 2016)."""
    below = np.where(x > 0, 0, x)
    return np.where(x > 0, x, alpha * np.expm1(below))


def selu(x: Array) -> Array:
    """The self-normalising elu (Klambauer et al. 2017)."""
    return SELU_SCALE * elu(x, SELU_ALPHA)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softsign(x: Array) -> Array:
    """x / (1 + |x|)."""
    return x / (1.0 + np.abs(x))


def silu(x: Array) -> Array:
    """x sigmoid(x) (Elfwing et al. 2018)."""
    return x * sigmoid(x)


def mish(x: Array) -> Array:
    """x tanh(softplus(x)) (Misra 2019)."""
    return x * np.tanh(softplus(x))


def gelu(x: Array, approximate: bool = False) -> Array:
    """x Phi(x) (Hendrycks and Gimpel 2016), exact, or by their approximation with tanh."""
    if approximate:
        inner = _SQRT_2_OVER_PI * (x + _GELU_CUBIC * x * x * x)
        return 0.5 * x * (1.0 + np.tanh(inner))
    return x * (erf(x * _SQRT_HALF) + 1.0) * 0.5


def hardsigmoid(x: Array) -> Array:
    """min(max(x / 6 + 1/2, 0), 1) (Howard et al. 2019), flat from 3 and from -3 on."""
    return np.where(x <= -3, 0, np.where(x >= 3, 1, x / 6.0 + 0.5))


def hardswish(x: Array) -> Array:
    """x hardsigmoid(x) (Howard et al. 2019)."""
    return x * hardsigmoid(x)


def glu(x: Array, axis: int = -1) -> Array:
    """a sigmoid(b) of the two halves a, b along an axis of even size (Dauphin et al. 2017)."""
    if x.shape[axis] % 2:
        raise ValueError(f"glu halves axis {axis}, which has an odd size in shape {list(x.shape)}")
    value, gate = np.split(x, 2, axis=axis)
    return value * sigmoid(gate)


def logsumexp(x: Array, axis: int = -1, keepdims: bool = False) -> Array:
    """log sum exp(x) along an axis, without overflow."""
    top = stop_gradient(np.max(x, axis=axis, keepdims=True))
    total: Array = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis=axis)


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / sum exp(x) along an axis."""
    if x.size == 0:
        return np.exp(x)
    raised = np.exp(x - stop_gradient(np.max(x, axis=axis, keepdims=True)))
    return raised / np.sum(raised, axis=axis, keepdims=True)  # type: ignore[no-any-return]


def log_softmax(x: Array, axis: int = -1) -> Array:
    """x - log sum exp(x) along an axis."""
    if x.size == 0:
        return np.log(x)
    shifted = x - stop_gradient(np.max(x, axis=axis, keepdims=True))
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))  # type: ignore[no-any-return]
