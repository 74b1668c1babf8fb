"""A node's clock: wrong by an offset and a drift, and set anew between two starts."""

from __future__ import annotations

_MILLION = 1_000_000


class NodeClock:
    """What a daemon's `SteadyClock` over a wrong clock gives, as a function of true time.

    offset_ns: what it is wrong by at time zero. drift_ppm: how much too fast it runs.
    """

    __slots__ = ("drift_ppm", "offset_ns", "shift_ns")

    def __init__(self, offset_ns: int = 0, drift_ppm: int = 0) -> None:
        assert drift_ppm > -_MILLION
        self.offset_ns, self.drift_ppm = offset_ns, drift_ppm
        self.shift_ns = 0

    def now(self, true_ns: int) -> int:
        """The node's time, ns. Never falls while nobody sets the clock."""
        wrong = true_ns * self.drift_ppm // _MILLION
        return true_ns + wrong + self.offset_ns + self.shift_ns

    def when(self, local_ns: int) -> int:
        """The first true time at which the node's is not below `local_ns`."""
        ahead = local_ns - self.offset_ns - self.shift_ns
        true_ns = ahead * _MILLION // (_MILLION + self.drift_ppm)
        while self.now(true_ns) < local_ns:
            true_ns += 1
        return true_ns

    def set(self, offset_ns: int, floor: int, true_ns: int) -> None:
        """The node starts with another offset; its time is not below `floor` all the same."""
        self.offset_ns, self.shift_ns = offset_ns, 0
        self.shift_ns = max(0, floor - self.now(true_ns))
