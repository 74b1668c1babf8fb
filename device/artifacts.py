"""The device's gate: no bundle reaches the training process before its signatures are checked.

With a root key the device runs what a manifest lets it run (`core.identity.manifest`) and nothing
else. What it has taken is durable before the bundle is opened, so that no restart lets an older one
in. Without a root key there is no gate: whatever the coordinator sends is verified as a program,
compiled and run.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ..core.errors import DelianError
from ..core.identity.artifact_keys import Seen
from ..core.identity.certificates import KEY_BYTES_MAX
from ..core.identity.manifest import (
    ArtifactError,
    check_bundle,
    check_task,
    fingerprint,
    load_public,
    verify,
)
from ..core.ports import RunProgram
from ..core.wire.artifact_pb2 import ArtifactLimits

log = logging.getLogger("delian.device.artifacts")

#: What `delian join --artifact-root` leaves in the identity's folder.
ROOT_FILE = "artifact-root.pub"
SEEN_FILE = "artifacts.json"


class Gate:
    """Decides which programs may run. federation: the device's. seen: the file of what it has
    taken. clock: Unix time in seconds.

    counts: refusals by their reason.
    """

    def __init__(
        self,
        root: Ed25519PublicKey,
        federation: str,
        seen: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Blocks. Raises IdentityError when what was seen cannot be read."""
        self._root, self._federation, self._path = root, federation, seen
        self._clock = clock
        self._seen = Seen.load(seen)
        self.counts: Counter[str] = Counter()
        log.info("only signed bundles run", extra={"root": fingerprint(root)})

    def admit(self, program: RunProgram) -> ArtifactLimits:
        """What the job may take at most (zero: as much as the owner gives). Blocks: it may write a
        file. Raises ArtifactError, counted and logged, for what may not run.
        """
        try:
            return self._admit(program)
        except ArtifactError as error:
            self.counts[error.reason] += 1
            log.warning("a bundle was refused: %s", error.message, extra={"reason": error.reason})
            raise

    def _admit(self, program: RunProgram) -> ArtifactLimits:
        task = program.task
        if task is None or program.blobs[0] != task.bundle.digest:
            raise ArtifactError("unsigned", "a program without the task that it is for")
        found = verify(task.manifest, self._root, self._federation, self._clock())
        check_bundle(found.manifest, task.bundle)
        check_task(found.manifest, task)
        seen = self._seen.copy()
        if seen.take(found):
            seen.store(self._path)
            self._seen = seen
        return found.manifest.limits


def read_root(path: Path) -> Ed25519PublicKey:
    """The root's public key of a file. Raises DelianError: a device that was to have one does not
    run without it.
    """
    try:
        with path.open("rb") as file:
            content = file.read(KEY_BYTES_MAX + 1)
    except OSError as error:
        raise DelianError(
            f"the root key {path} cannot be read: {error.strerror}",
            "set device.artifact_root to the root.pub of the federation",
        ) from None
    return load_public(content, str(path))
