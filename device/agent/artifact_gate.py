"""The device's gate: no bundle reaches the training process before its signatures are checked.

With a root key the device runs what a manifest lets it run
(`core.node.identity.artifacts.manifest`) and nothing else. What it has taken is durable before the
bundle is opened, so that no restart lets an older one in. The root key comes from the owner, or
from the federation's terms (`core.node.identity.authority.terms`). A device whose federation has
terms without a root key refuses masked tasks: a bundle of unknown origin can take single updates
out of a masked sum. There is no gate where the owner allows unsigned bundles, and on a device that
joined before its federation had terms, until a renewal brings them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ...core.common.errors import DelianError
from ...core.node.identity.artifacts import manifest
from ...core.node.identity.artifacts.artifact_keys import Seen
from ...core.node.identity.pki.certificates import KEY_BYTES_MAX
from ...core.protocol.ports import RunProgram
from ...core.wire.artifact_pb2 import ArtifactLimits
from ...core.wire.enrolment_pb2 import FederationTerms

log = logging.getLogger("delian.device.agent.artifact_gate")

#: What `delian join --artifact-root` leaves in the identity's folder.
ROOT_FILE = "artifact-root.pub"
SEEN_FILE = "artifacts.json"


class Gate:
    """Decides which programs may run.

    federation: the device's. seen: the file of what it has taken. clock: Unix time in seconds.

    counts: refusals by their reason.
    """

    def __init__(
        self,
        root: Ed25519PublicKey | None,
        federation: str,
        seen: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """root: None: no masked task is taken.

        Blocks. Raises IdentityError when what was seen cannot be read.
        """
        self._root, self._federation, self._path = root, federation, seen
        self._clock = clock
        self._seen = Seen.load(seen)
        self.counts: Counter[str] = Counter()
        if root is not None:
            log.info("only signed bundles run", extra={"root": manifest.fingerprint(root)})

    def admit(self, program: RunProgram) -> ArtifactLimits:
        """What the job may take at most (zero: as much as the owner gives).

        Blocks: it may write a file. Raises ArtifactError, counted and logged, for what may not run.
        """
        try:
            return self._admit(program)
        except manifest.ArtifactError as error:
            self.counts[error.reason] += 1
            log.warning("a bundle was refused: %s", error.message, extra={"reason": error.reason})
            raise

    def _admit(self, program: RunProgram) -> ArtifactLimits:
        now_s = self._clock()
        limits, seen = checked(program, self._root, self._federation, self._seen, now_s)
        if seen is not self._seen:
            seen.store(self._path)
            self._seen = seen
        return limits


def checked(
    program: RunProgram,
    root: Ed25519PublicKey | None,
    federation: str,
    seen: Seen,
    now_s: float,
) -> tuple[ArtifactLimits, Seen]:
    """What a gate decides of a program, without its file.

    The job's limits, and what was verified so far (the same object where nothing was added). root,
    federation: as of Gate. Raises ArtifactError.
    """
    task = program.task
    if task is None or program.blobs[0] != task.bundle.digest:
        raise manifest.ArtifactError("unsigned", "a program without the task that it is for")
    if root is None:
        if not task.HasField("secure"):
            return ArtifactLimits(), seen
        raise manifest.ArtifactError(
            "no root",
            "no root key is known here, by which the bundle of a masked run could be checked",
            "set device.artifact_root, or allow unsigned bundles by device.signed = false",
        )
    found = manifest.verify(task.manifest, root, federation, now_s)
    manifest.check_bundle(found.manifest, task.bundle)
    manifest.check_task(found.manifest, task)
    after = seen.copy()
    return found.manifest.limits, after if after.take(found) else seen


def gate_of(
    federation: str,
    seen: Path,
    *,
    joined: bool,
    terms: FederationTerms | None,
    root: Path | None,
    signed: bool = True,
) -> Gate | None:
    """A device's gate; None: unsigned bundles run too.

    joined: whether it has a certificate. terms: the federation's, as it holds them. root: the
    owner's root.pub. signed: the owner's word. Blocks. Raises DelianError.
    """
    key = root_of(root, terms)
    if not signed:
        log.warning("the owner allows unsigned bundles (device.signed = false)")
        return None
    if key is None and terms is None:
        if joined:
            log.warning("it joined before its federation had terms: unsigned bundles run")
        return None
    if key is None:
        log.warning("no root key is known: masked tasks are refused")
    return Gate(key, federation, seen)


def root_of(file: Path | None, terms: FederationTerms | None) -> Ed25519PublicKey | None:
    """The root key that a device goes by: the owner's, or the federation's; None: there is none.

    Raises DelianError.
    """
    if file is not None:
        return read_root(file)
    if terms is None or not terms.artifact_root:
        return None
    return Ed25519PublicKey.from_public_bytes(terms.artifact_root)


def read_root(path: Path) -> Ed25519PublicKey:
    """The root's public key of a file.

    Raises DelianError: a device that was to have one does not run without it.
    """
    try:
        with path.open("rb") as file:
            content = file.read(KEY_BYTES_MAX + 1)
    except OSError as error:
        raise DelianError(
            f"the root key {path} cannot be read: {error.strerror}",
            "set device.artifact_root to the root.pub of the federation",
        ) from None
    return manifest.load_public(content, str(path))
