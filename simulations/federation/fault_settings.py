"""What goes wrong in a federation, in addition to the failures of links and devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Silence:
    """An edge's links carry nothing from `from_s` to `to_s`; it goes on working."""

    edge: int
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Crash:
    """An edge loses all that it knows at `at_s` and restarts at `back_s`."""

    edge: int
    at_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class Faults:
    """Seconds are virtual."""

    silences: tuple[Silence, ...] = ()
    crashes: tuple[Crash, ...] = ()
    restarts_s: tuple[float, ...] = ()
    """When the coordinator is killed and started again from its stored state."""

    def __post_init__(self) -> None:
        assert all(0 <= s.from_s < s.to_s for s in self.silences)
        assert all(0 <= c.at_s < c.back_s for c in self.crashes)
        assert all(s >= 0 for s in self.restarts_s)
