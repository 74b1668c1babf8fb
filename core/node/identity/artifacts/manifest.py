"""Signed artifacts: which bundles a device may read, compile and run.

Devices turn bundles into native code, so the party that distributes them must not be able to forge
them. Two roles, as in The Update Framework (TUF 1.0, section 2.1; Samuel et al. 2010, CCS):

    root     an Ed25519 key that is kept off every network; it signs the list of online keys
    online   an Ed25519 key where runs are submitted; it signs a manifest for each bundle

A stolen online key is withdrawn by a new list; the root itself is changed on each device by its
owner. A device has the root's public key from its owner. It checks, in this order and before it
looks at the bundle: sizes, the root's signature, the list's end, the online key's place in the list
and its end, the manifest's signature, its end, its federation, bundle and machine; then (`Seen`)
that neither list nor manifest is older than what it has taken before; then that the task keeps to
the plan's facts. The first failure ends it.

The bytes that are signed are laid down in proto/artifact.proto. Nothing here reads a clock or a
random source but `new_key`.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass, replace
from typing import TypeVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.message import DecodeError

from ....privacy.mechanisms import noise_mechanism
from ....privacy.mechanisms.ring import RingError, RingPlan
from ....privacy.task_limits import DIGEST_BYTES, MANIFEST_BYTES_MAX
from ....wire.artifact_pb2 import ArtifactManifest, OnlineKeys, SignedArtifact
from ....wire.blob_pb2 import BlobRef
from ....wire.round_pb2 import TRAIN, Task
from ..pki.certificates import KEY_BYTES_MAX, IdentityError

KEY_BYTES, SIGNATURE_BYTES = 32, 64
KEYS_MAX = 16
TARGETS_MAX = 16
NAME_BYTES_MAX, TARGET_BYTES_MAX = 64, 64
LINE_BYTES_MAX = 128
ANY = "any"

_KEYS_DOMAIN = b"delian/artifact-keys/v1"
_MANIFEST_DOMAIN = b"delian/artifact-manifest/v1"
_Signed = TypeVar("_Signed", OnlineKeys, ArtifactManifest)


class ArtifactError(IdentityError):
    """A bundle that may not run here. reason: a word for counters."""

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Verified:
    """What both signatures vouch for."""

    keys: OnlineKeys
    manifest: ArtifactManifest

    @property
    def keys_digest(self) -> bytes:
        return hashlib.sha256(_encoded(self.keys)).digest()

    @property
    def manifest_digest(self) -> bytes:
        return hashlib.sha256(_encoded(self.manifest)).digest()


# ---------------------------------------------------------------- keys


def new_key() -> Ed25519PrivateKey:
    """A fresh key from the system's random source."""
    return Ed25519PrivateKey.generate()


