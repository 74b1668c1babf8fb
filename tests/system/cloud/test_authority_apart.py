"""The authority as a process of its own, and a coordinator without the CA's key: over loopback."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.cloud.authority import authority_service, remote
from delian.cloud.authority.authority_settings import AuthoritySettings
from delian.cloud.authority.daemon import AuthorityDaemon
from delian.cloud.authority.remote import RemoteAuthority
from delian.cloud.protocol.coordinator_state import CoordinatorPolicy
from delian.cloud.service.audit import verify
from delian.cloud.service.daemon import CloudDaemon, CloudSettings
from delian.core.common.merkle_tree import leaf_hash
from delian.core.learning.data.rows import DataSettings
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.founding import publish
from delian.core.node.identity.authority.tokens import TokenBook
from delian.core.node.identity.enrolment.joining import join
from delian.core.node.identity.enrolment.renewal import RenewalRefused, renew_call, reply_of
from delian.core.node.identity.enrolment.renewal_messages import make_ask
from delian.core.node.identity.log.log_entries import ENTRY_BYTES, cosigned, leaf_of
from delian.core.node.identity.log.witness import PUBLIC_FILE, Witness
from delian.core.node.identity.log.witnessing import Witnessing
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    authority_options,
    certificate_request,
    channel_credentials,
    channel_options,
    load_certificate,
)
from delian.core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder
from delian.core.node.identity.pki.local_identity import operator_identity
from delian.core.node.net.free_ports import free_ports
from delian.core.node.net.grpc.grpc_log import log_call
from delian.core.node.net.grpc.grpc_witness import WitnessService, serve_witness
from delian.core.node.net.message_limits import Buckets
from delian.core.node.net.relay import EDGE_PER_S
from delian.core.node.storage.codec import address
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import link_pb2
from delian.core.wire.authority_pb2 import (
    Announcement,
    EnrolledNode,
    NodesAsk,
    NodesPage,
    RevokeRequest,
)
from delian.core.wire.authority_pb2_grpc import AuthorityStub
from delian.core.wire.enrolment_pb2_grpc import IdentityStub
from delian.core.wire.log_pb2 import LogAsk
from delian.core.wire.operator_pb2 import (
    AuditRequest,
    ListRequest,
    NodeRequest,
    PlanMessage,
    RunOrder,
    TokenRequest,
)
from delian.core.wire.operator_pb2_grpc import OperatorStub
from delian.core.wire.round_pb2 import RingPlan
from delian.device.agent import daemon as devices
from delian.device.agent.conditions import ConditionSettings
from delian.device.agent.owner_limits import WorkerSettings
from delian.edge.protocol.edge_state import EdgeState
from delian.edge.protocol.machine import EdgeMachine, restore
from support.waiting import run, until

CODE = grpc.StatusCode
DEVICE = Node(Tier.DEVICE, 1)


def gatherer(snapshot):
    return EdgeMachine(EdgeState(0, 1) if snapshot is None else restore(snapshot))


class Farm:
    """An authority and a coordinator, each with a folder of its own. Ends with `stack`."""

    def __init__(self, folder, stack):
        self.folder, self.stack = folder, stack
        self.state, self.cloud_folder = folder / "authority", folder / "cloud"
        self.witnesses, self.learned = (), asyncio.Event()

    async def start(self, witnessed=False):
        self.ca = Authority.create(self.state / "ca", "farm")
        if witnessed:
            await self.run_witness()
        operator_identity(self.ca, self.folder / "admin")
        self.ports = dict(zip(("grpc", "enrolment", "cloud"), free_ports(3), strict=True))
        self.authority = await self.run_authority()
        await self.join(self.token(Role.CLOUD), self.cloud_folder / "identity")
        self.cloud = await self.run_cloud()

    async def run_witness(self):
        """A witness of the log, which the federation's terms ask for."""
        witness = Witness.create(self.folder / "witness")
        witness.add(self.ca.pem)
        key = self.folder / "witness" / PUBLIC_FILE
        publish(self.ca, witnesses=[key], quorum=1, log_required=True, fresh=True)
        server, port = await serve_witness("127.0.0.1:0", WitnessService(witness))
        self.stack.push_async_callback(server.stop, None)
        self.witnesses = (f"127.0.0.1:{port}",)
        return witness

    async def run_authority(self):
        settings = AuthoritySettings(
            self.state,
            witnesses=self.witnesses,
            listen=f"127.0.0.1:{self.ports['grpc']}",
            enrolment=f"127.0.0.1:{self.ports['enrolment']}",
        )
        return await self._run(AuthorityDaemon(settings))

    async def run_cloud(self):
        settings = CloudSettings(
            self.cloud_folder,
            authority=f"127.0.0.1:{self.ports['grpc']}",
            listen=f"127.0.0.1:{self.ports['cloud']}",
            health="",
            backend="reference",
            policy=CoordinatorPolicy(after_reject_ms=(50, 100), after_task_ms=(50, 100)),
            news_s=0.1,
        )
        return self._learning(await self._run(CloudDaemon(settings, gatherer)))

    def _learning(self, daemon):
        """Sets `learned` when a coordinator has taken over nodes."""
        learn = daemon.fleet.learn

        async def learned(*nodes):
            await learn(*nodes)
            self.learned.set()

        daemon.fleet.learn = learned
        return daemon

    async def _run(self, daemon):
        self.stack.push_async_callback(daemon.close)
        await daemon.start()
        return daemon

    def token(self, role=Role.DEVICE, **options):
        made, _ = TokenBook(self.ca.folder, self.ca.lock).create(
            role, "farm", f"127.0.0.1:{self.ports['enrolment']}", self.ca.root_public, **options
        )
        return made.text()

    async def join(self, text, folder):
        await join(text, folder, labels={"host": folder.name})
        return IdentityFolder(folder)

    async def call(self, stub, own, port, options):
        """A stub with the certificate of an identity."""
        channel = grpc.aio.secure_channel(
            f"127.0.0.1:{port}", channel_credentials(own.material()), options=list(options)
        )
        return stub(await self.stack.enter_async_context(channel))

    async def of_authority(self, own, stub=AuthorityStub):
        return await self.call(stub, own, self.ports["grpc"], authority_options("farm"))

    async def of_cloud(self, own, stub=OperatorStub):
        return await self.call(stub, own, self.ports["cloud"], channel_options("farm", CLOUD))

    @property
    def admin(self):
        return IdentityFolder(self.folder / "admin")

    async def device(self):
        """A device that joined at the authority and runs."""
        np.savez(self.folder / "data.npz", x=np.zeros((8, 4), np.float32), y=np.zeros(8, np.int32))
        own = await self.join(self.token(), self.folder / "device" / "identity")
        settings = devices.DeviceSettings(
            folder=self.folder / "device",
            identity=own.folder,
            homes=own.facts().homes,
            worker=WorkerSettings(
                data=DataSettings(str(self.folder / "data.npz")), backend="reference"
            ),
            conditions=ConditionSettings(powered=True, unmetered=True, idle=True, consented=True),
        )
        stop, ready = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(devices.serve(settings, stop, lambda facts: ready.set()))

        async def end():
            stop.set()
            with contextlib.suppress(RenewalRefused):
                await task

        self.stack.push_async_callback(end)
        await ready.wait()
        return own

    async def want_devices(self):
        """A run that waits for more devices than there are: so all are wanted."""
        plan = PlanMessage(name="wanting", rounds=1, cohort=9, over_selection=1.0, pool_min=90)
        plan.bundle.CopyFrom(await self.cloud.blobs.put(b"programs"))
        plan.weights.CopyFrom(await self.cloud.blobs.put(bytes(12)))
        plan.wait_ms = 3_600_000
        plan.ring.CopyFrom(RingPlan(clip=1.0, clients_max=9, bits=32, dimension=3))
        number = await self.cloud.registry.add_run(plan)
        await self.cloud.orders.give(RunOrder(run=number, submit=plan))

    def pool(self):
        return set(self.cloud.gatherer.machine.state.pool)


