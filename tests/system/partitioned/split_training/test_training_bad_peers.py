"""What a host of trainings takes from a peer that does not keep to the rules: nothing."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest
from delian.core.compiler import random, tree
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.nn import Mlp, sgd
from delian.core.placement.cut.cut import DEVICE, EDGE
from delian.core.placement.cut.owned_weights import cut_at
from delian.core.placement.cut.wire_formats import encode
from delian.core.placement.split_training.step_bundle import PROGRAM, StepBundle
from delian.core.placement.split_training.training_service import TrainingHost
from delian.core.placement.split_training.trainings import Trainings
from delian.core.placement.subgraphs.frames.stream import FrameStream, StreamError, Whole
from delian.core.placement.subgraphs.frames.stream_service import Line
from delian.core.placement.subgraphs.request_codec import (
    bytes_max,
    reply_bytes,
    reply_of,
    tensors_of,
)
from delian.core.wire.subgraph_pb2 import (
    SUBGRAPH_BUSY,
    SUBGRAPH_COPIES,
    SUBGRAPH_DONE,
    SUBGRAPH_LOST,
    SUBGRAPH_MISFIT,
    SUBGRAPH_UNKNOWN,
    BoundaryTensor,
    SubgraphFrame,
    SubgraphOpen,
    SubgraphRequest,
    SubgraphTraining,
)

HOMES = {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE, 4: DEVICE, 5: DEVICE}
B = 6


class World:
    """A host, and peers' lines to it that end here."""

    def __init__(self):
        task = Classification("net", lambda key: Mlp.init(key, 5, (4, 8), 3), Samples(B, 1.0))
        x, y = TensorType(DType.F32, (B, 5)), TensorType(DType.I64, (B,))
        model = task.init(random.key(3))
        self.bundle = StepBundle.of(task, sgd(0.1), model, x, y, labels_stay=True)
        self.trainings = Trainings(
            self.bundle, cut_at(self.bundle.step, HOMES), backend="reference"
        )
        self.host = TrainingHost(self.trainings)
        leaves = [np.asarray(a) for a in tree.leaves(model)]
        self.above = {i: leaves[i] for i in (2, 3)}
        self.host.begin(self.above)
        self.lines = 0

    def line(self, name="device-1"):
        self.lines += 1
        line = Line(self.lines, name, None, lambda: None)
        line.opened, line.replies, line.incoming = [], [], []

        async def write(content):
            came = line.far.take(content)
            if isinstance(came, Whole):
                line.replies.append(reply_of(came.content))
            elif came is not None:
                line.opened.append(came.opened)

        async def nothing(content):
            pass

        line.far = FrameStream(nothing, lambda key, size: True)
        line.stream = FrameStream(write, lambda key, size: self.host.admit(line, key, size))
        self.host.came(line)
        return line

    def opening(self, session=1, run=b"r" * 16, **more):
        training = SubgraphTraining(run=run, steps=2, examples=10, sharing=SUBGRAPH_COPIES)
        made = {
            "bundle": bytes.fromhex(self.bundle.content_hash()),
            "program": PROGRAM,
            "cut": self.trainings.cut.to_bytes(),
            "tier": 1,
            "training": training,
        }
        return SubgraphFrame(open=SubgraphOpen(session=session, **{**made, **more}))

    def request(self, session=1, sequence=1, **more):
        message, _ = self.trainings.turns[max(sequence - 1, 0) % len(self.trainings.turns)]
        values = {
            p.value: encode(np.full(p.type.shape, 0.5, np.float32), p.wire) for p in message.ports
        }
        made = {"inputs": tensors_of(values, message.ports), "phase": message.turn}
        said = SubgraphRequest(session=session, sequence=sequence, **{**made, **more})
        return Whole((session, sequence), bytearray(said.SerializeToString()))

    async def settle(self, *lines):
        """Until what is run is done and what is said has come."""
        while self.host._tasks:
            await asyncio.gather(*self.host._tasks)
        for line in lines:
            writer = asyncio.create_task(line.stream.run())
            await asyncio.sleep(0.02)
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer


def tell(story):
    async def run():
        world = World()
        try:
            await story(world)
        finally:
            await world.host.close()

    asyncio.run(run())


def test_a_well_behaved_peer_is_answered():
    async def story(world):
        line = world.line()
        world.host.said(line, world.opening())
        request = world.request()
        assert world.host.admit(line, request.key, len(request.content))
        world.host.asked(line, request)
        await world.settle(line)
        assert [o.failure for o in line.opened] == [SUBGRAPH_DONE]
        assert [r.failure for r in line.replies] == [SUBGRAPH_DONE]

    tell(story)


