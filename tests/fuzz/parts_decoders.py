"""What partitioned execution reads from outside: cuts, plans, profiles, links, frames; and
a node that serves parts, spoken to by somebody who may say anything.

Each is (what reads it, good inputs, what it may raise), for `decoders.py`.
"""

from __future__ import annotations

import asyncio
import base64
import io
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from delian.cli.programs.row_files import rows_of
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import DType, TensorType
from delian.core.compiler.parse import parse_function
from delian.core.compiler.random import key
from delian.core.learning import Classification, Samples
from delian.core.learning.nn import Mlp, sgd
from delian.core.placement.cut.costs import op_seconds
from delian.core.placement.cut.cut import Cut, CutError
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.cut.placement_plan import Piece, PlacementPlan
from delian.core.placement.cut.profile import NodeProfile, Sample
from delian.core.placement.cut.program_split import Port, check, split
from delian.core.placement.cut.value_graph import depends
from delian.core.placement.cut.wire_formats import WireError
from delian.core.placement.split_training.step_bundle import StepBundle
from delian.core.placement.subgraphs import request_codec
from delian.core.placement.subgraphs.frames.enveloped import _Visit
from delian.core.placement.subgraphs.frames.stream import FrameStream, StreamError, Whole
from delian.core.placement.subgraphs.frames.stream_service import Line
from delian.core.placement.subgraphs.machines.part_server import Server, ServerSettings
from delian.core.placement.subgraphs.part_programs import Model, Prepared, Programs
from delian.core.placement.subgraphs.part_server_driver import ServingDriver
from delian.core.placement.subgraphs.request_limits import HELD_BYTES_PER_PEER
from delian.core.wire.subgraph_pb2 import (
    SubgraphCancel,
    SubgraphChunk,
    SubgraphClose,
    SubgraphFrame,
    SubgraphOpen,
    SubgraphProbe,
    SubgraphProbed,
    SubgraphTaken,
)
from delian.simulations.placement.links_over_time import read_trace
from google.protobuf.message import DecodeError

FUNCTION = parse_function("""
fn infer(%0 w: f32[6,8], %1 v: f32[8,5], %2 x: f32[4,6]) -> (result: f32[4,5]) {
  %3: f32[4,8] = dot(%2, %0) {contract_a=[1], contract_b=[0], batch_a=[], batch_b=[]}
  %4: f32[4,8] = tanh(%3)
  %5: f32[4,8] = mul(%4, %3)
  %6: f32[4,5] = dot(%5, %1) {contract_a=[1], contract_b=[0], batch_a=[], batch_b=[]}
  %7: f32[4,5] = tanh(%6)
  return %7
}
""")
LEAVES = range(2)
PORTS = (
    Port(3, TensorType(DType.F32, (4, 8)), "i8"),
    Port(7, TensorType(DType.BOOL, (5,)), "bool"),
)
MESSAGE_BYTES = 10_000


def cuts() -> list[Cut]:
    assert len(depends(FUNCTION, LEAVES)) == 5
    return [
        Cut((0, 1, 1, 2, 2), {3: "i8", 5: "f16"}, "ab" * 32, "infer"),
        Cut((0, 0, 0, 0, 0), program="infer"),
        Cut((1, 1, 1, 1, 1), {2: "f16"}, program="infer"),
    ]


def read_cut(data: bytes) -> object:
    cut = Cut.from_bytes(data)
    assert cut.to_bytes() == data
    parts = split(FUNCTION, LEAVES, cut)
    check(FUNCTION, LEAVES, cut, ceilings={2: 2})
    assert sum(len(p.program.body.ops) for p in parts.parts) == 5
    return parts


# ---------------------------------------------------------------- files


def plans() -> list[bytes]:
    links = (LinkProfile(1e6, 2e6, 0.01), LinkProfile(1e7, 1e7, 0.001))
    pieces = [
        Piece(1e4, 1e6, cuts()[1].to_bytes(), (1e-3, 0, 0), (0, 0), (0, 0), (0, 0), (64, 0, 0)),
        Piece(1e6, 1e9, cuts()[0].to_bytes(), (1e-3,) * 3, (9, 9), (9, 9), (1e-6,) * 2, (64,) * 3),
    ]
    return [
        PlacementPlan("ab" * 32, "infer", ("p",) * 3, links, "latency", tuple(pieces))
        .to_json()
        .encode()
    ]


def read_plan(data: bytes) -> object:
    plan = PlacementPlan.from_json(data)
    for piece in plan.pieces:
        assert np.isfinite(piece.seconds(plan.links))
    split(FUNCTION, LEAVES, Cut.from_bytes(plan.pieces[plan.at(1e5)].cut))
    return plan.digest()


