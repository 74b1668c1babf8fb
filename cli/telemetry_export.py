"""Spans to OpenTelemetry, where delian[otel] is installed and `trace.endpoint` is set.

`core/node/driver/traces.py` says what the spans are and which ids they have; here they become those
of the SDK, which sends them on from a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.common.errors import DelianError
from ..core.common.install_hint import install

if TYPE_CHECKING:
    from ..core.node.driver.traces import Context
    from .settings import TraceConfig


class OtelSpans:
    """`core.node.driver.traces.Spans` on an SDK's provider, which `ids` must have made the ids of.

    Its `close` sends what waits, and ends the provider.
    """

    def __init__(self, provider: Any, ids: Ids) -> None:
        self._provider, self._ids = provider, ids
        self._trace = import_module("opentelemetry.trace")
        self._nothing = import_module("opentelemetry.context").Context()
        self._tracer = provider.get_tracer("delian")

    def sampled(self, trace_id: int) -> bool:
        """As the provider's sampler has it."""
        result = self._provider.sampler.should_sample(self._nothing, trace_id, "attempt")
        return bool(result.decision.is_sampled())

    def span(
        self,
        name: str,
        own: Context,
        parent: str,
        began_ns: int,
        ended_ns: int,
        facts: Mapping[str, Any],
    ) -> None:
        trace, context = int(own.trace, 16), self._nothing
        if parent:
            flags = self._trace.TraceFlags(int(own.sampled))
            above = self._trace.SpanContext(trace, int(parent, 16), True, flags)
            context = self._trace.set_span_in_context(self._trace.NonRecordingSpan(above))
        self._ids.give(trace, int(own.span, 16))
        shown = {f"delian.{key}": value for key, value in facts.items()}
        span = self._tracer.start_span(name, context, attributes=shown, start_time=began_ns)
        span.end(max(began_ns, ended_ns))

    def close(self) -> None:
        """Sends what waits. Blocks."""
        self._provider.shutdown()


class Ids:
    """An IdGenerator of the SDK that gives the ids that it was given; without any, random ones."""

    def __init__(self) -> None:
        self._random = import_module("opentelemetry.sdk.trace.id_generator").RandomIdGenerator()
        self._next = threading.local()  # others may use the provider from other threads

    def give(self, trace: int, span: int) -> None:
        """The ids of the span that this thread starts next."""
        self._next.trace, self._next.span = trace, span

    def generate_trace_id(self) -> int:
        trace = getattr(self._next, "trace", 0)
        self._next.trace = 0
        return trace or int(self._random.generate_trace_id())

    def generate_span_id(self) -> int:
        span = getattr(self._next, "span", 0)
        self._next.trace = self._next.span = 0
        return span or int(self._random.generate_span_id())

    def is_trace_id_random(self) -> bool:
        """A hash is as good as random for sampling."""
        return True


def open_spans(config: TraceConfig, service: str) -> OtelSpans | None:
    """What a daemon records its spans with; None without an endpoint. service: "delian-cloud".

    Raises DelianError where a package is missing.
    """
    if not config.endpoint:
        return None
    try:
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resources = import_module("opentelemetry.sdk.resources")
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        sampling = import_module("opentelemetry.sdk.trace.sampling")
    except ImportError as error:
        raise DelianError(
            f"trace.endpoint is set and {error.name} is not installed",
            f"{install('otel')} opentelemetry-exporter-otlp-proto-http",
        ) from None
    ids = Ids()
    provider = sdk.TracerProvider(
        resource=resources.Resource.create({"service.name": service}),
        sampler=sampling.ParentBased(sampling.TraceIdRatioBased(config.ratio)),
        id_generator=ids,
    )
    target = f"{config.endpoint.rstrip('/')}/v1/traces"
    provider.add_span_processor(
        export.BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=target))
    )
    return OtelSpans(provider, ids)
