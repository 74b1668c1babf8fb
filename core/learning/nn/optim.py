"""Optimisers: pairs (init, update) on trees, pure functions of their state.

`init(params) -> state`; `update(gradient, state, params) -> (step, state)`, where `params + step`
are the new parameters. Every leaf of every tree is f32, and every state starts at zero: a
coordinator begins with zeros. They serve a device's local steps and the server's step alike, where
the negative mean update stands for the gradient (Reddi et al. 2021, FedOpt).

An optimiser is a chain of parts, each such a pair, that takes what the part before it gives:

    chain(clip_by_global_norm(1.0), momentum(0.9), scale(-0.1))

is SGD with momentum on clipped gradients. The named optimisers are chains that end in the rate;
what is put before one sees the gradient, what is put behind it the step. A rate may be a schedule
(`schedules`), which counts the steps in its state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...compiler import random, tree
from ...compiler.ir import Tensor
from .schedules import Schedule

Rate: TypeAlias = float | Schedule


@dataclass(frozen=True)
class Optimizer:
    """An optimiser's two functions."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]


def apply(params: Any, step: Any) -> Any:
    """The parameters after a step."""
    return tree.map(np.add, params, step)


def global_norm(values: Any) -> Tensor:
    """The 2-norm of all leaves as one vector, f32[]."""
    total = np.float32(0.0)
    for leaf in tree.leaves(values):
        total = total + np.sum(leaf * leaf)
    return np.sqrt(total)


# Parts


def _stateless(change: Callable[[Any, Any], Any]) -> Optimizer:
    """A part that keeps nothing: (values, params) -> values."""

    def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        return change(gradient, params), ()

    return Optimizer(lambda params: (), update)


def chain(*parts: Optimizer) -> Optimizer:
    """Parts one after another; the state is the tuple of theirs."""

    def init(params: Any) -> Any:
        return tuple([part.init(params) for part in parts])

    def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        states = []
        for part, its in zip(parts, state, strict=True):
            gradient, its = part.update(gradient, its, params)
            states.append(its)
        return gradient, tuple(states)

    return Optimizer(init, update)


def scale(factor: float) -> Optimizer:
    """Everything times a number; with minus the rate a gradient becomes a step."""
    return _stateless(lambda values, params: tree.map(lambda v: factor * v, values))


def scale_by_schedule(schedule: Schedule, sign: float = 1.0) -> Optimizer:
    """Everything times what the schedule gives for the steps done; they are the state, f32[]."""

    def update(gradient: Any, steps: Any, params: Any) -> tuple[Any, Any]:
        factor = sign * schedule(steps)
        return tree.map(lambda v: (factor * v).astype(v.dtype), gradient), steps + 1.0

    return Optimizer(lambda params: np.float32(0.0), update)


def _by_rate(rate: Rate) -> Optimizer:
    """The last part of an optimiser: downhill."""
    if callable(rate):
        return scale_by_schedule(rate, -1.0)
    return scale(-rate)


def clip_by_global_norm(limit: float) -> Optimizer:
    """Scales all leaves to a joint 2-norm of at most `limit` (Pascanu et al. 2013)."""

    def clipped(values: Any, params: Any) -> Any:
        norm = global_norm(values)
        factor = limit / np.maximum(norm, limit)
        return tree.map(lambda v: v * factor, values)

    return _stateless(clipped)


def weight_decay(rate: float, mask: Any = None) -> Optimizer:
    """Adds `rate` times the parameters.

    Before an optimiser the L2 penalty's gradient, in a chain behind its direction and before its
    rate the decoupled decay (Loshchilov and Hutter 2019).

    `mask` is a tree like the parameters of True where they decay (see `within`); None: everywhere.
    """

    def decayed(values: Any, params: Any) -> Any:
        if mask is None:
            return tree.map(lambda v, p: v + rate * p, values, params)
        return tree.map(lambda v, p, on: v + rate * p if on else v, values, params, mask)

    return _stateless(decayed)


