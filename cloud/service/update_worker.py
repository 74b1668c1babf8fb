"""The updating process: `python -m delian.cloud.service.update_worker`, started by `updates`.

It runs `server_update` of one bundle, which a user submitted. Before that program runs for the
first time the process gives up all that it has no use for (`core.node.sandbox.walls`). Weights,
memory and mean lie in a file without a name that it shares with the coordinator, and so do the
results: they are mapped, and neither copied nor sent.

    first frame   {"parent": pid, "settings": {"limits": WorkerLimits, "backend", "file": number}}
    load          {"ticket", "op": "load", "object"?: path or null} + the bundle
                  -> {"done": true, "dimension": numbers of a state, "memory": bytes}
                  -> {"done": false, "compile": "all", ...}: ask again with the object that another
                     process has made, null where there is no C compiler
    update        {"ticket", "op": "update", "remembered": whether there is a memory}
                  -> {"done": true}

The file holds, one after the other, each at a multiple of 64 bytes: the state f32[D], the mean
f32[D], the memory, the next state f32[D], the next memory.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...core.common.collector import unsearched

with unsearched():
    from pathlib import Path

    import numpy as np

    from ...core.common.errors import DelianError
    from ...core.learning import bundle as bundles
    from ...core.learning.runtime import Runtime
    from ...core.node.sandbox import compiled_programs, frames
    from ...core.node.sandbox.process_limits import Limits, WorkerLimits
    from ...core.node.sandbox.walls import confine_run
    from ...core.node.sandbox.worker_serving import Content, JobStopped, Work, refused, serve
    from ...core.wire.round_pb2 import OUT_OF_MEMORY, PROGRAM_FAILED

PROGRAM = "server_update"
_ALIGNMENT = 64
#: A GPU's libraries map all of its memory, and more.
_UNLIMITED_MIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in the file what lies."""

    state: int
    """Bytes of one state."""
    memory: int
    """Bytes of one memory."""

    @property
    def offsets(self) -> tuple[int, int, int, int, int]:
        """Of state, mean, memory, next state, next memory."""
        state, memory = _whole(self.state), _whole(self.memory)
        return 0, state, 2 * state, 2 * state + memory, 3 * state + memory

    @property
    def size(self) -> int:
        """Bytes of the file; a mapping is never empty."""
        return max(self.offsets[-1] + _whole(self.memory), _ALIGNMENT)


def _whole(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Worker:
    """Updates the models of one bundle. file: the number of what is shared."""

    def __init__(self, limits: Limits, given: WorkerLimits, backend: str, file: int) -> None:
        self._limits, self._given = limits, given
        self._allowed = given.of_programs()
        self._backend, self._file = backend, file
        self._limited = backend in ("native", "reference")
        self._runtime: Runtime | None = None
        self._confined = False
        self._shared: mmap.mmap | None = None

    def __call__(self, job: frames.Frame) -> tuple[Mapping[str, Any], Content]:
        """A job and its answer. Raises JobStopped."""
        if self._limited:
            self._limits.of_job()
        try:
            if job.head["op"] == "load":
                return self._load(job), b""
            return self._update(bool(job.head["remembered"]), float(job.head["weight"])), b""
        except MemoryError as error:
            raise JobStopped(OUT_OF_MEMORY, f"memory is over: {error}") from error

    def _load(self, job: frames.Frame) -> Mapping[str, Any]:
        """Makes the bundle's program ready."""
        if self._runtime is not None:
            raise JobStopped(PROGRAM_FAILED, "another bundle is loaded")
        try:
            bundle = bundles.parse(bytes(job.body), "the bundle", limits=self._allowed).bare()
            functions = compiled_programs.functions_of(bundle, (PROGRAM,))
            self._runtime = self._made(bundle, functions, job.head)
        except DelianError as error:
            raise refused(error) from error
        memory = sum(m.nbytes for m in self._runtime.memory())
        return {"dimension": self._runtime.manifest.dimension, "memory": memory}

    def _made(self, bundle: bundles.Bundle, functions: Any, head: Mapping[str, Any]) -> Runtime:
        if self._backend not in ("native", "reference"):
            return Runtime(bundle, self._backend, programs=(PROGRAM,), limits=self._allowed)
        asked = "object" in head
        if self._backend == "reference" or (asked and head["object"] is None):
            return Runtime(bundle, made=compiled_programs.interpreted(functions))
        hashes = compiled_programs.hashes_of(functions)
        path = Path(head["object"]) if asked else compiled_programs.stored(hashes)
        if path is None:
            raise JobStopped(PROGRAM_FAILED, "it is not compiled yet", compile="all")
        made = compiled_programs.load(functions, hashes, (), path)
        return Runtime(bundle, made=made, limits=self._allowed)

    def _update(self, remembered: bool, weight: float) -> Mapping[str, Any]:
        runtime = self._runtime
        if runtime is None:
            raise JobStopped(PROGRAM_FAILED, "no bundle is loaded")
        memory = runtime.memory()
        layout = Layout(4 * runtime.manifest.dimension, sum(m.nbytes for m in memory))
        self._confine(layout)
        assert self._shared is not None
        whole = layout.state, layout.memory
        sizes = (layout.state, *whole, *whole)
        parts = [
            np.frombuffer(self._shared, np.uint8, size, start)
            for start, size in zip(layout.offsets, sizes, strict=True)
        ]
        state, mean, before, after, kept = parts
        try:
            if remembered:
                memory = runtime.memory_views(before) or runtime.memory_from(before.tobytes())
            made = runtime.memory_views(kept)
            new, found = runtime.server_update(
                state.view("<f4").astype(np.float32, copy=False),
                memory,
                mean.view("<f4").astype(np.float32, copy=False),
                out=None if made is None else (after.view(np.float32), made),
                weight=weight,
            )
        except DelianError as error:
            raise JobStopped(PROGRAM_FAILED, str(error)) from error
        if made is None:
            after[...] = np.frombuffer(new.astype("<f4").tobytes(), np.uint8)
            kept[...] = np.frombuffer(runtime.memory_bytes(found), np.uint8)
        return {}

    def _confine(self, layout: Layout) -> None:
        """From here on a program has run in this process. Raises JobStopped."""
        if not self._confined and self._limited:
            self._limits.running()
            try:
                confine_run((), self._given.sandbox)
            except (DelianError, OSError) as error:
                raise JobStopped(PROGRAM_FAILED, f"no sandbox: {error}") from error
        self._confined = True
        if self._shared is None:
            self._shared = mmap.mmap(self._file, layout.size)


def _begin(settings: dict[str, Any]) -> Work:
    given = WorkerLimits(**settings["limits"])
    if settings["backend"] not in ("native", "reference"):
        given = replace(given, memory_mib=_UNLIMITED_MIB)
    return Worker(Limits(given), given, settings["backend"], settings["file"])


def main() -> int:
    """Serves jobs until the input ends."""
    return serve(_begin, bundles.BYTES_MAX)


if __name__ == "__main__":
    sys.exit(main())
