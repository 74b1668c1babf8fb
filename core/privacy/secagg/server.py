"""The coordinator's side of one session.

    new --begin--> keys --close_keys--> shares --close_shares--> masks --survivors--> unmasking
        --enough shares--> is_ready: keys() are what to add to the sum

The caller sets the deadlines: `close_keys` and `close_shares` continue with the members that have
answered, `survivors` with those in the sums. A message that is malformed, not signed by the device
that it names, of another step or another session is counted in `refused` and otherwise ignored: a
forger must not be able to exclude a member. Each message costs O(k), k the degree of the graph.
Vectors never come here; what the masks are is worked out once, at the end.

The session ends without a sum (SecureError, reason `few`) when too few devices are left for the
plan, or when a member's neighbours are too few to give its secret. Source: Bell et al. 2020
(ePrint 2020/704), figure 2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from google.protobuf.message import Message

from ...wire import secure_pb2 as pb
from ...wire.round_pb2 import Task
from . import cohort, kdf, transcript
from .limits import MEMBERS_MAX
from .logged import INDEX_BYTES, LOG, LogHead, ServedLog, prove
from .member_identity import Identity
from .recovery import recover
from .secure_errors import SecureError
from .transcript import Session

#: Fields of ServerState that no log, record or trace may show: shares of devices' secrets.
SECRETS: Final = ("unmasks",)
_NAMED_MAX: Final = 8  # devices that an error names


class Phase(StrEnum):
    """The states of the coordinator's session."""

    NEW = "new"
    KEYS = "keys"
    SHARES = "shares"
    MASKS = "masks"  # devices train and mask
    UNMASKING = "unmasking"


@dataclass(slots=True)
class ServerState:
    """The coordinator's state of a session, as plain data."""

    phase: Phase = Phase.NEW
    session: Session | None = None
    asked: list[int] = field(default_factory=list)
    """Devices that have the task."""
    bundles: dict[int, pb.KeyBundle] = field(default_factory=dict)
    """Key bundles of devices, by number."""
    members: list[int] = field(default_factory=list)
    """Those in the cohort, in increasing order: a member's index is its place."""
    leaves: bytes = b""
    """Their leaves."""
    shares: dict[int, pb.SealedShares] = field(default_factory=dict)
    sharers: bytes = b""
    """Bitmap over the members that sent shares."""
    survivors: bytes = b""
    """Bitmap over the members in the sum."""
    consents: dict[int, bytes] = field(default_factory=dict)
    """Signatures by index, in order of arrival."""
    consenting: list[int] = field(default_factory=list)
    """How many neighbours of each member have consented."""
    unmasks: dict[int, pb.UnmaskShares] = field(default_factory=dict, repr=False)
    """Answers by index."""
    owed: dict[int, int] = field(default_factory=dict)
    """Shares that are still missing of each member whose secret is needed."""
    refused: dict[str, int] = field(default_factory=dict)
    """Messages that were not taken, by reason."""
    log: LogHead | None = None
    """The head of the certificate log that its proofs are under; None: it gives no proofs."""
    places: bytes = b""
    """Where each member's certificate is in the log, u64 little-endian each."""


M = TypeVar("M", bound=Message)


class Deliveries(Mapping[int, M]):
    """The messages at a step's end, by device; each is made when it is read."""

    def __init__(self, devices: Sequence[int], make: Callable[[int], M]) -> None:
        self._devices, self._make = devices, make

    def __getitem__(self, device: int) -> M:
        if _place(self._devices, device) is None:
            raise KeyError(device)
        return self._make(device)

    def __iter__(self) -> Iterator[int]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)


