"""A computer's clock: wrong by an offset and a drift, and set between two starts of a node."""

from __future__ import annotations

_MILLION = 1_000_000


class NodeClock:
    """What a computer's clock shows, as a function of true time.

    offset_ns: what it is wrong by at time zero. drift_ppm: how much too fast it runs.
    """

    __slots__ = ("drift_ppm", "offset_ns")

    def __init__(self, offset_ns: int = 0, drift_ppm: int = 0) -> None:
        assert drift_ppm > -_MILLION
        self.offset_ns, self.drift_ppm = offset_ns, drift_ppm

    def now(self, true_ns: int) -> int:
        """The computer's time, ns. Never falls while the clock is not set."""
        return true_ns + true_ns * self.drift_ppm // _MILLION + self.offset_ns

    def when(self, local_ns: int) -> int:
        """The first true time at which the computer's is not below `local_ns`."""
        true_ns = (local_ns - self.offset_ns) * _MILLION // (_MILLION + self.drift_ppm)
        while self.now(true_ns) < local_ns:
            true_ns += 1
        return true_ns
