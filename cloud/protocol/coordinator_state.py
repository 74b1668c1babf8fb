"""What the coordinator remembers, as plain data: the edges, each run, and each attempt that is out.

Nothing here decides anything; `machine`, `rounds` and `buffered` do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from ...core.privacy.mechanisms import ring
from ...core.privacy.mechanisms.accountant import Budget
from ...core.privacy.mechanisms.adaptive_clip import AdaptiveClip
from ...core.privacy.secagg.logged import LogHead
from ...core.privacy.secagg.server import ServerState
from ...core.protocol.machine import Backoff
from ...core.protocol.ports import SECOND, Content, Vector
from ...core.wire.admission_pb2 import Pace
from ...core.wire.blob_pb2 import BlobRef
from ...core.wire.helper_pb2 import HelpRequest
from ...core.wire.operator_pb2 import PlanMessage
from ...core.wire.round_pb2 import EdgeSum, Task
from ...core.wire.secure_pb2 import HelperKey, MaskSeeds

#: Runs side by side. Each holds a few vectors as long as its model.
RUNS_ACTIVE_MAX = 16
#: Runs that are over and still named; the registry knows all of them.
RUNS_ENDED_MAX = 64


class Phase(StrEnum):
    """A run's. The first is never seen from outside, the last three end it."""

    NEW = "new"
    WAITING = "waiting"  # for enough devices
    COLLECTING = "collecting"  # tasks are out
    AGGREGATING = "aggregating"  # the server update runs
    EVALUATING = "evaluating"  # devices judge the newest model
    UNMASKING = "unmasking"  # the sums are in; devices give the shares that take the masks out
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


OVER = (Phase.DONE, Phase.CANCELLED, Phase.FAILED)


class Serving(StrEnum):
    """The coordinator's own phases."""

    OFFLINE = "offline"
    SERVING = "serving"


@dataclass(slots=True)
class EdgeView:
    """What the coordinator knows of an edge: its newest EdgeHello.

    taken: device -> the run that tasked it, since when no hello came without the device: that it
    stands in `ready` says nothing. told_draining: whether it has heard that it is to drain. helper:
    the key that it helps with.
    """

    incarnation: int
    sequence: int
    heard_ns: int
    ready: list[int]
    taken: dict[int, int] = field(default_factory=dict)
    told_draining: bool = False
    helper: HelperKey | None = None


@dataclass(slots=True)
class Share:
    """One edge's share of an attempt.

    devices: those that it was given. alive: it showed a sign of life. part: which part of its sum
    is open. counted: updates that it says are in that part. later: updates in the part after it,
    told before the part itself came. reported: devices in the parts that are in. flushed: the open
    part was asked for. over: its last part is in, or it is lost.
    """

    devices: list[int]
    alive: bool = False
    part: int = 0
    counted: int = 0
    later: int = 0
    reported: list[int] = field(default_factory=list)
    flushed: bool = False
    over: bool = False


@dataclass(slots=True)
class SessionBook:
    """What the coordinator keeps of a session of secure aggregation, beside the session's state.

    heard: device -> the edge from which it was heard last. strayed: devices whose shares came
    through another edge than gave them the task: no device signs shares, and that edge may have
    made them up. step_ends_ns: when the step at hand is over. ended_ns: when each step before it
    was. tries: how often silent devices were asked. untold: those to whom the step's message is
    still to go. ticket: of the program that takes the masks out; zero: it has not been asked for.
    """

    server: ServerState = field(default_factory=ServerState)
    heard: dict[int, int] = field(default_factory=dict)
    strayed: list[int] = field(default_factory=list)
    step_ends_ns: int = 0
    ended_ns: list[int] = field(default_factory=list)
    tries: int = 0
    untold: list[int] = field(default_factory=list)
    ticket: int = 0


