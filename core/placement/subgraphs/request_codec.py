"""Requests and replies as bytes, and the values that they carry.

What a message may hold is known from the cut: exactly the values of its ports, each as it is or
narrower. A tensor stays encoded until a program reads it; one that is only passed on is passed on
as it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from ...compiler.ir import Array
from ...wire import subgraph_pb2 as pb
from ..cut.program_split import Port
from ..cut.wire_formats import Encoded, WireError, check, decode, encode
from .frames.stream import StreamError
from .machines.part_ports import Link
from .request_limits import MESSAGE_BYTES_FLAT, MESSAGE_BYTES_MAX, TENSOR_BYTES_FLAT, TENSORS_MAX

#: Numbers of fields (proto/subgraph.proto): a request's and a reply's tensors, a tensor's content.
_INPUTS, _OUTPUTS, _CONTENT = 5, 4, 4
#: Bytes of the wire's fixed kinds.
_FIXED_BYTES = {1: 8, 5: 4}

#: Values by their number in the cut's program: as programs have them, or as they came.
Values = dict[int, Any]


def bytes_max(ports: Sequence[Port]) -> int:
    """How long a message of these ports can be: a narrow wire may fall back to the full one."""
    tensors = sum(port.type.nbytes + TENSOR_BYTES_FLAT for port in ports)
    return min(MESSAGE_BYTES_FLAT + tensors, MESSAGE_BYTES_MAX)


def array_of(values: Values, port: Port) -> Array:
    """A value as programs have it; decoded once. Raises WireError."""
    value = values[port.value]
    if isinstance(value, Encoded):
        value = values[port.value] = decode(value, port.type)
    array: Array = value
    return array


def tensors_of(values: Mapping[int, Any], ports: Sequence[Port]) -> list[pb.BoundaryTensor]:
    """The values of ports as they travel."""
    made = []
    for port in ports:
        value = values[port.value]
        encoded = value if isinstance(value, Encoded) else encode(value, port.wire)
        made.append(
            pb.BoundaryTensor(
                index=port.value,
                dtype=encoded.dtype,
                shape=port.type.shape,
                content=encoded.content,
                scale=encoded.scale,
                zero_point=encoded.zero_point,
            )
        )
    return made


def values_of(tensors: Sequence[pb.BoundaryTensor], ports: Sequence[Port]) -> Values:
    """What came, checked against the ports but not decoded.

    A run of several requests must not fail for one of them, nor this node be blamed for what it
    passes on. Raises WireError.
    """
    if len(tensors) != len(ports):
        raise WireError(f"{len(tensors)} tensors for a boundary of {len(ports)}")
    made: Values = {}
    for tensor, port in zip(tensors, ports, strict=True):
        if tensor.index != port.value or tuple(tensor.shape) != port.type.shape:
            raise WireError(f"value {tensor.index} does not fit value {port.value}: {port.type}")
        came = Encoded(tensor.dtype, tensor.content, tensor.scale, tensor.zero_point)
        check(came, port.type)
        made[port.value] = came
    return made


def request_bytes(
    session: int, sequence: int, tensors: Sequence[pb.BoundaryTensor], time_ms: int
) -> bytes:
    """A request; it is answered once."""
    made = pb.SubgraphRequest(session=session, sequence=sequence, inputs=tensors, time_ms=time_ms)
    return made.SerializeToString()


def check_flat(content: bytes | bytearray, tensors: int) -> None:
    """Whether a message is made of tensors' contents and little else, as `bytes_max` has it.

    An empty tensor of two bytes would become a hundred when it is parsed, and a byte of a shape
    eight: so what came is walked through before it is parsed. tensors: the number of their field.
    Raises StreamError.
    """
    view, flat = memoryview(content), 0
    for number, begin, start, end in _fields(view, TENSORS_MAX + MESSAGE_BYTES_FLAT):
        if number != tensors:
            flat += end - begin
            continue
        inner = _fields(view[start:end], TENSOR_BYTES_FLAT)
        held = sum(e - s for n, _, s, e in inner if n == _CONTENT)
        if end - begin - held > TENSOR_BYTES_FLAT:
            raise StreamError("malformed", "tensors that are none")
    if flat > MESSAGE_BYTES_FLAT:
        raise StreamError("malformed", "a message of names and numbers")


def _fields(content: memoryview, most: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of an encoded message.

    The number, where the field begins, where what it holds does, and where both end. Raises
    StreamError for what is none, and after so many.
    """
    at, size, left = 0, len(content), most
    while at < size:
        left -= 1
        if left < 0:
            raise StreamError("malformed", "a message of too many fields")
        begin = at
        tag, start = _varint(content, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(content, start)
        elif kind == 2:
            length, start = _varint(content, start)
            at = start + length
        elif kind in _FIXED_BYTES:
            at = start + _FIXED_BYTES[kind]
        else:
            raise StreamError("malformed", "a field of no kind that is used")
        if at > size:
            raise StreamError("malformed", "a message that ends in the middle")
        yield tag >> 3, begin, start, at


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """A number, and where the next thing begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            break
        byte = content[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise StreamError("malformed", "a number that does not end")


def request_of(content: bytes | bytearray) -> pb.SubgraphRequest:
    """Raises StreamError."""
    check_flat(content, _INPUTS)
    try:
        return pb.SubgraphRequest.FromString(bytes(content))
    except DecodeError:
        raise StreamError("malformed") from None


def reply_bytes(
    session: int,
    sequence: int,
    failure: pb.SubgraphFailure,
    tensors: Sequence[pb.BoundaryTensor] = (),
    held_us: int = 0,
    above: pb.SubgraphLink | None = None,
) -> bytes:
    """A reply."""
    made = pb.SubgraphReply(
        session=session,
        sequence=sequence,
        failure=failure,
        outputs=tensors,
        held_us=held_us,
        above=above,
    )
    return made.SerializeToString()


def reply_of(content: bytes | bytearray) -> pb.SubgraphReply:
    """Raises StreamError."""
    check_flat(content, _OUTPUTS)
    try:
        return pb.SubgraphReply.FromString(bytes(content))
    except DecodeError:
        raise StreamError("malformed") from None


def link_message(link: Link | None) -> pb.SubgraphLink | None:
    """The link in a message; None: it has none."""
    if link is None:
        return None
    return pb.SubgraphLink(up=link.up, down=link.down, latency_s=link.latency_s)


def link_of(said: Any, field: str = "above") -> Link | None:
    """What a message says of the link above; None: nothing, or nothing that can be."""
    if not said.HasField(field):
        return None
    link: pb.SubgraphLink = getattr(said, field)
    if not (0 < link.up < 1e13 and 0 < link.down < 1e13 and 0 <= link.latency_s < 60):
        return None
    return Link(link.up, link.down, link.latency_s)
