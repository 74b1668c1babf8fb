"""Frames: how an agent talks to its worker processes, and programs to the inference server.

    length of head u32 | length of body u64 | head, JSON | body, bytes       (little-endian)

The head says what is meant, the body holds bytes or nothing. A reader states the longest
body that it takes before anything is allocated. A worker imports no asyncio: it would
take memory that a small device has not.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...common.errors import DelianError

if TYPE_CHECKING:
    import asyncio

_LENGTHS = struct.Struct("<IQ")
#: A head may list the arrays of a model by name.
HEAD_BYTES_MAX = 256 << 10
_CHUNK = 1 << 20
_encoded = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` makes an encoder each time


class FrameError(DelianError):
    """What was read is no frame, or one that is too long."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A message between an agent and its worker."""

    head: Mapping[str, Any]
    """Its fields, JSON."""
    body: bytearray
    """The bytes that follow."""


class Readable(Protocol):
    """A stream to read from."""

    def read(self, size: int, /) -> bytes: ...


class Writable(Protocol):
    """A stream to write to."""

    def write(self, content: bytes | memoryview, /) -> int: ...

    def flush(self) -> None: ...


def pack(head: Mapping[str, Any], body_bytes: int = 0) -> bytes:
    """A frame up to its body."""
    said = _encoded(head).encode()
    if len(said) > HEAD_BYTES_MAX:
        raise FrameError(f"a frame's head of {len(said)} bytes; at most {HEAD_BYTES_MAX}")
    return _LENGTHS.pack(len(said), body_bytes) + said


def write(stream: Writable, head: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
    """Writes a frame to a blocking stream."""
    stream.write(pack(head, len(body)))
    if len(body):
        stream.write(body)
    stream.flush()


def read(stream: Readable, body_bytes_max: int) -> Frame | None:
    """The next frame of a blocking stream; None at its end. Raises FrameError."""
    lengths = _exactly(stream, _LENGTHS.size, may_end=True)
    if lengths is None:
        return None
    head_bytes, body_bytes = _checked(bytes(lengths), body_bytes_max)
    said = _exactly(stream, head_bytes)
    body = _exactly(stream, body_bytes)
    assert said is not None and body is not None
    return Frame(_head(said), body)


async def send(
    writer: asyncio.StreamWriter, head: Mapping[str, Any], body: bytes | memoryview = b""
) -> None:
    """Writes a frame and waits for the peer to take it."""
    writer.write(pack(head, len(body)))
    for start in range(0, len(body), _CHUNK):
        writer.write(body[start : start + _CHUNK])
        await writer.drain()
    await writer.drain()


async def receive(reader: asyncio.StreamReader, body_bytes_max: int) -> Frame | None:
    """The next frame; None where the stream ends between two. Raises FrameError."""
    from asyncio import IncompleteReadError

    try:
        lengths = await reader.readexactly(_LENGTHS.size)
    except IncompleteReadError as error:
        if not error.partial:
            return None
        raise FrameError("the stream ended within a frame") from None
    head_bytes, body_bytes = _checked(lengths, body_bytes_max)
    body = bytearray()
    try:
        said = await reader.readexactly(head_bytes)
        while len(body) < body_bytes:
            body += await reader.readexactly(min(_CHUNK, body_bytes - len(body)))
    except IncompleteReadError:
        raise FrameError("the stream ended within a frame") from None
    return Frame(_head(said), body)


def _checked(lengths: bytes, body_bytes_max: int) -> tuple[int, int]:
    head_bytes, body_bytes = _LENGTHS.unpack(lengths)
    if head_bytes > HEAD_BYTES_MAX or body_bytes > body_bytes_max:
        raise FrameError(
            f"a frame of {head_bytes} and {body_bytes} bytes",
            f"at most {HEAD_BYTES_MAX} and {body_bytes_max} are taken",
        )
    return head_bytes, body_bytes


def _head(said: bytes | bytearray) -> Mapping[str, Any]:
    try:
        head = json.loads(said.decode())
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame's head is no JSON: {error}") from None
    if not isinstance(head, dict):
        raise FrameError("a frame's head is no JSON object")
    return head


def _exactly(stream: Readable, size: int, *, may_end: bool = False) -> bytearray | None:
    content = bytearray()
    while len(content) < size:
        chunk = stream.read(min(_CHUNK, size - len(content)))
        if not chunk:
            if may_end and not content:
                return None
            raise FrameError("the stream ended within a frame")
        content += chunk
    return content
