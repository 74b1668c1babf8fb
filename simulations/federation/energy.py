"""What taking part costs devices: energy = operations / efficiency + bytes * radio + time * idle.

A model with three numbers a class (`fleet.DeviceClass`): of the operations that a device's programs
have, of the bytes that it sends or receives, and of the time that a round which asked it takes. A
program that is stopped has used the part of its energy that it had the time for. Screens, charging
and what a device does for its owner have no part in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...core.protocol.ports import SECOND
from ...core.protocol.random_streams import Streams
from .fleet import DeviceProfile, Fleet

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The keys of `RoundRecord.joules`.
COMPUTE, RADIO, IDLE = "compute", "radio", "idle"
USES = (COMPUTE, RADIO, IDLE)


class Energy:
    """The joules of a fleet's devices, by what they were for and by device."""

    __slots__ = ("_at_work", "_fleet", "_joules", "_of", "_streams", "exhausted")

    def __init__(self, fleet: Fleet, streams: Streams) -> None:
        self._fleet, self._streams = fleet, streams
        self._joules = dict.fromkeys(USES, 0.0)  # since they were last taken
        self._of: dict[int, float] = {}
        self._at_work: dict[int, tuple[int, int, float]] = {}  # since when, how long, joules
        self.exhausted: set[int] = set()
        """Devices that have spent their batteries."""

    def moved(self, profile: DeviceProfile, octets: int) -> None:
        """A device has sent or received so many bytes."""
        self._add(profile.device, RADIO, octets * profile.traits.radio_uj_per_byte * 1e-6)

    def begins(self, profile: DeviceProfile, now: int, duration: int, flops: float) -> None:
        """A device begins a program of so many operations that takes `duration` ns."""
        joules = flops / (profile.traits.gflops_per_watt * 1e9)
        self._at_work[profile.device] = now, duration, joules

    def ends(self, device: int, now: int) -> None:
        """A device's program is over, or is stopped, if it has one."""
        work = self._at_work.pop(device, None)
        if work is not None:
            began, duration, joules = work
            self._add(device, COMPUTE, joules * min(1.0, (now - began) / max(1, duration)))

    def round_over(self, fields: Mapping[str, Any], now: int) -> list[int]:
        """Counts what devices used while a round went on that asked them.

        Gives those that have spent their batteries since.
        """
        seconds = max(0, now - fields["opened_ns"]) / SECOND
        return self._idled(fields["selected"], seconds)

    def _idled(self, devices: Iterable[int], seconds: float) -> list[int]:
        spent = []
        for device in devices:
            traits = self._fleet.profile(device, self._streams).traits
            self._add(device, IDLE, traits.idle_w * seconds)
            limit = traits.battery_j
            if limit is not None and self._of[device] >= limit and device not in self.exhausted:
                self.exhausted.add(device)
                spent.append(device)
        return spent

    def of(self, device: int) -> float:
        """What a device has used in the whole run."""
        return self._of.get(device, 0.0)

    def take(self) -> dict[str, float]:
        """What all devices have used since it was last taken, by what it was for."""
        taken, self._joules = self._joules, dict.fromkeys(USES, 0.0)
        return taken

    def _add(self, device: int, use: str, joules: float) -> None:
        self._joules[use] += joules
        self._of[device] = self._of.get(device, 0.0) + joules
