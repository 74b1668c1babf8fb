"""Items that are made before they are asked for, by threads, in their own order.

Any item is made by its number alone, so threads need no order among them: item k is the same
whichever thread makes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from .row_columns import Columns


class Items(Protocol):
    """Items by number, the next one first."""

    def take(self, number: int, end: int) -> Columns:
        """Item `number`; those after it, up to `end`, may be made ahead."""

    def close(self) -> None:
        """Ends what makes items ahead."""


class MadeNow:
    """Nothing is made ahead."""

    def __init__(self, make: Callable[[int], Columns]) -> None:
        self._make = make

    def take(self, number: int, end: int) -> Columns:
        """Item `number`."""
        return self._make(number)

    def close(self) -> None:
        """Nothing to end."""


class MadeByThreads:
    """`ahead` items are made, or being made, by `threads` threads."""

    def __init__(self, make: Callable[[int], Columns], ahead: int, threads: int) -> None:
        self._make, self._ahead = make, ahead
        self._pool = ThreadPoolExecutor(threads, "delian-rows")
        self._waiting: deque[Future[Columns]] = deque()
        self._first = 0

    def take(self, number: int, end: int) -> Columns:
        """Item `number`, and starts those after it."""
        if not self._waiting:
            self._first = number
        assert number == self._first, "items are taken one after another"
        while len(self._waiting) <= self._ahead and self._first + len(self._waiting) < end:
            number = self._first + len(self._waiting)
            self._waiting.append(self._pool.submit(self._make, number))
        self._first += 1
        return self._waiting.popleft().result()

    def close(self) -> None:
        """Ends the threads; items that wait are dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._waiting.clear()
