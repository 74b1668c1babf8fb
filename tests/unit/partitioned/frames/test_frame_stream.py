"""Both ends of a stream of frames, joined in memory: chunks, turns, limits, windows, probes."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from delian.core.placement.subgraphs.frames import stream as streams
from delian.core.placement.subgraphs.frames.stream import FrameStream, StreamError, Whole
from delian.core.placement.subgraphs.request_limits import (
    CHUNK_BYTES_MAX,
    CONTROL_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_S,
    TAKEN_S,
)
from delian.core.wire.subgraph_pb2 import (
    SubgraphCancel,
    SubgraphChunk,
    SubgraphFrame,
    SubgraphProbe,
    SubgraphProbed,
    SubgraphTaken,
)


class Ends:
    """Two streams over a wire of `rate` bytes a second (of a clock that only the wire moves)."""

    def __init__(self, rate=None, admit=lambda key, size: True):
        self.now, self.rate = 0.0, rate
        self.wires = {"up": deque(), "down": deque()}
        self.got = {"up": [], "down": []}
        self.most_waiting = 0

        def clock():
            return self.now

        self.low = FrameStream(lambda c: self._put("up", c), admit, clock=clock)
        self.high = FrameStream(lambda c: self._put("down", c), admit, clock=clock)

    async def _put(self, way, content):
        self.wires[way].append(content)
        self.most_waiting = max(self.most_waiting, sum(map(len, self.wires["up"])))

    async def settle(self):
        """Until nobody has anything to say."""
        tasks = [asyncio.create_task(end.run()) for end in (self.low, self.high)]
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0)
            moved = False
            for way, end in (("up", self.high), ("down", self.low)):
                if self.wires[way]:
                    content = self.wires[way].popleft()
                    if self.rate:
                        self.now += len(content) / self.rate
                    came = end.take(content)
                    if came is not None:
                        self.got[way].append(came)
                    moved = True
            quiet = 0 if moved else quiet + 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(work):
    return asyncio.run(work())


def test_a_message_arrives_whole_whatever_its_size():
    async def work():
        for size in (1, 255, 4096, 100_000, 3_000_000):
            ends = Ends()
            content = bytes(range(256)) * (size // 256 + 1)
            ends.low.send((3, 4), content[:size])
            await ends.settle()
            assert ends.got["up"] == [Whole((3, 4), bytearray(content[:size]))]
            assert ends.low.waiting == 0 and ends.high.held == 0

    run(work)


def test_a_small_message_is_not_held_up_behind_a_large_one():
    async def work():
        ends = Ends(rate=1e6)
        ends.low.send((1, 1), bytes(2_000_000))
        ends.low.send((1, 2), bytes(2_000))
        await ends.settle()
        assert [whole.key for whole in ends.got["up"]] == [(1, 2), (1, 1)]

    run(work)


def test_what_is_on_its_way_is_bounded_by_the_window_and_grows_with_the_link():
    async def work():
        ends = Ends(rate=1e5)
        ends.low.send((1, 1), bytes(1_000_000))
        await ends.settle()
        assert ends.most_waiting <= 2 * streams.WINDOW_BYTES_FIRST
        assert ends.low.rate == pytest.approx(1e5, rel=0.05)

    run(work)


def test_the_bandwidth_that_is_seen_follows_the_link():
    async def work():
        ends = Ends(rate=1e6)
        for rate in (1e6, 1e5, 3e6):
            ends.rate = rate
            ends.low.send((1, 1), bytes(600_000))
            await ends.settle()
            assert ends.low.rate == pytest.approx(rate, rel=0.1)

    run(work)


def test_a_pause_of_the_sender_is_not_taken_for_a_slow_link():
    async def work():
        ends = Ends(rate=1e6)
        ends.low.send((1, 1), bytes(300_000))
        await ends.settle()
        for number in range(20):
            ends.now += 5.0
            ends.low.send((1, 2 + number), bytes(5_000))
            await ends.settle()
        assert ends.low.rate > 5e5

    run(work)


def test_who_says_more_than_is_allowed_is_refused_before_there_is_room_for_it():
    def admit(key, size):
        if size > 1000:
            raise StreamError("oversized request")
        return True

    async def work():
        ends = Ends(admit=admit)
        chunk = SubgraphChunk(session=1, sequence=1, size=1001, content=b"x")
        with pytest.raises(StreamError, match="oversized"):
            ends.high.take(SubgraphFrame(chunk=chunk).SerializeToString())
        assert ends.high.held == 0

    run(work)


@pytest.mark.parametrize(
    "frame",
    [
        SubgraphFrame(),
        SubgraphFrame(chunk=SubgraphChunk(session=1, sequence=1, size=0, content=b"x")),
        SubgraphFrame(chunk=SubgraphChunk(session=1, sequence=1, size=1)),
        SubgraphFrame(chunk=SubgraphChunk(session=1, sequence=1, size=1, content=b"xx")),
        SubgraphFrame(
            chunk=SubgraphChunk(session=1, sequence=1, size=MESSAGE_BYTES_MAX + 1, content=b"x")
        ),
        SubgraphFrame(taken=SubgraphTaken(bytes=1)),
        SubgraphFrame(probed=SubgraphProbed(number=7)),
        SubgraphFrame(probe=SubgraphProbe(number=1, answer_bytes=CHUNK_BYTES_MAX + 1)),
    ],
)
def test_a_frame_that_breaks_the_rules_is_refused(frame):
    async def work():
        with pytest.raises(StreamError):
            Ends().high.take(frame.SerializeToString())

    run(work)


def test_bytes_that_are_no_frame_are_refused():
    async def work():
        for content in (b"\xff\xff\xff", bytes(CHUNK_BYTES_MAX + 8192)):
            with pytest.raises(StreamError):
                Ends().high.take(content)

    run(work)


def test_chunks_out_of_their_order_are_refused_and_what_there_was_is_dropped():
    async def work():
        ends = Ends()

        def chunk(offset, size=10):
            made = SubgraphChunk(session=1, sequence=1, size=size, offset=offset, content=b"abc")
            return SubgraphFrame(chunk=made).SerializeToString()

        ends.high.take(chunk(0))
        with pytest.raises(StreamError):
            ends.high.take(chunk(4))
        assert ends.high.held == 0
        ends.high.take(chunk(0))
        with pytest.raises(StreamError):
            ends.high.take(chunk(3, size=11))

    run(work)


def test_the_rest_of_a_message_that_was_dropped_is_no_fault():
    async def work():
        ends = Ends(rate=1e5)
        ends.low.send((1, 1), bytes(100_000))
        task = asyncio.create_task(ends.low.run())
        await asyncio.sleep(0)
        ends.high.take(ends.wires["up"].popleft())
        assert ends.high.held == 100_000
        ends.high.drop((1, 1))
        assert ends.high.held == 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await ends.settle()
        assert ends.got["up"] == []
        ends.low.drop((1, 1))
        ends.low.send((1, 2), b"next")
        await ends.settle()
        assert [whole.key for whole in ends.got["up"]] == [(1, 2)]

    run(work)


def test_a_frame_of_control_overtakes_what_waits():
    async def work():
        ends = Ends(rate=1e5)
        ends.low.send((1, 1), bytes(500_000))
        await asyncio.sleep(0)
        ends.low.say(SubgraphFrame(cancel=SubgraphCancel(session=1, sequence=1)))
        await ends.settle()
        assert isinstance(ends.got["up"][0], SubgraphFrame)

    run(work)


def test_a_peer_that_takes_nothing_is_found_out():
    async def work():
        ends = Ends()
        frame = SubgraphFrame(cancel=SubgraphCancel(session=1, sequence=1))
        with pytest.raises(StreamError, match="does not take"):
            for _ in range(CONTROL_MAX + 1):
                ends.low.say(frame)

    run(work)


@pytest.mark.parametrize(("up", "down"), [(0, 0), (100_000, 0), (0, 100_000), (5_000, 5_000)])
def test_a_probe_takes_as_much_of_the_link_as_was_asked_for(up, down):
    async def work():
        ends = Ends(rate=1e6)
        future = ends.low.probe(up, down)
        await ends.settle()
        assert future.done()
        assert ends.now == pytest.approx((up + down) / 1e6, rel=0.1, abs=1e-3)

    run(work)


def test_who_begins_a_message_and_does_not_end_it_has_stalled():
    ends = Ends()
    chunk = SubgraphChunk(session=1, sequence=1, size=9, content=b"abc")
    ends.high.take(SubgraphFrame(chunk=chunk).SerializeToString())
    ends.now += MESSAGE_S - 1
    chunk.offset = 3  # a little more from time to time does not help
    ends.high.take(SubgraphFrame(chunk=chunk).SerializeToString())
    assert not ends.high.stalled
    ends.now += 2
    assert ends.high.stalled
    ends.high.drop((1, 1))
    assert not ends.high.stalled


def test_who_takes_nothing_has_stalled():
    async def run():
        ends = Ends()
        ends.high.send((1, 1), b"reply")
        writer = asyncio.create_task(ends.high.run())
        await asyncio.sleep(0)
        ends.now += TAKEN_S + 1
        assert ends.high.stalled and not ends.low.stalled
        ends.low.take(ends.wires["down"].popleft())
        writer.cancel()
        taken = SubgraphTaken(bytes=ends.high.waiting)
        ends.high.take(SubgraphFrame(taken=taken).SerializeToString())
        assert not ends.high.stalled

    asyncio.run(run())
