"""The relay that is a slow link: everything arrives, in order, and no sooner than the link can."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time

import pytest
from support.processes.shaped_link import Shape, ShapedLink, in_thread


@contextlib.asynccontextmanager
async def echo():
    """A server that sends back all that it is sent, once that has ended."""

    async def serve(reader, writer):
        content = await reader.read()
        writer.write(content)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def there_and_back(port, content):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()
    writer.write(content)
    writer.write_eof()
    got = await reader.read()
    writer.close()
    return got, time.monotonic() - began


@pytest.mark.parametrize(
    "shape", [Shape(), Shape(2e6, 4e6, 0.02), Shape.symmetric(1e8, 0.001)], ids=str
)
def test_everything_arrives_and_no_sooner_than_the_link_can(shape):
    content = bytes(range(256)) * 800

    async def run():
        async with echo() as target, ShapedLink(target, shape) as link:
            got, seconds = await there_and_back(link.port, content)
            assert got == content and link.carried == (len(content), len(content))
            least = len(content) / shape.up + len(content) / shape.down + 2 * shape.latency_s
            assert seconds >= 0.95 * least

    asyncio.run(run())


def test_connections_share_the_link():
    async def run():
        async with echo() as target, ShapedLink(target, Shape(1e6)) as link:
            began = time.monotonic()
            calls = (there_and_back(link.port, bytes(50_000)) for _ in range(4))
            assert [len(got) for got, _ in await asyncio.gather(*calls)] == 4 * [50_000]
            assert time.monotonic() - began >= 0.95 * 0.2

    asyncio.run(run())


def test_a_link_that_was_idle_carries_no_burst():
    async def run():
        async with echo() as target, ShapedLink(target, Shape(1e6)) as link:
            await there_and_back(link.port, b"x")
            await asyncio.sleep(0.2)
            _, seconds = await there_and_back(link.port, bytes(100_000))
            assert seconds >= 0.95 * 0.1

    asyncio.run(run())


def test_a_change_holds_for_what_is_yet_to_be_carried():
    async def run():
        async with echo() as target, ShapedLink(target, Shape(10e3)) as link:
            task = asyncio.create_task(there_and_back(link.port, bytes(1_000_000)))
            await asyncio.sleep(0.05)
            link.change(Shape())  # else it would take 100 s
            async with asyncio.timeout(30.0):
                got, _ = await task
            assert len(got) == 1_000_000

    asyncio.run(run())


def test_a_cut_link_says_nothing_until_it_is_mended():
    async def run():
        async with echo() as target, ShapedLink(target, Shape()) as link:
            link.cut()
            task = asyncio.create_task(there_and_back(link.port, b"hello"))
            done, _ = await asyncio.wait([task], timeout=0.2)
            assert not done
            link.cut(False)
            assert (await task)[0] == b"hello"

    asyncio.run(run())


def test_who_is_not_there_cannot_be_reached_through_it():
    async def run():
        async with echo() as target:
            pass
        async with ShapedLink(target, Shape()) as link:
            reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(run())


def test_it_runs_beside_callers_without_a_loop():
    async def serve():
        async with echo() as target:
            link = ShapedLink(target, Shape(math.inf, math.inf, 0.001))
            with in_thread(link):
                return await there_and_back(link.port, b"beside")

    assert asyncio.run(serve())[0] == b"beside"
