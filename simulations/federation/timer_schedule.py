"""The timers of many nodes on one schedule.

A timer that is set again or called off stays scheduled and does nothing when its time comes. Most
timers of a federation end so, some of them set for a day ahead: when they are most of what is
scheduled, they are swept out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from .nodes import Host
from .virtual_time import Schedule

#: So few timers that were called off are not worth a look at the whole schedule.
SWEPT_MIN = 1024

#: What happens, `action(number, *arguments)`: its number in the schedule comes first.
Action: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]


class Timers:
    """Timers by name in `Host.timers`. fire: called with (host, name) when one's time has come."""

    __slots__ = ("_called_off", "_fire", "_fired", "_schedule")

    def __init__(self, schedule: Schedule[Action], fire: Callable[[Host, str], None]) -> None:
        self._schedule, self._fire = schedule, fire
        self._called_off = 0
        self._fired = self._on_time  # one object, by which timers are known

    def set(self, host: Host, name: str, at: int) -> None:
        """Sets a timer, in the place of one of the same name."""
        timers = host.timers
        if name in timers:
            self._call_off(1)
        timers[name] = self._schedule.at(at, (self._fired, (host, name)))

    def cancel(self, host: Host, name: str) -> None:
        """Calls a timer off, where there is one."""
        if host.timers.pop(name, None) is not None:
            self._call_off(1)

    def clear(self, host: Host) -> None:
        """Calls all of a host's timers off."""
        gone = len(host.timers)
        host.timers.clear()
        self._call_off(gone)

    def _on_time(self, number: int, host: Host, name: str) -> None:
        if host.timers.get(name) == number:
            del host.timers[name]
            self._fire(host, name)
        else:
            self._called_off -= 1

    def _call_off(self, timers: int) -> None:
        self._called_off += timers
        if self._called_off > max(SWEPT_MIN, len(self._schedule) // 2):
            self._schedule.sweep(self._is_wanted)
            self._called_off = 0

    def _is_wanted(self, number: int, item: Action) -> bool:
        action, arguments = item
        if action is not self._fired:
            return True
        host, name = arguments
        return bool(host.timers.get(name) == number)
