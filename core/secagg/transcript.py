"""Everything that is hashed or signed, as bytes that anybody can make again.

No protobuf encoding is ever hashed: fields are little-endian integers of fixed width and IEEE f64,
every field of varying length stands behind its u32 length, and every string begins with an ASCII
domain of its own, so that no two kinds of string can be equal. `docs/secure_aggregation.md` has the
table.

The binding is the digest of all that the members of a cohort must agree on. Every mask and every
seal depends on it: of devices that hold different models, plans or rosters, nothing cancels, and a
coordinator who tells them different things learns noise (against Pasquini, Francati, Ateniese 2022,
"Eluding secure aggregation in federated learning via model inconsistency", CCS).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..wire.round_pb2 import Task
from ..wire.secure_pb2 import KeyBundle
from .errors import SecureError

DIGEST_BYTES = 32
ROUND_KEY_BYTES = 8
#: Members of a cohort.
MEMBERS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Session:
    """What an attempt's task says of its session: everything but who takes part.

    purpose: of the task. weights, bundle: SHA-256 of its blobs. clip to within: of its RingPlan.
    suite to dropout: of its SecurePlan. round_key: of the task, where it chooses which coordinates
    travel: who told one device other coordinates than all the rest, and the rest such as nobody
    changes, would read the update of the one in the sum.
    """

    run: int
    round: int
    attempt: int
    purpose: int
    weights: bytes
    bundle: bytes
    clip: float
    clients_max: int
    bits: int
    dimension: int
    noise: float
    central: bool
    rotated: bool
    kept: int
    within: float
    suite: int
    cohort_min: int
    corrupt: float
    dropout: float
    round_key: bytes = b""

    @staticmethod
    def of(task: Task) -> Session:
        """Of a task with a SecurePlan. Raises SecureError when a digest is not one, or its ring has
        every device choose coordinates of its own, where masks cannot cancel.
        """
        if task.ring.top:
            raise SecureError("task", "masks cancel only where devices send the same coordinates")
        session = Session(
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            purpose=int(task.purpose),
            weights=task.weights.digest,
            bundle=task.bundle.digest,
            clip=task.ring.clip,
            clients_max=task.ring.clients_max,
            bits=task.ring.bits,
            dimension=task.ring.dimension,
            noise=task.ring.noise,
            central=task.ring.central,
            rotated=task.ring.rotated,
            kept=task.ring.kept,
            within=task.ring.within,
            suite=task.secure.suite,
            cohort_min=task.secure.cohort_min,
            corrupt=task.secure.corrupt,
            dropout=task.secure.dropout,
            round_key=task.rng_key if task.ring.kept else b"",
        )
        if task.ring.kept and len(session.round_key) != ROUND_KEY_BYTES:
            raise SecureError("task", "the key that chooses coordinates has not 8 bytes")
        if len(session.weights) != DIGEST_BYTES or len(session.bundle) != DIGEST_BYTES:
            raise SecureError("task", "a task's blob is not named by a SHA-256")
        return session

    def canonical(self) -> bytes:
        """All fields in order: 142 bytes, or 158 where the ring plan has `kept` or `within`, and
        8 more with `kept`.
        """
        head = struct.pack("<QIII", self.run, self.round, self.attempt, self.purpose)
        ring = struct.pack("<dIIQ", self.clip, self.clients_max, self.bits, self.dimension)
        ring += struct.pack("<d??", self.noise, self.central, self.rotated)
        plan = struct.pack("<IIdd", self.suite, self.cohort_min, self.corrupt, self.dropout)
        more = struct.pack("<Qd", self.kept, self.within) if self.kept or self.within else b""
        return head + self.weights + self.bundle + ring + plan + more + self.round_key

    def digest(self) -> bytes:
        """What names the session before its members are known: 32 bytes."""
        return hashlib.sha256(b"delian/task/v1" + self.canonical()).digest()


def _attempt(run: int, round: int, attempt: int) -> bytes:
    return struct.pack("<QII", run, round, attempt)


def _var(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def signed_bundle(session: Session, device: int, sealing_key: bytes, mask_key: bytes) -> bytes:
    """What a device signs when it gives its keys."""
    keys = _var(sealing_key) + _var(mask_key)
    return b"delian/bundle/v1" + session.digest() + struct.pack("<Q", device) + keys


def leaf(bundle: KeyBundle) -> bytes:
    """The digest of a member's bundle, its certificate and signature with it."""
    names = _attempt(bundle.run, bundle.round, bundle.attempt) + struct.pack("<Q", bundle.device)
    keys = _var(bundle.sealing_key) + _var(bundle.mask_key)
    proof = _var(bundle.certificate) + _var(bundle.signature)
    return hashlib.sha256(b"delian/leaf/v1" + names + keys + proof).digest()


def roster(leaves: Sequence[bytes]) -> bytes:
    """The digest of all members' leaves in order of index. Raises SecureError for a bad list."""
    if not 0 < len(leaves) <= MEMBERS_MAX:
        raise SecureError("roster", f"a cohort of {len(leaves)} members, of 1 to {MEMBERS_MAX}")
    if any(len(one) != DIGEST_BYTES for one in leaves):
        raise SecureError("roster", "a member's leaf is not a SHA-256")
    count = struct.pack("<I", len(leaves))
    return hashlib.sha256(b"delian/roster/v1" + count + b"".join(leaves)).digest()


def binding(session: Session, roster: bytes) -> bytes:
    """The digest of the session and its members, 32 bytes: what all must agree on."""
    return hashlib.sha256(b"delian/binding/v1" + session.canonical() + roster).digest()


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
