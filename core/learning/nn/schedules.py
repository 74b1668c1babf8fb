"""Schedules: functions from the number of steps done, f32[], to a rate, f32[].

They are plain arithmetic on that number, so they run inside a client's program. Where a rate is
asked for (`sgd`, `adam`, `scale_by_schedule`), a schedule may stand in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ...compiler.ir import Tensor

Schedule: TypeAlias = Callable[[Tensor], Tensor]


def constant(rate: float) -> Schedule:
    """The same rate always."""

    def schedule(step: Tensor) -> Tensor:
        return np.full_like(step, rate)

    return schedule


def step_decay(rate: float, boundaries: Sequence[int], factor: float = 0.1) -> Schedule:
    """`rate`, times `factor` from each boundary on."""

    def schedule(step: Tensor) -> Tensor:
        passed = np.full_like(step, 0.0)
        for boundary in tuple(boundaries):
            passed = passed + np.where(step >= float(boundary), 1.0, 0.0)
        return rate * factor**passed

    return schedule


def cosine(rate: float, steps: int, least: float = 0.0) -> Schedule:
    """Half a cosine from `rate` to `least` in `steps` steps (Loshchilov and Hutter 2017)."""

    def schedule(step: Tensor) -> Tensor:
        share = np.minimum(step / float(steps), 1.0)
        return least + (rate - least) * 0.5 * (1.0 + np.cos(math.pi * share))

    return schedule


def warm_up(steps: int, then: Schedule) -> Schedule:
    """A straight line to what `then` starts with, in `steps` steps.

    Then that schedule, counted from there. The first step already moves: it has 1 / steps of the
    rate.
    """

    def schedule(step: Tensor) -> Tensor:
        share = np.minimum((step + 1.0) / float(max(steps, 1)), 1.0)
        return share * then(np.maximum(step - float(steps), 0.0))

    return schedule


def one_cycle(
    rate: float, steps: int, rise: float = 0.3, start: float = 25.0, end: float = 1e4
) -> Schedule:
    """Half a cosine up, then one down (Smith and Topin 2018).

    Up from rate / start in the share `rise` of the steps, then down to rate / (start * end).
    """
    if not 0.0 < rise < 1.0:
        raise ValueError(f"one_cycle: the rise is between 0 and 1, not {rise}")
    first, last = rate / start, rate / (start * end)

    def schedule(step: Tensor) -> Tensor:
        share = np.minimum(step / float(steps), 1.0)
        up = 0.5 * (1.0 - np.cos(math.pi * np.minimum(share / rise, 1.0)))
        down = 0.5 * (1.0 + np.cos(math.pi * np.maximum((share - rise) / (1.0 - rise), 0.0)))
        return np.where(share < rise, first + (rate - first) * up, last + (rate - last) * down)

    return schedule


__all__ = ["Schedule", "constant", "cosine", "one_cycle", "step_decay", "warm_up"]
