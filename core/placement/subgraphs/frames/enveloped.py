"""Frames in envelopes: parts of programs where there is no stream of their own, over MQTT.

An envelope (proto/link.proto) travels over any link that two nodes have, sealed and authenticated
as that link does it. It may be lost, or come twice. Frames must not: so each is counted, one that
comes twice is dropped, and one that is missing ends the *visit*. The lower node then begins another
with a new number, opens its cuts again, and waiting requests are answered by their node itself. For
boundaries of at most `BOUNDARY_BYTES_MAX`: a broker is no place for more.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Protocol

from google.protobuf.message import Message

from ....node.net.message_limits import Buckets, Faults
from ....node.net.switch import Switch
from ....protocol.ports import Node, Tier
from ....wire.subgraph_pb2 import SubgraphFrame
from ..request_limits import STREAMS_MAX
from .stream import FrameStream, Key, StreamError, Whole
from .stream_client import PAUSE_S, PAUSE_S_MAX
from .stream_client import Owner as Above
from .stream_service import Line
from .stream_service import Owner as Below

#: Of requests and replies, encoded.
BOUNDARY_BYTES_MAX = 64 * 1024
#: An envelope holds 64 KiB, with names and numbers.
CHUNK_BYTES = 32 * 1024
WINDOW_BYTES = 128 * 1024
#: Frames of one node: so many at once, and so many a second; a link takes a few more envelopes.
FRAMES_BURST, FRAMES_PER_S = 2_000, 400.0
#: A lower node that says nothing for so long is gone; it probes more often than that.
SILENCE_S = 90.0
#: How often that is looked at, and the way up.
LOOK_S = 0.25
#: Something was said and nothing came back for so long: the visit is over.
PATIENCE_S = 10.0


class _Visit:
    """One visit, at either end: what goes out is counted, what comes in is checked."""

    def __init__(self, number: int, send: Callable[[SubgraphFrame], None]) -> None:
        self.number, self._send = number, send
        self.heard_at = monotonic()
        self._out = self._in = 0

    async def write(self, content: bytes) -> None:
        """What a FrameStream writes with; the window bounds how much."""
        frame = SubgraphFrame.FromString(content)
        self._out += 1
        frame.visit, frame.count = self.number, self._out
        self._send(frame)

    def read(self, frame: SubgraphFrame) -> bytes | None:
        """The peer's frame; None: a repeated one. Raises StreamError for a gap."""
        if frame.count > self._in + 1:
            raise StreamError("a frame is missing")
        if frame.count <= self._in:
            return None
        self._in += 1
        self.heard_at = monotonic()
        frame.ClearField("visit")
        frame.ClearField("count")
        return frame.SerializeToString()


