"""Devices that sleep: of a population, most that there are at any time.

A device that no round has ever taken, and that was told to come back later, is known by its number,
by when it wakes and by four counters: all else follows from the plan and the seed, and it is made
again when it wakes or when somebody sends it something. So is a device that has not yet come up for
the first time. Forty bytes hold one, where a machine with its state takes five thousand.

Sleepers wait in slots of virtual time, and are handed out when their slot begins: what is scheduled
grows with the devices that are awake.
"""

from __future__ import annotations

from array import array

import numpy as np

from ..core.ports import MS, SECOND
from ..device.state import DeviceState, Phase

#: Who is to come back sooner than this is left awake.
REST_MIN_NS = 5 * SECOND
#: Sleepers that wake within so much time are woken together.
SLOT_NS = 250 * MS
_COUNTERS = 4
_AFTER_TASK_MS = DeviceState(0).after_task_ms  # until an edge says otherwise


class Dormant:
    """The sleepers of a population of `devices`. At first all sleep, and none has ever been up."""

    def __init__(self, devices: int) -> None:
        self.asleep = np.ones(devices, np.bool_)
        self._wakes = np.zeros(devices, np.int64)
        self._met = np.zeros(devices, np.bool_)
        self._counters = np.zeros((devices, _COUNTERS), np.uint32)
        self._slots: dict[int, array[int]] = {}

    def lay(self, device: int, wakes_ns: int) -> int | None:
        """Has a sleeper wait until `wakes_ns`; gives the beginning of its slot when that is a new
        one, which has to be opened then.
        """
        self.asleep[device] = True
        self._wakes[device] = wakes_ns
        slot = wakes_ns // SLOT_NS
        waiting = self._slots.get(slot)
        if waiting is not None:
            waiting.append(device)
            return None
        self._slots[slot] = array("I", [device])
        return slot * SLOT_NS

    def open(self, begins_ns: int) -> list[int]:
        """The sleepers of a slot, in the order in which they wake."""
        slot = begins_ns // SLOT_NS
        waiting = self._slots.pop(slot)
        # Whoever was woken before its time, and lay down again, is in another slot too.
        due = {d for d in waiting if self.asleep[d] and self._wakes[d] // SLOT_NS == slot}
        return sorted(due, key=lambda d: (int(self._wakes[d]), d))

    def wake(self, device: int) -> tuple[DeviceState, tuple[int, int], int] | int:
        """Takes a sleeper out: its state, what its two channels have sent, and when it would have
        come back by itself; only the last of one that has never been up.
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
        """Whether a sleeper has been up before: it rests, and may be spoken to."""
        return bool(self._met[device])


def may_sleep(state: DeviceState) -> bool:
    """Whether all that a device remembers are its counters and what it was born with."""
    return (
        state.phase is Phase.IDLE
        and state.ticket == 0
        and state.after_task_ms == _AFTER_TASK_MS
        and len(state.homes) == 1
        and not (state.done or state.have or state.bundles or state.former)
    )
