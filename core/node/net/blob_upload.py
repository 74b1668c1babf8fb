"""A blob on its way into a coordinator's store, as an operator's PutBlob takes it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ...wire.blob_pb2 import BlobRef
from ...wire.operator_pb2 import PutPart

#: Of one message, well below what gRPC takes in one by default.
PART_BYTES = 2**19


def parts_of(content: bytes) -> tuple[BlobRef, Iterator[PutPart]]:
    """The blob's name, and the messages that bring it: the name, then the content in order."""
    ref = BlobRef(digest=hashlib.sha256(content).digest(), size=len(content))

    def parts() -> Iterator[PutPart]:
        yield PutPart(blob=ref)
        for start in range(0, len(content), PART_BYTES):
            yield PutPart(content=content[start : start + PART_BYTES])

    return ref, parts()
