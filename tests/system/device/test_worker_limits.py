"""Training in a process of its own: what it gives, and how its limits bite."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning import FedAvg
from delian.core.learning.data.sources import DataSettings
from delian.core.learning.nn import sgd
from delian.core.learning.runtime import Runtime
from delian.core.node.sandbox import landlock
from delian.core.privacy.mechanisms import ring
from delian.core.protocol.ports import Outcome, ProgramStopped
from delian.core.wire.round_pb2 import (
    BAD_BUNDLE,
    DEADLINE,
    NO_DATA,
    OUT_OF_MEMORY,
    PROGRAM_FAILED,
)
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.personal_model import PersonalStore
from delian.device.agent.runner import WorkerRunner


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 300))


def settings(source: object, **given) -> WorkerSettings:
    return WorkerSettings(data=DataSettings(str(source)), backend="reference", **given)


async def once(runner: WorkerRunner, program):
    try:
        return await runner.run(program)
    finally:
        await runner.close()


def owners_code(tmp_path: Path, monkeypatch, body: str) -> str:
    """A data source of the owner's whose code misbehaves as no verified program can be made to."""
    (tmp_path / "owners_code.py").write_text(
        "import ctypes, os, resource, signal, subprocess, sys, time\n"
        "import numpy as np\n"
        "def read():\n" + textwrap.indent(textwrap.dedent(body), "    ")
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "python:owners_code:read"


def test_an_update_from_the_process_is_the_one_that_is_made_here(blobs, npz_file):
    outcome = run(once(WorkerRunner(settings(npz_file), blobs.path), blobs.program()))
    assert isinstance(outcome, Outcome) and outcome.finite and outcome.examples == 15
    assert outcome.vector.dtype == np.uint32
    plan = ring.RingPlan(5.0, 8, blobs.made.manifest.dimension)
    mean, weight = ring.decode(outcome.vector, plan)
    assert 0 < np.linalg.norm(mean) <= 5.0 and weight == pytest.approx(15 / 24, abs=1e-6)


def test_a_bundle_that_compares_the_devices_key_is_not_run(blobs, npz_file, peeking, caplog):
    bundle = blobs.keep(peeking(blobs.made).bare().to_bytes())
    looking = dataclasses.replace(blobs, bundle=bundle)
    outcome = run(once(WorkerRunner(settings(npz_file), looking.path), looking.program()))
    assert outcome == ProgramStopped(BAD_BUNDLE)
    assert "client_update compares a random key by `eq`" in caplog.text


def test_the_process_keeps_what_it_compiled_and_sees_new_data(blobs, npz_file, tmp_path):
    async def twice():
        memory = tmp_path / "trained.json"
        runner = WorkerRunner(settings(npz_file), blobs.path, memory=memory)
        first = await runner.run(blobs.program(ticket=1))
        pid, seen = runner.pid, runner.trained_version
        x = np.random.default_rng(3).normal(size=(9, 4)).astype(np.float32)
        np.savez(npz_file, x=x, y=np.arange(9, dtype=np.int32) % 3)
        second = await runner.run(blobs.program(ticket=2))
        assert runner.pid == pid and runner.starts == 1
        assert first.examples != second.examples
        assert seen is not None and runner.trained_version not in (None, seen)
        await runner.close()
        assert WorkerRunner(settings(npz_file), blobs.path, memory=memory).trained_version == (
            runner.trained_version
        )

    run(twice())


def test_a_data_file_that_was_replaced_is_read_by_another_process(blobs, npz_file):
    """The one that trained may read no file but the one that was there."""

    async def twice():
        runner = WorkerRunner(settings(npz_file), blobs.path)
        first = await runner.run(blobs.program(ticket=1))
        x = np.random.default_rng(3).normal(size=(9, 4)).astype(np.float32)
        other = npz_file.with_name("other.npz")
        np.savez(other, x=x, y=np.arange(9, dtype=np.int32) % 3)
        other.replace(npz_file)
        second = await runner.run(blobs.program(ticket=2))
        starts = runner.starts
        await runner.close()
        return first, second, starts

    first, second, starts = run(twice())
    assert isinstance(second, Outcome) and second.examples != first.examples
    assert starts == (2 if landlock.abi() else 1)


def test_each_bundle_has_a_process_of_its_own(blobs, make_small_bundle, npz_file):
    made = make_small_bundle(FedAvg(local=sgd(0.2), server=sgd(1.0), personal_steps=1, epochs=1))
    other = dataclasses.replace(blobs, bundle=blobs.keep(made.bare().to_bytes()), made=made)

    async def scene():
        runner, pids = WorkerRunner(settings(npz_file), blobs.path), []
        for ticket, each in enumerate((blobs, blobs, other), 1):
            assert isinstance(await runner.run(each.program(ticket=ticket)), Outcome)
            pids.append(runner.pid)
        await runner.close()
        return pids

    first, again, another = run(scene())
    assert first == again != another


def test_the_owners_code_runs_where_no_program_has_run(blobs, tmp_path, monkeypatch):
    """It may do what no program may: so each job gets another process."""
    source = owners_code(
        tmp_path,
        monkeypatch,
        f"""
        import socket
        socket.socket().close()
        with open({str(tmp_path / "pids")!r}, "a") as file:
            file.write(f"{{os.getpid()}} ")
        return np.eye(8, 4, dtype=np.float32), np.arange(8) % 3
        """,
    )

    async def twice():
        runner = WorkerRunner(settings(source), blobs.path)
        for ticket in (1, 2):
            assert isinstance(await runner.run(blobs.program(ticket=ticket)), Outcome)
        await runner.close()

    run(twice())
    assert len(set((tmp_path / "pids").read_text().split())) == 2


def test_what_the_owners_code_prints_does_not_mix_with_the_answers(blobs, tmp_path, monkeypatch):
    source = owners_code(
        tmp_path,
        monkeypatch,
        """
        print("noise", flush=True)
        os.write(1, b"more noise")
        return np.eye(8, 4, dtype=np.float32), np.arange(8) % 3
        """,
    )
    outcome = run(once(WorkerRunner(settings(source), blobs.path), blobs.program()))
    assert isinstance(outcome, Outcome)


def test_a_program_that_eats_memory_is_out_of_memory(blobs, tmp_path, monkeypatch):
    eaten = tmp_path / "eaten"
    source = owners_code(
        tmp_path,
        monkeypatch,
        f"""
        kept = []
        with open({str(eaten)!r}, "ab", buffering=0) as file:
            while True:
                kept.append(np.ones(1 << 20))
                file.write(b".")
        """,
    )
    given = settings(source, memory_mib=64, compile_memory_mib=64)
    outcome = run(once(WorkerRunner(given, blobs.path), blobs.program()))
    assert outcome == ProgramStopped(OUT_OF_MEMORY)
    assert 8 * eaten.stat().st_size < 1024, "MiB; the machine's own memory was not the limit"


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_verified_program_that_wants_too_much_memory_is_out_of_memory(hungry, npz_file, backend):
    async def scene():
        given = settings(npz_file, memory_mib=64)
        runner = WorkerRunner(dataclasses.replace(given, backend=backend), hungry.path)
        first = await runner.run(hungry.program(ticket=1))
        pid = runner.pid
        await runner.close()
        return first, pid

    first, pid = run(scene())
    assert first == ProgramStopped(OUT_OF_MEMORY)
    assert pid is not None, "the process itself survives"


@pytest.mark.parametrize("limit", [{"cpu_s": 1, "nice": 0}, {"wall_s": 2}])
def test_a_verified_program_that_never_ends_is_stopped(endless, npz_file, limit):
    given = dataclasses.replace(settings(npz_file, **limit), backend="native")
    runner = WorkerRunner(given, endless.path)
    assert run(once(runner, endless.program())) == ProgramStopped(DEADLINE)


def test_a_program_that_never_ends_is_stopped_by_the_clock(blobs, tmp_path, monkeypatch):
    source = owners_code(tmp_path, monkeypatch, "time.sleep(1000)\n")

    async def both():
        runner = WorkerRunner(settings(source, wall_s=1), blobs.path)
        outcome = await runner.run(blobs.program())
        pid = runner.pid
        await runner.close()
        return outcome, pid

    assert run(both()) == (ProgramStopped(DEADLINE), None)


def test_the_owners_code_that_burns_processor_time_is_stopped_by_it(blobs, tmp_path, monkeypatch):
    source = owners_code(tmp_path, monkeypatch, "while True:\n    pass\n")
    given = settings(source, cpu_s=1, nice=0)  # the clock's limit is an hour
    assert run(once(WorkerRunner(given, blobs.path), blobs.program())) == ProgramStopped(DEADLINE)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os.abort()", PROGRAM_FAILED),
        ("ctypes.string_at(0)", PROGRAM_FAILED),
        ("os._exit(3)", PROGRAM_FAILED),
        ("os.kill(os.getpid(), signal.SIGKILL)", OUT_OF_MEMORY),
    ],
)
def test_a_crash_takes_the_process_and_the_next_job_gets_another(
    blobs, npz_file, tmp_path, monkeypatch, body, reason
):
    flag = tmp_path / "crashed"
    source = owners_code(
        tmp_path,
        monkeypatch,
        f"""
        if not os.path.exists({str(flag)!r}):
            open({str(flag)!r}, "w").close()
            {body}
        return np.eye(8, 4, dtype=np.float32), np.arange(8) % 3
        """,
    )

    async def twice():
        runner = WorkerRunner(settings(source), blobs.path)
        first = await runner.run(blobs.program(ticket=1))
        second = await runner.run(blobs.program(ticket=2))
        await runner.close()
        return first, second

    first, second = run(twice())
    assert first == ProgramStopped(reason)
    assert isinstance(second, Outcome)