class EnvelopedService:
    """Serves devices whose frames come in envelopes to `node`, through a switch.

    owner: the service that frames are for. numbers: of lines, shared with the owner's other
    services. The links decide which nodes may send envelopes.
    """

    def __init__(self, owner: Below, switch: Switch, node: Node, numbers: Iterator[int]) -> None:
        self.faults = Faults("parts in envelopes")
        self._owner, self._switch, self._node, self._numbers = owner, switch, node, numbers
        self._lines: dict[Node, tuple[Line, _Visit, asyncio.Task[None]]] = {}
        self._rate = Buckets(FRAMES_BURST, FRAMES_PER_S, STREAMS_MAX)
        switch.on_relayed(SubgraphFrame, self._take)

    def review(self, revoked: Callable[[Node], bool]) -> None:
        """Ends the visits of nodes that are revoked."""
        for node, held in list(self._lines.items()):
            if revoked(node):
                held[0].end("sent away")

    async def run(self) -> None:
        """Closes lines that are silent, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for line, visit, _ in list(self._lines.values()):
                if monotonic() - visit.heard_at > SILENCE_S:
                    line.end("silent")
                elif line.stream.stalled:
                    self.faults.count("stalled", line.name)
                    line.end("stalled")

    def close(self) -> None:
        """Ends all visits."""
        for line, _, _ in list(self._lines.values()):
            line.end("shutting down")

    def _take(self, sender: Node, to: Node, message: Message) -> None:
        assert isinstance(message, SubgraphFrame)
        if to != self._node or sender.tier is not Tier.DEVICE or not message.visit:
            self.faults.count("malformed", sender)
            return
        if not self._rate.take(sender, monotonic()):
            self.faults.count("too fast", sender)
            return
        held = self._lines.get(sender)
        if held is None or held[1].number != message.visit:
            if message.count != 1:
                return  # of a visit that is over: the lower node will notice
            if held is not None:
                held[0].end("replaced by a newer visit")
            if len(self._lines) >= STREAMS_MAX:
                self.faults.count("too many streams", sender)
                return
            held = self._begin(sender, message.visit)
        line, visit, _ = held
        try:
            content = visit.read(message)
            if content is not None:
                self._read(line, content)
        except StreamError as error:
            self.faults.count(error.kind, sender)
            line.end(error.kind)

    def _begin(self, node: Node, number: int) -> tuple[Line, _Visit, asyncio.Task[None]]:
        name = f"{node.tier.value}-{node.number}"  # as its certificate has it
        line = Line(next(self._numbers), name, None, lambda: self._end(node))
        visit = _Visit(number, lambda frame: self._switch.send(self._node, node, frame))
        line.stream = FrameStream(
            visit.write,
            lambda key, size: self._admit(line, key, size),
            chunk_max=CHUNK_BYTES,
            window_max=WINDOW_BYTES,
        )
        task = asyncio.get_running_loop().create_task(line.stream.run())
        held = self._lines[node] = (line, visit, task)
        self._owner.came(line)
        return held

    def _admit(self, line: Line, key: Key, size: int) -> bool:
        if size > BOUNDARY_BYTES_MAX:
            raise StreamError("oversized request", f"{size} bytes in envelopes")
        return self._owner.admit(line, key, size)

    def _read(self, line: Line, content: bytes) -> None:
        came = line.stream.take(content)
        if isinstance(came, Whole):
            self._owner.asked(line, came)
        elif came is not None:
            self._owner.said(line, came)

    def _end(self, node: Node) -> None:
        line, _, task = self._lines.pop(node)
        task.cancel()
        self._owner.gone(line)


class ClosingLink(Protocol):
    """A way up, as `node.uplinks.Uplinks` is one."""

    def reaches(self, to: Node) -> bool: ...

    async def close(self) -> None: ...


class EnvelopedUpstream:
    """A node's way up in envelopes; to its owner the same as an `Upstream`.

    link: the way to the home; it is closed with this.

        upstream = EnvelopedUpstream(switch, node, home, owner, uplinks)
        upstream.start()
    """

    def __init__(
        self, switch: Switch, node: Node, home: Node, owner: Above, link: ClosingLink
    ) -> None:
        self.faults = Faults("parts above, in envelopes")
        self.stream: FrameStream | None = None
        self._switch, self._node, self._home = switch, node, home
        self._owner, self._link = owner, link
        self._visit: _Visit | None = None
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        switch.on_relayed(SubgraphFrame, self._take)

    def start(self) -> None:
        """Sends from now on, whenever there is a way."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def redial(self) -> None:
        """The link below does that."""

    async def close(self) -> None:
        """Ends. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._link.close()

    async def _keep(self) -> None:
        pause = PAUSE_S
        while True:
            if self._link.reaches(self._home):
                began = monotonic()
                await self._stay()
                pause = PAUSE_S if monotonic() - began > PATIENCE_S else min(2 * pause, PAUSE_S_MAX)
            await asyncio.sleep(max(pause, LOOK_S))

    async def _stay(self) -> None:
        """One visit."""
        visit = _Visit(
            secrets.randbits(63) | 1, lambda f: self._switch.send(self._node, self._home, f)
        )
        stream = FrameStream(
            visit.write,
            self._owner.admit,
            on_taken=self._owner.taken,
            on_arriving=self._owner.arriving,
            chunk_max=CHUNK_BYTES,
            window_max=WINDOW_BYTES,
        )
        self._over.clear()
        writer = asyncio.get_running_loop().create_task(stream.run())
        self._visit, self.stream = visit, stream
        self._owner.back(stream)
        try:
            while self._link.reaches(self._home) and not self._over.is_set():
                if stream.waiting and monotonic() - visit.heard_at > PATIENCE_S:
                    self.faults.count("no answer", self._home)
                    break
                try:
                    async with asyncio.timeout(LOOK_S):
                        await self._over.wait()
                except TimeoutError:
                    pass
        finally:
            self._visit = self.stream = None
            writer.cancel()
            self._owner.gone()

    def _take(self, sender: Node, to: Node, message: Message) -> None:
        visit, stream = self._visit, self.stream
        assert isinstance(message, SubgraphFrame)
        if visit is None or stream is None or message.visit != visit.number:
            return  # of a visit that is over
        if (sender, to) != (self._home, self._node):
            self.faults.count("malformed", sender)
            return
        try:
            content = visit.read(message)
            came = None if content is None else stream.take(content)
            if isinstance(came, Whole):
                self._owner.replied(came)
            elif came is not None:
                self._owner.said(came)
        except StreamError as error:
            self.faults.count(error.kind, sender)
            self._over.set()
