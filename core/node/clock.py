"""Time for a daemon: nanoseconds that never fall, whatever is done to the computer's clock."""

from __future__ import annotations

import sys
import time

from ..ports import Clock


def _ticks() -> int:
    """Ns since some moment; goes on while the computer sleeps, where the system can tell."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()


class WallClock:
    """Unix time when it was made, counted on from there by a clock that nobody sets."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - _ticks()

    def now(self) -> int:
        """Unix time, ns; wrong by what the computer's clock was set by since."""
        return self._offset + _ticks()


class SteadyClock:
    """A clock that does not fall below what a node has already seen.

    A computer's clock may have been set back while the node was down. Then time goes on from the
    newest moment that is known, at its usual pace: durations stay right.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shift = 0
        self._last = 0

    def raise_to(self, floor: int) -> None:
        """From now on at least `floor` ns, and counting."""
        self._shift = max(self._shift, floor - self._clock.now())
        self._last = max(self._last, floor)

    def now(self) -> int:
        self._last = max(self._last, self._clock.now() + self._shift)
        return self._last
