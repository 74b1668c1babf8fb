"""A small HTTP server for those who look after an edge: is it alive, is it ready, its numbers.

    /healthz   200 while the process runs
    /readyz    200 when it has recovered its state and reaches the cloud, else 503
    /metrics   its counters in the text format of Prometheus (exposition format 0.0.4)

HTTP/1.1, GET alone, one request a connection. It listens on loopback unless told otherwise, for it
asks nobody who he is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Mapping

from ..core.errors import DelianError

log = logging.getLogger("delian.edge.health")

HEAD_BYTES_MAX = 8 << 10
ANSWER_S = 10.0
CONNECTIONS_MAX = 32
_BAD_NAME = re.compile(r"[^a-zA-Z0-9_]+")


class HealthServer:
    """See the module. ready: why not, or None. numbers: by metric name, asked at each call."""

    def __init__(
        self,
        address: str,
        ready: Callable[[], str | None],
        numbers: Callable[[], Mapping[str, float]],
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise DelianError(f"`{address}` is no address for health", "write 127.0.0.1:7790")
        self._host, self._port = host.strip("[]"), int(port)
        self._ready, self._numbers = ready, numbers
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
                    status, body = self._answer(head)
                    writer.write(_response(status, body))
                    await writer.drain()
        except (
            TimeoutError,
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            pass  # whoever it was has gone, or speaks no HTTP
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(writer.wait_closed(), ANSWER_S)

    def _answer(self, head: bytes) -> tuple[str, str]:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method != b"GET":
            return "405 Method Not Allowed", "GET alone\n"
        if path == b"/healthz":
            return "200 OK", "alive\n"
        if path == b"/readyz":
            why = self._ready()
            return ("200 OK", "ready\n") if why is None else ("503 Service Unavailable", f"{why}\n")
        if path == b"/metrics":
            return "200 OK", metrics_text(self._numbers())
        return "404 Not Found", "/healthz, /readyz or /metrics\n"


def _response(status: str, body: str) -> bytes:
    content = body.encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    ).encode() + content


def metrics_text(numbers: Mapping[str, float]) -> str:
    """One untyped sample a line; names in the characters that Prometheus takes."""
    lines = [f"{_BAD_NAME.sub('_', name)} {value:.17g}" for name, value in sorted(numbers.items())]
    return "\n".join(lines) + "\n"
