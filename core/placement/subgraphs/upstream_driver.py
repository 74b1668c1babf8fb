"""What a machine asks of the tier above, carried out over a stream of frames.

Cuts are opened, requests are sent and called off, the link is probed; and what comes back is passed
to to the machine.

On the wire a cut has a session, a number of this stream, and a request's sequence is its ticket.
"""

from __future__ import annotations

import contextlib
from asyncio import Future
from collections.abc import Callable, Mapping

from ...wire import subgraph_pb2 as pb
from ..cut.program_split import Port
from ..cut.wire_formats import WireError
from .frames.stream import FrameStream, Key, StreamError, Whole
from .machines import part_ports as ports
from .part_programs import Prepared
from .part_work import Held
from .request_codec import bytes_max, link_of, reply_of, request_bytes, tensors_of, values_of


class Above:
    """The way up of one machine; the owner of an `Upstream`.

    held: values by ticket. cuts: what the machine knows of, prepared. post: passes an event to the
    machine.
    """

    def __init__(
        self,
        held: Mapping[int, Held],
        cuts: Mapping[bytes, Prepared],
        post: Callable[[ports.Event], None],
    ) -> None:
        self._held, self._cuts, self._post = held, cuts, post
        self._stream: FrameStream | None = None
        self._sessions: dict[bytes, int] = {}  # of this stream
        self._cut_of: dict[int, bytes] = {}
        self._asked: dict[int, Key] = {}  # requests under way, by ticket

    # ------------------------------------------------ what the machine wants

    def carry(
        self, effect: ports.OpenCut | ports.SendRequest | ports.CancelRequest | ports.Probe
    ) -> None:
        """Carries an effect out that is for the tier above."""
        match effect:
            case ports.OpenCut(cut):
                self.open(cut)
            case ports.SendRequest(ticket, cut, time):
                self.request(ticket, cut, time)
            case ports.CancelRequest(ticket):
                self.cancel(ticket)
            case ports.Probe(number, nbytes):
                self.probe(number, nbytes)

    def open(self, cut: bytes) -> None:
        """Asks for a cut; answered with CutOpened or CutRefused."""
        prepared = self._cuts[cut]
        session = self._sessions.get(cut)
        if session is None:
            session = self._sessions[cut] = len(self._cut_of) + 1
            self._cut_of[session] = cut
        model = prepared.model
        opening = pb.SubgraphOpen(
            session=session,
            bundle=model.bundle,
            weights=model.weights,
            program=model.program,
            cut=prepared.cut.to_bytes(),
            tier=prepared.tier + 1,
        )
        self._say(pb.SubgraphFrame(open=opening))

    def close(self, cut: bytes) -> None:
        """No more requests of this cut."""
        session = self._sessions.pop(cut, None)
        if session is not None:
            self._say(pb.SubgraphFrame(close=pb.SubgraphClose(session=session)))

    def request(self, ticket: int, cut: bytes, time: int) -> None:
        """Sends a ticket's boundary up. time: ns for which the answer is of use."""
        stream, session = self._stream, self._sessions.get(cut)
        if stream is None or session is None:
            self._post(ports.ReplyFailed(ticket, ports.Failure.LOST))
            return
        held = self._held[ticket]
        tensors, held.tensors = held.tensors, None
        held.cut = cut
        if tensors is None:
            tensors = tensors_of(held.have, self._cuts[cut].ask)
        key = (session, ticket)
        time_ms = min(max(time // 1_000_000, 1), 2**32 - 1)
        try:
            stream.send(key, request_bytes(session, ticket, tensors, time_ms))
        except StreamError:
            self._post(ports.ReplyFailed(ticket, ports.Failure.BUSY))
        else:
            self._asked[ticket] = key

    def cancel(self, ticket: int) -> None:
        """The reply is of no use any more."""
        key, stream = self._asked.pop(ticket, None), self._stream
        if key is None or stream is None:
            return
        stream.drop(key)
        self._say(pb.SubgraphFrame(cancel=pb.SubgraphCancel(session=key[0], sequence=key[1])))

    def probe(self, number: int, padding: int) -> None:
        """Answered with ProbeAnswered, or never."""
        stream = self._stream
        if stream is None:
            return
        try:
            future = stream.probe(padding)
        except StreamError:
            return  # too many are under way already

        def answered(done: Future[pb.SubgraphProbed]) -> None:
            if not done.cancelled() and stream is self._stream:
                self._post(ports.ProbeAnswered(number, link_of(done.result())))

        future.add_done_callback(answered)

    def _say(self, frame: pb.SubgraphFrame) -> None:
        if self._stream is not None:
            with contextlib.suppress(StreamError):  # it takes nothing: it will be found dead
                self._stream.say(frame)

    # ------------------------------------------------ what the stream says

    def back(self, stream: FrameStream) -> None:
        self._stream = stream
        self._post(ports.UpperBack())

    def gone(self) -> None:
        self._stream = None
        self._sessions.clear()
        self._cut_of.clear()
        self._asked.clear()
        self._post(ports.UpperGone())

    def admit(self, key: Key, size: int) -> bool:
        if self._asked.get(key[1]) != key:
            return False  # called off meanwhile
        if size > bytes_max(self._ports(key)):
            raise StreamError("oversized reply", f"{size} bytes")
        return True

    def _ports(self, key: Key) -> tuple[Port, ...]:
        return self._cuts[self._cut_of[key[0]]].answer

    def taken(self, taken: int, waiting: int, at_us: int) -> None:
        self._post(ports.Taken(taken, waiting, at_us * 1000))

    def arriving(self, key: Key, done: int, of: int) -> None:
        if self._asked.get(key[1]) == key:
            self._post(ports.ReplyArriving(key[1], done, of))

    def said(self, frame: pb.SubgraphFrame) -> None:
        if frame.WhichOneof("frame") != "opened":
            raise StreamError("unknown frame")
        self._opened(frame.opened)

    def _opened(self, opened: pb.SubgraphOpened) -> None:
        cut = self._cut_of.get(opened.session)
        if cut is None:
            raise StreamError("malformed", "it opens what was not asked for")
        if opened.failure == pb.SUBGRAPH_DONE:
            self._post(ports.CutOpened(cut))
        else:
            self._post(ports.CutRefused(cut, failure_of(opened.failure)))

    def replied(self, reply: Whole) -> None:
        key = reply.key
        if self._asked.get(key[1]) != key:
            return
        ticket, slots = key[1], self._ports(key)
        said = reply_of(reply.content)
        if (said.session, said.sequence) != key:
            raise StreamError("malformed", "a reply to another request")
        del self._asked[ticket]
        if said.failure != pb.SUBGRAPH_DONE:
            self._post(ports.ReplyFailed(ticket, failure_of(said.failure)))
            return
        try:
            values = values_of(said.outputs, slots)
        except WireError:
            self._post(ports.ReplyFailed(ticket, ports.Failure.FAILED))
            raise StreamError("malformed", "tensors that do not fit") from None
        self._held[ticket].have.update(values)
        self._post(ports.ReplyReceived(ticket, said.held_us * 1000, link_of(said)))


def failure_of(number: int) -> ports.Failure:
    """What the wire says; a number of a newer peer is a failure of its own."""
    try:
        return ports.Failure(number)
    except ValueError:
        return ports.Failure.FAILED
