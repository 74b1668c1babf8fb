"""A round's trace through all tiers, over real gRPC, as the SDK of OpenTelemetry gets it."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("opentelemetry.sdk.trace")
pytest.importorskip("sqlalchemy")

from delian.cli.settings import TraceConfig
from delian.cli.telemetry_export import Ids, OtelSpans, open_spans
from delian.core.common.errors import DelianError
from delian.core.node.driver.traces import Context
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace import export, sampling
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def recorded(ratio=1.0):
    """Spans in memory, of a process of its own."""
    ids, exporter = Ids(), InMemorySpanExporter()
    sampler = sampling.ParentBased(sampling.TraceIdRatioBased(ratio))
    provider = sdk.TracerProvider(id_generator=ids, sampler=sampler)
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    return OtelSpans(provider, ids), exporter


def ids_of(span):
    parent = span.parent.span_id if span.parent is not None else 0
    return span.context.trace_id, span.context.span_id, parent


def test_a_span_has_the_ids_that_it_is_given_and_others_have_random_ones():
    spans, exporter = recorded()
    root = Context("a" * 32, "b" * 16, True)
    spans.span("attempt", root, "", 10, 20, {"run": 1, "why": ""})
    spans.span("task", root._replace(span="c" * 16), root.span, 12, 11, {})
    with spans._tracer.start_as_current_span("of somebody else"):
        pass
    first, second, third = exporter.get_finished_spans()
    assert ids_of(first) == (int("a" * 32, 16), int("b" * 16, 16), 0)
    assert ids_of(second) == (int("a" * 32, 16), int("c" * 16, 16), int("b" * 16, 16))
    assert (first.start_time, first.end_time) == (10, 20)
    assert (second.start_time, second.end_time) == (12, 12), "a clock may be set back"
    assert first.attributes == {"delian.run": 1, "delian.why": ""}
    assert third.context.trace_id != first.context.trace_id and third.parent is None
    spans.close()


def test_the_share_of_rounds_that_is_traced_is_decided_by_their_trace():
    none, _ = recorded(0.0)
    half, _ = recorded(0.5)
    assert not none.sampled(1)
    assert half.sampled(1) and not half.sampled((1 << 64) - 1)


def test_tracing_is_off_without_an_endpoint_and_says_what_is_missing(monkeypatch):
    assert open_spans(TraceConfig(), "delian-cloud") is None
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(DelianError, match=r"\[otel\]'"):
        open_spans(TraceConfig(endpoint="http://127.0.0.1:4318"), "delian-cloud")
