"""What a device remembers, as plain data, and what its owner sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ...core.privacy.secagg.client import ClientState, Policy
from ...core.privacy.secagg.helper import Trust
from ...core.privacy.secagg.logged import LogHead
from ...core.privacy.secagg.member_identity import Identity
from ...core.protocol.machine import Backoff
from ...core.protocol.ports import SECOND, Node, Tier, Vector
from ...core.wire.admission_pb2 import DeviceFacts, Eligibility
from ...core.wire.round_pb2 import Failure, Task, Upload
from .releases import Cap, Releases

#: Of how many runs a device remembers its last task. A fleet runs a handful side by side.
RUNS_REMEMBERED = 16
#: Bundles that a device keeps: of the runs that it works for in turn.
BUNDLES_KEPT = 4
#: Where a device may go, at most; and how many of its former homes it can tell from strangers.
HOMES_MAX = 64
#: A lease that ends at once would make a device check in without end.
LEASE_MS_MIN = 1_000
#: Fields of DeviceState that no log, record or trace may show.
SECRETS = ("secret", "trained", "helped")


class Phase(StrEnum):
    OFFLINE = "offline"
    IDLE = "idle"  # waits for the moment to come back
    CHECKING_IN = "checking in"
    READY = "ready"  # in the edge's pool
    FETCHING = "fetching"
    TRAINING = "training"
    SEALING = "sealing"  # has trained; may not mask before its neighbours have sent their shares
    UPLOADING = "uploading"
    UNMASKING = "unmasking"  # its update is in the sum; its shares will be asked for


@dataclass(slots=True)
class DeviceState:
    """All that a device remembers, as plain data.

    homes: edges, in the order in which it tries them. home: the one that it speaks to. former:
    those that it was told to leave. turned_away: homes in a row that sent it on. draws: random
    numbers drawn. tries: sendings of what is now being repeated. have: digests in the store.
    bundles: those of the last tasks, the newest last. ends_ns: when the task's time is over. done:
    for each run the last (round, attempt) taken; neither it nor an earlier one is taken again.
    beside: the upload's vector, where the driver carries it beside the message. secret: of which
    the next session's keys are made. session: the task's, where its updates are masked. trained:
    the update that waits to be masked. polls: sendings of what the session waits for now; unheard:
    sendings since its home was last heard of it. helped: of which the masks of the task at hand are
    made, where helpers unmask it. releases: what updates told of the device so far; None: nothing.
    denied_version: of its copy of the deny list; 0: it has none. denied_issued_s: Unix time when
    the CA signed it; without a copy, of its first start. log: the newest head of the certificate
    log that it has accepted. awaited: run, round and attempt of the last task that names a newer
    deny list.
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
    beside: bytes | memoryview = field(default=b"", repr=False)
    failure: Failure | None = None
    done: dict[int, tuple[int, int]] = field(default_factory=dict)
    after_task_ms: tuple[int, int] = (1_000, 5_000)
    secret: bytes = field(default=b"", repr=False)
    session: ClientState | None = None
    trained: Vector | None = field(default=None, repr=False)
    polls: int = 0
    unheard: int = 0
    helped: bytes = field(default=b"", repr=False)
    releases: Releases | None = None
    denied_version: int = 0
    denied_issued_s: int = 0
    log: LogHead = field(default_factory=LogHead)
    awaited: tuple[int, int, int] = (0, 0, 0)

    @property
    def home_node(self) -> Node:
        """The node that it speaks to."""
        return Node(Tier.EDGE, self.home)

    @property
    def at_hand(self) -> Task:
        """The task that it works on."""
        assert self.task is not None
        return self.task


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """What a device's owner sets.

    retry_ms: the window where the edge gives none. rehome_tries: check-ins without an answer after
    which it tries its next home. rehome_ms: the window in which it goes there when it was sent on.
    secure_required: whether a task whose updates are not masked is declined; yes, unless the owner
    allows plain tasks. floor: what its sessions may not go below. helpers: who may hold what
    unmasks it; nobody, unless it says so. unmask_ns: how long it waits to be asked for its shares,
    when as much time again as its task had is over. caps: what its updates may tell in all its
    life; each of them counts. denied_age_ns: how old the deny list may be where a masked task is
    taken; 0: of any age.
    """

    backoff: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 60 * SECOND, 16 * 1024))
    retry_ms: tuple[int, int] = (60_000, 300_000)
    rehome_tries: int = 3
    rehome_ms: tuple[int, int] = (100, 2_000)
    secure_required: bool = True
    floor: Policy = field(default_factory=Policy)
    helpers: Trust = field(default_factory=Trust)
    unmask_ns: int = 600 * SECOND
    caps: tuple[Cap, ...] = ()
    denied_age_ns: int = 0

    def __post_init__(self) -> None:
        assert self.rehome_tries >= 1


@dataclass(slots=True)
class Owner:
    """What the device's owner gives it, and may replace between two tasks.

    Attributes:
        policy: the owner's rules.
        identity: signs for the device, and verifies its neighbours and the coordinator; None: it
            takes no task whose updates are masked, and cannot tell who made the others.
    """

    policy: DevicePolicy
    identity: Identity | None


def name_of(message: Any) -> tuple[int, int, int]:
    """Which attempt a message belongs to."""
    return message.run, message.round, message.attempt
