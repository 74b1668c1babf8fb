"""gRPC's core is not taken down within a process."""

from __future__ import annotations

import asyncio
import gc
import threading

from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.loopback import INSECURE
from delian.core.node.net.switch import Switch
from delian.core.protocol.ports import Tier


def polling() -> set[threading.Thread]:
    """gRPC's threads, by the name of the function that they run."""
    return {thread for thread in threading.enumerate() if "_poll_wrapper" in thread.name}


def test_the_core_stays_up_when_its_last_object_goes():
    async def serve() -> None:
        hub = GrpcHub(Switch(), "127.0.0.1:0", None, Guard(INSECURE, Tier.EDGE))
        await hub.start()
        await hub.close()

    asyncio.run(serve())
    gc.collect()
    assert (first := polling())
    asyncio.run(serve())
    gc.collect()
    assert polling() == first