def within(folder, scenario, witnessed=False):
    async def main():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Witnessing.run, "__defaults__", (0.1,))
            async with contextlib.AsyncExitStack() as stack:
                farm = Farm(folder, stack)
                await farm.start(witnessed)
                await scenario(farm)

    run(main())


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call
    return refusal.value.code(), refusal.value.details()


async def renew(farm, own):
    """Through the coordinator, over gRPC."""
    key = own.pending_key()
    target = f"127.0.0.1:{farm.ports['cloud']}"
    reply = await renew_call(target, CLOUD, own.material(), certificate_request(key), 30)
    return own.accept(key, reply)


def test_a_device_joins_works_renews_and_is_revoked_and_the_coordinator_has_no_key(tmp_path):
    async def scenario(farm):
        await farm.want_devices()
        own = await farm.device()
        before = own.identity()
        assert before.node == DEVICE
        assert [h.grpc for h in own.facts().homes] == [f"127.0.0.1:{farm.ports['cloud']}"]
        await until(lambda: farm.pool() == {1})
        operator = await farm.of_cloud(farm.admin)
        asked = NodeRequest(node=address(DEVICE))
        # Its name comes from the authority, its state from the coordinator's machine.
        await farm.learned.wait()
        edges = farm.cloud.cloud.machine.state.edges
        await until(lambda: 0 in edges and 1 in edges[0].ready)
        found = await operator.GetNode(asked)
        assert found.state == "ready" and found.enrolled_ms
        assert found.labels["host"] == "identity"
        after = await renew(farm, own)
        assert after.node == DEVICE and after.serial != before.serial
        names = {path.name for path in farm.cloud_folder.rglob("*")}
        assert "ca.key" not in names and not (farm.cloud_folder / "ca").exists()
        authority = await farm.of_authority(farm.admin)
        assert (await authority.Revoke(RevokeRequest(name="device-1", why="lost"))).changed
        await until(lambda: not farm.pool() and DEVICE not in farm.cloud.hub.peers)
        assert (await operator.GetNode(asked)).state == "revoked"
        with pytest.raises(RenewalRefused, match="revoked"):
            await renew(farm, own)

    within(tmp_path, scenario)


