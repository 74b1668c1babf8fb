"""A fleet: the devices' computing speed, connection, availability and dropout rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ...core.protocol.ports import SECOND
from ...core.protocol.random_streams import Streams
from ..scenario.device_classes import CLASSES, DeviceClass
from .network import LinkProfile


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One device of a fleet."""

    device: int
    kind: str
    edge: int
    speed_flops: float
    traits: DeviceClass

    def duration_ns(self, flops: float, streams: Streams, round: int, attempt: int) -> int:
        """How long it trains in virtual time."""
        load = math.exp(
            self.traits.load_sigma * streams.normal("load", self.device, round, attempt)
        )
        seconds = self.traits.startup_s + flops / self.speed_flops * load
        return max(1, int(seconds * SECOND))


@dataclass(frozen=True)
class Fleet:
    """Devices 0, 1, ... behind edges 0, 1, ...: device d stands behind edge d mod `edges`."""

    devices: int
    """How many devices there are."""
    edges: int
    """How many edges there are."""
    shares: Mapping[str, float] = field(default_factory=lambda: {"phone": 1.0})
    """Class -> its share of the devices; they need not add up to 1."""
    classes: Mapping[str, DeviceClass] = field(default_factory=lambda: CLASSES)
    link: LinkProfile = field(default_factory=LinkProfile)
    dropout: float | None = None
    """Replaces that of the classes."""

    def __post_init__(self) -> None:
        assert self.devices >= 1 and self.edges >= 1
        assert self.shares and all(s >= 0 for s in self.shares.values())
        assert sum(self.shares.values()) > 0
        assert set(self.shares) <= set(self.classes)

    @cached_property
    def always_there(self) -> bool:
        """Whether every kind of device in it is there all the time."""
        return all(self.classes[kind].availability >= 1 for kind in self.shares)

    @cached_property
    def has_batteries(self) -> bool:
        """Whether some kind of device in it may spend only so much energy."""
        return any(self.classes[kind].battery_j is not None for kind in self.shares)

    def profile(self, device: int, streams: Streams) -> DeviceProfile:
        """The traits of one device; a pure function of the streams' seed and its number."""
        kind = self._kind(streams.unit("class", device))
        traits = self.classes[kind]
        speed = traits.speed_flops * math.exp(traits.speed_sigma * streams.normal("speed", device))
        return DeviceProfile(device, kind, device % self.edges, speed, traits)

    def dropout_of(self, profile: DeviceProfile) -> float:
        """Chance that the device vanishes while it trains."""
        return profile.traits.dropout if self.dropout is None else self.dropout

    @cached_property
    def _bounds(self) -> list[tuple[float, str]]:
        total, reached = sum(self.shares.values()), 0.0
        bounds = []
        for kind, share in sorted(self.shares.items()):
            reached += share / total
            bounds.append((reached, kind))
        return bounds

    def _kind(self, draw: float) -> str:
        for bound, kind in self._bounds:
            if draw < bound:
                return kind
        return self._bounds[-1][1]
