"""A stream whose window shrinks below what is under way goes on: whatever the order in which the
wire delivers, and however slow it becomes, each message arrives whole as long as it delivers.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest
from delian.core.placement.subgraphs.frames.stream import FrameStream

STEPS = 150
SIZES = (1, 300, 5_000, 40_000, 200_000)
#: Seconds of the wire's clock between two steps: from a fast link to one that has nearly stopped.
PAUSES = (0.0, 1e-4, 1e-2, 0.5, 9.0)


class World:
    """Two streams, and what is on its way between them in order. The clock is the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wires: dict[str, deque[bytes]] = {"up": deque(), "down": deque()}
        self.got: dict[str, list[bytes]] = {"up": [], "down": []}

        def end(way: str) -> FrameStream:
            async def write(content: bytes) -> None:
                self.wires[way].append(content)

            return FrameStream(write, lambda key, size: True, clock=lambda: self.now)

        self.ends = {"up": end("up"), "down": end("down")}

    def deliver(self, way: str) -> None:
        other = self.ends["down" if way == "up" else "up"]
        came = other.take(self.wires[way].popleft())
        if came is not None:
            self.got[way].append(bytes(came.content))


async def settled() -> None:
    """Lets the writers go on until they wait."""
    for _ in range(3):
        await asyncio.sleep(0)


async def story(draw: random.Random) -> None:
    world = World()
    sent: dict[str, list[bytes]] = {"up": [], "down": []}
    writers = [asyncio.create_task(end.run()) for end in world.ends.values()]
    windows = set()
    for number in range(STEPS):
        way = draw.choice(("up", "down"))
        if draw.random() < 0.2:
            content = bytes([number % 251]) * draw.choice(SIZES)
            world.ends[way].send((1, number), content)
            sent[way].append(content)
        for _ in range(draw.choice((0, 1, 8))):
            if world.wires[way]:
                world.deliver(way)
            await settled()
        world.now += draw.choice(PAUSES)
        windows |= {world.ends[w]._window() for w in sent}
        await settled()
    while any(world.wires.values()):
        ways = [way for way in world.wires if world.wires[way]]
        world.deliver(draw.choice(ways))
        await settled()
    for way, contents in sent.items():
        assert sorted(world.got[way]) == sorted(contents), "a message waits, and nothing is moving"
        assert world.ends[way].waiting == 0
    assert len(windows) > 2, "the windows have moved"
    for writer in writers:
        writer.cancel()
    await asyncio.gather(*writers, return_exceptions=True)


@pytest.mark.parametrize("seed", range(40))
def test_each_message_arrives_while_the_wire_delivers(seed: int) -> None:
    asyncio.run(story(random.Random(seed)))
