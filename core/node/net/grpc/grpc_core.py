"""gRPC's core under asyncio, held up from its first use to the end of the process.

Whichever of gRPC's objects goes last takes the core down and waits there for its polling thread: in
the middle of whatever this thread was doing when garbage was collected, and with an operation still
under way for ever (grpc/grpc issue 22365). A core that is held never goes down; it costs a thread
that sleeps.
"""

from __future__ import annotations

import asyncio
import functools

import grpc


@functools.cache
def hold() -> None:
    """Before the first channel or server of a daemon is made."""
    # grpc.aio asks for this thread's event loop; asyncio.run leaves none behind.
    try:
        asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        asyncio.set_event_loop(asyncio.new_event_loop())
    grpc.aio.init_grpc_aio()
