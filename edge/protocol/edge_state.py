"""An edge's state, as plain data, and what its operator sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ...core.privacy.secagg.helper import Ledger
from ...core.protocol.machine import Backoff
from ...core.protocol.ports import DEVICES_PER_EDGE_MAX, MS, SECOND, Vector
from ...core.wire.admission_pb2 import Pace
from ...core.wire.round_pb2 import EdgeSum, EdgeTask, RingPlan
from ...core.wire.secure_pb2 import MaskSeeds

#: In `answers`: the update is in a sum; or it did not fit. Numbers above zero: FailureReason.
IN_SUM = 0
MISFIT = -1

#: Attempts that are collected at once: a few runs, each with a few overlapping waves.
COLLECTIONS_MAX = 64
#: Sums of one attempt that are on their way up at once; see Flush.go_on.
PARTS_OUT_MAX = 16
#: Blobs that an edge asks the cloud for at once.
FETCHES_MAX = 8
#: Bundles that are kept for the next round: of the runs that take turns on the fleet.
BUNDLES_KEPT = 16
#: Attempts that are kept after their end, of one run and in all, and the answers in them: a device
#: whose UploadAck was lost gets the status of its answer again.
CLOSED_PER_RUN = 16
CLOSED_MAX = 256
ANSWERS_REMEMBERED = 200_000
#: Batches whose masks an edge adds up at once.
HELPING_MAX = 8
#: Runs whose newest attempt an edge keeps, and runs whose newest weights it keeps.
RUNS_REMEMBERED = 256
WEIGHTS_KEPT = 16


class Phase(StrEnum):
    """Where the edge is."""

    OFFLINE = "offline"
    SERVING = "serving"
    DRAINING = "draining"  # takes no more devices; what was begun goes on


class Stage(StrEnum):
    """Where one attempt is."""

    NEW = "new"
    COLLECTING = "collecting"  # the task is out
    REPORTING = "reporting"  # no answer is waited for, and a sum is not yet acknowledged
    OVER = "over"


@dataclass(slots=True)
class CollectionState:
    """One attempt at an edge, while it is open."""

    task: EdgeTask
    phase: Stage = Stage.NEW
    opened_ns: int = 0
    ends_ns: int = 0
    tries: int = 0  # sendings of the task to silent devices
    waiting: dict[int, bool] = field(default_factory=dict)  # device -> whether it is alive
    #: Device -> IN_SUM, MISFIT or a FailureReason, in all parts.
    answers: dict[int, int] = field(default_factory=dict)
    part: int = 0  # the number of the part at hand
    in_part: list[int] = field(default_factory=list)  # devices that answered in it
    counted: int = 0  # updates in its sum
    total: Vector | None = None  # its running sum
    apart: dict[int, bytes] = field(default_factory=dict)  # device -> update, instead of a sum
    seeds: dict[int, MaskSeeds] = field(default_factory=dict)  # of updates that helpers unmask
    #: Device -> its whole training with this edge.
    trained: dict[int, bytes] = field(default_factory=dict)
    #: The same, of updates whose other part is here.
    splits: dict[int, bytes] = field(default_factory=dict)
    split_begun: int = 0  # ticket of what lets devices train with this edge; 0: they do not
    split_ending: int = 0  # ticket of the sum of the parts that are here, while that is made
    progress_due: bool = False
    outgoing: dict[int, EdgeSum] = field(default_factory=dict)  # part -> sum, until acknowledged
    sizes: dict[int, int] = field(default_factory=dict)  # encoded bytes of these
    #: Their vectors, where the driver carries vectors separately.
    beside: dict[int, bytes | memoryview] = field(default_factory=dict)
    sum_tries: int = 0  # sendings of sums


@dataclass(slots=True)
class Closed:
    """What is kept of an attempt that is over."""

    run: int
    at: tuple[int, int]
    #: Not needed once its round has succeeded; empty after an evaluation: a round begins from them.
    weights: bytes = b""
    upload_bytes: int = 0  # of an update; 0: its task never came
    answers: dict[int, int] = field(default_factory=dict)
    turned_down: bool = False  # there was no room for it


@dataclass(slots=True)
class Helping:
    """A batch of a run whose masks are being added up, in this ring."""

    run: int
    batch: int
    ring: RingPlan


@dataclass(slots=True)
class EdgeState:
    """An edge's whole state, as plain data."""

    edge: int
    incarnation: int
    phase: Phase = Phase.OFFLINE
    hello_sequence: int = 0
    hello_at_ns: int = 0
    pool: dict[int, int] = field(default_factory=dict)  # device -> when its lease ends, ns
    check_ins: dict[int, int] = field(default_factory=dict)  # device -> newest; oldest first
    #: Device that was sent away and comes back by itself -> the RejectReason, and when it is not
    #: waited for any more, ns.
    away: dict[int, tuple[int, int]] = field(default_factory=dict)
    pace: Pace | None = None
    have: list[bytes] = field(default_factory=list)  # digests in the store
    asked: dict[bytes, dict[int, bool]] = field(default_factory=dict)  # digest -> waiting devices
    fetch_tries: int = 0
    bundles: list[bytes] = field(default_factory=list)  # of the last tasks, the newest last
    #: Bundles and frozen parts of the last tasks -> their bytes, the last used last.
    kept: dict[bytes, int] = field(default_factory=dict)
    #: Run -> the first weights of its newest attempt, until a round from them has succeeded.
    weights: dict[int, bytes] = field(default_factory=dict)
    weight_sizes: dict[bytes, int] = field(default_factory=dict)  # bytes of these
    collections: dict[str, CollectionState] = field(default_factory=dict)  # open attempts by name
    closed: dict[str, Closed] = field(default_factory=dict)  # those that are over, oldest first
    #: Run -> (round, attempt): up to it, tasks that are in neither table are old.
    floor: dict[int, tuple[int, int]] = field(default_factory=dict)
    drained: bool = False  # its own side has ordered it to drain; the cloud's pace may do so too
    denied_version: int = 0  # of its copy of the deny list, as in `DeviceState`
    denied_issued_s: int = 0
    ledger: Ledger = field(default_factory=Ledger)  # whose seeds it has opened as a helper
    helping: dict[int, Helping] = field(default_factory=dict)  # ticket -> batch in work
    tickets: int = 0  # given out
    turn_ns: int = 0  # when the last device that was sent away from a full pool comes back


