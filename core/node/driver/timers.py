"""A node's timers by name: which setting of each still stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...protocol.ports import TimerFired
from .inbox import Item


@dataclass(slots=True, eq=False)
class Timer:
    """One setting of a timer."""

    at: int
    """When it is due, ns of the node's time."""
    handle: Any = None
    """What the owner armed it with; None: nothing."""
    due: int | None = None
    """When the owner is to look at it again; None: not said."""


class Timers:
    """The settings that stand.

    Setting a timer again, or cancelling it, voids the one before, also where that has fired and
    waits in the inbox.
    """

    def __init__(self) -> None:
        self._timers: dict[str, Timer] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._timers)

    def __contains__(self, name: object) -> bool:
        return name in self._timers

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, name: str, at: int) -> Timer:
        """A new setting, for the caller to arm. The caller has disarmed the one before."""
        timer = self._timers[name] = Timer(at)
        return timer

    def cancel(self, name: str) -> Timer | None:
        """The setting that stood, for the caller to disarm; None if there is none."""
        return self._timers.pop(name, None)

    def stands(self, name: str, timer: Timer) -> bool:
        """Whether this setting was neither cancelled nor replaced, and has not been handled."""
        return self._timers.get(name) is timer

    def take(self, item: Item) -> bool:
        """Whether an item of the inbox is to be handled.

        A timer's is when its setting stands, which then is done. A TimerFired without a setting was
        posted by hand and stands.
        """
        if not isinstance(item.event, TimerFired) or item.timer is None:
            return True
        if not self.stands(item.event.name, item.timer):
            return False
        del self._timers[item.event.name]
        return True
