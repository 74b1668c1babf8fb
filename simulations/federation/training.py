"""What a federation trains, seen from the simulator, and the work in flight.

When a device ends in virtual time is drawn from its profile; when its result is computed in wall
time does not matter, as long as it is there when virtual time needs it. So updates run on a thread
pool, a few ahead of virtual time, in the order in which virtual time will need them: all cores are
busy, no more than a few updates are held in memory, and what was cancelled before its turn is never
computed. The first of a round begin as soon as they are known, before virtual time has come to
those that will be needed first, or before their devices ask for them (`speculation`): cores would
stand idle while a round is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol, TypeAlias
from weakref import ref

from ...core.privacy.mechanisms.ring import RingPlan
from ...core.protocol.ports import Floats, Outcome, Vector

if TYPE_CHECKING:
    from .split_rounds import SplitRounds

#: Bytes of updates that are in flight in addition to the one that each thread runs: ready to
#: follow, or done and not yet needed. One such update there is always.
AHEAD_BYTES = 4 * 2**20
#: And no more than so many, however short they are.
AHEAD_MAX = 4

#: What an update is a function of: its device, the name of its weights, and its key's bytes.
Name: TypeAlias = tuple[int, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Trained(Outcome):
    """The outcome of a training, with what the simulator wants to know of it."""

    checksum: int | None = None
    """Of the vector (`trace.checksum`), taken where the vector was made and still is in the core's
    cache.
    """
    put_down: Callable[[], None] | None = None
    """Keeps the client state that the training leaves, once virtual time has come to its end."""


class Awaited(Protocol):
    """An outcome that is being made on another thread."""

    def result(self) -> Outcome:
        """Waits for it; raises what was raised there. Asked for once."""

    def cancel(self) -> bool:
        """It is of no more use; gives whether it had not begun."""


class Training(Protocol):
    """The programs of a bundle, ready to run on the devices' data. All of it deterministic."""

    @property
    def pure(self) -> bool:
        """Whether an update depends only on the arguments of `submit`.

        It must not depend on what an earlier update of its device left.
        """

    @property
    def foreseeable(self) -> bool:
        """Whether an update may begin before its device asks for it, and even if it never does."""

    @property
    def split(self) -> SplitRounds | None:
        """What devices train together with their edges; None: nothing."""

    @property
    def ahead(self) -> int:
        """How many updates are in flight in addition to the one that each thread runs."""

    @property
    def bundle(self) -> bytes:
        """The bundle that devices fetch: what they verify and compile."""

    def initial(self) -> Floats:
        """The first model's weights f32[D]."""

    def flops(self, device: int, program: str) -> float:
        """FLOPs of "client_update" or "evaluate" on a device.

        With its profile they give its virtual time.
        """

    def submit(self, device: int, weights: Floats, key: Vector) -> Awaited:
        """A device's local update on a thread pool. weights: f32[D], read-only; key: u32[2]."""

    def evaluate(self, device: int, weights: Floats, key: Vector, plan: RingPlan) -> Awaited:
        """A device's metrics (`core.learning.metrics`) on a thread pool, like `submit`."""

    def server_update(
        self, weights: Floats, memory: bytes, mean: Floats, weight: float
    ) -> tuple[Floats, bytes]:
        """The next weights f32[D] and server state, from the mean update f32[D] and its weight.

        memory: empty before the first, or where there is none.
        """