def add_noise(key: Tensor, deviation: float, decay: float = 0.55) -> Optimizer:
    """Noise of variance deviation^2 / (1 + t)^decay (Neelakantan et al. 2015); state: t."""

    def update(gradient: Any, steps: Any, params: Any) -> tuple[Any, Any]:
        drawn = random.fold_in(key, steps.astype(np.int64))
        size = deviation * (1.0 + steps) ** (-0.5 * decay)
        leaves, structure = tree.flatten(gradient)
        keys = random.split(drawn, len(leaves))
        noisy = [
            leaf + (size * random.normal(keys[i], leaf.shape)).astype(leaf.dtype)
            for i, leaf in enumerate(leaves)
        ]
        return tree.unflatten(structure, noisy), steps + 1.0

    return Optimizer(lambda params: np.float32(0.0), update)


def momentum(beta: float = 0.9, nesterov: bool = False) -> Optimizer:
    """v <- beta v + g; gives v (Polyak 1964), or g + beta v with `nesterov` (1983)."""

    def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        velocity = tree.map(lambda v, g: beta * v + g, state, gradient)
        if nesterov:
            return tree.map(lambda v, g: g + beta * v, velocity, gradient), velocity
        return velocity, velocity

    return Optimizer(lambda params: tree.map(np.zeros_like, params), update)


class AdamState(NamedTuple):
    """`steps` f32[]; `mean` and `square` as the parameters."""

    steps: Tensor
    mean: Any
    square: Any


def _adam_init(params: Any) -> AdamState:
    zeros = tree.map(np.zeros_like, params)
    return AdamState(np.float32(0.0), zeros, zeros)


def _adam_mean(gradient: Any, state: AdamState, beta1: float) -> tuple[Tensor, Any]:
    steps = state.steps + 1.0
    return steps, tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, state.mean, gradient)


def _adam_square(gradient: Any, state: AdamState, beta2: float) -> Any:
    return tree.map(lambda s, g: beta2 * s + (1.0 - beta2) * g * g, state.square, gradient)


