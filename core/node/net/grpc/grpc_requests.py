"""The request of a unary call, read as a stream of one message.

gRPC ends a unary call whose request is larger than the server takes, or does not parse, before any
code of the service runs: nothing counts it, and nothing logs the caller. On the wire a unary call
is a stream of one message, so this file serves each as a stream, and reads that message itself.
It also reads no request before the caller is admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from ...identity.pki.certificates import IdentityError
from .grpc_transport import TCP, Transport

#: Counts and logs a request that cannot be read: its kind ("broken off", "malformed") and the call.
Count = Callable[[str, grpc.aio.ServicerContext], None]
#: Whether a call may be made. Ends the call otherwise.
Admit = Callable[[grpc.aio.ServicerContext], Awaitable[object]]


async def read_request(context: Any, deserializer: Callable[[bytes], Any], count: Count) -> Any:
    """The request of a call. Ends the call where none comes, or where it does not parse."""
    try:
        content = await context.read()
    except asyncio.CancelledError:
        count("broken off", context)
        raise
    if content is grpc.aio.EOF:  # the caller has gone, or gRPC refused what it sent as too large
        count("broken off", context)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no request came")
    try:
        return deserializer(content)
    except DecodeError:
        count("malformed", context)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request does not parse")


def admitted(handler: grpc.RpcMethodHandler, admit: Admit, count: Count) -> Any:
    """The same call, whose caller is admitted before its request is read."""
    unary = not handler.request_streaming

    async def asked(requests: Any, context: Any) -> Any:
        await admit(context)
        if not unary:
            return requests
        return await read_request(context, handler.request_deserializer, count)

    if handler.response_streaming:
        answers_of = handler.unary_stream if unary else handler.stream_stream

        async def many(requests: Any, context: Any) -> Any:
            answers = answers_of(await asked(requests, context), context)
            if hasattr(answers, "__aiter__"):
                async for answer in answers:
                    yield answer
            else:  # it writes by itself
                await answers

        return grpc.stream_stream_rpc_method_handler(
            many, None if unary else handler.request_deserializer, handler.response_serializer
        )
    answer_of = handler.unary_unary if unary else handler.stream_unary

    async def once(requests: Any, context: Any) -> Any:
        return await answer_of(await asked(requests, context), context)

    return grpc.stream_unary_rpc_method_handler(
        once, None if unary else handler.request_deserializer, handler.response_serializer
    )


class Registrar:
    """Stands in for a server where generated code adds the handlers of a servicer.

    It gives the server `wrapped(call, handler)` for each.
    """

    def __init__(
        self, server: grpc.aio.Server, wrapped: Callable[[str, grpc.RpcMethodHandler], Any]
    ) -> None:
        self._server, self._wrapped = server, wrapped

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Does nothing: each method is also added by `add_registered_method_handlers`.

        Only there are the methods' names known.
        """

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]
    ) -> None:
        """Adds the methods of a service to the server."""
        wrapped = {
            name: self._wrapped(f"/{service}/{name}", handler) for name, handler in handlers.items()
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, wrapped),)
        )


async def refuse(context: Any, code: grpc.StatusCode, why: str) -> NoReturn:
    """Ends a call."""
    await context.abort(code, why)
    raise AssertionError("abort does not return")


async def serve_all(
    address: str,
    add: Callable[[Registrar], None],
    count: Count,
    *,
    bytes_max: int,
    calls_max: int,
    idle_ms: int,
    credentials: grpc.ServerCredentials | None = None,
    purpose: str = "",
    transport: Transport = TCP,
) -> tuple[grpc.aio.Server, int]:
    """Starts a server that any peer may call; gives it and its port. The caller stops it.

    Args:
        add: adds the servicer.
        bytes_max: of a request.
        calls_max: calls at once.
        idle_ms: after it a connection without calls is closed.
        credentials: TLS; None: without TLS.
        purpose: for the error's text, as " for enrolment".
        transport: makes the server.

    Raises:
        IdentityError: the address is in use.
    """
    options = [
        ("grpc.max_receive_message_length", bytes_max),
        ("grpc.server_handshake_timeout_ms", idle_ms),
        ("grpc.max_connection_idle_ms", idle_ms),
        ("grpc.max_connection_age_ms", 2 * idle_ms),
        ("grpc.max_concurrent_streams", 4),
        ("grpc.max_metadata_size", 8 * 1024),
        ("grpc.so_reuseport", 0),
    ]
    server = transport.server(options, calls_max)

    async def admit(_: grpc.aio.ServicerContext) -> None:
        return None

    add(Registrar(server, lambda _, handler: admitted(handler, admit, count)))
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise IdentityError(
            f"cannot listen on {address}{purpose}", "is the port in use by another process?"
        )
    await server.start()
    return server, port
