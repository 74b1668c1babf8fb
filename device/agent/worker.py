"""The training process: `python -m delian.device.agent.worker`, started by the agent (`runner`).

It runs the programs of one bundle. A job names a program, the files of the bundle and of weights,
and a key; the data it takes from the device's own source. What it has loaded it keeps for the next
job. Before a program runs for the first time the process gives up all that a program has no use for
(`core.node.sandbox.walls`): it can then read its blobs and its data and nothing else of the device,
and write nothing. What was to be stored it gives to the agent.

    first frame   {"parent": pid, "settings": {"worker": WorkerSettings, "read": [paths],
                   "mapped"?: [bytes, files]}}
    job           {"ticket", "program", "bundle", "weights", "key": [u32, u32],
                   "ring": [clip, clients_max, dimension], "limits": [memory MiB, seconds],
                   "frozen"?: [paths], "compiled"?: "rest" or "all", "object"?: path or null,
                   "keeps"?: true, "personal"?: {"present"?: path}, "windows"?: {...},
                   "given"?: {...}, "split"?: {...}}, or a turn of a training with the edge
                   (`split_jobs`)
                  + the record of the client state + the checkpoint of a training by windows, or
                  the weights of "given"
    note          of a training by windows (`window_jobs`)
    answer        {"ticket", "done": true, "examples", "loss", "finite", "version", "vector": bytes,
                   "extra"?: "kept" or "personal", ...} + vector + that record, or that model
                  {"ticket", "done": false, "reason": FailureReason, "why": text,
                   "compile"?: "rest" or "all", "again"?: true,
                   "script"?: ScriptSpec, "leaves"?: [[name, shape], ...]}

frozen: the parts of the model's frozen leaves, in the manifest's order; the agent's store has
checked their hashes. mapped: what they take together. compile: the bundle has to be compiled first,
by another process, all of it or what no artifact has; then the job is asked again with the object,
null where there is no C compiler. keeps: client states are kept, and the job's body is the last
one's record. again: this process cannot read its data, or the bundle, any more; another one can.
script: the owner's script trains for this bundle; then the job is asked again with its answer,
{"weights": bytes, "examples", "loss", "judged"}.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # What is imported below goes without these. hashlib then takes Python's own SHA-256: OpenSSL
    # would take 4 MB of a small device's memory; and what a device reads is in no such format.
    for module in ("_hashlib", "_bz2", "_lzma"):
        sys.modules[module] = None  # type: ignore[assignment]

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.common.collector import unsearched

with unsearched():
    import numpy as np
    from numpy.typing import NDArray

    from ...core.common.errors import DelianError
    from ...core.compiler import random
    from ...core.compiler.backends import Executable
    from ...core.compiler.backends.native.toolchain.artifact import ArtifactError
    from ...core.compiler.ir import Function, TensorType
    from ...core.learning import bundle as bundles
    from ...core.learning.bundle import DEVICE_PROGRAMS, Bundle
    from ...core.learning.data.fit import examples
    from ...core.learning.data.sources import NoDataError, Source, open_source
    from ...core.learning.data.stored_rows import StoredRows, is_stored
    from ...core.learning.disclosure.keys import check_keys
    from ...core.learning.frozen import mapped
    from ...core.learning.runtime import Runtime
    from ...core.learning.windows.reading_thread import ReadingThread
    from ...core.learning.windows.window_rows import UnreadableError, WindowRows
    from ...core.learning.windows.window_training import scores
    from ...core.node.sandbox import compiled_programs, frames
    from ...core.node.sandbox.process_limits import Limits
    from ...core.node.sandbox.walls import confine_run
    from ...core.node.sandbox.worker_serving import (
        Content,
        JobStopped,
        Note,
        Work,
        refused,
        say,
        serve_noting,
    )
    from ...core.privacy.mechanisms.ring import RingPlan
    from ...core.protocol.ports import DIMENSION_MAX, Vector
    from ...core.wire.round_pb2 import BAD_BUNDLE, NO_DATA, OUT_OF_MEMORY, PROGRAM_FAILED
    from . import client_state_file, window_jobs
    from .client_state_file import BYTES_MAX as KEPT_BYTES_MAX
    from .owner_limits import WorkerSettings
    from .script_leaves import script_leaves
    from .window_jobs import CHECKPOINT_BYTES_MAX

if __name__ == "__main__":
    for module in ("_hashlib", "_bz2", "_lzma"):  # the owner's own code may want them
        del sys.modules[module]

if TYPE_CHECKING:
    from .split_jobs import SplitJob

Array = NDArray[Any]
#: As a bundle takes it: arrays in memory, or windows of rows.
Data = list[Array] | WindowRows


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job gave: facts for the agent, the ring vector, and what the agent is to store."""

    head: Mapping[str, Any]
    vector: Vector
    extra: bytes = b""


