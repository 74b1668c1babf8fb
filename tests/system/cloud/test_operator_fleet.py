"""The coordinator's operator service: nodes of the fleet."""

from __future__ import annotations

import asyncio
import time
import types

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.cloud.service.fleet_registry import Fleet, _info
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.enrolment.joining import join
from delian.core.node.identity.pki.certificates import Role
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.node.storage.codec import address
from delian.core.protocol.ports import CLOUD, Node, Received, Tier
from delian.core.wire import link_pb2
from delian.core.wire.admission_pb2 import EdgeHello
from delian.core.wire.operator_pb2 import (
    FleetRequest,
    ListRequest,
    NodeRequest,
    TokenRequest,
)
from delian.core.wire.operator_pb2_grpc import OperatorStub
from delian.edge.protocol.edge_state import Phase as EdgePhase
from support.operator_bench import (
    calling,
    certified,
    daemon_at,
    reached,
    refused,
    run,
)


def test_nodes_are_listed_with_what_they_do(tmp_path):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            edge = Node(Tier.EDGE, 3)
            hello = EdgeHello(edge=3, incarnation=1, sequence=1, protocol=1, ready=[5, 6, 9])
            daemon.cloud.post(Received(edge, hello))
            await reached(daemon.cloud, lambda: 3 in daemon.cloud.machine.state.edges)
            nodes = (await call("ListNodes", FleetRequest())).nodes
            told = {(n.node.tier, n.node.number): (n.state, n.home.number) for n in nodes}
            assert told[link_pb2.NODE_EDGE, 3] == ("ready", 0)
            assert told[link_pb2.NODE_EDGE, 0] == ("ready", 0)
            assert told[link_pb2.NODE_DEVICE, 5] == ("ready", 3)
            pages, after = [], 0
            while page := (
                await call(
                    "ListNodes", FleetRequest(tier=link_pb2.NODE_DEVICE, limit=2, after=after)
                )
            ).nodes:
                pages.append([n.node.number for n in page])
                after = page[-1].node.number
            assert pages == [[5, 6], [9]]
            one = await call("GetNode", NodeRequest(node=address(edge)))
            assert one.state == "ready" and one.seen_ms > 0
            nobody = NodeRequest(node=address(Node(Tier.DEVICE, 77)))
            assert (await refused(call("GetNode", nobody)))[0] is grpc.StatusCode.NOT_FOUND

    run(main())


def test_who_has_joined_and_not_come_yet_is_not_gone():
    def state(**row):
        facts = {"tier": "device", "number": 4, "home": None, "state": "", "labels": {}, "site": ""}
        return _info(
            types.SimpleNamespace(**facts, **row, certificate_ends_ms=1, seen_ms=0), None
        ).state

    assert state(enrolled_ms=int(time.time() * 1000)) == "enrolled"
    assert state(enrolled_ms=1) == "gone"


def test_any_edge_is_drained_and_put_back(tmp_path):
    own, other = Node(Tier.EDGE, 0), Node(Tier.EDGE, 3)

    async def state(call, node, name="GetNode", **request):
        return (await call(name, NodeRequest(node=address(node), **request))).state

    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            hello = EdgeHello(edge=3, incarnation=1, sequence=1, protocol=1, ready=[5])
            daemon.cloud.post(Received(other, hello))
            await reached(daemon.cloud, lambda: 3 in daemon.cloud.machine.state.edges)
            for node in (own, other):
                assert await state(call, node, "DrainNode") == "draining"
                assert await state(call, node, "DrainNode") == "draining"
            # The coordinator's own edge hears of it as any other does, and says so.
            gatherer = daemon.gatherer
            await reached(gatherer, lambda: gatherer.machine.state.phase is EdgePhase.DRAINING)
            views = daemon.cloud.machine.state.edges
            await reached(daemon.cloud, lambda: views[0].told_draining)
            assert await state(call, own) == "drained"
            told = {"incarnation": 1, "protocol": 1, "told_draining": True}
            daemon.cloud.post(Received(other, EdgeHello(edge=3, sequence=2, **told)))
            await reached(daemon.cloud, lambda: views[3].told_draining)
            assert await state(call, other) == "drained"
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            assert await state(call, other) == "drained"
            assert await state(call, own, "DrainNode", undo=True) in ("draining", "ready")
            gatherer = daemon.gatherer
            await reached(gatherer, lambda: gatherer.machine.state.phase is EdgePhase.SERVING)
            assert await state(call, own) == "ready"
            await state(call, other, "DrainNode", undo=True)
            assert not daemon.cloud.machine.state.draining

    run(main())


