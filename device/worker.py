"""The training process: `python -m delian.device.worker`, started by the agent (`runner`).

It reads jobs as frames on its standard input, and answers each by one frame. A job names a program,
the files of a bundle and of weights, and a key; the data it takes from the device's own source.
What it has compiled it keeps for the next job. An algorithm's client state it keeps in the folder
`kept`, a file a bundle, and writes before it answers. It is expendable: the agent kills it to
cancel a job, and a program that takes too much of anything takes only this process with it.

    first frame   {"parent": pid, "settings": WorkerSettings}
    job           {"ticket", "program", "bundle", "weights", "key": [u32, u32],
                   "ring": [clip, clients_max, dimension], "limits": [memory MiB, seconds],
                   "kept"?, "personal"?: {"draft", "present"?}}
    answer        {"ticket", "done": true, "examples", "loss", "finite", "version", ...} + vector
                  {"ticket", "done": false, "reason": FailureReason, "why": text}
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # What is imported below goes without these. hashlib then takes Python's own SHA-256: OpenSSL
    # would take 4 MB of a small device's memory; and what a device reads is in no such format.
    for module in ("_hashlib", "_bz2", "_lzma"):
        sys.modules[module] = None  # type: ignore[assignment]

import os
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..core.collector import unsearched

with unsearched():
    import numpy as np
    from numpy.typing import NDArray

    from ..core import bundle as bundles
    from ..core import random
    from ..core.backends.native.artifact import ArtifactError
    from ..core.backends.native.toolchain import find
    from ..core.bundle import DEVICE_PROGRAMS, Bundle
    from ..core.data.fit import examples, fit, row_type
    from ..core.data.sources import NoDataError, Source, open_source
    from ..core.disclosure.keys import check_keys
    from ..core.errors import DelianError
    from ..core.ir import TensorType
    from ..core.ports import DIMENSION_MAX, Vector
    from ..core.privacy.ring import RingPlan
    from ..core.runtime import Runtime
    from ..core.wire.round_pb2 import (
        BAD_BUNDLE,
        NO_DATA,
        OUT_OF_MEMORY,
        PROGRAM_FAILED,
        FailureReason,
    )
    from . import frames, kept
    from .limits import Limits, WorkerSettings, die_with

if __name__ == "__main__":
    for module in ("_hashlib", "_bz2", "_lzma"):  # the owner's own code may want them
        del sys.modules[module]

#: Compiled bundles that are kept. A device works on few runs at a time.
RUNTIMES_KEPT = 2
#: Client states that are kept: one a bundle, and the last trained ones.
STATES_KEPT = 8
#: Characters of an explanation that goes to the agent's log.
WHY_CHARS_MAX = 500
Array = NDArray[Any]


class Stopped(Exception):
    """A job gives nothing."""

    def __init__(self, reason: FailureReason, why: str) -> None:
        super().__init__(why)
        self.reason, self.why = reason, why


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job gave: facts for the agent, and the ring vector."""

    head: Mapping[str, Any]
    vector: Vector


