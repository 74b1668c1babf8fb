"""Real daemons on loopback: the same models as in virtual time, whatever is killed on the way."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest
from delian.core.net.broker import mosquitto_path
from delian.simulations.processes import Shape, fitted, simulate_processes
from delian.simulations.scenario_file import load, override
from delian.simulations.simulate import simulate

pytestmark = pytest.mark.slow

ROUNDS = 3
SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def scenario(rounds=ROUNDS):
    return override(load("digits"), [f"rounds={rounds}", f"evaluation.every={rounds}"])


@pytest.fixture(scope="module")
def virtual():
    """What the virtual mode makes of the same scenario and seed."""
    return simulate(fitted(scenario(), Shape())).bundle.weights


@pytest.fixture
def nobody_left():
    yield
    mine = psutil.Process().children(recursive=True)
    assert not [p.cmdline() for p in mine if "delian" in " ".join(p.cmdline())]


@pytest.fixture
def database(tmp_path):
    """The URL of a PostgreSQL server of our own."""
    if not SERVERS:
        pytest.skip("PostgreSQL is not installed")
    server = SERVERS[-1]
    folder = tmp_path / "pg"
    user = ["su", "-s", "/bin/sh", "nobody", "-c"] if os.getuid() == 0 else ["sh", "-c"]
    folder.mkdir()
    if os.getuid() == 0:
        shutil.chown(folder, "nobody")
        for parent in tmp_path.parents:
            if parent.name.startswith("pytest-"):
                parent.chmod(0o755)
        tmp_path.chmod(0o755)
    data, options = folder / "data", f"-c listen_addresses='' -k {folder}"

    def run(command):
        subprocess.run([*user, command], check=True, capture_output=True, timeout=60)

    run(f"{server}/initdb -D {data} -A trust -U delian")
    run(f"{server}/pg_ctl -D {data} -w -o \"{options}\" -l {folder}/log start")
    yield f"postgresql+asyncpg://delian@/postgres?host={folder}"
    run(f"{server}/pg_ctl -D {data} -m immediate stop")


def check(result, virtual):
    assert result.stopped_by is None
    assert [r.reported for r in result.rounds] == [6] * ROUNDS
    np.testing.assert_array_equal(result.bundle.weights, virtual)
    # The last acknowledgement may still be on its way when everybody is sent home.
    assert all(ROUNDS - 1 <= d.rounds <= ROUNDS for d in result.devices)


def test_grpc_and_sqlite(virtual, nobody_left):
    check(simulate_processes(scenario(), Shape(by_mqtt=0)), virtual)


def test_half_the_devices_over_a_broker_with_mutual_tls(virtual, nobody_left):
    if mosquitto_path() is None:
        pytest.skip("mosquitto is not installed")
    check(simulate_processes(scenario(), Shape(by_mqtt=3)), virtual)


def test_postgresql_as_the_store(virtual, nobody_left, database):
    check(simulate_processes(scenario(), Shape(by_mqtt=0, store=database)), virtual)


def test_thirty_rounds_while_daemons_are_killed(nobody_left, tmp_path):
    """kill -9 of coordinator, edges and devices at random moments: the run ends, each model is the
    sum of updates that are each in it once (the weights say so), and nothing acknowledged is lost:
    a device that was told COUNTED is counted.
    """
    draw, killed = random.Random(7), []

    def meddle(children, record):
        for _ in range(draw.choice((0, 1, 1, 2))):
            name = draw.choice(["cloud", "edge-1", "edge-2", *(f"device-{d}" for d in range(6))])
            children.all[name].kill()
            children.all[name].start()
            killed.append(name)

    rounds = 30
    result = simulate_processes(
        scenario(rounds), Shape(by_mqtt=0, folder=tmp_path / "fleet"), meddle=meddle
    )
    assert result.stopped_by is None
    applied = [r for r in result.rounds if r.applied]
    assert [r.round for r in applied] == list(range(1, rounds + 1))
    assert {"cloud", "edge-1", "edge-2"} <= set(killed)
    assert all(r.reported <= r.selected for r in result.rounds)
