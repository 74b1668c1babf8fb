"""How a call ended is what its peer said, also where a write came too late."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from delian.core.node.net.grpc.grpc_ending import Ending
from delian.core.node.net.grpc.grpc_peer import CALL_ENDED

WAIT_S = 120.0  # only so that nothing hangs


class Refusing(grpc.GenericRpcHandler):
    """Refuses every call at once, from a thread of its own; /good is taken and ends well."""

    def __init__(self) -> None:
        self.refused = threading.Event()

    def service(self, details):
        if details.method == "/good":
            return grpc.stream_unary_rpc_method_handler(lambda said, _: b"".join(said))
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    def _refuse(self, _, context):
        self.refused.set()
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "go away")


@pytest.fixture
def refusing():
    handler = Refusing()
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_write_that_comes_too_late_hides_no_refusal(refusing):
    handler, address = refusing

    async def late_write(channel) -> bool:
        """Whether the write failed."""
        handler.refused.clear()
        call = channel.stream_stream("/bad")()
        ending = Ending(call)
        failed = False
        with contextlib.suppress(grpc.RpcError):  # the refusal is known: too early for this test
            await call.wait_for_connection()
            assert handler.refused.wait(WAIT_S)  # the loop stands still:
            time.sleep(0.02)  # the refusal comes, and nobody looks at it
            try:
                await call.write(b"hello")
            except CALL_ENDED:
                failed = True
        assert await ending.code() is grpc.StatusCode.PERMISSION_DENIED
        assert await ending.code() is grpc.StatusCode.PERMISSION_DENIED
        assert await ending.details() == "go away"
        return failed

    async def run() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            async with asyncio.timeout(WAIT_S):
                while sum([await late_write(channel) for _ in range(5)]) == 0:
                    pass

    asyncio.run(run())


def test_other_ends_are_told_as_they_are(refusing):
    async def run() -> None:
        async with grpc.aio.insecure_channel(refusing[1]) as channel:
            silent = Ending(channel.stream_stream("/bad")())
            assert await silent.code() is grpc.StatusCode.PERMISSION_DENIED
            assert await silent.details() == "go away"

            good = channel.stream_unary("/good")()
            ending = Ending(good)
            await good.write(b"all")
            await good.done_writing()
            assert await good == b"all" and await ending.code() is grpc.StatusCode.OK
            assert await Ending(good).code() is grpc.StatusCode.OK  # made after its end

            left = channel.stream_unary("/good")()
            ending = Ending(left)
            left.cancel()
            assert await ending.code() is grpc.StatusCode.CANCELLED

    asyncio.run(run())


@pytest.mark.parametrize("late", ["INTERNAL", "PERMISSION_DENIED"])
def test_a_status_that_comes_after_the_failed_write_is_waited_for(late):
    """What gRPC's core does here cannot be forced: a call that behaves so."""

    class Call:
        def __init__(self) -> None:
            self.now = grpc.StatusCode.INTERNAL

        def add_done_callback(self, callback) -> None:
            callback(self)  # the write has failed

        async def code(self) -> grpc.StatusCode:
            return self.now

        async def details(self) -> str:
            return self.now.name

    async def run() -> None:
        call = Call()
        ending = Ending(call)
        asyncio.get_running_loop().call_soon(setattr, call, "now", grpc.StatusCode[late])
        assert await ending.code() is grpc.StatusCode[late]
        assert await ending.details() == late

    asyncio.run(run())
