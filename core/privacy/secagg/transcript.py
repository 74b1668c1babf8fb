"""Everything that is hashed or signed, as bytes that any party can make again.

No protobuf encoding is ever hashed: fields are little-endian integers of fixed width and IEEE f64,
every field of varying length stands behind its u32 length, and every string begins with an ASCII
domain of its own, so that no two kinds of string can be equal. `docs/secure_aggregation.md` has the
table.

The binding is the digest of all that the members of a cohort must agree on. Every mask and every
seal depends on it: of devices that hold different models, plans or rosters, nothing cancels, and a
coordinator that sends them different ones learns noise (against Pasquini, Francati, Ateniese 2022,
"Eluding secure aggregation in federated learning via model inconsistency", CCS).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from ...wire.blob_pb2 import BlobRef
from ...wire.round_pb2 import Task
from ...wire.secure_pb2 import KeyBundle, SecurePlan
from .limits import MEMBERS_MAX
from .secure_errors import SecureError

DIGEST_BYTES = 32
ROUND_KEY_BYTES = 8
NUMBER_BYTES = 8


def task_bytes(task: Task) -> bytes:
    """All of a task that its devices must agree on, as the coordinator signs it.

    Every field but left_ms, certificate and signature. The manifest is in it by its SHA-256.

    Raises SecureError where a digest or the round's key has a wrong size, or purpose is negative.
    """
    refs, frozen = (task.weights, task.bundle), task.frozen
    if any(len(ref.digest) != DIGEST_BYTES for ref in (*refs, *frozen)):
        raise SecureError("task", "a task's blob is not named by a SHA-256")
    if len(task.rng_key) != ROUND_KEY_BYTES:
        raise SecureError("task", "a round's key has not 8 bytes")
    if task.purpose < 0:  # the one field that protobuf takes negative numbers in
        raise SecureError("task", f"a task's purpose cannot be {task.purpose}")
    ring = task.ring
    return b"".join(
        (
            struct.pack("<QIII", task.run, task.round, task.attempt, task.purpose),
            *map(_ref_bytes, refs),
            struct.pack("<dIIQ", ring.clip, ring.clients_max, ring.bits, ring.dimension),
            # One byte for both: tasks of before exact sums have the same bytes.
            struct.pack("<d?B", ring.noise, ring.central, ring.rotated | ring.wide << 1),
            struct.pack("<QdQ", ring.kept, ring.within, ring.top),
            task.rng_key,
            struct.pack("<IQ", task.time_ms, task.expires_s),
            hashlib.sha256(task.manifest).digest(),
            _secure_bytes(task.secure) if task.HasField("secure") else b"\0",
            # Absent where there are none: tasks of before frozen parts have the same bytes.
            *((struct.pack("<I", len(frozen)), *map(_ref_bytes, frozen)) if frozen else ()),
            # No other task ends so: parts of frozen leaves are counted.
            *((b"split",) if task.split else ()),
        )
    )


def _ref_bytes(ref: BlobRef) -> bytes:
    return ref.digest + struct.pack("<Q", ref.size)


def _secure_bytes(plan: SecurePlan) -> bytes:
    """A SecurePlan that is there."""
    numbers = (plan.suite, plan.cohort_min, plan.corrupt, plan.dropout, plan.noise_survivors)
    helpers = (
        struct.pack("<Q", card.edge)
        + _var(card.key)
        + _var(card.certificate)
        + _var(card.signature)
        for card in plan.helpers
    )
    head = b"\1" + struct.pack("<IIddIQ", *numbers, plan.denied_version)
    return head + struct.pack("<I", len(plan.helpers)) + b"".join(helpers)


def task_digest(task: Task) -> bytes:
    """The SHA-256 that names a task as a whole, 32 bytes. Raises SecureError as `task_bytes`."""
    return hashlib.sha256(b"delian/task/v3" + task_bytes(task)).digest()


def signed_task(task: Task) -> bytes:
    """What the coordinator signs of a task. Raises SecureError as `task_bytes`."""
    return b"delian/signed-task/v1" + task_digest(task)


@dataclass(frozen=True, slots=True)
class Session:
    """What an attempt's task says of its session: everything but the members."""

    #: Fields of sessions that earlier versions stored.
    FORMER: ClassVar = frozenset(
        ("purpose", "weights", "bundle", "clip", "central", "rotated", "within", "round_key")
    )

    run: int
    """The run's number."""
    round: int
    attempt: int
    clients_max: int
    """As in its RingPlan, like the four fields below."""
    bits: int
    dimension: int
    kept: int
    noise: float
    suite: int
    """As in its SecurePlan, like the three fields below."""
    cohort_min: int
    corrupt: float
    dropout: float
    task: bytes = b""
    """SHA-256 of the whole task (`task_digest`).

    Keys, seals and masks depend on it. So devices that were given tasks that differ in any field,
    the round's key too, get masks that do not cancel. Empty: of a version whose sessions cannot go
    on.
    """

    @staticmethod
    def of(task: Task) -> Session:
        """The session of a task with a SecurePlan. Raises SecureError for a bad digest or ring."""
        if task.ring.top:
            raise SecureError("task", "masks cancel only where devices send the same coordinates")
        return Session(
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            clients_max=task.ring.clients_max,
            bits=task.ring.bits,
            dimension=task.ring.dimension,
            kept=task.ring.kept,
            noise=task.ring.noise,
            suite=task.secure.suite,
            cohort_min=task.secure.cohort_min,
            corrupt=task.secure.corrupt,
            dropout=task.secure.dropout,
            task=task_digest(task),
        )


