"""The request of a unary call, read as a stream of one message.

gRPC ends a unary call whose request is larger than the server takes, or does not parse, before any
code of the service runs: nothing counts it, and nothing logs the caller. On the wire a unary call
is a stream of one message, so this file serves each as a stream, and reads that message itself.
It also reads no request before the caller is admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

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


def open_to_all(server: grpc.aio.Server, count: Count) -> Registrar:
    """For servers that any peer may call: enrolment, a witness."""

    async def admit(_: grpc.aio.ServicerContext) -> None:
        return None

    return Registrar(server, lambda _, handler: admitted(handler, admit, count))
