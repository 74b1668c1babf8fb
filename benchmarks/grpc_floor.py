"""What gRPC itself costs a coordinator: the calls of a round, and idle streams, with nothing behind
them.

A server of grpc.aio in a process of its own answers the same calls with messages of the same sizes
as `coordinator.py`'s rounds: for each device five short messages each way on its stream, one pull
and one push of a MiB, each in one part. It reads nothing, checks nothing, keeps nothing. A
coordinator in Python costs this and then its own work, so its figures are to be read beside these.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import psutil
from delian.core.node.net.message_limits import FRAME_BYTES_MAX
from delian.core.node.service.process_memory import keep_freed_memory

MIB = 2**20
#: Of an envelope on a device's stream, about: an offer.
SHORT_BYTES = 80
#: Each way, in a round: check-in, fetch, want, offer, want; accept, task, offer, want, ack.
SHORT_MESSAGES = 5
STREAMS_PER_CONNECTION = 56
#: Streams that are opened at once.
CHUNK = 200
CONNECT, PULL, PUSH = (f"/floor.Floor/{name}" for name in ("Connect", "Pull", "Push"))


async def serve() -> None:
    """Serves, and answers each line on standard input with what it has used."""
    keep_freed_memory()
    short, part = bytes(SHORT_BYTES), os.urandom(MIB)

    async def connect(_: Any, context: Any) -> None:
        while await context.read() is not grpc.aio.EOF:
            await context.write(short)

    async def pull(_: bytes, context: Any) -> None:
        await context.write(part)

    async def push(_: Any, context: Any) -> bytes:
        while await context.read() is not grpc.aio.EOF:
            pass
        return b""

    options = [
        ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
        ("grpc.max_concurrent_streams", 64),
    ]
    server = grpc.aio.server(options=options)
    handlers = {
        "Connect": grpc.stream_stream_rpc_method_handler(connect),
        "Pull": grpc.unary_stream_rpc_method_handler(pull),
        "Push": grpc.stream_unary_rpc_method_handler(push),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("floor.Floor", handlers),)
    )
    print(json.dumps({"port": server.add_insecure_port("127.0.0.1:0")}), flush=True)
    await server.start()
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    process = psutil.Process()
    while await lines.readline():
        gc.collect()
        used = process.cpu_times()
        facts = {"cpu_s": used.user + used.system, "rss": process.memory_info().rss}
        print(json.dumps(facts), flush=True)


class Floor:
    """The server, as this process sees it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process, self._port = process, port

    async def stat(self) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"stat\n")
        found: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return found

    def channel(self) -> Any:
        return grpc.aio.insecure_channel(
            f"127.0.0.1:{self._port}",
            [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)],
        )


@asynccontextmanager
async def floor() -> AsyncIterator[Floor]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Floor(process, json.loads(await process.stdout.readline())["port"])
    finally:
        process.kill()
        await process.wait()


async def _round(channel: Any, stream: Any, short: bytes, part: bytes) -> None:
    """A device's calls of one round."""
    for _ in range(SHORT_MESSAGES):
        await stream.write(short)
        await stream.read()
    pulled = channel.unary_stream(PULL)(b"")
    while await pulled.read() is not grpc.aio.EOF:
        pass
    pushed = channel.stream_unary(PUSH)()
    await pushed.write(part)
    await pushed.done_writing()
    await pushed


async def calls_of(devices: int, rounds: int) -> float:
    """Ms of the server's processor time for a MB that devices push, with all calls of a round."""
    short, part = bytes(SHORT_BYTES), os.urandom(MIB)
    async with floor() as server:
        channels = [server.channel() for _ in range(devices)]
        streams = [channel.stream_stream(CONNECT)() for channel in channels]
        before: dict[str, Any] = {}
        for number in range(rounds + 1):
            both = zip(channels, streams, strict=True)
            await asyncio.gather(*(_round(c, s, short, part) for c, s in both))
            if not number:
                before = await server.stat()
        after = await server.stat()
        for channel in channels:
            await channel.close()
    return 1000 * (after["cpu_s"] - before["cpu_s"]) / (rounds * devices * MIB / 1e6)


async def idle_streams(count: int) -> float:
    """KiB that each of so many idle streams takes in the server."""
    short = bytes(SHORT_BYTES)
    async with floor() as server:
        kept: list[Any] = []

        async def open_one(channel: Any) -> None:
            stream = channel.stream_stream(CONNECT)()
            await stream.write(short)
            await stream.read()
            kept.append(stream)

        async def open_all(count: int) -> list[Any]:
            channels = [server.channel() for _ in range(-(-count // STREAMS_PER_CONNECTION))]
            for first in range(0, count, CHUNK):
                some = range(first, min(count, first + CHUNK))
                await asyncio.gather(
                    *(open_one(channels[i // STREAMS_PER_CONNECTION]) for i in some)
                )
            return channels

        warm = await open_all(100)
        empty = await server.stat()
        channels = await open_all(count)
        full = await server.stat()
        for stream in kept:
            stream.cancel()
        for channel in (*warm, *channels):
            await channel.close()
    return float(full["rss"] - empty["rss"]) / count / 1024


if __name__ == "__main__":
    asyncio.run(serve())