def public_pem(key: Ed25519PublicKey) -> bytes:
    """SubjectPublicKeyInfo, PEM."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def raw(key: Ed25519PublicKey) -> bytes:
    """32 bytes (RFC 8032, 5.1.5)."""
    return key.public_bytes_raw()


def fingerprint(key: Ed25519PublicKey) -> str:
    """For people to compare: SHA-256 of the raw key, the first half, in hexadecimal."""
    return hashlib.sha256(raw(key)).hexdigest()[:32]


def load_private(pem: bytes, where: str) -> Ed25519PrivateKey:
    """Raises IdentityError."""
    try:
        key = serialization.load_pem_private_key(pem, None) if len(pem) <= KEY_BYTES_MAX else None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(
            f"{where} is no Ed25519 private key in PEM without a password",
            "delian artifact root-init makes root.pem, delian artifact key-init a signing key",
        )
    return key


def load_public(pem: bytes, where: str) -> Ed25519PublicKey:
    """Raises IdentityError."""
    try:
        key = serialization.load_pem_public_key(pem) if len(pem) <= KEY_BYTES_MAX else None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise IdentityError(
            f"{where} is no Ed25519 public key in PEM",
            "delian artifact root-init makes root.pub, delian artifact key-init a key's",
        )
    return key


# ---------------------------------------------------------------- signing


def sign_keys(root: Ed25519PrivateKey, keys: OnlineKeys) -> SignedArtifact:
    """The list under the root's signature: a SignedArtifact without a manifest.

    Raises ArtifactError for a list that no device would take.
    """
    _check_keys(keys)
    content = _encoded(keys)
    return SignedArtifact(keys=content, keys_signature=root.sign(_KEYS_DOMAIN + content))


def sign_manifest(
    online: Ed25519PrivateKey, keys: SignedArtifact, manifest: ArtifactManifest
) -> bytes:
    """What travels with a bundle: the list that `sign_keys` gave, and the manifest, signed.

    Raises ArtifactError for a manifest that no device would take.
    """
    _check_manifest(manifest)
    content = _encoded(manifest)
    signed = SignedArtifact(
        keys=keys.keys,
        keys_signature=keys.keys_signature,
        manifest=content,
        signer=raw(online.public_key()),
        signature=online.sign(_MANIFEST_DOMAIN + content),
    ).SerializeToString(deterministic=True)
    if len(signed) > MANIFEST_BYTES_MAX:
        raise ArtifactError("too large", f"a signed manifest of {len(signed)} bytes")
    return signed


# ---------------------------------------------------------------- verifying


def verify_keys(signed: SignedArtifact, root: Ed25519PublicKey, now_s: float) -> OnlineKeys:
    """The list of online keys, vouched for by the root and not at its end. Raises ArtifactError."""
    if not _is_signed(root, signed.keys_signature, _KEYS_DOMAIN + signed.keys):
        raise ArtifactError(
            "root", "the list of online keys is not signed by the root key that is known here"
        )
    keys = keys_of(signed)
    if now_s >= keys.expires_s:
        raise ArtifactError(
            "keys expired",
            f"list {keys.version} of online keys has ended",
            "sign a new one with: delian artifact root-sign",
        )
    return keys


def keys_of(signed: SignedArtifact) -> OnlineKeys:
    """The list as it is carried, whatever key signed it. Raises ArtifactError."""
    keys = _decoded(OnlineKeys, signed.keys, "list of online keys")
    _check_keys(keys)
    return keys


def verify(content: bytes, root: Ed25519PublicKey, federation: str, now_s: float) -> Verified:
    """A signed manifest that counts at `now_s` in this federation. Raises ArtifactError."""
    signed = read(content)
    keys = verify_keys(signed, root, now_s)
    online = next((key for key in keys.keys if key.key == signed.signer), None)
    if online is None:
        raise ArtifactError("signer", f"the manifest's key is not in list {keys.version}")
    if now_s >= online.expires_s:
        raise ArtifactError("signer expired", f"the online key `{online.name}` has ended")
    try:
        public = Ed25519PublicKey.from_public_bytes(online.key)
    except ValueError:
        raise ArtifactError("signer", f"the online key `{online.name}` is none") from None
    if not _is_signed(public, signed.signature, _MANIFEST_DOMAIN + signed.manifest):
        raise ArtifactError("signature", "the manifest is not what its online key has signed")
    manifest = _decoded(ArtifactManifest, signed.manifest, "manifest")
    _check_manifest(manifest)
    if now_s >= manifest.expires_s:
        raise ArtifactError(
            "expired",
            f"the manifest of `{manifest.line}` {manifest.sequence} has ended",
            "submit the run again",
        )
    if not manifest.federation == keys.federation == federation:
        raise ArtifactError(
            "federation", f"the manifest is of the federation {manifest.federation}, not of ours"
        )
    return Verified(keys, manifest)


def check_bundle(manifest: ArtifactManifest, ref: BlobRef, target: str = "") -> None:
    """Whether the manifest is for this blob, and for this machine. Raises ArtifactError."""
    if (manifest.bundle.digest, manifest.bundle.size) != (ref.digest, ref.size):
        raise ArtifactError(
            "bundle", f"the manifest of `{manifest.line}` is for another bundle than the task's"
        )
    here = target or this_target()
    if ANY not in manifest.targets and here not in manifest.targets:
        raise ArtifactError(
            "target", f"the bundle is for {', '.join(manifest.targets)}; this is {here}"
        )


def check_task(manifest: ArtifactManifest, task: Task) -> None:
    """Whether a task keeps to the facts of the plan that was signed. Raises ArtifactError."""
    if task.purpose == TRAIN:
        asked = (task.ring.clip, task.ring.dimension)
        if asked[0] > manifest.clip or asked[1] != manifest.dimension:
            raise ArtifactError(
                "ring",
                f"the task asks for {asked[1]} numbers of norm {asked[0]:g}; signed were"
                f" {manifest.dimension} of {manifest.clip:g}",
            )
        own = not task.ring.central or manifest.central
        if manifest.noise and (task.ring.noise < manifest.noise or not own):
            raise ArtifactError(
                "noise",
                f"the task asks for less noise than the {manifest.noise:g} clips that were signed"
                if own
                else "the devices' noise was to be their own",
            )
        if manifest.noise and task.ring.within and not _is_strong(manifest.noise, task):
            raise ArtifactError(
                "noise",
                f"with a clip of {task.ring.within:g} in this round, rounding would show through"
                " the noise that was signed",
            )
    elif manifest.noise:
        raise ArtifactError("noise", "an evaluation has no noise, and noise was signed")
    secure, least = task.secure, manifest.cohort_min
    if least and (secure.cohort_min < least or not secure.corrupt >= manifest.corrupt):
        raise ArtifactError(
            "masks",
            f"updates were to be masked among at least {least} devices, against"
            f" {manifest.corrupt:.0%} of them",
        )


def _is_strong(noise: float, task: Task) -> bool:
    """Whether a task's noise hides about what it would with the largest clip.

    Elements are rounded at random, and the smaller a round's clip is, the larger the rounding is
    relative to it.
    """
    try:
        plan = RingPlan.of(task.ring)
        whole = replace(plan, within=0.0, noise=noise)
    except RingError:
        return False
    return noise_mechanism.strength(
        plan
    ) >= noise_mechanism.STRENGTH_LEAST * noise_mechanism.strength(whole)


def read(content: bytes) -> SignedArtifact:
    """Raises ArtifactError for what is absent, too large, or no SignedArtifact."""
    if not content:
        raise ArtifactError("unsigned", "the bundle is not signed", "`delian run submit` signs")
    if len(content) > MANIFEST_BYTES_MAX:
        raise ArtifactError("too large", f"a signed manifest of {len(content)} bytes")
    try:
        return SignedArtifact.FromString(content)
    except DecodeError:
        raise ArtifactError("malformed", "this is no signed manifest") from None


def this_target() -> str:
    """What a manifest calls this machine: linux-x86_64, darwin-arm64."""
    return f"{platform.system()}-{platform.machine()}".lower()


# ---------------------------------------------------------------- parts


def _encoded(message: OnlineKeys | ArtifactManifest) -> bytes:
    return message.SerializeToString(deterministic=True)


def _decoded(kind: type[_Signed], content: bytes, what: str) -> _Signed:
    """Reads signed bytes; any that are not the canonical ones are refused."""
    try:
        message = kind.FromString(content)
    except DecodeError:
        raise ArtifactError("malformed", f"this is no {what}") from None
    known = kind()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if _encoded(known) != content:
        raise ArtifactError(
            "malformed",
            f"the {what} is not encoded as it must be",
            "it was made by another version of delian; bring this one up to date",
        )
    return message


def _is_signed(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _check_keys(keys: OnlineKeys) -> None:
    good = (
        keys.federation
        and keys.version >= 1
        and 1 <= len(keys.keys) <= KEYS_MAX
        and all(
            len(k.key) == KEY_BYTES and len(k.name.encode()) <= NAME_BYTES_MAX for k in keys.keys
        )
    )
    if not good:
        raise ArtifactError(
            "malformed",
            "the list of online keys is not one that counts",
            f"a federation, a version from 1, and 1 to {KEYS_MAX} Ed25519 keys",
        )


def _check_manifest(manifest: ArtifactManifest) -> None:
    good = (
        manifest.federation
        and 0 < len(manifest.line.encode()) <= LINE_BYTES_MAX
        and manifest.sequence >= 1
        and len(manifest.bundle.digest) == DIGEST_BYTES
        and manifest.bundle.size >= 1
        and 1 <= len(manifest.targets) <= TARGETS_MAX
        and all(0 < len(t.encode()) <= TARGET_BYTES_MAX for t in manifest.targets)
        and manifest.clip > 0.0
        and manifest.noise >= 0.0
        and 0.0 <= manifest.corrupt < 1.0
        and manifest.dimension >= 1
    )
    if not good:
        raise ArtifactError(
            "malformed",
            "the manifest is not one that counts",
            f"a line of 1 to {LINE_BYTES_MAX} bytes, a sequence from 1, a bundle, its machines"
            " (`any` for all) and its ring",
        )