def test_while_the_authority_is_away_rounds_have_devices_and_only_joins_and_renewals_wait(tmp_path):
    async def scenario(farm):
        await farm.want_devices()
        own = await farm.device()
        text = farm.token()
        await until(lambda: farm.pool() == {1})
        await farm.authority.close()
        await until(lambda: not farm.cloud.trust.reached)
        with pytest.raises(IdentityError, match="cannot reach the authority"):
            await farm.join(text, tmp_path / "late")
        with pytest.raises(IdentityError, match="the authority at") as told:
            await renew(farm, own)
        assert not isinstance(told.value, RenewalRefused), "it may go better later"
        # Also started again the coordinator works with the copies that it has.
        listed = farm.cloud.trust.denied()
        await farm.cloud.close()
        farm.cloud = await farm.run_cloud()
        assert farm.cloud.trust.denied() == listed and not farm.cloud.trust.reached
        operator = await farm.of_cloud(farm.admin)
        assert len((await operator.ListRuns(ListRequest())).runs) == 1
        await until(lambda: farm.pool() == {1})
        await farm.run_authority()
        await until(lambda: farm.cloud.trust.reached)
        assert (await farm.join(text, tmp_path / "late")).identity().number == 2
        await renew(farm, own)

    within(tmp_path, scenario)


def test_a_coordinator_that_never_had_a_deny_list_does_not_start_without_the_authority(tmp_path):
    async def scenario(farm):
        await farm.cloud.close()
        await farm.authority.close()
        (farm.cloud_folder / "identity" / "denied.list").unlink()
        with pytest.raises(IdentityError, match="has no deny list yet"):
            await farm.run_cloud()

    within(tmp_path, scenario)


