"""Virtual time: one heap of what is to happen, in integer nanoseconds.

Two things at the same nanosecond happen in the order in which they were scheduled, so a run is a
function of its seed.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Schedule(Generic[T]):
    """What is to happen, and `now`, the time of what happened last."""

    __slots__ = ("_heap", "_sequence", "now")

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, T]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time: int, item: T) -> int:
        """Lets `item` happen at `time`, or now where that is past; gives a number that no other
        has.
        """
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (time if time > self.now else self.now, sequence, item))
        return sequence

    def pop(self) -> tuple[int, T]:
        """The next thing and its number; moves `now` to its time. Raises IndexError when nothing is
        left.
        """
        self.now, sequence, item = heappop(self._heap)
        return sequence, item
