"""The clock of links: the event loop's, so that limits of time also hold in virtual time."""

from __future__ import annotations

import asyncio


def now_s() -> float:
    """Seconds of a clock that does not go back, where an event loop runs."""
    return asyncio.get_running_loop().time()
