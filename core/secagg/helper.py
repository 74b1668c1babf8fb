"""Helper mode: a device speaks once, and some edges of different operators hold what unmasks.

Beside the sessions of `client` and `server`, for sums whose members cannot wait for each other. The
device adds to its update one mask for each of m helpers and seals each mask's seed for its helper:

    y = x + PRG(seed_1) + ... + PRG(seed_m)        one vector up, and m seals of 80 bytes

The coordinator adds up the vectors of whom it likes, names that list once, and each helper that has
a sealed seed of everybody on it answers with the sum of their masks; what is left is the sum of the
updates (additive sharing with compressed shares, as in Prio3: Davis et al., VDAF draft, section 7;
Corrigan-Gibbs and Boneh 2017, "Prio", NSDI). Dropouts cost nothing: who is not named is not in it.

The coordinator learns one sum and no other as long as one helper is honest and does not work with
it. An honest helper answers one list a session, of at least `cohort_min` devices whose seeds were
signed with certificates of the federation: else the coordinator could fill a list with devices of
its own, or take the difference of two. Nothing is promised of the sum being right: a helper or a
device that lies makes noise.

A seed is sealed by HPKE (RFC 9180: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM, base mode)
with the session, the helpers and the device in `info`. HPKE draws its own random number: a device
that works an event out again seals the same seed in other bytes, and the first to arrive counts.

Not used by any tier yet. Not reviewed by a cryptographer.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from . import kdf, masks
from .cohort import SECRET_BYTES, check_plan, is_increasing
from .errors import SecureError
from .identity import Identity
from .transcript import MEMBERS_MAX, Session

Words = npt.NDArray[np.uint32]

#: With one helper alone, that one and the coordinator would read every update.
HELPERS_MIN: Final = 2
HELPERS_MAX: Final = 16
#: HPKE's encapsulated key, the seed and a tag.
SEALED_BYTES: Final = kdf.KEY_BYTES + SECRET_BYTES + kdf.TAG_BYTES
#: Fields of HelperState that no log, record or trace may show.
SECRETS: Final = ("seeds",)
_SUITE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


@dataclass(frozen=True)
class Helpers:
    """A session and who helps in it: all must name the same. Raises SecureError.

    keys: the helpers' X25519 public keys, 32 bytes each; a helper's place is its number.
    """

    session: Session
    keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        check_plan(self.session)
        if not HELPERS_MIN <= len(self.keys) <= HELPERS_MAX:
            raise SecureError("helpers", f"{len(self.keys)} helpers, of {HELPERS_MIN} at least")
        if any(len(key) != kdf.KEY_BYTES for key in self.keys) or len(set(self.keys)) < len(
            self.keys
        ):
            raise SecureError("helpers", "helpers have different X25519 keys, of 32 bytes each")

    @cached_property
    def binding(self) -> bytes:
        """What all must agree on, 32 bytes: seals, signatures and masks depend on it."""
        keys = struct.pack("<I", len(self.keys)) + b"".join(self.keys)
        return hashlib.sha256(b"delian/helpers/v1" + self.session.canonical() + keys).digest()

    def about(self, what: bytes, number: int, device: int) -> bytes:
        """What is sealed, signed or derived for one helper and device."""
        return b"delian/helper-" + what + b"/v1" + self.binding + struct.pack("<IQ", number, device)


@dataclass(frozen=True, slots=True)
class SealedSeed:
    """A device's seed for one helper. sealed: 80 bytes. signature: by its certificate's key."""

    device: int
    certificate: bytes
    sealed: bytes
    signature: bytes


# ---------------------------------------------------------------- the device


def mask(
    vector: Words,
    helpers: Helpers,
    device: int,
    master: bytes,
    identity: Identity,
    threads: int = 1,
) -> tuple[Words, list[SealedSeed]]:
    """The masked update u32[D+1], a new array, and a sealed seed for each helper in order.

    master: the device's 32-byte master secret, which it ratchets (`kdf.ratchet`) when the answer is
    durable: two updates must not be masked alike. Raises SecureError.
    """
    session = helpers.session
    if vector.dtype != np.uint32 or vector.shape != (session.dimension + 1,):
        raise SecureError("vector", "the update is not as long as the plan says")
    assert len(master) == SECRET_BYTES, "a master secret has 32 bytes"
    secret = kdf.session_secret(master, session.digest())
    seeds = [
        kdf.hkdf(secret, helpers.about(b"seed", number, device))
        for number in range(len(helpers.keys))
    ]
    masked = np.array(vector, order="C")
    keys = [(_mask_key(helpers, n, device, seed), 1) for n, seed in enumerate(seeds)]
    masks.add(masked, keys, session.suite, threads)
    sealed = [_seal(helpers, n, device, seed, identity) for n, seed in enumerate(seeds)]
    return masked, sealed


def _mask_key(helpers: Helpers, number: int, device: int, seed: bytes) -> bytes:
    return kdf.hkdf(seed, helpers.about(b"mask", number, device))


def _seal(
    helpers: Helpers, number: int, device: int, seed: bytes, identity: Identity
) -> SealedSeed:
    try:
        key = X25519PublicKey.from_public_bytes(helpers.keys[number])
        sealed = _SUITE.encrypt(seed, key, helpers.about(b"seal", number, device))
    except ValueError as error:
        raise SecureError("key", f"helper {number}'s key is not one of X25519") from error
    signature = identity.sign(helpers.about(b"share", number, device) + sealed)
    return SealedSeed(device, identity.certificate, sealed, signature)


# ---------------------------------------------------------------- a helper


@dataclass(slots=True)
class HelperState:
    """What a helper remembers of a session, as plain data. number: its place among the helpers.
    seeds: by device. named: the list that it has answered for; empty before.
    """

    number: int
    seeds: dict[int, bytes] = field(default_factory=dict, repr=False)
    named: list[int] = field(default_factory=list)


class HelperSession:
    """Runs a helper's part over a HelperState, which it changes in place. The caller makes the
    state durable before an answer leaves: one list a session is the whole promise.
    """

    def __init__(
        self, state: HelperState, helpers: Helpers, private: bytes, identity: Identity
    ) -> None:
        """private: the 32 bytes of the helper's own X25519 key. Raises SecureError."""
        if not 0 <= state.number < len(helpers.keys):
            raise SecureError("helpers", f"there is no helper {state.number}")
        if kdf.public_key(private) != helpers.keys[state.number]:
            raise SecureError("helpers", "this helper's key is not the one that is named")
        self.state = state
        self._helpers = helpers
        self._key = X25519PrivateKey.from_private_bytes(private)
        self._identity = identity

    def add(self, share: SealedSeed) -> bool:
        """Takes a device's seed; whether it counts. The first of a device counts; one that is not
        signed by the device, or was sealed for anything else, does not.
        """
        helpers, number, state = self._helpers, self.state.number, self.state
        if share.device in state.seeds or len(state.seeds) >= MEMBERS_MAX:
            return share.device in state.seeds
        if len(share.sealed) != SEALED_BYTES:
            return False
        signed = helpers.about(b"share", number, share.device) + share.sealed
        if not self._identity.verify(share.device, share.certificate, signed, share.signature):
            return False
        try:
            seed = _SUITE.decrypt(
                share.sealed, self._key, helpers.about(b"seal", number, share.device)
            )
        except (InvalidTag, ValueError):
            return False
        state.seeds[share.device] = seed
        return True

    def total(self, devices: Sequence[int], threads: int = 1) -> Words:
        """The sum of the named devices' masks, u32[D+1], for the one list that is ever answered.

        devices: in increasing order. Raises SecureError when they are too few, one's seed is not
        here (reason `missing`, names it), or another list was answered before.
        """
        state, session = self.state, self._helpers.session
        named = list(devices)
        if state.named and named != state.named:
            raise SecureError("equivocation", "a second list, other than the first")
        if not is_increasing(named):
            raise SecureError("list", "the devices are not in increasing order")
        if len(named) < session.cohort_min:
            raise SecureError(
                "small", f"a sum of {len(named)} updates, of {session.cohort_min} at least"
            )
        missing = [device for device in named if device not in state.seeds]
        if missing:
            raise SecureError(
                "missing", f"no seed of device {missing[0]} and {len(missing) - 1} more"
            )
        total = np.zeros(session.dimension + 1, np.uint32)
        keys = [
            (_mask_key(self._helpers, state.number, device, state.seeds[device]), 1)
            for device in named
        ]
        masks.add(total, keys, session.suite, threads)
        state.named = named
        return total


# ---------------------------------------------------------------- the coordinator


def unmask(total: Words, helped: Iterable[Words]) -> Words:
    """The sum of the updates, in place: the sum of the masked ones without each helper's sum."""
    for words in helped:
        if words.shape != total.shape or words.dtype != total.dtype:
            raise SecureError("vector", "a helper's sum is not as long as the devices'")
        np.subtract(total, words, out=total)
    return total