def _attempt(run: int, round: int, attempt: int) -> bytes:
    return struct.pack("<QII", run, round, attempt)


def _var(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def signed_bundle(session: Session, device: int, sealing_key: bytes, mask_key: bytes) -> bytes:
    """What a device signs when it gives its keys."""
    keys = _var(sealing_key) + _var(mask_key)
    return b"delian/bundle/v2" + session.task + struct.pack("<Q", device) + keys


def leaf(bundle: KeyBundle) -> bytes:
    """The digest of a member's bundle, its certificate and signature with it."""
    names = _attempt(bundle.run, bundle.round, bundle.attempt) + struct.pack("<Q", bundle.device)
    keys = _var(bundle.sealing_key) + _var(bundle.mask_key)
    proof = _var(bundle.certificate) + _var(bundle.signature)
    return hashlib.sha256(b"delian/leaf/v1" + names + keys + proof).digest()


def roster(leaves: Sequence[bytes], devices: Sequence[int]) -> bytes:
    """The digest of the members' numbers and leaves in order. Raises SecureError."""
    if not 0 < len(leaves) <= MEMBERS_MAX or len(devices) != len(leaves):
        raise SecureError("roster", f"a cohort of {len(leaves)} members, of 1 to {MEMBERS_MAX}")
    if any(len(one) != DIGEST_BYTES for one in leaves):
        raise SecureError("roster", "a member's leaf is not a SHA-256")
    if any(one >= other for one, other in pairwise(devices)):
        raise SecureError("roster", "the members' numbers do not increase")
    members = (struct.pack("<Q", d) + leaf for d, leaf in zip(devices, leaves, strict=True))
    count = struct.pack("<I", len(leaves))
    return hashlib.sha256(b"delian/roster/v2" + count + b"".join(members)).digest()


def numbers(devices: Sequence[int]) -> bytes:
    """Cohort.devices of these numbers."""
    return struct.pack(f"<{len(devices)}Q", *devices)


def devices_of(numbers: bytes) -> tuple[int, ...]:
    """The numbers in Cohort.devices. Raises SecureError for too many or malformed bytes."""
    count, rest = divmod(len(numbers), NUMBER_BYTES)
    if rest or count > MEMBERS_MAX:
        raise SecureError("roster", f"members' numbers of {len(numbers)} bytes")
    return struct.unpack(f"<{count}Q", numbers)


def binding(session: Session, roster: bytes) -> bytes:
    """The digest of the task and its members, 32 bytes: what all must agree on."""
    return hashlib.sha256(b"delian/binding/v2" + session.task + roster).digest()


def graph_seed(session: Session, roster: bytes) -> bytes:
    """The seed of the order of members, 32 bytes."""
    names = _attempt(session.run, session.round, session.attempt)
    return hashlib.sha256(b"delian/graph/v1" + roster + names).digest()


def signed_consent(binding: bytes, device: int, members: bytes) -> bytes:
    """What a device signs of the survivors. members: the bitmap of Survivors."""
    return b"delian/consent/v1" + binding + struct.pack("<Q", device) + _var(members)


def bitmap(indices: Iterable[int], members: int) -> bytes:
    """A set of members, a bit each, the lowest bit of the first byte for index 0."""
    bits = 0
    for index in indices:
        if not 0 <= index < members:
            raise SecureError("bitmap", f"index {index} in a cohort of {members}")
        bits |= 1 << index
    return bits.to_bytes((members + 7) // 8, "little")


def indices(bitmap: bytes, members: int) -> list[int]:
    """The members in a bitmap, in increasing order. Raises SecureError unless it is canonical."""
    if len(bitmap) != (members + 7) // 8:
        raise SecureError("bitmap", f"a bitmap of {len(bitmap)} bytes for {members} members")
    bits = int.from_bytes(bitmap, "little")
    if bits >> members:
        raise SecureError("bitmap", "a bitmap names members that are not there")
    return [index for index in range(members) if bits >> index & 1]


@lru_cache(maxsize=16)
def members(bitmap: bytes, count: int) -> frozenset[int]:
    """`indices` as a set; the last few are remembered, as every step of a device asks again."""
    return frozenset(indices(bitmap, count))
