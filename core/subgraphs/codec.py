"""Requests and replies as bytes, and the values that they carry.

What a message may hold is known from the cut: exactly the values of its ports, each as it is or
narrower. A tensor stays encoded until a program reads it; one that is only passed on is passed on
as it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from ..ir import Array
from ..placement.split import Port
from ..placement.wires import Encoded, WireError, decode, encode, wire_bytes, wires_of
from ..wire.subgraph_pb2 import (
    BoundaryTensor,
    SubgraphFailure,
    SubgraphLink,
    SubgraphReply,
    SubgraphRequest,
)
from .limits import MESSAGE_BYTES_FLAT, MESSAGE_BYTES_MAX, TENSOR_BYTES_FLAT
from .ports import Link
from .stream import StreamError

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


def tensors_of(values: Mapping[int, Any], ports: Sequence[Port]) -> list[BoundaryTensor]:
    """The values of ports as they travel."""
    made = []
    for port in ports:
        value = values[port.value]
        encoded = value if isinstance(value, Encoded) else encode(value, port.wire)
        made.append(
            BoundaryTensor(
                index=port.value,
                dtype=encoded.dtype,
                shape=port.type.shape,
                content=encoded.content,
                scale=encoded.scale,
                zero_point=encoded.zero_point,
            )
        )
    return made


def values_of(tensors: Sequence[BoundaryTensor], ports: Sequence[Port]) -> Values:
    """What came, checked against the ports but not decoded. Raises WireError."""
    if len(tensors) != len(ports):
        raise WireError(f"{len(tensors)} tensors for a boundary of {len(ports)}")
    made: Values = {}
    for tensor, port in zip(tensors, ports, strict=True):
        if tensor.index != port.value or tuple(tensor.shape) != port.type.shape:
            raise WireError(f"value {tensor.index} does not fit value {port.value}: {port.type}")
        if tensor.dtype not in wires_of(port.type):
            raise WireError(f"a tensor {port.type} came as {tensor.dtype[:8]}")
        if len(tensor.content) != wire_bytes(port.type, tensor.dtype):
            raise WireError(f"a tensor {port.type} came as {len(tensor.content)} bytes")
        made[port.value] = Encoded(tensor.dtype, tensor.content, tensor.scale, tensor.zero_point)
    return made


def request_bytes(
    session: int, sequence: int, tensors: Sequence[BoundaryTensor], time_ms: int
) -> bytes:
    """A request; it is answered once."""
    made = SubgraphRequest(session=session, sequence=sequence, inputs=tensors, time_ms=time_ms)
    return made.SerializeToString()


def request_of(content: bytes | bytearray) -> SubgraphRequest:
    """Raises StreamError."""
    try:
        return SubgraphRequest.FromString(bytes(content))
    except DecodeError:
        raise StreamError("malformed") from None


def reply_bytes(
    session: int,
    sequence: int,
    failure: SubgraphFailure,
    tensors: Sequence[BoundaryTensor] = (),
    held_us: int = 0,
    above: SubgraphLink | None = None,
) -> bytes:
    """A reply."""
    made = SubgraphReply(
        session=session,
        sequence=sequence,
        failure=failure,
        outputs=tensors,
        held_us=held_us,
        above=above,
    )
    return made.SerializeToString()


def reply_of(content: bytes | bytearray) -> SubgraphReply:
    """Raises StreamError."""
    try:
        return SubgraphReply.FromString(bytes(content))
    except DecodeError:
        raise StreamError("malformed") from None


def link_message(link: Link | None) -> SubgraphLink | None:
    """A link as it is told; None: it is not."""
    if link is None:
        return None
    return SubgraphLink(up=link.up, down=link.down, latency_s=link.latency_s)


def link_of(said: Any, field: str = "above") -> Link | None:
    """What a message says of the link above; None: nothing, or nothing that can be."""
    if not said.HasField(field):
        return None
    link: SubgraphLink = getattr(said, field)
    if not (0 < link.up < 1e13 and 0 < link.down < 1e13 and 0 <= link.latency_s < 60):
        return None
    return Link(link.up, link.down, link.latency_s)