class Worker:
    """Runs jobs, one at a time."""

    def __init__(self, settings: WorkerSettings, limits: Limits) -> None:
        self._settings, self._limits = settings, limits
        self._runtimes: dict[str, Runtime] = {}
        self._source: Source | None = None
        self._data: tuple[str, int, list[Array]] | None = None

    def run(self, job: Mapping[str, Any]) -> Answer:
        """Raises Stopped."""
        began = time.monotonic()
        self._limits.of_job(*job["limits"])
        try:
            runtime = self._runtime(Path(job["bundle"]))
            state = self._weights(Path(job["weights"]), runtime)
            version, data = self._leaves(str(job["bundle"]), runtime)
            ready = time.monotonic()
            self._limits.running()
            answer = self._call(runtime, state, data, job)
        except MemoryError as error:
            self._runtimes.clear()
            self._data = None
            raise Stopped(OUT_OF_MEMORY, f"memory is over: {error}") from error
        head = {
            **answer.head,
            "version": version,
            "examples": examples(data, runtime.manifest.data),
            "load_s": round(ready - began, 3),
            "run_s": round(time.monotonic() - ready, 3),
        }
        return Answer(head, answer.vector)

    # ------------------------------------------------ what a job needs

    def _runtime(self, path: Path) -> Runtime:
        """The compiled bundle; blobs are named by their content, so a name is a bundle."""
        name = str(path)
        runtime = self._runtimes.pop(name, None)
        if runtime is None:
            self._limits.compiling()
            while len(self._runtimes) >= RUNTIMES_KEPT:
                del self._runtimes[next(iter(self._runtimes))]
            try:
                runtime = self._compiled(check_keys(bundles.load(path).bare()))
            except DelianError as error:
                raise Stopped(BAD_BUNDLE, str(error)) from error
        self._runtimes[name] = runtime
        return runtime

    def _compiled(self, bundle: Bundle) -> Runtime:
        """From an artifact where one has the programs and fits, else compiled here."""
        backend = self._settings.backend
        files = [Path(a) for a in self._settings.artifacts]
        try:
            return Runtime(bundle, backend, files, DEVICE_PROGRAMS)
        except ArtifactError as error:
            _say(f"an artifact is left out: {error}")
            return Runtime(bundle, backend, programs=DEVICE_PROGRAMS)

    def _weights(self, path: Path, runtime: Runtime) -> Array:
        wanted = runtime.manifest.dimension
        try:
            if path.stat().st_size != 4 * wanted:
                raise Stopped(BAD_BUNDLE, f"weights of {path.stat().st_size} bytes for {wanted}")
            return np.fromfile(path, "<f4").astype(np.float32, copy=False)
        except OSError as error:
            raise Stopped(PROGRAM_FAILED, f"the weights cannot be read: {error}") from error

    def _leaves(self, name: str, runtime: Runtime) -> tuple[int | None, list[Array]]:
        """The data as this bundle takes it, read again when it has changed."""
        wanted = runtime.manifest.data
        try:
            self._source = self._source or open_source(self._settings.data)
            version = self._source.version()
            if self._data is not None and version is not None and self._data[:2] == (name, version):
                return version, self._data[2]
            self._data = None
            given = self._source.read(row_type(wanted))
            made = fit(
                given,
                wanted,
                classes=_classes(runtime),
                query_fraction=self._settings.data.query_fraction,
            )
        except NoDataError as error:
            raise Stopped(NO_DATA, str(error)) from error
        except DelianError as error:
            raise Stopped(BAD_BUNDLE, str(error)) from error
        if version is not None:
            self._data = (name, version, made)
        return version, made

    # ------------------------------------------------ the programs

    def _call(
        self, runtime: Runtime, state: Array, data: list[Array], job: Mapping[str, Any]
    ) -> Answer:
        key = np.array(job["key"], np.uint32)
        try:
            plan = RingPlan(*job["ring"])
            if job["program"] == "evaluate":
                return self._evaluate(runtime, state, data, key, plan, job)
            if job["program"] != "client_update":
                raise Stopped(PROGRAM_FAILED, f"a device runs no {job['program']}")
            if plan != runtime.ring:
                raise Stopped(BAD_BUNDLE, f"the task's ring {plan} is not the bundle's")
            return self._train(runtime, state, data, key, job)
        except DelianError as error:
            # The arguments were checked: what a program can still say is that its lists outgrew
            # the memory that they may have.
            raise Stopped(OUT_OF_MEMORY, str(error)) from error

    def _train(
        self,
        runtime: Runtime,
        state: Array,
        data: list[Array],
        key: Array,
        job: Mapping[str, Any],
    ) -> Answer:
        """The update; and the client state, where the algorithm has one, begun at the one before
        and put in its place before the update leaves.
        """
        if not runtime.kept_size:
            update = runtime.client_update(state, data, key)
        else:
            file, on = _kept_file(job), kept.digest_of(state)
            before = _kept(file, runtime)
            own = runtime.client_state(state) if before is None else before.base(on)
            update = runtime.client_update(state, data, key, own)
            if update.finite:
                _keep(file, kept.Kept(on, own, update.kept))
        return Answer({"loss": update.loss, "finite": update.finite}, update.vector)

    def _evaluate(
        self,
        runtime: Runtime,
        state: Array,
        data: list[Array],
        key: Array,
        plan: RingPlan,
        job: Mapping[str, Any],
    ) -> Answer:
        """The metrics for the sum; and the personal model, judged against the one in use."""
        from ..core.learn import metrics  # with all algorithms: a process that trains has no use

        before = _kept(_kept_file(job), runtime) if runtime.kept_size else None
        after = before.after if before is not None else None
        own, outcome = metrics.judge(runtime, state, data, key, plan, after)
        head: dict[str, Any] = {"loss": outcome.loss, "finite": outcome.finite}
        if outcome.vector is None and outcome.finite:
            raise Stopped(NO_DATA, "there are no rows to judge by")
        if outcome.vector is not None and (wanted := job.get("personal")):
            with Path(wanted["draft"]).open("wb") as draft:
                draft.write(np.ascontiguousarray(own, "<f4").tobytes())
                os.fsync(draft.fileno())
            head["judgement"] = _judgement(runtime, state, own, data, key, wanted.get("present"))
        vector = outcome.vector if outcome.vector is not None else np.empty(0, np.uint32)
        return Answer(head, vector)


