"""What a fleet moves, read from its daemons' pages."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from delian.core.node.net.traffic import Traffic
from delian.core.node.service.prometheus import Sources, text
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.simulations.processes.scrape import Scrape, hops

EDGE, DEVICE = Node(Tier.EDGE, 1), Node(Tier.DEVICE, 2)


class Daemon:
    """Serves a page of metrics."""

    def __init__(self):
        self.traffic = Traffic()
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text(Sources(traffic=daemon.traffic).families()))

            def log_message(self, *args):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Files:
    def __init__(self, **ports):
        self.ports = {f"{name} health": port for name, port in ports.items()} | {"cloud": 1}

    def address(self, name):
        return f"127.0.0.1:{self.ports[name]}"


@pytest.fixture
def fleet(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    cloud, edge = Daemon(), Daemon()
    yield cloud, edge
    edge.stop()
    if cloud.server.fileno() != -1:
        cloud.stop()


def test_bytes_since_the_call_before_each_counted_at_one_end(fleet):
    cloud, edge = fleet
    scrape = Scrape(Files(cloud=cloud.port, edge=edge.port))
    grpc, mqtt = edge.traffic.meter("grpc"), edge.traffic.meter("mqtt")
    grpc.received(DEVICE, 1_000, "part")
    mqtt.received(DEVICE, 10)
    mqtt.sent(DEVICE, 3)
    grpc.sent(CLOUD, 500)  # the cloud counts that
    cloud.traffic.meter("grpc").received(EDGE, 500)
    cloud.traffic.meter("grpc").sent(DEVICE, 7)  # a device that speaks to the coordinator
    first = {"device_edge_up": 1_010, "device_edge_down": 10, "edge_cloud_up": 500}
    assert scrape.traffic() == {**first, "edge_cloud_down": 0}
    assert set(scrape.traffic().values()) == {0}
    grpc.received(DEVICE, 1)
    assert scrape.traffic()["device_edge_up"] == 1


def test_a_daemon_that_is_away_or_begins_anew_takes_nothing_back(fleet):
    cloud, edge = fleet
    scrape = Scrape(Files(cloud=cloud.port, edge=edge.port))
    edge.traffic.meter("grpc").sent(DEVICE, 100)
    cloud.traffic.meter("grpc").received(EDGE, 50)
    scrape.traffic()
    cloud.stop()
    edge.traffic = Traffic()
    edge.traffic.meter("grpc").sent(DEVICE, 30)
    moved = scrape.traffic()
    assert moved["device_edge_down"] == 30 and moved["edge_cloud_up"] == 0


def test_what_is_no_page_of_ours_has_no_bytes():
    assert set(hops(b"\xff\x00 delian_link_bytes_total{} 5\n").values()) == {0}
    assert set(hops(b'delian_link_bytes_total{peer="moon",direction="sent"} 5\n').values()) == {0}
