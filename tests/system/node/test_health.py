"""The tests of `test_health` that need a process, a socket or a clock."""

from __future__ import annotations

import asyncio

import pytest
from delian.core.common.errors import DelianError
from delian.core.node.service.health import METRICS_TYPE, HealthServer


async def get(port: int, request: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = (await reader.read()).decode()
    writer.close()
    return (int(answer.split(" ")[1]), answer.partition("\r\n\r\n")[2]) if answer else (0, "")


def test_it_tells_whether_it_is_alive_and_ready_and_its_numbers():
    why = ["no cloud"]

    async def scene():
        server = HealthServer("127.0.0.1:0", lambda: why[0], lambda: b"a 1\n")
        await server.start()

        def ask(path: str):
            return get(server.port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

        assert await ask("/healthz") == (200, "alive\n")
        assert await ask("/readyz") == (503, "no cloud\n")
        why[0] = None
        assert await ask("/readyz?verbose") == (200, "ready\n")
        assert await ask("/metrics") == (200, "a 1\n")
        assert (await ask("/secret"))[0] == 404
        assert (await get(server.port, b"POST /healthz HTTP/1.1\r\n\r\n"))[0] == 405
        assert await get(server.port, b"x" * 20_000 + b"\r\n\r\n") == (0, "")
        with pytest.raises(DelianError, match="cannot listen"):
            await HealthServer(f"127.0.0.1:{server.port}", lambda: None, bytes).start()
        await server.close()
        await server.close()

    asyncio.run(asyncio.wait_for(scene(), 120))
    with pytest.raises(DelianError, match="no address"):
        HealthServer("here", lambda: None, bytes)
    assert "version=0.0.4" in METRICS_TYPE
