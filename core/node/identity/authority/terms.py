"""The federation's terms: what its runs keep to, signed by the CA's key.

A device gets them with its certificate: the floors of masked sums and the root key that signs the
lists of online keys (`manifest`). The token pins the CA's key, so the terms are as trusted as the
certificate, whatever node passes them on. The CA signs them when they change (`delian ca init`,
`delian ca terms`); the coordinator hands out the signed bytes and cannot change them.

Newer terms that come with a renewal replace the device's when they are not looser: the same root
key, and no lower floor. Looser ones wait next to them until the owner accepts them (`Change`). The
owner's own settings go before the terms in both directions.

The bytes that are signed are laid down in proto/enrolment.proto. Nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from enum import StrEnum
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from ....privacy.secagg.limits import COHORT_MIN
from ....privacy.secagg.logged import LogRules
from ....wire.enrolment_pb2 import FederationTerms, SignedTerms
from ..pki.certificates import IdentityError, check_federation, read_file
from ..pki.ledger import write_file

FILE: Final = "terms"
#: Terms that came with a renewal and are looser: they wait for the owner.
OFFERED_FILE: Final = "terms.offered"
TERMS_BYTES_MAX: Final = 1024
ROOT_BYTES: Final = 32
#: Witnesses of the certificate log, and the bytes of their Ed25519 keys.
WITNESSES_MAX: Final = 16
WITNESS_KEY_BYTES: Final = 32
#: A sum of ten hides each device among nine others; two colluding devices still face eight.
COHORT_MIN_DEFAULT: Final = 10
COHORT_MIN_MAX: Final = 1000
CORRUPT_DEFAULT: Final = 0.05
#: The delta of a cap on epsilon.
DELTA_DEFAULT: Final = 1e-6

_DOMAIN: Final = b"delian/federation-terms/v1"
Sign = Callable[[bytes], bytes]


class TermsError(IdentityError):
    """Terms that do not hold, or a run that does not keep to them."""


class Change(StrEnum):
    """What newer terms are to a device."""

    NOTHING = "nothing"  # not newer
    TAKEN = "taken"
    LOOSER = "looser"  # they wait for the owner


def rules_of(terms: FederationTerms | None) -> LogRules:
    """What a node asks of the certificate log by its federation's terms; None: it has none."""
    if terms is None:
        return LogRules()
    return LogRules(terms.log_required, tuple(terms.witnesses), terms.quorum)


# ---------------------------------------------------------------- signing


def made(
    federation: str,
    before: FederationTerms | None = None,
    *,
    now_s: float,
    cohort_min: int | None = None,
    corrupt: float | None = None,
    masks_required: bool | None = None,
    artifact_root: bytes | None = None,
    log_required: bool | None = None,
    witnesses: Collection[bytes] | None = None,
    quorum: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
) -> FederationTerms:
    """The next terms: those before, or the defaults, with what is given changed.

    artifact_root: an Ed25519 public key, 32 bytes.
    log_required: whether neighbours' certificates must be in the certificate log.
    witnesses: Ed25519 public keys, 32 bytes each.
    quorum: of so many witnesses a head of the log needs cosignatures.
    epsilon, delta: privacy budget of a device over all runs; epsilon 0: no cap.

    Raises TermsError.
    """
    start = before or FederationTerms(
        masks_required=True,
        cohort_min=COHORT_MIN_DEFAULT,
        corrupt=CORRUPT_DEFAULT,
        log_required=True,
    )
    cap = start.epsilon if epsilon is None else epsilon
    terms = FederationTerms(
        federation=federation,
        # A CA that was restored from a backup does not repeat a version.
        version=max(start.version + 1, int(now_s)),
        issued_s=int(now_s),
        artifact_root=start.artifact_root if artifact_root is None else artifact_root,
        masks_required=start.masks_required if masks_required is None else masks_required,
        cohort_min=start.cohort_min if cohort_min is None else cohort_min,
        corrupt=start.corrupt if corrupt is None else corrupt,
        log_required=start.log_required if log_required is None else log_required,
        witnesses=sorted(start.witnesses if witnesses is None else set(witnesses)),
        quorum=start.quorum if quorum is None else quorum,
        epsilon=cap,
        delta=0.0 if not cap else (start.delta or DELTA_DEFAULT) if delta is None else delta,
    )
    _check(terms)
    return terms


def signed(sign: Sign, terms: FederationTerms) -> bytes:
    """The terms under the CA's signature, as they travel.

    sign: `Authority.sign`. Raises TermsError for terms that no device would take.
    """
    _check(terms)
    content = _encoded(terms)
    message = SignedTerms(terms=content, signature=sign(_DOMAIN + content))
    return message.SerializeToString(deterministic=True)


def publish(folder: Path, sign: Sign, terms: FederationTerms) -> None:
    """Puts signed terms into the CA's folder, from where they are handed out; durable on return.

    Raises TermsError.
    """
    write_file(folder / FILE, signed(sign, terms))


def published(folder: Path) -> bytes:
    """The signed terms of a CA's folder; empty where it is older than terms."""
    path = folder / FILE
    return read_file(path, TERMS_BYTES_MAX) if path.exists() else b""


# ---------------------------------------------------------------- verifying


