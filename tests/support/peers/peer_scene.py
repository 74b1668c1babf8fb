"""What bad peers have in common: a stage, a few things to say, and the form of the tables."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from delian.core.node.identity.pki.certificates import Role, TlsMaterial
from delian.core.node.net import message_limits
from delian.core.node.storage.codec import envelope_bytes
from delian.core.protocol.ports import Node, Tier
from delian.core.protocol.random_streams import device_key
from delian.core.wire import round_pb2
from delian.core.wire.admission_pb2 import CheckIn, Eligibility
from delian.core.wire.link_pb2 import TRANSFER_ENVELOPE, Offer, Part, Want
from delian.core.wire.round_pb2 import Task, Upload
from google.protobuf.message import Message

from support.peers.peer_wires import Stream
from support.peers.peer_world import EDGE, ROUND_MS, Round, World, update_of

REFUSED, LATE, COUNTED = round_pb2.REFUSED, round_pb2.LATE, round_pb2.COUNTED
PART = message_limits.PART_BYTES


@dataclass
class Scene:
    """A bad peer's stage. number: of a device that is new to the federation."""

    world: World
    round: Round
    number: int
    home: Node = EDGE

    @property
    def who(self) -> Node:
        return Node(Tier.DEVICE, self.number)

    @property
    def material(self) -> TlsMaterial:
        if not hasattr(self, "_material"):
            self._material = self.world.material(Role.DEVICE, self.number)
        return self._material

    @contextlib.asynccontextmanager
    async def stream(self):
        """A stream of its own that is let in."""
        async with Stream(self.world, self.who, self.material, self.home) as made:
            yield await made.connect()

    async def honest_end(self) -> None:
        await self.round.end()

    def check_in(self, sequence: int = 1, willing: bool = False, **more: Any) -> CheckIn:
        """willing: it enters the pool, and may be tasked."""
        may = Eligibility(consented=willing, powered=True, unmetered=True, idle=True, fresh=True)
        told = {"device": self.number, "protocol": 1, **more}
        return CheckIn(sequence=sequence, eligibility=may, **told)

    async def enlist(self, stream: Any) -> Task:
        """Takes part in the round, up to the answer."""
        await stream.say(self.check_in(willing=True))
        task = await stream.hear(Task)
        await self.round.under_way()
        return task

    def answer(self, task: Task, **changed: Any) -> Upload:
        """What an honest device would answer, and what is different."""
        key = np.array(device_key(task.rng_key, self.number), np.uint32)
        vector = update_of(self.number, key, task.ring).astype("<u4").tobytes()
        told = {"run": task.run, "round": task.round, "attempt": task.attempt}
        return Upload(**{**told, "device": self.number, "vector": vector, **changed})


async def upload(stream: Stream, message: Message) -> bytes:
    """Sends a large message as its transfer; its envelope's bytes."""
    content = envelope_bytes(stream.who, stream.home, message)
    await transfer(stream, content)
    return content


async def transfer(stream: Stream, content: bytes) -> None:
    await stream.say(offer_of(content))
    want = await stream.hear(Want)
    assert not want.refused
    assert await stream.push(parts_of(content, want.offset)) == len(content)


def offer_of(content: bytes, **changed: Any) -> Offer:
    told = {"id": hashlib.sha256(content).digest(), "size": len(content)}
    return Offer(**{**told, "kind": TRANSFER_ENVELOPE, **changed})


def parts_of(content: bytes, offset: int = 0, id: bytes = b"") -> Iterator[Part]:
    id = id or hashlib.sha256(content).digest()
    for at in range(offset, len(content), PART):
        yield Part(id=id, offset=at, content=content[at : at + PART])


def junk(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@dataclass(frozen=True)
class Row:
    """A bad peer and what it must come to.

    refused: counters of the daemon that must have grown; "kind" stands for gRPC's, "node: kind"
    for the node's. logged: what its log says; None: `{kind} from {who}` for the first. home: whom
    it attacks. members: bad devices that are tasked; counted: those of them that answer.
    deadline_ms: the round's; at_deadline: only its deadline ends the round.
    inside: not for processes, which would be waited for too long. slowed: where disk or broker are
    slower than the rate allows it is slowed down instead. real: needs real links, or the daemons
    around the hubs; the others are played in memory (`memory_world.py`).
    """

    attack: Callable[[Scene], Awaitable[None]]
    refused: tuple[str, ...]
    logged: str | None = None
    home: Node = EDGE
    members: int = 0
    counted: int = 0
    deadline_ms: int = ROUND_MS
    at_deadline: bool = False
    by_mqtt: bool = False
    inside: bool = False
    slowed: bool = False
    real: bool = False

    @property
    def name(self) -> str:
        work = self.attack
        name = work.func.__name__ if isinstance(work, partial) else work.__name__
        changed = list(work.keywords) if isinstance(work, partial) else []
        at = "" if self.home == EDGE else f" at {self.home}"
        by = " by mqtt" if self.by_mqtt else ""
        return "-".join([name, *changed]).replace("_", " ") + at + by
