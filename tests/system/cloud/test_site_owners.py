"""The owner of a site decides about the nodes of that site, and about no others."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.cloud.service.daemon import CloudDaemon, CloudSettings
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.enrolment.joining import join
from delian.core.node.identity.pki.certificates import Role, channel_credentials, channel_options
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.node.identity.pki.local_identity import operator_identity
from delian.core.node.storage.codec import address
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import link_pb2
from delian.core.wire.operator_pb2 import (
    AuditRequest,
    FleetRequest,
    ListRequest,
    NodeRequest,
    TokenRequest,
)
from delian.core.wire.operator_pb2_grpc import OperatorStub
from delian.edge.protocol.edge_state import EdgeState
from delian.edge.protocol.machine import EdgeMachine, restore

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
DEVICE, EDGE = link_pb2.NODE_DEVICE, link_pb2.NODE_EDGE


def gatherer(snapshot):
    return EdgeMachine(EdgeState(0, 1) if snapshot is None else restore(snapshot))


@contextlib.asynccontextmanager
async def coordinator(folder):
    """A daemon with certificates; gives what makes a stub of a new operator."""
    authority = Authority.create(folder / "ca", "farm")
    settings = CloudSettings(
        folder / "cloud",
        ca=folder / "ca",
        listen="127.0.0.1:0",
        enrolment="127.0.0.1:0",
        public_enrolment="127.0.0.1:1",
        addresses=("127.0.0.1",),
        backend="reference",
    )
    daemon = CloudDaemon(settings, gatherer)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(daemon.close)
        await daemon.start()

        async def stub_of(role, site=""):
            own = IdentityFolder(folder / f"{role.value}-{site}")
            operator_identity(authority, own.folder, role, site)
            options = list(channel_options("farm", CLOUD))
            channel = grpc.aio.secure_channel(
                f"127.0.0.1:{daemon.ports['grpc']}",
                channel_credentials(own.material()),
                options=options,
            )
            await stack.enter_async_context(channel)
            return OperatorStub(channel)

        async def enrol(stub, name, tier=DEVICE, **changes):
            token = (await stub.CreateToken(TokenRequest(tier=tier, **changes))).token
            own = IdentityFolder(folder / name)
            where = f"127.0.0.1:{daemon.ports['enrolment']}"
            return await join(token, own.folder, labels={"host": name}, address=where)

        yield stub_of, enrol


def node(tier, number):
    return NodeRequest(node=address(Node(tier, number)))


async def joined(stub):
    """The nodes that a token let in: all but edge 0, which is the coordinator's."""
    return [n for n in (await stub.ListNodes(FleetRequest())).nodes if n.node.number]


def run(main):
    asyncio.run(asyncio.wait_for(main, 300))


async def refused(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value.code(), caught.value.details()


def test_an_owner_lets_nodes_in_at_the_own_site_sees_drains_and_revokes_them(tmp_path):
    async def main():
        async with coordinator(tmp_path) as (stub_of, enrol):
            owner = await stub_of(Role.OWNER, "north")
            assert (await enrol(owner, "meter")).site == "north"
            assert (await enrol(owner, "gateway", EDGE)).site == "north"
            found = (await owner.ListNodes(FleetRequest())).nodes
            assert [(n.site, n.labels["host"]) for n in found] == [
                ("north", "meter"),
                ("north", "gateway"),
            ]
            await owner.ListRuns(ListRequest())
            assert (await owner.DrainNode(node(Tier.EDGE, 1))).state in ("draining", "drained")
            assert (await owner.RevokeNode(node(Tier.DEVICE, 1))).state == "revoked"

    run(main())


def test_nodes_of_other_sites_are_not_there_for_an_owner(tmp_path):
    async def main():
        async with coordinator(tmp_path) as (stub_of, enrol):
            admin, owner = await stub_of(Role.ADMIN), await stub_of(Role.OWNER, "north")
            assert (await enrol(admin, "one", site="south")).site == "south"
            assert (await enrol(admin, "two")).site == ""
            assert (await enrol(admin, "three", EDGE, site="south")).site == "south"
            assert not (await owner.ListNodes(FleetRequest())).nodes
            assert len(await joined(admin)) == 3
            for number in (1, 2):
                for call in (owner.GetNode, owner.RevokeNode):
                    assert (await refused(call(node(Tier.DEVICE, number))))[0] is NOT_FOUND
            assert (await refused(owner.DrainNode(node(Tier.EDGE, 1))))[0] is NOT_FOUND
            code, why = await refused(owner.CreateToken(TokenRequest(tier=DEVICE, site="south")))
            assert code is INVALID and "not of south" in why
            assert {n.state for n in await joined(admin)} == {"enrolled"}
            lines = [entry.line async for entry in admin.Audit(AuditRequest())]
            assert sum(b'"by":"owner-1"' in line for line in lines) == 4  # also what was refused

    run(main())
