"""Where the batches of a stream of Arrow's IPC format are, from the headers alone.

A stream is a sequence of messages: four bytes 0xFF, the length of the metadata, the metadata (a
flatbuffer), the body. It ends with a length of 0. pyarrow has no such index, and would read each
body or map the file: a mapped file that is cut short ends its process with SIGBUS. Every length is
compared with the file before it is used.

Arrow columnar format, "Encapsulated message format", and `Message.fbs`
(https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import FileIO

from ....common.errors import DelianError
from .file_ranges import FileRanges

_CONTINUES = b"\xff\xff\xff\xff"
_FRAME = struct.Struct("<4si")
_METADATA_BYTES_MAX = 64 << 20
_BATCHES_MAX = 1 << 22
#: Of `MessageHeader` in Message.fbs.
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    at: int
    size: int
    """With its body."""
    kind: int
    rows: int
    """Of a batch."""
    packed: bool
    """Whether a batch's buffers are compressed."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream's messages."""

    schema: Message
    batches: tuple[Message, ...]


def stream_of(file: FileRanges) -> Stream:
    """The schema's message and those of all batches with rows.

    Raises DelianError for a file that is torn, or is no such stream, or that is compressed: what
    compressed buffers take in memory is only known once they are unpacked.
    """
    batches: list[Message] = []
    with file.opened() as stream:
        schema = _message(file, stream, 0)
        if schema is None or schema.kind != _SCHEMA:
            raise _torn(file, 0, "no schema")
        at = schema.size
        while (found := _message(file, stream, at)) is not None:
            if found.kind == _DICTIONARY:
                raise DelianError(
                    f"{file.path} has columns of dictionaries", "cast them to plain columns"
                )
            if found.packed:
                raise DelianError(
                    f"{file.path} is compressed (byte {at})", "save it without compression"
                )
            if found.kind != _RECORDS or found.rows < 0:
                raise _torn(file, at, "no batch of rows")
            if found.rows:
                batches.append(found)
            if len(batches) > _BATCHES_MAX:
                raise DelianError(f"{file.path} has more than {_BATCHES_MAX} batches", "join them")
            at += found.size
    return Stream(schema, tuple(batches))


def _message(file: FileRanges, stream: FileIO, at: int) -> Message | None:
    """The message at a byte; None: the end mark is there."""
    if at + _FRAME.size > file.size:
        raise _torn(file, at, "no end mark")
    mark, size = _FRAME.unpack(file.read_from(stream, at, _FRAME.size))
    if mark != _CONTINUES:
        raise _torn(file, at, "no message")
    if size == 0:
        return None
    begin = at + _FRAME.size
    if not 0 < size <= _METADATA_BYTES_MAX or begin + size > file.size:
        raise _torn(file, at, f"a message with {size} bytes of metadata")
    content = bytes(file.read_from(stream, begin, size))
    try:
        message = _Table(content, _unsigned(content, 0))
        kind = message.number(1, "<B")
        body = message.number(3, "<q")
        header = message.table(2) if kind == _RECORDS else None
        rows = header.number(0, "<q") if header is not None else 0
        packed = header is not None and header.place(3) > 0
    except (struct.error, IndexError):
        raise _torn(file, at, "damaged metadata") from None
    if not 0 <= body <= file.size - begin - size:
        raise _torn(file, at, f"a message of {body} bytes")
    return Message(at, _FRAME.size + size + body, kind, rows, packed)


class _Table:
    """A table of a flatbuffer: a vtable says where each field is."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._at = content, at
        self._fields = at - _read(content, at, "<i")
        self._size = _read(content, self._fields, "<H")

    def place(self, field: int) -> int:
        """Where a field is; 0: it is absent."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return 0
        offset = _read(self._content, self._fields + entry, "<H")
        return self._at + offset if offset else 0

    def number(self, field: int, form: str) -> int:
        """A number; 0 where it is absent."""
        place = self.place(field)
        return _read(self._content, place, form) if place else 0

    def table(self, field: int) -> _Table:
        """A table within this one."""
        place = self.place(field)
        return _Table(self._content, place + _unsigned(self._content, place))


def _read(content: bytes, at: int, form: str) -> int:
    if at < 0:
        raise IndexError(at)
    return int(struct.unpack_from(form, content, at)[0])


def _unsigned(content: bytes, at: int) -> int:
    return _read(content, at, "<I")


def _torn(file: FileRanges, at: int, what: str) -> DelianError:
    return DelianError(
        f"{file.path} is no whole stream of Arrow's: {what} at byte {at} of {file.size}",
        "it is cut short or damaged: save the data set again",
    )
