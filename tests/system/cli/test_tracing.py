"""The tests of `test_tracing` that need a process, a socket or a clock."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk.trace")
pytest.importorskip("sqlalchemy")
import grpc
from delian.cli.fleet.cloud_commands import gatherer
from delian.cli.telemetry_export import Ids, OtelSpans
from delian.cloud.service import daemon as cloud_daemon
from delian.cloud.service.daemon import CloudSettings
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.data.rows import DataSettings
from delian.core.learning.nn import Mlp, sgd
from delian.core.node.driver.traces import current, parse
from delian.core.node.identity.pki.identity_folder import HomeAddress
from delian.core.node.net.grpc.grpc_guard import claim
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import PlanMessage, PutPart, SubmitRequest, WatchRequest
from delian.core.wire.operator_pb2_grpc import OperatorStub
from delian.device.agent import daemon as device_daemon
from delian.device.agent.conditions import ConditionSettings
from delian.device.agent.daemon import DeviceSettings
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.status_file import read_status
from delian.device.protocol.device_state import DevicePolicy
from delian.edge.service import daemon as edge_daemon
from delian.edge.service.daemon import EdgeSettings
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace import export, sampling
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

EDGE = Node(Tier.EDGE, 1)


def recorded(ratio=1.0):
    """Spans in memory, of a process of its own."""
    ids, exporter = Ids(), InMemorySpanExporter()
    sampler = sampling.ParentBased(sampling.TraceIdRatioBased(ratio))
    provider = sdk.TracerProvider(id_generator=ids, sampler=sampler)
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    return OtelSpans(provider, ids), exporter


@pytest.fixture(scope="module")
def bundle():
    rows = SampleSet(
        np.zeros((24, 4), np.float32), np.zeros(24, np.int32), np.array(8), np.array(3)
    )
    return build(
        Classification("small", lambda key: Mlp.init(key, 4, (5,), 3), Samples(4, 1.0)),
        FedAvg(local=sgd(0.1), server=sgd(1.0), personal_steps=1),
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=5.0,
        clients_max=4,
        weight_max=24.0,
        seed=1,
    )


class Running:
    """A daemon as a task of this process, with spans of its own."""

    def __init__(self, serve, *given):
        self.spans, self.exporter = recorded()
        self.stop = asyncio.Event()
        self._ready = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(
            serve(*given, stop=self.stop, ready=self._ready.set_result, spans=self.spans)
        )

    async def ready(self):
        await asyncio.wait((self.task, self._ready), return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            self.task.result()
        return self._ready.result()

    async def end(self):
        self.stop.set()
        await self.task


async def one_round(port, bundle, submitted):
    """Submits a run of one round and an evaluation, says so, and waits until it is over."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub, who = OperatorStub(channel), claim("operator-0")

        async def put(content):
            ref = BlobRef(digest=hashlib.sha256(content).digest(), size=len(content))
            return await stub.PutBlob(
                iter([PutPart(blob=ref), PutPart(content=content)]), metadata=who
            )

        plan = PlanMessage(name="small", rounds=1, cohort=1, over_selection=1.0, reports_min=1)
        plan.bundle.CopyFrom(await put(bundle.bare().to_bytes()))
        plan.weights.CopyFrom(await put(bundle.weights.tobytes()))
        manifest = bundle.manifest
        plan.ring.clip, plan.ring.clients_max = manifest.clip, manifest.clients_max
        plan.ring.bits, plan.ring.dimension = 32, manifest.dimension
        plan.attempts_max, plan.timeout_ms, plan.margin_ms, plan.wait_ms = 3, 60_000, 5_000, 60_000
        plan.evaluation_every, plan.evaluation_cohort = 1, 1
        plan.after_task.min_ms, plan.after_task.max_ms = 20, 100
        run = (await stub.Submit(SubmitRequest(plan=plan), metadata=who)).run
        submitted.set()
        events = stub.WatchRun(WatchRequest(run=run), metadata=who)
        return [(event.kind, json.loads(event.facts)) async for event in events]


def ids_of(span):
    parent = span.parent.span_id if span.parent is not None else 0
    return span.context.trace_id, span.context.span_id, parent


@pytest.fixture
def lines():
    """Records of the log, each with the trace in which it was written."""
    told = []

    class Keep(logging.Handler):
        def emit(self, record):
            told.append((record.name, record.getMessage(), current.get()))

    handler, area = Keep(), logging.getLogger("delian")
    level = area.level
    area.addHandler(handler)
    area.setLevel(logging.INFO)
    yield told
    area.removeHandler(handler)
    area.setLevel(level)