class Worker:
    """Runs jobs of one bundle, one at a time.

    read: what it may read once programs run. note: sends notes of a job. mapped_bytes: of the
    frozen parts that it will map.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        limits: Limits,
        read: tuple[str, ...],
        note: Note = lambda head, body: None,
        mapped_bytes: int = 0,
    ) -> None:
        self._settings, self._limits, self._read, self._note = settings, limits, read, note
        self._allowed = settings.limits.mapping(mapped_bytes).of_programs()
        self._bundle = ""
        self._ready: Runtime | None = None
        self._source: Source | StoredRows | None = None
        self._data: tuple[int, Data] | None = None
        self._reading, self._confined = ReadingThread(), False
        self._split: SplitJob | None = None

    def __call__(self, frame: frames.Frame) -> tuple[Mapping[str, Any], Content]:
        """A job and its answer. Raises JobStopped."""
        answer = self.run(frame.head, bytes(frame.body))
        vector = np.ascontiguousarray(answer.vector, "<u4")
        assert vector.size <= DIMENSION_MAX + 1
        head = {**answer.head, "vector": vector.nbytes}
        body = vector.view(np.uint8).data
        return head, b"".join((body, answer.extra)) if answer.extra else body

    def run(self, job: Mapping[str, Any], record: bytes = b"") -> Answer:
        """Raises JobStopped."""
        began = time.monotonic()
        self._limits.of_job(*job["limits"])
        if job["program"] == "split_turn":
            return self._turn(record)
        try:
            runtime = self._runtime(job)
            state = self._weights(Path(job["weights"]), runtime)
            given = job.get("given")
            data: Data
            if runtime.manifest.script:
                split = len(record) - (int(given["weights"]) if given else 0)
                record, weights = record[:split], record[split:]
                version, data = None, script_leaves(runtime, state, given, weights)
            else:
                version, data = self._leaves(runtime)
            self._split = _split_of(runtime, job, data)
            ready = time.monotonic()
            self._confine(data)
            answer = self._call(runtime, state, data, job, record)
        except MemoryError as error:
            self._data = None
            raise JobStopped(OUT_OF_MEMORY, f"memory is over: {error}") from error
        head = {
            "examples": _examples(data, runtime, given),
            **answer.head,
            "version": version,
            "load_s": round(ready - began, 3),
            "run_s": round(time.monotonic() - ready, 3),
        }
        return Answer(head, answer.vector, answer.extra)

    def _confine(self, data: Data) -> None:
        """From here on a program has run in this process. Raises JobStopped."""
        if self._confined:
            self._limits.running()
            return
        paths = getattr(data.source, "paths", ()) if isinstance(data, WindowRows) else ()
        read = [*self._read, *_data_paths(self._settings), *paths]
        sandbox = self._settings.sandbox
        try:
            if isinstance(data, WindowRows):
                # It reads while programs run: the walls hold each thread for itself.
                self._reading.start(lambda: confine_run(read, sandbox, 2))
            self._limits.running()
            confine_run(read, sandbox, 1 + self._reading.threads)
        except (DelianError, OSError) as error:
            raise JobStopped(PROGRAM_FAILED, f"no sandbox: {error}") from error
        self._confined = True

    # ------------------------------------------------ what a job needs

    def _runtime(self, job: Mapping[str, Any]) -> Runtime:
        """The bundle's programs. A process has one bundle: blobs are named by their content."""
        if self._ready is not None and job["bundle"] == self._bundle:
            return self._ready
        if self._confined:
            raise JobStopped(PROGRAM_FAILED, "another bundle's programs ran here", again=True)
        try:
            bundle = bundles.load(Path(job["bundle"]), limits=self._allowed).bare()
            made = self._programs(check_keys(bundle), job)
            frozen = _frozen(bundle, [Path(part) for part in job.get("frozen", ())])
            self._ready = Runtime(bundle, made=made, limits=self._allowed, frozen=frozen)
        except DelianError as error:
            raise refused(error) from error
        self._bundle = job["bundle"]
        return self._ready

    def _programs(self, bundle: Bundle, job: Mapping[str, Any]) -> dict[str, Executable]:
        """From artifacts where they have the programs and fit, else as they were compiled.

        Raises JobStopped where they are not compiled yet.
        """
        functions = compiled_programs.functions_of(bundle, DEVICE_PROGRAMS)
        compiled = job.get("compiled")
        if self._settings.backend == "reference" or (compiled and job.get("object") is None):
            _warm()
            return compiled_programs.interpreted(functions)
        files = [] if compiled == "all" else [Path(a) for a in self._settings.artifacts]
        try:
            return self._loaded(functions, files, job.get("object"))
        except ArtifactError as error:
            if not files:
                raise
            say(f"an artifact is left out: {error}")
            return self._loaded(functions, [], None)

    def _loaded(
        self, functions: Mapping[str, Function], artifacts: list[Path], made: str | None
    ) -> dict[str, Executable]:
        path = Path(made) if made else None
        hashes = compiled_programs.hashes_of(functions)
        rest = compiled_programs.uncompiled(hashes, artifacts)
        if rest and (path is None or not path.exists()):
            path = compiled_programs.stored(rest)
            if path is None:
                which = "rest" if artifacts else "all"
                raise JobStopped(PROGRAM_FAILED, "it is not compiled yet", compile=which)
        return compiled_programs.load(functions, hashes, artifacts, path)

    def _weights(self, path: Path, runtime: Runtime) -> Array:
        wanted = runtime.manifest.dimension
        try:
            if path.stat().st_size != 4 * wanted:
                raise JobStopped(BAD_BUNDLE, f"weights of {path.stat().st_size} bytes for {wanted}")
            return np.fromfile(path, "<f4").astype(np.float32, copy=False)
        except OSError as error:
            raise JobStopped(PROGRAM_FAILED, f"the weights cannot be read: {error}") from error

    def _leaves(self, runtime: Runtime) -> tuple[int | None, Data]:
        """The data as this bundle takes it, read again when it has changed. Raises JobStopped."""
        try:
            self._source = self._source or open_source(self._settings.data)
            version = self._source.version()
            if self._data is not None and version is not None and self._data[0] == version:
                return version, self._data[1]
            self._data = None
            if is_stored(self._source):
                # An open data set is that of one version.
                self._source = open_source(self._settings.data)
            classes, settings = _classes(runtime), self._settings.data
            made = window_jobs.arranged(self._source, runtime, classes, settings)
        except (DelianError, OSError) as error:
            reason = NO_DATA if isinstance(error, NoDataError) else BAD_BUNDLE
            # A process that was confined may not read what has taken the place of its file.
            again = {"again": True} if self._confined else {}
            raise JobStopped(reason, str(error), **again) from error
        if version is not None:
            self._data = (version, made)
        return version, made

    # ------------------------------------------------ the programs

    def _call(
        self,
        runtime: Runtime,
        state: Array,
        data: Data,
        job: Mapping[str, Any],
        record: bytes,
    ) -> Answer:
        key = np.array(job["key"], np.uint32)
        try:
            plan = RingPlan(*job["ring"])
            split = len(record) - int(job.get("windows", {}).get("bytes", 0))
            record, checkpoint = record[:split], record[split:]
            before = _kept(job, record, runtime)
            if job["program"] == "evaluate":
                return self._evaluate(runtime, state, data, key, plan, job, before)
            if job["program"] != "client_update":
                raise JobStopped(PROGRAM_FAILED, f"a device runs no {job['program']}")
            if plan != runtime.ring:
                raise JobStopped(BAD_BUNDLE, f"the task's ring {plan} is not the bundle's")
            return self._train(runtime, state, data, key, before, job, checkpoint)
        except NoDataError as error:
            raise JobStopped(NO_DATA, str(error)) from error
        except UnreadableError as error:
            # Data that has changed is read by another process, from the beginning.
            changed = isinstance(data, WindowRows) and data.has_changed()
            again = {"again": True} if changed else {}
            raise JobStopped(BAD_BUNDLE, str(error), **again) from error
        except DelianError as error:
            # The arguments were checked: what a program can still say is that its lists outgrew
            # the memory that they may have.
            raise JobStopped(OUT_OF_MEMORY, str(error)) from error

    def _train(
        self,
        runtime: Runtime,
        state: Array,
        data: Data,
        key: Array,
        before: client_state_file.Kept | None,
        job: Mapping[str, Any],
        checkpoint: bytes,
    ) -> Answer:
        """The update, and the client state where the algorithm has one, begun at the one before.

        The agent stores it before the update leaves. Of a training with the edge, its first turn.
        """
        if self._split is not None and not isinstance(data, WindowRows):
            rows = examples(data, runtime.manifest.data)
            return Answer(*self._split.begin(state, data, key, rows))
        head: dict[str, Any] = {}
        extra, on, own = b"", b"", None
        if runtime.kept_size:
            on = client_state_file.digest_of(state)
            own = runtime.client_state(state) if before is None else before.base(on)
        if isinstance(data, WindowRows):
            made = window_jobs.train(
                *(runtime, state, data, key, own),
                job=job,
                record=checkpoint,
                note=self._note,
                reading=self._reading,
            )
            update, head["examples"] = made.update, made.rows
        else:
            update = runtime.client_update(state, data, key, own)
        if own is not None and update.finite:
            extra = client_state_file.Kept(on, own, update.kept).to_bytes()
            head["extra"] = "kept"
        head |= {"loss": update.loss, "finite": update.finite}
        return Answer(head, update.vector, extra)

    def _turn(self, reply: bytes) -> Answer:
        """The next turn of a training with the edge, or its end. Raises JobStopped."""
        if self._split is None:
            raise JobStopped(PROGRAM_FAILED, "a turn of a training that has not begun here")
        self._limits.running()
        try:
            return Answer(*self._split.turn(reply))
        except DelianError as error:
            raise JobStopped(PROGRAM_FAILED, str(error)) from error
        except MemoryError as error:
            raise JobStopped(OUT_OF_MEMORY, f"memory is over: {error}") from error

    def _evaluate(
        self,
        runtime: Runtime,
        state: Array,
        data: Data,
        key: Array,
        plan: RingPlan,
        job: Mapping[str, Any],
        before: client_state_file.Kept | None,
    ) -> Answer:
        """The metrics for the sum; and the personal model, judged against the one in use."""
        from ...core.learning import (
            metrics,  # with all algorithms: a process that trains has no use
        )

        after = before.after if before is not None else None
        own, outcome = metrics.judge(runtime, state, data, key, plan, after)
        head: dict[str, Any] = {"loss": outcome.loss, "finite": outcome.finite}
        if isinstance(data, WindowRows):
            head["examples"] = outcome.examples
        if outcome.vector is None and outcome.finite:
            raise JobStopped(NO_DATA, "there are no rows to judge by")
        extra = b""
        wanted = None if runtime.manifest.script else job.get("personal")
        if outcome.vector is not None and wanted is not None:
            extra = np.ascontiguousarray(own, "<f4").tobytes()
            head["extra"] = "personal"
            head["judgement"] = _judgement(runtime, state, own, data, key, wanted.get("present"))
        vector = outcome.vector if outcome.vector is not None else np.empty(0, np.uint32)
        return Answer(head, vector, extra)


