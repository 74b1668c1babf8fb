"""A coordinator's daemon of this process, and operators that call it over a loopback channel."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.cloud.service.audit import verify
from delian.cloud.service.daemon import CloudDaemon, CloudSettings
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.pki.certificates import channel_credentials, channel_options
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.node.identity.pki.local_identity import operator_identity
from delian.core.node.net.grpc.grpc_guard import claim
from delian.core.protocol.ports import CLOUD
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import (
    AuditRequest,
    PlanMessage,
    PutPart,
)
from delian.core.wire.operator_pb2_grpc import OperatorStub
from delian.edge.protocol.edge_state import EdgeState
from delian.edge.protocol.machine import EdgeMachine, restore

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def gatherer(snapshot):
    return EdgeMachine(EdgeState(0, 1) if snapshot is None else restore(snapshot))


@contextlib.asynccontextmanager
async def daemon_at(folder, **changes):
    values = {
        "listen": "127.0.0.1:0",
        "enrolment": "",
        "health": "127.0.0.1:0",
        "insecure": True,
        "backend": "reference",
        **changes,
    }
    daemon = CloudDaemon(CloudSettings(folder, **values), gatherer)
    try:
        await daemon.start()
        yield daemon
    finally:
        await daemon.close()


@contextlib.asynccontextmanager
async def certified(folder):
    """A daemon with certificates, and an operator's stub."""
    ca = folder / "ca"
    authority = Authority(ca) if ca.exists() else Authority.create(ca, "farm")
    operator_identity(authority, folder / "operator")
    changes = {"insecure": False, "enrolment": "127.0.0.1:0", "addresses": ("127.0.0.1",)}
    changes |= {"ca": folder / "ca", "public_enrolment": "127.0.0.1:1"}
    async with daemon_at(folder / "cloud", **changes) as daemon:
        credentials = channel_credentials(IdentityFolder(folder / "operator").material())
        options = list(channel_options("farm", CLOUD))
        target = f"127.0.0.1:{daemon.ports['grpc']}"
        async with grpc.aio.secure_channel(target, credentials, options=options) as channel:
            yield daemon, OperatorStub(channel)


@contextlib.asynccontextmanager
async def calling(daemon, name="operator-0"):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{daemon.ports['grpc']}") as channel:
        stub = OperatorStub(channel)
        yield lambda call, request, **o: getattr(stub, call)(request, metadata=claim(name), **o)


def run(main):
    return asyncio.run(asyncio.wait_for(main, 300))


def ref_of(content) -> BlobRef:
    return BlobRef(digest=hashlib.sha256(content).digest(), size=len(content))


async def put(call, content, ref=None) -> BlobRef:
    half = len(content) // 2
    parts = [PutPart(blob=ref or ref_of(content)), PutPart(content=content[:half])]
    return await call("PutBlob", iter([*parts, PutPart(content=content[half:])]))


async def plan_of(call, bundle, **changes) -> PlanMessage:
    manifest = bundle.manifest
    plan = PlanMessage(name="small", rounds=2, cohort=2, over_selection=1.0)
    plan.bundle.CopyFrom(await put(call, bundle.bare().to_bytes()))
    plan.weights.CopyFrom(await put(call, bundle.weights.tobytes()))
    for part in bundle.frozen_contents():
        plan.frozen.append(await put(call, part))
    plan.ring.clip, plan.ring.clients_max = manifest.clip, manifest.clients_max
    plan.ring.bits, plan.ring.dimension = 32, manifest.dimension
    for name, value in changes.items():
        setattr(plan, name, value)
    return plan


async def refused(awaitable) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value.code(), caught.value.details()


@contextlib.asynccontextmanager
async def as_operator(folder, daemon, role):
    """A stub with a new identity of that role."""
    own = IdentityFolder(folder / f"operator-{time.monotonic_ns()}")
    operator_identity(Authority(folder / "ca"), own.folder, role)
    options = list(channel_options("farm", CLOUD))
    target = f"127.0.0.1:{daemon.ports['grpc']}"
    credentials = channel_credentials(own.material())
    async with grpc.aio.secure_channel(target, credentials, options=options) as channel:
        yield OperatorStub(channel), own


async def recorded(stub, authority):
    """The entries about calls, of a record that holds."""
    lines = [each.line async for each in stub.Audit(AuditRequest())]
    entries = []
    report = verify(lines, authority.certificate, on_entry=entries.append)
    assert report.good and report.signed == report.entries
    return [entry for entry in entries if entry["kind"] in ("call", "outcome")]


async def reached(driver, condition):
    """Waits until `condition` holds of a driver's machine; only an event changes a machine."""
    handle, handled = driver.machine.handle, asyncio.Event()

    def watched(event, now):
        try:
            return handle(event, now)
        finally:
            handled.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.machine, "handle", watched)
        async with asyncio.timeout(120):
            while not condition():
                await handled.wait()
                handled.clear()
