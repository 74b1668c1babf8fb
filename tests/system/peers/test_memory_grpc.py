"""The gRPC in memory does what gRPC does, where links lean on it: each test runs over both."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest
from delian.core.node.net.grpc.grpc_ending import Ending
from delian.core.node.net.grpc.grpc_transport import TCP
from support.peers.memory_grpc import MemoryNetwork

CODE = grpc.StatusCode
WAIT_S = 60.0
BYTES_MAX = 1_000


class Stage:
    """A server of one call, `handle(context)`, and a channel to it."""

    def __init__(self, memory: bool, handle) -> None:
        self.network = MemoryNetwork() if memory else TCP
        self.ended = asyncio.Event()  # the handler is over, whichever way
        self._handle = handle

    async def __aenter__(self):
        self.server = self.network.server([("grpc.max_receive_message_length", BYTES_MAX)])
        handlers = {
            "Many": grpc.stream_stream_rpc_method_handler(self._many),
            "One": grpc.stream_unary_rpc_method_handler(self._many),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", handlers),))
        if self.network is TCP:
            at = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        else:
            at = "server:1"
            self.server.add_secure_port(at, self.network.tls)
        await self.server.start()
        self.channel = self.network.channel(at, None, [("grpc.enable_retries", 0)])
        return self

    async def __aexit__(self, *_):
        await self.channel.close()
        await self.server.stop(None)

    async def _many(self, _, context):
        try:
            return await self._handle(context)
        finally:
            self.ended.set()

    def call(self):
        return self.channel.stream_stream("/t/Many")()


@pytest.fixture(params=["memory", "tcp"])
def play(request):
    """Runs `story(stage)` with a handler."""

    def run(handle, story):
        async def both():
            async with asyncio.timeout(WAIT_S), Stage(request.param == "memory", handle) as stage:
                return await story(stage)

        return asyncio.run(both())

    return run


async def echo(context):
    while (content := await context.read()) is not grpc.aio.EOF:
        await context.write(content)


async def silence(context):
    await context.send_initial_metadata(())
    await asyncio.Event().wait()


def test_messages_keep_their_order_and_the_end_follows_them(play):
    async def story(stage):
        call = stage.call()
        for n in range(5):
            await call.write(b"%d" % n)
        await call.done_writing()
        assert [await call.read() for _ in range(6)] == [b"0", b"1", b"2", b"3", b"4", grpc.aio.EOF]
        assert await call.code() is CODE.OK

    play(echo, story)


def test_a_status_comes_after_the_messages_before_it(play):
    async def handle(context):
        await context.write(b"first")
        await context.abort(CODE.FAILED_PRECONDITION, "no more")

    async def story(stage):
        call = stage.call()
        assert await call.read() == b"first"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is CODE.FAILED_PRECONDITION
        assert refused.value.details() == "no more"
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"late")

    play(handle, story)


def test_a_refused_call_has_no_metadata_and_is_done(play):
    async def story(stage):
        call = stage.call()
        ending = Ending(call)
        await call.initial_metadata()
        assert await ending.code() is CODE.PERMISSION_DENIED and call.done()

    play(lambda context: context.abort(CODE.PERMISSION_DENIED, "no"), story)


def test_a_call_that_its_client_cancels_cancels_its_handler(play):
    async def story(stage):
        call = stage.call()
        await call.initial_metadata()
        assert call.cancel() and not call.cancel()
        assert await call.code() is CODE.CANCELLED
        await stage.ended.wait()

    play(silence, story)


def test_a_read_that_is_cancelled_ends_the_call(play):
    async def story(stage):
        call = stage.call()
        await call.initial_metadata()
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await call.code() is CODE.CANCELLED
        await stage.ended.wait()

    play(silence, story)


def test_the_end_of_a_client_s_channel_cancels_its_calls(play):
    async def story(stage):
        call = stage.call()
        await call.initial_metadata()
        await stage.channel.close()
        await stage.ended.wait()

    play(silence, story)


def test_the_client_of_a_handler_that_fails_has_its_fault(play):
    async def handle(context):
        raise ValueError("a fault")

    async def story(stage):
        assert await stage.call().code() is CODE.UNKNOWN

    play(handle, story)


def test_a_handler_that_is_cancelled_leaves_its_call_open(play):
    async def handle(context):
        raise asyncio.CancelledError

    async def story(stage):
        call = stage.call()
        await stage.ended.wait()
        await stage.server.stop(None)
        assert await call.code() is CODE.UNAVAILABLE

    play(handle, story)


def test_a_write_to_a_client_that_is_gone_fails(play):
    failed = []

    async def handle(context):
        with contextlib.suppress(asyncio.CancelledError):
            await silence(context)
        try:
            await context.write(b"too late")
        except BaseException as error:
            failed.append(error)
            raise

    async def story(stage):
        call = stage.call()
        await call.initial_metadata()
        call.cancel()
        await stage.ended.wait()

    play(handle, story)
    assert len(failed) == 1


def test_a_request_of_one_message_is_a_stream_of_one(play):
    async def handle(context):
        asked = [await context.read(), await context.read()]
        assert asked[1] is grpc.aio.EOF
        return asked[0].upper()

    async def story(stage):
        assert await stage.channel.unary_unary("/t/One")(b"abc") == b"ABC"
        call = stage.channel.stream_unary("/t/One")()
        await call.write(b"def")
        await call.done_writing()
        assert await call == b"DEF"

    play(handle, story)


def test_a_message_that_is_too_long_ends_the_call(play):
    heard = []

    async def handle(context):
        await context.send_initial_metadata(())
        heard.append(await context.read())
        await asyncio.Event().wait()

    async def story(stage):
        call = stage.call()
        await call.initial_metadata()
        await call.write(bytes(BYTES_MAX + 1))
        assert await call.code() is CODE.RESOURCE_EXHAUSTED
        await stage.ended.wait()
        assert heard == [grpc.aio.EOF]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stage.channel.unary_unary("/t/One")(bytes(BYTES_MAX + 1))
        assert refused.value.code() is CODE.RESOURCE_EXHAUSTED

    play(handle, story)


def test_a_server_that_stops_ends_its_calls(play):
    async def story(stage):
        call = stage.call()
        await call.initial_metadata()
        await stage.server.stop(None)
        assert await call.code() is CODE.UNAVAILABLE
        await stage.ended.wait()
        assert await stage.call().code() is CODE.UNAVAILABLE

    play(silence, story)
