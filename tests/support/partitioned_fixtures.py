"""A device, an edge and a cloud in one event loop, joined by gRPC on loopback, with programs that
the reference interpreter runs: nothing is compiled.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from delian.core.compiler.parse import parse_function
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_guard import claim
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.switch import Switch
from delian.core.placement.cut.cut import Cut
from delian.core.placement.cut.value_graph import depends
from delian.core.placement.cut.wire_formats import encode
from delian.core.placement.subgraphs.frames.stream import FrameStream, Whole
from delian.core.placement.subgraphs.frames.stream_client import Upstream
from delian.core.placement.subgraphs.frames.stream_service import RUN
from delian.core.placement.subgraphs.machines.asker import Asker, AskerSettings
from delian.core.placement.subgraphs.machines.part_ports import Course, Link, Work
from delian.core.placement.subgraphs.machines.request_table import Local
from delian.core.placement.subgraphs.part_programs import Model, Programs
from delian.core.placement.subgraphs.parts_host import PartsHost
from delian.core.placement.subgraphs.request_driver import AskingDriver
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire.subgraph_pb2 import (
    BoundaryTensor,
    SubgraphChunk,
    SubgraphFrame,
    SubgraphOpen,
    SubgraphOpened,
    SubgraphReply,
    SubgraphRequest,
)

WAIT_S = 120.0  # only so that nothing hangs
DEVICE, OTHER, EDGE = Node(Tier.DEVICE, 3), Node(Tier.DEVICE, 4), Node(Tier.EDGE, 1)
#: Two layers, and a value that skips one of them.
PROGRAM = """
fn infer(%0 w: f32[6,8], %1 v: f32[8,5], %2 x: f32[4,6]) -> (result: f32[4,5]) {
  %3: f32[4,8] = dot(%2, %0) {contract_a=[1], contract_b=[0], batch_a=[], batch_b=[]}
  %4: f32[4,8] = tanh(%3)
  %5: f32[4,8] = mul(%4, %3)
  %6: f32[4,5] = dot(%5, %1) {contract_a=[1], contract_b=[0], batch_a=[], batch_b=[]}
  %7: f32[4,5] = tanh(%6)
  return %7
}
"""
LINK = Link(up=1e9, down=1e9, latency_s=1e-4)


async def until(condition) -> None:
    """Waits until something is so; a test that waits in vain fails."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def make_model(seed: int = 1) -> Model:
    rng = np.random.default_rng(seed)
    leaves = tuple(rng.standard_normal(s).astype(np.float32) for s in ((6, 8), (8, 5)))
    return Model(bytes(32), bytes([seed]) * 32, "infer", parse_function(PROGRAM), leaves)


def cuts_of(model: Model, tiers: int = 3, wire: str = "f32") -> list[Cut]:
    """Every cut of a chain of operations into tiers that never come back down."""
    count = len(depends(model.function, model.resident))
    values = {3 + n: wire for n in range(count)}
    made = []
    for first in range(count + 1):
        for second in range(first, count + 1 if tiers == 3 else first + 1):
            labels = (0,) * first + (1,) * (second - first) + (2,) * (count - second)
            if tiers == 2:
                labels = (0,) * first + (1,) * (count - first)
            made.append(Cut(labels, values, program="infer"))
    return made


class Upper:
    """An edge or the cloud."""

    def __init__(self, node, models, above=None) -> None:
        self.node = node
        guard = Guard("insecure", node.tier)
        self.parts = PartsHost(
            models, node, guard, "insecure", False, above and (CLOUD, above), backend="reference"
        )
        self.hub = GrpcHub(
            Switch(), "127.0.0.1:0", None, guard, servicers=(self.parts.service.add,)
        )

    async def __aenter__(self):
        self.address = f"127.0.0.1:{await self.hub.start()}"
        self.parts.driver.start()
        return self

    async def __aexit__(self, *_):
        await self.hub.close()
        await self.parts.close()


@contextlib.asynccontextmanager
async def both(model):
    """A cloud, and an edge below it."""
    async with (
        Upper(CLOUD, [model]) as cloud,
        Upper(EDGE, [model], cloud.address) as edge,
    ):
        yield cloud, edge


