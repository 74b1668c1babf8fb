"""What an edge remembers, as plain data, and what its operator sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ..core.machine import Backoff
from ..core.ports import DEVICES_PER_EDGE_MAX, MS, SECOND, Vector
from ..core.wire.admission_pb2 import Pace
from ..core.wire.round_pb2 import EdgeSum, EdgeTask

#: In `EdgeState.answers`: the update is in the sum. No FailureReason that is kept there is zero.
IN_SUM = 0


class Phase(StrEnum):
    OFFLINE = "offline"
    GATHERING = "gathering"  # no task
    COLLECTING = "collecting"  # a task is out
    REPORTING = "reporting"  # the sum is made and not yet acknowledged


@dataclass(slots=True)
class EdgeState:
    """All that an edge remembers, as plain data.

    pool: device -> when its lease ends, ns. check_ins: device -> its newest check-in, the oldest
    first. have: digests in the store. asked: digest -> devices that wait for it. waiting: device ->
    whether it gave a sign of life. answers: device -> IN_SUM or a FailureReason, for the attempt
    `answers_of`. total: the running sum. outgoing: the sum as it is repeated. weights: what that
    attempt began from. newest: run -> the newest (round, attempt) of it.
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
    asked: dict[bytes, list[int]] = field(default_factory=dict)
    fetch_tries: int = 0
    task: EdgeTask | None = None
    newest: dict[int, tuple[int, int]] = field(default_factory=dict)
    opened_ns: int = 0
    ends_ns: int = 0
    tries: int = 0
    waiting: dict[int, bool] = field(default_factory=dict)
    answers: dict[int, int] = field(default_factory=dict)
    answers_of: tuple[int, int, int] = (0, 0, 0)
    weights: bytes = b""
    total: Vector | None = None
    progress_due: bool = False
    outgoing: EdgeSum | None = None
    outgoing_size: int = 0


@dataclass(frozen=True, slots=True)
class EdgePolicy:
    """What an edge's operator sets.

    hello_delay_ns: how long changes of the pool are gathered. heartbeat_ns: longest silence towards
    the cloud. progress_delay_ns: how long answers are gathered. Windows and lease: until the cloud
    has set a pace.
    """

    backoff: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 60 * SECOND, 64 * 1024))
    devices_max: int = 20_000
    hello_delay_ns: int = 500 * MS
    heartbeat_ns: int = 30 * SECOND
    progress_delay_ns: int = 50 * MS
    after_task_ms: tuple[int, int] = (1_000, 5_000)
    after_reject_ms: tuple[int, int] = (30_000, 120_000)
    lease_ms: int = 600_000

    def __post_init__(self) -> None:
        assert 0 < self.devices_max <= DEVICES_PER_EDGE_MAX
        assert self.hello_delay_ns < self.heartbeat_ns
