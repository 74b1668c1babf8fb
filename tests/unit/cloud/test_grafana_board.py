"""Every query of deploy/grafana/delian.json names metrics and labels that daemons export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("prometheus_client")

from delian.cloud.service.telemetry import Telemetry
from delian.core.node.net.traffic import Traffic
from delian.core.node.service.prometheus import text
from delian.core.protocol.ports import Node, Record, Tier
from delian.core.wire.round_pb2 import FailureReason
from delian.edge.service.daemon import EdgeDaemon
from delian.simulations.federation.federation import Federation
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario.scenario_file import load, override

ROOT = Path(__file__).resolve().parents[3]
BOARD = json.loads((ROOT / "deploy" / "grafana" / "delian.json").read_text())
PAGE = (ROOT / "docs" / "operating.md").read_text()
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]

#: What PromQL has of its own in these queries.
FUNCTIONS = {"sum", "by", "rate", "increase", "histogram_quantile", "or", "vector"}
#: Added by Prometheus to what it reads.
OF_PROMETHEUS = {"instance"}
SELECTOR = re.compile(r"\b(delian_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'\s*(\w+)\s*(=~|=)\s*"([^"]*)"\s*')
SAMPLE = re.compile(r"^(delian_\w+)(?:\{(.*)\})? \S+$", re.MULTILINE)


@pytest.fixture(scope="module")
def exported():
    """Metric -> label -> values, of a coordinator and an edge after a small federation."""
    telemetry, seen, patch = Telemetry(), {}, pytest.MonkeyPatch()
    recorded = Federation._on_record

    def also(self, host, effect):
        seen[host.node.tier] = host.machine
        if host.node.tier is Tier.CLOUD:
            telemetry.recorded(effect)
        recorded(self, host, effect)

    patch.setattr(Federation, "_on_record", also)
    small = ["fleet.devices=6", "data.held_out_devices=0", "round.cohort=4", "rounds=2"]
    simulate(override(load("synthetic-mlp"), small), backend="reference")
    patch.undo()
    failed = {"succeeded": False, "reported": (), "refused": {3: FailureReason.NON_FINITE}}
    telemetry.recorded(Record("round", failed))
    cloud = seen[Tier.CLOUD]
    sources = telemetry.sources
    sources.state = lambda: cloud.state
    sources.attendance = lambda: SimpleNamespace(
        ready=1, idle=0, working={1: 2}, unconsented=0, unfit=0
    )
    sources.drivers["cloud"] = SimpleNamespace(counters={"events": 5}, waiting=2)
    sources.refusals["grpc"] = lambda: {"too large": 1}
    sources.peers["grpc"] = lambda: [Node(Tier.EDGE, 1)]
    sources.traffic = Traffic()
    for kind in ("envelope", "part"):
        meter = sources.traffic.meter("grpc")
        meter.sent(Node(Tier.EDGE, 1), 3, kind)
        meter.received(Node(Tier.EDGE, 1), 3, kind)
    telemetry.appended("cloud")(0.01)
    telemetry.written(0.01)
    telemetry.updated(0.01)
    return found_in(telemetry.page().decode() + edge_page().decode())


def edge_page():
    """The page of an edge with nothing to do."""
    from delian.edge.protocol.machine import EdgeMachine

    machine = object.__new__(EdgeMachine)
    machine.state = SimpleNamespace(pool={}, collections={})
    daemon = SimpleNamespace(
        driver=SimpleNamespace(machine=machine),
        out=SimpleNamespace(kept=1, sent_late=1, dropped=0),
        outbox=SimpleNamespace(evicted=0, expired=0),
        blobs=SimpleNamespace(used=5),
        _why_not_ready=lambda: None,
    )
    return text(EdgeDaemon._families(daemon))


def found_in(page):
    found = {}
    for name, labels in SAMPLE.findall(page):
        values = found.setdefault(name, {})
        for label, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels):
            values.setdefault(label, set()).add(value)
    for name, labels in re.findall(r"`(delian_\w+)\{([\w,]+)\}`", PAGE):
        values = found.setdefault(name, {})  # that had no sample: a device's refusal
        assert not values or set(values) == set(labels.split(",")), name
        for label in labels.split(","):
            values.setdefault(label, set())
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_names_what_daemons_export(query, exported):
    selectors = SELECTOR.findall(query)
    assert selectors
    labels = set()
    for name, matchers in selectors:
        assert name in exported, name
        labels |= set(exported[name])
        for label, how, value in (MATCHER.fullmatch(m).groups() for m in matchers.split(",")):
            if label in OF_PROMETHEUS:
                assert (how, value) == ("=~", "$instance")
                continue
            assert value in exported[name][label], f"{name}: {label} is never {value}"
    for grouped in re.findall(r"by \(([\w, ]+)\)", query):
        assert {label.strip() for label in grouped.split(",")} <= labels, grouped
    rest = SELECTOR.sub("", re.sub(r"by \([^)]*\)|\[[^\]]*\]", "", query))
    assert set(re.findall(r"[a-z_]\w*", rest)) <= FUNCTIONS
    assert query.count("(") == query.count(")")


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_legends_name_labels_of_the_result(panel, exported):
    for target in panel["targets"]:
        query = target["expr"]
        grouped = re.search(r"by \(([\w, ]+)\)", query)
        there = set(OF_PROMETHEUS) | set(exported[SELECTOR.search(query)[1]])
        if grouped:
            there = {label.strip() for label in grouped[1].split(",")}
        elif "sum" in query:
            there = set()
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= there


def test_every_metric_that_operators_read_has_a_panel(exported):
    shown = {name for query in QUERIES for name, _ in SELECTOR.findall(query)}
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    there = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported}
    assert bases == {name for name in there if not name.endswith("_created")}


def test_panels_do_not_overlap_and_have_numbers_of_their_own():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    taken = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