def profiles() -> list[bytes]:
    samples = {
        "loop": (Sample((1000.0, 10.0, 4.0), 4e-5), Sample((10.0, 10.0, 4.0), 4e-7)),
        "product": (Sample((8.0, 10.0, 10.0, 1.0), 1.6e-5),),
    }
    made = NodeProfile(
        *("a node", "a processor", "2026-01-01", 1, samples, {"tanh": 1e-9}, 1e9, 1 << 30),
        *(1e-6, 1e-8, {"f32": 0.0, "f16": 1e-9, "i8": 1e-9}, 3.0, 1e-7, {"ab": (1e-3, 2e-3)}),
    )
    return [made.to_json().encode()]


def read_profile(data: bytes) -> object:
    profile = NodeProfile.from_json(data)
    assert all(s >= 0 for s in op_seconds(FUNCTION, profile))
    return profile.scaled(2.0).digest()


def _in_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def named(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            path.write_bytes(data)
            return read(path)

    return named


def read_links(path: Path) -> object:
    trace = read_trace(path, 20.0, 2.0)
    assert trace.sent_at(10**9, 100.0, True) >= 10**9
    return trace.mean_up() > 0


def rows() -> list[bytes]:
    made = io.BytesIO()
    np.savez(made, x=np.zeros((2, 3), np.float32))
    plain = io.BytesIO()
    np.save(plain, np.zeros((2, 3), np.float32))
    return [made.getvalue(), plain.getvalue()]


@cache
def steps() -> list[bytes]:
    task = Classification("fuzz", lambda k: Mlp.init(k, 2, (2,), 2), Samples(2, 1.0))
    x, y = TensorType(DType.F32, (2, 2)), TensorType(DType.I32, (2,))
    model = task.init(key(1))
    return [
        StepBundle.of(task, sgd(0.1), model, x, y, frozen=frozen).to_bytes()
        for frozen in ((), ("layers.0.*",))
    ]


# ---------------------------------------------------------------- frames


def _pieces(data: bytes) -> list[bytes]:
    """A sequence of messages: of each its length in two bytes, and it."""
    made, at = [], 0
    while at + 2 <= len(data):
        length = int.from_bytes(data[at : at + 2], "little")
        made.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    return made


def _joined(frames: list[SubgraphFrame]) -> bytes:
    said = [f.SerializeToString() for f in frames]
    return b"".join(len(s).to_bytes(2, "little") + s for s in said)


def request() -> bytes:
    values = {3: np.ones((4, 8), np.float32), 7: np.zeros(5, np.bool_)}
    return request_codec.request_bytes(1, 2, request_codec.tensors_of(values, PORTS), 100)


def replies() -> list[bytes]:
    values = {3: np.ones((4, 8), np.float32), 7: np.zeros(5, np.bool_)}
    return [request_codec.reply_bytes(1, 2, 0, request_codec.tensors_of(values, PORTS), 17)]


def _values(tensors: Any) -> object:
    values = request_codec.values_of(tensors, PORTS)
    for port in PORTS:  # what was taken can be decoded
        array = request_codec.array_of(values, port)
        assert array.shape == port.type.shape and array.dtype == port.type.dtype.numpy
    return values


def read_reply(data: bytes) -> object:
    said = request_codec.reply_of(data)
    request_codec.link_of(said)
    return _values(said.outputs)


def chunks() -> list[SubgraphFrame]:
    content = request()
    return [
        SubgraphFrame(chunk=SubgraphChunk(session=1, sequence=2, size=len(content), **piece))
        for piece in (
            {"offset": 0, "content": content[:20]},
            {"offset": 20, "content": content[20:]},
        )
    ]


def read_frames(data: bytes) -> object:
    """One end of a stream; what it holds is bounded by what was admitted."""

    async def run() -> int:
        async def write(_: bytes) -> None:
            return

        stream = FrameStream(write, lambda key, size: size < MESSAGE_BYTES)
        refused, said = 0, _pieces(data)
        stream.probe(10)
        stream.send((5, 5), b"something")
        for content in said:
            try:
                stream.take(content)
            except StreamError:
                refused += 1
            assert 0 <= stream.held < MESSAGE_BYTES * len(said) and stream.waiting < 1 << 24
        return refused

    return asyncio.run(run())


def enveloped(data: bytes) -> object:
    visit, taken = _Visit(3, lambda frame: None), 0
    for content in _pieces(data):
        frame = SubgraphFrame.FromString(content)
        taken += visit.read(frame) is not None
        assert visit.read(frame) is None, "twice"
    return taken


# ---------------------------------------------------------------- a node that serves parts


class Cached(Programs):
    """Cuts made ready once for all inputs, by the interpreter."""

    def __init__(self) -> None:
        super().__init__("reference")
        self.made: dict[tuple[bytes, int], Prepared] = {}

    def prepare(self, model: Model, cut: Cut, tier: int) -> Prepared:
        name = (cut.to_bytes(), tier)
        if name not in self.made:
            if len(self.made) > 500:
                self.made.clear()
            self.made[name] = super().prepare(model, cut, tier)
        return self.made[name]

    def measure(self, program: Any) -> float:
        return 1e-6


@cache
def node() -> tuple[Model, Cached]:
    leaves = (np.ones((6, 8), np.float32), np.ones((8, 5), np.float32))
    return Model(bytes(32), b"\x01" * 32, "infer", FUNCTION, leaves), Cached()


def visits() -> list[bytes]:
    model, _ = node()
    cut = Cut((0, 1, 1, 1, 1), {3: "i8"}, program="infer")
    opening = SubgraphOpen(
        session=1,
        bundle=model.bundle,
        weights=model.weights,
        program="infer",
        cut=cut.to_bytes(),
        tier=1,
    )
    port = Port(3, TensorType(DType.F32, (4, 8)), "i8")
    tensors = request_codec.tensors_of({3: np.ones((4, 8), np.float32)}, [port])
    frames = [SubgraphFrame(open=opening)]
    for sequence in (1, 2):
        content = request_codec.request_bytes(1, sequence, tensors, 9_000)
        chunk = SubgraphChunk(session=1, sequence=sequence, size=len(content), content=content)
        frames.append(SubgraphFrame(chunk=chunk))
    return [
        _joined(
            [
                *frames,
                SubgraphFrame(cancel=SubgraphCancel(session=1, sequence=2)),
                SubgraphFrame(probe=SubgraphProbe(number=1, padding=b"abc", answer_bytes=9)),
                SubgraphFrame(close=SubgraphClose(session=1)),
            ]
        )
    ]


def serve(data: bytes) -> object:
    """What a node says to one that may lie, and that nothing is left when it has gone."""

    async def run() -> list[bytes]:
        model, programs = node()
        machine = Server(ServerSettings(lanes=2, cuts=4, cuts_per_peer=3))
        driver = ServingDriver({model.name: model}, machine, programs)
        wrote: list[bytes] = []

        async def write(content: bytes) -> None:
            wrote.append(content)

        line = Line(1, "device-1", None, lambda: None)
        line.stream = FrameStream(write, lambda key, size: driver.admit(line, key, size))
        writer = asyncio.get_running_loop().create_task(line.stream.run())
        driver.came(line)
        try:
            for content in _pieces(data):
                try:
                    came = line.stream.take(content)
                    if isinstance(came, Whole):
                        driver.asked(line, came)
                    elif came is not None:
                        driver.said(line, came)
                except StreamError:
                    pass
                assert line.stream.held <= HELD_BYTES_PER_PEER
                if driver.preparing.under_way:
                    await asyncio.gather(*driver.preparing._tasks)
            driver.gone(line)
            held = SimpleNamespace(bytes=driver._held_bytes, peers=len(driver._peers))
            assert (held.bytes, held.peers, len(machine)) == (0, 0, 0)
        finally:
            writer.cancel()
            await driver.close()
        return wrote

    return asyncio.run(run())


def streams() -> list[bytes]:
    control = [
        SubgraphFrame(taken=SubgraphTaken(bytes=0, at_us=5)),
        SubgraphFrame(probe=SubgraphProbe(number=1, padding=b"abc", answer_bytes=9)),
        SubgraphFrame(probed=SubgraphProbed(number=1, at_us=9)),
    ]
    return [_joined([*chunks(), *control])]


def counted() -> list[bytes]:
    frames = chunks()
    for number, frame in enumerate(frames, 1):
        frame.visit, frame.count = 3, number
    return [_joined(frames)]


Found = tuple[Callable[[bytes], object], Callable[[], list[bytes]], tuple[type[Exception], ...]]

DECODERS: dict[str, Found] = {
    "cut": (read_cut, lambda: [c.to_bytes() for c in cuts()], (CutError,)),
    "placement plan": (read_plan, plans, (DelianError,)),
    "cut in a plan": (
        lambda data: read_plan(plans()[0].replace(base64.b64encode(cuts()[0].to_bytes()), data)),
        lambda: [base64.b64encode(cuts()[2].to_bytes())],
        (DelianError,),
    ),
    "node profile": (read_profile, profiles, (DelianError,)),
    "link": (
        lambda data: LinkProfile.parse(data.decode("utf-8", "replace")).text(),
        lambda: [b"5.85Mbit/s,20ms", b"5Mbit/s/20kB/s,0.5s,1%"],
        (DelianError,),
    ),
    "link trace": (
        _in_file(read_links),
        lambda: [b"seconds,mbps\n0,5.5\n1.5,0.2,30\n2,7\n"],
        (DelianError,),
    ),
    "rows": (_in_file(rows_of), rows, (DelianError,)),
    "step": (StepBundle.parse, steps, (DelianError,)),
    "frames of parts": (read_frames, streams, ()),
    "frames in envelopes": (enveloped, counted, (StreamError, DecodeError)),
    "request of a part": (
        lambda data: _values(request_codec.request_of(data).inputs),
        lambda: [request()],
        (StreamError, WireError),
    ),
    "reply of a part": (read_reply, replies, (StreamError, WireError)),
    "parts": (serve, visits, ()),
}
