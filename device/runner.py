"""Runs a device's programs in a process of their own (`worker`), and survives whatever they do.

The process is started with the first job and kept, compiled programs and all, until a job is
cancelled, goes beyond its limits or breaks it; then it is killed and the next job starts another.
What ended it says what the task is answered: beyond its time, out of memory, or failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DelianError
from ..core.files import write_whole
from ..core.identity.manifest import ArtifactError
from ..core.ports import Outcome, ProgramStopped, RunProgram
from ..core.privacy.ring import RingPlan
from ..core.wire.artifact_pb2 import ArtifactLimits
from ..core.wire.round_pb2 import (
    DEADLINE,
    NO_DATA,
    NOT_SIGNED,
    OUT_OF_MEMORY,
    PROGRAM_FAILED,
    FailureReason,
)
from . import frames
from .artifacts import Gate
from .limits import WorkerSettings
from .personal import Judgement, PersonalStore

log = logging.getLogger("delian.device.runner")

COMMAND = (sys.executable, "-P", "-m", "delian.device.worker")
#: What the training process sees of the agent's environment: nothing that may be a secret.
ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
    "DELIAN_CACHE",
    "DELIAN_CC",
    "DELIAN_DATA",
)
#: How long a killed process may take to be gone before we stop waiting for it.
_KILL_S = 10.0


class _Ended(Exception):
    """The process is gone. code: as `Process.returncode`."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"the training process ended with {code}")
        self.code = code


