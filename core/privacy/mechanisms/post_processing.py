"""What a device does to its program's elements before they are masked and travel.

A program's clip and length are compiled into it. What changes from round to round is done to what
it made: the update is shortened to the round's clip, and rounded again without bias
(`adaptive_clip`); of its coordinates those are taken that the round's key chooses, the same at all
devices, so that they add under masks ("random mask", Konecny et al. 2016, "Federated learning:
strategies for improving communication efficiency", section 2, with one mask for all).
"""

from __future__ import annotations

import math

import numpy as np

from ...compiler import random
from ...protocol.ports import Vector
from . import ring
from .ring import INDICATOR, RingPlan

_SHORTENED = 0x636C6970  # what the device's key is folded with
_BLOCK = 1 << 16


def finished(vector: Vector, plan: RingPlan, round_key: bytes, key: Vector) -> Vector:
    """u32[plan.made] -> u32[plan.length].

    round_key: the task's, 8 bytes. key: u32[2], the device's for this round. The same array where
    there is nothing to do.
    """
    if plan.within:
        vector = shortened(vector, plan, key)
    return chosen(vector, plan, round_key) if plan.kept else vector


def shortened(vector: Vector, plan: RingPlan, key: Vector) -> Vector:
    """The update within the round's own clip, and its indicator before the weight."""
    steps, weight = vector[:-1].view(np.int32), vector[-1:]
    limit = _limit(vector, plan)
    norm = too_long(vector, plan)
    side = int(INDICATOR * limit / 2)
    if norm:
        steps, side = _shortened(steps, limit / norm, key), -side
    return np.concatenate(
        [steps.view(np.uint32), np.array([side], np.int32).view(np.uint32), weight]
    )


def too_long(vector: Vector, plan: RingPlan) -> float:
    """The length, in steps, of an update that is longer than the round's own clip; of others 0."""
    norm = _norm(vector[:-1].view(np.int32))
    return norm if norm > _limit(vector, plan) else 0.0


def _limit(vector: Vector, plan: RingPlan) -> float:
    share = float(vector[-1:].view(np.int32)[0]) / plan.weight_scale
    return plan.within * plan.scale * share


def chosen(vector: Vector, plan: RingPlan, round_key: bytes) -> Vector:
    """Those coordinates that travel, and what stands behind them."""
    places = ring.choice(plan, round_key)
    return np.concatenate([vector[: plan.coordinates][places], vector[plan.coordinates :]])


def _norm(steps: np.typing.NDArray[np.int32]) -> float:
    square = 0.0
    for start in range(0, len(steps), _BLOCK):
        block = steps[start : start + _BLOCK].astype(np.float64)
        square += float(block @ block)
    return math.sqrt(square)


def _shortened(
    steps: np.typing.NDArray[np.int32], factor: float, key: Vector
) -> np.typing.NDArray[np.int32]:
    """i32[n] times a factor below 1, rounded up or down by chance: unbiased."""
    unit = random.bits(random.fold_in(key, _SHORTENED), (len(steps),))
    exact = steps * factor
    low = np.floor(exact)
    up = unit * 2.0**-32 < exact - low
    rounded: np.typing.NDArray[np.int32] = low.astype(np.int32) + up.astype(np.int32)
    return rounded