def test_what_is_no_edge_is_not_drained_and_it_is_said_what_to_do(tmp_path):
    async def main():
        async with daemon_at(tmp_path) as daemon, calling(daemon) as call:
            for node, words in (
                (Node(Tier.DEVICE, 5), "delian device consent no"),
                (CLOUD, "pause its runs"),
            ):
                code, text = await refused(call("DrainNode", NodeRequest(node=address(node))))
                assert code is grpc.StatusCode.INVALID_ARGUMENT and words in text
            nobody = NodeRequest(node=address(Node(Tier.EDGE, 77)))
            assert (await refused(call("DrainNode", nobody)))[0] is grpc.StatusCode.NOT_FOUND

    run(main())


def test_only_operators_are_served(tmp_path):
    async def main():
        async with daemon_at(tmp_path) as daemon:
            for name in ("device-1", "edge-1", "cloud-0"):
                async with calling(daemon, name) as call:
                    code, _ = await refused(call("ListRuns", ListRequest()))
                    assert code is grpc.StatusCode.PERMISSION_DENIED

    run(main())


def test_with_certificates_nodes_join_by_token_and_are_revoked(tmp_path):
    async def main():
        async with certified(tmp_path) as (daemon, stub):
            request = TokenRequest(tier=link_pb2.NODE_DEVICE)
            token = (await stub.CreateToken(request)).token
            address_now = f"127.0.0.1:{daemon.ports['enrolment']}"
            own = IdentityFolder(tmp_path / "device")
            await join(token, own.folder, labels={"host": "barn"}, address=address_now)
            node = NodeRequest(node=address(Node(Tier.DEVICE, 1)))
            found = await stub.GetNode(node)
            assert found.labels["host"] == "barn" and found.certificate_ends_ms > 0
            await stub.RevokeNode(node)
            assert (await stub.GetNode(node)).state == "revoked"
            assert Authority(tmp_path / "ca").denied().denies(own.identity())
            plain = grpc.aio.insecure_channel(f"127.0.0.1:{daemon.ports['grpc']}")
            code, _ = await refused(OperatorStub(plain).ListRuns(ListRequest(), timeout=60))
            assert code is grpc.StatusCode.UNAVAILABLE
            await plain.close()

    run(main())


def test_what_the_ca_or_the_store_lost_in_a_restore_the_other_still_knows(tmp_path, monkeypatch):
    async def main():
        marked, mark = asyncio.Event(), Fleet.mark

        async def watched(self, node, state):
            await mark(self, node, state)
            marked.set()

        async with certified(tmp_path) as (daemon, _):
            for number in (1, 2):
                await daemon.fleet.register(Tier.DEVICE, {}, 1)
                daemon.hosted.ca.give_number(Role.DEVICE, number)
            await daemon.fleet.mark(Node(Tier.DEVICE, 1), "revoked")
        for name in ("numbers.jsonl", "denied.jsonl"):
            (tmp_path / "ca" / name).unlink(missing_ok=True)
        Authority(tmp_path / "ca").note_number(Role.DEVICE, 2)
        Authority(tmp_path / "ca").revoke("device-2")
        (tmp_path / "ca" / "numbers.jsonl").unlink()
        (tmp_path / "operator").rename(tmp_path / "before")
        monkeypatch.setattr(Fleet, "mark", watched)
        async with certified(tmp_path) as (daemon, _):
            both = {Node(Tier.DEVICE, number) for number in (1, 2)}
            await asyncio.wait_for(marked.wait(), 120)
            assert set(daemon.trust.denied().nodes()) == both
            assert set(await daemon.fleet.revoked()) == both
            assert daemon.hosted.ca.last_number(Role.DEVICE) == 2

    run(main())