@dataclass(slots=True)
class _Running:
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class WorkerRunner:
    """A ProgramRunner (core.node.executor) for a device.

    path_of: the file of a whole blob, by digest. personal: where EVALUATE leaves the personal
    model; None: nowhere. memory: a file that remembers, over restarts, what was trained on. gate:
    says which bundles may run, before anything opens them; None: all. kept: the folder of
    algorithms' client states; None: those that have one are not run.
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
    ) -> None:
        self._settings, self._path_of, self._personal = settings, path_of, personal
        self._memory, self._command, self._gate = memory, tuple(command), gate
        self._kept = kept
        self._turn = asyncio.Lock()
        self._running: _Running | None = None
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._allowed, self._closed = True, False
        self.trained_version = self._remembered()
        self.starts = 0

    # ------------------------------------------------ the ProgramRunner

    async def run(self, program: RunProgram) -> Outcome | ProgramStopped:
        """Runs it within the limits; see the protocol. Never raises for what the program did."""
        work = asyncio.current_task()
        assert work is not None
        job = asyncio.ensure_future(self._run(program))
        self._tasks[program.ticket] = job
        try:
            return await job
        except asyncio.CancelledError:
            if work.cancelling():
                job.cancel()
                await asyncio.gather(job, return_exceptions=True)
                raise
            return ProgramStopped(PROGRAM_FAILED)  # our own cancel()
        finally:
            self._tasks.pop(program.ticket, None)

    async def cancel(self, ticket: int) -> None:
        """Kills the process that works on it."""
        job = self._tasks.get(ticket)
        if job is not None:
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)

    def allow(self, allowed: bool) -> None:
        """The owner's consent. Without it nothing is run, and what runs is stopped at once."""
        if self._allowed and not allowed:
            for job in self._tasks.values():
                job.cancel()
        self._allowed = allowed

    @property
    def pid(self) -> int | None:
        """The training process, where there is one."""
        return None if self._running is None else self._running.process.pid

    async def close(self) -> None:
        """Stops everything. May be called twice."""
        self._closed = True
        for ticket in list(self._tasks):
            await self.cancel(ticket)
        await self._kill()

    # ------------------------------------------------ one job

    async def _run(self, program: RunProgram) -> Outcome | ProgramStopped:
        async with self._turn:
            if not self._allowed or self._closed:
                return ProgramStopped(NO_DATA)
            why, wall_s = "", self._settings.wall_s
            try:
                limits = ArtifactLimits()
                if self._gate is not None:
                    limits = await asyncio.to_thread(self._gate.admit, program)
                wall_s = min(wall_s, limits.wall_s or wall_s)
                async with asyncio.timeout(wall_s):
                    return await self._ask(program, limits)
            except ArtifactError:
                return ProgramStopped(NOT_SIGNED)  # the gate has logged why
            except TimeoutError:
                reason: FailureReason = DEADLINE
                why = f"not done within {wall_s} s"
                await self._kill()
            except _Ended as end:
                reason, why = _reason(end.code), str(end)
                await self._kill()
            except (DelianError, OSError) as error:  # a blob is gone, a frame is none
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

    async def _ask(self, program: RunProgram, limits: ArtifactLimits) -> Outcome | ProgramStopped:
        running = self._running or await self._start()
        job, vector_bytes = self._job(program, limits)
        try:
            await frames.send(running.writer, job)
            frame = await frames.receive(running.reader, vector_bytes)
        except (BrokenPipeError, ConnectionResetError):
            frame = None
        except frames.FrameError:
            if running.process.returncode is None and not running.reader.at_eof():
                raise
            frame = None
        if frame is None:
            raise _Ended(await self._end_of(running))
        return self._outcome(program, frame)

    def _job(self, program: RunProgram, limits: ArtifactLimits) -> tuple[dict[str, Any], int]:
        """The job as it is sent, and the longest vector that may come back."""
        key, message = program.arguments
        ring = RingPlan.of(message).base
        bundle, weights = (str(self._path_of(digest)) for digest in program.blobs[:2])
        job: dict[str, Any] = {
            "ticket": program.ticket,
            "program": program.program,
            "bundle": bundle,
            "weights": weights,
            "key": [int(k) for k in key],
            "ring": list(astuple(ring)),
            "limits": [limits.memory_mib, limits.cpu_s],
        }
        if self._kept is not None:
            job["kept"] = str(self._kept)
        if program.program == "evaluate" and self._personal is not None:
            self._personal.prepare()
            present = self._personal.current()
            job["personal"] = {"draft": str(self._personal.draft)}
            if present is not None and present.bundle == program.blobs[0].hex():
                job["personal"]["present"] = str(present.model)
        return job, ring.nbytes

    def _outcome(self, program: RunProgram, frame: frames.Frame) -> Outcome | ProgramStopped:
        head = frame.head
        if head.get("ticket") != program.ticket:
            raise frames.FrameError("the training process answered another job")
        if not head.get("done"):
            reason = int(head.get("reason", PROGRAM_FAILED))
            known = reason if reason in FailureReason.values() else PROGRAM_FAILED
            log.warning(
                "%s gave nothing: %s",
                program.program,
                head.get("why", ""),
                extra={"ticket": program.ticket, "reason": known},
            )
            return ProgramStopped(known)  # type: ignore[arg-type]
        if program.program == "client_update":
            self._remember(head.get("version"))
        if "judgement" in head and self._personal is not None:
            self._offer(program, head["judgement"])
        log.info(
            "%s done",
            program.program,
            extra={n: head[n] for n in ("ticket", "load_s", "run_s") if n in head},
        )
        return Outcome(
            vector=np.frombuffer(frame.body, "<u4").astype(np.uint32, copy=False),
            examples=int(head["examples"]),
            loss=float(head["loss"]),
            finite=bool(head["finite"]),
        )

    def _offer(self, program: RunProgram, said: Mapping[str, Any]) -> None:
        """The personal model is a by-product: a full disk must not cost the evaluation."""
        assert self._personal is not None
        try:
            digest = program.blobs[0]
            self._personal.offer(self._path_of(digest), digest, Judgement(**said))
        except (DelianError, OSError) as error:
            log.warning("the personal model was not kept: %s", error)

    # ------------------------------------------------ the process

    async def _start(self) -> _Running:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=_environment(self._settings),
            start_new_session=True,  # Ctrl-C in a terminal is for the agent
        )
        assert process.stdin is not None and process.stdout is not None
        self._running = running = _Running(process, process.stdout, process.stdin)
        self.starts += 1
        hello = {"parent": os.getpid(), "settings": self._settings.to_json()}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await frames.send(process.stdin, hello)
        log.info("training process started", extra={"pid": process.pid})
        return running

    async def _end_of(self, running: _Running) -> int | None:
        """Its exit code, once it has closed its output."""
        try:
            async with asyncio.timeout(_KILL_S):
                return await running.process.wait()
        except TimeoutError:
            return None

    async def _kill(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.writer.close()
        code = await self._end_of(running)
        log.info("training process ended", extra={"pid": running.process.pid, "code": code})

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


def _reason(code: int | None) -> FailureReason:
    """What a task is answered when the process has ended by itself."""
    if code == -signal.SIGXCPU:
        return DEADLINE
    if code == -signal.SIGKILL:  # not by us: the system was out of memory
        return OUT_OF_MEMORY
    return PROGRAM_FAILED


def _environment(settings: WorkerSettings) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return {
        **kept,
        # Address space is what is limited: no reserves for threads that do not train.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "DELIAN_LIST_BYTES_MAX": str(settings.memory_mib << 20),
        "PYTHONUNBUFFERED": "1",
    }
