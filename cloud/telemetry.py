"""The coordinator's numbers, for Prometheus. This file owns their names; docs/operating.md lists
them, and a test holds the two against each other.

Counts that somebody keeps anyway (drivers, links, services) are read when a page is asked for;
durations and what rounds gave are counted as they happen. A coordinator has its own registry, so
several in one process (tests) do not mix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ..core.node.driver import Driver
from ..core.ports import Node, Record, Tier
from ..core.wire.round_pb2 import FailureReason
from .state import CoordinatorState

#: From a commit on a fast disk to one that hangs.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(slots=True)
class Sources:
    """Where counts are read from. Each is asked at every page.

    drivers: by their node's name. refusals: by link or
    service, kinds to counts. peers: the nodes that are connected. moved: bytes by direction.
    """

    drivers: dict[str, Driver] = field(default_factory=dict)
    refusals: dict[str, Callable[[], Mapping[str, int]]] = field(default_factory=dict)
    peers: dict[str, Callable[[], Iterable[Node]]] = field(default_factory=dict)
    moved: dict[str, Callable[[], int]] = field(default_factory=dict)
    state: Callable[[], CoordinatorState] | None = None


class Telemetry:
    """The numbers of one coordinator."""

    def __init__(self) -> None:
        self.sources = Sources()
        self._registry = CollectorRegistry()

        def counter(name: str, meaning: str, *labels: str) -> PrometheusCounter:
            return PrometheusCounter(name, meaning, labels, registry=self._registry)

        def histogram(name: str, meaning: str, *labels: str) -> Histogram:
            return Histogram(name, meaning, labels, registry=self._registry, buckets=_SECONDS)

        self._rounds = counter("delian_rounds", "Attempts at rounds that are over.", "outcome")
        self._updates = counter("delian_updates", "Devices' updates that went into a model.")
        self._failures = counter("delian_device_failures", "Devices' refusals to train.", "reason")
        self._evaluations = counter("delian_evaluations", "Federated evaluations that are over.")
        self._journal = histogram(
            "delian_journal_append_seconds", "Until a batch of events was durable.", "node"
        )
        self._store = histogram("delian_store_write_seconds", "Transactions of the database.")
        self._server_updates = histogram(
            "delian_server_update_seconds", "Until a new model was in the store."
        )
        self._registry.register(_Reader(self.sources))

    def appended(self, node: str) -> Callable[[float], None]:
        """What a journal is to tell its seconds to."""
        return self._journal.labels(node).observe

    def written(self, seconds: float) -> None:
        """A transaction has ended."""
        self._store.observe(seconds)

    def updated(self, seconds: float) -> None:
        """A server update has ended."""
        self._server_updates.observe(seconds)

    def recorded(self, record: Record) -> None:
        """Counts a record of the coordinator's machine."""
        fields = record.fields
        if record.kind == "round":
            self._rounds.labels("succeeded" if fields["succeeded"] else "failed").inc()
            if fields["succeeded"]:
                self._updates.inc(len(fields["reported"]))
            for code in fields["refused"].values():
                known = code in FailureReason.values()
                name = FailureReason.Name(code).lower() if known else "unknown"
                self._failures.labels(name).inc()
        elif record.kind == "evaluation":
            self._evaluations.inc()

    def page(self) -> bytes:
        """All numbers, in the text format 0.0.4."""
        return generate_latest(self._registry)


class _Reader:
    """A collector in the sense of prometheus_client."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        sources = self._sources
        events = CounterMetricFamily(
            "delian_node_events",
            "What a node of this process has counted.",
            labels=["node", "kind"],
        )
        for node, driver in sources.drivers.items():
            for kind, count in sorted(driver.counters.items()):
                events.add_metric([node, kind], count)
        yield events
        waiting = GaugeMetricFamily(
            "delian_inbox_events", "Events that wait for a node.", labels=["node"]
        )
        for node, driver in sources.drivers.items():
            waiting.add_metric([node], driver.waiting)
        yield waiting
        refusals = CounterMetricFamily(
            "delian_refusals", "What was not taken from peers.", labels=["where", "kind"]
        )
        for where, kinds in sources.refusals.items():
            for kind, count in sorted(kinds().items()):
                refusals.add_metric([where, kind], count)
        yield refusals
        peers = GaugeMetricFamily(
            "delian_peers", "Nodes that are connected.", labels=["link", "tier"]
        )
        for link, nodes in sources.peers.items():
            tiers = Counter(node.tier for node in nodes())
            for tier in (Tier.DEVICE, Tier.EDGE):
                peers.add_metric([link, tier.value], tiers[tier])
        yield peers
        moved = CounterMetricFamily(
            "delian_transfer_bytes", "Bytes of large messages and blobs.", labels=["direction"]
        )
        for direction, total in sources.moved.items():
            moved.add_metric([direction], total())
        yield moved
        if sources.state is not None:
            yield from _of_state(sources.state())

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are known without reading."""
        yield from ()


def _of_state(state: CoordinatorState) -> Iterator[Metric]:
    runs = GaugeMetricFamily("delian_runs", "Runs that are not over.", labels=["phase"])
    for phase, count in sorted(Counter(run.phase.value for run in state.runs.values()).items()):
        runs.add_metric([phase], count)
    yield runs
    rounds = GaugeMetricFamily("delian_run_round", "A run's round at hand.", labels=["run"])
    for number, run in state.runs.items():
        rounds.add_metric([str(number)], run.round)
    yield rounds
    ready = sum(len(view.ready) for view in state.edges.values())
    yield GaugeMetricFamily("delian_devices_ready", "Devices that edges have ready.", value=ready)
    yield GaugeMetricFamily(
        "delian_edges_known", "Edges that have said hello.", value=len(state.edges)
    )
