"""The answering process: `python -m delian.device.agent.answer_worker`, started by the agent.

It answers the steps of one question from the owner's tables. What the question reads is loaded
first; then the process gives up everything else (`core.node.sandbox.walls`), and only then is
anything run that came from outside: conditions and expressions in SQL, and steps.

    first frame   {"parent": pid, "settings": {"limits": WorkerLimits, "rules": OwnerRules}}
    job           {"ticket", "step": path, "ring": bytes in hexadecimal, "limits": [MiB, seconds],
                   "request": path, "history": path or null}
    answer        {"ticket", "done": true, "rows": rows asked about, "vector": bytes} + vector
                  + what the history gets
                  {"ticket", "done": false, "reason": FailureReason, "why": text, "refused"?: word}
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.common.collector import unsearched

with unsearched():
    import numpy as np

    from ...core.common.errors import DelianError
    from ...core.node.sandbox import frames
    from ...core.node.sandbox.process_limits import Limits, WorkerLimits
    from ...core.node.sandbox.walls import confine_run
    from ...core.node.sandbox.worker_serving import Content, JobStopped, Work, serve
    from ...core.privacy.mechanisms.noise import KEY_BYTES
    from ...core.privacy.mechanisms.ring import RingPlan
    from ...core.statistics.few_rows import TooFewRows
    from ...core.statistics.measuring import vector_of
    from ...core.statistics.question import Kept
    from ...core.statistics.request import Request, check_step
    from ...core.statistics.site_rules import HISTORY_BYTES_MAX, OwnerRules
    from ...core.statistics.sql.rows_data import Reader, Refused, SiteRows
    from ...core.wire.round_pb2 import (
        BAD_BUNDLE,
        NO_DATA,
        OUT_OF_MEMORY,
        PROGRAM_FAILED,
        QUESTION_REFUSED,
    )
    from ...core.wire.round_pb2 import (
        RingPlan as RingMessage,
    )

#: Of the memory that a job may take, this share is for tables.
_TABLES_SHARE = 2


class Worker:
    """Answers the steps of one question."""

    def __init__(self, limits: Limits, given: WorkerLimits, rules: OwnerRules) -> None:
        self._limits, self._given, self._rules = limits, given, rules
        self._request = b""
        self._rows: SiteRows | None = None
        self._more = b""
        self._kept: Kept = {}

    def __call__(self, job: frames.Frame) -> tuple[Mapping[str, Any], Content]:
        """A step and its answer. Raises JobStopped."""
        self._limits.of_job(*job.head["limits"])
        try:
            return self._answer(job.head)
        except Refused as fault:
            raise JobStopped(QUESTION_REFUSED, fault.message, refused=fault.reason) from fault
        except TooFewRows as fault:
            raise JobStopped(QUESTION_REFUSED, fault.message, refused="few") from fault
        except MemoryError as error:
            raise JobStopped(OUT_OF_MEMORY, f"memory is over: {error}") from error
        except (DelianError, OSError) as error:
            raise JobStopped(BAD_BUNDLE, str(error)) from error

    def _answer(self, head: Mapping[str, Any]) -> tuple[Mapping[str, Any], Content]:
        ring = RingPlan.of(RingMessage.FromString(bytes.fromhex(head["ring"])))
        content, step_content = Path(head["request"]).read_bytes(), Path(head["step"]).read_bytes()
        request, step, plan = check_step(content, step_content, ring)
        if self._rows is None:
            self._open(request, head.get("history"), Path(head["step"]).parent)
            self._request = content
        if content != self._request or self._rows is None:
            raise JobStopped(PROGRAM_FAILED, "another question was answered here")
        if not self._rows.table.rows:
            raise JobStopped(NO_DATA, "no row is asked about")
        key = os.urandom(KEY_BYTES) if request.noise else b""
        vector = vector_of(request, step, plan, self._rows.table, self._kept, key)
        body = np.ascontiguousarray(vector, "<u4").tobytes()
        more, self._more = self._more, b""
        return {"rows": self._rows.table.rows, "vector": len(body)}, body + more

    def _open(self, request: Request, history: str | None, steps: Path) -> None:
        """Reads the rows of the question. Raises Refused, JobStopped, DelianError."""
        found = self._rules.check(request)
        reader = Reader(found, self._rules.tables)
        reader.load((self._given.memory_mib << 20) // _TABLES_SHARE)
        before = _read(history)
        self._confine(steps)
        rows = reader.rows(request.question.columns())
        self._more = self._rules.check_rows(request, found, rows, before)
        rows.table.floor = self._rules.floor_of(request)
        self._rows = rows

    def _confine(self, steps: Path) -> None:
        """From here on what came from outside runs in this process. Raises JobStopped."""
        self._limits.running()
        try:
            confine_run([str(steps)], self._given.sandbox)
        except (DelianError, OSError) as error:
            raise JobStopped(PROGRAM_FAILED, f"no sandbox: {error}") from error


def _read(path: str | None) -> bytes:
    if path is None or not Path(path).exists():
        return b""
    with Path(path).open("rb") as file:
        return file.read(HISTORY_BYTES_MAX + 1)


def _begin(settings: dict[str, Any]) -> Work:
    given = WorkerLimits(**settings["limits"])
    return Worker(Limits(given), given, OwnerRules.from_json(settings["rules"]))


def main() -> int:
    """Serves steps until the input ends."""
    return serve(_begin)


if __name__ == "__main__":
    sys.exit(main())
