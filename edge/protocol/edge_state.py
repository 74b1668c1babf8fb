"""What an edge remembers, as plain data, and what its operator sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ...core.privacy.secagg.helper import Ledger
from ...core.protocol.machine import Backoff
from ...core.protocol.ports import DEVICES_PER_EDGE_MAX, MS, SECOND, Vector
from ...core.wire.admission_pb2 import Pace
from ...core.wire.round_pb2 import EdgeSum, EdgeTask, RingPlan
from ...core.wire.secure_pb2 import MaskSeeds

#: In `answers`: the update is in a sum; or it did not fit. All that is above zero is a
#: FailureReason.
IN_SUM = 0
MISFIT = -1

#: Attempts that are collected at once: a few runs, each with a few overlapping waves.
COLLECTIONS_MAX = 64
#: Sums of one attempt that are on their way up at once; see Flush.go_on.
PARTS_OUT_MAX = 16
#: Bundles that are kept for the next round: of the runs that take turns on the fleet.
BUNDLES_KEPT = 16
#: Attempts that are remembered after their end, of one run and in all, and the answers in them: a
#: device whose UploadAck was lost is told what became of its answer.
CLOSED_PER_RUN = 16
CLOSED_MAX = 256
ANSWERS_REMEMBERED = 200_000
#: Batches whose masks an edge adds up at once.
HELPING_MAX = 8
#: Runs of which an edge remembers how far they were, and of which it keeps the newest weights.
RUNS_REMEMBERED = 256
WEIGHTS_KEPT = 16


class Phase(StrEnum):
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
    """What an edge remembers of one attempt while it is open.

    waiting: device -> whether it gave a sign of life. answers: device -> IN_SUM, MISFIT or a
    FailureReason, in all parts. Of the part at hand: its number, who answered in it, how many of
    them are in the sum, and the running sum, or the updates apart, by device; where helpers unmask,
    the seeds of those in the sum. outgoing: part -> its sum, until it is acknowledged; sizes: those
    messages' encoded bytes; beside: their vectors, where the driver carries these beside messages.
    tries: sendings of the task to silent devices; sum_tries: of the sums.
    """

    task: EdgeTask
    phase: Stage = Stage.NEW
    opened_ns: int = 0
    ends_ns: int = 0
    tries: int = 0
    waiting: dict[int, bool] = field(default_factory=dict)
    answers: dict[int, int] = field(default_factory=dict)
    part: int = 0
    in_part: list[int] = field(default_factory=list)
    counted: int = 0
    total: Vector | None = None
    apart: dict[int, bytes] = field(default_factory=dict)
    seeds: dict[int, MaskSeeds] = field(default_factory=dict)
    progress_due: bool = False
    outgoing: dict[int, EdgeSum] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    beside: dict[int, bytes | memoryview] = field(default_factory=dict)
    sum_tries: int = 0


@dataclass(slots=True)
class Closed:
    """What is remembered of an attempt that is over: who answered what, and the weights that are of
    no use once its round has succeeded (an evaluation leaves none: a round begins from them).

    upload_bytes: of an update; zero when its task never came. turned_down: there was no room for
    it.
    """

    run: int
    at: tuple[int, int]
    weights: bytes = b""
    upload_bytes: int = 0
    answers: dict[int, int] = field(default_factory=dict)
    turned_down: bool = False


@dataclass(slots=True)
class Helping:
    """A batch of a run whose masks are being added up, in this ring."""

    run: int
    batch: int
    ring: RingPlan


@dataclass(slots=True)
class EdgeState:
    """All that an edge remembers, as plain data.

    pool: device -> when its lease ends, ns. check_ins: device -> its newest check-in, the oldest
    first. have: digests in the store. asked: digest -> devices that wait for it. bundles: of the
    last tasks, the newest last. weights: run -> what its newest attempt began from, until a round
    from there has succeeded. collections: open attempts by name. closed: those that are over, the
    oldest first. floor: run -> (round, attempt), up to which tasks that are not remembered are old.
    drained: its own side has ordered it to drain; it drains as well while the cloud's pace says so.
    denied_version, denied_issued_s: of its copy of the deny list, as at a device (`DeviceState`).
    ledger: whose seeds it has opened as a helper. helping: ticket -> the batch whose masks are
    being added up; tickets: given out. turn_ns: when the last of those comes back who were sent
    away from a full pool.
    """

    edge: int
    incarnation: int
    phase: Phase = Phase.OFFLINE
    hello_sequence: int = 0
    hello_at_ns: int = 0
    pool: dict[int, int] = field(default_factory=dict)
    check_ins: dict[int, int] = field(default_factory=dict)
    pace: Pace | None = None
    have: list[bytes] = field(default_factory=list)
    asked: dict[bytes, dict[int, bool]] = field(default_factory=dict)
    fetch_tries: int = 0
    bundles: list[bytes] = field(default_factory=list)
    weights: dict[int, bytes] = field(default_factory=dict)
    collections: dict[str, CollectionState] = field(default_factory=dict)
    closed: dict[str, Closed] = field(default_factory=dict)
    floor: dict[int, tuple[int, int]] = field(default_factory=dict)
    drained: bool = False
    denied_version: int = 0
    denied_issued_s: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    helping: dict[int, Helping] = field(default_factory=dict)
    tickets: int = 0
    turn_ns: int = 0


@dataclass(frozen=True, slots=True)
class EdgePolicy:
    """What an edge's operator sets.

    hello_delay_ns: how long changes of the pool are gathered. heartbeat_ns: longest silence towards
    the cloud. progress_delay_ns: how long answers are gathered. sum_bytes_max: of running sums and
    of those on their way up, all attempts together; a task that would go beyond it is answered by
    an empty sum. sum_keep_ns: how long after its attempt's time a sum is still offered to a cloud
    that is silent. Windows and lease: until the cloud has set a pace. denied_age_ns: how old the
    deny list may be where it helps; 0: of any age.
    """

    backoff: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 60 * SECOND, 64 * 1024))
    devices_max: int = 20_000
    hello_delay_ns: int = 500 * MS
    heartbeat_ns: int = 30 * SECOND
    progress_delay_ns: int = 50 * MS
    sum_bytes_max: int = 4 * 2**30
    sum_keep_ns: int = 24 * 3600 * SECOND
    after_task_ms: tuple[int, int] = (1_000, 5_000)
    after_reject_ms: tuple[int, int] = (30_000, 120_000)
    lease_ms: int = 600_000
    denied_age_ns: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.devices_max <= DEVICES_PER_EDGE_MAX
        assert self.hello_delay_ns < self.heartbeat_ns
        assert self.sum_bytes_max > 0
