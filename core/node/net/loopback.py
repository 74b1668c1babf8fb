"""Connections without TLS: for tests and trials, between processes of one machine only."""

from __future__ import annotations

import contextlib
import ipaddress

from ...common.errors import DelianError

#: The name of a federation without certificates.
INSECURE = "insecure"


def check_loopback(target: str, what: str) -> None:
    """Raises DelianError unless "host:port" is on this machine: without TLS nothing leaves it."""
    host = target.rpartition("://")[2].rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return
    raise DelianError(
        f"{what} {target} is not on this machine, and --insecure goes no further",
        "use 127.0.0.1, or join the federation and leave --insecure out",
    )
