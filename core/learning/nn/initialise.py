"""First weights from explicit keys, f32, by threefry: the same key gives the same weights anywhere.

Those that scale by a layer's size have one signature, `(key, shape, inputs, outputs)`, where
`inputs` and `outputs` are what an output sums over and what an input reaches (a convolution's are
its channels times its kernel's area). So a layer's `init` takes any of them as `weights=`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ...compiler import ops, random
from ...compiler.ir import Tensor

#: (key u32[2], shape, inputs, outputs) -> f32 of the shape.
Weights: TypeAlias = Callable[[Tensor, Sequence[int], int, int], Tensor]

#: The standard deviation of a standard normal number that is kept within two of them.
_TRUNCATED_DEVIATION = 0.87962566103423978
#: From 0 to 2, the farthest, five give f32's precision.
_NEWTON_STEPS = 8


def uniform(key: Tensor, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> Tensor:
    """f32 of `shape`, uniform in [low, high)."""
    return random.uniform(key, shape, low, high)


def normal(key: Tensor, shape: Sequence[int], deviation: float = 1.0) -> Tensor:
    """f32 of `shape`, normal with mean zero."""
    return random.normal(key, shape) * deviation


def truncated_normal(key: Tensor, shape: Sequence[int], deviation: float = 1.0) -> Tensor:
    """f32 normal within twice `deviation` of zero; its own deviation is 0.88 of that."""
    # Phi(-2) and Phi(2) - Phi(-2).
    low = 0.5 * (1.0 + math.erf(-math.sqrt(2.0)))
    share = math.erf(math.sqrt(2.0))
    wanted = low + share * random.uniform(key, shape)
    # Newton on Phi(x) = wanted from the centre converges within the bounds: Phi is convex to the
    # left of 0 and concave to the right, so no step overshoots; the clip bounds its rounding.
    x = np.zeros_like(wanted)
    for _ in range(_NEWTON_STEPS):
        density = np.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
        error = 0.5 * (1.0 + ops.erf(x * math.sqrt(0.5))) - wanted
        x = np.clip(x - error / density, -2.0, 2.0)
    return x * deviation


def glorot_uniform(key: Tensor, shape: Sequence[int], inputs: int, outputs: int) -> Tensor:
    """f32 of `shape`, uniform in +-sqrt(6 / (inputs + outputs)) (Glorot, Bengio 2010, eq. 16)."""
    limit = float(np.sqrt(6.0 / (inputs + outputs)))
    return (random.uniform(key, shape) * 2.0 - 1.0) * limit


def glorot_normal(key: Tensor, shape: Sequence[int], inputs: int, outputs: int) -> Tensor:
    """f32 of `shape`, normal with variance 2 / (inputs + outputs) (Glorot, Bengio 2010)."""
    return random.normal(key, shape) * math.sqrt(2.0 / (inputs + outputs))


def he_uniform(key: Tensor, shape: Sequence[int], inputs: int, outputs: int) -> Tensor:
    """f32 of `shape`, uniform in +-sqrt(6 / inputs) (He et al. 2015): for layers before a relu."""
    limit = math.sqrt(6.0 / inputs)
    return random.uniform(key, shape, -limit, limit)


def he_normal(key: Tensor, shape: Sequence[int], inputs: int, outputs: int) -> Tensor:
    """f32 of `shape`, normal with variance 2 / inputs (He et al. 2015, eq. 10)."""
    return random.normal(key, shape) * math.sqrt(2.0 / inputs)


def lecun_normal(key: Tensor, shape: Sequence[int], inputs: int, outputs: int) -> Tensor:
    """f32 truncated normal of variance 1 / inputs, for selu and transformers."""
    return truncated_normal(key, shape, math.sqrt(1.0 / inputs) / _TRUNCATED_DEVIATION)


def orthogonal(key: Tensor, shape: Sequence[int], inputs: int, outputs: int) -> Tensor:
    """f32 of `shape` with orthonormal rows or columns (Saxe et al. 2014).

    It is read as a matrix [shape[:-1], shape[-1]]; whichever of rows and columns are fewer are
    orthonormal.
    """
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    few, many = min(rows, columns), max(rows, columns)
    drawn = random.normal(key, (few, many))
    basis = np.zeros((few, many), np.float32)
    for k in range(few):
        v = drawn[k]
        # Rows that are not yet made are zero and take nothing away.
        v = v - (basis @ v) @ basis
        v = v / np.sqrt(np.sum(v * v))
        v = v - (basis @ v) @ basis
        v = v / np.sqrt(np.sum(v * v))
        basis = ops.dynamic_update(basis, v[None], (k, 0))
    return (basis if rows <= columns else basis.T).reshape(tuple(shape))


__all__ = [
    "Weights",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "lecun_normal",
    "normal",
    "orthogonal",
    "truncated_normal",
    "uniform",
]
