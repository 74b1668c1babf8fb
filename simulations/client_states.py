"""The client states of a simulated fleet, in one file of fixed places that the system may swap out:
a fleet's states can be larger than memory. The file has no name, and goes with the process; or it
is kept, for the run to be resumed.

In a file that is kept each device has two places. In one is its state as it was when the run was
kept last, which is not written over before it is kept again; newer ones go into the other.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from ..core.errors import DelianError
from ..core.files import sync_file
from ..core.ir import Array
from ..device.kept import Kept, digest_of, record_bytes

#: Of a device that has put nothing down; otherwise its place, counted from 1.
_NOTHING = 0
_PLACES = 2


class ClientStates:
    """Records of `devices` devices. What is begun is put down only when virtual time says that it
    was done, so that threads which compute ahead change nothing.
    """

    def __init__(self, size: int, devices: int) -> None:
        self._size, self._record = size, record_bytes(size)
        self._file: IO[Any] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the federation
        self._is_kept = False
        self._now = bytearray(devices)
        self._last_kept = bytes(devices)
        self._last: tuple[Array, bytes] | None = None
        self._naming, self._moving = threading.Lock(), threading.Lock()

    def of(self, device: int) -> Kept | None:
        """What a device has put down; None before its first training."""
        with self._moving:
            place = self._now[device]
            if place == _NOTHING:
                return None
            content = os.pread(self._file.fileno(), self._record, self._offset(device, place))
        return Kept.parse(content, self._size)

    def put(self, device: int, kept: Kept) -> None:
        place = _PLACES if self._is_kept and self._last_kept[device] == 1 else 1
        os.pwrite(self._file.fileno(), kept.to_bytes(), self._offset(device, place))
        self._now[device] = place

    def _offset(self, device: int, place: int) -> int:
        return (device * _PLACES + place - 1) * self._record

    def keep(self, path: Path) -> bytes:
        """Has all that was put down in a file of that name, durably; gives where in it. To be
        followed by `kept` once that stands somewhere. Raises OSError where there is no room.
        """
        if not self._is_kept:
            self._move(path)
        sync_file(self._file.fileno())
        return bytes(self._now)

    def kept(self, places: bytes) -> None:
        """What `keep` gave is written down: states that stand there stay."""
        self._last_kept = places

    def resume(self, path: Path, places: bytes) -> None:
        """Takes up a file that was kept. Raises DelianError where it is no such file."""
        right = len(places) == len(self._now) and max(places, default=0) <= _PLACES
        try:
            file = path.open("r+b", buffering=0)
        except OSError as error:
            raise DelianError(f"cannot read {path}: {error.strerror}") from None
        if not right:
            file.close()
            raise DelianError(f"{path} is of another fleet")
        self._file.close()
        self._file, self._is_kept = file, True
        self._now, self._last_kept = bytearray(places), places

    def _move(self, path: Path) -> None:
        """Has the states in a file of that name from now on, and room there for all."""
        file = path.open("w+b", buffering=0)
        try:
            if hasattr(os, "posix_fallocate"):
                # A disk that is full later must not end the run.
                os.posix_fallocate(file.fileno(), 0, len(self._now) * _PLACES * self._record)
            for device, place in enumerate(self._now):
                if place != _NOTHING:
                    at = self._offset(device, place)
                    content = os.pread(self._file.fileno(), self._record, at)
                    os.pwrite(file.fileno(), content, at)
        except OSError:
            file.close()
            path.unlink(missing_ok=True)
            raise
        with self._moving:
            self._file.close()
            self._file, self._is_kept = file, True

    def name(self, weights: Array) -> bytes:
        """The hash of a round's weights, computed once a round."""
        with self._naming:
            if self._last is None or self._last[0] is not weights:
                self._last = weights, digest_of(weights)
            return self._last[1]

    def close(self) -> None:
        self._file.close()
