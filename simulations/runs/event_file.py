"""A run's events in a file, one JSON object a line, for other tools to follow: `--events`.

    {"event": "started", "time_ms": ..., "algorithm": "fedavg", "scenario": {...}, "devices": 60,
     "held_out": 6}
    {"event": "phase", ..., "doing": "compiling 6 programs"}
    {"event": "warning", ..., "text": "the noise ..."}    what should be known before the rounds
    {"event": "round", ..., "round": 1, "global_accuracy": 0.162, ...}    as in report.json
    {"event": "replayed", ..., "round": 7}    of a run that was resumed: it goes on after this round
    {"event": "ended", ..., "summary": {...}, "trace_hash": "..."}        as in report.json

`time_ms` is Unix time, `algorithm` distinguishes the two runs of a comparison. A line is written
whole, by one call of the system, before the run goes on. What is in a file stays: another run's
lines come behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError
from ..report.report import plain, printable, summarise
from .result import Event, Notice, Phase, Replayed, RoundFinished, SimulationResult, Started


class EventFile:
    """Listens to runs, one after the other. Raises DelianError for a file that cannot be opened.

    A disk that takes no more does not cost the run: that is said once, and no line comes after.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._algorithm, self._refused = path, "", False
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise DelianError(
                f"cannot write {path}: {error.strerror}", "name a file with --events FILE"
            ) from None

    def __call__(self, event: Event) -> None:
        """Writes an event down; those of single devices are not."""
        match event:
            case Started(scenario, devices, held_out):
                self._algorithm = scenario.algorithm.label
                facts = {"devices": devices, "held_out": held_out}
                self._write("started", {"scenario": scenario.to_json(), **facts})
            case Notice(text):
                self._write("warning", {"text": text})
            case Phase(doing):
                self._write("phase", {"doing": doing})
            case Replayed(record):
                self._write("replayed", {"round": record.round})
            case RoundFinished(record):
                self._write("round", dataclasses.asdict(record))

    def ended(self, result: SimulationResult) -> None:
        """A run is over."""
        self._write("ended", {"summary": summarise(result), "trace_hash": result.trace_hash})

    def close(self, last: SimulationResult) -> None:
        """All runs are over; `last` is not reported yet. Says so where lines are missing."""
        self.ended(last)
        try:
            self._file.close()
        except OSError as error:
            self._refuse(error)

    def _write(self, event: str, facts: Mapping[str, Any]) -> None:
        if self._refused:
            return
        head = {"event": event, "time_ms": time.time_ns() // 1_000_000}
        line = plain({**head, "algorithm": self._algorithm, **facts})
        text = json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n"
        content = printable(text).encode()
        try:
            written = self._file.write(content)
            if written < len(content):
                self._take_back(written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._refuse(error)

    def _take_back(self, written: int) -> None:
        """Half a line is taken out again: the next run's first one would come behind it."""
        with contextlib.suppress(OSError):  # a pipe, or a device
            end = self._file.tell()
            if end == os.fstat(self._file.fileno()).st_size:  # no process has written behind it
                self._file.truncate(end - written)

    def _refuse(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            why = f"delian: {self._path}: no further events are written: {error.strerror}"
            print(why, file=sys.stderr)
