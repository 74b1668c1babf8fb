"""Helper mode: a device sends one message, and edges of other operators hold what unmasks.

In addition to the sessions of `client` and `server`: for sums whose members cannot wait for each
other. The device adds to its update one mask for each of m helpers and seals each mask's seed for
its helper:

    y = x + PRG(seed_1) + ... + PRG(seed_m)        one vector up, and m seals of 80 bytes

The coordinator adds up the vectors of devices that it chooses and shows each helper their seeds, a
batch; the helper answers with the sum of their masks, and what is left is the sum of the updates
(additive sharing with compressed shares, as in Prio3: Davis et al., VDAF draft, section 7;
Corrigan-Gibbs and Boneh 2017, "Prio", NSDI). Dropouts cost nothing: a device that is not in a batch
is not in its sum. A batch may be of several tasks: of all devices that have answered, from whatever
model.

The coordinator learns sums of disjoint batches of `cohort_min` devices and more, and nothing else,
as long as one helper is honest and does not work with it, nor with the node that carries the
uploads. For that an honest helper

- opens a seed in one batch and never in another: two sums that overlap would give their difference
  away. Which seeds it has opened is in its state (`Ledger`), and durable before an answer leaves;
- counts devices, not seeds, and only where each seed is signed with the certificate of the device:
  else the coordinator could fill a batch up with devices of its own;
- adds up no batch with a device that is revoked, or whose certificate is not proved to be in the
  certificate log, where its federation's terms require the log (`logged`): else the authority could
  fill it up. The revoked nodes and the accepted head are in the `Ledger`, which changes by recorded
  events alone, so a journal that is handled again has the same answers.

Nothing is promised of the sum being right: a helper or a device that lies makes noise.

A seed is sealed by HPKE (`hpke`) with the session, the helpers and the device in `info`. Nothing is
drawn: seeds and the sender's keys of the seals follow from the session's secret.

Not reviewed by a cryptographer.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ...wire import helper_pb2 as pb
from ...wire.round_pb2 import Task
from ...wire.secure_pb2 import HelperKey, MaskSeeds, SealedSeed, SecurePlan
from ..mechanisms.ring import RingError, RingPlan
from . import hpke, kdf, masks
from .cohort import SECRET_BYTES, check_plan, is_increasing
from .limits import BATCH_MAX, HELPERS_MAX
from .logged import LOG, LogHead, LogRules, Verifier, accept, check_leaves
from .member_identity import CERTIFICATE_BYTES_MAX, SIGNATURE_BYTES_MAX, Identity
from .secure_errors import SecureError
from .transcript import Session

Words: TypeAlias = npt.NDArray[np.uint32]

#: HPKE's encapsulated key, the seed and a tag.
SEALED_BYTES: Final = SECRET_BYTES + hpke.OVERHEAD_BYTES
#: Bytes of a device's MaskSeeds, encoded.
SEEDS_BYTES_MAX: Final = (
    CERTIFICATE_BYTES_MAX + HELPERS_MAX * (SEALED_BYTES + SIGNATURE_BYTES_MAX + 16) + 32
)
#: A helper's state: seeds that it has opened, and batches, of one run; and runs. What is older is
#: refused.
OPENED_MAX: Final = 200_000
BATCHES_MAX: Final = 1_000
RUNS_MAX: Final = 64
#: Revoked devices that a helper stores. Those of a request arrive just before it.
DENIED_MAX: Final = 65_536
_NO_RULES: Final = LogRules()


@dataclass(frozen=True)
class Helpers:
    """A session and its helpers: all must name the same. Raises SecureError."""

    session: Session
    edges: tuple[int, ...]
    """The helpers' numbers."""
    keys: tuple[bytes, ...]
    """Their X25519 public keys, 32 bytes each. A helper's place is its number here."""

    @staticmethod
    def of(task: Task) -> Helpers:
        """The helpers of a task that names them with their keys."""
        named = task.secure.helpers
        return Helpers(Session.of(task), tuple(h.edge for h in named), tuple(h.key for h in named))

    def __post_init__(self) -> None:
        check_plan(self.session)
        if self.session.kept:
            # A batch is of several rounds, and each chooses others.
            raise SecureError("helpers", "updates of which a part travels are for sessions")
        if not 1 <= len(self.keys) == len(self.edges) <= HELPERS_MAX:
            raise SecureError("helpers", f"{len(self.keys)} helpers, of 1 to {HELPERS_MAX}")
        if not all(map(kdf.is_usable, self.keys)):
            raise SecureError("helpers", "a helper's key is not one of X25519")
        if len(set(self.keys)) < len(self.keys) or len(set(self.edges)) < len(self.edges):
            raise SecureError("helpers", "helpers are different edges with different keys")
        if 0 in self.edges:
            raise SecureError("helpers", "edge 0 is the coordinator's own")

    @cached_property
    def binding(self) -> bytes:
        """What all must agree on, 32 bytes: seals, signatures and masks depend on it."""
        named = b"".join(
            struct.pack("<Q", edge) + key for edge, key in zip(self.edges, self.keys, strict=True)
        )
        count = struct.pack("<I", len(self.keys))
        said = b"delian/helpers/v2" + self.session.task + count + named
        return hashlib.sha256(said).digest()

    def about(self, what: bytes, number: int, device: int) -> bytes:
        """What is sealed, signed or derived for one helper and device."""
        return b"delian/helper-" + what + b"/v1" + self.binding + struct.pack("<IQ", number, device)