class ServerSession:
    """Runs a session over a ServerState, which it changes in place. Making one costs nothing."""

    def __init__(
        self, state: ServerState, identity: Identity, log: ServedLog | None = None
    ) -> None:
        """Starts the session of `cohort`.

        log: where devices' certificates must be, and what proves it. None: nothing is proved, and
        devices whose federation requires the log take no part.
        """
        self.state = state
        self._identity = identity
        self._log = log

    def begin(self, task: Task, devices: Iterable[int]) -> None:
        """Opens the session of an attempt. Raises SecureError for an impossible plan."""
        session = Session.of(task)
        cohort.check_plan(session)
        asked = sorted(set(devices))
        most = min(MEMBERS_MAX, session.clients_max)
        if not session.cohort_min <= len(asked) <= most:
            raise SecureError(
                "few" if len(asked) < session.cohort_min else "many",
                f"{len(asked)} devices for a sum over {session.cohort_min} to {most}",
            )
        assert self.state.phase is Phase.NEW, "a session begins once"
        self.state.session, self.state.asked = session, asked
        self.state.phase = Phase.KEYS

    # ------------------------------------------------------------ keys

    def add_bundle(self, bundle: pb.KeyBundle) -> bool:
        """Takes a device's keys; whether they count (also when they are said again)."""
        state = self.state
        before = state.bundles.get(bundle.device)
        if before is not None and bundle == before:
            return True
        if reason := self._refusal(bundle, Phase.KEYS, state.asked):
            return self._refuse(reason)
        if before is not None:
            return self._refuse("second")
        if not cohort.is_well_formed(bundle) or not _is_usable(bundle):
            return self._refuse("malformed")
        signed = transcript.signed_bundle(
            self._session, bundle.device, bundle.sealing_key, bundle.mask_key
        )
        if not self._identity.verify(bundle.device, bundle.certificate, signed, bundle.signature):
            return self._refuse("signature")
        state.bundles[bundle.device] = bundle
        return True

    def close_keys(self) -> Deliveries[pb.Cohort]:
        """Continues with the logged members that gave keys. Raises SecureError."""
        state = self.state
        assert state.phase is Phase.KEYS
        members = sorted(state.bundles)
        if self._log is not None:
            members = self._logged(members, self._log)
        self._require(len(members), "gave keys")
        leaves = b"".join(transcript.leaf(state.bundles[device]) for device in members)
        # Raises where there are no parameters for so many.
        cohort.layout(self._session, leaves, transcript.numbers(members))
        state.members, state.leaves = members, leaves
        state.phase = Phase.SHARES
        return Deliveries(members, lambda device: self._cohort(self._index(device)))

    def _logged(self, devices: Sequence[int], log: ServedLog) -> list[int]:
        """The devices to which the others can be proved, and that can be proved to the others.

        Left out is a device whose certificate is not in the log, or not yet, or that has accepted a
        larger tree than the coordinator has a head of.
        """
        state = self.state
        members, places = [], []
        for device in devices:
            bundle = state.bundles[device]
            at = log.place(self._identity.log_leaf(device, bundle.certificate))
            if at is None or bundle.log_size > log.head.size:
                self._refuse(LOG)
                continue
            members.append(device)
            places.append(at.to_bytes(INDEX_BYTES, "little"))
        state.log, state.places = log.head, b"".join(places)
        return members

    def _cohort(self, index: int) -> pb.Cohort:
        state, near = self.state, self._layout.neighbours(index)
        message = pb.Cohort(
            **cohort.names(self._session, state.members[index]),
            leaves=state.leaves,
            devices=transcript.numbers(state.members),
            index=index,
            indices=near,
        )
        message.neighbours.extend(state.bundles[state.members[other]] for other in near)
        if state.log is not None and self._log is not None:
            known = state.bundles[state.members[index]].log_size
            tree = self._log.copy.tree()
            message.log.CopyFrom(prove(tree, state.log, known, state.places, near))
        return message

    # ------------------------------------------------------------ shares

    def add_shares(self, shares: pb.SealedShares) -> bool:
        """Takes a member's sealed shares; whether they count (also when they are said again)."""
        state = self.state
        before = state.shares.get(shares.device)
        if before is not None and shares == before:
            return True
        if reason := self._refusal(shares, Phase.SHARES, state.members):
            return self._refuse(reason)
        if before is not None:
            return self._refuse("second")
        near = self._layout.neighbours(self._index(shares.device))
        if [share.index for share in shares.shares] != near or any(
            len(share.sealed) != cohort.SEALED_BYTES for share in shares.shares
        ):
            return self._refuse("malformed")
        state.shares[shares.device] = shares
        return True

    def close_shares(self) -> Deliveries[pb.Delivery]:
        """Continues with the members that have sent shares: the message to each, by device.

        Raises SecureError when they are too few, or too few of one member's neighbours. On a ring
        there is no going on without that member: the next on the ring would then have too few, and
        so on around it.
        """
        state, place = self.state, self._layout
        assert state.phase is Phase.SHARES
        self._require(len(state.shares), "sent shares")
        sharers = {self._index(device) for device in state.shares}
        for index in sorted(sharers):
            near = sum(other in sharers for other in place.neighbours(index))
            if near < place.threshold:
                raise SecureError(
                    "few",
                    f"{near} neighbours of device {state.members[index]} sent shares, of"
                    f" {place.threshold} at least; {self.explain()}",
                )
        state.sharers = transcript.bitmap(sorted(sharers), place.members)
        state.phase = Phase.MASKS
        devices = [state.members[index] for index in sorted(sharers)]
        return Deliveries(devices, lambda device: self._delivery(self._index(device)))

    def _delivery(self, index: int) -> pb.Delivery:
        state, place = self.state, self._layout
        message = pb.Delivery(**cohort.names(self._session, state.members[index]))
        for other in place.neighbours(index):
            if _has(state.sharers, other):
                at = place.point(other, index) - 1
                sealed = state.shares[state.members[other]].shares[at].sealed
                message.shares.add(index=other, sealed=sealed)
        return message

    # ------------------------------------------------------------ survivors

    def survivors(self, devices: Iterable[int]) -> Deliveries[pb.Survivors]:
        """The messages for devices after all sums. Raises SecureError where masks would remain."""
        state, place = self.state, self._layout
        assert state.phase is Phase.MASKS
        named = sorted(set(devices))
        self._require(len(named), "are in the sum")
        strangers = [device for device in named if not self._is_sharer(device)]
        if strangers:
            raise SecureError(
                "stranger", f"{_words(strangers)} in the sum without a part in the session"
            )
        alive = {self._index(device) for device in named}
        owed: dict[int, int] = {}
        for index in range(place.members):
            if not _has(state.sharers, index):
                continue
            near = sum(other in alive for other in place.neighbours(index))
            if near < place.threshold:
                raise SecureError(
                    "few",
                    f"device {state.members[index]} has {near} neighbours in the sum, and"
                    f" {place.threshold} must give shares of its secret",
                )
            owed[index] = place.threshold
        state.owed = owed
        state.survivors = transcript.bitmap(sorted(alive), place.members)
        state.consenting = [0] * place.members
        state.shares = {}
        state.phase = Phase.UNMASKING
        return Deliveries(named, self._survivors)

    def _survivors(self, device: int) -> pb.Survivors:
        return pb.Survivors(**cohort.names(self._session, device), members=self.state.survivors)

    def add_consent(self, consent: pb.Consent) -> dict[int, pb.UnmaskRequest]:
        """Takes a survivor's signature: the requests that can be sent now, by device."""
        state, place = self.state, self._layout
        if reason := self._refusal(consent, Phase.UNMASKING, state.members):
            self._refuse(reason)
            return {}
        index = self._index(consent.device)
        if index in state.consents:
            if consent.signature != state.consents[index]:
                self._refuse("second")
            return {}
        bundle = state.bundles[consent.device]
        signed = transcript.signed_consent(place.binding, consent.device, state.survivors)
        if not _has(state.survivors, index) or not self._identity.verify(
            consent.device, bundle.certificate, signed, consent.signature
        ):
            self._refuse("signature")
            return {}
        state.consents[index] = consent.signature
        ready = [index] if state.consenting[index] >= place.threshold else []
        for other in place.neighbours(index):
            state.consenting[other] += 1
            if state.consenting[other] == place.threshold and other in state.consents:
                ready.append(other)
        return {state.members[i]: self._request(i) for i in sorted(ready)}

    def _request(self, index: int) -> pb.UnmaskRequest:
        """The request with the first neighbours that have consented: always the same ones."""
        state, place = self.state, self._layout
        near = set(place.neighbours(index))
        first: list[int] = []
        for other in state.consents:
            if other in near:
                first.append(other)
                if len(first) == place.threshold:
                    break
        message = pb.UnmaskRequest(**cohort.names(self._session, state.members[index]))
        message.consents.extend(
            pb.Signed(index=other, signature=state.consents[other]) for other in sorted(first)
        )
        return message

    # ------------------------------------------------------------ unmasking

    def add_unmask(self, unmask: pb.UnmaskShares) -> bool:
        """Takes a survivor's shares; whether they count (also when they are said again)."""
        state, place = self.state, self._layout
        if reason := self._refusal(unmask, Phase.UNMASKING, state.members):
            return self._refuse(reason)
        index = self._index(unmask.device)
        if index in state.unmasks:
            return unmask == state.unmasks[index] or self._refuse("second")
        near = {other for other in place.neighbours(index) if _has(state.sharers, other)}
        owners = [share.index for share in unmask.shares]
        if (
            not _has(state.survivors, index)
            or not cohort.is_increasing(owners)
            or not near.issuperset(owners)
            or any(len(share.share) != cohort.SECRET_BYTES for share in unmask.shares)
        ):
            return self._refuse("malformed")
        state.unmasks[index] = unmask
        for owner in owners:
            if owner in state.owed:
                state.owed[owner] -= 1
                if not state.owed[owner]:
                    del state.owed[owner]
        return True

    @property
    def is_ready(self) -> bool:
        """Whether all secrets that are needed can be made: `keys` gives them."""
        return self.state.phase is Phase.UNMASKING and not self.state.owed

    def keys(self) -> list[tuple[bytes, int]]:
        """What remains of the masks in the sum.

        Keys and signs for `masks.add`, which takes them out. Raises SecureError when shares are
        wrong, as far as that can be seen: a mask key is compared with its public half; of a
        self-mask seed it is seen only where more shares came than it needs.
        """
        assert self.is_ready
        state, place = self.state, self._layout
        held = self._shares_by_owner()
        found: list[tuple[bytes, int]] = []
        for index, device in enumerate(state.members):
            if index not in held:
                continue
            if _has(state.survivors, index):
                seed = self._recover(held[index], device, None)
                found.append((kdf.self_mask_key(seed, place.binding), -1))
                continue
            secret = self._recover(held[index], device, state.bundles[device].mask_key)
            near = [o for o in place.neighbours(index) if _has(state.survivors, o)]
            peers = [state.bundles[state.members[other]].mask_key for other in near]
            for other, shared in zip(near, kdf.agree(secret, peers), strict=True):
                key = kdf.pair_mask_key(shared, place.binding, index, other)
                found.append((key, -cohort.sign_towards(other, index)))
        return found

    def _shares_by_owner(self) -> dict[int, dict[int, bytes]]:
        """Shares by point, of each member whose secret is needed."""
        state, place = self.state, self._layout
        held: dict[int, dict[int, bytes]] = {}
        for holder, unmask in sorted(state.unmasks.items()):
            for share in unmask.shares:
                at = place.point(share.index, holder)
                held.setdefault(share.index, {})[at] = share.share
        return held

    def _recover(self, shares: Mapping[int, bytes], device: int, public: bytes | None) -> bytes:
        try:
            found = recover(shares, self._layout.threshold, public)
        except SecureError as fault:
            raise SecureError(fault.reason, f"device {device}'s secret: {fault.message}") from fault
        if found.wrong:
            self._refuse("share")
        return found.secret

    # ------------------------------------------------------------ what is waited for

    def answer(self, device: int) -> Message | None:
        """The message that the device waits for now, if any; repeated after a timeout."""
        state = self.state
        if not self.has_part(device) or state.phase in (Phase.NEW, Phase.KEYS):
            return None
        index = self._index(device)
        if state.phase is Phase.SHARES:
            return None if device in state.shares else self._cohort(index)
        if state.phase is Phase.MASKS:
            return self._delivery(index)
        if index not in state.consents:
            return self._survivors(device)
        if index in state.unmasks or state.consenting[index] < self._layout.threshold:
            return None
        return self._request(index)

    def has_part(self, device: int) -> bool:
        """Whether the session still goes on with the device."""
        state = self.state
        if state.phase in (Phase.NEW, Phase.KEYS):
            return _place(state.asked, device) is not None
        index = _place(state.members, device)
        if index is None or state.phase is Phase.SHARES:
            return index is not None
        return _has(state.sharers if state.phase is Phase.MASKS else state.survivors, index)

    def missing(self) -> list[int]:
        """The devices whose word is waited for now: keys, shares, consent, or shares of others."""
        state = self.state
        if state.phase is Phase.KEYS:
            return [device for device in state.asked if device not in state.bundles]
        if state.phase is Phase.SHARES:
            return [device for device in state.members if device not in state.shares]
        if state.phase is not Phase.UNMASKING:
            return []
        alive = transcript.indices(state.survivors, len(state.members))
        return [state.members[index] for index in alive if index not in state.unmasks]

    def spoilers(self, edges: Mapping[int, int]) -> list[int]:
        """Members whose secret cannot be recovered because their sealed shares cannot be opened.

        More of their neighbours than may be corrupt have given shares of others and none of theirs.
        """
        state, place = self.state, self._layout
        # As many of a member's neighbours as may be corrupt: c of 2t > k + c (`params`).
        most = 2 * place.threshold - place.graph.degree - 1
        shared = {o: u for o, u in state.unmasks.items() if u.shares and u.device in edges}
        found = []
        for index in state.owed:
            device = state.members[index]
            near = [shared[other] for other in place.neighbours(index) if other in shared]
            without = Counter(
                edges[one.device] for one in near if all(s.index != index for s in one.shares)
            )
            others = max((n for e, n in without.items() if e != edges.get(device)), default=0)
            if device in edges and without.total() - others > most:
                found.append(device)
        return found

    def explain(self) -> str:
        """What is still missing, in words."""
        state = self.state
        if state.phase is Phase.UNMASKING and state.owed:
            silent = [device for device in self.missing() if self._index(device) in state.consents]
            unsigned = [d for d in self.missing() if self._index(d) not in state.consents]
            return (
                f"the masks of {_words([state.members[i] for i in state.owed])} cannot be taken"
                f" out: no consent from {_words(unsigned)}, no shares from {_words(silent)}"
            )
        return f"no word from {_words(self.missing())} ({state.phase})"

    # ------------------------------------------------------------ parts

    def _require(self, count: int, what: str) -> None:
        least = self._session.cohort_min
        if count < least:
            raise SecureError(
                "few", f"{count} devices {what}, of {least} at least; {self.explain()}"
            )

    def _refusal(self, message: cohort.Named, phase: Phase, known: Sequence[int]) -> str:
        """Why a message cannot be taken, or nothing."""
        state = self.state
        if state.session is None or not cohort.is_of(message, state.session):
            return "foreign"
        if state.phase is not phase:
            return "untimely"
        return "" if _place(known, message.device) is not None else "stranger"

    def _refuse(self, reason: str) -> bool:
        self.state.refused[reason] = self.state.refused.get(reason, 0) + 1
        return False

    def _is_sharer(self, device: int) -> bool:
        index = _place(self.state.members, device)
        return index is not None and _has(self.state.sharers, index)

    def _index(self, device: int) -> int:
        index = _place(self.state.members, device)
        assert index is not None
        return index

    @property
    def _session(self) -> Session:
        assert self.state.session is not None
        return self.state.session

    @property
    def _layout(self) -> cohort.Layout:
        return cohort.layout(
            self._session, self.state.leaves, transcript.numbers(self.state.members)
        )


def _is_usable(bundle: pb.KeyBundle) -> bool:
    """Whether neighbours can agree on secrets with the bundle's keys."""
    return kdf.is_usable(bundle.sealing_key) and kdf.is_usable(bundle.mask_key)


def _has(bitmap: bytes, index: int) -> bool:
    return bool(bitmap[index >> 3] >> (index & 7) & 1)


def _place(ordered: Sequence[int], device: int) -> int | None:
    at = bisect_left(ordered, device)
    return at if at < len(ordered) and ordered[at] == device else None


def _words(devices: Sequence[int]) -> str:
    """Some devices by number, for people."""
    if not devices:
        return "no device"
    named = ", ".join(map(str, devices[:_NAMED_MAX]))
    more = len(devices) - _NAMED_MAX
    return f"device{'s' * (len(devices) > 1)} {named}" + (f" and {more} more" if more > 0 else "")
