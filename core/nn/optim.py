"""Optimisers: pairs (init, update) on trees, pure functions of their state.

`init(params) -> state`; `update(gradient, state, params) -> (step, state)`, where `params + step`
are the new parameters. Every leaf of every tree is f32. They serve a device's local steps and the
server's step alike, where the negative mean update stands for the gradient (Reddi et al. 2021,
FedOpt).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import tree
from ..ir import Tensor


@dataclass(frozen=True)
class Optimizer:
    """An optimiser's two functions."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]


def sgd(learning_rate: float, momentum: float = 0.0) -> Optimizer:
    """v <- momentum v + g; step = -learning_rate v. Without momentum it keeps no state."""

    def init(params: Any) -> Any:
        if momentum == 0.0:
            return ()
        return tree.map(np.zeros_like, params)

    def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        if momentum == 0.0:
            return tree.map(lambda g: -learning_rate * g, gradient), ()
        velocity = tree.map(lambda v, g: momentum * v + g, state, gradient)
        return tree.map(lambda v: -learning_rate * v, velocity), velocity

    return Optimizer(init, update)


class AdamState(NamedTuple):
    """`steps` f32[]; `mean` and `square` as the parameters."""

    steps: Tensor
    mean: Any
    square: Any


def adam(
    learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> Optimizer:
    """Adam (Kingma and Ba 2015, algorithm 1, with both bias corrections)."""

    def init(params: Any) -> AdamState:
        zeros = tree.map(np.zeros_like, params)
        return AdamState(np.float32(0.0), zeros, zeros)

    def update(gradient: Any, state: AdamState, params: Any) -> tuple[Any, AdamState]:
        steps = state.steps + 1.0
        mean = tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state.mean, gradient)
        square = tree.map(lambda s, g: beta2 * s + (1.0 - beta2) * g * g, state.square, gradient)
        correct1 = 1.0 - beta1**steps
        correct2 = 1.0 - beta2**steps
        step = tree.map(
            lambda m, s: -learning_rate * (m / correct1) / (np.sqrt(s / correct2) + epsilon),
            mean,
            square,
        )
        return step, AdamState(steps, mean, square)

    return Optimizer(init, update)


def apply(params: Any, step: Any) -> Any:
    """The parameters after a step."""
    return tree.map(np.add, params, step)
