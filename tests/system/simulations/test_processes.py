"""Real daemons on loopback: the same models as in virtual time, whatever is killed on the way."""

import hashlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
from delian.core.node.net.mqtt.broker import mosquitto_path
from delian.core.privacy.mechanisms import ring
from delian.core.protocol.random_streams import Streams, device_key
from delian.core.wire.round_pb2 import COUNTED
from delian.simulations.processes.processes import Shape, fitted, simulate_processes
from delian.simulations.runs.simulate import simulate
from delian.simulations.runs.stage import Stage
from delian.simulations.scenario.scenario_file import load, override

ROUNDS = 3
SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def scenario(rounds=ROUNDS, *changes):
    every = [f"rounds={rounds}", f"evaluation.every={rounds}"]
    return override(load("digits"), [*every, *changes])


def whole(*changes):
    """Of whose rounds nothing is lost, on a machine of any speed: compilers have the time."""
    return scenario(ROUNDS, "round.timeout_ms=180000", *changes)


@pytest.fixture(scope="module")
def virtual():
    """What the virtual mode makes of the same scenario and seed."""
    return simulate(fitted(whole(), Shape())).bundle.weights


@pytest.fixture
def nobody_left():
    yield
    mine = psutil.Process().children(recursive=True)
    assert not [p.cmdline() for p in mine if "delian" in " ".join(p.cmdline())]


@pytest.fixture
def database():
    """The URL of a PostgreSQL server of our own."""
    if not SERVERS:
        pytest.skip("PostgreSQL is not installed")
    server = SERVERS[-1]
    # Not below pytest's folder, which each session closes to everybody but root.
    folder = Path(tempfile.mkdtemp(prefix="delian-pg-"))
    user = ["su", "-s", "/bin/sh", "nobody", "-c"] if os.getuid() == 0 else ["sh", "-c"]
    if os.getuid() == 0:
        shutil.chown(folder, "nobody")
    data, options = folder / "data", f"-c listen_addresses='' -k {folder}"

    def run(command):
        subprocess.run([*user, command], check=True, capture_output=True, timeout=300)

    run(f"{server}/initdb -D {data} -A trust -U delian")
    run(f'{server}/pg_ctl -D {data} -w -o "{options}" -l {folder}/log start')
    yield f"postgresql+asyncpg://delian@/postgres?host={folder}"
    run(f"{server}/pg_ctl -D {data} -m immediate stop")
    shutil.rmtree(folder)


def check(result, virtual):
    assert result.stopped_by is None
    assert [r.reported for r in result.rounds] == [6] * ROUNDS
    np.testing.assert_array_equal(result.bundle.weights, virtual)
    # Six updates up to edges, and two sums of them up to the cloud. Who looks late at a round's
    # end counts some of the next one with it.
    models = {"device_edge": 6, "edge_cloud": 2}
    for way, each in ((f"{hop}_{way}", n) for hop, n in models.items() for way in ("up", "down")):
        moved = np.cumsum([record.bytes[way] for record in result.rounds])
        assert (moved > each * virtual.nbytes * np.arange(1, ROUNDS + 1)).all(), (way, moved)
    for record in result.rounds:
        assert record.wall_seconds > 0 and not record.virtual_seconds
    # The last acknowledgement may still be on its way when everybody is sent home.
    assert all(ROUNDS - 1 <= d.rounds <= ROUNDS for d in result.devices)


def test_half_the_devices_over_a_broker_with_mutual_tls_and_postgresql(
    virtual, nobody_left, database
):
    if mosquitto_path() is None:
        pytest.skip("mosquitto is not installed")
    check(simulate_processes(whole(), Shape(by_mqtt=3, store=database)), virtual)


def test_masked_rounds_of_two_cohorts_over_grpc_and_sqlite(virtual, nobody_left):
    cut = whole("privacy.aggregation=secure", "privacy.cohorts=2")
    check(simulate_processes(cut, Shape(by_mqtt=0)), virtual)


#: Whom the test of the gate kills, by the round after which it does.
KILLED = {1: ["cloud"], 2: ["edge-1", "device-3"], 3: ["edge-2"]}
NAMES = ["cloud", "edge-1", "edge-2", *(f"device-{d}" for d in range(6))]


