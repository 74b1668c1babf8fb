"""What waits for a node to handle it, and who waits for room."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Any

from ..ports import Event

#: Patient events that are enough to be handled together.
PATIENT_MAX = 256


@dataclass(frozen=True, slots=True)
class Item:
    """An event on its way to the machine.

    traceparent: of the message that it is, or that led to it. size: bytes, where they are known.
    timer: for TimerFired, the setting of the timer that fired. patient: it may wait a little for
    others like it.
    """

    event: Event
    traceparent: str = ""
    size: int = 0
    timer: Any = None
    patient: bool = False


class Inbox:
    """A queue with room for so many events and bytes. The owner may go beyond (its own events must
    not be lost); peers ask `full` or wait for `room`.
    """

    def __init__(self, events_max: int, bytes_max: int) -> None:
        self._events_max, self._bytes_max = events_max, bytes_max
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._pressed = asyncio.Event()  # there is something that is not patient, or a lot
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
        if not item.patient or len(self._items) >= PATIENT_MAX:
            self._pressed.set()
        if self.full:
            self._room.clear()

    def take(self) -> Item:
        """The oldest item. Raises IndexError when there is none."""
        item = self._items.popleft()
        self._bytes -= item.size
        if not self._items:
            self._filled.clear()
            self._pressed.clear()
        # At half, so that those who wait are not woken for one place each time.
        if 2 * len(self._items) <= self._events_max and 2 * self._bytes <= self._bytes_max:
            self._room.set()
        return item

    async def filled(self) -> None:
        """Waits for an item, or for `wake`."""
        await self._filled.wait()

    async def gathered(self, patience_s: float) -> None:
        """Waits for an item that does not wait itself, for PATIENT_MAX of those that do, for
        `patience_s`, or for `wake`.
        """
        if patience_s > 0 and not self._pressed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._pressed.wait()

    async def room(self) -> None:
        """Waits for room, or for `wake`. There may be none again when this returns."""
        await self._room.wait()

    def wake(self) -> None:
        """Lets everybody who waits go on: the node is ending."""
        self._filled.set()
        self._pressed.set()
        self._room.set()
