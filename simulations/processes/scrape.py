"""What a fleet of real daemons moves over each hop, read from their own metrics.

Both ends of a hop count; the upper one is asked, so that nothing is counted twice: edges and the
coordinator for what devices send and receive, the coordinator for what edges do. A daemon that does
not answer keeps the figures it gave last, and one that was started again counts from zero: what it
had counted since it was last asked is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from ..runs.result import LINKS
from .fleet_files import FleetFiles

#: A daemon that has ended refuses at once: this is for one that hangs, or a machine that does.
TIMEOUT_S = 10.0
PAGE_BYTES_MAX = 4 << 20

_SAMPLE = re.compile(rb"^delian_link_bytes_total\{([^}\n]*)\} ([0-9.eE+-]+)$", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="(\w*)"')

#: (the tier of the process at the other end, direction) -> hop, as the upper end sees it.
_HOPS = {
    (b"device", b"received"): "device_edge_up",
    (b"device", b"sent"): "device_edge_down",
    (b"edge", b"received"): "edge_cloud_up",
    (b"edge", b"sent"): "edge_cloud_down",
}


class Scrape:
    """A fleet's traffic, as it goes on."""

    def __init__(self, files: FleetFiles) -> None:
        self._pages = [
            f"http://{files.address(name)}/metrics"
            for name in files.ports
            if name.endswith(" health")
        ]
        self._last: dict[str, Mapping[str, int]] = {}
        # The environment's proxies are for other hosts.
        self._opener = build_opener(ProxyHandler({}))

    def traffic(self) -> dict[str, int]:
        """Bytes over each of LINKS since the call before; blocks."""
        moved = dict.fromkeys(LINKS, 0)
        for page in self._pages:
            now = self._ask(page)
            if now is None:
                continue
            before = self._last.get(page, {})
            self._last[page] = now
            for hop, count in now.items():
                known = before.get(hop, 0)
                moved[hop] += count - known if count >= known else count
        return moved

    def _ask(self, page: str) -> dict[str, int] | None:
        """A daemon's counts by hop; None: it does not answer."""
        try:
            with self._opener.open(page, timeout=TIMEOUT_S) as reply:
                return hops(reply.read(PAGE_BYTES_MAX))
        except (URLError, OSError):
            return None


def hops(page: bytes) -> dict[str, int]:
    """Bytes by hop, of one daemon's page of metrics."""
    counts = dict.fromkeys(LINKS, 0)
    for labels, value in _SAMPLE.findall(page):
        named = dict(_LABEL.findall(labels))
        hop = _HOPS.get((named.get(b"peer", b""), named.get(b"direction", b"")))
        if hop is not None:
            counts[hop] += int(float(value))
    return counts
