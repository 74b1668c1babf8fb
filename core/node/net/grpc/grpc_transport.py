"""Where hubs and uplinks get servers and channels: gRPC over TCP, or a test's in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import grpc

from . import grpc_core

Options = Sequence[tuple[str, Any]]


class Transport(Protocol):
    """Makes servers and channels with the methods of `grpc.aio.Server` and `grpc.aio.Channel`."""

    def server(self, options: Options, calls_max: int | None = None) -> Any:
        """A server that has no port yet. calls_max: calls at once; None: as many as come."""

    def channel(self, target: str, credentials: Any, options: Options) -> Any:
        """A connection to "host:port". credentials: None: without TLS."""


class TcpTransport:
    """gRPC's own."""

    def server(self, options: Options, calls_max: int | None = None) -> Any:
        """A server that has no port yet. calls_max: calls at once; None: as many as come."""
        grpc_core.hold()
        return grpc.aio.server(options=options, maximum_concurrent_rpcs=calls_max)

    def channel(self, target: str, credentials: Any, options: Options) -> Any:
        """A connection to "host:port". credentials: None: without TLS."""
        grpc_core.hold()
        if credentials is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, credentials, options)


TCP: Final = TcpTransport()
