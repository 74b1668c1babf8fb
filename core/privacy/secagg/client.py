"""A device's side of one session.

    new --begin--> keys --Cohort--> shares --Delivery--> masking --mask--> masked
        --Survivors--> consented --UnmaskRequest--> ended

Each step checks what the coordinator says against what the device works out itself, and answers. A
repetition gets the same answer; something else in its place is equivocation and ends the session,
as does everything that does not hold: the phase is then `failed` and the secrets are gone. So a
device signs one set of survivors for an attempt, and gives one share of a neighbour's two secrets.
Two faults leave the session as it is, because they may have harmless causes: a message of another
attempt (reason `foreign`) and one that comes before its time (reason `order`).

All keys follow from one secret in the state, which the caller derives its master secret from
further (`kdf.ratchet`) when the session has begun; nothing else is drawn. The caller makes the
state durable before it lets an answer go. Source: Bell et al. 2020 (ePrint 2020/704), figure 2;
consents: Bonawitz et al. 2017 (ePrint 2017/281), round 3, over the neighbours alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from ...wire import secure_pb2 as pb
from ...wire.round_pb2 import Task
from . import kdf, masks, shamir, transcript
from .cohort import (
    SEALED_BYTES,
    SECRET_BYTES,
    Layout,
    Named,
    check_plan,
    is_increasing,
    is_of,
    is_well_formed,
    layout,
    names,
    sign_towards,
)
from .limits import COHORT_MIN, SUITES
from .logged import LOG, LogHead, LogRules, accept, check_leaves
from .member_identity import Identity, agree
from .secure_errors import SecureError
from .transcript import Session

#: With a plan that counts on no corrupt device, a large cohort's devices would have two neighbours.
CORRUPT_MIN: Final = 0.05
#: Fields of ClientState that no log, record or trace may show.
SECRETS: Final = ("secret", "unmask")


class Phase(StrEnum):
    """The states of a device's session."""

    NEW = "new"
    KEYS = "keys"  # has sent its keys
    SHARES = "shares"  # has sent shares of its secrets
    MASKING = "masking"  # has its neighbours' shares; its update may be masked
    MASKED = "masked"
    CONSENTED = "consented"  # has signed the survivors
    ENDED = "ended"  # has given its shares
    FAILED = "failed"


@dataclass(slots=True)
class ClientState:
    """A device's state of a session, as plain data."""

    device: int
    phase: Phase = Phase.NEW
    session: Session | None = None
    secret: bytes = field(default=b"", repr=False)
    """All its keys follow from it; empty before and after."""
    bundle: pb.KeyBundle | None = None
    """The key bundle that it has sent."""
    cohort: pb.Cohort | None = None
    """The cohort that it received."""
    shares: pb.SealedShares | None = None
    """The sealed shares that it has sent."""
    delivery: pb.Delivery | None = None
    masked: bytes = b""
    """SHA-256 of its masked update."""
    members: bytes = b""
    """The bitmap of survivors that it has signed."""
    consent: pb.Consent | None = None
    unmask: pb.UnmaskShares | None = field(default=None, repr=False)
    heard: dict[str, bytes] = field(default_factory=dict)
    """SHA-256 of what it received, by kind."""
    reason: str = ""
    """Why it has failed."""
    log: LogHead = field(default_factory=LogHead)
    """The newest head of the certificate log that it has accepted."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the device's owner does not go below, whatever a plan says."""

    cohort_min: int = COHORT_MIN
    """Devices in a sum."""
    corrupt: float = CORRUPT_MIN
    """Share of devices that may work together with the coordinator."""
    suites: tuple[int, ...] = SUITES
    """Algorithms."""
    log: LogRules = field(default_factory=LogRules)
    """What is asked of the certificate log."""