def signed_key(edge: int, key: bytes) -> bytes:
    """What an edge signs of the key that it helps with."""
    return b"delian/helper-key/v1" + struct.pack("<Q", edge) + key


def is_card(card: HelperKey) -> bool:
    """Whether a helper's key has the sizes that it must have."""
    return (
        kdf.is_usable(card.key)
        and len(card.certificate) <= CERTIFICATE_BYTES_MAX
        and 0 < len(card.signature) <= SIGNATURE_BYTES_MAX
    )


def are_seeds(seeds: MaskSeeds, count: int) -> bool:
    """Whether there is a seed for each of so many helpers, each of the size that it must have."""
    return (
        len(seeds.seeds) == count
        and len(seeds.certificate) <= CERTIFICATE_BYTES_MAX
        and all(
            len(seed.sealed) == SEALED_BYTES and 0 < len(seed.signature) <= SIGNATURE_BYTES_MAX
            for seed in seeds.seeds
        )
    )


# ---------------------------------------------------------------- the device


@dataclass(frozen=True, slots=True)
class Trust:
    """The helpers that a device's owner allows, whatever a plan says."""

    edges: Mapping[int, bytes] = field(default_factory=dict)
    """Number -> its X25519 key. Empty: any key signed with the edge's certificate."""
    least: int = 1
    """So many helpers at least."""

    def check(self, plan: SecurePlan, home: int, identity: Identity) -> None:
        """Raises SecureError for helpers that are not allowed or a wrong signature."""
        if len(plan.helpers) < self.least:
            raise SecureError("helpers", f"{len(plan.helpers)} helpers, of {self.least} at least")
        if all(card.edge == home for card in plan.helpers):
            raise SecureError("helpers", "the edge that carries the update would unmask it")
        for card in plan.helpers:
            pinned = self.edges.get(card.edge)
            if pinned is None or pinned not in (b"", card.key):
                raise SecureError("helpers", f"edge {card.edge} may not help")
            said = signed_key(card.edge, card.key)
            if not identity.verify_edge(card.edge, card.certificate, said, card.signature):
                raise SecureError("helpers", f"edge {card.edge} has not signed its key")


def mask(
    vector: Words,
    helpers: Helpers,
    device: int,
    secret: bytes,
    identity: Identity,
    threads: int = 1,
) -> tuple[Words, MaskSeeds]:
    """The masked update, a new array u32[L], and the seeds of its masks. The same every time.

    secret: 32 bytes for this session alone (`kdf.session_secret`): two updates must not be masked
    alike. Raises SecureError.
    """
    session = helpers.session
    least = session.kept or session.dimension
    if vector.dtype != np.uint32 or vector.ndim != 1 or vector.size <= least:
        raise SecureError("vector", "the update is not as long as the plan says")
    assert len(secret) == SECRET_BYTES, "a session's secret has 32 bytes"
    numbers = range(len(helpers.keys))
    seeds = [kdf.hkdf(secret, helpers.about(b"seed", n, device)) for n in numbers]
    masked = np.array(vector, order="C")
    keys = [(_mask_key(helpers, n, device, seeds[n]), 1) for n in numbers]
    masks.add(masked, keys, session.suite, threads)
    sealed = []
    for n in numbers:
        sender = kdf.hkdf(secret, helpers.about(b"sender", n, device))
        box = hpke.seal(helpers.keys[n], helpers.about(b"seal", n, device), seeds[n], sender)
        signature = identity.sign(helpers.about(b"share", n, device) + box)
        sealed.append(SealedSeed(sealed=box, signature=signature))
    return masked, MaskSeeds(device=device, certificate=identity.certificate, seeds=sealed)


def _mask_key(helpers: Helpers, number: int, device: int, seed: bytes) -> bytes:
    return kdf.hkdf(seed, helpers.about(b"mask", number, device))


# ---------------------------------------------------------------- a helper


@dataclass(slots=True)
class RunLedger:
    """What a helper has opened of a run."""

    opened: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    """Round -> attempt -> devices, in increasing order."""
    batches: dict[int, bytes] = field(default_factory=dict)
    """Number -> what was asked for, as a digest."""
    floor: int = 0
    """Rounds up to this one, and batches up to batch_floor, are not known any more."""
    batch_floor: int = 0
    count: int = 0


