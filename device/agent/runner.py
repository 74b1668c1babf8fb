"""Runs a device's programs in a process of their own (`worker`), and survives whatever they do.

The process is started with the first job and kept, loaded programs and all, until a job is
cancelled, goes beyond its limits or breaks it, or another bundle's turn comes: then it is killed
and the next job starts another. Where the device's data comes from its owner's own code, a process
does one job: the code runs first, and then the process is confined. What ended a job says what the
task is answered: beyond its time, out of memory, or failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.common.files import write_whole
from ...core.learning.bundle import DEVICE_PROGRAMS
from ...core.learning.frozen import Stamp, stamps_of
from ...core.node.identity.artifacts.manifest import ArtifactError
from ...core.node.sandbox import frames, walls
from ...core.node.sandbox.compiling import compiled
from ...core.node.sandbox.worker_process import Jobs, Stopped, WorkerProcess, command, environment
from ...core.placement.subgraphs.request_limits import MESSAGE_BYTES_MAX
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.protocol.ports import Outcome, ProgramStopped, RunProgram
from ...core.wire.artifact_pb2 import ArtifactLimits
from ...core.wire.round_pb2 import (
    NO_DATA,
    NOT_SIGNED,
    OUT_OF_MEMORY,
    PROGRAM_FAILED,
    QUESTION_REFUSED,
    FailureReason,
)
from .artifact_gate import Gate
from .client_state_file import KeptStates
from .owner_limits import WorkerSettings
from .personal_model import Judgement, PersonalStore
from .question_desk import QuestionDesk
from .script_desk import ScriptDesk
from .split_desk import Ask, NotTakenError, SplitDesk
from .window_checkpoints import WindowCheckpoints

log = logging.getLogger("delian.device.agent.runner")

COMMAND = command("delian.device.agent.worker")
#: A client state is so many times as large as the weights, at most, or this, if that is more.
KEPT_PER_WEIGHTS, KEPT_BYTES_MIN = 16, 1 << 20
#: Bundles whose compiled programs are remembered.
OBJECTS_MAX = 8
#: How often one job may ask for a process that can read its data, and for what it needs compiled.
STARTS_PER_JOB = 2


class WorkerRunner:
    """A ProgramRunner (core.node.driver.executor) for a device.

    path_of: the file of a whole blob, by digest. personal: where EVALUATE leaves the personal
    model; None: nowhere. memory: a file with what was trained on, kept over restarts. gate: says
    which bundles may run, before anything opens them; None: all. kept: the folder of algorithms'
    client states; None: those that have one are not run. questions: answers them; None: nothing
    does. windows: stores the checkpoints of trainings by windows; None: there are none. scripts:
    the owner's, which train in place of a bundle's program; None: there are none. split: trains
    with the edge where a task allows it; None: the owner does not.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        path_of: Callable[[bytes], Path],
        personal: PersonalStore | None = None,
        memory: Path | None = None,
        command: Sequence[str] = COMMAND,
        gate: Gate | None = None,
        kept: Path | None = None,
        questions: QuestionDesk | None = None,
        windows: WindowCheckpoints | None = None,
        scripts: ScriptDesk | None = None,
        split: SplitDesk | None = None,
    ) -> None:
        self._questions, self._windows, self._scripts = questions, windows, scripts
        self._split = split
        self._settings, self._path_of, self._personal = settings, path_of, personal
        self._memory, self._command, self.gate = memory, tuple(command), gate
        self._kept = None if kept is None else KeptStates(kept)
        self._turn = asyncio.Lock()
        self._running: WorkerProcess | None = None
        self._bundle = b""  # that `_running` has
        self._mapped: tuple[Stamp | None, ...] = ()  # of the frozen parts that it has mapped
        self._objects: OrderedDict[bytes, dict[str, str | None]] = OrderedDict()
        self._jobs = Jobs()
        self._allowed, self._closed = True, False
        self.trained_version = self._remembered()
        self.starts = 0

    # ------------------------------------------------ the ProgramRunner

    async def run(self, program: RunProgram) -> Outcome | ProgramStopped:
        """Runs it within the limits; see the protocol. Never raises for what the program did."""
        outcome = await self._jobs.run(program.ticket, self._run(program))
        return ProgramStopped(PROGRAM_FAILED) if outcome is None else outcome

    async def cancel(self, ticket: int) -> None:
        """Kills the process that works on it."""
        await self._jobs.cancel(ticket)

    def allow(self, allowed: bool) -> None:
        """The owner's consent. Without it nothing is run, and what runs is stopped at once."""
        if self._allowed and not allowed:
            self._jobs.cancel_soon()
        self._allowed = allowed

    @property
    def pid(self) -> int | None:
        """The training process, where there is one."""
        return None if self._running is None else self._running.pid

    async def close(self) -> None:
        """Stops everything. May be called twice."""
        self._closed = True
        await self._jobs.close()
        await self._kill()
        if self._scripts is not None:
            await self._scripts.close()

    # ------------------------------------------------ one job

    async def _run(self, program: RunProgram) -> Outcome | ProgramStopped:
        async with self._turn:
            if not self._allowed or self._closed:
                return ProgramStopped(NO_DATA)
            try:
                limits = ArtifactLimits()
                if self.gate is not None:
                    limits = await asyncio.to_thread(self.gate.admit, program)
                if RingPlan.of(program.arguments[1]).wide:
                    return await self._answer(program, limits)
                return await self._ask(program, limits)
            except ArtifactError:
                return ProgramStopped(NOT_SIGNED)  # the gate has logged why
            except Stopped as stop:
                reason, why = stop.reason, stop.why
            except (DelianError, OSError) as error:  # a blob is gone, an answer makes no sense
                reason, why = PROGRAM_FAILED, str(error)
                await self._kill()
            except asyncio.CancelledError:
                await asyncio.shield(self._kill())
                raise
            log.warning(
                "%s stopped: %s",
                program.program,
                why,
                extra={"ticket": program.ticket, "reason": FailureReason.Name(reason)},
            )
            return ProgramStopped(reason)

    async def _answer(self, program: RunProgram, limits: ArtifactLimits) -> Outcome:
        """A step of a question. Raises Stopped, DelianError and OSError."""
        if self._questions is None:
            raise Stopped(QUESTION_REFUSED, "this device answers no questions")
        return await self._questions.answer(program, limits)

    async def _ask(self, program: RunProgram, limits: ArtifactLimits) -> Outcome:
        """Raises Stopped, DelianError and OSError."""
        wall_s = min(self._settings.wall_s, limits.wall_s or self._settings.wall_s)
        ends = asyncio.get_running_loop().time() + wall_s
        job, record, most = await asyncio.to_thread(self._job, program, limits)
        note = None if self._windows is None else self._windows.note(program)
        starts, compilations = 0, 0
        while True:
            left_s = ends - asyncio.get_running_loop().time()
            running = await self._process(program)
            sent = {**job, **self._objects.get(program.blobs[0], {})}
            name = b""
            try:
                frame = await running.ask(
                    sent, record, answer_bytes_max=most, wall_s=left_s, note=note
                )
                if "turn" in frame.head and "split" in job and self._split is not None:
                    ask = self._turns(running, sent, ends)
                    frame, name = await self._split.exchange(ask, frame, program.blobs[0])
                outcome = await asyncio.to_thread(self._outcome, program, frame)
                outcome = replace(outcome, split=name)
            except NotTakenError as error:
                log.warning("this device trains by itself: %s", error)
                job.pop("split", None)
                continue
            except Stopped as stop:
                if running.ended:
                    self._running = None
                if stop.head.get("compile") in ("rest", "all") and not compilations:
                    compilations += 1
                    await self._compile(program, str(stop.head["compile"]), ends)
                    continue
                if running.ended and stop.reason == OUT_OF_MEMORY and note and note.progressed():
                    # It was killed, and had come further: another process goes on from there.
                    job, record, most = await asyncio.to_thread(self._job, program, limits)
                    continue
                if "script" in stop.head and self._scripts is not None and "given" not in job:
                    left_s = ends - asyncio.get_running_loop().time()
                    given, weights = await self._scripts.answer(program, stop.head, left_s)
                    job, record = {**job, "given": given}, record + weights
                    continue
                if stop.head.get("again") is True and starts < STARTS_PER_JOB:
                    starts += 1
                    await self._kill()
                    continue
                raise
            if self._settings.runs_owners_code:
                await self._kill()  # a program has run where the owner's code would run next
            return outcome

    def _turns(self, running: WorkerProcess, job: Mapping[str, Any], ends: float) -> Ask:
        """Asks the training process for turns of a training with the edge."""

        async def ask(turn: Mapping[str, Any], body: bytes) -> frames.Frame:
            left_s = ends - asyncio.get_running_loop().time()
            asked = {"ticket": job["ticket"], "limits": job["limits"], **turn}
            most = MESSAGE_BYTES_MAX
            return await running.ask(asked, body, answer_bytes_max=most, wall_s=left_s)

        return ask

    async def _compile(self, program: RunProgram, which: str, ends: float) -> None:
        """Has the bundle's programs compiled, all of them or those that no artifact has."""
        settings = self._settings
        made = await compiled(
            self._path_of(program.blobs[0]),
            DEVICE_PROGRAMS,
            settings.limits.mapping(_bytes_of([self._path_of(d) for d in program.blobs[2:]])),
            self._environment,
            artifacts=settings.artifacts if which == "rest" else (),
            wall_s=ends - asyncio.get_running_loop().time(),
        )
        self._objects[program.blobs[0]] = {"compiled": which, "object": made}
        while len(self._objects) > OBJECTS_MAX:
            self._objects.popitem(last=False)

    def _job(
        self, program: RunProgram, limits: ArtifactLimits
    ) -> tuple[dict[str, Any], bytes, int]:
        """The job as it is sent, with its client state, and the largest size of its result.

        Blocks.
        """
        key, message = program.arguments
        ring = RingPlan.of(message).base
        bundle, weights = (self._path_of(digest) for digest in program.blobs[:2])
        job: dict[str, Any] = {
            "ticket": program.ticket,
            "program": program.program,
            "bundle": str(bundle),
            "weights": str(weights),
            "frozen": [str(self._path_of(digest)) for digest in program.blobs[2:]],
            "key": [int(k) for k in key],
            "ring": list(astuple(ring)),
            "limits": [limits.memory_mib, limits.cpu_s],
        }
        size, record, most = weights.stat().st_size, b"", ring.nbytes
        if self._kept is not None:
            job["keeps"] = True
            record = self._kept.read(bundle.name)
            if program.program == "client_update":
                most += max(KEPT_PER_WEIGHTS * size, KEPT_BYTES_MIN)
        asked = None if self._split is None else self._split.asked(program)
        if asked is not None:
            job["split"], most = asked, max(most, MESSAGE_BYTES_MAX)
        if self._windows is not None and program.program == "client_update":
            checkpoint = self._windows.read(program)
            room = max(KEPT_PER_WEIGHTS * size, KEPT_BYTES_MIN)
            every_s = self._windows.every_s
            job["windows"] = {"bytes": len(checkpoint), "bytes_max": room, "every_s": every_s}
            record, most = record + checkpoint, max(most, room)
        if program.program == "evaluate" and self._personal is not None:
            self._personal.prepare()
            present = self._personal.current()
            job["personal"] = {}
            most += size  # a model is a part of the weights
            if present is not None and present.bundle == program.blobs[0].hex():
                job["personal"]["present"] = str(present.model)
        return job, record, most

    def _outcome(self, program: RunProgram, frame: frames.Frame) -> Outcome:
        """What the worker gave: it may have been taken over by the program that it ran.

        Blocks. Raises DelianError and OSError.
        """
        head = frame.head
        try:
            split = int(head["vector"])
            examples, loss, finite = int(head["examples"]), float(head["loss"]), head["finite"]
            body = memoryview(frame.body)
            extra = bytes(body[split:])
            vector = np.frombuffer(body[:split], "<u4").astype(np.uint32, copy=False)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise frames.FrameError(f"an answer that makes no sense: {error}") from None
        if program.program == "client_update":
            if head.get("extra") == "kept" and self._kept is not None:
                self._kept.write(self._path_of(program.blobs[0]).name, extra)
            if self._windows is not None:
                self._windows.drop(program)
            self._remember(head.get("version"))
        elif head.get("extra") == "personal" and self._personal is not None:
            self._offer(program, head.get("judgement"), extra)
        log.info(
            "%s done",
            program.program,
            extra={n: head[n] for n in ("ticket", "load_s", "run_s") if n in head},
        )
        return Outcome(vector=vector, examples=examples, loss=loss, finite=finite is True)

    def _offer(self, program: RunProgram, said: Any, model: bytes) -> None:
        """The personal model is a by-product: a full disk must not cost the evaluation."""
        assert self._personal is not None
        try:
            self._personal.draft.write_bytes(model)
            digest = program.blobs[0]
            frozen = [self._path_of(part) for part in program.blobs[2:]]
            self._personal.offer(self._path_of(digest), digest, Judgement(**said), frozen)
        except (DelianError, OSError, TypeError) as error:
            log.warning("the personal model was not kept: %s", error)

    # ------------------------------------------------ the process

    @functools.cached_property
    def _environment(self) -> Mapping[str, str]:
        return environment(self._settings.memory_mib)

    async def _process(self, program: RunProgram) -> WorkerProcess:
        """A process that has run no other bundle's programs, and has mapped the present files."""
        files = [self._path_of(digest) for digest in program.blobs]
        stamps = await asyncio.to_thread(stamps_of, files[2:])
        if self._running is not None and self._bundle != program.blobs[0]:
            await self._kill()
            if self._scripts is not None:
                await self._scripts.close()
        elif self._running is not None and self._mapped != stamps:
            await self._kill()  # a part was damaged in its place, and fetched again
        if self._running is None:
            self._mapped = stamps
            places = {file.parent for file in files}
            if self._personal is not None:
                places.add(self._personal.folder)
            given = {
                "worker": self._settings.to_json(),
                "read": [*map(str, sorted(places))],
                "mapped": [_bytes_of(files[2:]), len(files[2:])],
            }
            walls.check(self._settings.sandbox)
            self._running = await WorkerProcess.start(self._command, self._environment, given)
            self._bundle = program.blobs[0]
            self.starts += 1
        return self._running

    async def _kill(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.kill()
        if self._questions is not None:
            await self._questions.close()

    # ------------------------------------------------ what was trained on

    def _remembered(self) -> int | None:
        if self._memory is None:
            return None
        try:
            said = json.loads(self._memory.read_text(encoding="utf-8"))["version"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return said if isinstance(said, int) else None

    def _remember(self, version: Any) -> None:
        if not isinstance(version, int) or version == self.trained_version:
            return
        self.trained_version = version
        if self._memory is None:
            return
        try:
            write_whole(self._memory, json.dumps({"version": version}))
        except OSError as error:
            log.warning("what was trained on is not remembered: %s", error)


def _bytes_of(parts: Sequence[Path]) -> int:
    """Of these files together. One that is missing has none: the training process says which."""
    sizes = 0
    for part in parts:
        with contextlib.suppress(OSError):
            sizes += part.stat().st_size
    return sizes