def test_an_operator_s_calls_that_need_the_key_say_where_the_authority_is(tmp_path):
    async def scenario(farm):
        operator = await farm.of_cloud(farm.admin)
        code, text = await refused(
            operator.CreateToken(TokenRequest(tier=link_pb2.NODE_DEVICE, uses=1))
        )
        at = f"--authority 127.0.0.1:{farm.ports['grpc']}"
        assert code is CODE.INVALID_ARGUMENT and f"delian token {at}" in text
        await farm.device()
        authority = await farm.of_authority(farm.admin)
        made = await authority.CreateToken(TokenRequest(tier=link_pb2.NODE_DEVICE, uses=1))
        assert (await farm.join(made.token, tmp_path / "two")).identity().number == 2
        code, text = await refused(authority.CreateToken(TokenRequest(tier=link_pb2.NODE_CLOUD)))
        assert "not made by a call" in text
        lines = [line.line async for line in authority.Audit(AuditRequest())]
        report = verify(lines, farm.ca.certificate)
        assert report.entries == 4 and report.signed == 4

    within(tmp_path, scenario)


def test_the_coordinator_s_copy_of_the_log_proves_devices_under_a_witnessed_head(tmp_path):
    async def scenario(farm):
        own = await farm.join(farm.token(), tmp_path / "one")
        leaf = leaf_of(load_certificate(own.material().certificate))
        copy, key = farm.cloud.trust.log, farm.cloud.trust.terms().witnesses
        assert copy.folder.is_relative_to(farm.cloud_folder)
        await until(lambda: copy.place(leaf) is not None)
        # Sessions go by it, and only by a head that the witness has signed.
        state = farm.cloud.cloud.machine.state
        await until(lambda: state.log is not None and state.log.size > copy.place(leaf))
        assert cosigned(copy.checkpoint, key)
        # Nodes read it from the coordinator, also while the authority is away.
        await farm.authority.close()
        stub = await farm.of_cloud(own, IdentityStub)
        page = await stub.Log(LogAsk(first=copy.place(leaf)))
        assert leaf_hash(page.entries[:ENTRY_BYTES]) == leaf

    within(tmp_path, scenario, witnessed=True)


def test_an_operator_reads_the_log_at_the_authority_itself(tmp_path):
    async def scenario(farm):
        target, own = f"127.0.0.1:{farm.ports['grpc']}", farm.admin.material()
        page = await log_call(own, target, LogAsk(), authority=True)
        assert len(page.entries) == farm.ca.log.tree.size * ENTRY_BYTES
        with pytest.raises(IdentityError, match="did not give the certificate log"):
            await log_call(own, target, LogAsk())  # it does not pass for the coordinator

    within(tmp_path, scenario)


# ---------------------------------------------------------------- hostile callers


def test_a_coordinator_s_certificate_makes_no_token_and_revokes_nobody(tmp_path):
    async def scenario(farm):
        coordinator = await farm.of_authority(IdentityFolder(farm.cloud_folder / "identity"))
        for call, request in (
            (coordinator.CreateToken, TokenRequest(tier=link_pb2.NODE_DEVICE)),
            (coordinator.Revoke, RevokeRequest(name="admin-1")),
        ):
            assert (await refused(call(request)))[0] is CODE.PERMISSION_DENIED
        device = await farm.join(farm.token(), tmp_path / "one")
        below = await farm.of_authority(device)
        for call, request in (
            (below.Nodes, NodesAsk(tier=link_pb2.NODE_DEVICE)),
            (below.Announce, Announcement()),
        ):
            assert (await refused(call(request)))[0] is CODE.PERMISSION_DENIED

    within(tmp_path, scenario)


