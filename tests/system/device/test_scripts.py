"""A training script of the owner's in the place of a bundle's training: real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from delian.core.learning import metrics
from delian.core.learning.scripts.script_bundle import build
from delian.core.learning.scripts.script_spec import ScriptSpec
from delian.core.node.scripts.script_process import ScriptCommand
from delian.core.privacy.mechanisms import ring
from delian.core.protocol.ports import Outcome, ProgramStopped
from delian.core.wire.round_pb2 import DEADLINE, NO_DATA, PROGRAM_FAILED
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.runner import WorkerRunner
from delian.device.agent.script_desk import ScriptDesk
from support.device_fixtures import Blobs, blobs_of

WEIGHTS = {"layer.weight": np.zeros((2, 3), np.float32), "layer.bias": np.ones(3, np.float32)}

TRAINS = """
    for task in client.tasks():
        print(task.purpose, task.settings)
        weights = {name: value + 0.5 for name, value in task.weights.items()}
        metrics = {"accuracy": 0.75, "f1": 0.5}
        task.send(weights, examples=40, loss=0.25, metrics=metrics)
"""


@pytest.fixture
def site(tmp_path: Path):
    """Makes a runner whose owner has installed a script of this text, and its blobs."""

    def make(body: str, **limits) -> tuple[WorkerRunner, Blobs, Path]:
        spec = ScriptSpec("small", {"lr": 0.1}, ("f1",))
        made = build(WEIGHTS, spec, clients_max=8, examples_max=80)
        folder = tmp_path / "blobs"
        folder.mkdir(exist_ok=True)
        blobs = blobs_of(folder, made)
        file = tmp_path / "train.py"
        file.write_text(f"import delian.client as client\n{textwrap.dedent(body)}")
        command = ScriptCommand((sys.executable, str(file)), tmp_path)
        desk = ScriptDesk({"small": command}, tmp_path / "scripts", blobs.path, number=3)
        settings = WorkerSettings(backend="reference", **limits)
        return WorkerRunner(settings, blobs.path, scripts=desk), blobs, tmp_path / "scripts"

    return make


async def first_line(pipe: Path, work: asyncio.Future) -> str:
    """What is written into a named pipe, unless the work ends before. Raises AssertionError."""
    reading = asyncio.ensure_future(asyncio.to_thread(pipe.read_text))
    await asyncio.wait([reading, work], return_when=asyncio.FIRST_COMPLETED)
    if not reading.done():
        with pipe.open("w"):  # lets the thread go
            pass
        raise AssertionError(f"it ended before: {work.result()}")
    return reading.result()


def answers(runner: WorkerRunner, *programs) -> list[Outcome | ProgramStopped]:
    async def all_of_them() -> list[Outcome | ProgramStopped]:
        try:
            return [await runner.run(program) for program in programs]
        finally:
            await runner.close()

    return asyncio.run(asyncio.wait_for(all_of_them(), 300))


def test_a_scripts_weights_become_an_update_of_the_ring(site):
    runner, blobs, folder = site(TRAINS)
    plan = blobs.made.manifest.ring
    first, second = answers(runner, blobs.program(ticket=1), blobs.program(ticket=2))
    for outcome in (first, second):
        assert isinstance(outcome, Outcome) and outcome.finite and outcome.examples == 40
        mean, weight = ring.decode(outcome.vector, plan)
        np.testing.assert_allclose(mean, 0.5, atol=1e-5)
        assert weight == pytest.approx(40 / 80, abs=1e-6) and outcome.loss == 0.25
    assert (folder / "small.log").read_text().count("train {'lr': 0.1}") == 2


def test_a_script_judges_the_weights_it_receives(site):
    runner, blobs, _ = site(TRAINS)
    program = blobs.program("evaluate")
    plan = metrics.metrics_plan(8, own=1)
    program.arguments[1].CopyFrom(
        type(program.arguments[1])(clip=plan.clip, clients_max=8, bits=32, dimension=plan.dimension)
    )
    (outcome,) = answers(runner, program)
    assert isinstance(outcome, Outcome)
    found = metrics.decode(outcome.vector, plan, ("f1",))
    assert found["global_accuracy"] == pytest.approx(0.75, abs=1e-3)
    assert found["global_loss"] == pytest.approx(0.25, abs=1e-3)  # the zero-one loss
    assert found["global_f1"] == pytest.approx(0.5, abs=1e-3)


BAD = {
    "a script that dies": (
        "for task in client.tasks():\n    raise SystemExit('no rows')",
        "ended with 1",
    ),
    "another shape": (
        "for task in client.tasks():\n"
        "    task.send({**task.weights, 'layer.bias': [1.0]}, examples=1)",
        "`layer.bias` are [1], and the run's model has [3]",
    ),
    "no weights": (
        "for task in client.tasks():\n    task.send(examples=1)",
        "no weights are sent",
    ),
    "no answer": ("for task in client.tasks():\n    pass", "went on without task.send()"),
    "no tasks taken": ("print('nothing to do')", "ended with 0"),
    "a percentage": (
        "for task in client.tasks():\n"
        "    task.send(task.weights, examples=1, metrics={'accuracy': 93})",
        "divide percents by 100",
    ),
    "too much": (
        "from delian.client.tasks import _connected\n"
        "host = _connected()\n"
        "host.next()\n"
        "host.send({'task': 1, 'examples': 1}, bytes(1 << 20))",
        "a frame of 23 and 1048576 bytes",
    ),
    "an answer of another round": (
        "from delian.client.tasks import _connected\n"
        "host = _connected()\n"
        "host.next()\n"
        "host.send({'task': 7, 'examples': 1}, bytes(36))",
        "it is of task 7",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_script_fails_the_task_and_its_log_says_why(site, name, caplog):
    body, why = BAD[name]
    runner, blobs, _ = site(body)
    (outcome,) = answers(runner, blobs.program())
    assert outcome == ProgramStopped(PROGRAM_FAILED)
    assert why in caplog.text


def test_a_script_that_hangs_is_killed_at_the_end_of_its_time(site, caplog):
    runner, blobs, _ = site(
        "import threading\nfor task in client.tasks():\n    threading.Event().wait()", wall_s=3
    )
    (outcome,) = answers(runner, blobs.program())
    assert outcome == ProgramStopped(DEADLINE)
    assert "did not answer within" in caplog.text


def test_weights_that_are_not_finite_are_refused(site):
    runner, blobs, _ = site(
        "for task in client.tasks():\n"
        "    task.send({n: v * float('nan') for n, v in task.weights.items()}, examples=4)"
    )
    (outcome,) = answers(runner, blobs.program())
    assert isinstance(outcome, Outcome) and not outcome.finite


def test_a_failed_round_does_not_cost_the_next_one(site):
    runner, blobs, _ = site(
        """
        for n, task in enumerate(client.tasks()):
            if n == 0:
                task.fail("no rows today")
            else:
                task.send(task.weights, examples=4)
        """
    )
    first, second = answers(runner, blobs.program(ticket=1), blobs.program(ticket=2))
    assert first == ProgramStopped(PROGRAM_FAILED)
    assert isinstance(second, Outcome) and second.examples == 4


def test_a_device_without_the_script_has_no_data_for_the_run(site, caplog):
    runner, blobs, _ = site(TRAINS)
    runner._scripts = ScriptDesk({}, Path("unused"), blobs.path)
    (outcome,) = answers(runner, blobs.program())
    assert outcome == ProgramStopped(NO_DATA)
    assert "--script small=COMMAND" in caplog.text


def test_a_cancelled_task_ends_its_script(site):
    runner, blobs, folder = site(
        "import os, threading\n"
        "for task in client.tasks():\n"
        "    with open(task.folder / 'pid', 'w') as pipe:\n"
        "        print(os.getpid(), file=pipe)\n"
        "    threading.Event().wait()"
    )
    (folder / "small").mkdir(parents=True)
    os.mkfifo(folder / "small" / "pid")

    async def cancelled() -> int:
        work = asyncio.ensure_future(runner.run(blobs.program()))
        said = await first_line(folder / "small" / "pid", work)
        await runner.cancel(1)
        assert await work == ProgramStopped(PROGRAM_FAILED)
        await runner.close()
        return int(said)

    pid = asyncio.run(asyncio.wait_for(cancelled(), 300))
    assert not Path(f"/proc/{pid}").exists()


def test_a_script_started_by_hand_says_how_it_is_run(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", "import delian.client as c\nfor task in c.tasks(): pass"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1 and "delian device run --script" in ended.stderr
