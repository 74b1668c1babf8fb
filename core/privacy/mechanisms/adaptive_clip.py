"""A clip that follows a quantile of the updates' lengths, found out under the same noise.

The clip that serves best is about the median length, which must stay private and changes as the
model learns. Each device adds one more coordinate to its update: plus half an `indicator`'s size
where its update was within the clip, minus half where it was cut. The mean of these coordinates, of
the same noised sum as the updates, says what share b of the devices was within, and the next
round's clip is

    C <- C exp(-rate (b - quantile))

(Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially private learning with adaptive
clipping", algorithm 1; theirs is +-1/2 with noise of its own, here one noise serves both.) The
coordinate makes an update longer, by a factor, `ring.LENGTHENED`, that its noise is planned for (at
0.4 clips 2 %; with a cohort of n the share's noise is then z / 0.4n, a twelfth for z = 3 and n =
100): the promise is then that of one release, not of two. Devices add theirs in `post_processing`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...common.errors import DelianError
from . import noise_mechanism
from .noise import VARIANCE_MIN
from .ring import INDICATOR, LENGTHENED, RingPlan

STEPS_LEAST = 64  # of the ring, in the smallest clip
_MARGIN = 1e-3  # of the smallest clip's search, and above what devices ask for
CLIP_FACTOR_MAX = 1e6  # a clip that strayed so far from the first follows nothing


@dataclass(slots=True)
class AdaptiveClip:
    """The clip from round to round: plain data, kept with the run's state."""

    first: float
    """The clip to begin with."""
    quantile: float = 0.5
    """The share of devices that are to be within it."""
    rate: float = 0.2
    """How fast it moves, in logarithms a round."""
    moved: float = 0.0
    """The logarithm of how far it has."""
    least: float = 0.0
    """The smallest clip. Raises DelianError for numbers that no clip can follow."""
    most: float = math.inf

    @staticmethod
    def of(plan: RingPlan, quantile: float, rate: float) -> AdaptiveClip:
        """The adaptive clip of a plan, which begins at the largest clip that the ring has room for.

        It ends where the steps of the ring or of its noise would be too coarse: noise that is lost
        in rounding hides nothing.
        """
        most = plan.clip / LENGTHENED
        steps = most * plan.scale
        least = most * STEPS_LEAST / steps
        if plan.noise:
            least = max(least, most * math.sqrt(2 * VARIANCE_MIN / plan.noise_variance))
            least = _strong_from(plan, min(least, most), most)
        return AdaptiveClip(most, quantile, rate, least=min(least, most), most=most)

    def __post_init__(self) -> None:
        sound = 0.0 < self.first < math.inf and 0.0 < self.quantile < 1.0 and 0.0 < self.rate <= 1.0
        if not sound or not abs(self.moved) <= math.log(CLIP_FACTOR_MAX):
            raise DelianError(
                f"a clip from {self.first:g} to the quantile {self.quantile:g} at {self.rate:g}",
                "a length above 0, a share between 0 and 1, and a rate up to 1",
            )

    @property
    def clip(self) -> float:
        return min(self.most, max(self.least, self.first * math.exp(self.moved)))

    def follow(self, indicator: float) -> None:
        """Takes the mean's last coordinate, of the round that this clip was for."""
        within = indicator / (INDICATOR * self.clip) + 0.5
        # Noise can say less than none or more than all.
        within = min(1.0, max(0.0, within))
        limit = math.log(CLIP_FACTOR_MAX)
        step = self.rate * (within - self.quantile)
        moved = min(limit, max(-limit, self.moved - step))
        # Not beyond what it stays within: it would have to come all the way back.
        low = math.log(self.least / self.first) if self.least else -math.inf
        high = math.log(self.most / self.first)
        self.moved = min(high, max(low, moved))


def _strong_from(plan: RingPlan, least: float, most: float) -> float:
    """The smallest clip from `least` to `most` at which the plan's noise is strong enough.

    Strong enough: `noise_mechanism.STRENGTH_LEAST` of its strength without an adaptive clip, to a
    part in a thousand.
    """
    wanted = noise_mechanism.STRENGTH_LEAST * (1 + _MARGIN) * noise_mechanism.strength(plan)

    def is_strong(clip: float) -> bool:
        return noise_mechanism.strength(replace(plan, within=clip)) >= wanted

    if is_strong(least):
        return least
    weak, strong = least, most
    while strong > weak * (1 + _MARGIN):
        middle = math.sqrt(weak * strong)
        weak, strong = (weak, middle) if is_strong(middle) else (middle, strong)
    return strong
