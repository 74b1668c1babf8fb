"""Runs a machine of partitioned execution: events in, effects out, on an event loop.

    post(event) -> machine.handle(event, now) -> carry(effect), ...

Nothing is journaled: a request lives as long as its caller waits for it, and the caller asks
again. What effects bring about at once is handled after the effects of the present event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ...protocol.ports import CancelTimer, Record, SetTimer, TimerFired
from .machines.part_ports import Effect, Event

log = logging.getLogger("delian.subgraphs")


class Machine(Protocol):
    """An Asker or a Server."""

    def handle(self, event: Event, now: int) -> list[Effect]: ...


class MachineLoop:
    """One machine and its timers. carry: handles other effects. on_record: gets Records."""

    def __init__(
        self,
        machine: Machine,
        carry: Callable[[Effect], None],
        on_record: Callable[[Record], None] | None = None,
    ) -> None:
        self.machine = machine
        self._carry, self._on_record = carry, on_record
        self._events: deque[Event] = deque()
        self._busy = self._closed = False
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def now(self) -> int:
        """Nanoseconds of the clock that the machine lives by."""
        return time.monotonic_ns()

    def post(self, event: Event) -> None:
        """Lets the machine handle an event, at once or after the one at hand."""
        if self._closed:
            return
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                for effect in self.machine.handle(self._events.popleft(), self.now()):
                    self._do(effect)
        finally:
            self._busy = False

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, SetTimer):
            self._set(effect.name, effect.at)
        elif isinstance(effect, CancelTimer):
            self._cancel(effect.name)
        elif isinstance(effect, Record):
            log.debug("%s", effect.kind, extra=dict(effect.fields))
            if self._on_record is not None:
                self._on_record(effect)
        else:
            self._carry(effect)

    def _set(self, name: str, at: int) -> None:
        self._cancel(name)
        delay = max(0.0, (at - self.now()) / 1e9)
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(delay, self._fire, name, at)

    def _fire(self, name: str, at: int) -> None:
        if self.now() < at:  # the loop's timers are coarser than its clock
            self._set(name, at)
            return
        self._timers.pop(name, None)
        self.post(TimerFired(name))

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """No timer fires any more, and events are dropped."""
        self._closed = True
        for name in list(self._timers):
            self._cancel(name)
        self._events.clear()
