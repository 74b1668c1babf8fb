"""Memory that a script and its host share, so that weights need not go through a socket.

It is a file of anonymous memory (Linux: memfd_create), which neither side can shrink or grow: a
script cannot take from its host what the host is about to read. Elsewhere there is none, and
weights are the bodies of frames.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray


class SharedWeights:
    """Vectors f32[size] that two processes have. `descriptor`: what is opened.

    given: what the host writes, one a place; answers: what the script writes. A reader makes a copy
    first where the other side may write before it has read.
    """

    def __init__(self, descriptor: int, size: int, places: int = 1) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _bytes(size, places))
        whole: NDArray[np.float32] = np.frombuffer(self._map, "<f4")
        vectors: list[NDArray[np.float32]] = list(whole.reshape(2 * places, size))
        self.given, self.answers = vectors[:places], vectors[places:]

    def close(self) -> None:
        """Gives the descriptor back; the memory goes with the last array of it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _bytes(size: int, places: int) -> int:
    return 2 * 4 * size * places


def shared_weights(size: int, places: int = 1) -> SharedWeights | None:
    """Memory for so many weights a place, untouched; None where this system has none to share."""
    if not size or not hasattr(os, "memfd_create"):
        return None
    import fcntl

    try:
        descriptor = os.memfd_create("delian-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    try:
        os.ftruncate(descriptor, _bytes(size, places))
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return SharedWeights(descriptor, size, places)
    except OSError:
        os.close(descriptor)
        return None