def test_a_round_is_one_trace_through_all_tiers_and_back(bundle, tmp_path, lines):
    rng = np.random.default_rng(2)
    y = np.arange(20) % 3
    x = (np.eye(3, 4)[y] * 3 + rng.normal(0, 0.3, (20, 4))).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=y.astype(np.int32))

    async def scene():
        settings = CloudSettings(
            tmp_path / "cloud",
            listen="127.0.0.1:0",
            enrolment="",
            health="",
            insecure=True,
            backend="reference",
        )
        cloud = Running(cloud_daemon.serve, settings, gatherer)
        port = (await cloud.ready())["ports"]["grpc"]
        # A device that comes before there is work is told to come back much later.
        submitted = asyncio.Event()
        watching = asyncio.create_task(one_round(port, bundle, submitted))
        await submitted.wait()
        edge = Running(
            edge_daemon.serve,
            EdgeSettings(
                tmp_path / "edge",
                listen="127.0.0.1:0",
                cloud=HomeAddress(CLOUD, grpc=f"127.0.0.1:{port}"),
                insecure=True,
                number=1,
            ),
        )
        at = (await edge.ready())["grpc"]
        device = Running(
            device_daemon.serve,
            DeviceSettings(
                tmp_path / "device",
                homes=(HomeAddress(EDGE, grpc=f"127.0.0.1:{at}"),),
                worker=WorkerSettings(
                    data=DataSettings(str(tmp_path / "data.npz")), backend="reference"
                ),
                conditions=ConditionSettings(
                    powered=True, unmetered=True, idle=True, consented=True
                ),
                policy=DevicePolicy(secure_required=False),
                insecure=True,
                number=7,
            ),
        )
        await device.ready()
        events = await watching
        for daemon in (device, edge, cloud):
            await daemon.end()
        return events, [d.exporter.get_finished_spans() for d in (cloud, edge, device)]

    events, (cloud, edge, device) = asyncio.run(asyncio.wait_for(scene(), 120))
    assert [facts["succeeded"] for kind, facts in events if kind == "round"] == [True]

    attempts = [s for s in cloud if s.name == "attempt"]
    assert len(attempts) == 2, "training, and judging"
    for attempt in attempts:
        trace, root, above = ids_of(attempt)
        assert above == 0 and attempt.attributes["delian.node"] == "cloud"
        (gather,) = (s for s in edge if s.name == "gather" and s.context.trace_id == trace)
        (task,) = (s for s in device if s.name == "task" and s.context.trace_id == trace)
        assert ids_of(gather)[2] == root and ids_of(task)[2] == gather.context.span_id
        named = ("delian.run", "delian.round", "delian.attempt")
        assert len({tuple(s.attributes[n] for n in named) for s in (attempt, gather, task)}) == 1
        for spans, part, names in (
            (edge, gather, {"upload"}),
            (device, task, {"upload"}),
        ):
            inner = {s.name for s in spans if ids_of(s)[::2] == (trace, part.context.span_id)}
            assert names <= inner
        assert attempt.start_time <= gather.start_time <= task.start_time
    training, judging = (
        {s.name for s in device if s.context.trace_id == a.context.trace_id}
        for a in sorted(attempts, key=lambda s: s.start_time)
    )
    assert training == {"task", "fetch", "client_update", "upload"}
    assert {"task", "evaluate", "upload"} <= judging
    (update,) = (s for s in cloud if s.name == "server_update")
    first = min(attempts, key=lambda s: s.start_time)
    assert ids_of(update)[::2] == (first.context.trace_id, first.context.span_id)
    assert all(s.end_time >= s.start_time for s in (*cloud, *edge, *device))

    traces = {f"{s.context.trace_id:032x}" for s in attempts}
    said = [(area, parse(trace)) for area, _, trace in lines if trace]
    assert {"gather is over", "task is over"} <= {text for _, text, trace in lines if trace}
    areas = {
        "delian.cloud",
        "delian.device",
        "delian.device.agent.runner",
        "delian.device.agent.personal_model",
    }
    assert areas <= {area for area, _ in said}
    assert {context.trace for _, context in said} <= traces
    told = read_status(tmp_path / "device")["traffic"]["edge"]
    assert told["received_bytes"] > bundle.weights.nbytes < told["sent_bytes"]
