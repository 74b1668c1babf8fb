"""The audit log: an append-only, signed chain of hashes.

It records what was aggregated and what operators requested.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from ...core.common.errors import DelianError
from ...core.node.identity.pki import certificates
from ...core.node.identity.pki.chain import chain_of_pem, read_chain
from ...core.wire.operator_pb2 import PlanMessage

LINE_BYTES_MAX = 64 * 1024
#: Of `why`, which may be anything.
WHY_CHARS_MAX = 200
START = bytes(32)
#: Kinds of entries about operators; the others are about runs.
CALL, OUTCOME = "call", "outcome"
#: The kind of the entry that says which bundle a run is of.
RUN = "run"

_ENTRY, _DEVICES = b"delian/audit/v1", b"delian/audit-devices/v1"
_CHECKPOINT = b"delian/audit-checkpoint/v1"
_CURVE = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)


# ---------------------------------------------------------------- making


def line_of(facts: Mapping[str, Any]) -> bytes:
    """The one form of a line, without its end."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def hash_of(line: bytes) -> bytes:
    """What the entry after this one names."""
    return hashlib.sha256(_ENTRY + line).digest()


def devices_digest(devices: Iterable[int]) -> bytes:
    """Which devices, for a reader that knows them."""
    numbers = b"".join(device.to_bytes(8, "little") for device in sorted(devices))
    return hashlib.sha256(_DEVICES + numbers).digest()


def entry(
    kind: str,
    fields: Mapping[str, Any],
    bundle: bytes,
    sequence: int,
    previous: bytes,
    now_ms: int,
) -> bytes:
    """The line of a machine's record "round" or "evaluation". previous: hash of the entry before.

    `sum` is there where the record has the SHA-256 of the unmasked sum, `privacy` where noise was
    added: what the accountant said.
    """
    facts: dict[str, Any] = {
        **_place(kind, sequence, previous, now_ms),
        "run": int(fields["run"]),
        "round": int(fields["round"]),
        "bundle": bundle.hex(),
        "model": fields["model"].hex(),
    }
    if kind == "round":
        reported = list(fields["reported"])
        facts |= {
            "attempt": int(fields["attempt"]),
            "succeeded": bool(fields["succeeded"]),
            "why": str(fields["why"])[:WHY_CHARS_MAX],
            "parent": fields["parent"].hex(),
            "count": len(reported),
            "devices": devices_digest(reported).hex(),
            "weight": float(fields["weight"]),
        }
    else:
        facts["count"] = int(fields["devices"])
    if fields.get("sum"):
        facts["sum"] = fields["sum"].hex()
    if fields.get("privacy"):
        facts["privacy"] = {str(k): float(v) for k, v in fields["privacy"].items()}
    return line_of(facts)


def call_entry(told: Mapping[str, Any], sequence: int, previous: bytes, now_ms: int) -> bytes:
    """The line of a call.

    facts: `by`, common name of the caller, with `role` and `serial` of its certificate
    (hexadecimal); `method`; `request`, the SHA-256 of the request; `facts` about it.
    """
    return line_of({**_place(CALL, sequence, previous, now_ms), **told})


def outcome_entry(told: Mapping[str, Any], sequence: int, previous: bytes, now_ms: int) -> bytes:
    """The line of a call's outcome.

    facts: `call`, the call's sequence; `ok`; `why`, if it was refused; `facts` about the answer.
    """
    told = {**told, "why": str(told["why"])[:WHY_CHARS_MAX]}
    return line_of({**_place(OUTCOME, sequence, previous, now_ms), **told})


def run_entry(run: int, plan: PlanMessage, sequence: int, previous: bytes, now_ms: int) -> bytes:
    """The line of a run that is about to begin.

    `manifest`: SHA-256 of the signed manifest as it travels, empty without one; `secure`: whether
    its updates are masked.
    """
    manifest = hashlib.sha256(plan.manifest).hexdigest() if plan.manifest else ""
    return line_of(
        {
            **_place(RUN, sequence, previous, now_ms),
            "run": run,
            "bundle": plan.bundle.digest.hex(),
            "manifest": manifest,
            "secure": plan.HasField("secure"),
        }
    )