def test_a_coordinator_has_no_certificate_made_that_the_node_did_not_ask_for(tmp_path):
    async def scenario(farm):
        device = await farm.join(farm.token(), tmp_path / "one")
        cloud = IdentityFolder(farm.cloud_folder / "identity")
        stub = await farm.of_authority(cloud, IdentityStub)
        issued = len(farm.authority.hosted.ca.issued())
        thief = make_ask(cloud.material(), certificate_request(cloud.pending_key()))
        ask = make_ask(device.material(), certificate_request(device.pending_key()))
        claim = link_pb2.RenewalClaim.FromString(ask.claim)
        claim.request = certificate_request(cloud.pending_key())
        for forged in (
            link_pb2.RenewalAsk(claim=claim.SerializeToString(), signature=ask.signature),
            link_pb2.RenewalAsk(claim=claim.SerializeToString(), signature=thief.signature),
            link_pb2.RenewalAsk(claim=b"x" * 20_000, signature=ask.signature),
        ):
            assert (await refused(stub.Renew(forged)))[0] is CODE.INVALID_ARGUMENT
        assert len(farm.authority.hosted.ca.issued()) == issued
        # And the answer to a true one is the node's alone to use, signed by the authority.
        answer = await stub.Renew(ask)
        assert reply_of(answer, ask, device.material()).node == address(DEVICE)
        result = link_pb2.RenewalResult.FromString(answer.result)
        result.ClearField("reply")
        answer.result = result.SerializeToString()
        with pytest.raises(IdentityError, match="not signed") as told:
            reply_of(answer, ask, device.material())
        assert not isinstance(told.value, RenewalRefused)

    within(tmp_path, scenario)


def test_a_coordinator_that_was_revoked_gets_no_certificate_and_no_answer(tmp_path):
    async def scenario(farm):
        own = IdentityFolder(farm.cloud_folder / "identity")
        material = own.material()
        asking = RemoteAuthority(f"127.0.0.1:{farm.ports['grpc']}", lambda: material)
        farm.stack.push_async_callback(asking.close)
        ask = make_ask(material, certificate_request(own.pending_key()))
        await asking.announce(Announcement())
        admin = await farm.of_authority(farm.admin)
        with pytest.MonkeyPatch.context() as patch:
            # Certificates begin an hour back, and those of one second are void together.
            patch.setattr("delian.core.node.identity.authority.authority.BACKDATE_S", -1)
            assert (await admin.Revoke(RevokeRequest(name="cloud-0"))).changed
        for call in (asking.announce(Announcement()), asking.renew(ask)):
            with pytest.raises(IdentityError, match="revoked"):
                await call
        answer = await farm.authority.authority.renew(ask)
        with pytest.raises(RenewalRefused, match="revoked"):
            reply_of(answer, ask, material)

    within(tmp_path, scenario)


@pytest.mark.parametrize("home", ["unix:/run/x", "", "host:0"])
def test_an_announcement_that_names_no_coordinator_is_refused(tmp_path, home):
    async def scenario(farm):
        stub = await farm.of_authority(IdentityFolder(farm.cloud_folder / "identity"))
        said = Announcement()
        said.home.node.CopyFrom(address(CLOUD if home else Node(Tier.EDGE, 3)))
        said.home.grpc = home or "edge.example:1"
        assert (await refused(stub.Announce(said)))[0] is CODE.INVALID_ARGUMENT
        assert farm.authority.fleet.cloud == HomeAddress(CLOUD, f"127.0.0.1:{farm.ports['cloud']}")

    within(tmp_path, scenario)


def test_what_a_coordinator_may_ask_of_the_authority_has_a_rate(tmp_path):
    async def scenario(farm):
        await farm.cloud.close()  # so that it asks for nothing itself
        own = IdentityFolder(farm.cloud_folder / "identity")
        farm.authority.service._rates = farm.authority.identity._rates = lambda: 0.0
        farm.authority.service._calls = Buckets(3, authority_service.CALLS_PER_S)
        stub = await farm.of_authority(own)
        for _ in range(3):
            await stub.Announce(Announcement())
        for call, request in (
            (stub.Announce, Announcement()),
            (stub.Nodes, NodesAsk(tier=link_pb2.NODE_DEVICE)),
            (stub.Recall, iter([])),
        ):
            assert (await refused(call(request)))[0] is CODE.RESOURCE_EXHAUSTED
        # An admin's calls are not stopped by that.
        admin = await farm.of_authority(farm.admin)
        assert (await admin.CreateToken(TokenRequest(tier=link_pb2.NODE_DEVICE))).token
        ask = make_ask(own.material(), certificate_request(own.pending_key()))
        renewing = await farm.of_authority(own, IdentityStub)
        farm.authority.identity._asks = Buckets(1, EDGE_PER_S)
        await renewing.Renew(ask)
        assert (await refused(renewing.Renew(ask)))[0] is CODE.RESOURCE_EXHAUSTED

    within(tmp_path, scenario)