def test_what_is_wrong_with_bundle_weights_or_data_is_told_apart(blobs, npz_file, tmp_path):
    broken = blobs.keep(b"no bundle")
    short = blobs.keep(b"1234")
    wide = tmp_path / "wide.npz"
    np.savez(wide, x=np.zeros((5, 7), np.float32), y=np.zeros(5, np.int32))

    async def each():
        program = blobs.program()
        runner = WorkerRunner(settings(npz_file), blobs.path)
        said = []
        for names in ((broken, blobs.weights), (blobs.bundle, short)):
            changed = type(program)(1, "client_update", names, program.arguments)
            said.append(await runner.run(changed))
        program.arguments[1].clip = 4.0
        said.append(await runner.run(program))
        said.append(await runner.run(blobs.program("server_update")))
        await runner.close()
        for source in (wide, tmp_path / "none.npz", ""):
            said.append(await once(WorkerRunner(settings(source), blobs.path), blobs.program()))
        return [s.reason for s in said]

    assert run(each()) == [
        BAD_BUNDLE,
        BAD_BUNDLE,
        BAD_BUNDLE,
        PROGRAM_FAILED,
        BAD_BUNDLE,
        NO_DATA,
        NO_DATA,
    ]


def test_a_cancelled_job_is_killed_and_the_next_one_runs(blobs, tmp_path, monkeypatch):
    flag = tmp_path / "waiting"
    source = owners_code(
        tmp_path,
        monkeypatch,
        f"""
        if not os.path.exists({str(flag)!r}):
            open({str(flag)!r}, "w").close()
            time.sleep(1000)
        return np.eye(8, 4, dtype=np.float32), np.arange(8) % 3
        """,
    )

    async def scene():
        runner = WorkerRunner(settings(source), blobs.path)
        job = asyncio.create_task(runner.run(blobs.program(ticket=1)))
        await until(flag.exists)
        pid = runner.pid
        await runner.cancel(1)
        assert await job == ProgramStopped(PROGRAM_FAILED)
        assert not alive(pid)
        await runner.cancel(77)
        assert isinstance(await runner.run(blobs.program(ticket=2)), Outcome)
        await runner.close()
        await runner.close()

    run(scene())