@dataclass(slots=True)
class Attempt:
    """Devices that were given one task together, and what came of it: of a synchronous run the
    attempt at hand, of a buffered one a wave.

    evaluates: they judge the model and do not train. weights: what they work on. shares: by edge.
    failures: device -> FailureReason. total: the sum over `unused`, the devices whose updates are
    in and not yet in a model. apart: updates are not added up; then they stand in `updates`, by
    device, and there is no total. flushed: all sums were asked for. tries: how often edges were
    asked since then, or since it began. session: of secure aggregation, while there is one: then
    the total is masked. why: nothing comes of it, in words; the others of its round go on. helpers:
    who unmasks it, where there is no session; seeds: of the masks in the total, for each of
    `unused`. name: its run's on the wire (`core/protocol/run_names.py`); zero: the run's number.

    task: what its devices were given, once it is made.
    """

    round: int
    attempt: int
    evaluates: bool
    weights: BlobRef
    opened_ns: int
    ends_ns: int
    shares: dict[int, Share] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    total: Vector | None = None
    unused: list[int] = field(default_factory=list)
    apart: bool = False
    updates: dict[int, Vector] = field(default_factory=dict)
    flushed: bool = False
    tries: int = 0
    session: SessionBook | None = None
    why: str = ""
    helpers: list[HelperKey] = field(default_factory=list)
    seeds: list[MaskSeeds] = field(default_factory=list)
    name: int = 0
    task: Task | None = None

    @property
    def book(self) -> SessionBook:
        """The session, where there is one."""
        assert self.session is not None
        return self.session

    @property
    def usable(self) -> list[int]:
        """The devices whose updates are here and could be used now."""
        return self.unused if self.session is None else []

    def selected(self) -> list[int]:
        return sorted(d for share in self.shares.values() for d in share.devices)

    def reported(self) -> list[int]:
        return sorted(d for share in self.shares.values() for d in share.reported)

    def owing(self) -> Iterator[tuple[int, Share]]:
        """The edges whose last part is not in."""
        return ((edge, share) for edge, share in self.shares.items() if not share.over)

    def owes(self, edge: int) -> bool:
        share = self.shares.get(edge)
        return share is not None and not share.over

    def counted(self) -> int:
        """Updates that the edges have, beside those that are in."""
        return sum(share.counted for _, share in self.owing())

    def working(self) -> int:
        """Devices that have not answered, as far as it is known here. What an edge has counted is
        its word alone: never fewer than none.
        """
        return sum(
            max(
                0,
                len(share.devices)
                - len(share.reported)
                - share.counted
                - share.later
                - sum(1 for d in share.devices if d in self.failures),
            )
            for _, share in self.owing()
        )

    def hear(self, edge: int, counted: int, later: bool = False) -> None:
        """An edge is alive, and says how many updates it has in its open part, or in the one after
        it: of its own devices, whatever it says.
        """
        share = self.shares[edge]
        share.alive = True
        counted = min(counted, len(share.devices) - len(share.reported))
        if later:
            share.later = max(counted, share.later)
        else:
            share.counted = max(counted, share.counted)

    def fits(self, message: EdgeSum, content: Content, plan: ring.RingPlan) -> bool:
        """Whether a sum is what its edge may send: of devices that were its own, each once.
        content: its vectors.
        """
        share = self.shares[message.edge]
        devices = list(message.devices)
        failed = [f.device for f in message.failures]
        open_still = set(share.devices).difference(share.reported, self.failures)
        length = plan.wire_bytes * (len(devices) if self.apart else bool(devices))
        return (
            message.count == len(devices)
            and all(a < b for a, b in pairwise(devices))
            and all(a < b for a, b in pairwise(failed))
            and open_still.issuperset(devices)
            and open_still.issuperset(failed)
            and not set(devices).intersection(failed)
            and len(content) == length
            and all(ring.is_packed(one, plan) for one in _rows(content, plan))
        )

    def add(self, message: EdgeSum, content: Content, plan: ring.RingPlan) -> None:
        """Takes in a sum that fits."""
        share = self.shares[message.edge]
        for failure in message.failures:
            self.failures[failure.device] = failure.reason
        share.reported.extend(message.devices)
        self.unused.extend(message.devices)
        self.seeds.extend(message.seeds)
        share.part = message.part + 1
        share.counted, share.later, share.flushed = share.later, 0, False
        share.over = not message.more
        if message.count and self.apart:
            for device, one in zip(message.devices, _rows(content, plan), strict=True):
                self.updates[device] = ring.unpacked(one, plan)
        elif message.count:
            self.total = ring.summed(self.total, content, plan)

    def lose(self, edge: int) -> None:
        """What the edge had is gone."""
        share = self.shares[edge]
        share.counted = share.later = 0
        share.flushed = False
        share.over = True


def _rows(content: Content, plan: ring.RingPlan) -> Iterator[memoryview]:
    """The vectors that a sum carries, each as it travels."""
    size, whole = plan.wire_bytes, memoryview(content)
    return (whole[at : at + size] for at in range(0, len(whole), size))


@dataclass(slots=True)
class Batch:
    """Updates of a buffered run that helpers unmask together.

    pieces: of the run's `batch`, in order. factor: what each update counts. total: their sum,
    without the masks of those helpers that have answered. requests: edge -> what it was shown, of
    those that have not.
    """

    number: int
    pieces: int
    factor: float
    total: Vector
    requests: dict[int, HelpRequest] = field(default_factory=dict)