def test_requests_out_of_turn_or_too_large_are_refused_before_there_is_room_for_them():
    async def story(world):
        line = world.line()
        assert not world.host.admit(line, (1, 1), 100), "nothing is open"
        world.host.said(line, world.opening())
        for key in ((1, 0), (1, 2), (1, 5), (1, 2**40), (2, 1)):
            assert not world.host.admit(line, key, 100), key
        largest = bytes_max(world.trainings.turns[0][0].ports)
        assert world.host.admit(line, (1, 1), largest)
        with pytest.raises(StreamError):
            world.host.admit(line, (1, 1), largest + 1)
        await world.settle(line)
        assert {r.failure for r in line.replies} == {SUBGRAPH_UNKNOWN}

    tell(story)


def test_requests_that_do_not_fit_move_nothing():
    async def story(world):
        line = world.line()
        world.host.said(line, world.opening())
        right = SubgraphRequest.FromString(bytes(world.request().content))
        wrong = [
            {"phase": 1},
            {"inputs": []},
            {"inputs": [*right.inputs, *right.inputs]},
            {"session": 9},
        ]
        for more in wrong:
            request = world.request(**more)
            with pytest.raises(StreamError):
                world.host.asked(line, Whole((1, 1), request.content))
        with pytest.raises(StreamError):
            world.host.asked(line, Whole((1, 1), bytearray(b"\xff\xff\xff")))
        await world.settle(line)
        assert [r.failure for r in line.replies] == [SUBGRAPH_MISFIT] * 5
        (training,) = world.trainings._trainings.values()
        assert training.turn == 0 and not training.running

    tell(story)


@pytest.mark.parametrize(
    ("more", "failure"),
    [
        ({"bundle": bytes(32)}, SUBGRAPH_UNKNOWN),
        ({"program": "infer"}, SUBGRAPH_UNKNOWN),
        ({"cut": b"other"}, SUBGRAPH_MISFIT),
        ({"tier": 2}, SUBGRAPH_MISFIT),
        ({"training": None}, SUBGRAPH_MISFIT),
        ({"training": SubgraphTraining(run=b"r" * 16, steps=1, examples=1)}, SUBGRAPH_MISFIT),
        (
            {"training": SubgraphTraining(run=b"", steps=1, examples=1, sharing=SUBGRAPH_COPIES)},
            SUBGRAPH_MISFIT,
        ),
    ],
)
def test_openings_of_something_else_are_refused(more, failure):
    async def story(world):
        line = world.line()
        world.host.said(line, world.opening(**more))
        assert not world.host.admit(line, (1, 1), 100)
        await world.settle(line)
        assert [o.failure for o in line.opened] == [failure]
        assert not world.trainings._trainings

    tell(story)


def test_one_nodes_name_is_no_way_to_anothers_training():
    async def story(world):
        mine, thief = world.line("device-1"), world.line("device-2")
        world.host.said(mine, world.opening())
        again = SubgraphTraining(
            run=b"r" * 16, again=True, steps=2, examples=10, sharing=SUBGRAPH_COPIES
        )
        world.host.said(thief, world.opening(training=again))
        await world.settle(mine, thief)
        assert [o.failure for o in mine.opened] == [SUBGRAPH_DONE]
        assert [o.failure for o in thief.opened] == [SUBGRAPH_LOST]

    tell(story)


def test_a_stream_that_comes_later_takes_the_training_over():
    async def story(world):
        old, new = world.line(), world.line()
        for line in (old, new):
            world.host.said(line, world.opening())
        assert not world.host.admit(old, (1, 1), 100)
        request = world.request()
        world.host.asked(new, request)
        world.host.asked(new, request)
        await world.settle(old, new)
        assert [r.failure for r in new.replies] == [SUBGRAPH_DONE]
        assert [r.failure for r in old.replies] == [SUBGRAPH_UNKNOWN]

    tell(story)


def test_who_takes_no_replies_gets_no_more_of_them(monkeypatch):
    async def story(world):
        line = world.line()
        world.host.said(line, world.opening())
        monkeypatch.setattr(
            "delian.core.placement.split_training.training_service.HELD_BYTES_PER_PEER", 2_000
        )
        large = [BoundaryTensor(content=bytes(3_000))]
        line.stream.send((7, 7), reply_bytes(7, 7, SUBGRAPH_DONE, large))
        assert not world.host.admit(line, (1, 1), 100)
        await world.settle(line)
        assert SUBGRAPH_BUSY in {r.failure for r in line.replies if r.session == 1}

    tell(story)
