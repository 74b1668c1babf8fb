"""Buffered runs with masks by real daemons over gRPC: with helpers, one of which is killed while it
is asked, and with sessions.
"""

from __future__ import annotations

import psutil
import pytest
from delian.simulations.processes.processes import Shape, simulate_processes
from delian.simulations.scenario.scenario_file import load, override

ROUNDS = 6


def scenario(*changes):
    settings = [
        f"rounds={ROUNDS}",
        f"evaluation.every={ROUNDS}",
        "round.mode=buffered",
        "round.buffer=4",
        "round.concurrency=6",
        "privacy.aggregation=secure",
        "privacy.cohort_min=3",
        *changes,
    ]
    return override(load("digits"), settings)


@pytest.fixture
def nobody_left():
    yield
    mine = psutil.Process().children(recursive=True)
    assert not [p.cmdline() for p in mine if "delian" in " ".join(p.cmdline())]


def check(result):
    """All models are made, and they have learnt: a mask too many would leave noise."""
    assert result.stopped_by is None
    assert [r.round for r in result.rounds if r.applied] == [*range(1, ROUNDS + 1)]
    assert all(r.reported >= 3 for r in result.rounds if r.applied)
    assert result.rounds[-1].personalised_accuracy > 0.6


def test_two_helpers_unmask_and_one_is_killed_on_the_way(nobody_left, tmp_path):
    killed = []

    def meddle(children, record):
        if record.round in (2, 4):
            children.crash(("edge-3", "cloud")[len(killed)])
            killed.append(record.round)

    folder = tmp_path / "fleet"
    asked = scenario("privacy.helpers=2")
    result = simulate_processes(asked, Shape(by_mqtt=0, folder=folder), meddle=meddle)
    check(result)
    assert killed == [2, 4]
    for helper in ("edge-3", "edge-4"):
        assert (folder / helper / "helper.key").stat().st_mode & 0o077 == 0
        text = (folder / f"{helper}.log").read_text()
        assert text.count("helped") >= ROUNDS, text[-2000:]
    assert "helped" not in (folder / "edge-1.log").read_text()


@pytest.mark.slow
def test_a_buffered_run_of_sessions(nobody_left, tmp_path):
    folder = tmp_path / "fleet"
    check(simulate_processes(scenario(), Shape(by_mqtt=0, folder=folder)))
