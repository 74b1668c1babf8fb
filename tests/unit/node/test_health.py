"""What a process says of itself over HTTP, and how its numbers are written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from delian.core.node.net.traffic import Traffic
from delian.core.node.service.prometheus import Family, Sources, gauge, text
from delian.core.protocol.ports import Node, Tier

CLOUD, EDGE, DEVICE = Node(Tier.CLOUD, 0), Node(Tier.EDGE, 3), Node(Tier.DEVICE, 7)


def test_a_page_is_in_the_text_format_whatever_labels_say():
    family = Family("delian_x", "counter", "Two\nlines.", [({"kind": 'a "b" \\ c\n'}, 2)])
    assert text([family, gauge("delian_y", "One.", 0.5)]).decode() == (
        "# HELP delian_x_total Two\\nlines.\n"
        "# TYPE delian_x_total counter\n"
        'delian_x_total{kind="a \\"b\\" \\\\ c\\n"} 2\n'
        "# HELP delian_y One.\n# TYPE delian_y gauge\ndelian_y 0.5\n"
    )


def test_prometheus_own_client_reads_the_page():
    parser = pytest.importorskip("prometheus_client.parser")
    traffic = Traffic()
    traffic.meter("grpc").sent(DEVICE, 10)
    sources = Sources(traffic=traffic)
    sources.drivers["edge 3"] = SimpleNamespace(counters={"events": 5}, waiting=2)
    sources.refusals["grpc"] = lambda: {'odd "one"': 1}
    sources.peers["grpc"] = lambda: (DEVICE,)
    page = text(sources.families()).decode()
    samples = {
        (s.name, *sorted(s.labels.values())): s.value
        for family in parser.text_string_to_metric_families(page)
        for s in family.samples
    }
    assert samples == {
        ("delian_node_events_total", "edge 3", "events"): 5,
        ("delian_inbox_events", "edge 3"): 2,
        ("delian_refusals_total", "grpc", 'odd "one"'): 1,
        ("delian_peers", "device", "grpc"): 1,
        ("delian_peers", "edge", "grpc"): 0,
        ("delian_link_messages_total", "device", "envelope", "grpc", "sent"): 1,
        ("delian_link_bytes_total", "device", "envelope", "grpc", "sent"): 10,
    }


def test_traffic_is_counted_by_link_tier_direction_and_kind():
    traffic = Traffic()
    grpc, mqtt = traffic.meter("grpc"), traffic.meter("mqtt")
    grpc.sent(DEVICE, 10)
    grpc.sent(DEVICE, 100, "part")
    mqtt.sent(DEVICE, 1)
    mqtt.received(Node(Tier.EDGE, 0), 5)  # the coordinator's own edge is the coordinator
    mqtt.received(CLOUD, 2)
    assert grpc.parts == 100 and mqtt.parts == 0
    assert [(*way, count, size) for way, count, size in traffic] == [
        ("grpc", "device", "sent", "envelope", 1, 10),
        ("grpc", "device", "sent", "part", 1, 100),
        ("mqtt", "cloud", "received", "envelope", 2, 7),
        ("mqtt", "device", "sent", "envelope", 1, 1),
    ]
    assert traffic.to_json() == {
        "device": {"sent_messages": 3, "sent_bytes": 111},
        "cloud": {"received_messages": 2, "received_bytes": 7},
    }
