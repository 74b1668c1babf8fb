"""What both ends of a session work out of the same list of members, each for itself."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, Protocol, TypedDict

from ...wire.secure_pb2 import KeyBundle
from . import graph, kdf, transcript
from .limits import COHORT_MIN, MEMBERS_MAX, SUITES
from .member_identity import CERTIFICATE_BYTES_MAX, SIGNATURE_BYTES_MAX
from .params import Graph, parameters
from .secure_errors import SecureError
from .transcript import DIGEST_BYTES, Session

SECRET_BYTES: Final = 32
#: A share of each of a member's two secrets, sealed.
SEALED_BYTES: Final = 2 * SECRET_BYTES + kdf.TAG_BYTES
#: A KeyBundle's fields and their tags; the rest of it would not be read.
_BUNDLE_BYTES_MAX: Final = CERTIFICATE_BYTES_MAX + SIGNATURE_BYTES_MAX + 2 * kdf.KEY_BYTES + 64
_DIMENSION_MAX: Final = 2**28  # core.protocol.ports.DIMENSION_MAX
_BITS_MIN: Final = 8  # core.privacy.mechanisms.ring.BITS_MIN
_BITS_MAX: Final = 32


class Named(Protocol):
    """A message of a session: which attempt's, and to or from which device."""

    @property
    def run(self) -> int: ...
    @property
    def round(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def device(self) -> int: ...


class Names(TypedDict):
    """What every message of a session begins with."""

    run: int
    round: int
    attempt: int
    device: int


def names(session: Session, device: int) -> Names:
    """The names in a message to or from a device."""
    return Names(run=session.run, round=session.round, attempt=session.attempt, device=device)


def is_of(message: Named, session: Session) -> bool:
    """Whether a message names the session's attempt."""
    said = (message.run, message.round, message.attempt)
    return said == (session.run, session.round, session.attempt)


def check_plan(session: Session) -> None:
    """Raises SecureError where a task's numbers are none that a session can have."""
    shares = (session.corrupt, session.dropout)
    if session.suite not in SUITES:
        raise SecureError("plan", f"suite {session.suite} is not supported")
    if not COHORT_MIN <= session.cohort_min <= MEMBERS_MAX:
        raise SecureError(
            "plan", f"a sum of {session.cohort_min} devices; from {COHORT_MIN} to {MEMBERS_MAX} go"
        )
    if not all(math.isfinite(share) and 0 <= share < 1 for share in shares):
        raise SecureError("plan", "the shares of corrupt and of silent devices lie in [0, 1)")
    if not _BITS_MIN <= session.bits <= _BITS_MAX or not 0 < session.dimension <= _DIMENSION_MAX:
        raise SecureError("plan", "masks are for 1 to 2^28 numbers in a ring of 8 to 32 bits")


def is_well_formed(bundle: KeyBundle) -> bool:
    """Whether a bundle's fields have the sizes that they must have."""
    return (
        len(bundle.sealing_key) == len(bundle.mask_key) == kdf.KEY_BYTES
        and len(bundle.certificate) <= CERTIFICATE_BYTES_MAX
        and 0 < len(bundle.signature) <= SIGNATURE_BYTES_MAX
        and bundle.ByteSize() <= _BUNDLE_BYTES_MAX
    )


def sign_towards(owner: int, other: int) -> int:
    """Whether a member adds (+1) or subtracts (-1) the mask that it has with another."""
    return 1 if other > owner else -1


class Layout:
    """A cohort as its members' leaves and numbers determine it.

    Digest, parameters, and the pairs that share masks.

    members: how many.
    devices: the number of each, in order of index, strictly increasing.
    binding: 32 bytes, see `transcript.binding`.
    """

    def __init__(self, session: Session, leaves: bytes, devices: bytes) -> None:
        if not session.task:
            raise SecureError("version", "the session was begun by an earlier version")
        self.leaves = split_leaves(leaves)
        self.members = len(self.leaves)
        self.graph: Graph = parameters(self.members, session.corrupt, session.dropout)
        self.devices = transcript.devices_of(devices)
        roster = transcript.roster(self.leaves, self.devices)
        self.binding = transcript.binding(session, roster)
        self._order = graph.permutation(self.members, transcript.graph_seed(session, roster))
        self._neighbours: dict[int, list[int]] = {}

    @property
    def threshold(self) -> int:
        """Shares that make a secret."""
        return self.graph.threshold

    def neighbours(self, index: int) -> list[int]:
        """Indices in increasing order. Not to be changed."""
        near = self._neighbours.get(index)
        if near is None:
            near = self._neighbours[index] = graph.neighbours(self.graph, self._order, index)
        return near

    def point(self, owner: int, holder: int) -> int:
        """Where the polynomials of `owner` are evaluated for its neighbour `holder`: 1 and up."""
        return bisect_left(self.neighbours(owner), holder) + 1


@lru_cache(maxsize=16)
def layout(session: Session, leaves: bytes, devices: bytes) -> Layout:
    """The layout of a cohort; the last few are remembered. Raises SecureError when there is none.

    leaves: 32 bytes a member, in order of index. devices: their numbers, 8 bytes each.
    """
    return Layout(session, leaves, devices)


def split_leaves(leaves: bytes) -> list[bytes]:
    """Cohort.leaves as a list; raises SecureError unless it is 1 to 1,000 of 32 bytes."""
    if not 0 < len(leaves) <= MEMBERS_MAX * DIGEST_BYTES or len(leaves) % DIGEST_BYTES:
        raise SecureError("roster", f"a roster of {len(leaves)} bytes")
    return [leaves[at : at + DIGEST_BYTES] for at in range(0, len(leaves), DIGEST_BYTES)]


def is_increasing(indices: Sequence[int]) -> bool:
    """Whether each is above the one before."""
    return all(one < other for one, other in pairwise(indices))