def test_a_node_renews_for_nobody_else_through_the_coordinator(tmp_path):
    async def scenario(farm):
        one = await farm.join(farm.token(), tmp_path / "one")
        two = await farm.join(farm.token(), tmp_path / "two")
        ask = make_ask(two.material(), certificate_request(two.pending_key()))
        stub = await farm.of_cloud(one, IdentityStub)
        code, why = await refused(stub.Renew(ask))
        assert code is CODE.INVALID_ARGUMENT and "for another node" in why

    within(tmp_path, scenario)


def node(number, enrolled_ms=1, **changes):
    return EnrolledNode(number=number, enrolled_ms=enrolled_ms, certificate_ends_ms=1, **changes)


@pytest.mark.parametrize(
    "nodes",
    [
        [node(2), node(2)],
        [node(1)],
        [node(2**63)],
        [node(2, 0)],
        [node(2, 2**63)],
        [node(2, labels={"host": "x" * 300})],
        [node(2, site="not a site")],
        [node(number) for number in range(2, 300)],
    ],
)
def test_a_page_of_nodes_that_cannot_be_is_not_taken_over(nodes):
    with pytest.raises(IdentityError):
        remote._checked(NodesPage(nodes=nodes), after=1)


# ---------------------------------------------------------------- after a restore


def test_an_authority_restored_from_a_backup_takes_back_revocations_and_numbers(tmp_path):
    async def scenario(farm):
        await farm.join(farm.token(), tmp_path / "one")
        await farm.authority.close()
        ca, database = farm.state / "ca", farm.state / "delian.db"
        mark = database.with_name("delian.db.mark")
        backup = {p: p.read_bytes() for p in (*ca.glob("*.jsonl*"), database, mark)}
        farm.authority = await farm.run_authority()
        await farm.join(farm.token(), tmp_path / "two")
        await (await farm.of_authority(farm.admin)).Revoke(RevokeRequest(name="device-2"))
        await until(lambda: farm.cloud.trust.denied().revoked(Node(Tier.DEVICE, 2)))
        await until(lambda: (kept := farm.cloud.trust.numbers(0).newest()) and kept.devices == 2)
        await farm.authority.close()
        for path in (*ca.glob("*.jsonl*"), database, mark):
            path.unlink()
        for path, content in backup.items():
            path.write_bytes(content)
        farm.ca = Authority(ca)
        farm.authority = await farm.run_authority()
        await until(lambda: farm.authority.hosted.ca.denied().revoked(Node(Tier.DEVICE, 2)))
        assert farm.authority.hosted.ca.last_number(Role.DEVICE) == 2
        assert (await farm.join(farm.token(), tmp_path / "three")).identity().number == 3

    within(tmp_path, scenario)


def test_a_coordinator_cannot_make_up_numbers_or_revocations(tmp_path):
    async def scenario(farm):
        stub = await farm.of_authority(IdentityFolder(farm.cloud_folder / "identity"))
        said = Announcement()
        said.numbers.federation, said.numbers.devices = "farm", 4_000_000
        said.numbers.signature = b"x" * 70
        assert (await refused(stub.Announce(said)))[0] is CODE.INVALID_ARGUMENT
        assert farm.authority.hosted.ca.last_number(Role.DEVICE) == 0
        signed = farm.authority.authority.signed()
        page = link_pb2.DeniedPage(head=signed.head[:-1] + b"x", signature=signed.signature)
        assert (await refused(stub.Recall(iter([page]))))[0] is CODE.INVALID_ARGUMENT

    within(tmp_path, scenario)
