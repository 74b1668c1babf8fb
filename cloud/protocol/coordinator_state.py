"""The coordinator's state, as plain data: the edges, each run, and each open attempt.

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
    """Where a run is. The first is never seen from outside, the last three end it."""

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
    """An edge as its newest EdgeHello describes it."""

    incarnation: int
    sequence: int
    heard_ns: int
    ready: list[int]
    #: Device -> the run that tasked it. Since then no hello came without the device: that it is in
    #: `ready` means nothing.
    taken: dict[int, int] = field(default_factory=dict)
    told_draining: bool = False  # whether it knows that it is to drain
    helper: HelperKey | None = None  # the key that it helps with
    #: Device that is there and not in its pool -> the RejectReason.
    away: dict[int, int] = field(default_factory=dict)
    idle: int = 0  # how many of these could work
    #: Device -> when it was there last, ns: in a hello, or at the end of its task.
    seen: dict[int, int] = field(default_factory=dict)
    #: Device whose task has ended and that no hello has named since -> when it ended, ns.
    due: dict[int, int] = field(default_factory=dict)
    grown_ns: int = 0  # when a device was first seen last


@dataclass(slots=True)
class Share:
    """One edge's share of an attempt."""

    devices: list[int]  # those that it was given
    alive: bool = False  # it showed a sign of life
    part: int = 0  # which part of its sum is open
    counted: int = 0  # updates that it reports in that part
    later: int = 0  # updates in the part after it, reported before the part itself came
    reported: list[int] = field(default_factory=list)  # devices in the parts that are in
    flushed: bool = False  # the open part was requested
    over: bool = False  # its last part is in, or it is lost


@dataclass(slots=True)
class SessionBook:
    """What the coordinator keeps of a session of secure aggregation."""

    server: ServerState = field(default_factory=ServerState)  # the session's own state
    heard: dict[int, int] = field(default_factory=dict)  # device -> edge of its last message
    #: Devices whose shares came through another edge than the one that tasked them: shares are not
    #: signed, and that edge may have forged them.
    strayed: list[int] = field(default_factory=list)
    step_ends_ns: int = 0  # when the step at hand is over
    ended_ns: list[int] = field(default_factory=list)  # when each step before it was
    tries: int = 0  # how often silent devices were asked
    untold: list[int] = field(default_factory=list)  # devices that still get the step's message
    ticket: int = 0  # of the program that removes the masks; 0: it was not started


@dataclass(slots=True)
class Attempt:
    """Devices with one task: the attempt at hand of a synchronous run, a wave of a buffered one."""

    round: int
    attempt: int
    evaluates: bool  # they evaluate the model and do not train
    weights: BlobRef  # what they work on
    opened_ns: int
    ends_ns: int
    shares: dict[int, Share] = field(default_factory=dict)  # by edge
    failures: dict[int, int] = field(default_factory=dict)  # device -> FailureReason
    total: Vector | None = None  # the sum over `unused`; masked, while there is a session
    unused: list[int] = field(default_factory=list)  # devices with updates that are in no model yet
    apart: bool = False  # updates are not added up but in `updates`, and there is no total
    updates: dict[int, Vector] = field(default_factory=dict)  # by device
    flushed: bool = False  # all sums were requested
    tries: int = 0  # how often edges were asked since then, or since it began
    session: SessionBook | None = None  # of secure aggregation, while there is one
    why: str = ""  # why it failed; the other cohorts of its round go on
    helpers: list[HelperKey] = field(default_factory=list)  # they unmask it where no session does
    seeds: list[MaskSeeds] = field(default_factory=list)  # of the masks in the total, as `unused`
    name: int = 0  # its run's on the wire (`core/protocol/run_names.py`); 0: the run's number
    task: Task | None = None  # what its devices were given, once it is made

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
        """Updates that the edges have, besides those that are in."""
        return sum(share.counted for _, share in self.owing())

    def working(self) -> int:
        """Devices that have not answered, as far as it is known here: at least 0 of an edge."""
        working = 0
        for _, share in self.owing():
            answered = len(share.reported) + share.counted + share.later
            failed = sum(1 for d in share.devices if d in self.failures)
            working += max(0, len(share.devices) - answered - failed)
        return working

    def hear(self, edge: int, counted: int, later: bool = False) -> None:
        """Takes an edge's count of updates in its open part, or in the one after it.

        A sign of life. The count is of its own devices at most, whatever the edge reports.
        """
        share = self.shares[edge]
        share.alive = True
        counted = min(counted, len(share.devices) - len(share.reported))
        if later:
            share.later = max(counted, share.later)
        else:
            share.counted = max(counted, share.counted)

    def fits(self, message: EdgeSum, content: Content, plan: ring.RingPlan) -> bool:
        """Whether a sum, with its vectors, is of devices that were its edge's own, each once."""
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
    """Updates of a buffered run that helpers unmask together."""

    number: int
    pieces: int  # of the run's `batch`, in order
    factor: float  # what each update counts
    total: Vector  # their sum, without the masks of those helpers that have answered
    requests: dict[int, HelpRequest] = field(default_factory=dict)  # edge -> open request