@dataclass(slots=True)
class Ledger:
    """What a helper must never forget, as plain data; no secret is in it."""

    runs: dict[int, RunLedger] = field(default_factory=dict)
    """Runs by number; those up to `floor` that are not here are forgotten."""
    floor: int = 0
    log: LogHead = field(default_factory=LogHead)
    """The newest head of the certificate log that it has accepted."""
    denied: dict[int, bool] = field(default_factory=dict)
    """Devices that are revoked, the last DENIED_MAX that it received."""

    def deny(self, device: int) -> None:
        """Notes that a device is revoked."""
        self.denied.pop(device, None)
        self.denied[device] = True
        if len(self.denied) > DENIED_MAX:
            del self.denied[next(iter(self.denied))]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a helper says to a request."""

    refusal: pb.HelpRefusal = pb.HELP_GIVEN
    bad: tuple[int, ...] = ()
    keys: tuple[tuple[bytes, int], ...] = ()
    """Keys of the masks to be added up, 32 bytes and a sign each."""
    suite: int = 0
    ring: RingPlan | None = None
    """The plan of the sum."""
    fault: SecureError | None = None
    """Why the proof of the certificate log does not hold."""


class Helper:
    """An edge's part as a helper, over a Ledger, which it changes in place.

    The caller makes that durable before an answer leaves.

    private: the 32 bytes of its X25519 key. identity: signs as the edge, and knows whose devices'
    signatures are whose. least: devices in a sum, however few a plan asks for. rules: what is asked
    of the certificate log.
    """

    def __init__(
        self,
        edge: int,
        private: bytes,
        identity: Identity,
        least: int = 0,
        rules: LogRules = _NO_RULES,
    ) -> None:
        self.edge, self.identity, self.least, self.rules = edge, identity, least, rules
        self._private, self._public = private, kdf.public_key(private)

        self._card = HelperKey(
            edge=edge,
            key=self._public,
            certificate=identity.certificate,
            signature=identity.sign(signed_key(edge, self._public)),
        )

    def card(self) -> HelperKey:
        """Its key, as devices will want to see it."""
        return self._card

    def answer(self, request: pb.HelpRequest, ledger: Ledger) -> Answer:
        """Opens the seeds of a batch, once and for all; the same request has the same answer.

        What is refused as MALFORMED, TOO_FEW, NOT_LOGGED or OTHER_HEAD leaves what was opened as it
        is. Every other batch is noted before any seed is opened, also where some seed turns out to
        be bad.
        """
        try:
            batch = _read(request)
            place = batch.parts[0].keys.index(self._public)
            fits = all(
                part.keys[place] == self._public and part.edges[place] == self.edge
                for part in batch.parts
            )
        except (SecureError, RingError, ValueError, IndexError):
            return Answer(pb.MALFORMED)
        if not fits:
            return Answer(pb.MALFORMED)
        least = max(self.least, *(part.session.cohort_min for part in batch.parts))
        if len({one.device for _, one in batch.seeds}) < least:
            return Answer(pb.TOO_FEW)
        logged = self.rules.required
        if logged and request.HasField("log") and request.log.update.old_size != ledger.log.size:
            return Answer(pb.OTHER_HEAD)
        try:
            if logged:
                self._check_log(request, ledger)
        except SecureError as fault:
            return Answer(pb.NOT_LOGGED, fault=fault)
        if not _note(ledger, request.run, request.batch, batch):
            return Answer(pb.ASKED_BEFORE)
        keys, bad = [], []
        for part, one in batch.seeds:
            try:
                if one.device in ledger.denied:
                    raise SecureError("denied", "a device that is revoked")
                keys.append((self._open(part, place, one), 1))
            except SecureError:
                bad.append(one.device)
        if bad:
            return Answer(pb.BAD_SEEDS, tuple(sorted(set(bad))))
        return Answer(keys=tuple(keys), suite=batch.parts[0].session.suite, ring=batch.ring)

    def _check_log(self, request: pb.HelpRequest, ledger: Ledger) -> None:
        """Accepts the head that a batch is proved under.

        Raises SecureError, with a reason of the log's, unless the certificates of all devices are
        proved to be in the log. A certificate that is not the CA's is in no proof; its seed is bad.
        """
        if not request.HasField("log"):
            raise SecureError(LOG, "no proof that the devices' certificates are in the log")
        ledger.log = accept(ledger.log, request.log.update, self.identity, self.rules)
        leaves = [leaf for _, leaf in leaves_of(request, self.identity)]
        check_leaves(request.log, leaves, ledger.log)

    def _open(self, helpers: Helpers, place: int, one: MaskSeeds) -> bytes:
        """The key of a device's mask."""
        device, seed = one.device, one.seeds[0]
        said = helpers.about(b"share", place, device) + seed.sealed
        if not self.identity.verify(device, one.certificate, said, seed.signature):
            raise SecureError("signature", "a seed that its device has not signed")
        opened = hpke.open_sealed(self._private, helpers.about(b"seal", place, device), seed.sealed)
        if len(opened) != SECRET_BYTES:
            raise SecureError("sealed", "what was sealed is no seed")
        return _mask_key(helpers, place, device, opened)


