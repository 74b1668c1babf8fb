"""Random draws of one purpose, in order."""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from random import Random
from typing import TypeVar

from ...core.protocol.ports import SECOND

T = TypeVar("T")


class Rng:
    """A sequence of draws, a function of seed and purpose alone.

    All of them come from `Random.random`, which Python promises not to change.
    """

    __slots__ = ("unit",)

    def __init__(self, seed: int, purpose: str) -> None:
        # A number in [0, 1).
        self.unit = Random(f"delian dst {seed} {purpose}").random

    def chance(self, probability: float) -> bool:
        return self.unit() < probability

    def between(self, low: float, high: float) -> float:
        return low + self.unit() * (high - low)

    def below(self, count: int) -> int:
        """A natural number below `count`."""
        return int(self.unit() * count)

    def whole(self, low: int, high: int) -> int:
        """From `low` to `high`, both possible."""
        return low + int(self.unit() * (high - low + 1))

    def choice(self, items: Sequence[T]) -> T:
        return items[int(self.unit() * len(items))]

    def some(self, items: Sequence[T], share: float) -> tuple[T, ...]:
        """Each of them with this probability."""
        return tuple(item for item in items if self.unit() < share)

    def shuffle(self, items: MutableSequence[T]) -> None:
        for i in range(len(items) - 1, 0, -1):
            j = int(self.unit() * (i + 1))
            items[i], items[j] = items[j], items[i]

    def exponential_ns(self, mean_s: float) -> int:
        """An exponential time, in ns."""
        return int(-math.log(1.0 - self.unit()) * mean_s * SECOND)