def test_without_consent_nothing_runs_and_what_runs_is_stopped(blobs, tmp_path, monkeypatch):
    flag = tmp_path / "waiting"
    source = owners_code(
        tmp_path, monkeypatch, f"open({str(flag)!r}, 'w').close()\ntime.sleep(1000)\n"
    )

    async def scene():
        runner = WorkerRunner(settings(source), blobs.path)
        job = asyncio.create_task(runner.run(blobs.program()))
        await until(flag.exists)
        runner.allow(False)
        assert await job == ProgramStopped(PROGRAM_FAILED)
        assert runner.pid is None
        assert await runner.run(blobs.program(ticket=2)) == ProgramStopped(NO_DATA)
        assert runner.starts == 1
        await runner.close()

    run(scene())


def test_the_process_lives_within_its_limits(blobs, npz_file, tmp_path, monkeypatch):
    seen = tmp_path / "seen.json"
    source = owners_code(
        tmp_path,
        monkeypatch,
        f"""
        import json
        names = ("RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_NPROC")
        facts = {{n: resource.getrlimit(getattr(resource, n))[0] for n in names}}
        facts["nice"] = os.nice(0)
        facts["secret"] = os.environ.get("DELIAN_TOKEN")
        with open({str(seen)!r}, "w") as file:
            json.dump(facts, file)
        return np.eye(8, 4, dtype=np.float32), np.arange(8) % 3
        """,
    )
    monkeypatch.setenv("DELIAN_TOKEN", "secret")

    async def scene():
        runner = WorkerRunner(settings(source, files=50, nice=7), blobs.path)
        assert isinstance(await runner.run(blobs.program()), Outcome)
        await runner.close()
        runner = WorkerRunner(settings(npz_file), blobs.path)
        assert isinstance(await runner.run(blobs.program()), Outcome)
        running = Path(f"/proc/{runner.pid}/limits").read_text()
        await runner.close()
        return running

    running = run(scene())
    facts = json.loads(seen.read_text())
    assert facts["RLIMIT_CORE"] == 0 and facts["RLIMIT_NOFILE"] == 50
    assert facts["nice"] == os.nice(0) + 7
    assert facts["secret"] is None
    processes = next(x for x in running.splitlines() if x.startswith("Max processes"))
    assert processes.split()[2] == "0", "nothing may be started while a program runs"