def leaves_of(request: pb.HelpRequest, verifier: Verifier) -> list[tuple[int, bytes]]:
    """Device and leaf of the CA's certificates that a request needs in the log, in order."""
    found: dict[bytes, int] = {}
    for part in request.parts:
        for one in part.devices:
            try:
                found.setdefault(verifier.log_leaf(one.device, one.certificate), one.device)
            except SecureError:
                continue
    return [(device, leaf) for leaf, device in found.items()]


@dataclass(frozen=True, slots=True)
class _Batch:
    """A request that makes sense."""

    parts: tuple[Helpers, ...]
    seeds: tuple[tuple[Helpers, MaskSeeds], ...]
    """Each with the part that it belongs to."""
    ring: RingPlan
    """The plan of a sum."""

    def digest(self) -> bytes:
        """Which devices, and which of their seeds."""
        said = hashlib.sha256(b"delian/helper-batch/v1")
        for part, one in self.seeds:
            said.update(part.binding + struct.pack("<Q", one.device) + one.seeds[0].sealed)
        return said.digest()


def _read(request: pb.HelpRequest) -> _Batch:
    """Raises SecureError or RingError for parts that do not fit together."""
    count = sum(len(part.devices) for part in request.parts)
    names = [(part.task.round, part.task.attempt) for part in request.parts]
    if not 0 < count <= BATCH_MAX or min(request.run, request.batch) < 1:
        raise SecureError("batch", f"a batch of {count} seeds")
    if not all(a < b for a, b in pairwise(names)):
        raise SecureError("batch", "the parts are not in order")
    parts, seeds, shapes = [], [], set()
    for part in request.parts:
        helpers, devices = Helpers.of(part.task), part.devices
        if part.task.run != request.run or not devices:
            raise SecureError("batch", "a part of another run, or of no device")
        if not is_increasing([one.device for one in devices]):
            raise SecureError("batch", "devices that are not in order")
        if not all(are_seeds(one, 1) for one in devices):
            raise SecureError("batch", "a seed that is none")
        ring = RingPlan.of(part.task.ring)
        shapes.add((helpers.session.suite, ring.length, ring.bits))
        parts.append(helpers)
        seeds += [(helpers, one) for one in devices]
    if len(shapes) > 1:
        raise SecureError("batch", "updates of different lengths")
    return _Batch(tuple(parts), tuple(seeds), ring)


def _note(ledger: Ledger, run: int, number: int, batch: _Batch) -> bool:
    """Records a batch. False: it or some of its seeds may have been opened otherwise."""
    known = ledger.runs.get(run)
    if known is None:
        if run <= ledger.floor:
            return False
        known = ledger.runs[run] = RunLedger()
        while len(ledger.runs) > RUNS_MAX:
            oldest = min(ledger.runs)
            del ledger.runs[oldest]
            ledger.floor = max(ledger.floor, oldest)
        if run not in ledger.runs:
            return False
    digest = batch.digest()
    if number in known.batches:
        return known.batches[number] == digest
    if number <= known.batch_floor:
        return False
    for part, one in batch.seeds:
        session = part.session
        there = known.opened.get(session.round, {}).get(session.attempt, ())
        if session.round <= known.floor or one.device in there:
            return False
    for part in batch.parts:
        session = part.session
        attempts = known.opened.setdefault(session.round, {})
        fresh = [one.device for of, one in batch.seeds if of is part]
        attempts[session.attempt] = sorted([*attempts.get(session.attempt, []), *fresh])
    known.count += len(batch.seeds)
    known.batches[number] = digest
    _forget_oldest(known)
    return True


def _forget_oldest(known: RunLedger) -> None:
    """Keeps a run's ledger within its limits; what is forgotten is refused from now on."""
    while len(known.batches) > BATCHES_MAX:
        oldest = min(known.batches)
        del known.batches[oldest]
        known.batch_floor = max(known.batch_floor, oldest)
    while known.count > OPENED_MAX:
        round = min(known.opened)
        known.count -= sum(map(len, known.opened.pop(round).values()))
        known.floor = max(known.floor, round)


def masks_of(keys: Sequence[tuple[bytes, int]], length: int, suite: int, threads: int = 1) -> Words:
    """The sum of masks, u32[L]."""
    total = np.zeros(length, np.uint32)
    masks.add(total, keys, suite, threads)
    return total