def _frozen(bundle: Bundle, parts: list[Path]) -> list[Array]:
    """The bundle's frozen leaves, mapped from the files of their parts. Raises JobStopped.

    Files are named by the hashes that the store has checked, so the names are what is compared.
    """
    manifest = bundle.manifest
    if [part.name for part in parts] != [part.digest for part in manifest.frozen_parts]:
        raise JobStopped(BAD_BUNDLE, "the task's frozen parts are not those of the bundle")
    try:
        return mapped(manifest.frozen, parts)
    except DelianError as error:
        # It was damaged since the store looked at it, and is fetched again for the next task.
        raise JobStopped(PROGRAM_FAILED, str(error)) from error


def _split_of(runtime: Runtime, job: Mapping[str, Any], data: Data) -> SplitJob | None:
    """The training with the edge, where the job is one. Raises JobStopped."""
    asked = job.get("split")
    if asked is None or not runtime.manifest.split or isinstance(data, WindowRows):
        return None
    from .split_jobs import SplitJob  # with what cuts programs: most trainings do without

    try:
        return SplitJob.of(runtime, asked)
    except DelianError as error:
        raise refused(error) from error


def _kept(job: Mapping[str, Any], record: bytes, runtime: Runtime) -> client_state_file.Kept | None:
    """What was kept; a damaged record is lost, as after a new join."""
    if not runtime.kept_size:
        return None
    if not job.get("keeps"):
        why = "its algorithm keeps a client state, and this device keeps none"
        raise JobStopped(BAD_BUNDLE, why)
    if not record:
        return None
    try:
        return client_state_file.Kept.parse(record, runtime.kept_size)
    except DelianError as error:
        say(f"the client state is lost: {error}")
        return None


