"""Time for a daemon: nanoseconds that never fall, whatever is done to the computer's clock."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

from ...protocol.ports import Clock

log = logging.getLogger("delian.node")

#: The computer's clock was set when it is ahead by so much for so long: until then it may as well
#: be set back.
STEP_NS = 60 * 1_000_000_000
SETTLED_NS = 600 * 1_000_000_000


def _ticks() -> int:
    """Ns since some moment; goes on while the computer sleeps, where the system supports it."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()


class WallClock:
    """Unix time when it was made, counted on from there by a monotonic clock."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - _ticks()

    def now(self) -> int:
        """Unix time, ns; wrong by what the computer's clock was set by since."""
        return self._offset + _ticks()


class SteadyClock:
    """A clock that does not fall below what a node has already seen.

    A computer's clock may have been set back while the node was down. Then time goes on from the
    newest moment that is known, at its usual pace: durations stay right.

    When the computer's clock is set ahead and stays so, this one follows. A device without a clock
    of its own begins in the past, until it has found the time in the network; a virtual machine
    that stood still wakes up there. To a node that stayed in it, certificates that were made since
    would begin in the future, and it would take part in no masked round.
    """

    def __init__(self, clock: Clock, wall: Callable[[], int] | None = None) -> None:
        """clock: counts, and is not set. wall: Unix time as it is set, ns; None: not followed."""
        self._clock, self._wall = clock, wall
        self._shift = 0
        self._last = 0
        self._ahead_since: int | None = None

    @property
    def shift(self) -> int:
        """What this clock is ahead of the one that it counts on, ns."""
        return self._shift

    def raise_to(self, floor: int) -> None:
        """From now on at least `floor` ns, and counting."""
        self._shift = max(self._shift, floor - self._clock.now())
        self._last = max(self._last, floor)

    def now(self) -> int:
        counted = self._clock.now()
        if self._wall is not None:
            self._follow(counted, self._wall() - counted - self._shift)
        self._last = max(self._last, counted + self._shift)
        return self._last

    def _follow(self, counted: int, ahead: int) -> None:
        if ahead < STEP_NS:
            self._ahead_since = None
        elif self._ahead_since is None:
            self._ahead_since = counted
        elif counted - self._ahead_since >= SETTLED_NS:
            log.warning("the clock was set ahead", extra={"by_s": ahead // 1_000_000_000})
            self._shift += ahead
            self._ahead_since = None
