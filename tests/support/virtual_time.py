"""An event loop in virtual time: its clock jumps to the next timer when nothing else is to be done.

Work in threads (`asyncio.to_thread`) takes no virtual time: while some runs, the clock stands.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Waits for threads as long as they take, and for timers not at all."""

    jobs = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if self.jobs and timeout else timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Seconds since the loop began, in virtual time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._waits = _Selector()
        super().__init__(self._waits)

    def time(self) -> float:
        return self.seconds

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Any:
        future = super().run_in_executor(executor, func, *args)
        self._waits.jobs += 1
        future.add_done_callback(self._job_ends)
        return future

    def _job_ends(self, _: object) -> None:
        self._waits.jobs -= 1

    def _run_once(self) -> None:
        if not self._ready and not self._waits.jobs:
            # A timer that was cancelled stays in the list for a while.
            due = (timer._when for timer in self._scheduled if not timer._cancelled)
            self.seconds = max(self.seconds, min(due, default=self.seconds))
        super()._run_once()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