def _place(kind: str, sequence: int, previous: bytes, now_ms: int) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "previous": previous.hex(),
        "time_ms": now_ms,
        "kind": kind,
    }


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A signature over everything up to an entry."""

    sequence: int
    head: bytes
    time_ms: int
    certificate: bytes
    """DER, the signer's."""
    signature: bytes

    @classmethod
    def sign(
        cls, material: certificates.TlsMaterial, sequence: int, head: bytes, now_ms: int
    ) -> Checkpoint:
        """By the key of a certificate. Raises IdentityError."""
        certificate = chain_of_pem(material.certificate).der
        key = certificates.load_key(material.key)
        signature = key.sign(_signed(sequence, head, now_ms), _CURVE)
        return cls(sequence, head, now_ms, certificate, signature)

    def line(self) -> bytes:
        return line_of(
            {
                "checkpoint": self.sequence,
                "head": self.head.hex(),
                "time_ms": self.time_ms,
                "certificate": base64.b64encode(self.certificate).decode(),
                "signature": self.signature.hex(),
            }
        )

    def check(self, authority: x509.Certificate | None) -> str:
        """The node that signed it, with a certificate of that CA that was valid then.

        "cloud", "authority", or "authority-3" for an issuing authority. Without an expected CA: a
        certificate of any CA. Raises IdentityError.
        """
        chain = read_chain(self.certificate)
        if authority is not None:
            chain.check_issued(authority)
        chain.check_time(self.time_ms / 1000)
        signer = certificates.identity_of(chain.leaf)
        if signer.tier not in (certificates.Role.CLOUD, certificates.Role.AUTHORITY):
            raise certificates.IdentityError("the checkpoint is not signed by a coordinator")
        key = chain.leaf.public_key()
        try:
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise InvalidSignature
            key.verify(self.signature, _signed(self.sequence, self.head, self.time_ms), _CURVE)
        except InvalidSignature:
            raise certificates.IdentityError("the checkpoint's signature does not hold") from None
        return signer.common_name if signer.authority else signer.tier.value


def _signed(sequence: int, head: bytes, time_ms: int) -> bytes:
    return _CHECKPOINT + sequence.to_bytes(8, "little") + time_ms.to_bytes(8, "little") + head


# ---------------------------------------------------------------- verifying


@dataclass(frozen=True, slots=True)
class Head:
    """An entry that the caller has stored: its sequence and hash."""

    sequence: int
    hash: bytes

    @classmethod
    def parse(cls, text: str) -> Head:
        """Of "12:ab34...". Raises DelianError."""
        number, colon, digest = text.partition(":")
        try:
            found = bytes.fromhex(digest)
        except ValueError:
            found = b""
        if not colon or not number.isdigit() or len(found) != len(START) or len(number) > 19:
            raise DelianError(f"`{text[:80]}` is no head", "SEQUENCE:HASH, as verify prints it")
        return cls(int(number), found)

    def __str__(self) -> str:
        return f"{self.sequence}:{self.hash.hex()}"


@dataclass(frozen=True, slots=True)
class Broken:
    """The first line that does not hold."""

    line: int
    """Counted from 1."""
    sequence: int
    """Of the entry that it is, or that was expected there."""
    why: str


@dataclass(slots=True)
class Report:
    """What `verify` found."""

    entries: int = 0
    calls: int = 0
    """How many of operators."""
    checkpoints: int = 0
    signed: int = 0
    """The last entry that a signature covers."""
    signer: str = ""
    """Whose record it is, "cloud" or "authority"; empty: nothing is signed."""
    head: Head = field(default_factory=lambda: Head(0, START))
    runs: set[int] = field(default_factory=set)
    """The runs that entries were found of."""
    bundles: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The run entries' facts, by run."""
    unpublished: set[int] = field(default_factory=set)
    """Runs with rounds or evaluations and without such an entry before them."""
    broken: Broken | None = None

    @property
    def good(self) -> bool:
        return self.broken is None


class _Break(DelianError):
    """A line that does not hold."""