def ahead_of(update_bytes: int) -> int:
    """How many updates of a size are in flight in addition to the one that each thread runs."""
    return min(max(AHEAD_BYTES // update_bytes, 1), AHEAD_MAX)


def are_helped(threads: int, update_bytes: int) -> bool:
    """Whether the event-loop thread also executes training jobs while it waits.

    As an additional thread it makes one more than there are cores, and all wait for one another.
    But while it trains it begins no update: each of the others has one that is ready to follow.
    """
    return 2 <= threads <= ahead_of(update_bytes)


class Job:
    """One local update: waiting, in flight or cancelled."""

    __slots__ = ("cancelled", "early", "future", "launched", "start")

    def __init__(self, start: Callable[[], Awaited]) -> None:
        self.start = start
        self.future: Awaited | None = None
        self.launched = False
        self.cancelled = False
        self.early = False  # began before any result of its round was asked for


class Jobs:
    """Local updates in the order of virtual time; one a thread and `ahead` more are in flight.

    Up to `ahead` - 1 others begin when they are added, while nothing else is in flight: those that
    begin first in virtual time are not those that end first, so these have a room of their own. Of
    long vectors there are none: to train them takes so long that a round's opening does not show.
    And the next of those waits until results are in a sum (`tend`). The same room is taken by those
    that begin before they are added (`foresee`).

    results: long ones, and some that have gone.
    """

    def __init__(self, threads: int, ahead: int = 1) -> None:
        assert threads >= 1 and ahead >= 1
        self._room, self._room_early = threads + ahead, ahead - 1
        self._waiting: list[tuple[int, int, Job]] = []
        self._sequence = 0
        self._flying = self._flying_early = 0
        self._are_long = ahead == 1
        self._foreseen: dict[Name, Awaited] = {}
        self._begun: set[Job] = set()  # and not asked for
        self.results: list[ref[Vector]] = []

    def add(self, due: int, start: Callable[[], Awaited], name: Name | None = None) -> Job:
        """An update whose result virtual time will need at `due`.

        name: by which it may have been foreseen.
        """
        job = Job(start)
        if name is not None and (begun := self._foreseen.pop(name, None)) is not None:
            job.future, job.launched, job.early = begun, True, True
            self._flying_early += 1
            self._begun.add(job)
            return job
        self._sequence += 1
        heappush(self._waiting, (due, self._sequence, job))
        if self.has_room_early:
            self._launch_next(early=True)
        return job

    @property
    def has_room_early(self) -> bool:
        """Whether one may begin before any result is asked for."""
        return not self._flying and self._flying_early + len(self._foreseen) < self._room_early

    def foresee(self, name: Name, start: Callable[[], Awaited]) -> None:
        """Begins an update that will be added under this name; to be called where there is room."""
        if name not in self._foreseen:
            self._foreseen[name] = start()

    def forget_foreseen(self) -> None:
        """What was foreseen and not added has not come to pass."""
        for begun in self._foreseen.values():
            begun.cancel()
        self._foreseen.clear()

    def result(self, job: Job) -> Outcome:
        """Waits for an update; lets the next one start. Raises what the update raised."""
        assert not job.cancelled
        if not job.launched:
            self._launch(job, early=False)
        self._fill()
        future, job.future = job.future, None
        assert future is not None
        try:
            outcome = future.result()
        finally:
            self._landed(job)
        if self._are_long and outcome.vector is not None and self._waiting:
            self.results.append(ref(outcome.vector))
        self._fill()
        return outcome

    def cancel(self, job: Job) -> None:
        """The result will not be asked for. One that already runs runs to its end."""
        if job.cancelled:
            return
        job.cancelled = True
        # Events that were scheduled hold the job until their time: they must not hold a result.
        future, job.future = job.future, None
        if future is not None:
            future.cancel()
            self._landed(job)
            if self._flying:
                self._fill()

    def tend(self) -> None:
        """To be called while there are `results` and one may have gone from memory.

        That makes room for a long one.
        """
        self._fill()

    def _fill(self) -> None:
        self.results = [result for result in self.results if result() is not None]
        while self._waiting and self._flying + len(self.results) < self._room:
            self._launch_next(early=False)
        if not self._waiting:
            self.results = []

    def _launch_next(self, early: bool) -> None:
        _, _, job = heappop(self._waiting)
        if not job.cancelled and not job.launched:
            self._launch(job, early)

    def _launch(self, job: Job, early: bool) -> None:
        job.launched, job.early = True, early
        job.future = job.start()
        self._begun.add(job)
        self._flying_early += early
        self._flying += not early

    def _landed(self, job: Job) -> None:
        self._begun.discard(job)
        self._flying_early -= job.early
        self._flying -= not job.early

    def cancel_all(self) -> None:
        """Nothing more is wanted."""
        self.forget_foreseen()
        while self._waiting:
            heappop(self._waiting)[2].cancelled = True
        for job in tuple(self._begun):
            self.cancel(job)