class ClientSession:
    """Runs a session over a ClientState, which it changes in place. Making one costs nothing."""

    def __init__(
        self, state: ClientState, identity: Identity, policy: Policy = Policy(), threads: int = 1
    ) -> None:
        self.state = state
        self._identity = identity
        self._policy = policy
        self._threads = threads

    @property
    def waiting(self) -> Message | None:
        """What to say again now, until the coordinator answers."""
        state = self.state
        if state.phase is Phase.KEYS:
            return state.bundle
        if state.phase in (Phase.SHARES, Phase.MASKED):
            return state.shares
        if state.phase is Phase.CONSENTED:
            return state.consent
        return state.unmask if state.phase is Phase.ENDED else None

    # ------------------------------------------------------------ keys

    def begin(self, task: Task, master: bytes) -> pb.KeyBundle:
        """Makes the attempt's keys from a 32-byte master secret. Said again for the same task.

        Raises SecureError, the state unchanged, when the plan is not to be had with this device,
        or another session is under way.
        """
        session = Session.of(task)
        state = self.state
        if state.phase is not Phase.NEW:
            over = state.phase in (Phase.ENDED, Phase.FAILED)
            if over or state.bundle is None or state.session != session:
                raise SecureError("order", "this state has had its session")
            return state.bundle
        self._check_policy(session)
        assert len(master) == SECRET_BYTES, "a master secret has 32 bytes"
        secret = kdf.session_secret(master, session.task)
        sealing = kdf.public_key(kdf.sealing_secret(secret))
        mask = kdf.public_key(kdf.mask_secret(secret))
        signed = transcript.signed_bundle(session, state.device, sealing, mask)
        bundle = pb.KeyBundle(
            **names(session, state.device),
            sealing_key=sealing,
            mask_key=mask,
            certificate=self._identity.certificate,
            signature=self._identity.sign(signed),
            log_size=state.log.size,
        )
        state.session, state.secret, state.bundle = session, secret, bundle
        state.phase = Phase.KEYS
        return bundle

    def _check_policy(self, session: Session) -> None:
        check_plan(session)
        policy = self._policy
        if session.cohort_min < policy.cohort_min:
            raise SecureError(
                "policy",
                f"a sum of {session.cohort_min} devices, where this device asks for"
                f" {policy.cohort_min}",
            )
        if session.corrupt < policy.corrupt:
            raise SecureError(
                "policy",
                f"secure against {session.corrupt:.0%} of the devices, where this device asks for"
                f" {policy.corrupt:.0%}",
            )
        if session.suite not in policy.suites:
            raise SecureError("policy", f"this device does not do suite {session.suite}")

    # ------------------------------------------------------------ shares

    def take_cohort(self, cohort: pb.Cohort) -> pb.SealedShares:
        """Checks the members, and seals shares of its own secrets for its neighbours.

        A Cohort without leaves says that the session goes on without this device, which may happen
        until its update can be in the sum (reason `excluded`).
        """
        if not cohort.leaves:
            self._leave(cohort)
        with self._hearing(cohort, Phase.KEYS) as heard:
            if not heard:
                self._check_cohort(cohort)
                self.state.log = self._check_log(cohort)
                self.state.cohort = _without_log(cohort)
                self.state.shares = self._seal(cohort)
                self.state.phase = Phase.SHARES
        assert self.state.shares is not None
        return self.state.shares

    def _leave(self, cohort: pb.Cohort) -> NoReturn:
        self._check_addressed(cohort)
        if self.state.phase in (Phase.CONSENTED, Phase.ENDED, Phase.FAILED):
            raise SecureError("order", f"no member is excluded while {self.state.phase}")
        with self._ending():
            raise SecureError("excluded", "the session goes on without this device")

    def _check_cohort(self, cohort: pb.Cohort) -> None:
        state, session = self.state, self._session
        place = layout(session, cohort.leaves, cohort.devices)
        if place.members < max(session.cohort_min, self._policy.cohort_min):
            raise SecureError("small", f"a cohort of {place.members} members is too small")
        assert state.bundle is not None
        own = transcript.leaf(state.bundle)
        here = cohort.index < place.members and place.devices[cohort.index] == state.device
        if not here or place.leaves[cohort.index] != own:
            raise SecureError("roster", "this device's keys are not where the cohort says")
        near = place.neighbours(cohort.index)
        if list(cohort.indices) != near or len(cohort.neighbours) != len(near):
            raise SecureError("graph", "the neighbours are not those of this cohort")
        for index, bundle in zip(near, cohort.neighbours, strict=True):
            self._check_neighbour(bundle, place.devices[index], place.leaves[index])

    def _check_neighbour(self, bundle: pb.KeyBundle, device: int, leaf: bytes) -> None:
        session = self._session
        if bundle.device != device:
            raise SecureError("roster", "a neighbour's number is not the one in the cohort")
        if not is_of(bundle, session) or not is_well_formed(bundle):
            raise SecureError("bundle", "a neighbour's keys are not for this session")
        if transcript.leaf(bundle) != leaf:
            raise SecureError("bundle", "a neighbour's keys are not those in the cohort")
        signed = transcript.signed_bundle(
            session, bundle.device, bundle.sealing_key, bundle.mask_key
        )
        if not self._identity.verify(bundle.device, bundle.certificate, signed, bundle.signature):
            raise SecureError("signature", f"device {bundle.device} has not signed its keys")

    def _check_log(self, cohort: pb.Cohort) -> LogHead:
        """The head of the log under which all neighbours' certificates are proved to be in it."""
        rules, known, identity = self._policy.log, self.state.log, self._identity
        if not rules.required:
            return known
        if not cohort.HasField("log"):
            raise SecureError(LOG, "nothing proves that the neighbours' certificates are logged")
        head = accept(known, cohort.log.update, identity, rules)
        leaves = [identity.log_leaf(b.device, b.certificate) for b in cohort.neighbours]
        check_leaves(cohort.log, leaves, head)
        return head

    def _seal(self, cohort: pb.Cohort) -> pb.SealedShares:
        place, secret = self._layout, self.state.secret
        near, threshold = place.neighbours(cohort.index), place.threshold
        each = shamir.randomness_bytes(SECRET_BYTES, threshold)
        random = kdf.share_randomness(secret, place.binding, 2 * each)
        seeds = shamir.split(kdf.self_seed(secret), len(near), threshold, random[:each])
        keys = shamir.split(kdf.mask_secret(secret), len(near), threshold, random[each:])
        peers = [bundle.sealing_key for bundle in cohort.neighbours]
        shared = agree(self._identity, kdf.sealing_secret(secret), peers)
        answer = pb.SealedShares(**names(self._session, self.state.device))
        answer.shares.extend(
            pb.SealedShare(
                index=index,
                sealed=kdf.seal(common, place.binding, cohort.index, index, seed + key),
            )
            for index, common, seed, key in zip(near, shared, seeds, keys, strict=True)
        )
        return answer

    def take_delivery(self, delivery: pb.Delivery) -> None:
        """Takes which neighbours have sent shares: with these the device masks."""
        with self._hearing(delivery, Phase.SHARES) as heard:
            if heard:
                return
            place = self._layout
            near = set(place.neighbours(self._cohort.index))
            given = [share.index for share in delivery.shares]
            if not is_increasing(given) or not near.issuperset(given):
                raise SecureError("delivery", "shares of devices that are no neighbours")
            if any(len(share.sealed) != SEALED_BYTES for share in delivery.shares):
                raise SecureError("delivery", "a sealed share of a wrong size")
            if len(given) < place.threshold:
                raise SecureError(
                    "few", f"{len(given)} neighbours take part, of {place.threshold} at least"
                )
            self.state.delivery = delivery
            self.state.phase = Phase.MASKING

    # ------------------------------------------------------------ masks

    def mask(self, vector: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """The update with its masks added: u32[D+1], a new array.

        Given again, the update must be the same: the difference of two updates under the same
        masks would be readable. Raises SecureError and ends the session where it is another, or
        has a wrong shape.
        """
        state = self.state
        if state.phase not in (Phase.MASKING, Phase.MASKED):
            raise SecureError("order", f"nothing can be masked while {state.phase}")
        with self._ending():
            # Longer by its weight, and where it is rotated up to a whole block: `RingPlan.length`.
            if vector.dtype != np.uint32 or vector.ndim != 1:
                raise SecureError("vector", "an update is u32[L]")
            if vector.size <= (self._session.kept or self._session.dimension):
                raise SecureError("vector", "the update is not as long as the plan says")
            masked = np.array(vector, order="C")
            masks.add(masked, self._mask_keys(), self._session.suite, self._threads)
            digest = hashlib.sha256(masked.data).digest()
            if state.masked and digest != state.masked:
                raise SecureError("vector", "a second update, other than the first")
            state.masked = digest
            state.phase = Phase.MASKED
        return masked

    def noise_key(self) -> bytes:
        """32 bytes for the noise that is added before the masks: the same for the same attempt."""
        return kdf.noise_key(self.state.secret)

    def _mask_keys(self) -> list[tuple[bytes, int]]:
        """The keys of its masks and how each is added: its own, and one a neighbour."""
        place, own, secret = self._layout, self._cohort.index, self.state.secret
        delivered = self._delivered()
        peers = [b.mask_key for i, b in self._neighbours() if i in delivered]
        keys = [(kdf.self_mask_key(kdf.self_seed(secret), place.binding), 1)]
        agreed = agree(self._identity, kdf.mask_secret(secret), peers)
        for index, shared in zip(delivered, agreed, strict=True):
            key = kdf.pair_mask_key(shared, place.binding, own, index)
            keys.append((key, sign_towards(own, index)))
        return keys

    # ------------------------------------------------------------ survivors and unmasking

    def take_survivors(self, survivors: pb.Survivors) -> pb.Consent:
        """Signs the set of members in the sum, the only one that it ever signs."""
        with self._hearing(survivors, Phase.MASKED) as heard:
            if not heard:
                self._check_survivors(survivors.members)
                place, state = self._layout, self.state
                signed = transcript.signed_consent(place.binding, state.device, survivors.members)
                state.consent = pb.Consent(
                    signature=self._identity.sign(signed), **names(self._session, self.state.device)
                )
                state.members = survivors.members
                state.phase = Phase.CONSENTED
        assert self.state.consent is not None
        return self.state.consent

    def _check_survivors(self, members: bytes) -> None:
        place, own = self._layout, self._cohort.index
        alive = transcript.members(members, place.members)
        least = max(self._session.cohort_min, self._policy.cohort_min)
        if len(alive) < least:
            raise SecureError("small", f"a sum of {len(alive)} updates, of {least} at least")
        if own not in alive:
            raise SecureError("absent", "this device's update is not in the sum")
        near = alive.intersection(place.neighbours(own))
        if not near.issubset(self._delivered()):
            raise SecureError("survivors", "a neighbour is in the sum whose shares did not come")
        if len(near) < place.threshold:
            raise SecureError(
                "few", f"{len(near)} neighbours are in the sum, of {place.threshold} at least"
            )

    def take_unmask(self, request: pb.UnmaskRequest) -> pb.UnmaskShares:
        """Gives its share of each neighbour's self-mask seed or mask key, and erases its secrets.

        The mask key is for a neighbour that is not in the sum. It never gives both for one
        neighbour.
        """
        with self._hearing(request, Phase.CONSENTED) as heard:
            if not heard:
                self._check_consents(request)
                self.state.unmask = self._open_shares()
                self._forget(Phase.ENDED)
        assert self.state.unmask is not None
        return self.state.unmask

    def _check_consents(self, request: pb.UnmaskRequest) -> None:
        place, members = self._layout, self.state.members
        alive = transcript.members(members, place.members)
        known = {i: b for i, b in self._neighbours() if i in alive}
        given = [consent.index for consent in request.consents]
        if not is_increasing(given) or not known.keys() >= set(given):
            raise SecureError("consent", "consents of devices that are no neighbours in the sum")
        if len(given) < place.threshold:
            raise SecureError("few", f"{len(given)} consents, of {place.threshold} at least")
        for consent in request.consents:
            bundle = known[consent.index]
            signed = transcript.signed_consent(place.binding, bundle.device, members)
            if not self._identity.verify(
                bundle.device, bundle.certificate, signed, consent.signature
            ):
                raise SecureError(
                    "consent", f"device {bundle.device} has not signed these survivors"
                )

    def _open_shares(self) -> pb.UnmaskShares:
        place, own = self._layout, self._cohort.index
        assert self.state.delivery is not None
        alive = transcript.members(self.state.members, place.members)
        delivered = self._delivered()
        peers = [b.sealing_key for i, b in self._neighbours() if i in delivered]
        shared = agree(self._identity, kdf.sealing_secret(self.state.secret), peers)
        answer = pb.UnmaskShares(**names(self._session, self.state.device))
        for share, common in zip(self.state.delivery.shares, shared, strict=True):
            try:
                plain = kdf.open_sealed(common, place.binding, share.index, own, share.sealed)
            except SecureError:
                continue
            seed, key = plain[:SECRET_BYTES], plain[SECRET_BYTES:]
            answer.shares.add(index=share.index, share=seed if share.index in alive else key)
        return answer

    # ------------------------------------------------------------ the frame of each step

    @contextmanager
    def _hearing(self, message: Named, phase: Phase) -> Iterator[bool]:
        """What every message goes through; gives whether it was received before."""
        state = self.state
        self._check_addressed(message)
        assert isinstance(message, Message)
        kind = type(message).__name__
        digest = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
        before = state.heard.get(kind)
        if state.phase is Phase.FAILED or (before is None and state.phase is not phase):
            raise SecureError("order", f"{kind} is not for now, while {state.phase}")
        with self._ending():
            if before is not None and before != digest:
                raise SecureError("equivocation", f"a second {kind}, other than the first")
            yield before is not None
            state.heard[kind] = digest

    def _check_addressed(self, message: Named) -> None:
        state = self.state
        if state.session is None or not is_of(message, state.session):
            raise SecureError("foreign", "a message of another session")
        if message.device != state.device:
            raise SecureError("foreign", f"a message for device {message.device}")

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """A fault ends the session."""
        try:
            yield
        except SecureError as error:
            self._forget(Phase.FAILED)
            self.state.reason = error.reason
            raise

    def _forget(self, phase: Phase) -> None:
        """Drops the secrets, and what only they were for."""
        state = self.state
        state.phase = phase
        state.secret, state.cohort, state.delivery = b"", None, None
        if phase is Phase.FAILED:
            state.shares = state.consent = state.unmask = None

    @property
    def _session(self) -> Session:
        assert self.state.session is not None
        return self.state.session

    @property
    def _cohort(self) -> pb.Cohort:
        assert self.state.cohort is not None
        return self.state.cohort

    @property
    def _layout(self) -> Layout:
        return layout(self._session, self._cohort.leaves, self._cohort.devices)

    def _neighbours(self) -> Iterator[tuple[int, pb.KeyBundle]]:
        """Index and keys of each neighbour, in increasing order."""
        return zip(self._cohort.indices, self._cohort.neighbours, strict=True)

    def _delivered(self) -> dict[int, None]:
        """The neighbours whose shares have come, in increasing order."""
        assert self.state.delivery is not None
        return {share.index: None for share in self.state.delivery.shares}


def _without_log(cohort: pb.Cohort) -> pb.Cohort:
    """What a device keeps of a cohort: the proofs were verified, and may be as long as the rest."""
    if not cohort.HasField("log"):
        return cohort
    kept = pb.Cohort()
    kept.CopyFrom(cohort)
    kept.ClearField("log")
    return kept
