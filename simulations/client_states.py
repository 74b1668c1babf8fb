"""The client states of a simulated fleet, in one file of fixed places that the system may swap out:
a fleet's states can be larger than memory. The file has no name, and goes with the process.
"""

from __future__ import annotations

import os
import tempfile
import threading

from ..core.ir import Array
from ..device.kept import Kept, digest_of, record_bytes


class ClientStates:
    """Records by device. What is begun is put down only when virtual time says that it was done,
    so that threads which compute ahead change nothing.
    """

    def __init__(self, size: int) -> None:
        self._size, self._place = size, record_bytes(size)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the federation lives
        self._known: set[int] = set()
        self._last: tuple[Array, bytes] | None = None
        self._naming = threading.Lock()

    def of(self, device: int) -> Kept | None:
        """What a device has put down; None before its first training."""
        if device not in self._known:
            return None
        content = os.pread(self._file.fileno(), self._place, device * self._place)
        return Kept.parse(content, self._size)

    def put(self, device: int, kept: Kept) -> None:
        os.pwrite(self._file.fileno(), kept.to_bytes(), device * self._place)
        self._known.add(device)

    def name(self, weights: Array) -> bytes:
        """The hash of a round's weights, computed once a round."""
        with self._naming:
            if self._last is None or self._last[0] is not weights:
                self._last = weights, digest_of(weights)
            return self._last[1]

    def close(self) -> None:
        self._file.close()
