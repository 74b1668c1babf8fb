"""A worker's jobs over rows that are read in windows, and the checkpoints of these.

job     "windows"?: {"bytes": of the checkpoint at the end of its body, "bytes_max": of a new
        one, "every_s": seconds between two}
note    {"epoch", "passes", "window", "windows"} + checkpoint
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError
from ...core.compiler.ir import Array
from ...core.learning.data.fit import fit, row_type
from ...core.learning.data.formats.device_rows import sized_for
from ...core.learning.data.rows import DataSettings, Rows
from ...core.learning.data.sources import Source, read_all
from ...core.learning.data.stored_rows import HeldRows, StoredRows, is_stored
from ...core.learning.runtime import Runtime
from ...core.learning.windows import window_training
from ...core.learning.windows.reading_thread import ReadingThread
from ...core.learning.windows.window_checkpoint import Checkpoint, Subject
from ...core.learning.windows.window_rows import WindowRows
from ...core.learning.windows.window_training import Place, Trained
from ...core.node.sandbox.worker_serving import Note, say

#: Of a checkpoint; a carry is a few times as large as the weights.
CHECKPOINT_BYTES_MAX = 1 << 30


def arranged(
    source: Source | StoredRows, runtime: Runtime, classes: int | None, settings: DataSettings
) -> list[Array] | WindowRows:
    """A source's data as a bundle takes it: in memory, or in windows where it has too many rows.

    Raises DelianError where it cannot be read or does not fit.
    """
    manifest = runtime.manifest
    given, capacity = None, manifest.data[0].shape[0]
    stored: StoredRows | None = None
    if manifest.carry:
        if is_stored(source):
            stored = sized_for(source, row_type(manifest.data))
        else:
            given = read_all(source, row_type(manifest.data))
            stored = HeldRows(given, source.version()) if isinstance(given, Rows) else None
    if stored is None or stored.rows <= capacity:
        given = read_all(source, row_type(manifest.data)) if given is None else given
        return fit(given, manifest.data, classes=classes, query_fraction=settings.query_fraction)
    return WindowRows(
        stored,
        manifest.data,
        classes=classes,
        query_fraction=settings.query_fraction,
        bytes_max=settings.bytes_max,
    )


def train(
    runtime: Runtime,
    state: Array,
    rows: WindowRows,
    key: Array,
    kept: Array | None,
    *,
    job: Mapping[str, Any],
    record: bytes,
    note: Note,
    reading: ReadingThread,
) -> Trained:
    """A training by windows, from its last checkpoint on where there is one.

    job: see the module. record: the checkpoint. Raises DelianError.
    """
    named = Path(job["bundle"]).name
    subject = window_training.subject_of(named, state, kept, key, rows)
    wanted = job.get("windows") or {}
    notes = _Notes(subject, runtime.manifest.passes, wanted, note)
    return window_training.train(
        runtime,
        state,
        rows,
        key,
        kept,
        reading=reading,
        resumed=_resumed(record, subject, runtime),
        passed=notes,
    )


def _resumed(record: bytes, subject: Subject, runtime: Runtime) -> Checkpoint | None:
    """Where to go on; None: at the beginning."""
    if not record:
        return None
    try:
        found = Checkpoint.parse(record, subject, runtime.manifest.carry)
    except DelianError as error:
        say(f"the training begins again: {error}")
        return None
    if found is None:
        say("the training begins again: the data has changed since its checkpoint")
        return None
    say(f"the training goes on at pass {found.epoch}, window {found.window}")
    return found


class _Notes:
    """Sends the agent a note now and then, with a checkpoint if it may have one."""

    def __init__(
        self,
        subject: Subject,
        passes: int,
        wanted: Mapping[str, Any],
        note: Note,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subject, self._passes, self._note, self._clock = subject, passes, note, clock
        self._every_s = wanted.get("every_s")
        self._bytes_max = int(wanted.get("bytes_max", 0))
        self._last = clock()

    def __call__(self, place: Place, carry: Sequence[Array]) -> None:
        now = self._clock()
        if self._every_s is None or now - self._last < self._every_s:
            return
        self._last = now
        body = b""
        if self._subject.version is not None:
            made = Checkpoint(self._subject, place.epoch, place.window, list(carry)).to_bytes()
            body = made if len(made) <= self._bytes_max else b""
        head = {"epoch": place.epoch, "window": place.window}
        self._note({**head, "passes": self._passes, "windows": place.windows}, body)
