"""The driver of a `Server`: an edge's or the cloud's parts for many askers.

It is the owner of a `SubgraphService`; and where there is a tier above, of an `Upstream` too. A cut
is known to the machine by a hash of the model, the cut and the tier, so that two askers with the
same cut share what was prepared for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...protocol.ports import Record
from ...wire import subgraph_pb2 as pb
from ..cut.cut import Cut, CutError
from ..cut.wire_formats import WireError
from . import request_limits as limits
from .cut_preparation import CutPreparation, Wanted
from .frames.stream import Key, StreamError, Whole
from .frames.stream_client import Upstream
from .frames.stream_service import Line
from .machine_loop import Machine, MachineLoop
from .machines import part_ports as ports
from .part_programs import Model, Programs
from .part_work import Held, Workers
from .request_codec import bytes_max, link_message, reply_bytes, request_of, tensors_of, values_of
from .upstream_driver import Above

log = logging.getLogger("delian.subgraphs")

#: How long an answer is of use where a request does not say.
TIME_S = 60.0


@dataclass(slots=True)
class _Peer:
    """A lower node that is there."""

    line: Line
    sessions: dict[int, bytes] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    """Those of its sessions that it was informed of."""
    came: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """When the first byte of a request came, and its size, for those that are not answered."""
    held: int = 0


class ServingDriver:
    """Runs a Server over the models that this node has.

    upstream: makes the way up, for its owner; None: no tier is above. threads: runs at once, which
    the machine must know too.
    """

    def __init__(
        self,
        models: Mapping[tuple[bytes, bytes, str], Model],
        machine: Machine,
        programs: Programs,
        upstream: Callable[[Above], Upstream] | None = None,
        *,
        threads: int = 1,
        on_record: Callable[[Record], None] | None = None,
    ) -> None:
        self._models = models
        self.counts: Counter[str] = Counter()  # of refusals
        self.answered = 0
        self._held: dict[int, Held] = {}
        self._peers: dict[int, _Peer] = {}
        self._tickets = itertools.count(1)
        self._held_bytes = 0
        self._loop = MachineLoop(machine, self._carry, on_record)
        self.preparing = CutPreparation(programs, self._loop.post, self._is_waited_for)
        self._cuts = self.preparing.ready
        self._workers = Workers(programs, self._held, self._cuts, self._loop.post, threads)
        self.above = Above(self._held, self._cuts, self._loop.post)
        self.upstream = None if upstream is None else upstream(self.above)

    def start(self) -> None:
        """Dials the tier above, where there is one."""
        if self.upstream is not None:
            self.upstream.start()

    async def close(self) -> None:
        """Ends. May be called twice."""
        if self.upstream is not None:
            await self.upstream.close()
        self._loop.close()
        await self.preparing.close()
        await asyncio.to_thread(self._workers.close)

    # ------------------------------------------------ what the service says

    def came(self, line: Line) -> None:
        self._peers[line.number] = _Peer(line)

    def gone(self, line: Line) -> None:
        peer = self._peers.pop(line.number, None)
        if peer is not None:
            self._held_bytes -= peer.held
            self._loop.post(ports.PeerGone(line.number))

    def admit(self, line: Line, key: Key, size: int) -> bool:
        peer = self._peers[line.number]
        prepared = self._cuts.get(peer.sessions.get(key[0], b""))
        if prepared is None or key[0] not in peer.open:
            self._fail(peer, key, pb.SUBGRAPH_UNKNOWN)
            return False
        if size > bytes_max(prepared.up):
            raise StreamError("oversized request", f"{size} bytes")
        if key in peer.came:
            raise StreamError("repeated request")
        size += bytes_max(prepared.down)  # its reply
        if (
            len(peer.came) >= limits.REQUESTS_PER_PEER
            or peer.held + line.stream.waiting + size > limits.HELD_BYTES_PER_PEER
            or self._held_bytes + size > limits.HELD_BYTES_MAX
        ):
            self._fail(peer, key, pb.SUBGRAPH_BUSY)
            return False
        peer.came[key] = (self._loop.now(), size)
        peer.held += size
        self._held_bytes += size
        return True

    def said(self, line: Line, frame: pb.SubgraphFrame) -> None:
        peer, kind = self._peers[line.number], frame.WhichOneof("frame")
        if kind == "open":
            self._open(peer, frame.open)
        elif kind == "close":
            self._close(peer, frame.close.session)
        elif kind == "cancel":
            key = (frame.cancel.session, frame.cancel.sequence)
            line.stream.drop(key)
            self._let_go(peer, key)
            self._loop.post(ports.RequestCancelled(line.number, _number(key)))
        else:
            raise StreamError("unknown frame")

    def asked(self, line: Line, request: Whole) -> None:
        peer, key = self._peers[line.number], request.key
        cut = peer.sessions.get(key[0])
        prepared = None if cut is None else self._cuts.get(cut)
        if cut is None or prepared is None:
            self._fail(peer, key, pb.SUBGRAPH_UNKNOWN)
            return
        try:
            said = request_of(request.content)
            if (said.session, said.sequence, said.phase) != (*key, 0):
                raise StreamError("malformed", "a request by another name")
            model = prepared.model
            if said.bundle not in (b"", model.bundle) or said.program not in ("", model.program):
                raise StreamError("malformed", "a request of another bundle")
            values = values_of(said.inputs, prepared.up)
        except (StreamError, WireError):
            self._fail(peer, key, pb.SUBGRAPH_MISFIT)
            raise StreamError("malformed", "a request that does not fit") from None
        ticket = next(self._tickets)
        self._held[ticket] = Held(model, values, cut=cut, key=key, peer=line.number)
        seconds = min(said.time_ms / 1000 or TIME_S, limits.TIME_S_MAX)
        deadline = peer.came[key][0] + int(seconds * 1e9)
        self._loop.post(ports.RequestReceived(ticket, line.number, _number(key), cut, deadline))

    # ------------------------------------------------ cuts

    def _open(self, peer: _Peer, asked: pb.SubgraphOpen) -> None:
        number = asked.session
        if not number or number in peer.open:
            raise StreamError("malformed opening")
        model = self._models.get((asked.bundle, asked.weights, asked.program))
        if model is None:
            self._tell(peer, number, pb.SUBGRAPH_UNKNOWN, "this node does not have the bundle")
            return
        try:
            if len(asked.cut) > limits.CUT_BYTES_MAX or asked.tier not in (1, 2):
                raise CutError("a cut that is too long, or for no tier of this kind")
            cut = Cut.from_bytes(asked.cut)
        except CutError as error:
            self._tell(peer, number, pb.SUBGRAPH_MISFIT, error.message)
            return
        name = name_of(model, asked.cut, asked.tier)
        if peer.sessions.get(number, name) != name:
            raise StreamError("malformed opening")
        if not self._has_room(peer, number, name):
            self._tell(peer, number, pb.SUBGRAPH_BUSY, _WHY[ports.Failure.BUSY])
            return
        peer.sessions[number] = name
        if name not in self._cuts:
            self.preparing.want(name, Wanted(model, cut, asked.tier, peer.line.name))
        self._loop.post(ports.OpenAsked(peer.line.number, name))
        self.preparing.unwant(name)  # it is prepared already, or was refused

    def _has_room(self, peer: _Peer, number: int, name: bytes) -> bool:
        """Whether this node may have one more cut, and have it made ready."""
        node = peer.line.name
        own = sum(len(p.sessions) for p in self._peers.values() if p.line.name == node)
        if number not in peer.sessions and own >= limits.SESSIONS_PER_PEER:
            return False
        return self.preparing.may(name, node)

    def _is_waited_for(self, name: bytes) -> bool:
        return any(name in peer.sessions.values() for peer in self._peers.values())

    def _close(self, peer: _Peer, session: int) -> None:
        cut = peer.sessions.pop(session, None)
        peer.open.discard(session)
        if cut is not None and cut not in peer.sessions.values():
            self._loop.post(ports.CutClosed(peer.line.number, cut))

    def _opened(self, number: int, name: bytes, failure: ports.Failure | None) -> None:
        peer = self._peers.get(number)
        if peer is None:
            return
        for session, cut in list(peer.sessions.items()):
            if cut != name or session in peer.open:
                continue
            if failure is None:
                peer.open.add(session)
                self._tell(peer, session, pb.SUBGRAPH_DONE)
            else:
                del peer.sessions[session]
                self._tell(peer, session, _NUMBERS[failure], _WHY.get(failure, ""))

    def _tell(
        self, peer: _Peer, session: int, failure: pb.SubgraphFailure, reason: str = ""
    ) -> None:
        if failure != pb.SUBGRAPH_DONE:
            self.counts[f"refused: {pb.SubgraphFailure.Name(failure)}"] += 1
        said = pb.SubgraphOpened(
            session=session, failure=failure, reason=reason[: limits.REASON_CHARS_MAX]
        )
        peer.line.say(pb.SubgraphFrame(opened=said))

    # ------------------------------------------------ replies

    def _let_go(self, peer: _Peer, key: Key) -> None:
        """What a request took up is free."""
        came = peer.came.pop(key, None)
        if came is not None:
            peer.held -= came[1]
            self._held_bytes -= came[1]

    def _fail(self, peer: _Peer, key: Key, failure: pb.SubgraphFailure) -> None:
        self._let_go(peer, key)
        self.counts[f"failed: {pb.SubgraphFailure.Name(failure)}"] += 1
        peer.line.reply(key, reply_bytes(*key, failure))

    def _reply(self, effect: ports.Reply) -> None:
        held = self._held.pop(effect.ticket)
        peer = self._peers.get(held.peer)
        if peer is None:
            return
        above = link_message(effect.above)
        peer.line.stream.above = above
        tensors = held.tensors
        if tensors is None:
            try:
                tensors = tensors_of(held.have, self._cuts[held.cut].down)
            except KeyError:  # the cut has gone, or a part gave not all: a fault of this node
                log.error("a reply lacks values")
                self._fail(peer, held.key, pb.SUBGRAPH_FAILED)
                return
        self.answered += 1
        self._let_go(peer, held.key)
        content = reply_bytes(*held.key, pb.SUBGRAPH_DONE, tensors, effect.spent // 1000, above)
        peer.line.reply(held.key, content)

    def _refuse(self, ticket: int, failure: ports.Failure) -> None:
        held = self._held.pop(ticket)
        peer = self._peers.get(held.peer)
        if peer is not None:
            self._fail(peer, held.key, _NUMBERS[failure])

    def _drop(self, ticket: int) -> None:
        held = self._held.pop(ticket, None)
        peer = None if held is None else self._peers.get(held.peer)
        if held is not None and peer is not None:
            self._let_go(peer, held.key)

    # ------------------------------------------------ what the machine wants

    def _carry(self, effect: ports.Effect) -> None:
        match effect:
            case ports.Run():
                self.preparing.widen(effect)
                self._workers.run(effect)
            case ports.CancelRun(run):
                self._workers.cancel(run)
            case ports.OpenCut() | ports.SendRequest() | ports.CancelRequest() | ports.Probe():
                self.above.carry(effect)
            case ports.Prepare(cut):
                self.preparing.begin(cut)
            case ports.Unprepare(cut):
                self.above.close(cut)
                self.preparing.drop(cut)
            case ports.Opened(peer, cut, failure):
                self._opened(peer, cut, failure)
            case ports.Reply():
                self._reply(effect)
            case ports.Refuse(ticket, failure):
                self._refuse(ticket, failure)
            case ports.Drop(ticket):
                self._drop(ticket)
            case _:
                raise AssertionError(f"{type(effect).__name__} is an asker's effect")


_WHY = {
    ports.Failure.MISFIT: "the cut does not fit the program",
    ports.Failure.BUSY: "too many cuts are open",
    ports.Failure.LOST: "the cut needs a node further up, which is not there",
    ports.Failure.FAILED: "a part does not compile",
}


_NUMBERS = {
    ports.Failure.UNKNOWN: pb.SUBGRAPH_UNKNOWN,
    ports.Failure.MISFIT: pb.SUBGRAPH_MISFIT,
    ports.Failure.BUSY: pb.SUBGRAPH_BUSY,
    ports.Failure.LATE: pb.SUBGRAPH_LATE,
    ports.Failure.LOST: pb.SUBGRAPH_LOST,
    ports.Failure.FAILED: pb.SUBGRAPH_FAILED,
}


def _number(key: Key) -> int:
    """A request's number among all those of its stream."""
    return key[0] << 64 | key[1]


def name_of(model: Model, cut: bytes, tier: int) -> bytes:
    """The name of a cut on a node that serves it: 32 bytes."""
    return hashlib.sha256(
        b"".join((bytes((tier,)), model.bundle, model.weights, model.program.encode(), b"\0", cut))
    ).digest()
