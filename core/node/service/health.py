"""A small HTTP server for operators of a process: is it alive, is it ready, its numbers.

    /healthz   200 while the process runs
    /readyz    200 when it can do its work, else 503 with the reason
    /metrics   its page of metrics, in the text format of Prometheus

HTTP/1.1, GET alone, one request a connection, all of it bounded in size, number and time. It does
not authenticate callers, so it listens on loopback by default.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from ...common.errors import DelianError

HEAD_BYTES_MAX = 8 * 1024
CONNECTIONS_MAX = 32
ANSWER_S = 10.0
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HealthServer:
    """See the module. ready: why not, or None. metrics: the page, asked at each call."""

    def __init__(
        self, address: str, ready: Callable[[], str | None], metrics: Callable[[], bytes]
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise DelianError(f"`{address}` is no address for health", "write 127.0.0.1:7790")
        self._host, self._port = host.strip("[]"), int(port)
        self._ready, self._metrics = ready, metrics
        self._server: asyncio.Server | None = None
        self._open = 0

    @property
    def port(self) -> int:
        """Where it listens, once started."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Raises DelianError when it cannot listen."""
        try:
            self._server = await asyncio.start_server(
                self._serve, self._host, self._port, limit=HEAD_BYTES_MAX
            )
        except OSError as error:
            raise DelianError(
                f"cannot listen on {self._host}:{self._port} for health: {error.strerror}",
                "choose another port",
            ) from error

    async def close(self) -> None:
        """May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), ANSWER_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(ANSWER_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_response(*self._answer(head)))
                    await writer.drain()
        except (TimeoutError, ConnectionError, EOFError, asyncio.LimitOverrunError):
            pass  # the client has gone, or sends no HTTP
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(writer.wait_closed(), ANSWER_S)

    def _answer(self, head: bytes) -> tuple[str, bytes]:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method != b"GET":
            return "405 Method Not Allowed", b"GET alone\n"
        if path == b"/healthz":
            return "200 OK", b"alive\n"
        if path == b"/readyz":
            why = self._ready()
            if why is None:
                return "200 OK", b"ready\n"
            return "503 Service Unavailable", f"{why}\n".encode()
        if path == b"/metrics":
            return "200 OK", self._metrics()
        return "404 Not Found", b"/healthz, /readyz or /metrics\n"


def _response(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {METRICS_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
