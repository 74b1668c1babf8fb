"""A device's state, as plain data, and what its owner sets."""

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

#: Runs of which a device keeps its last task. A fleet runs a handful side by side.
RUNS_REMEMBERED = 16
#: Bundles that a device keeps: of the runs that it works for in turn.
BUNDLES_KEPT = 4
#: Blobs that a device asks its home for at once.
FETCHES_MAX = 4
#: Homes of a device, at most; and former homes whose late messages are no protocol error.
HOMES_MAX = 64
#: A lease that ends at once would make a device check in without end.
LEASE_MS_MIN = 1_000
#: Fields of DeviceState that no log, record or trace may show.
SECRETS = ("secret", "trained", "helped")


class Phase(StrEnum):
    """Where the device is."""

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
    """A device's whole state, as plain data."""

    device: int
    phase: Phase = Phase.OFFLINE
    homes: list[int] = field(default_factory=list)  # edges, in the order in which it tries them
    home: int = 0  # the one that it uses
    former: list[int] = field(default_factory=list)  # those that orders removed
    turned_away: int = 0  # homes in a row that sent it on
    facts: DeviceFacts = field(default_factory=DeviceFacts)
    eligibility: Eligibility = field(default_factory=Eligibility)
    sequence: int = 0
    draws: int = 0  # random numbers drawn
    tries: int = 0  # sendings of what is now being repeated
    task: Task | None = None
    ends_ns: int = 0  # when the task's time is over
    ticket: int = 0
    have: list[bytes] = field(default_factory=list)  # digests in the store
    bundles: list[bytes] = field(default_factory=list)  # of the last tasks, the newest last
    #: Bundles and frozen parts of the last tasks -> their bytes, the last used last.
    kept: dict[bytes, int] = field(default_factory=dict)
    upload: Upload | None = None
    upload_size: int = 0
    #: The upload's vector, where the driver carries vectors separately.
    beside: bytes | memoryview = field(default=b"", repr=False)
    failure: Failure | None = None
    #: Run -> the last (round, attempt) taken: neither it nor an earlier one is taken again.
    done: dict[int, tuple[int, int]] = field(default_factory=dict)
    after_task_ms: tuple[int, int] = (1_000, 5_000)
    secret: bytes = field(default=b"", repr=False)  # the next session's keys are derived from it
    session: ClientState | None = None  # the task's, where its updates are masked
    trained: Vector | None = field(default=None, repr=False)  # an update that is not masked yet
    split: bytes = b""  # of the update at hand, the training with the edge that it is a part of
    polls: int = 0  # sendings of what the session waits for now
    unheard: int = 0  # sendings since the home's last message of the session
    helped: bytes = field(default=b"", repr=False)  # secret of masks that helpers remove
    releases: Releases | None = None  # what updates disclosed so far; None: nothing
    denied_version: int = 0  # of its copy of the deny list; 0: it has none
    denied_issued_s: int = 0  # Unix time of the CA's signature; without a copy, of its first start
    log: LogHead = field(default_factory=LogHead)  # newest accepted head of the certificate log
    #: Run, round and attempt of the last task that names a newer deny list.
    awaited: tuple[int, int, int] = (0, 0, 0)

    @property
    def home_node(self) -> Node:
        """The node that it uses."""
        return Node(Tier.EDGE, self.home)

    @property
    def at_hand(self) -> Task:
        """The task that it works on."""
        assert self.task is not None
        return self.task


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """What a device's owner sets."""

    backoff: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 60 * SECOND, 16 * 1024))
    retry_ms: tuple[int, int] = (60_000, 300_000)  # the window where the edge gives none
    rehome_tries: int = 3  # check-ins without an answer before it tries its next home
    rehome_ms: tuple[int, int] = (100, 2_000)  # the window in which it goes on to another home
    secure_required: bool = True  # whether a task whose updates are not masked is declined
    floor: Policy = field(default_factory=Policy)  # the least that sessions must offer
    helpers: Trust = field(default_factory=Trust)  # edges that may help to unmask it; none
    #: How long it waits for the request of its shares, after twice the task's time.
    unmask_ns: int = 600 * SECOND
    caps: tuple[Cap, ...] = ()  # limits of what its updates disclose in all its life
    denied_age_ns: int = 0  # how old the deny list may be for a masked task; 0: of any age
    #: Room of its store: for a task's blobs together, and what it keeps for later tasks.
    blobs_bytes_max: int = 2 << 30

    def __post_init__(self) -> None:
        assert self.rehome_tries >= 1


@dataclass(slots=True)
class Owner:
    """What the device's owner gives it, and may replace between two tasks."""

    policy: DevicePolicy
    #: Signs for the device, and verifies its neighbours and the coordinator; None: it takes no task
    #: whose updates are masked, and does not verify the others.
    identity: Identity | None


def name_of(message: Any) -> tuple[int, int, int]:
    """Which attempt a message belongs to."""
    return message.run, message.round, message.attempt
