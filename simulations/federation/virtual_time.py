"""Virtual time: one heap of what is to happen, in integer nanoseconds.

Two things at the same nanosecond happen in the order in which they were scheduled, so a run is a
function of its seed. What was called off stays in the heap until its time, or until `sweep`: a
federation sets and calls off more timers than it fires, some of them for days ahead, and a heap
that keeps them all grows with the run.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
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
        """Lets `item` happen at `time`, or now where that is past.

        Gives a number that no other has.
        """
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (time if time > self.now else self.now, sequence, item))
        return sequence

    def pop(self) -> tuple[int, T]:
        """The next thing and its number; moves `now` to its time.

        Raises IndexError when nothing is left.
        """
        self.now, sequence, item = heappop(self._heap)
        return sequence, item

    def sweep(self, is_wanted: Callable[[int, T], bool]) -> None:
        """Forgets each thing of which `is_wanted(number, item)` is false."""
        self._heap = [entry for entry in self._heap if is_wanted(entry[1], entry[2])]
        heapify(self._heap)