def _kept_file(job: Mapping[str, Any]) -> Path:
    """Blobs are named by their content, so a bundle's name names its state too."""
    if "kept" not in job:
        raise Stopped(BAD_BUNDLE, "its algorithm keeps a client state, and this device keeps none")
    return Path(job["kept"]) / f"{Path(job['bundle']).name}.kept"


def _kept(file: Path, runtime: Runtime) -> kept.Kept | None:
    """What was kept; a damaged file is lost, and the device begins anew, as after a new join."""
    try:
        return kept.read(file, runtime.kept_size)
    except DelianError as error:
        _say(f"{file.name}: {error}")
        return None
    except OSError as error:
        raise Stopped(PROGRAM_FAILED, f"the client state cannot be read: {error}") from error


def _keep(file: Path, state: kept.Kept) -> None:
    """Writes it, and drops those of bundles that were not trained for longest."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept.write(file, state)
        others = sorted(file.parent.glob("*.kept"), key=lambda f: f.stat().st_mtime_ns)
        for old in others[:-STATES_KEPT]:
            old.unlink()
    except OSError as error:
        raise Stopped(PROGRAM_FAILED, f"the client state cannot be kept: {error}") from error


def _judgement(
    runtime: Runtime, state: Array, own: Array, data: list[Array], key: Array, present: str | None
) -> dict[str, Any]:
    """The fields of `personal.Judgement`: all three models by one key, on the same rows."""
    its = random.split(key, 2)[0]
    before = runtime.evaluate(runtime.model_of(state), data, its)
    after = runtime.evaluate(own, data, its)
    said = {
        "loss_before": before.loss / before.count,
        "loss_after": after.loss / after.count,
        "accuracy_before": before.accuracy,
        "accuracy_after": after.accuracy,
        "count": after.count,
    }
    if present is None or Path(present).stat().st_size != own.nbytes:
        return said
    score = runtime.evaluate(np.fromfile(present, "<f4").astype(np.float32), data, its)
    return {**said, "loss_present": score.loss / score.count}


def _classes(runtime: Runtime) -> int | None:
    """How many labels the model tells apart: the last axis of its logits."""
    (logits,) = runtime.bundle.programs["infer"].result_types
    if not isinstance(logits, TensorType) or not logits.shape:
        return None
    return logits.shape[-1]


# ---------------------------------------------------------------- the process


def main() -> int:
    """Serves jobs until the input ends, with which the process ends at once."""
    jobs, answers = _private_streams()
    hello = frames.read(jobs, 0)
    if hello is None:
        return 0
    die_with(int(hello.head["parent"]))
    settings = WorkerSettings.from_json(dict(hello.head["settings"]))
    waiting: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs, waiting), daemon=True).start()
    if settings.backend == "reference" or (not settings.artifacts and find() is None):
        _warm()
    worker = Worker(settings, Limits(settings))
    while True:
        job = waiting.get()
        head, vector = _answer(worker, job)
        frames.write(answers, {"ticket": job["ticket"], **head}, vector)


def _warm() -> None:
    """Lets NumPy's linear algebra take its memory now: it ends the process when it cannot, and what
    is taken before the limits are set is not counted.
    """
    for kind in (np.float32, np.float64):
        square = np.ones((256, 256), kind)
        np.dot(square, square)


def _answer(worker: Worker, job: Mapping[str, Any]) -> tuple[dict[str, Any], bytes | memoryview]:
    try:
        answer = worker.run(job)
    except Stopped as stop:
        return {"done": False, "reason": int(stop.reason), "why": stop.why[:WHY_CHARS_MAX]}, b""
    vector = np.ascontiguousarray(answer.vector, "<u4")
    assert vector.size <= DIMENSION_MAX + 1
    return {"done": True, **answer.head}, vector.view(np.uint8).data


def _say(text: str) -> None:
    """To the agent's stderr; `logging` alone would take half a megabyte."""
    print(f"{__package__}.worker: {text}", file=sys.stderr, flush=True)


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the agent, out of reach of what prints: 0 becomes empty, 1 becomes stderr."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return jobs, answers


def _read_jobs(jobs: BinaryIO, waiting: queue.SimpleQueue[Mapping[str, Any]]) -> None:
    """Waits for jobs beside the one that runs. When the agent goes, so does this process."""
    while True:
        try:
            frame = frames.read(jobs, 0)
        except (OSError, DelianError):
            frame = None
        if frame is None:
            os._exit(0)
        waiting.put(frame.head)


if __name__ == "__main__":
    sys.exit(main())
