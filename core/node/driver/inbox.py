"""Events that wait for a node, and the tasks that wait for room."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from ...protocol.ports import Event

#: Patient events that are enough to be handled together.
PATIENT_MAX = 256


@dataclass(frozen=True, slots=True)
class Item:
    """An event on its way to the machine."""

    event: Event
    traceparent: str = ""
    """Of the message that it is, or that led to it."""
    size: int = 0
    """Bytes, where they are known."""
    timer: Any = None
    """For TimerFired, the setting of the timer that fired."""
    patience_s: float = 0.0
    """How long it may wait for others, to be handled together."""


class Inbox:
    """A queue with room for so many events and bytes.

    The owner may go beyond (its own events must not be lost); peers ask `full` or wait for `room`.
    """

    def __init__(self, events_max: int, bytes_max: int) -> None:
        self._events_max, self._bytes_max = events_max, bytes_max
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._pressed = asyncio.Event()  # there is something that waits no longer, or a lot
        self._due: asyncio.TimerHandle | None = None  # when the first to lose patience does
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        return len(self._items) >= self._events_max or self._bytes >= self._bytes_max

    def put(self, item: Item, first: bool = False) -> None:
        if first:
            self._items.appendleft(item)
        else:
            self._items.append(item)
        self._bytes += item.size
        self._filled.set()
        if item.patience_s <= 0 or len(self._items) >= PATIENT_MAX:
            self._press()
        elif not self._pressed.is_set():
            self._press_in(item.patience_s)
        if self.full:
            self._room.clear()

    def take(self) -> Item:
        """The oldest item. Raises IndexError when there is none."""
        item = self._items.popleft()
        self._bytes -= item.size
        if not self._items:
            self._filled.clear()
            self._press()
            self._pressed.clear()
        # At half, so that waiting tasks are not woken for one place each time.
        if 2 * len(self._items) <= self._events_max and 2 * self._bytes <= self._bytes_max:
            self._room.set()
        return item

    async def filled(self) -> None:
        """Waits for an item, or for `wake`."""
        await self._filled.wait()

    async def gathered(self) -> None:
        """Waits until an item waits no longer, for PATIENT_MAX of them, or for `wake`."""
        await self._pressed.wait()

    async def room(self) -> None:
        """Waits for room, or for `wake`. There may be none again when this returns."""
        await self._room.wait()

    def wake(self) -> None:
        """Wakes all waiting tasks: the node is ending."""
        self._filled.set()
        self._press()
        self._room.set()

    def _press(self) -> None:
        self._pressed.set()
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _press_in(self, patience_s: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + patience_s
        if self._due is None or at < self._due.when():
            if self._due is not None:
                self._due.cancel()
            self._due = loop.call_at(at, self._press)
