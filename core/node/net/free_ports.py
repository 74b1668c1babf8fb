"""Ports for servers whose address must be known before they are started."""

from __future__ import annotations

import random
import socket

#: Below the ports that Linux gives to connections (32,768 to 60,999): none takes one meanwhile.
_FIRST, _LAST = 20_000, 32_767
_TRIES = 200


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """TCP ports of an address that are free now, all different.

    Raises:
        OSError: none of those that were tried is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    draw = random.SystemRandom()
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sockets.append(_bound(family, host, draw))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _bound(family: socket.AddressFamily, host: str, draw: random.Random) -> socket.socket:
    for left in reversed(range(_TRIES)):
        probe = socket.socket(family)
        try:
            probe.bind((host, draw.randint(_FIRST, _LAST)))
            return probe
        except OSError:
            probe.close()
            if not left:
                raise
    raise AssertionError
