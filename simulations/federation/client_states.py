"""The client states of a simulated fleet, in one file of fixed places that the system may swap out.

A fleet's states can be larger than memory. The file has no name, and goes with the process; or it
is kept, for the run to be resumed.

In a file that is kept each device has two places. In one is its state as it was when the run was
kept last, which is not written over before it is kept again; newer ones go into the other.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from ...core.common.errors import DelianError
from ...core.common.files import sync_file
from ...core.compiler.ir import Array
from ...device.agent.client_state_file import DIGEST_BYTES, Kept, digest_of, record_bytes

#: Of a device that has put nothing down; otherwise its place, counted from 1.
_NOTHING = 0
_PLACES = 2
_HINT = "the run cannot go on: start it again, into another folder"


class ClientStates:
    """Records of `devices` devices.

    What is begun is put down only when virtual time says that it was done, so that threads which
    compute ahead change nothing.
    """

    def __init__(self, size: int, devices: int) -> None:
        self._size, self._record = size, record_bytes(size)
        self._file: IO[Any] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the federation
        self._is_kept = False
        self._kept_at: Path | None = None
        self._now = bytearray(devices)
        self._last_kept = bytes(devices)
        self._ends = bytearray(DIGEST_BYTES * devices)  # of records: the SHA-256 of the rest
        self._last: tuple[Array, bytes] | None = None
        self._naming, self._moving = threading.Lock(), threading.Lock()

    def of(self, device: int) -> Kept | None:
        """What a device has put down; None before its first training."""
        with self._moving:
            place = self._now[device]
            if place == _NOTHING:
                return None
            content = os.pread(self._file.fileno(), self._record, self._offset(device, place))
        try:
            return Kept.parse(content, self._size)
        except DelianError:
            where = self._kept_at or "the file of client states"
            raise DelianError(f"{where} is damaged: device {device}'s state", _HINT) from None

    def put(self, device: int, kept: Kept) -> None:
        place = _PLACES if self._is_kept and self._last_kept[device] == 1 else 1
        record = kept.to_bytes()
        os.pwrite(self._file.fileno(), record, self._offset(device, place))
        self._now[device] = place
        self._ends[self._end(device)] = record[-DIGEST_BYTES:]

    def _end(self, device: int) -> slice:
        return slice(device * DIGEST_BYTES, (device + 1) * DIGEST_BYTES)

    def _offset(self, device: int, place: int) -> int:
        return (device * _PLACES + place - 1) * self._record

    def keep(self, path: Path) -> bytes:
        """Has all that was put down in a file of that name, durably; gives where in it.

        To be followed by `kept` once that stands somewhere. Raises OSError where there is no room.
        """
        if not self._is_kept:
            self._move(path)
        sync_file(self._file.fileno())
        return bytes(self._now)

    def digest(self) -> bytes:
        """What all states together are known by, 32 bytes.

        A file may be whole and of another round, where a folder was copied while its run went on.
        """
        return hashlib.sha256(self._ends).digest()

    def kept(self, places: bytes) -> None:
        """What `keep` gave is written down: states that stand there stay."""
        self._last_kept = places

    def resume(self, path: Path, places: bytes, digest: bytes) -> None:
        """Takes up a file that was kept.

        Raises DelianError where it is no such file, or its states are not those of that `digest`.
        """
        right = len(places) == len(self._now) and max(places, default=0) <= _PLACES
        try:
            file = path.open("r+b", buffering=0)
        except OSError as error:
            raise DelianError(f"cannot read {path}: {error.strerror}", _HINT) from None
        if not right:
            file.close()
            raise DelianError(f"{path} is of another fleet", _HINT)
        ends = bytearray(len(self._ends))
        for device, place in enumerate(places):
            if place != _NOTHING:
                at = self._offset(device, place) + self._record - DIGEST_BYTES
                end = os.pread(file.fileno(), DIGEST_BYTES, at)
                ends[self._end(device)] = end.ljust(DIGEST_BYTES, b"\0")
        if hashlib.sha256(ends).digest() != digest:
            file.close()
            raise DelianError(f"{path} is damaged", _HINT)
        self._file.close()
        self._file, self._is_kept, self._kept_at = file, True, path
        self._now, self._last_kept, self._ends = bytearray(places), places, ends

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
            self._file, self._is_kept, self._kept_at = file, True, path

    def name(self, weights: Array) -> bytes:
        """The hash of a round's weights, computed once a round."""
        with self._naming:
            if self._last is None or self._last[0] is not weights:
                self._last = weights, digest_of(weights)
            return self._last[1]

    def close(self) -> None:
        self._file.close()
