"""The frozen leaves of a world's model: blobs that all its runs share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ...core.wire.blob_pb2 import BlobRef

#: Of so many seeds one has a model with frozen leaves, in so many parts: more than a device asks
#: for at once.
SEEDS, PARTS = 3, 6


def parts_of(seed: int) -> tuple[bytes, ...]:
    """The parts' contents; in most worlds there are none."""
    return tuple(b"frozen %d" % part * 8 for part in range(0 if seed % SEEDS else PARTS))


def refs_of(parts: Sequence[bytes]) -> list[BlobRef]:
    """What a plan names them by."""
    return [BlobRef(digest=hashlib.sha256(part).digest(), size=len(part)) for part in parts]
