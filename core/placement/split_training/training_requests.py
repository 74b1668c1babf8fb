"""The lower end of split training: the turns of one training, asked one after the other.

    asker = TrainingAsker(opening)
    upstream = Upstream(node, homes, asker, credentials, federation); upstream.start()
    values = await asker.ask(1, request, tensors, reply, due_s)

A stream that breaks is dialled again by the `Upstream`; then the training is opened under its name
and the request that has no answer yet is asked again: the upper node runs it once however often it
comes (`trainings`). What the upper node does not know any more, or does not allow, ends the
training here, and so does a silence that is longer than an answer's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns

from ...common.errors import DelianError
from ...wire import subgraph_pb2 as pb
from ..cut.program_split import Message
from ..cut.wire_formats import Encoded, WireError
from ..subgraphs.frames.stream import FrameStream, Key, StreamError, Whole
from ..subgraphs.request_codec import Values, bytes_max, reply_of, tensors_of, values_of
from ..subgraphs.request_limits import REASON_CHARS_MAX
from ..subgraphs.upstream_driver import failure_of
from .measured_link import TINY_BYTES, MeasuredLink
from .step_sides import SplitError

#: Pause before an upper node that is busy is asked again.
AGAIN_S = 0.2


class SplitLostError(SplitError):
    """A training that cannot go on: the upper node is gone, or refuses it.

    steps: those that were whole, on both sides, as far as this one knows.
    """

    def __init__(self, message: str, hint: str = "", steps: int = 0) -> None:
        super().__init__(message, hint)
        self.steps = steps


@dataclass(slots=True)
class _Waiting:
    """The request under way."""

    turn: int
    phase: int
    tensors: Sequence[pb.BoundaryTensor]
    reply_max: int
    answer: asyncio.Future[Sequence[pb.BoundaryTensor]]


class TrainingAsker:
    """One training; the owner of an `Upstream`.

    opening: without a session. link: is measured by the exchanges; None: nothing measures it.
    """

    def __init__(self, opening: pb.SubgraphOpen, link: MeasuredLink | None = None) -> None:
        self._opening, self._link = opening, link
        self._stream: FrameStream | None = None
        self._session = 0
        self._open = False
        self._waiting: _Waiting | None = None
        self._lost: SplitLostError | None = None
        self._busy = ""  # what the last opening was put off by
        self.streams = 0  # that there were

    async def ask(
        self,
        turn: int,
        request: Message,
        values: Mapping[int, Encoded],
        reply: Message,
        due_s: float,
    ) -> Values:
        """The answer to a turn. Raises SplitLostError without one in due_s seconds."""
        tensors = tensors_of(values, request.ports)
        came = await self.ask_for(turn, request.turn, tensors, bytes_max(reply.ports), due_s)
        try:
            return values_of(came, reply.ports)
        except WireError as error:
            self._lose(f"turn {turn} was answered with other tensors: {error}", "")
            assert self._lost is not None
            raise self._lost from None

    async def ask_for(
        self,
        turn: int,
        phase: int,
        tensors: Sequence[pb.BoundaryTensor],
        reply_max: int,
        due_s: float,
    ) -> Sequence[pb.BoundaryTensor]:
        """The same, of tensors that are encoded and an answer that is not checked.

        reply_max: bytes of the answer.
        """
        if self._lost is not None:
            raise self._lost
        answer: asyncio.Future[Sequence[pb.BoundaryTensor]]
        answer = asyncio.get_running_loop().create_future()
        self._waiting = _Waiting(turn, phase, tensors, reply_max, answer)
        self._send()
        try:
            async with asyncio.timeout(due_s):
                return await answer
        except TimeoutError:
            said = f": {self._busy}" if self._busy else ""
            self._lose(
                f"nothing came from above in {due_s:g} s{said}",
                "wait for the next round" if said else "see whether the edge is there",
            )
            assert self._lost is not None
            raise self._lost from None
        finally:
            self._waiting = None

    def finish(self) -> None:
        """Says that nothing more comes; an unfinished training is dropped above."""
        if self._stream is not None and self._open:
            self._stream.say(pb.SubgraphFrame(close=pb.SubgraphClose(session=self._session)))

    # ------------------------------------------------ what the upstream says

    def back(self, stream: FrameStream) -> None:
        self._stream, self._session, self._open = stream, 0, False
        self.streams += 1
        if self._link is not None:
            began = monotonic_ns()
            self._link.begin(began)
            stream.probe(TINY_BYTES).add_done_callback(lambda done: self._probed(done, began))
        self._begin(stream)

    def _probed(self, done: asyncio.Future[pb.SubgraphProbed], began: int) -> None:
        if self._link is not None and not done.cancelled() and done.exception() is None:
            now = monotonic_ns()
            self._link.round_trip(now - began, now)

    def gone(self) -> None:
        self._stream, self._open = None, False

    def admit(self, key: Key, size: int) -> bool:
        waiting = self._waiting
        if waiting is None or key != (self._session, waiting.turn):
            return False
        if size > waiting.reply_max:
            raise StreamError("oversized reply", f"{size} bytes")
        return True

    def said(self, frame: pb.SubgraphFrame) -> None:
        if frame.WhichOneof("frame") != "opened" or frame.opened.session != self._session:
            raise StreamError("unknown frame")
        failure, reason = frame.opened.failure, frame.opened.reason[:REASON_CHARS_MAX]
        self._busy = reason if failure == pb.SUBGRAPH_BUSY else ""
        if failure == pb.SUBGRAPH_DONE:
            self._open = self._opening.training.again = True
            self._send()
        elif failure == pb.SUBGRAPH_BUSY and self._stream is not None:
            asyncio.get_running_loop().call_later(AGAIN_S, self._begin, self._stream)
        else:
            self._lose(f"the training was refused above: {reason}", _hint(failure))

    def replied(self, reply: Whole) -> None:
        waiting = self._waiting
        if waiting is None or reply.key != (self._session, waiting.turn) or waiting.answer.done():
            return
        said = reply_of(reply.content)
        if (said.session, said.sequence) != reply.key:
            raise StreamError("malformed", "a reply by another name")
        if said.failure == pb.SUBGRAPH_BUSY:
            asyncio.get_running_loop().call_later(AGAIN_S, self._send, waiting)
        elif said.failure != pb.SUBGRAPH_DONE:
            name = failure_of(said.failure).name.lower()
            self._lose(f"turn {waiting.turn} was refused above: {name}", _hint(said.failure))
        else:
            waiting.answer.set_result(said.outputs)

    def taken(self, taken: int, waiting: int, at_us: int) -> None:
        if self._link is not None:
            self._link.taken(taken, waiting, at_us * 1000, monotonic_ns())

    def arriving(self, key: Key, done: int, of: int) -> None:
        if self._link is not None:
            self._link.arriving(key[1], done, monotonic_ns())

    # ------------------------------------------------ what goes up

    def _begin(self, stream: FrameStream) -> None:
        """Opens the training on a stream, unless that is not the one any more."""
        if stream is self._stream and not self._open and self._lost is None:
            self._session += 1
            self._opening.session = self._session
            stream.say(pb.SubgraphFrame(open=self._opening))

    def _send(self, only: _Waiting | None = None) -> None:
        """Asks for the turn that waits. only: if it is this one still."""
        waiting = self._waiting
        if self._stream is None or not self._open or waiting is None:
            return
        if only not in (None, waiting):
            return
        made = pb.SubgraphRequest(
            session=self._session,
            sequence=waiting.turn,
            inputs=waiting.tensors,
            phase=waiting.phase,
        )
        content = made.SerializeToString()
        if self._link is not None:
            self._link.sent(len(content), monotonic_ns())
        self._stream.send((self._session, waiting.turn), content)

    def _lose(self, message: str, hint: str) -> None:
        if self._lost is None:
            self._lost = SplitLostError(message, hint)
        waiting = self._waiting
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_exception(self._lost)


def _hint(failure: pb.SubgraphFailure) -> str:
    if failure in (pb.SUBGRAPH_LOST, pb.SUBGRAPH_UNKNOWN):
        return "train again; nothing of an unfinished training counts in a mean of copies"
    return "the edge's operator knows which step, cut and sharing this round has"


def lost(error: DelianError, steps: int) -> SplitLostError:
    """The same with how many steps were whole."""
    return SplitLostError(error.message, error.hint, steps)
