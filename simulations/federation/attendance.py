"""When devices are there: drawn from their classes, by streams that their numbers name."""

from __future__ import annotations

import math

from ...core.protocol.ports import SECOND
from ...core.protocol.random_streams import Streams
from .fleet import DeviceProfile, Fleet

#: In the first so many seconds of virtual time all devices come up,
START_SPREAD_S = 2.0
#: and no more of them than this in a second.
COMING_UP_PER_S = 10_000


class Attendance:
    """The comings and goings of a fleet's devices, in ns of virtual time."""

    __slots__ = ("_fleet", "_streams")

    def __init__(self, fleet: Fleet, streams: Streams) -> None:
        self._fleet, self._streams = fleet, streams

    def first(self, device: int) -> int:
        """When a device is there for the first time."""
        fleet, streams = self._fleet, self._streams
        spread_s = max(START_SPREAD_S, fleet.devices / COMING_UP_PER_S)
        at = round(streams.unit("start", device) * spread_s * SECOND)
        if fleet.always_there:
            return at
        profile = fleet.profile(device, streams)
        there = streams.unit("there", device, 0) < profile.traits.availability
        return at if there else at + self.gap(profile, 0)

    def stay(self, profile: DeviceProfile, visit: int) -> int:
        """How long a visit lasts."""
        return self._exponential(profile.traits.stay_s, "stay", profile.device, visit)

    def gap(self, profile: DeviceProfile, visit: int) -> int:
        """How long a device is gone after a visit."""
        traits = profile.traits
        mean_s = traits.stay_s * (1 - traits.availability) / traits.availability
        return self._exponential(mean_s, "gone", profile.device, visit)

    def outage(self, profile: DeviceProfile, ticket: int) -> int:
        """How long a device is gone that vanished while it trained."""
        return self._exponential(profile.traits.away_s, "away", profile.device, ticket)

    def _exponential(self, mean_s: float, purpose: str, *ids: int) -> int:
        return round(-math.log(1.0 - self._streams.unit(purpose, *ids)) * mean_s * SECOND)