@contextlib.asynccontextmanager
async def device(
    model, cuts, home, *, local_s=1e6, node=DEVICE, settings=None, upstream=None, link=LINK
):
    """A device that prefers to ask, for alone it would take `local_s`."""
    programs = Programs("reference")
    prepared = {bytes.fromhex(c.digest()): programs.prepare(model, c, 0) for c in cuts}
    courses = []
    for name, made in prepared.items():
        course = made.course(name, [1e-4] * made.parts.top)
        if course.legs:
            courses.append(Course(name, course.before, None, course.seconds, course.legs, local_s))
    asker = Asker(courses, Local(whole=local_s), link, (), settings or AskerSettings())
    records = []
    driver = AskingDriver(
        model,
        prepared,
        asker,
        programs,
        upstream or (home and (lambda owner: Upstream(node, [(EDGE, home)], owner, None))),
        on_record=records.append,
    )
    driver.start()
    try:
        yield SimpleNamespace(
            driver=driver,
            asker=asker,
            records=records,
            courses=courses,
            prepared=prepared,
            open=lambda: all(asker.upper.usable(c.cut) for c in courses),
        )
    finally:
        await driver.close()


MALLORY = Node(Tier.DEVICE, 66)


class Raw:
    """A client that says whatever a test wants."""

    def __init__(self, call) -> None:
        self.call = call
        self.reader = FrameStream(self.put, lambda key, size: True)

    async def put(self, content):
        await self.call.write(content)

    async def say(self, **frame):
        await self.put(SubgraphFrame(**frame).SerializeToString())

    async def request(self, session, sequence, tensors, **more):
        content = SubgraphRequest(session=session, sequence=sequence, inputs=tensors, **more)
        whole = content.SerializeToString()
        chunk = SubgraphChunk(session=session, sequence=sequence, size=len(whole), content=whole)
        await self.say(chunk=chunk)

    async def hears(self, kind):
        """The next opening's answer, or the next reply."""
        async with asyncio.timeout(WAIT_S):
            while (content := await self.call.read()) is not grpc.aio.EOF:
                if SubgraphFrame.FromString(content).HasField("taken"):
                    continue  # of what was not sent by the reader
                came = self.reader.take(content)
                if isinstance(came, Whole) and kind is SubgraphReply:
                    return SubgraphReply.FromString(bytes(came.content))
                if isinstance(came, SubgraphFrame) and kind is SubgraphOpened:
                    return came.opened
        raise AssertionError("the stream has ended")

    async def opens(self, model, cut, session=1, changed=None):
        await self.say(open=SubgraphOpen(**{**opening(model, cut, session), **(changed or {})}))
        return await self.hears(SubgraphOpened)


def opening(model, cut, session=1):
    """The fields of a SubgraphOpen."""
    return {
        "session": session,
        "bundle": model.bundle,
        "weights": model.weights,
        "program": model.program,
        "cut": cut.to_bytes(),
        "tier": 1,
    }


@contextlib.asynccontextmanager
async def raw(address, node=MALLORY):
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(RUN)(metadata=claim(node))
        await call.initial_metadata()
        yield Raw(call)


def tensor(value, array):
    made = encode(array, "f32")
    return BoundaryTensor(index=value, dtype="f32", shape=array.shape, content=made.content)


async def by_parts(asking, x):
    """An answer that the tiers gave together: on a busy machine the upper one may be given up, and
    is asked again after a while.
    """
    async with asyncio.timeout(WAIT_S):
        while True:
            answered = await asking.driver.request((x,), 10.0)
            if answered.by is Work.PART:
                return answered
            await asyncio.sleep(0.05)


def whole(model, x):
    """What the program gives, by the same interpreter."""
    return Programs("reference").whole(model)(*model.leaves, x)[0]


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def x():
    return np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)


@pytest.fixture
def tiers():
    """What tests of this folder are written with."""
    return SimpleNamespace(
        Upper=Upper,
        both=both,
        device=device,
        until=until,
        cuts_of=cuts_of,
        make_model=make_model,
        whole=whole,
        by_parts=by_parts,
        WAIT_S=WAIT_S,
        EDGE=EDGE,
        DEVICE=DEVICE,
        OTHER=OTHER,
        raw=raw,
        opening=opening,
        tensor=tensor,
        guard=Guard("insecure", Tier.EDGE),
    )
