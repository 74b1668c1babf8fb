"""The tests of `test_hosting` that need a process, a socket or a clock."""

from __future__ import annotations

import socket

from delian.core.node.service.hosting import (
    notify_ready,
)


def test_systemd_is_told_when_it_asks(tmp_path, monkeypatch):
    notify_ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify_ready()
        assert systemd.recv(100) == b"READY=1"
