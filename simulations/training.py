"""What a federation trains, seen from the simulator, and the work in flight.

When a device ends in virtual time is drawn from its profile; when its result is computed in wall
time does not matter, as long as it is there when virtual time needs it. So updates run on a thread
pool, a few ahead of virtual time, in the order in which virtual time will need them: all cores are
busy, no more than a few updates are held in memory, and what was cancelled before its turn is never
computed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from ..core.ports import Floats, Outcome, Vector
from ..core.privacy.ring import RingPlan

#: Updates in flight beside the one that each thread runs: ready to follow, or done and not yet
#: needed. Each is a vector as long as the model.
AHEAD = 1


@dataclass(frozen=True, slots=True)
class Trained(Outcome):
    """The outcome of a training that leaves a client state. put_down: keeps that, once virtual time
    has come to the training's end.
    """

    put_down: Callable[[], None] = lambda: None


class Training(Protocol):
    """The programs of a bundle, ready to run on the devices' data. All of it deterministic."""

    @property
    def bundle(self) -> bytes:
        """The bundle that devices fetch: what they verify and compile."""

    def initial(self) -> Floats:
        """The first model's weights f32[D]."""

    def flops(self, device: int, program: str) -> float:
        """FLOPs of "client_update" or "evaluate" on a device: with its profile they give its
        virtual time.
        """

    def submit(self, device: int, weights: Floats, key: Vector) -> Future[Outcome]:
        """A device's local update on a thread pool. weights: f32[D], read-only; key: u32[2]."""

    def evaluate(
        self, device: int, weights: Floats, key: Vector, plan: RingPlan
    ) -> Future[Outcome]:
        """A device's metrics (`core.learn.metrics`) on a thread pool, like `submit`."""

    def server_update(
        self, weights: Floats, memory: bytes, mean: Floats, weight: float
    ) -> tuple[Floats, bytes]:
        """The next weights f32[D] and the server optimiser's memory, from the mean update f32[D]
        and the weight behind it. memory: empty before the first, or where there is none.
        """


class Job:
    """One local update: waiting, in flight or cancelled."""

    __slots__ = ("cancelled", "future", "launched", "start")

    def __init__(self, start: Callable[[], Future[Outcome]]) -> None:
        self.start = start
        self.future: Future[Outcome] | None = None
        self.launched = False
        self.cancelled = False


class Jobs:
    """Local updates in the order of virtual time; one a thread and `AHEAD` more are in flight."""

    def __init__(self, threads: int) -> None:
        assert threads >= 1
        self._room = threads + AHEAD
        self._waiting: list[tuple[int, int, Job]] = []
        self._sequence = 0
        self._flying = 0

    def add(self, due: int, start: Callable[[], Future[Outcome]]) -> Job:
        """An update whose result virtual time will need at `due`."""
        job = Job(start)
        self._sequence += 1
        heappush(self._waiting, (due, self._sequence, job))
        return job

    def result(self, job: Job) -> Outcome:
        """Waits for an update; lets the next one start. Raises what the update raised."""
        assert not job.cancelled
        if not job.launched:
            self._launch(job)
        # Here and not where a job is added: those that begin first are not those that end first,
        # and one that is needed late would take the room of one that is needed soon.
        self._fill()
        future, job.future = job.future, None
        assert future is not None
        try:
            return future.result()
        finally:
            self._flying -= 1
            self._fill()

    def cancel(self, job: Job) -> None:
        """The result will not be asked for. One that already runs runs to its end."""
        if job.cancelled:
            return
        job.cancelled = True
        # Events that were scheduled hold the job until their time: they must not hold a result.
        future, job.future = job.future, None
        if future is not None:
            future.cancel()
            self._flying -= 1
            self._fill()

    def _fill(self) -> None:
        while self._waiting and self._flying < self._room:
            _, _, job = heappop(self._waiting)
            if not job.cancelled and not job.launched:
                self._launch(job)

    def _launch(self, job: Job) -> None:
        job.launched = True
        job.future = job.start()
        self._flying += 1

    def cancel_all(self) -> None:
        """Nothing more is wanted."""
        while self._waiting:
            heappop(self._waiting)[2].cancelled = True
