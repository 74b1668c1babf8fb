"""Light devices for `coordinator.py`: they speak a device's protocol over gRPC and train nothing.
At a task they fetch the weights and upload the update that they were given.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc
from delian.core.node.net.grpc.grpc_guard import claim
from delian.core.node.net.grpc.grpc_peer import CONNECT, PULL, PUSH
from delian.core.node.net.transfer import part_bytes, part_length
from delian.core.node.storage.codec import envelope_bytes
from delian.core.protocol.ports import PROTOCOL, Node, Tier
from delian.core.wire.admission_pb2 import CheckIn, DeviceFacts, Eligibility
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.link_pb2 import Envelope, Offer, Part, PullRequest, Want
from delian.core.wire.round_pb2 import Task, Upload

T = TypeVar("T")

EDGE_0 = Node(Tier.EDGE, 0)
MAY = Eligibility(powered=True, unmetered=True, idle=True, consented=True, fresh=True)
#: Devices that connect at once.
CHUNK = 200


class Fleet:
    """Light devices over so many connections."""

    def __init__(self, port: int, first: int, count: int, links: int, vector: bytes = b"") -> None:
        self.channels = [
            grpc.aio.insecure_channel(
                f"127.0.0.1:{port}",
                [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)],
            )
            for _ in range(links)
        ]
        self.devices = [
            Light(first + i, self.channels[i % links], self, vector) for i in range(count)
        ]
        self.tasked: dict[int, float] = {}  # round -> when the first task came
        self.wakes_ms: list[float] = []
        self.answered = 0
        self.longest_s = 0.0  # of all pauses that a device was told to make
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._later: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """All devices connect and check in; returns when each has had an answer."""
        loop = asyncio.get_running_loop()
        for i in range(0, len(self.devices), CHUNK):
            chunk = self.devices[i : i + CHUNK]
            self._tasks += [loop.create_task(device.run()) for device in chunk]
            while self.answered < i + len(chunk):
                await asyncio.sleep(0.01)
                self.check()

    def check(self) -> None:
        """Raises what went wrong with a device."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Does some work; ends when a device has failed, which none may."""
        main = asyncio.create_task(work)
        await asyncio.wait([main, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        if not main.done():
            main.cancel()
            self.check()
        return await main

    def later(self, pause_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begins some work after a pause, while the fleet is there."""
        loop = asyncio.get_running_loop()

        def begin() -> None:
            if not self._closed:
                task = loop.create_task(work())
                self._later.add(task)
                task.add_done_callback(self._later.discard)

        loop.call_later(pause_s, begin)

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self.channels:
            await channel.close()


class Light:
    """A device that trains nothing. It has no task of its own beside its stream's."""

    def __init__(self, number: int, channel: Any, fleet: Fleet, vector: bytes) -> None:
        self.node = Node(Tier.DEVICE, number)
        self._channel, self._fleet, self._vector = channel, fleet, vector
        self._metadata = claim(self.node)
        self._sequence = 0
        self._task: Task | None = None
        self._upload = b""
        self._call: Any = None

    async def run(self) -> None:
        self._call = self._channel.stream_stream(CONNECT)()
        await self._check_in()
        self._pause_s = 0.0
        while (content := await self._call.read()) is not grpc.aio.EOF:
            said = Envelope.FromString(content)
            await getattr(self, said.WhichOneof("message"))(said)
        raise SystemExit(f"{self.node} was cut off")

    async def _say(self, message: Any) -> None:
        await self._call.write(envelope_bytes(self.node, EDGE_0, message))

    async def _check_in(self) -> None:
        self._sequence += 1
        facts = DeviceFacts(memory_mib=64)
        await self._say(
            CheckIn(
                device=self.node.number,
                sequence=self._sequence,
                protocol=PROTOCOL,
                facts=facts,
                eligibility=MAY,
            )
        )

    def _later(self, low_ms: int, high_ms: int) -> None:
        self._fleet.later(random.uniform(low_ms, high_ms) / 1000, self._check_in)

    # What it hears, by field of the envelope.

    async def accept(self, said: Envelope) -> None:
        self._fleet.answered += 1
        self._after = said.accept.after_task

    async def reject(self, said: Envelope) -> None:
        self._fleet.answered += 1
        self._fleet.longest_s = max(self._fleet.longest_s, said.reject.retry.max_ms / 1000)
        self._later(said.reject.retry.min_ms, said.reject.retry.max_ms)

    async def task(self, said: Envelope) -> None:
        self._task = said.task
        self._fleet.tasked.setdefault(said.task.round, time.perf_counter())
        await self._say(FetchBlob(digest=said.task.weights.digest))

    async def offer(self, said: Envelope) -> None:
        await self._pull(said.offer)
        await self._say(Want(id=said.offer.id, offset=said.offer.size))
        task = self._task
        assert task is not None
        upload = Upload(
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            device=self.node.number,
            vector=self._vector,
        )
        content = self._upload = envelope_bytes(self.node, EDGE_0, upload)
        id = hashlib.sha256(content).digest()
        await self._say(Offer(id=id, size=len(content), kind=2))

    async def _pull(self, offer: Offer) -> None:
        request = PullRequest(id=offer.id).SerializeToString()
        call = self._channel.unary_stream(PULL)(request, metadata=self._metadata)
        here = 0
        while (content := await call.read()) is not grpc.aio.EOF:
            here += len(Part.FromString(content).content)
        assert here == offer.size, f"{here} of {offer.size} bytes"

    async def want(self, said: Envelope) -> None:
        want = said.want
        assert not want.refused, "the update was refused"
        call = self._channel.stream_unary(PUSH)(metadata=self._metadata)
        at, size = want.offset, len(self._upload)
        while at < size:
            length = part_length(at, size)
            await call.write(part_bytes(want.id, at, self._upload[at : at + length]))
            at += length
        await call.done_writing()
        await call

    async def upload_ack(self, said: Envelope) -> None:
        self._upload = b""
        self._later(self._after.min_ms, self._after.max_ms)

    async def goodbye(self, said: Envelope) -> None:
        raise SystemExit(f"{self.node} was sent away: {said.goodbye.reason}")

    async def round_closed(self, said: Envelope) -> None:
        # A wake: the coordinator's clock stands in for a run's number.
        self._fleet.wakes_ms.append((time.time_ns() - said.round_closed.run) / 1e6)
