"""What a new federation needs so that its masked runs are signed from the first hour.

    CA/terms               the federation's terms, signed by the CA's key (`terms`)
    CA/artifact-root       the root key of artifacts (`artifact_keys.RootFolder`), to move offline
    OPERATOR/artifacts     an operator's online key, in the list that the root key has signed

The terms name the root key; devices get them when they join. The root key is needed again when an
operator joins or leaves, and once a year.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ....privacy.task_limits import MANIFEST_BYTES_MAX
from ....wire.enrolment_pb2 import FederationTerms
from ..artifacts.artifact_keys import OnlineFolder, RootFolder
from ..artifacts.manifest import load_public, raw
from ..pki.certificates import KEY_BYTES_MAX, read_file
from ..pki.ledger import write_file
from . import terms
from .authority import Authority
from .authority_folder import p256

ROOT_FOLDER: Final = "artifact-root"
ONLINE_FOLDER: Final = "artifacts"


def terms_of(authority: Authority) -> FederationTerms | None:
    """The terms that a CA hands out; None: it is older than terms. Raises IdentityError."""
    return terms.held(authority.folder, p256(authority.root), authority.federation)


def root_folder(authority: Authority) -> Path:
    """Where a CA's root key of artifacts is until it is moved offline."""
    return authority.folder / ROOT_FOLDER


def publish(
    authority: Authority,
    *,
    cohort_min: int | None = None,
    corrupt: float | None = None,
    masks_required: bool | None = None,
    artifact_root: Path | None = None,
    log_required: bool | None = None,
    witnesses: Sequence[Path] | None = None,
    quorum: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    fresh: bool = False,
) -> FederationTerms:
    """Signs and publishes the federation's next terms: those before, with what is given changed.

    artifact_root: a root.pub; None: the root key stays, and where there is none yet one is made in
    the CA's folder. witnesses: files of the keys of all witnesses (`witness.pub`); None: they stay.
    fresh: go by the defaults, not by the terms before. Raises IdentityError.
    """
    before = None if fresh else terms_of(authority)
    public = None
    if artifact_root is not None:
        public = public_of(artifact_root)
    elif before is None or not before.artifact_root:
        folder = root_folder(authority)
        there = (folder / "root.pem").exists()
        public = raw((RootFolder(folder) if there else RootFolder.create(folder)).public)
    following = terms.made(
        authority.federation,
        before,
        now_s=time.time(),
        cohort_min=cohort_min,
        corrupt=corrupt,
        masks_required=masks_required,
        artifact_root=public,
        log_required=log_required,
        witnesses=None if witnesses is None else [public_of(path) for path in witnesses],
        quorum=quorum,
        epsilon=epsilon,
        delta=delta,
    )
    terms.publish(authority.folder, authority.sign, following)
    return following


def public_of(path: Path) -> bytes:
    """The Ed25519 public key in a PEM file, 32 bytes. Raises IdentityError."""
    return raw(load_public(read_file(path, KEY_BYTES_MAX), str(path)))


def add_online_key(folder: Path, federation: str, name: str, root: Path) -> bool:
    """Makes an online key in `folder`, where there is none, and signs it with the root key.

    The root key signs it under a name, in addition to those that it signed before. False: the root
    key is not in `root`, and its holder has to sign. Raises IdentityError.
    """
    there = (folder / "key.pem").exists()
    online = OnlineFolder(folder) if there else OnlineFolder.create(folder)
    if not (root / "root.pem").exists():
        return False
    signer = RootFolder(root)
    signer.sign(federation, {**signer.online(), name: online.public})
    write_file(folder / "keys", read_file(root / "keys", MANIFEST_BYTES_MAX))
    return True
