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
from collections.abc import Mapping
from dataclasses import dataclass

from ...common.errors import DelianError
from ...wire import subgraph_pb2 as pb
from ..cut.program_split import Message
from ..cut.wire_formats import Encoded, WireError
from ..subgraphs.frames.stream import FrameStream, Key, StreamError, Whole
from ..subgraphs.request_codec import Values, bytes_max, reply_of, tensors_of, values_of
from ..subgraphs.request_limits import REASON_CHARS_MAX
from ..subgraphs.upstream_driver import failure_of
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
    tensors: list[pb.BoundaryTensor]
    reply: Message
    answer: asyncio.Future[Values]


class TrainingAsker:
    """One training; the owner of an `Upstream`. opening: without a session."""

    def __init__(self, opening: pb.SubgraphOpen) -> None:
        self._opening = opening
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
        if self._lost is not None:
            raise self._lost
        answer: asyncio.Future[Values] = asyncio.get_running_loop().create_future()
        tensors = tensors_of(values, request.ports)
        self._waiting = _Waiting(turn, request.turn, tensors, reply, answer)
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
        self._begin(stream)

    def gone(self) -> None:
        self._stream, self._open = None, False

    def admit(self, key: Key, size: int) -> bool:
        waiting = self._waiting
        if waiting is None or key != (self._session, waiting.turn):
            return False
        if size > bytes_max(waiting.reply.ports):
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
            try:
                waiting.answer.set_result(values_of(said.outputs, waiting.reply.ports))
            except WireError as error:
                self._lose(f"turn {waiting.turn} was answered with other tensors: {error}", "")

    def taken(self, taken: int, waiting: int, at_us: int) -> None:
        """The link is not measured here."""

    def arriving(self, key: Key, done: int, of: int) -> None:
        """Nor so."""

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
        self._stream.send((self._session, waiting.turn), made.SerializeToString())

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