@dataclass(slots=True)
class RunState:
    """All that the coordinator remembers of a run that is not over.

    weights: the newest model. memory: the server optimiser's. round: the one at hand; it makes
    model number `round` of `weights`. attempt: the newest of it. failed: attempts in a row that
    gave nothing; spoilt: of a buffered run, of which no model could be made. open: what is out; of
    a synchronous run at most one, or the cohorts of a round that is cut. evaluates: devices are
    wanted for an evaluation, not for training. rested, settling: the pause before selecting is
    over; so is the time to wait for enough. cooling: nothing is selected before the pause is over.
    tickets: given out; ticket: the server update's. ordered: weights that take the model's place at
    the next chance. pausing: no device is selected any more. best: the lowest personal loss of an
    evaluation, best_weights: of which model, where a plan may go back to it, best_round: its
    number, best_accuracy: its personal accuracy; worse: how many evaluations ago. turn: when it
    took devices last, in turns of all runs. parked, batch: of a buffered run, waves that are over
    and whose sums are in no model yet; and what the server update works on. resolved: devices whose
    part of a wave ended without an update since the last model; stale: devices whose update came
    too late to be of use; failures: device -> FailureReason. barred: devices that have spoilt a
    masked sum; who did it last is at the end. budget: of a run with a promise, what its sums have
    cost so far; None: nothing yet. opening: of `batch`, what helpers unmask together; batches:
    shown to them so far; help_tries: how often these were; help_ends_ns: how long they are waited
    for; help_logs: helper -> size of the certificate log's tree that it has accepted. clip: of the
    round at hand, where it follows the updates' lengths. name: what its attempts are opened under
    (`core/protocol/run_names.py`); zero: its number. refused: edge -> sums in a row that no honest
    edge can have made. doubted: device -> the edge in whose sum it was without a part in the
    session; the newest are at the end.
    """

    run: int
    plan: PlanMessage
    weights: BlobRef
    memory: BlobRef | None = None
    phase: Phase = Phase.NEW
    round: int = 1
    attempt: int = 1
    failed: int = 0
    spoilt: int = 0
    open: list[Attempt] = field(default_factory=list)
    evaluates: bool = False
    rested: bool = False
    settling: bool = False
    rest_ends_ns: int = 0
    wait_ends_ns: int = 0
    cooling: bool = False
    opened_ns: int = 0
    weight: float = 0.0
    tickets: int = 0
    ticket: int = 0
    ordered: BlobRef | None = None
    pausing: bool = False
    best: float | None = None
    clip: AdaptiveClip | None = None
    best_weights: BlobRef | None = None
    best_round: int = 0
    best_accuracy: float = 0.0
    worse: int = 0
    turn: int = 0
    stopped_by: str = ""
    parked: list[Attempt] = field(default_factory=list)
    batch: list[Attempt] = field(default_factory=list)
    opening: list[Batch] = field(default_factory=list)
    batches: int = 0
    help_tries: int = 0
    help_ends_ns: int = 0
    help_logs: dict[int, int] = field(default_factory=dict)
    resolved: list[int] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    failures: dict[int, int] = field(default_factory=dict)
    barred: list[int] = field(default_factory=list)
    budget: Budget | None = None
    name: int = 0
    refused: dict[int, int] = field(default_factory=dict)
    doubted: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class EndedRun:
    """What is left of a run. phase: how it ended; why: in words, empty when all rounds were made.
    round: models made. weights: the last one.
    """

    phase: Phase
    round: int
    weights: BlobRef
    why: str


@dataclass(slots=True)
class CoordinatorState:
    """All that the coordinator remembers.

    edges: by number. runs: those that are not over, by number. ended: the newest of the others, the
    oldest first. newest: the highest number that a run had. turns: counts the times that a run took
    devices. pace: what the edges were told last. paced: its number, as every edge should name it.
    draining: edges that an operator takes out of service. denied: version of the deny list. epoch:
    of this start, in the names of runs (`core/protocol/run_names.py`). log: the newest head of the
    certificate log that devices may accept; None: nothing is proved to them.
    """

    phase: Serving = Serving.OFFLINE
    edges: dict[int, EdgeView] = field(default_factory=dict)
    runs: dict[int, RunState] = field(default_factory=dict)
    ended: dict[int, EndedRun] = field(default_factory=dict)
    newest: int = 0
    turns: int = 0
    pace: Pace | None = None
    paced: int = 0
    draining: dict[int, bool] = field(default_factory=dict)
    denied: int = 0
    epoch: int = 0
    log: LogHead | None = None


@dataclass(frozen=True, slots=True)
class CoordinatorPolicy:
    """What the coordinator's operator sets. A journal is replayed under the policy that it was
    written under: change it after an orderly end, which leaves a snapshot.

    ready_per_edge_max: devices that an edge keeps ready while a run wants any. after_task_ms: where
    no run's plan says. after_reject_ms, lease_ms: to the edges as they are. edge_silence_ns: an
    edge not heard of for so long is not selected from. backoff: pauses before edges are asked
    again. names_sums: whether records of rounds name the sums that models were made of by their
    SHA-256, as an audit wants.
    """

    ready_per_edge_max: int = 2_000
    after_task_ms: tuple[int, int] = (500, 3_000)
    after_reject_ms: tuple[int, int] = (10_000, 60_000)
    lease_ms: int = 600_000
    edge_silence_ns: int = 120 * SECOND
    backoff: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 60 * SECOND, 256 * 1024))
    names_sums: bool = True
