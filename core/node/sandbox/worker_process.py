"""The agent's side of a worker process: started, asked by frames, killed with all that it started.

Whatever a program does to its process comes out as `Stopped`, with a reason that the protocol has:
beyond its time (DEADLINE), out of memory, or failed. The process is gone then, and the next job
starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ...common.errors import DelianError
from ...common.printable import escaped
from ...compiler.backends.native.toolchain import cache, toolchain
from ...wire.round_pb2 import DEADLINE, OUT_OF_MEMORY, PROGRAM_FAILED, FailureReason
from . import frames
from .worker_serving import WHY_CHARS_MAX

log = logging.getLogger("delian.sandbox")

T = TypeVar("T")
#: Takes a note of a worker.
Note = Callable[[frames.Frame], Awaitable[None]]

#: What a worker sees of its agent's environment: nothing that may be a secret.
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
    "DELIAN_CC",
    "DELIAN_DATA",
)
#: How long a killed process may take to be gone before we stop waiting for it.
_KILL_S = 10.0


class Stopped(Exception):
    """A job gives nothing. head: what the worker said; empty where it said nothing."""

    def __init__(
        self, reason: FailureReason, why: str, head: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(why)
        self.reason, self.why, self.head = reason, why, head or {}


class Ended(Exception):
    """The process is gone. code: as `Process.returncode`."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"the process ended with {code}")
        self.code = code


def command(module: str) -> tuple[str, ...]:
    """Starts a module of Delian's."""
    return (sys.executable, "-P", "-m", module)


def environment(memory_mib: int) -> dict[str, str]:
    """What a worker sees. memory_mib: what lists of a program may take."""
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return {
        **kept,
        "DELIAN_CACHE": str(_cache()),
        # Address space is what is limited: no reserves for threads that do not train.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "DELIAN_LIST_BYTES_MAX": str(memory_mib << 20),
        toolchain.PART: cache.WORKERS,
        "PYTHONUNBUFFERED": "1",
    }


def _cache() -> Path:
    """The cache of workers' programs lies in this folder.

    The user's, or where that is of no use one that goes with this process. A compiling process
    cannot choose: what it made must outlive it.
    """
    try:
        folder = toolchain.cache_folder().absolute()
        own = folder / cache.WORKERS
        for place in (folder, own):
            if place.exists():
                cache.check_owner(place)
        there = next(place for place in (own, *own.parents) if place.exists())
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return folder
        why = "it cannot be written"
    except (OSError, DelianError) as error:
        why = getattr(error, "message", None) or str(error)
    made = cache.temporary()
    log.warning("workers compile in %s: %s", made, why)
    return made


class WorkerProcess:
    """A worker that was started. One job at a time; after a `Stopped` it is gone."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._writer, self._reader = process, process.stdin, process.stdout
        self.ended = False

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        settings: Mapping[str, Any],
        share: Sequence[int] = (),
    ) -> WorkerProcess:
        """Starts a process and sends its first frame.

        share: files that it gets under their numbers. Raises OSError where no process can be
        started.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(environment),
            pass_fds=tuple(share),
            start_new_session=True,  # Ctrl-C in a terminal is for the agent
        )
        made = cls(process)
        hello = {"parent": os.getpid(), "settings": dict(settings)}
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                await frames.send(made._writer, hello)
        except BaseException:
            await asyncio.shield(made.kill())
            raise
        log.info("worker process started", extra={"pid": process.pid, "worker": command[-1]})
        return made

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(
        self,
        job: Mapping[str, Any],
        body: bytes | memoryview = b"",
        *,
        answer_bytes_max: int = 0,
        wall_s: float,
        note: Note | None = None,
    ) -> frames.Frame:
        """One job. note: takes what the worker says on the way; None: it may say nothing.

        Raises Stopped: what the worker answers so, or what has ended it; then it is killed, as it
        is where the caller is cancelled.
        """
        try:
            async with asyncio.timeout(wall_s):
                frame = await self._ask(job, body, answer_bytes_max, note)
        except TimeoutError:
            await self.kill()
            raise Stopped(DEADLINE, f"not done within {wall_s:g} s") from None
        except Ended as end:
            await self.kill()
            raise Stopped(_reason(end.code), str(end)) from None
        except (DelianError, OSError) as error:
            await self.kill()
            raise Stopped(PROGRAM_FAILED, str(error)) from None
        except asyncio.CancelledError:
            await asyncio.shield(self.kill())
            raise
        if not frame.head.get("done"):
            reason = frame.head.get("reason")
            known = reason if reason in FailureReason.values() else PROGRAM_FAILED
            # A program may have taken the worker over: its text goes to logs and terminals.
            why = escaped(str(frame.head.get("why", ""))[:WHY_CHARS_MAX])
            raise Stopped(known, why, frame.head)
        return frame

    async def _ask(
        self,
        job: Mapping[str, Any],
        body: bytes | memoryview,
        answer_bytes_max: int,
        note: Note | None,
    ) -> frames.Frame:
        """Raises Ended, FrameError, OSError."""
        frame = None
        try:
            await frames.send(self._writer, job, body)
            frame = await frames.receive(self._reader, answer_bytes_max)
            while note is not None and frame is not None and frame.head.get("note") is True:
                if frame.head.get("ticket") == job.get("ticket"):
                    await note(frame)
                frame = await frames.receive(self._reader, answer_bytes_max)
        except (BrokenPipeError, ConnectionResetError):
            pass
        except frames.FrameError:
            if self._process.returncode is None and not self._reader.at_eof():
                raise
        if frame is None:
            raise Ended(await self._end())
        if frame.head.get("ticket") != job.get("ticket"):
            raise frames.FrameError("the worker process answered another job")
        return frame

    async def _end(self) -> int | None:
        """Its exit code, once it has closed its output."""
        try:
            async with asyncio.timeout(_KILL_S):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def kill(self) -> None:
        """Ends the process and all that it started. May be called twice."""
        self.ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._writer.close()
        code = await self._end()
        log.info("worker process ended", extra={"pid": self.pid, "code": code})


def _reason(code: int | None) -> FailureReason:
    """What a job is answered when its process has ended by itself."""
    if code == -signal.SIGXCPU:
        return DEADLINE
    if code == -signal.SIGKILL:  # not by us: the system was out of memory
        return OUT_OF_MEMORY
    return PROGRAM_FAILED


class Jobs:
    """The jobs under way, by their tickets, so that each can be cancelled."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[Any]] = {}

    async def run(self, ticket: int, work: Coroutine[Any, Any, T]) -> T | None:
        """What the work gives; None: it was cancelled by its ticket.

        Where the caller itself is cancelled, the work is ended first.
        """
        caller = asyncio.current_task()
        assert caller is not None
        job = asyncio.ensure_future(work)
        self._tasks[ticket] = job
        try:
            return await job
        except asyncio.CancelledError:
            if caller.cancelling():
                job.cancel()
                await asyncio.gather(job, return_exceptions=True)
                raise
            return None
        finally:
            self._tasks.pop(ticket, None)

    async def cancel(self, ticket: int) -> None:
        """Ends the work under a ticket, if there is any, and waits for it."""
        job = self._tasks.get(ticket)
        if job is not None:
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)

    def cancel_soon(self) -> None:
        """Ends all work, and does not wait."""
        for job in self._tasks.values():
            job.cancel()

    async def close(self) -> None:
        """Ends all work."""
        for ticket in list(self._tasks):
            await self.cancel(ticket)
