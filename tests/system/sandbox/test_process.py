"""The agent's side of a worker: what a worker that was taken over may answer."""

from __future__ import annotations

import asyncio
import sys

import pytest
from delian.core.node.sandbox.worker_process import Jobs, Stopped, WorkerProcess
from delian.core.wire.round_pb2 import OUT_OF_MEMORY, PROGRAM_FAILED

#: Reads the first frame and a job, and answers by what is put in its place.
WORKER = """
import json, struct, sys
def read():
    head, body = struct.unpack("<IQ", sys.stdin.buffer.read(12))
    return json.loads(sys.stdin.buffer.read(head)), sys.stdin.buffer.read(body)
def write(head, body=b"", said=None):
    text = json.dumps(head).encode()
    sys.stdout.buffer.write(struct.pack("<IQ", len(text), said or len(body)) + text + body)
    sys.stdout.flush()
read()
job, body = read()
"""


def asked(answer: str, **given):
    """What comes of a job, and whether the process is gone."""

    async def scene():
        command = (sys.executable, "-c", WORKER + answer)
        process = await WorkerProcess.start(command, {}, {})
        try:
            return await process.ask({"ticket": 7}, b"abc", wall_s=60, **given), process.ended
        except Stopped as stop:
            return stop, process.ended
        finally:
            await process.kill()

    return asyncio.run(asyncio.wait_for(scene(), 100))


def test_a_job_and_its_answer():
    frame, ended = asked('write({"ticket": 7, "done": True}, body[::-1])', answer_bytes_max=3)
    assert bytes(frame.body) == b"cba" and not ended


@pytest.mark.parametrize(
    "answer",
    [
        'write({"ticket": 8, "done": True})',
        'write({"ticket": 7, "done": True}, b"abcd")',
        'write({"ticket": 7, "done": True}, said=1 << 60)',
        'sys.stdout.buffer.write(b"\\xff" * 12); sys.stdout.flush()',
        "write([1, 2])",
        "sys.exit(3)",
    ],
)
def test_an_answer_that_makes_no_sense_ends_the_process(answer):
    stop, ended = asked(answer, answer_bytes_max=3)
    assert isinstance(stop, Stopped) and stop.reason == PROGRAM_FAILED and ended


def test_why_is_short_and_has_no_control_characters():
    answer = (
        f'write({{"ticket": 7, "done": False, "reason": {OUT_OF_MEMORY}, "why": "\\x1b" * 9999}})'
    )
    stop, ended = asked(answer)
    assert stop.reason == OUT_OF_MEMORY and not ended
    assert "\x1b" not in stop.why and len(stop.why) < 5000


def test_a_reason_that_there_is_not_is_a_failure():
    stop, _ = asked('write({"ticket": 7, "done": False, "reason": ["x"]})')
    assert stop.reason == PROGRAM_FAILED


def test_a_job_that_is_cancelled_by_its_ticket_gives_nothing():
    async def scene():
        jobs, begun = Jobs(), asyncio.Event()

        async def work():
            begun.set()
            await asyncio.Event().wait()

        job = asyncio.ensure_future(jobs.run(1, work()))
        await begun.wait()
        await jobs.cancel(2)
        assert not job.done()
        await jobs.cancel(1)
        return await job

    assert asyncio.run(asyncio.wait_for(scene(), 100)) is None
