"""A process's numbers for Prometheus: what coordinator and edges count alike, under one name.

    delian_node_events_total{node,kind}                       what drivers count
    delian_inbox_events{node}                                 what waits for a node
    delian_refusals_total{where,kind}                         what was not taken, by link or service
    delian_peers{link,tier}                                   connected nodes
    delian_link_messages_total{link,peer,direction,kind}      see net/traffic.py
    delian_link_bytes_total{link,peer,direction,kind}

Counts are kept where they are made and read when a page is asked for. `text` writes the text format
0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats) without a package for it: an
edge has none. docs/operating.md lists all metrics, and a test holds the two against each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ...protocol.ports import Node, Tier

if TYPE_CHECKING:
    from ..driver.driver import Driver
    from ..net.traffic import Traffic

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric."""

    name: str
    """A counter's without `_total`."""
    kind: Literal["counter", "gauge"]
    meaning: str
    samples: Sequence[tuple[Labels, float]]
    """Labels and value."""


def gauge(name: str, meaning: str, value: float) -> Family:
    """A metric of one number that may fall."""
    return Family(name, "gauge", meaning, [({}, value)])


@dataclass(slots=True)
class Sources:
    """Where counts are read from. Each is asked at every page."""

    drivers: dict[str, Driver] = field(default_factory=dict)
    """By their node's name."""
    refusals: dict[str, Callable[[], Mapping[str, int]]] = field(default_factory=dict)
    """By link or service, kinds to counts."""
    peers: dict[str, Callable[[], Iterable[Node]]] = field(default_factory=dict)
    """By link, the nodes that are connected."""
    traffic: Traffic | None = None

    def families(self) -> Iterator[Family]:
        """The metrics that all processes have."""
        drivers = self.drivers.items()
        yield Family(
            "delian_node_events",
            "counter",
            "What a node of this process has counted.",
            [
                ({"node": node, "kind": kind}, count)
                for node, driver in drivers
                for kind, count in sorted(driver.counters.items())
            ],
        )
        waiting: list[tuple[Labels, float]] = [({"node": n}, d.waiting) for n, d in drivers]
        yield Family("delian_inbox_events", "gauge", "Events that wait for a node.", waiting)
        yield Family(
            "delian_refusals",
            "counter",
            "What was not taken from peers.",
            [
                ({"where": where, "kind": kind}, count)
                for where, kinds in self.refusals.items()
                for kind, count in sorted(kinds().items())
            ],
        )
        yield self._peers()
        yield from self._links()

    def _peers(self) -> Family:
        samples: list[tuple[Labels, float]] = []
        for link, nodes in self.peers.items():
            tiers = Counter(node.tier for node in nodes())
            tiers.update({Tier.DEVICE: 0, Tier.EDGE: 0})
            samples += [({"link": link, "tier": t.value}, tiers[t]) for t in sorted(tiers)]
        return Family("delian_peers", "gauge", "Nodes that are connected.", samples)

    def _links(self) -> Iterator[Family]:
        messages: list[tuple[Labels, float]] = []
        octets: list[tuple[Labels, float]] = []
        for way, count, size in self.traffic or ():
            labels = {
                "link": way.link,
                "peer": way.peer.value,
                "direction": way.direction,
                "kind": way.kind,
            }
            messages.append((labels, count))
            octets.append((labels, size))
        what = "Envelopes, parts of transfers and frames of streams over links"
        yield Family("delian_link_messages", "counter", f"{what}.", messages)
        yield Family("delian_link_bytes", "counter", f"{what}, in bytes.", octets)


def text(families: Iterable[Family]) -> bytes:
    """The page."""
    lines: list[str] = []
    for family in families:
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        lines.append(f"# HELP {name} {_escaped(family.meaning)}")
        lines.append(f"# TYPE {name} {family.kind}")
        for labels, value in family.samples:
            shown = ",".join(f'{k}="{_quoted(v)}"' for k, v in labels.items())
            lines.append(f"{name}{{{shown}}} {value:.17g}" if shown else f"{name} {value:.17g}")
    return ("\n".join(lines) + "\n").encode()


def _escaped(words: str) -> str:
    return words.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(words: str) -> str:
    return _escaped(words).replace('"', r"\"")
