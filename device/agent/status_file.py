"""What a device says of itself, in a file for `delian device status`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ...core.common.errors import DelianError
from ...core.common.files import write_whole

log = logging.getLogger("delian.device")

#: The file is written at most once in so many seconds.
STATUS_EVERY_S = 1.0

Phase = Literal["starting", "running", "stopped"]


class StatusFile:
    """Writes what the device says of itself, a moment after something has changed.

    path: the file. make: gives what is written, as JSON has it.
    """

    def __init__(self, path: Path, make: Callable[[], dict[str, Any]]) -> None:
        self._path, self._make = path, make
        self._due = asyncio.Event()

    def changed(self) -> None:
        """Something is to be written."""
        self._due.set()

    async def run(self) -> None:
        """Writes what has changed, until it is cancelled."""
        self._due.set()
        while True:
            await self._due.wait()
            self._due.clear()
            await asyncio.to_thread(self.write, "running")
            await asyncio.sleep(STATUS_EVERY_S)

    def write(self, phase: Phase) -> None:
        """Writes now. Blocks."""
        said = {"state": phase, "written_ms": time.time_ns() // 1_000_000, **self._make()}
        try:
            write_whole(self._path, json.dumps(said, indent=1))
        except OSError as error:
            log.warning("the status cannot be written: %s", error)


def read_status(folder: Path) -> dict[str, Any]:
    """What the device in this folder said of itself last; `alive` says whether its process runs.

    Raises DelianError where there is none.
    """
    path = folder / "status.json"
    try:
        with path.open("rb") as stream:
            said = json.loads(stream.read(64 << 10))
    except (OSError, ValueError) as error:
        raise DelianError(
            f"no device has run in {folder}: {error}", "name its folder with --state"
        ) from error
    if not isinstance(said, dict):
        raise DelianError(f"{path} is damaged", "it is written again when the device runs")
    return {**said, "alive": said.get("state") == "running" and _runs(said.get("pid"))}


def _runs(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