@dataclass(frozen=True, slots=True)
class EdgePolicy:
    """What an edge's operator sets. Windows and lease hold until the cloud has set a pace."""

    backoff: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 60 * SECOND, 64 * 1024))
    devices_max: int = 20_000
    hello_delay_ns: int = 500 * MS  # how long changes of the pool are gathered
    heartbeat_ns: int = 30 * SECOND  # longest silence towards the cloud
    progress_delay_ns: int = 50 * MS  # how long answers are gathered
    #: Of running sums and of those on their way up, all attempts together. A task that would go
    #: beyond it is answered by an empty sum.
    sum_bytes_max: int = 4 * 2**30
    #: Room of its store: for the blobs of all open attempts together, and for what is kept for
    #: later ones. A task that would go beyond it is answered by an empty sum.
    blobs_bytes_max: int = 4 * 2**30
    sum_keep_ns: int = 24 * 3600 * SECOND  # how long after its attempt's time a sum is repeated
    after_task_ms: tuple[int, int] = (1_000, 5_000)
    after_reject_ms: tuple[int, int] = (30_000, 120_000)
    lease_ms: int = 600_000
    denied_age_ns: int = 0  # how old the deny list of a helper may be; 0: of any age
    splits: bool = False  # whether devices may train with it

    def __post_init__(self) -> None:
        assert 0 < self.devices_max <= DEVICES_PER_EDGE_MAX
        assert self.hello_delay_ns < self.heartbeat_ns
        assert self.sum_bytes_max > 0
