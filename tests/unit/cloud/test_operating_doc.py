"""docs/operating.md names what there is: metrics, events, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("prometheus_client")

from delian.cli.fleet import cloud_commands, fleet_commands, run_commands
from delian.cli.programs import model_commands
from delian.cloud.protocol.coordinator_state import CoordinatorState
from delian.cloud.protocol.outlook import Attendance
from delian.cloud.service.telemetry import Telemetry
from delian.cloud.store.records import FACTS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operating.md").read_text()
PAGE_OF_EDGES = ROOT / "edge" / "service" / "daemon.py"


def test_every_metric_is_listed_and_every_listed_one_is_there():
    telemetry = Telemetry()
    telemetry.sources.state, telemetry.sources.attendance = CoordinatorState, Attendance
    # Where an edge has a metric of its own, its daemon's file names it.
    edges = PAGE_OF_EDGES.read_text()
    alone = set(re.findall(r'^ *(?:yield gauge\()?"(delian_\w+)"', edges, re.MULTILINE))
    assert alone, "the pattern fits"
    alone = {f"{n}_total" if n == "delian_outbox_messages" else n for n in alone}
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", telemetry.page().decode(), re.MULTILINE))
    there = {name for name in kinds if not name.endswith("_created")}
    assert set(re.findall(r"`(delian_\w+)", PAGE)) == there | alone


def test_every_kind_of_event_is_listed():
    table = PAGE.partition("## Events of a run")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(FACTS)


@pytest.mark.parametrize(
    ("group", "app"),
    [
        ("cloud", cloud_commands.app),
        ("run", run_commands.app),
        ("fleet", fleet_commands.app),
        ("model", model_commands.app),
    ],
)
def test_every_command_is_listed(group, app):
    named = set(re.findall(rf"`delian {group} (\w+)", PAGE.partition("## Events")[0]))
    assert named == {command.name for command in app.registered_commands}
