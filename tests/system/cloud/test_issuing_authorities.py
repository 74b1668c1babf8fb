"""Organisations with authorities of their own under one root: what each may do, over loopback."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.cloud.authority.authority_service import CALLS_PER_S
from delian.cloud.authority.root_client import Refused, RootAuthority, open_authority
from delian.cloud.service import daemon as coordinators
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.delegation import accept_authority, request_authority
from delian.core.node.identity.authority.superior import Away
from delian.core.node.identity.authority.tokens import parse
from delian.core.node.identity.enrolment.renewal import RenewalRefused, renew_call
from delian.core.node.identity.enrolment.renewal_messages import make_ask
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    certificate_request,
)
from delian.core.node.identity.pki.chain import chain_of_pem
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.node.net.message_limits import Buckets
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import link_pb2
from delian.core.wire.authority_pb2 import (
    Announcement,
    AppendRequest,
    RegisterRequest,
    RevokeRequest,
)
from delian.core.wire.operator_pb2 import AuditRequest, TokenRequest
from support.organisations import DEVICE_TOKEN, NORTH, NORTHS, SOUTH, SOUTHS, within
from support.waiting import until

CODE = grpc.StatusCode


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call
    return refusal.value.code(), refusal.value.details()


async def renew(world, own):
    """Through the coordinator."""
    key = own.pending_key()
    target = f"127.0.0.1:{world.ports['cloud']}"
    reply = await renew_call(target, CLOUD, own.material(), certificate_request(key), 30)
    return own.accept(key, reply)


# ---------------------------------------------------------------- an organisation's own nodes


def test_an_organisation_enrols_renews_and_revokes_its_nodes_with_its_own_key(tmp_path):
    async def scenario(world):
        north, cloud = world.north, world.cloud
        own = await north.join("one")
        before = own.identity()
        assert (before.number, before.site, before.authority) == (NORTHS + 1, "north", NORTH)
        assert [h.grpc for h in own.facts().homes] == [f"127.0.0.1:{world.ports['cloud']}"]
        assert own.terms().cohort_min == 3
        # It is in the root's log, and in the coordinator's book under its site.
        assert f"device-{NORTHS + 1}" in world.logged()
        await until(lambda: NORTHS + 1 in world.known)
        after = await renew(world, own)
        assert after.number == before.number and after.serial != before.serial
        assert world.logged().count(f"device-{NORTHS + 1}") == 2
        # The root's key has signed neither.
        chain = chain_of_pem(own.material().certificate)
        assert chain.issuing == north.daemon.hosted.ca.certificate
        stub = await north.stub(north.owner)
        reply = await stub.Revoke(RevokeRequest(name=f"device-{NORTHS + 1}", why="lost"))
        assert reply.changed and world.ca.denied().revoked(before.node)
        await until(lambda: cloud.trust.denied().revoked(before.node))
        with pytest.raises(RenewalRefused, match="revoked"):
            await renew(world, own)
        assert not (await stub.Revoke(RevokeRequest(name=f"device-{NORTHS + 1}"))).changed

    within(tmp_path, learning(scenario))


def learning(scenario):
    """Gives the world `known`, the numbers that the coordinator has taken over."""

    async def main(world):
        world.known, learn = set(), world.cloud.fleet.learn

        async def learned(tier, nodes):
            await learn(tier, nodes)
            world.known |= {node.number for node in nodes}

        world.cloud.fleet.learn = learned
        await scenario(world)

    return main


def test_while_the_root_is_away_nothing_is_issued_and_the_same_token_is_good_later(tmp_path):
    async def scenario(world):
        north = world.north
        own, token = await north.join("one"), await north.token()
        await world.root.close()
        await until(lambda: not north.daemon.hosted.reached)
        assert "nothing is issued" in north.daemon._why_not_ready()
        with pytest.raises(IdentityError, match=r"the root authority at .* does not answer"):
            await north.join("late", token)
        with pytest.raises(IdentityError, match="the root authority at"):
            await renew(world, own)
        stub = await north.stub(north.owner)
        code, text = await refused(stub.Revoke(RevokeRequest(name=f"device-{NORTHS + 1}")))
        assert code is CODE.INVALID_ARGUMENT and "does not answer" in text
        # It starts without the root, on what it has; and serves again when the root is back.
        await north.daemon.close()
        await north.start()
        world.root = await world.run_root()
        await until(lambda: north.daemon.hosted.reached)
        late = await north.join("late", token)
        assert late.identity().number == NORTHS + 2
        await until(lambda: NORTH in world.cloud.authority.issuing)
        await renew(world, own)

    within(tmp_path, scenario)


def test_an_issuing_authority_that_never_reached_the_root_does_not_start(tmp_path):
    async def scenario(world):
        await world.root.close()
        world.south.found()
        with pytest.raises(Away, match="does not answer"):
            await world.south.start()

    within(tmp_path, scenario)


def test_an_authority_that_was_restored_gets_its_numbers_back(tmp_path):
    async def scenario(world):
        north = world.north
        await north.join("one")
        await north.daemon.close()
        kept = [*(north.folder / "ca").glob("*.jsonl*"), *north.folder.glob("delian.db*[bk]")]
        backup = {path: path.read_bytes() for path in kept}
        await north.start()
        await north.join("two")
        await until(
            lambda: (n := world.cloud.trust.numbers(NORTH).newest()) and n.devices > NORTHS + 1
        )
        await north.daemon.close()
        for path, content in backup.items():
            path.write_bytes(content)
        await north.start()
        await until(lambda: north.daemon.hosted.ca.last_number(Role.DEVICE) == NORTHS + 2)
        assert (await north.join("three")).identity().number == NORTHS + 3

    within(tmp_path, scenario)


def test_beyond_the_root_s_rate_a_node_is_told_to_come_again(tmp_path):
    async def scenario(world):
        north, service = world.north, world.root.service
        token = await north.token()
        service._rates = lambda: 0.0
        service._calls = Buckets(0, CALLS_PER_S)
        with pytest.raises(IdentityError, match="resource exhausted") as told:
            await north.join("one", token)
        assert "try again" in told.value.hint
        assert north.daemon.hosted.enrolment.counts["limited"] == 1
        service._calls = Buckets(100, CALLS_PER_S)
        assert (await north.join("one", token)).identity().number == NORTHS + 1

    within(tmp_path, scenario)


# ---------------------------------------------------------------- bounds


def test_operators_call_the_authority_that_issued_their_certificates(tmp_path):
    async def scenario(world):
        north = world.north
        at_north, at_root = (
            await north.stub(world.admin),
            await world.at_root(north.owner.material()),
        )
        for stub in (at_north, at_root):
            for call in (
                stub.CreateToken(DEVICE_TOKEN),
                stub.Revoke(RevokeRequest(name="device-1")),
            ):
                assert (await refused(call))[0] is CODE.PERMISSION_DENIED
            with pytest.raises(grpc.aio.AioRpcError):
                await anext(aiter(stub.Audit(AuditRequest())))
        # A token for another site is refused, and one for none is for the own.
        stub = await north.stub(north.owner)
        wanted = TokenRequest(tier=link_pb2.NODE_DEVICE, site="south")
        assert (await refused(stub.CreateToken(wanted)))[0] is CODE.INVALID_ARGUMENT
        token = parse(await north.token())
        assert token.authority == world.ca.root_public
        assert token.issuer == north.daemon.hosted.ca.issuer_public != token.authority

    within(tmp_path, scenario)


def test_at_the_root_an_issuing_authority_acts_for_its_own_nodes_alone(tmp_path):
    async def scenario(world):
        north, south = world.north, world.south
        south.found()
        await south.start()
        ours, theirs = await north.join("one"), await south.join("one")
        visitor = north.daemon.hosted.ca.visitor()
        stub = await world.at_root(visitor)
        size = world.ca.log.tree.size
        for name in (f"device-{SOUTHS + 1}", "admin-1", "cloud-0", f"authority-{SOUTH}"):
            code, text = await refused(stub.Revoke(RevokeRequest(name=name)))
            assert code is CODE.INVALID_ARGUMENT and "is no holder of" in text
        assert not world.ca.denied().names
        of_theirs = chain_of_pem(theirs.material().certificate).der
        of_roots = chain_of_pem(world.admin.material().certificate).der
        for content in (of_theirs, of_roots, b"", b"x" * 5000, of_theirs + b"\0"):
            code, _ = await refused(stub.Append(AppendRequest(certificate=content)))
            assert code is CODE.INVALID_ARGUMENT
        for address in ("unix:/run/x", "host", "host:0", "x" * 301 + ":1"):
            code, _ = await refused(stub.Register(RegisterRequest(address=address)))
            assert code is CODE.INVALID_ARGUMENT
        # Said again, a certificate is no second entry.
        await stub.Append(AppendRequest(certificate=chain_of_pem(ours.material().certificate).der))
        assert world.ca.log.tree.size == size
        # What is the coordinator's and the operators' is not an authority's.
        for call in (stub.Announce(Announcement()), stub.CreateToken(DEVICE_TOKEN)):
            assert (await refused(call))[0] is CODE.PERMISSION_DENIED
        # Nor are its own calls somebody else's.
        for who in (IdentityFolder(world.folder / "cloud" / "identity"), world.admin, ours):
            other = await world.at_root(who.material())
            for call in (other.Append(AppendRequest()), other.Register(RegisterRequest())):
                assert (await refused(call))[0] is CODE.PERMISSION_DENIED
        # And an issuing authority is nobody's root.
        at_south = await world.stub(visitor, south.ports["grpc"], SOUTH)
        assert (await refused(at_south.Register(RegisterRequest())))[0] is CODE.PERMISSION_DENIED

    within(tmp_path, scenario)


def test_an_issuing_authority_answers_no_renewal_of_another_s_node(tmp_path):
    async def scenario(world):
        world.south.found()
        await world.south.start()
        own = await world.north.join("one")
        target = f"127.0.0.1:{world.south.ports['grpc']}"
        remote = coordinators.Authorities.at(target, world.cloud.trust, world.cloud.fleet, None, 60)
        remote.root.number = SOUTH
        world.stack.push_async_callback(remote.close)
        ask = make_ask(own.material(), certificate_request(own.pending_key()))
        with pytest.raises(IdentityError, match="authority 1 renews"):
            await remote.root.renew(ask)

    within(tmp_path, scenario)


def test_with_its_authority_an_organisation_is_out_at_once_and_the_others_go_on(tmp_path):
    async def scenario(world):
        world.south.found()
        await world.south.start()
        ours, theirs = await world.north.join("one"), await world.south.join("one")
        await until(lambda: {NORTHS + 1, SOUTHS + 1} <= world.known)
        token = await world.south.token()
        stub = await world.at_root(world.admin.material())
        assert (await stub.Revoke(RevokeRequest(name=f"authority-{SOUTH}", why="stolen"))).changed
        await until(lambda: world.cloud.authority.issuing == [NORTH])
        with pytest.raises(IdentityError):
            await renew(world, theirs)
        with pytest.raises(IdentityError):
            await world.south.join("late", token)
        visitor = world.south.daemon.hosted.ca.visitor()
        code, _ = await refused((await world.at_root(visitor)).Append(AppendRequest()))
        assert code is CODE.PERMISSION_DENIED
        # Its own process ends, and does not start again.
        with pytest.raises(Refused, match="refuses this authority: revoked"):
            await world.south.daemon.tasks.wait(asyncio.Event())
        await world.south.daemon.close()
        with pytest.raises(Refused):
            await world.south.start()
        await until(lambda: Node(Tier.DEVICE, SOUTHS + 1) in world.gone)
        await renew(world, ours)

    async def watched(world):
        world.gone, follow = set(), world.cloud.fleet.follow_revoked

        async def followed(nodes, numbers):
            await follow(nodes, numbers)
            world.gone = set(await world.cloud.fleet.revoked())

        world.cloud.fleet.follow_revoked = followed
        await learning(scenario)(world)

    within(tmp_path, watched)


# ---------------------------------------------------------------- folders


def test_a_folder_and_its_place_in_the_federation_must_fit(tmp_path):
    ca = Authority.create(tmp_path / "root", "farm")
    request = request_authority(tmp_path / "north", "farm", "north")
    accept_authority(tmp_path / "north", ca.delegate(request, "north"), ca.fingerprint)
    with pytest.raises(IdentityError, match="has none above it"):
        open_authority(tmp_path / "root", "root.example:7445")
    with pytest.raises(IdentityError, match="its root is not named"):
        open_authority(tmp_path / "north", "")
    authority, above = open_authority(tmp_path / "north", "127.0.0.1:9")
    assert isinstance(above, RootAuthority) and authority.number == NORTH
    with pytest.raises(Away, match="does not answer"):
        above.refresh("north.example:7445")
    above.close()
    assert open_authority(tmp_path / "root", "")[1] is None