@dataclass(slots=True)
class RunState:
    """The state of a run that is not over."""

    run: int
    plan: PlanMessage
    weights: BlobRef  # the newest model
    memory: BlobRef | None = None  # the server optimiser's
    phase: Phase = Phase.NEW
    round: int = 1  # the one at hand; it makes model number `round` of `weights`
    attempt: int = 1  # the newest of it
    failed: int = 0  # attempts in a row that gave nothing
    spoilt: int = 0  # of a buffered run: attempts of which no model could be made
    #: Of a synchronous run at most one attempt, or the cohorts of a round; of a buffered one waves.
    open: list[Attempt] = field(default_factory=list)
    evaluates: bool = False  # devices are wanted for an evaluation, not for training
    rested: bool = False  # the pause before selecting is over
    settling: bool = False  # the time to wait for enough devices is over
    rest_ends_ns: int = 0
    wait_ends_ns: int = 0
    cooling: bool = False  # nothing is selected before the pause is over
    opened_ns: int = 0
    weight: float = 0.0
    tickets: int = 0  # given out
    ticket: int = 0  # the server update's
    ordered: BlobRef | None = None  # weights that replace the model at the next chance
    pausing: bool = False  # no device is selected any more
    best: float | None = None  # the lowest personalized loss of an evaluation
    clip: AdaptiveClip | None = None  # of the round at hand, where it follows the updates' norms
    best_weights: BlobRef | None = None  # of the model of `best`, where a plan may roll back to it
    best_round: int = 0  # its number
    best_accuracy: float = 0.0  # its personalized accuracy
    worse: int = 0  # evaluations since then
    turn: int = 0  # when it took devices last, in turns of all runs
    stopped_by: str = ""
    explained: str = ""  # why it waits, as it was recorded last; empty: it does not wait
    explained_ns: int = -1  # when that was, or since when it waits; -1: it does not wait
    parked: list[Attempt] = field(default_factory=list)  # closed waves with unused updates
    batch: list[Attempt] = field(default_factory=list)  # what the server update works on
    opening: list[Batch] = field(default_factory=list)  # of `batch`, what helpers unmask together
    batches: int = 0  # shown to helpers so far
    help_tries: int = 0  # how often these were shown
    help_ends_ns: int = 0  # when helpers are not waited for any more
    help_logs: dict[int, int] = field(default_factory=dict)  # helper -> size of its accepted log
    resolved: list[int] = field(default_factory=list)  # devices without an update since last model
    stale: list[int] = field(default_factory=list)  # devices whose update came too late
    failures: dict[int, int] = field(default_factory=dict)  # device -> FailureReason
    barred: list[int] = field(default_factory=list)  # devices that corrupted a masked sum
    budget: Budget | None = None  # what sums have cost of the privacy promise; None: nothing yet
    name: int = 0  # of its new attempts (`core/protocol/run_names.py`); 0: its number
    refused: dict[int, int] = field(default_factory=dict)  # edge -> bad sums in a row
    #: Device -> the edge in whose sum it was without a part in the session; the newest last.
    doubted: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class EndedRun:
    """What is left of a run."""

    phase: Phase  # how it ended
    round: int  # models made
    weights: BlobRef  # the last one
    why: str  # why it ended; empty: all rounds were made


@dataclass(slots=True)
class CoordinatorState:
    """The coordinator's whole state."""

    phase: Serving = Serving.OFFLINE
    edges: dict[int, EdgeView] = field(default_factory=dict)  # by number
    runs: dict[int, RunState] = field(default_factory=dict)  # those that are not over, by number
    ended: dict[int, EndedRun] = field(default_factory=dict)  # the newest others, oldest first
    newest: int = 0  # the highest number that a run had
    turns: int = 0  # counts the times that a run took devices
    pace: Pace | None = None  # what the edges got last
    paced: int = 0  # its number, as every edge should name it
    draining: dict[int, bool] = field(default_factory=dict)  # edges out of service by an order
    denied: int = 0  # version of the deny list
    epoch: int = 0  # of this start, in the names of runs (`core/protocol/run_names.py`)
    log: LogHead | None = None  # newest head of the certificate log; None: no proofs to devices
    look_at_ns: int = 0  # when the runs that wait are looked at next; 0: when something happens


@dataclass(frozen=True, slots=True)
class CoordinatorPolicy:
    """What the coordinator's operator sets.

    A journal is replayed under the policy that it was written under: change it after an orderly
    end, which leaves a snapshot.
    """

    ready_per_edge_max: int = 2_000  # devices that an edge keeps ready while a run wants any
    after_task_ms: tuple[int, int] = (500, 3_000)  # where no run's plan sets it
    after_reject_ms: tuple[int, int] = (10_000, 60_000)
    lease_ms: int = 600_000
    edge_silence_ns: int = 120 * SECOND  # an edge that is silent for so long is not selected from
    #: No new device has come for so long: the fleet is as large as it looks.
    calm_ns: int = 5 * SECOND
    #: A device that is in no list of its edge comes back from its task within this time, or not
    #: for the next round.
    absence_ns: int = 30 * SECOND
    #: How long a run waits before a record says why, and between two such records; 0: none do.
    explain_ns: int = 4 * SECOND
    explain_every_ns: int = 10 * SECOND
    #: Pauses before edges are asked again.
    backoff: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 60 * SECOND, 256 * 1024))
    names_sums: bool = True  # whether records of rounds have the SHA-256 of sums, for an audit