def verify(
    lines: Iterable[bytes],
    authority: x509.Certificate | None = None,
    known: Head | None = None,
    on_entry: Callable[[dict[str, Any]], None] = lambda facts: None,
) -> Report:
    """Checks a chain from its first entry on.

    Form, order, links and signatures, and that it holds the entry `known`. Stops at the first line
    that is wrong, and reports which one and why. on_entry: called with each entry that is right.
    """
    report, number = Report(), 0
    try:
        for line in lines:
            number += 1
            facts = _read(line)
            if "checkpoint" in facts:
                _checkpoint(facts, report, authority)
            else:
                _entry(facts, line, report, known)
                on_entry(facts)
        number += 1  # the line that is not there
        if known is not None and known.sequence > report.entries:
            raise _Break(f"entry {known.sequence} is known, and the chain ends before it")
    except (_Break, certificates.IdentityError) as fault:
        report.broken = Broken(number, report.head.sequence + 1, fault.message)
    return report


def _read(line: bytes) -> dict[str, Any]:
    if len(line) > LINE_BYTES_MAX:
        raise _Break(f"a line of {len(line)} bytes")
    try:
        facts = json.loads(line)
        if not isinstance(facts, dict) or line_of(facts) != line:
            raise ValueError
    except (ValueError, RecursionError):
        raise _Break("the line is damaged: not the one form that it can have") from None
    return facts


def _entry(facts: dict[str, Any], line: bytes, report: Report, known: Head | None) -> None:
    expected = report.head.sequence + 1
    if facts.get("sequence") != expected or isinstance(facts["sequence"], bool):
        raise _Break(
            f"entry {facts.get('sequence')} stands where entry {expected} belongs: entries were"
            " dropped, inserted or moved"
        )
    if facts.get("previous") != report.head.hash.hex():
        raise _Break(
            f"entry {expected} does not follow from the one before it: one of the two was changed"
        )
    kind = facts.get("kind")
    if kind == CALL:
        report.calls += 1
    elif kind == OUTCOME:
        call = facts.get("call")
        if not isinstance(call, int) or not 0 < call < expected:
            raise _Break(f"entry {expected} is the outcome of no call")
    elif isinstance(facts.get("run"), int):
        report.runs.add(facts["run"])
        _of_run(facts, report)
    else:
        raise _Break(f"entry {expected} says of no run")
    report.entries += 1
    report.head = Head(expected, hash_of(line))
    if known is not None and known.sequence == expected and known.hash != report.head.hash:
        raise _Break(f"entry {expected} is not the one that is known: the history is another")


def _of_run(facts: dict[str, Any], report: Report) -> None:
    """A run has one bundle: that of its first entry."""
    run, sequence, bundle = facts["run"], facts["sequence"], facts.get("bundle")
    published = report.bundles.get(run)
    if published is not None and published["bundle"] != bundle:
        raise _Break(
            f"entry {sequence} is of another bundle than entry {published['sequence']} says of run"
            f" {run}"
        )
    if facts.get("kind") == RUN:
        report.bundles.setdefault(run, facts)
    elif published is None:
        report.unpublished.add(run)


def _checkpoint(facts: dict[str, Any], report: Report, authority: x509.Certificate | None) -> None:
    try:
        found = Checkpoint(
            facts["checkpoint"],
            bytes.fromhex(facts["head"]),
            facts["time_ms"],
            base64.b64decode(facts["certificate"], validate=True),
            bytes.fromhex(facts["signature"]),
        )
        whole = all(isinstance(n, int) and 0 <= n < 2**63 for n in (found.sequence, found.time_ms))
        if (
            not whole
            or len(found.certificate) > certificates.CERTIFICATE_BYTES_MAX
            or found.line() != line_of(facts)
        ):
            raise ValueError
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise _Break("the checkpoint is damaged") from None
    if Head(found.sequence, found.head) != report.head:
        raise _Break(
            f"the checkpoint is of entry {found.sequence}, and the chain before it is another"
        )
    try:
        signer = found.check(authority)
    except OverflowError:
        raise _Break("the checkpoint's time cannot be") from None
    if report.signer not in ("", signer):
        raise _Break(f"the checkpoint is signed by the {signer}, the one before was not")
    report.signer = signer
    report.checkpoints += 1
    report.signed = found.sequence
