"""Devices that sleep: of a population, most that there are at any time.

A device that no round has ever taken, and that was sent away for a while, is known by its number,
by when it wakes and by four counters: all else follows from the plan and the seed, and it is made
again when it wakes or when a message for it comes. So is a device that has not yet come up for the
first time. Forty bytes hold one, where a machine with its state takes five thousand.

Sleepers wait in eras of virtual time, which are cut into slots when they begin, and are handed out
when their slot begins: what is scheduled does not grow with them.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...core.common.aligned_arrays import distinct
from ...core.protocol.ports import MS, SECOND
from ...device.protocol.device_state import DeviceState, Phase

#: A device that comes back sooner than this is left awake.
REST_MIN_NS = 5 * SECOND
#: Sleepers that wake within so much time are woken together.
SLOT_NS = 250 * MS
ERA_NS = 64 * SLOT_NS
_COUNTERS = 4
Numbers: TypeAlias = npt.NDArray[np.uint32]
_AFTER_TASK_MS = DeviceState(0).after_task_ms  # until an edge says otherwise


class Dormant:
    """The sleepers of a population of `devices`. At first all sleep, and none has ever been up."""

    def __init__(self, devices: int) -> None:
        self.asleep = np.ones(devices, np.bool_)
        self._wakes = np.zeros(devices, np.int64)
        self._met = np.zeros(devices, np.bool_)
        self._counters = np.zeros((devices, _COUNTERS), np.uint32)
        # By when they begin. Of eras those that have not begun, of slots those of one that has.
        self._eras: dict[int, array[int]] = {}
        self._slots: dict[int, array[int]] = {}
        self._begun = -ERA_NS  # the newest era that has begun

    def lay(self, device: int, wakes_ns: int) -> int | None:
        """Has a sleeper wait until `wakes_ns`; gives when to `open`, where that is unknown."""
        self.asleep[device] = True
        self._wakes[device] = wakes_ns
        begins = wakes_ns - wakes_ns % ERA_NS
        places = self._eras
        if begins <= self._begun:
            places, begins = self._slots, wakes_ns - wakes_ns % SLOT_NS
        waiting = places.get(begins)
        if waiting is not None:
            waiting.append(device)
            return None
        places[begins] = array("I", [device])
        return begins

    def open(self, begins_ns: int) -> tuple[list[int], list[int]]:
        """The sleepers of the next slot, in the order in which they wake, and when to `open` next.

        That is when the slots of the next era begin.
        """
        more = self._cut(begins_ns) if begins_ns in self._eras else []
        waiting = self._slots.pop(begins_ns, None)
        due = [] if waiting is None else self._due(waiting, begins_ns, SLOT_NS).tolist()
        return due, more

    def _cut(self, era_ns: int) -> list[int]:
        """Makes slots of an era; gives when those begin that do not begin with it."""
        self._begun = era_ns
        due = self._due(self._eras.pop(era_ns), era_ns, ERA_NS)
        begin = self._wakes[due] // SLOT_NS * SLOT_NS
        begins = distinct(begin).tolist()  # of none, where all were woken before
        for slot_ns in begins:
            self._slots[slot_ns] = array("I", due[begin == slot_ns].tobytes())
        return [slot_ns for slot_ns in begins if slot_ns != era_ns]

    def _due(self, waiting: array[int], begins_ns: int, length_ns: int) -> Numbers:
        """The devices that sleep until a stretch of time, in the order in which they wake.

        A device that was woken before its time, and sleeps again, waits elsewhere too, or twice.
        """
        devices = distinct(np.frombuffer(waiting, np.uint32))
        since = self._wakes[devices] - begins_ns
        devices = devices[self.asleep[devices] & (since >= 0) & (since < length_ns)]
        return devices[np.argsort(self._wakes[devices], kind="stable")]

    def wake(self, device: int) -> tuple[DeviceState, tuple[int, int], int] | int:
        """Takes a sleeper out.

        Its state, what its two channels have sent, and when it would have come back by itself; only
        the last of one that has never been up.
        """
        self.asleep[device] = False
        at = int(self._wakes[device])
        if not self._met[device]:
            self._met[device] = True
            return at
        sequence, draws, up, down = map(int, self._counters[device])
        state = DeviceState(device, phase=Phase.IDLE, sequence=sequence, draws=draws)
        return state, (up, down), at

    def remember(self, state: DeviceState, sent: tuple[int, int]) -> None:
        """Keeps what `wake` gives."""
        self._counters[state.device] = state.sequence, state.draws, *sent

    def is_up(self, device: int) -> bool:
        """Whether a sleeper has been up before: it sleeps, and may receive messages."""
        return bool(self._met[device])


def may_sleep(state: DeviceState) -> bool:
    """Whether a device's state is only its counters and its initial state."""
    return (
        state.phase is Phase.IDLE
        and state.ticket == 0
        and state.after_task_ms == _AFTER_TASK_MS
        and len(state.homes) == 1
        and not (state.done or state.have or state.bundles or state.former)
    )
