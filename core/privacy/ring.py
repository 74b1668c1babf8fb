"""Real vectors in the ring Z_2^32, so that adding elements adds numbers exactly, in any order, with
masks or without.

A device's update delta (f32[D]) of weight w in (0, 1] becomes D+1 elements

    clip      d = delta * min(1, C / |delta|)          the L2 norm is at most C
    scale     v = (w*d_1*s, ..., w*d_D*s, w*t)         s, t powers of two: exact in f32
    round     k = floor(v + u),  u uniform in (0, 1)   E[k] = v: unbiased
    wrap      k mod 2^32                               two's complement

and the sum of n such vectors, read as signed, is n rounding steps away from (sum w*d*s, sum w*t):
the weighted mean is their quotient, and no message carries a weight in the clear. It can be read
as signed as long as n*(C*s + 1) < 2^31, which a plan checks when it is made (Bonawitz et al. 2019,
"Federated learning with autotuned communication-efficient secure aggregation", section 3; the extra
coordinate as in `docs/protocol.md`).

`encode` is written in the compiled language's vocabulary: it is traced into `client_update` and
runs as plain NumPy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import random
from ..errors import DelianError
from ..ports import DIMENSION_MAX, Floats, Vector

BITS = 32
CLIP_MIN = 1e-12
CLIP_MAX = 1e12
#: The norm is rounded once to f32 before it divides, so a clipped update may be longer than C by a
#: few parts in 2^24.
_BLOCK = 1 << 16  # numbers that are decoded at a time
_SLACK = 1.0 + 2.0**-20


class RingError(DelianError):
    """A ring plan that could overflow, or a sum that no honest devices can have made."""


@dataclass(frozen=True, slots=True)
class RingPlan:
    """How updates of one run become ring elements. Raises RingError when a sum could overflow.

    clip: largest L2 norm of an update, C above. clients_max: largest number of updates in one sum,
    n above. dimension: numbers in an update, D above. bits: width of an element.
    """

    clip: float
    clients_max: int
    dimension: int
    bits: int = BITS

    def __post_init__(self) -> None:
        if self.bits != BITS:
            raise RingError(f"a ring of {self.bits} bits is not supported", f"use bits={BITS}")
        if not CLIP_MIN <= self.clip <= CLIP_MAX:
            raise RingError(
                f"clip is {self.clip:g}", f"it is a norm, from {CLIP_MIN:g} to {CLIP_MAX:g}"
            )
        if not 0 < self.dimension <= DIMENSION_MAX:
            raise RingError(
                f"an update of {self.dimension} numbers", f"between 1 and {DIMENSION_MAX} fit"
            )
        if self.clients_max < 1:
            raise RingError(f"clients_max is {self.clients_max}", "at least one device reports")
        per_client = self._half / self.clients_max
        if self._fits(self.clip) and self._fits(1.0):
            return
        raise RingError(
            f"the sum of {self.clients_max} updates of norm {self.clip:g} can overflow"
            f" {self.bits} bits",
            f"one update has room for {per_client:.3g} steps; lower clients_max or clip",
        )

    @property
    def _half(self) -> float:
        return float(2 ** (self.bits - 1))

    def _fits(self, bound: float) -> bool:
        """Whether some scale from 1/bound upwards has room for values up to `bound`."""
        scale = self._scale(bound)
        steps = bound * scale
        return steps >= 1 and self.clients_max * (steps * _SLACK + 1) < self._half

    def _scale(self, bound: float) -> float:
        """The largest power of two s with n*(bound*s + 1) < 2^(bits-1), or 0 where none is."""
        room = (self._half / self.clients_max - 1) / (bound * _SLACK)
        if room <= 0:
            return 0.0
        mantissa, exponent = math.frexp(room)
        # room = mantissa * 2^exponent with mantissa in [1/2, 1): the power of two strictly below
        # room.
        return math.ldexp(1.0, exponent - 1 if mantissa > 0.5 else exponent - 2)

    @property
    def scale(self) -> float:
        """Steps in the ring for 1.0 of a weighted coordinate: s above, a power of two."""
        return self._scale(self.clip)

    @property
    def weight_scale(self) -> float:
        """Steps in the ring for a weight of 1: t above, a power of two."""
        return self._scale(1.0)

    @property
    def length(self) -> int:
        """Elements of an encoded update: D + 1."""
        return self.dimension + 1

    @property
    def nbytes(self) -> int:
        """Bytes of an encoded update."""
        return 4 * self.length


def encode(delta: Any, weight: Any, key: Any, plan: RingPlan) -> Any:
    """An update in the ring: u32[D+1].

    delta: f32[D]. weight: f32[] in (0, 1]. key: u32[2], used for nothing else. A delta that is not
    finite gives elements without meaning: who calls checks it.
    """
    wide = delta.astype(np.float64)
    norm = np.sqrt(np.sum(wide * wide))
    # f64 sums differ in their last bits with the order of adding; one rounding to f32 hides that
    # nearly always.
    shrink = (plan.clip / np.maximum(norm, plan.clip)).astype(np.float32)
    factor = shrink * weight * np.float32(plan.scale)
    # Two numbers from each random word, so the update is rounded in two halves: none of what lies
    # between is as long as the model.
    first = (plan.length + 1) // 2
    rest = plan.dimension - first
    words = random.bits(key, (first,))
    low, high = words & 0xFFFF, words >> 16
    counted = np.reshape(weight * np.float32(plan.weight_scale), (1,))
    return np.concatenate(
        [
            _round(delta[:first] * factor, low),
            _round(delta[first:] * factor, high[:rest]),
            _round(counted, high[rest : rest + 1]),
        ]
    )


def _round(exact: Any, noise: Any) -> Any:
    """f32[n] in steps, u32[n] below 2^16 -> u32[n]: floor(v + u), u on a grid of 2^-16, centred.

    The chance of rounding up is off by at most 2^-17, a bias far below what the rounding itself
    costs.
    """
    unit = noise.astype(np.float32) * np.float32(2.0**-16) + np.float32(2.0**-17)
    # Without rounding v + u: the fraction of an f32 is exact, and so is the comparison.
    low = np.floor(exact)
    up = unit < exact - low
    return (low.astype(np.int32) + up.astype(np.int32)).astype(np.uint32)


def zeros(plan: RingPlan) -> Vector:
    """The sum of no updates."""
    return np.zeros(plan.length, np.uint32)


def add(total: Vector, vector: Vector) -> None:
    """Adds a vector to a running sum, in place, modulo 2^32."""
    np.add(total, vector, out=total)


def decode(total: Vector, plan: RingPlan) -> tuple[Floats, float]:
    """The weighted mean f32[D] and the sum of weights of the updates in a sum u32[D+1].

    Raises RingError when there is no weight in it, or when the mean is longer than any honest
    devices can make it: the ring wrapped, masks remained, or somebody lied.
    """
    if total.shape != (plan.length,):
        raise RingError(f"a sum of {total.shape} elements, where the plan says {plan.length}")
    signed = total.view(np.int32)
    weight = float(signed[-1]) / plan.weight_scale
    if weight <= 0:
        raise RingError(f"the weights of a sum are {weight:g} in all")
    mean = np.empty(plan.dimension, np.float32)
    for start in range(0, plan.dimension, _BLOCK):
        # Block by block: the f64 between is never as large as the model.
        block = slice(start, start + _BLOCK)
        np.divide(signed[:-1][block], plan.scale * weight, out=mean[block], casting="same_kind")
    # Each of n roundings moves a coordinate by less than one step.
    steps = plan.clients_max * math.sqrt(plan.dimension) / (plan.scale * weight)
    norm = float(np.linalg.norm(mean))
    if not norm <= plan.clip * _SLACK + steps:
        raise RingError(f"the mean update has norm {norm:.3g}, above the clip {plan.clip:g}")
    return mean, weight