@pytest.mark.parametrize("rounds", [5, pytest.param(12, marks=pytest.mark.slow)])
def test_rounds_while_daemons_are_killed(nobody_left, tmp_path, rounds):
    """kill -9 of coordinator, edges and devices, in a long run at random moments of the rounds: the
    run ends, no update is counted twice, and none that was acknowledged is lost.
    """
    draw, killed, timers = random.Random(3), Counter(), []

    def crash(children, name):
        children.crash(name)
        killed[name] += 1

    def meddle(children, record):
        if rounds <= 5:
            # At once: a timer may find that the run has ended.
            for name in KILLED.get(record.round, []):
                crash(children, name)
            return
        for name in draw.sample(NAMES, draw.choice((0, 1, 1, 2))):
            timers.append(threading.Timer(draw.uniform(0.0, 1.0), crash, (children, name)))
            timers[-1].start()

    fleet = tmp_path / "fleet"
    asked = scenario(rounds)
    result = simulate_processes(asked, Shape(by_mqtt=0, folder=fleet), meddle=meddle)
    for timer in timers:
        timer.cancel()
        timer.join()
    assert result.stopped_by is None
    assert {"cloud", "edge-1", "edge-2"} <= set(killed), killed
    attempts = written_down(fleet)
    assert [a["round"] for a in attempts if a["succeeded"]] == list(range(1, rounds + 1))
    assert each_model_is_the_sum(asked, attempts) == rounds
    assert acknowledged(fleet, attempts) > 2 * rounds


@pytest.mark.parametrize("privacy", [pytest.param("plain", marks=pytest.mark.slow), "secure"])
def test_a_coordinator_that_is_put_back_from_a_copy_goes_on(nobody_left, tmp_path, privacy):
    """Edges and devices are three rounds ahead of the copy: rounds are made again, of what devices
    send for them now and of nothing that they sent before.
    """
    fleet, copy, steps = tmp_path / "fleet", tmp_path / "copy", {1: "copy", 4: "restore"}

    def meddle(children, record):
        step, cloud = steps.pop(record.round, None), children.all["cloud"]
        if step is None:
            return
        cloud.kill()
        if step == "restore":
            shutil.rmtree(fleet / "cloud")
        source, target = (fleet / "cloud", copy) if step == "copy" else (copy, fleet / "cloud")
        shutil.copytree(source, target, symlinks=True)
        cloud.start()

    rounds = 6
    asked = override(scenario(rounds), [f"privacy.aggregation={privacy}"])
    result = simulate_processes(asked, Shape(by_mqtt=0, folder=fleet), meddle=meddle)
    assert result.stopped_by is None and not steps
    attempts = written_down(fleet)
    assert [a["round"] for a in attempts if a["succeeded"]] == list(range(1, rounds + 1))
    assert each_model_is_the_sum(asked, attempts) == rounds


def written_down(fleet):
    """The attempts as the coordinator's database has them, the oldest first."""
    base = sqlite3.connect(f"file:{fleet}/cloud/delian.db?mode=ro", uri=True)
    base.row_factory = sqlite3.Row
    rows = [dict(row) for row in base.execute("select * from rounds order by id")]
    base.close()
    for row in rows:
        row.update(json.loads(zlib.decompress(row["devices"])))
    return rows


def each_model_is_the_sum(asked, attempts):
    """Trains every round again, from the devices' own data and keys: a model is that of exactly
    the devices that its round names, each once. How many rounds were checked.
    """
    stage = Stage(fitted(asked, Shape()), None, None, "native", lambda event: None)
    runtime, streams = stage.runtime, Streams(asked.seed)
    weights, memory, checked = stage.first, stage.runtime.memory(), 0
    for attempt in attempts:
        if not attempt["succeeded"]:
            continue
        assert hashlib.sha256(weights.tobytes()).digest() == attempt["parent"]
        assert len(set(attempt["reported"])) == len(attempt["reported"])
        round_key = streams.word("round key", 1, attempt["round"]).to_bytes(8, "little")
        total = ring.zeros(runtime.ring)
        for device in attempt["reported"]:
            key = np.array(device_key(round_key, device), np.uint32)
            data = stage.arrays[stage.data.training[device]]
            ring.add(total, runtime.client_update(weights, data, key).vector)
        mean, weight = ring.decode(total, runtime.ring)
        weights, memory = runtime.server_update(weights, memory, mean, weight=weight)
        assert hashlib.sha256(weights.tobytes()).digest() == attempt["model"]
        checked += 1
    return checked


def acknowledged(fleet, attempts):
    """Every update that a device was told is counted is in its round's sum. How many there were."""
    reported = {(a["round"], a["attempt"]): set(a["reported"]) for a in attempts if a["succeeded"]}
    count = 0
    for device in range(6):
        for line in (fleet / f"device-{device}.log").read_text().splitlines():
            said = json.loads(line) if line.startswith("{") else {}
            counted = said.get("event") == "answered" and said["status"] == COUNTED
            if counted and said["update"]:
                at = said["round"], said["attempt"]
                assert at not in reported or device in reported[at], (device, at)
                count += 1
    return count
