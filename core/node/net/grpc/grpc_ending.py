"""How a call ended, as its peer said it.

A peer may end a call while this side writes. grpc.aio then overwrites the status that has come by
an INTERNAL of its own (https://github.com/grpc/grpc/issues/36066, open with grpcio 1.85): a refused
caller would take it for a broken connection. The first status that a call has is the peer's, or
else comes before the peer's, which overwrites it in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

T = TypeVar("T")

#: How long the peer's status may come after a write that has failed.
LATE_S = 0.05
#: Characters of what a peer says about a call's end; reasons are a few words.
DETAILS_MAX = 200


class Ending:
    """Notes how a call ends.

    call: a client's, of grpc.aio; before the first write.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._first: grpc.StatusCode | None = None
        self._said: str | None = None
        call.add_done_callback(self._note)

    def _note(self, call: Any) -> None:
        if self._first is None:
            self._first, self._said = _at_once(call.code()), _at_once(call.details())

    async def code(self) -> grpc.StatusCode:
        """Waits for the call's end."""
        now: grpc.StatusCode = await self._call.code()
        if self._first not in (None, grpc.StatusCode.INTERNAL):
            return self._first
        if now is grpc.StatusCode.INTERNAL:
            await asyncio.sleep(LATE_S)
            now = await self._call.code()
        return now

    async def details(self) -> str:
        """What its peer said about the end: a few words. Waits for the call's end."""
        await self.code()
        first = self._first not in (None, grpc.StatusCode.INTERNAL)
        said = self._said if first else await self._call.details()
        return (said or "")[:DETAILS_MAX]


def _at_once(asked: Coroutine[Any, Any, T]) -> T | None:
    """What a call that is over answers: it does not wait, as no callback could."""
    try:
        asked.send(None)
    except StopIteration as told:
        value: T = told.value
        return value
    finally:
        asked.close()
    return None
