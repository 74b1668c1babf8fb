"""A process of a training script, and the thread that receives its answers.

The thread that submits a job sends it, if that takes no time: a round's first jobs then begin while
the thread of events goes on. While a script works on a short job, the next one has been sent: the
process does not wait for its host between the two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from ...core.common.errors import DelianError
from ...core.node.scripts.script_process import ScriptFault, ScriptJob, ScriptReply
from ...core.protocol.ports import Floats
from .training_threads import Pending

#: Jobs that a process may have at once.
PLACES = 2
#: Of jobs that take longer it has one: of the last jobs of a round one could wait behind another
#: while another process has none, and what the host takes between two jobs does not show.
SHORT_S = 0.05

T = TypeVar("T")


class Process(Protocol):
    """What a worker needs of a ScriptProcess, or of one elsewhere."""

    ended: bool
    answer_s: float

    @property
    def takes_at_once(self) -> bool: ...
    def send(self, job: ScriptJob, weights: Floats, wall_s: float) -> None: ...
    def receive(self, wall_s: float) -> ScriptReply: ...
    def first(self, wall_s: float) -> dict[str, NDArray[Any]]: ...
    def kill(self) -> None: ...


class Asked(Pending[T], Generic[T]):
    """A job, and what `then` makes of its answer on the thread that receives it."""

    __slots__ = ("_then", "answer", "job", "sent_to", "weights")

    def __init__(self, job: ScriptJob, weights: Floats, then: Callable[[ScriptReply], T]) -> None:
        super().__init__(self._made)
        self.job, self.weights, self._then = job, weights, then
        self.sent_to: Process | None = None
        self.answer: ScriptReply | Exception | None = None

    def _made(self) -> T:
        answer = self.answer
        assert answer is not None
        if isinstance(answer, Exception):
            raise answer
        return self._then(answer)


class ScriptWorker:
    """One process at a time, and its thread.

    process_for: the process that a job is for, started where there is none; called on the thread.
    shared: whether that is the one that it gave before, until that has ended. room: called when a
    job was answered, before the answer is used. timeout_s: for one answer.
    """

    def __init__(
        self,
        process_for: Callable[[ScriptJob, Process | None], Process],
        shared: bool,
        room: Callable[[ScriptWorker], None],
        timeout_s: float,
        name: str,
    ) -> None:
        self._process_for, self._shared = process_for, shared
        self._room, self._timeout_s = room, timeout_s
        self.open = 0
        """Jobs that were handed over and not answered. The pool counts them."""
        self._process: Process | None = None
        self._sending, self._unsent = threading.Lock(), 0
        self._queue: SimpleQueue[Asked[Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether it is to get no more jobs now."""
        process = self._process
        short = process is not None and process.answer_s < SHORT_S
        return self.open >= (PLACES if short else 1)

    def take(self, asked: Asked[Any]) -> None:
        """Does a job after those that it has."""
        with self._sending:
            process = self._process
            if not self._unsent and process is not None and process.takes_at_once:
                self._send(process, asked)
            if asked.sent_to is None:
                self._unsent += 1
        self._queue.put(asked)

    def end(self) -> None:
        """There are no more jobs. Waits for the thread."""
        self._queue.put(None)
        self._thread.join()

    def _send(self, process: Process, asked: Asked[Any]) -> None:
        """Sends a job, or leaves it to the thread, which finds the fault again."""
        try:
            process.send(asked.job, asked.weights, self._timeout_s)
        except ScriptFault:
            return
        asked.sent_to = process

    def _serve(self) -> None:
        while (asked := self._queue.get()) is not None:
            try:
                asked.answer = self._answered(asked)
            except ScriptFault as fault:
                job = asked.job
                where = f"client {job.client}, round {job.round}, {job.purpose}"
                asked.answer = DelianError(f"{where}: {fault.message}", fault.hint)
            except Exception as fault:  # the reader of the result gets it
                asked.answer = fault
            self._room(self)
            asked.run()
            del asked  # an answer is as large as the model

    def _answered(self, asked: Asked[Any]) -> ScriptReply:
        unsent = asked.sent_to is None
        try:
            process = self._process_for(asked.job, self._process)
            with self._sending:
                self._process = process if self._shared else None
                # One that was sent to a process that has ended had not begun.
                if asked.sent_to is not process:
                    process.send(asked.job, asked.weights, self._timeout_s)
        finally:
            if unsent:
                with self._sending:
                    self._unsent -= 1
        return process.receive(self._timeout_s)