def verify(
    content: bytes, authority: ec.EllipticCurvePublicKey, federation: str
) -> FederationTerms:
    """The terms that the CA has signed for this federation. Raises TermsError."""
    if not 0 < len(content) <= TERMS_BYTES_MAX:
        raise TermsError(
            f"the federation's terms have {len(content)} bytes",
            "its operator makes them with: delian ca terms",
        )
    try:
        message = SignedTerms.FromString(content)
        authority.verify(message.signature, _DOMAIN + message.terms, ec.ECDSA(hashes.SHA256()))
        terms = FederationTerms.FromString(message.terms)
    except (DecodeError, InvalidSignature):
        raise TermsError("the federation's terms are not signed by its CA") from None
    known = FederationTerms()
    known.CopyFrom(terms)
    known.DiscardUnknownFields()
    if _encoded(known) != message.terms:
        raise TermsError(
            "the federation's terms are not encoded as they must be",
            "another version of delian made them; update this one",
        )
    _check(terms)
    if terms.federation != federation:
        raise TermsError(f"the terms are of the federation {terms.federation}, not of {federation}")
    return terms


def is_looser(now: FederationTerms, before: FederationTerms) -> bool:
    """Whether terms are weaker than others.

    They require less, or trust another root key, or need signatures of fewer witnesses that were
    named before, or allow a larger privacy budget.
    """
    replaced = bool(before.artifact_root) and now.artifact_root != before.artifact_root
    # A head that these terms accept may have been signed by all witnesses that are new.
    of_known = max(0, now.quorum - len(set(now.witnesses) - set(before.witnesses)))
    return (
        replaced
        or now.log_required < before.log_required
        or of_known < before.quorum
        or now.cohort_min < before.cohort_min
        or now.corrupt < before.corrupt
        or now.masks_required < before.masks_required
        or (before.epsilon > 0 and not 0 < now.epsilon <= before.epsilon)
        or (before.epsilon > 0 and now.delta > before.delta)
    )


def check_run(
    terms: FederationTerms, masked: bool, cohort_min: int, corrupt: float, noised: bool = False
) -> None:
    """Whether a run keeps to the terms. noised: its devices add noise. Raises TermsError."""
    if terms.epsilon and not noised:
        raise TermsError(
            f"the federation's terms cap epsilon at {terms.epsilon:g}, and no noise of the devices"
            " bounds what this run's updates disclose",
            "plan distributed noise: docs/privacy.md",
        )
    if not masked:
        if terms.masks_required:
            raise TermsError(
                "the federation's terms require masks, and the run has none",
                "leave --plain out, or change the terms: delian ca terms --allow-plain;"
                " devices also need device.masks.required = false",
            )
        return
    if cohort_min < terms.cohort_min:
        raise TermsError(
            f"the run sums {cohort_min} devices or more; the federation's terms ask for"
            f" {terms.cohort_min}",
            f"--plan secure.cohort_min={terms.cohort_min}, or for a small fleet:"
            " delian ca terms --cohort-min N, before devices join",
        )
    if corrupt < terms.corrupt:
        raise TermsError(
            f"the run withstands {corrupt:.0%} corrupt devices; the federation's terms ask for"
            f" {terms.corrupt:.0%}",
            f"--plan secure.corrupt={terms.corrupt:g}",
        )


# ---------------------------------------------------------------- a node's copy


def take(
    folder: Path,
    content: bytes,
    authority: ec.EllipticCurvePublicKey,
    federation: str,
    owned: bool = True,
) -> Change:
    """Takes the terms that came with a certificate into a node's folder; durable on return.

    owned: it is a device, where looser ones are stored next to those in force, for its owner.
    Raises TermsError and changes nothing for terms that do not hold.
    """
    now = verify(content, authority, federation)
    before = held(folder, authority, federation)
    if before is not None and now.version <= before.version:
        return Change.NOTHING
    if owned and before is not None and is_looser(now, before):
        write_file(folder / OFFERED_FILE, content)
        return Change.LOOSER
    write_file(folder / FILE, content)
    (folder / OFFERED_FILE).unlink(missing_ok=True)
    return Change.TAKEN


def held(
    folder: Path,
    authority: ec.EllipticCurvePublicKey,
    federation: str,
    name: str = FILE,
) -> FederationTerms | None:
    """The terms in a node's folder; None where it joined before there were any.

    Raises TermsError for a file that is damaged or was changed.
    """
    content = read_file(folder / name, TERMS_BYTES_MAX) if (folder / name).exists() else None
    return None if content is None else verify(content, authority, federation)


# ---------------------------------------------------------------- parts


def _encoded(terms: FederationTerms) -> bytes:
    return terms.SerializeToString(deterministic=True)


def _check(terms: FederationTerms) -> None:
    check_federation(terms.federation)
    good = (
        terms.version >= 1
        and len(terms.artifact_root) in (0, ROOT_BYTES)
        and COHORT_MIN <= terms.cohort_min <= COHORT_MIN_MAX
        and 0.0 <= terms.corrupt < 1.0
        and len(terms.witnesses) <= WITNESSES_MAX
        and all(len(key) == WITNESS_KEY_BYTES for key in terms.witnesses)
        and list(terms.witnesses) == sorted(set(terms.witnesses))
        and terms.quorum <= len(terms.witnesses)
        and 0.0 <= terms.epsilon < math.inf
        and (0.0 < terms.delta < 1.0 if terms.epsilon else terms.delta == 0.0)
    )
    if not good:
        raise TermsError(
            "these are no terms of a federation",
            f"a smallest sum of {COHORT_MIN} to {COHORT_MIN_MAX} devices, a share of corrupt"
            f" devices below 1, an Ed25519 root key, at most {WITNESSES_MAX} witnesses, a quorum of"
            " no more than there are, and an epsilon with a delta between 0 and 1 or none",
        )
