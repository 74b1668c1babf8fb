"""Ports for servers whose address must be known before they are started."""

from __future__ import annotations

import socket

import pytest
from delian.core.node.net import free_ports


def test_ports_are_different_and_no_connection_is_given_one():
    found = free_ports.free_ports(100)
    assert len(set(found)) == 100
    assert all(20_000 <= port < 32_768 for port in found)


def test_a_port_that_is_taken_is_not_given(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_ports.free_ports(1)[0]))
        port = taken.getsockname()[1]
        monkeypatch.setattr(free_ports, "_FIRST", port)
        monkeypatch.setattr(free_ports, "_LAST", port)
        with pytest.raises(OSError, match="in use"):
            free_ports.free_ports(1)
    assert free_ports.free_ports(1) == [port]
