"""The federation's terms as commands show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...core.wire.enrolment_pb2 import FederationTerms


def terms_facts(terms: FederationTerms) -> dict[str, Any]:
    """Terms as JSON."""
    return {
        "federation": terms.federation,
        "version": terms.version,
        "masks_required": terms.masks_required,
        "cohort_min": terms.cohort_min,
        "corrupt": terms.corrupt,
        "artifact_root": root_name(terms.artifact_root),
        "log_required": terms.log_required,
        "witnesses": [root_name(key) for key in terms.witnesses],
        "quorum": terms.quorum,
        "epsilon": terms.epsilon or None,
        "delta": terms.delta or None,
    }


def terms_text(terms: FederationTerms) -> str:
    """Terms in a line."""
    masks = "masks are required" if terms.masks_required else "runs without masks are allowed"
    root = root_name(terms.artifact_root)
    log = "certificates must be logged" if terms.log_required else "the log is not required"
    if terms.quorum:
        log += f", its heads signed by {terms.quorum} of {len(terms.witnesses)} witnesses"
    key = f"root key {root}" if root else "no root key"
    if terms.epsilon:
        log += f"; epsilon at most {terms.epsilon:g} at delta {terms.delta:g}"
    return (
        f"sums of {terms.cohort_min} or more devices, against {terms.corrupt:.0%} corrupt ones;"
        f" {masks}; {log}; {key} (version {terms.version})"
    )


def root_name(key: bytes) -> str:
    """The fingerprint of a root key or of a witness's; empty where there is no key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from ...core.node.identity.artifacts.manifest import fingerprint

    return fingerprint(Ed25519PublicKey.from_public_bytes(key)) if key else ""
