"""Answers questions about the owner's tables, in a process of their own (`answer_worker`).

FOLDER/log.jsonl     what was asked, and whether it was answered, a line a question
FOLDER/history.bin   which rows were asked about
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.node.sandbox import frames, walls
from ...core.node.sandbox.process_limits import WorkerLimits
from ...core.node.sandbox.worker_process import Stopped, WorkerProcess, command, environment
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.protocol.ports import Outcome, RunProgram
from ...core.statistics.site_rules import HISTORY_BYTES_MAX, OwnerRules
from ...core.wire.artifact_pb2 import ArtifactLimits
from ...core.wire.round_pb2 import QUESTION_REFUSED, FailureReason

log = logging.getLogger("delian.device.agent.question_desk")

COMMAND = command("delian.device.agent.answer_worker")
LOG_FILE, HISTORY_FILE = "log.jsonl", "history.bin"
DAY_S = 24 * 3600
#: Bytes of the log; then its older half goes.
LOG_BYTES_MAX = 1 << 24
#: Bytes of a question that go into the log.
QUESTION_CHARS_MAX = 4000


class QuestionDesk:
    """Answers the steps of questions, one at a time.

    rules: the owner's. path_of: the file of a whole blob, by digest. clock: Unix time in seconds.
    """

    def __init__(
        self,
        rules: OwnerRules,
        limits: WorkerLimits,
        folder: Path,
        path_of: Callable[[bytes], Path],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._rules, self._limits, self._folder = rules, limits, folder
        self._path_of, self._clock = path_of, clock
        self._running: WorkerProcess | None = None
        self._request = b""  # that `_running` answers

    async def answer(self, program: RunProgram, limits: ArtifactLimits) -> Outcome:
        """A step's numbers, u32[L]. Raises Stopped, DelianError and OSError."""
        request = program.blobs[0]
        begun = await asyncio.to_thread(self._begun)
        asked = begun.get(request.hex())
        try:
            if not self._rules.tables:
                raise Stopped(
                    QUESTION_REFUSED, "no table is offered to questions", {"refused": "tables"}
                )
            if asked is None and len(begun) >= self._rules.per_day:
                raise Stopped(
                    QUESTION_REFUSED, "as many questions a day as allowed", {"refused": "day"}
                )
            frame, ring = await self._ask(program, limits)
        except Stopped as stop:
            await self.close()  # it may have lost the rows that the next attempt needs
            await asyncio.to_thread(self._note, program, stop)
            raise
        outcome = await asyncio.to_thread(self._kept, program, frame, ring, asked is None)
        log.info("a question's step was answered", extra={"ticket": program.ticket})
        return outcome

    async def close(self) -> None:
        """Ends the process. May be called twice."""
        running, self._running = self._running, None
        if running is not None:
            await running.kill()

    async def _ask(self, program: RunProgram, limits: ArtifactLimits) -> tuple[Any, RingPlan]:
        _, message = program.arguments
        ring = RingPlan.of(message)
        request, step = (self._path_of(digest) for digest in program.blobs[:2])
        running = await self._process(program.blobs[0])
        job = {
            "ticket": program.ticket,
            "request": str(request),
            "step": str(step),
            "ring": message.SerializeToString().hex(),
            "limits": [limits.memory_mib, limits.cpu_s],
            "history": str(self._folder / HISTORY_FILE),
        }
        wall_s = min(self._limits.wall_s, limits.wall_s or self._limits.wall_s)
        most = 4 * ring.length + HISTORY_BYTES_MAX
        return await running.ask(job, answer_bytes_max=most, wall_s=wall_s), ring

    async def _process(self, request: bytes) -> WorkerProcess:
        """A process that has answered no other question."""
        if self._running is not None and self._request != request:
            await self.close()
        if self._running is None:
            walls.check(self._limits.sandbox)
            given = {"limits": self._limits.to_json(), "rules": self._rules.to_json()}
            seen = environment(self._limits.memory_mib)
            self._running = await WorkerProcess.start(COMMAND, seen, given)
            self._request = request
        return self._running

    # ------------------------------------------------ what is kept; all of it blocks

    def _kept(self, program: RunProgram, frame: frames.Frame, ring: RingPlan, new: bool) -> Outcome:
        """The answer, once what is kept of it is durable."""
        try:
            split, rows = int(frame.head["vector"]), int(frame.head["rows"])
            body = bytes(frame.body)
            vector = np.frombuffer(body[:split], "<u4").astype(np.uint32, copy=False)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise frames.FrameError(f"an answer that makes no sense: {error}") from None
        if vector.size != ring.length:
            raise frames.FrameError(f"an answer of {vector.size} elements")
        if body[split:]:
            _append(self._folder / HISTORY_FILE, body[split:], HISTORY_BYTES_MAX)
        if new:
            self._write(program, {"answered": True})
        return Outcome(vector=vector, examples=rows, loss=0.0, finite=True)

    def _note(self, program: RunProgram, stop: Stopped) -> None:
        """Records that a question was not answered."""
        reason = stop.head.get("refused")
        known = reason if isinstance(reason, str) and reason.isidentifier() else ""
        name = known[:20] or FailureReason.Name(stop.reason).lower()
        self._write(program, {"answered": False, "refused": name})

    def _write(self, program: RunProgram, what: Mapping[str, Any]) -> None:
        task = program.task
        said: dict[str, Any] = {
            "at": int(self._clock()),
            "digest": program.blobs[0].hex(),
            "question": self._question(program.blobs[0]),
            "run": None if task is None else task.run & 0xFFFFFFFF,
            "masked": task is not None and task.HasField("secure"),
            **what,
        }
        line = json.dumps(said, separators=(",", ":")).encode() + b"\n"
        _append(self._folder / LOG_FILE, line, LOG_BYTES_MAX, turns=True)

    def _question(self, digest: bytes) -> str:
        try:
            content = self._path_of(digest).read_bytes()[: QUESTION_CHARS_MAX + 32]
            return content.partition(b"\n")[2].decode("utf-8", "replace")[:QUESTION_CHARS_MAX]
        except OSError:
            return ""

    def _begun(self) -> Mapping[str, Any]:
        """The questions answered in the last day, by digest."""
        since = self._clock() - DAY_S
        entries = read_log(self._folder)
        return {e["digest"]: e for e in entries if e["answered"] and e["at"] >= since}


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The log, the oldest first; lines that are damaged are left out."""
    entries = []
    try:
        content = (folder / LOG_FILE).read_bytes()
    except OSError:
        return []
    for line in content.splitlines():
        try:
            entry = json.loads(line)
            entry["at"], entry["digest"], entry["answered"] = (
                int(entry["at"]),
                str(entry["digest"]),
                bool(entry["answered"]),
            )
        except (ValueError, KeyError, TypeError):
            continue
        entries.append(entry)
    return entries


def _append(path: Path, content: bytes, bytes_max: int, turns: bool = False) -> None:
    """Appends, durably. turns: the older half of a full file goes; else it raises DelianError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    size = path.stat().st_size if path.exists() else 0
    if size + len(content) > bytes_max:
        if not turns:
            raise DelianError(f"{path} is full", "raise its limit, or begin another")
        half = path.read_bytes()[size // 2 :].partition(b"\n")[2]
        path.write_bytes(half)
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
