"""The blobs of a simulated federation.

Weights are one array, which all nodes that have them share; what is hashed when it is made is not
hashed again where it arrives.
"""

from __future__ import annotations

import hashlib
from weakref import WeakValueDictionary

import numpy as np

from ...core.protocol.ports import Floats, wire_size
from ...core.wire.blob_pb2 import Blob, BlobRef
from .nodes import Stored
from .trace import share


class Models:
    """What blobs there are.

    sizes: of messages that carry them, by digest. arrays: nodes' weights by name, as long as a node
    has them.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self.sizes: dict[bytes, int] = {}
        self.arrays: WeakValueDictionary[bytes, Floats] = WeakValueDictionary()

    def blob(self, content: bytes) -> Blob:
        """One of bytes, under their SHA-256."""
        digest = hashlib.sha256(content).digest()
        blob = Blob(digest=digest, size=len(content), content=content)
        self.sizes[digest] = blob.ByteSize()
        return blob

    def part(self, ref: BlobRef) -> Stored:
        """A part of frozen leaves: only its size travels, for nodes read none of its bytes."""
        blob = Blob(digest=ref.digest, size=ref.size)
        self.sizes[ref.digest] = wire_size(blob, ref.size)
        return Stored(blob)

    def weights(self, weights: Floats) -> Stored:
        """Those of a model, f32[D]; the array that has their name, where there is one."""
        weights = np.ascontiguousarray(weights, dtype="<f4")
        assert weights.shape == (self._dimension,)
        name, weights = share(weights, self.arrays)
        return self._stored(name, weights)

    def named(self, name: bytes, weights: Floats | None) -> Stored:
        """Weights whose name is known. None: they are not read, and may be any."""
        there = self.arrays.get(name)
        if there is None:
            there = np.empty(self._dimension, np.float32) if weights is None else weights
            self.arrays[name] = there
        return self._stored(name, there)

    def _stored(self, name: bytes, weights: Floats) -> Stored:
        blob = Blob(digest=name, size=weights.nbytes)
        self.sizes[name] = wire_size(blob, weights.nbytes)
        return Stored(blob, weights)


def ref_of(blob: Blob) -> BlobRef:
    """What a message names it by."""
    return BlobRef(digest=blob.digest, size=blob.size)
