"""What a device remembers, as plain data, and what its owner sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ..core.machine import Backoff
from ..core.ports import SECOND
from ..core.wire.admission_pb2 import DeviceFacts, Eligibility
from ..core.wire.round_pb2 import Failure, Task, Upload

#: Of how many runs a device remembers its last task. A fleet runs a handful side by side.
RUNS_REMEMBERED = 16
#: Bundles that a device keeps: of the runs that it works for in turn.
BUNDLES_KEPT = 4
#: Where a device may go, at most; and how many of its former homes it can tell from strangers.
HOMES_MAX = 64
#: A lease that ends at once would make a device check in without end.
LEASE_MS_MIN = 1_000


class Phase(StrEnum):
    OFFLINE = "offline"
    IDLE = "idle"  # waits for the moment to come back
    CHECKING_IN = "checking in"
    READY = "ready"  # in the edge's pool
    FETCHING = "fetching"
    TRAINING = "training"
    UPLOADING = "uploading"


@dataclass(slots=True)
class DeviceState:
    """All that a device remembers, as plain data.

    homes: edges, in the order in which it tries them. home: the one that it speaks to. former:
    those that it was told to leave. turned_away: homes in a row that sent it on. draws: random
    numbers drawn. tries: sendings of what is now being repeated. have: digests in the store.
    bundles: those of the last tasks, the newest last. ends_ns: when the task's time is over. done:
    for each run the last (round, attempt) taken; neither it nor an earlier one is taken again.
    """

    device: int
    phase: Phase = Phase.OFFLINE
    homes: list[int] = field(default_factory=list)
    home: int = 0
    former: list[int] = field(default_factory=list)
    turned_away: int = 0
    facts: DeviceFacts = field(default_factory=DeviceFacts)
    eligibility: Eligibility = field(default_factory=Eligibility)
    sequence: int = 0
    draws: int = 0
    tries: int = 0
    task: Task | None = None
    ends_ns: int = 0
    ticket: int = 0
    have: list[bytes] = field(default_factory=list)
    bundles: list[bytes] = field(default_factory=list)
    upload: Upload | None = None
    upload_size: int = 0
    failure: Failure | None = None
    done: dict[int, tuple[int, int]] = field(default_factory=dict)
    after_task_ms: tuple[int, int] = (1_000, 5_000)


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """What a device's owner sets.

    retry_ms: the window where the edge gives none. rehome_tries: check-ins without an answer after
    which it tries its next home. rehome_ms: the window in which it goes there when it was sent on.
    """

    backoff: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 60 * SECOND, 16 * 1024))
    retry_ms: tuple[int, int] = (60_000, 300_000)
    rehome_tries: int = 3
    rehome_ms: tuple[int, int] = (100, 2_000)

    def __post_init__(self) -> None:
        assert self.rehome_tries >= 1