def _data_paths(settings: WorkerSettings) -> tuple[str, ...]:
    """The files that the data is in; none where the owner's code gives it."""
    source = settings.data.source
    if not source or settings.runs_owners_code:
        return ()
    return (source.removeprefix("sensor:"),)


def _judgement(
    runtime: Runtime, state: Array, own: Array, data: Data, key: Array, present: str | None
) -> dict[str, Any]:
    """The fields of `personal_model.Judgement`: all three models by one key, on the same rows."""
    models = [runtime.model_of(state), own]
    if present is not None and Path(present).stat().st_size == own.nbytes:
        models.append(np.fromfile(present, "<f4").astype(np.float32))
    before, after, *more = scores(runtime, models, data, random.split(key, 2)[0])
    said = {
        "loss_before": before.loss / before.count,
        "loss_after": after.loss / after.count,
        "accuracy_before": before.accuracy,
        "accuracy_after": after.accuracy,
        "count": after.count,
    }
    return {**said, "loss_present": more[0].loss / more[0].count} if more else said


def _examples(data: Data, runtime: Runtime, given: Mapping[str, Any] | None) -> int:
    """What the device trains on; given: a script's answer. A training by windows counts itself."""
    if given is not None:
        return int(given["examples"])
    return 0 if isinstance(data, WindowRows) else examples(data, runtime.manifest.data)


def _classes(runtime: Runtime) -> int | None:
    """The number of labels of the model: the last axis of its logits."""
    (logits,) = runtime.bundle.inference.result_types
    if not isinstance(logits, TensorType) or not logits.shape:
        return None
    return logits.shape[-1]


# ---------------------------------------------------------------- the process


def main() -> int:
    """Serves jobs until the input ends."""
    return serve_noting(_begin, KEPT_BYTES_MAX + CHECKPOINT_BYTES_MAX)


def _begin(settings: dict[str, Any], note: Note) -> Work:
    given = WorkerSettings.from_json(dict(settings["worker"]))
    mapped_bytes, files = settings.get("mapped", (0, 0))
    limits = Limits(given.limits, (mapped_bytes, files))
    return Worker(given, limits, tuple(settings["read"]), note, mapped_bytes)


def _warm() -> None:
    """Lets NumPy's linear algebra take its memory now: it ends the process when it cannot."""
    for kind in (np.float32, np.float64):
        square = np.ones((256, 256), kind)
        np.dot(square, square)


if __name__ == "__main__":
    sys.exit(main())
