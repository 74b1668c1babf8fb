"""The coordinator's metrics, for Prometheus.

Those of all processes (core/node/service/prometheus.py), and its own. docs/operating.md lists them,
and a test compares the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ...core.node.service.prometheus import Family, Sources, gauge
from ...core.protocol.ports import Record
from ...core.wire.round_pb2 import FailureReason
from ..protocol.coordinator_state import CoordinatorState
from ..protocol.outlook import Attendance

#: From a commit on a fast disk to one that hangs.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(slots=True)
class CloudSources(Sources):
    """And the coordinator's state, and the devices that are there."""

    state: Callable[[], CoordinatorState] | None = None
    attendance: Callable[[], Attendance] | None = None


class Telemetry:
    """The numbers of one coordinator."""

    def __init__(self) -> None:
        self.sources = CloudSources()
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
        """What a journal reports its seconds to."""
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

    def __init__(self, sources: CloudSources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        families = [*self._sources.families()]
        if self._sources.state is not None:
            families += _of_state(self._sources.state())
        if self._sources.attendance is not None:
            families.append(_of_devices(self._sources.attendance()))
        for family in families:
            labels = list(dict.fromkeys(name for names, _ in family.samples for name in names))
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name, family.meaning, labels=labels)
            for names, value in family.samples:
                metric.add_metric([names[label] for label in labels], value)
            yield metric

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are known without reading."""
        yield from ()


def _of_state(state: CoordinatorState) -> Iterator[Family]:
    phases = Counter(run.phase.value for run in state.runs.values())
    yield Family(
        "delian_runs",
        "gauge",
        "Runs that are not over.",
        [({"phase": phase}, count) for phase, count in sorted(phases.items())],
    )
    yield Family(
        "delian_run_round",
        "gauge",
        "A run's round at hand.",
        [({"run": str(number)}, run.round) for number, run in state.runs.items()],
    )
    yield gauge("delian_edges_known", "Edges that have said hello.", len(state.edges))


def _of_devices(there: Attendance) -> Family:
    counts = {
        "ready": there.ready,
        "idle": there.idle,
        "working": sum(there.working.values()),
        "unconsented": there.unconsented,
        "unfit": there.unfit,
    }
    samples: list[tuple[dict[str, str], float]] = [({"state": s}, n) for s, n in counts.items()]
    return Family("delian_devices", "gauge", "Devices that are there.", samples)