def scale_by_adam(beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimizer:
    """Running mean over the root of the running square, unbiased (Kingma and Ba 2015)."""

    def update(gradient: Any, state: AdamState, params: Any) -> tuple[Any, AdamState]:
        steps, mean = _adam_mean(gradient, state, beta1)
        square = _adam_square(gradient, state, beta2)
        step = _without_bias(mean, square, 1.0 - beta1**steps, 1.0 - beta2**steps, epsilon)
        return step, AdamState(steps, mean, square)

    return Optimizer(_adam_init, update)


def _without_bias(mean: Any, square: Any, correct1: Any, correct2: Any, epsilon: float) -> Any:
    return tree.map(lambda m, s: (m / correct1) / (np.sqrt(s / correct2) + epsilon), mean, square)


def scale_by_yogi(beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-3) -> Optimizer:
    """Adam whose square moves by at most (1 - beta2) g^2 (Zaheer et al. 2018, algorithm 2)."""

    def update(gradient: Any, state: AdamState, params: Any) -> tuple[Any, AdamState]:
        steps, mean = _adam_mean(gradient, state, beta1)
        square = tree.map(
            lambda s, g: s - (1.0 - beta2) * np.sign(s - g * g) * g * g, state.square, gradient
        )
        step = _without_bias(mean, square, 1.0 - beta1**steps, 1.0 - beta2**steps, epsilon)
        return step, AdamState(steps, mean, square)

    return Optimizer(_adam_init, update)


def scale_by_rms(decay: float = 0.9, epsilon: float = 1e-8) -> Optimizer:
    """The gradient over the root of its running square (Tieleman and Hinton 2012), the state."""

    def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        square = tree.map(lambda s, g: decay * s + (1.0 - decay) * g * g, state, gradient)
        return tree.map(lambda g, s: g / (np.sqrt(s) + epsilon), gradient, square), square

    return Optimizer(lambda params: tree.map(np.zeros_like, params), update)


def scale_by_sum_of_squares(first: float = 0.0, epsilon: float = 1e-10) -> Optimizer:
    """The gradient over the root of `first` plus the sum of its squares (Duchi et al. 2011)."""

    def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        square = tree.map(lambda s, g: s + g * g, state, gradient)
        step = tree.map(lambda g, s: g / (np.sqrt(first + s) + epsilon), gradient, square)
        return step, square

    return Optimizer(lambda params: tree.map(np.zeros_like, params), update)


def trust_ratio() -> Optimizer:
    """Scales each leaf to its parameters' norm, where neither is zero (You et al. 2020)."""

    def scaled(values: Any, params: Any) -> Any:
        return tree.map(_to_the_size_of, values, params)

    return _stateless(scaled)


def _to_the_size_of(value: Tensor, param: Tensor) -> Tensor:
    wanted, norm = np.sqrt(np.sum(param * param)), np.sqrt(np.sum(value * value))
    there = (wanted > 0) & (norm > 0)
    return value * np.where(there, wanted / np.where(norm > 0, norm, 1), 1)


def scale_by_lion(beta1: float = 0.9, beta2: float = 0.99) -> Optimizer:
    """The sign of beta1 m + (1 - beta1) g (Chen et al. 2023, algorithm 2); state: m."""

    def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        step = tree.map(lambda m, g: np.sign(beta1 * m + (1.0 - beta1) * g), state, gradient)
        return step, tree.map(lambda m, g: beta2 * m + (1.0 - beta2) * g, state, gradient)

    return Optimizer(lambda params: tree.map(np.zeros_like, params), update)


# Optimisers


def sgd(learning_rate: Rate, momentum: float = 0.0, nesterov: bool = False) -> Optimizer:
    """Stochastic gradient descent: v <- momentum v + g, step = -learning_rate v.

    With `nesterov` the step is -learning_rate (g + momentum v). Without momentum it keeps no state.
    """
    if callable(learning_rate) or nesterov:
        return chain(_momentum(momentum, nesterov), _by_rate(learning_rate))

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


#: `momentum`, where a parameter has its name.
_momentum = momentum


def adam(
    learning_rate: Rate, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> Optimizer:
    """Adam (Kingma and Ba 2015, algorithm 1, with both bias corrections)."""
    if callable(learning_rate):
        return chain(scale_by_adam(beta1, beta2, epsilon), _by_rate(learning_rate))

    def update(gradient: Any, state: AdamState, params: Any) -> tuple[Any, AdamState]:
        steps, mean = _adam_mean(gradient, state, beta1)
        square = _adam_square(gradient, state, beta2)
        correct1 = 1.0 - beta1**steps
        correct2 = 1.0 - beta2**steps
        step = tree.map(
            lambda m, s: -learning_rate * (m / correct1) / (np.sqrt(s / correct2) + epsilon),
            mean,
            square,
        )
        return step, AdamState(steps, mean, square)

    return Optimizer(_adam_init, update)


def adamw(
    learning_rate: Rate,
    decay: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    mask: Any = None,
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2)."""
    direction = scale_by_adam(beta1, beta2, epsilon)
    return chain(direction, weight_decay(decay, mask), _by_rate(learning_rate))


def rmsprop(learning_rate: Rate, decay: float = 0.9, epsilon: float = 1e-8) -> Optimizer:
    """RMSProp (Tieleman and Hinton 2012)."""
    return chain(scale_by_rms(decay, epsilon), _by_rate(learning_rate))


def adagrad(learning_rate: Rate, first: float = 0.0, epsilon: float = 1e-10) -> Optimizer:
    """AdaGrad (Duchi et al. 2011, with a diagonal matrix); `first` is added to the squares."""
    return chain(scale_by_sum_of_squares(first, epsilon), _by_rate(learning_rate))


def yogi(
    learning_rate: Rate, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-3
) -> Optimizer:
    """Yogi (Zaheer et al. 2018), with Adam's bias corrections: the server optimiser of FedYogi."""
    return chain(scale_by_yogi(beta1, beta2, epsilon), _by_rate(learning_rate))


def lamb(
    learning_rate: Rate,
    decay: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    mask: Any = None,
) -> Optimizer:
    """LAMB (You et al. 2020, algorithm 2): each leaf's Adam step at the size of its parameters."""
    direction = scale_by_adam(beta1, beta2, epsilon)
    return chain(direction, weight_decay(decay, mask), trust_ratio(), _by_rate(learning_rate))


def lion(
    learning_rate: Rate,
    decay: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.99,
    mask: Any = None,
) -> Optimizer:
    """Lion (Chen et al. 2023), with decoupled weight decay."""
    direction = scale_by_lion(beta1, beta2)
    return chain(direction, weight_decay(decay, mask), _by_rate(learning_rate))
