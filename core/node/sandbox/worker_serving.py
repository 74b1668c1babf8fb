"""A worker's side of its pipes: `main` of each worker is `serve`.

    first frame   {"parent": pid, "settings": {...}}
    job           {"ticket", ...} + body
    note          {"ticket", "note": true, ...} + body; any number of them, before the answer
    answer        {"ticket", "done": true, ...} + body
                  {"ticket", "done": false, "reason": FailureReason, "why": text, ...}

No thread of the worker's own: landlock holds the thread that asks for it, and what that starts. On
Linux a worker dies with its agent; elsewhere a thread waits for the end of its input.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from ...common.errors import DelianError, MemoryLimitError
from ...wire.round_pb2 import BAD_BUNDLE, OUT_OF_MEMORY
from . import frames
from .process_limits import die_with

#: Characters of an explanation that goes to the agent's log.
WHY_CHARS_MAX = 500

Content = bytes | memoryview
#: Does a job: gives the fields of its answer, and the body. Raises JobStopped.
Work = Callable[[frames.Frame], tuple[Mapping[str, Any], Content]]
#: Sends a note of the job under way: its fields, and a body.
Note = Callable[[Mapping[str, Any], Content], None]


def refused(error: DelianError) -> JobStopped:
    """A bundle that cannot be used: it is bad, or needs more memory than there is for it."""
    too_large = isinstance(error, MemoryLimitError)
    return JobStopped(OUT_OF_MEMORY if too_large else BAD_BUNDLE, str(error))


class JobStopped(Exception):
    """A job gives nothing. reason: a FailureReason. more: fields of the answer."""

    def __init__(self, reason: int, why: str, **more: Any) -> None:
        super().__init__(why)
        self.reason, self.why, self.more = reason, why, more


def serve(begin: Callable[[dict[str, Any]], Work], job_bytes_max: int = 0) -> int:
    """Answers jobs until the input ends. begin: makes the worker of its settings."""
    return serve_noting(lambda settings, _: begin(settings), job_bytes_max)


def serve_noting(begin: Callable[[dict[str, Any], Note], Work], job_bytes_max: int = 0) -> int:
    """As `serve`, of a worker that also sends notes of the job under way."""
    jobs, answers = _private_streams()
    hello = frames.read(jobs, 0)
    if hello is None:
        return 0
    die_with(int(hello.head["parent"]))
    following = _following(jobs, job_bytes_max)
    ticket: Any = None

    def note(head: Mapping[str, Any], body: Content) -> None:
        frames.write(answers, {"ticket": ticket, "note": True, **head}, body)

    work = begin(dict(hello.head["settings"]), note)
    while True:
        job = following()
        if job is None:
            return 0
        ticket = job.head["ticket"]
        head, body = _answer(work, job)
        frames.write(answers, {"ticket": ticket, **head}, body)


def say(text: str) -> None:
    """To the agent's stderr; `logging` alone would take half a megabyte."""
    print(f"delian worker {os.getpid()}: {text}", file=sys.stderr, flush=True)


def _answer(work: Work, job: frames.Frame) -> tuple[dict[str, Any], Content]:
    try:
        head, body = work(job)
    except JobStopped as stop:
        why = stop.why[:WHY_CHARS_MAX]
        return {"done": False, "reason": int(stop.reason), "why": why, **stop.more}, b""
    return {"done": True, **head}, body


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the agent, out of reach of what prints: 0 becomes empty, 1 becomes stderr."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return jobs, answers


def _following(jobs: BinaryIO, job_bytes_max: int) -> Callable[[], frames.Frame | None]:
    """Gives the next job; None: there are no more."""

    def read() -> frames.Frame | None:
        try:
            return frames.read(jobs, job_bytes_max)
        except (OSError, DelianError):
            return None

    if sys.platform == "linux":
        return read
    waiting: queue.SimpleQueue[frames.Frame] = queue.SimpleQueue()

    def keep_reading() -> None:
        while (job := read()) is not None:
            waiting.put(job)
        os._exit(0)  # the agent has ended

    threading.Thread(target=keep_reading, daemon=True).start()
    return waiting.get
