"""How long a transfer may stand still, for the price of one timer, however many parts it has."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Patience:
    """Raises TimeoutError in the block that it guards once there was no headway for `limit_s`.

    async with Patience(30.0) as patience:
        while part := await call.read():
            patience.headway()
    """

    __slots__ = ("_deadline", "_last", "_limit_s", "_loop", "_timer")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    async def __aenter__(self) -> Patience:
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._deadline = asyncio.timeout(None)
        await self._deadline.__aenter__()
        self._timer = self._loop.call_later(self._limit_s, self._look)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._deadline.__aexit__(kind, error, trace)

    def headway(self) -> None:
        """Something has moved."""
        self._last = self._loop.time()

    def _look(self) -> None:
        left_s = self._last + self._limit_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._deadline.reschedule(self._loop.time())
