"""Every row of the coordinator's three tables is taken by its tests."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path

import pytest
from delian.cloud.protocol import buffered_machine, machine, rounds_machine
from delian.cloud.protocol.buffered_machine import BufferedMachine
from delian.cloud.protocol.machine import Coordinator
from delian.cloud.protocol.rounds_machine import RoundsMachine
from support.run_bench import Spy

HERE = Path(__file__).parent


def calls_of(test):
    """The arguments that a test is parametrised by, set by set."""
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names, values = mark.args
            return [(v,) for v in values] if isinstance(names, str) else list(values)
    return [()]


def run_all(*files):
    """Runs the tests in these files that take no fixtures; gives how many."""
    count = 0
    for file in files:
        for name, thing in runpy.run_path(str(HERE / file)).items():
            tests = [thing] if name.startswith("test_") else []
            if name.startswith("Test"):
                tests = [getattr(thing(), n) for n in vars(thing) if n.startswith("test_")]
            for test in tests:
                calls = calls_of(test)
                if len(inspect.signature(test).parameters) != len(calls[0]):
                    continue  # it takes fixtures: it is about files
                for arguments in calls:
                    test(*arguments)
                    count += 1
    return count


@pytest.mark.parametrize(
    ("owner", "table", "files", "rows"),
    [
        (Coordinator, machine.TABLE, ("machine", "secure", "log", "outlook"), 15),
        (
            RoundsMachine,
            rounds_machine.TABLE,
            ("rounds", "evaluation", "orders", "machine", "secure"),
            47,
        ),
        (BufferedMachine, buffered_machine.TABLE, ("buffered", "secure", "helpers"), 41),
    ],
)
def test_every_row_is_taken(owner, table, files, rows, monkeypatch):
    spy = Spy(owner.rows)
    monkeypatch.setattr(owner, "rows", spy)
    assert run_all(*(f"test_cloud_{name}.py" for name in files)) > 10
    missed = [
        r.trigger.value for r in table if not any((p, r.trigger) in spy.taken for p in r.phases)
    ]
    assert not missed
    assert len(table) == rows
