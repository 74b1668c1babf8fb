"""Differential privacy for what a device sends up while it trains a part of a model.

Activations, and in a U-shaped cut the gradients that go up, row by row.

Each row a of a tensor f32[B, ...] that goes up (one example's d numbers) is released as

    clip     b = a * min(1, C / |a|)                         L2 norm at most C
    steps    k = round(b / s)                                s a power of two, about zC / 2^12
    noise    k + N,  N whole numbers, discrete Gaussian of variance (zC / s)^2
    send     s * (k + N)                                     exact in f32

so noise is drawn as integers, from a secret key and a table (`noise`): no attack on the low bits of
floating-point noise (Mironov 2012, "On significance of the least significant bits for differential
privacy") applies. Rounding moves a coordinate by half a step at most; replacing the example by any
other moves k by no more than

    Delta = 2 (C / s + sqrt(d) / 2)

and one release has the Renyi divergence alpha Delta^2 / 2V of the Gaussian (`accountant`).

The guarantee is *local* and *per example*, for rows that are made with given weights: a party that
sees an example's rows at the boundary (the edge, the cloud behind it), and knows the weights of the
device's part, can hardly distinguish which of two examples they are of. An example is released once
a pass for each tensor that goes up, and its releases add up over steps, passes and rounds, also
where weights above depend on earlier releases (adaptive composition; the clip bounds a row whatever
the weights are).

A part that learns moves by its examples themselves, not by what was released of them, and each row
that goes up later, of whatever example, is made with what they have left in it. So for all that
such a device sends together, each row of each step may be of the one example, by no more than the
clip lets any row move: `device.serving.split_trainer` charges a budget for all of them. In the
simulator (`simulations.runs.split_federation`) a budget counts an example's own rows alone, and
says so.

Used by `device.serving.split_trainer`, over links, and `simulations.runs.split_federation`.
Requests for inference (`device.serving.split_model`) do not.

What is not. It holds if a row depends on no other row of its batch: no batch normalisation in the
device's part (`split_training.shielding` tries it). Labels that go up in the clear, how many rows
there are and when they come are not covered; nor is the device part's update, which secure
aggregation hides in a sum and the noise of a `RingPlan` covers by a promise of its own. The clip is
no part of the gradient: a row that was cut is treated as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...common.errors import DelianError
from ...compiler.ir import Array
from . import noise
from .accountant import Budget, Divergences, composed, gaussian
from .noise import discrete_gaussian

#: Steps in a standard deviation of noise: at least this many, fewer than twice as many, so that
#: what rounding adds to a row's reach is small, and one table draws the noise.
STEPS_LEAST = 2.0**12
CLIP_MIN, CLIP_MAX = 1e-6, 1e6
NOISE_MIN, NOISE_MAX = 1e-2, 1e4
#: Numbers in a row: beyond it clipping leaves nothing of one.
ROW_MAX = 1 << 24
#: Whole numbers up to here are themselves in f32.
_EXACT = 2**24
#: A clipped row is longer than C by the rounding of a few operations in f64.
_SLACK = 1.0 + 2.0**-40
_HALVINGS = 40


class BoundaryError(DelianError):
    """A release that cannot be made, or that would not be what it promises."""


@dataclass(frozen=True, slots=True)
class Shield:
    """How rows are released.

    Raises BoundaryError for numbers out of range.
    """

    clip: float
    """C, an L2 norm."""
    noise: float
    """Z, standard deviations in clips."""

    def __post_init__(self) -> None:
        if not CLIP_MIN <= self.clip <= CLIP_MAX or not NOISE_MIN <= self.noise <= NOISE_MAX:
            raise BoundaryError(
                f"rows clipped to {self.clip:g} under noise of {self.noise:g} clips",
                f"a norm from {CLIP_MIN:g} to {CLIP_MAX:g}, noise from {NOISE_MIN:g} to"
                f" {NOISE_MAX:g}",
            )

    @property
    def step(self) -> float:
        """s: the largest power of two that a standard deviation has 2^12 of."""
        return 2.0 ** math.floor(math.log2(self.noise * self.clip / STEPS_LEAST))

    @property
    def variance(self) -> float:
        """The variance of the noise, in steps squared: below 2^26, which a table holds."""
        return (self.noise * self.clip / self.step) ** 2

    def reach(self, row: int) -> float:
        """Delta, in steps, of rows of so many numbers."""
        if not 0 < row <= ROW_MAX:
            raise BoundaryError(f"a row of {row} numbers", f"from 1 to {ROW_MAX}")
        return 2.0 * (self.clip / self.step * _SLACK + math.sqrt(row) / 2.0)

    def cost(self, row: int) -> Divergences:
        """The privacy loss of one release of a row of so many numbers."""
        return gaussian(self.reach(row), self.variance)

    def release(self, rows: Array, key: bytes) -> Array:
        """f32[B, ...] -> f32[B, ...], clipped and noised row by row.

        key: 32 secret bytes that are used for nothing else. Raises BoundaryError for rows that are
        not finite, and for a tensor without rows; NoiseError for a key of another length.
        """
        if rows.dtype != np.float32 or not rows.ndim:
            raise BoundaryError(f"{rows.dtype}{list(rows.shape)} has no rows of f32 to release")
        if not rows.size:
            return rows.copy()
        flat = rows.reshape(len(rows), -1).astype(np.float64)
        if not np.isfinite(flat).all():
            raise BoundaryError("a row that is not finite cannot be released", "lower the rate")
        norms = np.linalg.norm(flat, axis=1, keepdims=True)
        flat *= np.minimum(1.0, self.clip / np.maximum(norms, self.clip)) / self.step
        steps = np.rint(flat).astype(np.int64).astype(np.uint32).reshape(-1)
        noise.add(steps, discrete_gaussian(self.variance), key)
        signed = steps.view(np.int32)
        # Noise hardly ever goes so far (2^24 is over 2,000 deviations), and f32 rounds it then.
        released = np.clip(signed, -_EXACT, _EXACT).astype(np.float32) * np.float32(self.step)
        return released.reshape(rows.shape)


@dataclass(slots=True)
class Spent:
    """What one device's examples were charged, each as the one released most often."""

    budget: Budget
    """What it may be."""
    releases: tuple[tuple[int, Shield], ...]
    """(numbers in a row, shield) of the tensors that go up in a step."""

    def spend(self, passes: int = 1) -> None:
        """Charges passes over the data in advance. Raises BudgetError, and charges nothing."""
        self.budget.spend(tuple(passes * d for d in self.cost))
        self.budget.releases += passes - 1  # of them it counted one

    @property
    def cost(self) -> Divergences:
        """The privacy loss of one pass."""
        return composed([shield.cost(row) for row, shield in self.releases])


def noise_for(
    epsilon: float, delta: float, passes: int, rows: Sequence[int], clips: Sequence[float]
) -> tuple[Shield, ...]:
    """The least noise for `passes` passes in which tensors with rows of these sizes are sent up.

    Each tensor is clipped to its own length; the noise is the same for all, in units of the clip.
    Raises BoundaryError where the largest noise is not enough.
    """

    def shields(z: float) -> tuple[Shield, ...]:
        return tuple(Shield(clip, z) for clip in clips)

    def keeps(z: float) -> bool:
        one = composed([s.cost(row) for row, s in zip(rows, shields(z), strict=True)])
        return Budget(epsilon, delta).allows(tuple(passes * d for d in one))

    low, high = math.log(NOISE_MIN), math.log(NOISE_MAX)
    if passes < 1 or not rows or not keeps(NOISE_MAX):
        raise BoundaryError(
            f"epsilon {epsilon:g} for {passes} passes is out of reach", "promise less"
        )
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if keeps(math.exp(middle)) else (middle, high)
    return shields(math.exp(high))