AGENT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from delian.core.learning.data.sources import DataSettings
from delian.core.protocol.ports import RunProgram
from delian.core.wire.round_pb2 import RingPlan
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.runner import WorkerRunner

async def main():
    given = WorkerSettings(data=DataSettings({source!r}), backend="reference")
    runner = WorkerRunner(given, lambda digest: Path({folder!r}) / digest.hex())
    ring = RingPlan(clip=5.0, clients_max=8, bits=32, dimension={dimension})
    blobs = (bytes.fromhex({bundle!r}), bytes.fromhex({weights!r}))
    job = asyncio.create_task(runner.run(RunProgram(1, "client_update", blobs, ((1, 2), ring))))
    while not Path({flag!r}).exists():
        await asyncio.sleep(0.02)
    print(runner.pid, flush=True)
    await job

asyncio.run(main())
"""


def test_an_agent_that_is_killed_leaves_no_training_behind(blobs, tmp_path, monkeypatch):
    flag = tmp_path / "waiting"
    source = owners_code(
        tmp_path,
        monkeypatch,
        f"open({str(flag)!r}, 'w').close()\nx = ctypes.CDLL(None)\nwhile True: x.sleep(1000)\n",
    )
    code = AGENT.format(
        tests="",
        source=source,
        folder=str(blobs.folder),
        dimension=blobs.made.manifest.dimension,
        bundle=blobs.bundle.hex(),
        weights=blobs.weights.hex(),
        flag=str(flag),
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as agent:
        pid = int(agent.stdout.readline())
        assert alive(pid)
        agent.kill()
        agent.wait(60)
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


# ---------------------------------------------------------------- evaluation


def test_evaluation_gives_metrics_and_keeps_the_personal_model(blobs, npz_file, tmp_path):
    store = PersonalStore(tmp_path / "personal")

    async def scene():
        runner = WorkerRunner(settings(npz_file), blobs.path, store)
        first = await runner.run(blobs.program("evaluate", 1))
        second = await runner.run(blobs.program("evaluate", 2))
        await runner.close()
        return first, second, runner

    first, second, runner = run(scene())
    assert first.vector.shape == (5,) and first.finite
    np.testing.assert_array_equal(first.vector, second.vector)
    slot = store.current()
    assert slot.judgement.count == first.examples or slot.judgement.count == 5
    assert slot.judgement.loss_present == slot.judgement.loss_after, "the first was judged again"
    assert runner.trained_version is None, "judging is not training"
    size = sum(leaf.size for leaf in blobs.made.manifest.state)
    assert slot.model.stat().st_size == 4 * size
    assert Runtime(blobs.made, "reference").manifest == blobs.made.manifest


def test_limits_that_make_no_sense_are_refused():
    for wrong in ({"memory_mib": 0}, {"cpu_s": 0}, {"files": 3}, {"nice": -1}):
        with pytest.raises(DelianError):
            WorkerSettings(**wrong)
    given = WorkerSettings(data=DataSettings("a.csv", columns=("b",)), cpu_s=5)
    assert WorkerSettings.from_json(json.loads(json.dumps(given.to_json()))) == given


async def until(true) -> None:
    while not true():
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet fetched does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
