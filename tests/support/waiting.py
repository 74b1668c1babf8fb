"""Waiting for what daemons in this process do, without looking again and again.

`run` looks at each condition whenever the event loop has nothing left to do, just before it waits
for sockets, timers and threads. So a condition is seen when it becomes true, and never polled.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

#: A condition that is not true after so long never is.
WAIT_S = 120


class _Watching(selectors.DefaultSelector):
    """A selector that looks at conditions before it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: dict[asyncio.Future[None], Callable[[], Any]] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        for future, condition in list(self.waits.items()):
            try:
                if not future.done() and condition():
                    future.set_result(None)
            except Exception as fault:
                future.set_exception(fault)
            if future.done():
                del self.waits[future]
                timeout = 0
        return super().select(timeout)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.watching = _Watching()
        super().__init__(self.watching)


def run(main: Coroutine[Any, Any, Any], within_s: float = 300) -> None:
    """Runs a test that calls `until`."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(asyncio.wait_for(main, within_s))


def listens(path: Path) -> bool:
    """Whether a server accepts on a Unix socket, whose file is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


async def until(condition: Callable[[], Any]) -> None:
    """Waits until a condition is true of what runs in this loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Loop), "the test is run by waiting.run"
    future = loop.create_future()
    loop.watching.waits[future] = condition
    async with asyncio.timeout(WAIT_S):
        await future
