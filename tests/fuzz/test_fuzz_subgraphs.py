"""Frames, requests and replies of anybody: taken, or refused with an error that says so."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest
from delian.core.compiler.ir import DType, TensorType
from delian.core.placement.cut.program_split import Port
from delian.core.placement.cut.wire_formats import WireError
from delian.core.placement.subgraphs import request_codec
from delian.core.placement.subgraphs.frames.stream import FrameStream, StreamError
from delian.core.wire.subgraph_pb2 import (
    SubgraphChunk,
    SubgraphFrame,
    SubgraphProbe,
    SubgraphRequest,
)
from hypothesis import given, settings
from hypothesis import strategies as st

PORTS = (Port(3, TensorType(DType.F32, (4, 8)), "i8"), Port(7, TensorType(DType.U8, (5,)), "u8"))
HONEST = request_codec.request_bytes(
    1,
    2,
    request_codec.tensors_of({3: np.ones((4, 8), np.float32), 7: np.zeros(5, np.uint8)}, PORTS),
    100,
)
FRAMES = [
    SubgraphFrame(
        chunk=SubgraphChunk(session=1, sequence=2, size=len(HONEST), content=HONEST)
    ).SerializeToString(),
    SubgraphFrame(
        probe=SubgraphProbe(number=1, padding=b"abc", answer_bytes=9)
    ).SerializeToString(),
]


def changed(content: bytes, edits: list[tuple[int, int]]) -> bytes:
    out = bytearray(content)
    for place, value in edits:
        out[place % len(out)] = value
    return bytes(out)


EDITS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=200), st.tuples(st.sampled_from(FRAMES), EDITS)), max_size=8
    )
)
def test_whatever_comes_on_a_stream_is_taken_or_refused(said):
    async def run():
        async def write(content):
            pass

        stream = FrameStream(write, lambda key, size: size < 10_000)
        for one in said:
            content = one if isinstance(one, bytes) else changed(*one)
            with contextlib.suppress(StreamError):
                stream.take(content)
            assert 0 <= stream.held < 10_000 * len(said)

    asyncio.run(run())


@settings(max_examples=150, deadline=None)
@given(EDITS, st.integers(0, len(HONEST)))
def test_a_request_fits_its_ports_or_is_refused(edits, end):
    content = changed(HONEST, edits)[:end]
    try:
        said = request_codec.request_of(content)
        values = request_codec.values_of(said.inputs, PORTS)
        for port in PORTS:
            array = request_codec.array_of(values, port)
            assert array.shape == port.type.shape and array.dtype == port.type.dtype.numpy
    except (StreamError, WireError):
        pass


@settings(max_examples=100, deadline=None)
@given(EDITS, st.integers(0, 400))
def test_a_reply_of_a_home_is_read_or_refused(edits, end):
    made = request_codec.reply_bytes(
        1,
        2,
        0,
        request_codec.tensors_of({3: np.ones((4, 8), np.float32), 7: np.zeros(5, np.uint8)}, PORTS),
        17,
    )
    try:
        said = request_codec.reply_of(changed(made, edits)[:end])
        request_codec.values_of(said.outputs, PORTS)
        request_codec.link_of(said)
    except (StreamError, WireError):
        pass


def held(number: int, content: bytes) -> bytes:
    """A field of an encoded message: 10,000 bytes or so, a length of two."""
    assert 128 <= len(content) < 1 << 14
    return bytes((number << 3 | 2, len(content) & 127 | 128, len(content) >> 7)) + content


FLOODS = [
    b"\x2a\x00" * 10_000,  # tensors with nothing in them
    b"\x08\x01" * 10_000,  # sessions
    held(5, b"\x22\x00" * 5_000),  # contents of one tensor
    held(5, held(3, bytes(10_000))),  # sizes of one shape
    held(4, b"p" * 10_000),  # a program's name
]


@pytest.mark.parametrize("flood", FLOODS)
def test_a_message_that_would_grow_when_it_is_parsed_is_not_parsed(flood):
    SubgraphRequest.FromString(HONEST + flood)  # which is a request by the format
    with pytest.raises(StreamError):
        request_codec.request_of(HONEST + flood)


BROKEN = [("scale", float("nan")), ("scale", 0.0), ("scale", float("inf")), ("zero_point", 500)]


@pytest.mark.parametrize(("name", "number"), BROKEN)
def test_numbers_that_no_tensor_is_written_by_are_refused_when_they_come(name, number):
    said = request_codec.request_of(HONEST)
    assert said.inputs[0].dtype == "i8"
    setattr(said.inputs[0], name, number)
    with pytest.raises(WireError):
        request_codec.values_of(said.inputs, PORTS)


def test_a_message_is_no_longer_than_its_ports_allow():
    full = request_codec.tensors_of(
        {3: np.ones((4, 8), np.float32), 7: np.zeros(5, np.uint8)},
        [Port(p.value, p.type, p.type.dtype.value) for p in PORTS],
    )
    assert len(request_codec.request_bytes(2**63, 2**63, full, 2**31)) <= request_codec.bytes_max(
        PORTS
    )
