"""What the coordinator of one run remembers, as plain data, and what the run's owner sets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from ..core.machine import Backoff
from ..core.ports import MS, SECOND, Vector
from ..core.privacy.ring import RingPlan
from ..core.wire.admission_pb2 import Requirements
from ..core.wire.blob_pb2 import BlobRef

#: Devices in one attempt. Secure aggregation splits larger rounds into cohorts of at most 1,000.
SELECTED_MAX = 100_000


class Phase(StrEnum):
    NEW = "new"
    WAITING = "waiting"  # for enough devices
    COLLECTING = "collecting"  # tasks are out
    AGGREGATING = "aggregating"  # the server update runs
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run. Times are in ns unless the name says otherwise.

    cohort: updates that a round aims at; a round closes early when it has them. over_selection: how
    many devices are tasked for each of them. reports_min: fewer updates than this fail the attempt.
    attempts_max: how often a round is tried before the run gives up. round_ns: from the tasks to
    the last sum. margin_ns: the part of it that is kept for the sums' way up. wait_ns: how long to
    wait for enough devices before going on with fewer. rest_ns: pause before selecting, in which
    the last round's devices may come back. pool_min: devices that must be ready; zero: as many as
    are tasked. edge_silence_ns: an edge not heard of for so long is not selected from. The *_ms
    windows and `lease_ms` go to the edges as they are.
    """

    run: int
    rounds: int
    cohort: int
    ring: RingPlan
    bundle: BlobRef
    over_selection: float = 1.3
    reports_min: int = 1
    attempts_max: int = 5
    round_ns: int = 300 * SECOND
    margin_ns: int = 20 * SECOND
    wait_ns: int = 120 * SECOND
    rest_ns: int = 6 * SECOND
    pool_min: int = 0
    edge_silence_ns: int = 120 * SECOND
    ready_per_edge_max: int = 2_000
    after_task_ms: tuple[int, int] = (500, 3_000)
    after_reject_ms: tuple[int, int] = (10_000, 60_000)
    lease_ms: int = 600_000
    requirements: Requirements = field(default_factory=Requirements)
    backoff: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 60 * SECOND, 256 * 1024))

    def __post_init__(self) -> None:
        assert self.rounds >= 1 and self.attempts_max >= 1
        assert 1 <= self.reports_min <= self.cohort
        assert self.over_selection >= 1.0
        assert self.selected <= SELECTED_MAX
        assert self.selected <= self.ring.clients_max, "the ring must hold all who are tasked"
        assert 0 < self.margin_ns < self.round_ns
        assert self.round_ns // MS < 2**32 and self.rest_ns <= self.wait_ns

    @property
    def selected(self) -> int:
        """Devices tasked in a round where enough are ready."""
        # Not ceil(10 * 1.3) = 14 for want of a last bit: 1e-9 is far below one device.
        return math.ceil(self.cohort * self.over_selection - 1e-9)

    @property
    def enough(self) -> int:
        """Ready devices that a round waits for."""
        return max(self.selected, self.pool_min)


@dataclass(slots=True)
class EdgeView:
    """What the coordinator knows of an edge: its newest EdgeHello."""

    incarnation: int
    sequence: int
    heard_ns: int
    ready: list[int]


@dataclass(slots=True)
class CloudState:
    """All that a run's coordinator remembers.

    weights: the present model. edges: by number. Of the attempt at hand, by edge: selected devices;
    alive: whether it showed a sign of life; progress: updates it says it has; reported: devices in
    its sum, once it is in (or none, for an edge that was lost). failures: device -> FailureReason.
    total: the running sum. stopped_by: why a run failed.
    """

    weights: BlobRef
    phase: Phase = Phase.NEW
    round: int = 1
    attempt: int = 1
    edges: dict[int, EdgeView] = field(default_factory=dict)
    rested: bool = False
    rest_ends_ns: int = 0
    wait_ends_ns: int = 0
    opened_ns: int = 0
    ends_ns: int = 0
    tries: int = 0
    flushed: bool = False
    selected: dict[int, list[int]] = field(default_factory=dict)
    alive: dict[int, bool] = field(default_factory=dict)
    progress: dict[int, int] = field(default_factory=dict)
    reported: dict[int, list[int]] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    total: Vector | None = None
    weight: float = 0.0
    ticket: int = 0
    stopped_by: str = ""
