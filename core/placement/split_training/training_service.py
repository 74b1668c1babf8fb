"""The driver of `Trainings`: split training for lower nodes, on the streams of `SubgraphService`.

    host = TrainingHost(Trainings(bundle, cut, sharing))
    service = SubgraphService(host, guard, federation)
    host.begin(weights)          # by the operator; nothing of this is on the wire
    ...
    ended = await host.end()

A stream has one training open at a time. A node that comes again on another stream goes on with its
training there. What a run gives is kept until the next one, so that a reply that was lost is sent
again; and a run whose stream broke still counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic

from ...common.errors import DelianError
from ...compiler.ir import Array
from ...wire import subgraph_pb2 as pb
from ..cut.cut import Cut
from ..cut.wire_formats import WireError
from ..subgraphs.frames.stream import Key, StreamError, Whole
from ..subgraphs.frames.stream_service import Line
from ..subgraphs.request_codec import bytes_max, reply_bytes, request_of, tensors_of, values_of
from ..subgraphs.request_limits import HELD_BYTES_MAX, HELD_BYTES_PER_PEER, REASON_CHARS_MAX
from .step_sides import Sharing, Tensors
from .trainings import Ended, Refused, Training, Trainings

log = logging.getLogger("delian.subgraphs")

#: How each way of sharing is written.
SHARINGS: Mapping[Sharing, pb.SubgraphSharing] = {
    Sharing.COPIES: pb.SUBGRAPH_COPIES,
    Sharing.SEQUENTIAL: pb.SUBGRAPH_SEQUENTIAL,
}
#: How often it is looked whether trainings are idle.
EXPIRE_EVERY_S = 5.0


@dataclass(slots=True)
class _Visit:
    """A stream, with the number and the training that it has open."""

    line: Line
    number: int = 0
    training: Training | None = None
    waits: Key | None = None
    """The request that is to be answered when the run under way ends."""


class TrainingHost:
    """Serves one step's trainings, one run at a time, off the event loop.

    digest: what devices name the step by; None: its content hash. trained: called with each node
    whose training is whole, and its name, before its last turn is answered.
    """

    def __init__(
        self,
        trainings: Trainings,
        digest: bytes | None = None,
        trained: Callable[[str, bytes], object] = lambda node, run: None,
    ) -> None:
        self.trainings, self._trained = trainings, trained
        self.counts: Counter[str] = Counter()  # of refusals and repeats
        self._digest = digest or bytes.fromhex(trainings.bundle.content_hash())
        self._visits: dict[int, _Visit] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="delian-train")

    # ------------------------------------------------ for the operator

    def begin(self, leaves: Mapping[int, Array], cut: Cut | None = None) -> None:
        """`Trainings.begin`. A device that opens by another cut is refused as a misfit."""
        self.trainings.begin(leaves, cut)

    async def end(self) -> Ended:
        """`Trainings.end`, after what is being run."""
        await asyncio.gather(*self._tasks)
        return self.trainings.end()

    async def keep_expiring(self) -> None:
        """Drops idle trainings again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            self.expire()

    def expire(self) -> None:
        """Drops idle trainings."""
        self.trainings.expire(monotonic())

    async def close(self) -> None:
        """Ends. May be called twice."""
        await asyncio.gather(*self._tasks)
        await asyncio.to_thread(self._pool.shutdown)

    # ------------------------------------------------ what the service says

    def came(self, line: Line) -> None:
        self._visits[line.number] = _Visit(line)

    def gone(self, line: Line) -> None:
        self._visits.pop(line.number, None)

    def admit(self, line: Line, key: Key, size: int) -> bool:
        visit = self._visits[line.number]
        training = self._training(visit, key)
        if training is None or not self.trainings.takes(training, key[1]):
            over = training is not None and training.over
            self._fail(visit, key, pb.SUBGRAPH_LOST if over else pb.SUBGRAPH_UNKNOWN)
            return False
        if size > bytes_max(self.trainings.ports_of(training, key[1])[0].ports):
            raise StreamError("oversized request", f"{size} bytes")
        held = sum(v.line.stream.held for v in self._visits.values())
        if (
            held + size > HELD_BYTES_MAX
            or line.stream.held + size > HELD_BYTES_PER_PEER
            or line.stream.waiting > HELD_BYTES_PER_PEER
        ):
            self._fail(visit, key, pb.SUBGRAPH_BUSY)
            return False
        return True

    def said(self, line: Line, frame: pb.SubgraphFrame) -> None:
        visit, kind = self._visits[line.number], frame.WhichOneof("frame")
        if kind == "open":
            self._open(visit, frame.open)
        elif kind == "close":
            if visit.training is not None and frame.close.session == visit.number:
                self.trainings.drop(line.name, visit.training)
                visit.training, visit.waits = None, None
        elif kind == "cancel":
            line.stream.drop((frame.cancel.session, frame.cancel.sequence))
        else:
            raise StreamError("unknown frame")

    def asked(self, line: Line, request: Whole) -> None:
        visit, key = self._visits[line.number], request.key
        training = self._training(visit, key)
        if training is None or not self.trainings.takes(training, key[1]):
            self._fail(visit, key, pb.SUBGRAPH_UNKNOWN)
            return
        message, _ = self.trainings.ports_of(training, key[1])
        try:
            said = request_of(request.content)
            if (said.session, said.sequence, said.phase) != (*key, message.turn):
                raise StreamError("malformed", "a request by another name")
            tensors: Tensors = values_of(said.inputs, message.ports)
        except (StreamError, WireError):
            self._fail(visit, key, pb.SUBGRAPH_MISFIT)
            raise StreamError("malformed", "a request that does not fit") from None
        if key[1] == training.turn:
            self.counts["repeated"] += 1
            self._reply(visit, key, training)
            return
        visit.waits = key
        if training.running:
            self.counts["repeated"] += 1
            return
        training.running = True
        task = asyncio.get_running_loop().create_task(self._run(line.name, training, tensors))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------ openings

    def _open(self, visit: _Visit, asked: pb.SubgraphOpen) -> None:
        if not asked.session or asked.session == visit.number:
            raise StreamError("malformed opening")
        visit.number, visit.training, visit.waits = asked.session, None, None
        said, ours = asked.training, self.trainings
        if asked.bundle != self._digest or asked.program != ours.bundle.step.function.name:
            self._tell(visit, pb.SUBGRAPH_UNKNOWN, "this node has another step, or none")
        elif not ours.knows(asked.cut) or asked.tier != 1:
            self._tell(visit, pb.SUBGRAPH_MISFIT, "the step is cut in another way here")
        elif not asked.HasField("training") or said.sharing != SHARINGS[ours.sharing]:
            self._tell(visit, pb.SUBGRAPH_MISFIT, f"this node trains {ours.sharing.value}")
        else:
            try:
                visit.training = ours.open(
                    visit.line.name,
                    said.run,
                    said.steps,
                    said.examples,
                    said.again,
                    monotonic(),
                    asked.cut,
                )
            except Refused as refused:
                busy = pb.SUBGRAPH_BUSY if refused.later else pb.SUBGRAPH_MISFIT
                self._tell(visit, pb.SUBGRAPH_LOST if refused.over else busy, refused.message)
                return
            except DelianError as error:  # frozen leaves of this cut are missing here
                log.warning("%s: its training was not opened: %s", visit.line.name, error)
                self._tell(visit, pb.SUBGRAPH_FAILED, error.message)
                return
            for other in self._visits.values():  # it goes on here, and nowhere else
                if other is not visit and other.training is visit.training:
                    other.training, other.waits = None, None
            self._tell(visit, pb.SUBGRAPH_DONE, "")

    def _tell(self, visit: _Visit, failure: pb.SubgraphFailure, reason: str) -> None:
        if failure != pb.SUBGRAPH_DONE:
            self.counts[f"opening refused: {pb.SubgraphFailure.Name(failure).lower()}"] += 1
        opened = pb.SubgraphOpened(
            session=visit.number, failure=failure, reason=reason[:REASON_CHARS_MAX]
        )
        visit.line.say(pb.SubgraphFrame(opened=opened))

    # ------------------------------------------------ turns

    def _training(self, visit: _Visit, key: Key) -> Training | None:
        return visit.training if key[0] == visit.number else None

    async def _run(self, node: str, training: Training, tensors: Tensors) -> None:
        loop = asyncio.get_running_loop()
        try:
            reply, moved = await loop.run_in_executor(
                self._pool, self.trainings.run, training, tensors
            )
        except Exception as error:  # the waiting request needs an answer, whatever the fault was
            known = isinstance(error, DelianError | MemoryError)
            log.warning("%s: a turn of its training failed: %s", node, error, exc_info=not known)
            self.trainings.drop(node, training)
            self._answer(training, pb.SUBGRAPH_FAILED)
            return
        finally:
            training.running = False
        counts = self.trainings.ran(training, reply, moved, monotonic())
        if counts and self.trainings.finished(training):
            self._trained(node, training.run)
        self._answer(training, pb.SUBGRAPH_DONE if counts else pb.SUBGRAPH_LOST)

    def _answer(self, training: Training, failure: pb.SubgraphFailure) -> None:
        """Answers the waiting request; there is none where the stream broke."""
        for visit in self._visits.values():
            if visit.training is training and visit.waits is not None:
                key, visit.waits = visit.waits, None
                if failure == pb.SUBGRAPH_DONE:
                    self._reply(visit, key, training)
                else:
                    self._fail(visit, key, failure)

    def _reply(self, visit: _Visit, key: Key, training: Training) -> None:
        _, message = self.trainings.ports_of(training, key[1])
        tensors = tensors_of(training.reply, message.ports)
        visit.line.reply(key, reply_bytes(*key, pb.SUBGRAPH_DONE, tensors))

    def _fail(self, visit: _Visit, key: Key, failure: pb.SubgraphFailure) -> None:
        self.counts[pb.SubgraphFailure.Name(failure).lower()] += 1
        visit.line.reply(key, reply_bytes(*key, failure))
