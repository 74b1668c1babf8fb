"""Joining, renewing and being denied, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import time

import grpc
import pytest
from delian.cloud.authority import enrolment as e
from delian.cloud.authority.issuing import Issuing
from delian.cloud.authority.local_authority import LocalAuthority
from delian.cloud.service.identity_service import IdentityService
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.authority_book import CERTIFICATES_MAX
from delian.core.node.identity.authority.tokens import TokenBook, parse
from delian.core.node.identity.enrolment.joining import join
from delian.core.node.identity.enrolment.kept_deny_list import KnownDenied
from delian.core.node.identity.enrolment.renewal import RenewalRefused, renew_call
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    TlsMaterial,
    authority_options,
    certificate_request,
    channel_credentials,
    channel_options,
    new_key,
    server_credentials,
)
from delian.core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.relay import DEVICE_BURST
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import enrolment_pb2, enrolment_pb2_grpc, link_pb2
from support.file_registry import FileRegistry

HOME = HomeAddress(CLOUD, "127.0.0.1:7400")
DAY = 86400


class World:
    """A coordinator's two ports, and what stands behind them."""

    def __init__(self, folder, *, limit=None, clock=time.time, life_s=30 * DAY):
        self.folder, self.rates = folder, 0.0
        try:
            self.authority = Authority(folder / "ca")
        except IdentityError:
            self.authority = Authority.create(folder / "ca", "farm")
        self.tokens = TokenBook(folder / "ca", self.authority.lock)
        self.registry = FileRegistry(folder / "registry", lambda node: [HOME])
        self.material = self.of_role(Role.AUTHORITY)
        self.cloud = self.of_role(Role.CLOUD)
        self.issuing = Issuing(
            self.authority, self.registry, life_s=life_s, clock=clock, rates=lambda: self.rates
        )
        self.service = e.EnrolmentService(
            self.issuing, self.tokens, limit=limit, limiter_clock=lambda: 0.0
        )
        authority = LocalAuthority(self.authority, self.issuing, lambda: self.material)
        guard = Guard("farm", Tier.CLOUD, self.authority.denied, clock)
        self.identity = IdentityService(
            authority, guard, authority.page, authority.log_page, clock=clock
        )

    def of_role(self, role):
        key, issued = issue_to(self.authority, role, 0, ["127.0.0.1"])
        return TlsMaterial(key, issued.chain, self.authority.pem)

    @contextlib.asynccontextmanager
    async def serve(self):
        server, self.port = await e.serve_enrolment("127.0.0.1:0", self.material, self.service)
        links = grpc.aio.server()
        enrolment_pb2_grpc.add_IdentityServicer_to_server(self.identity, links)
        port = links.add_secure_port("127.0.0.1:0", server_credentials(self.cloud))
        await links.start()
        self.links = f"127.0.0.1:{port}"
        try:
            yield self
        finally:
            await server.stop(None)
            await links.stop(None)

    def token(self, role=Role.DEVICE, **options):
        address = f"127.0.0.1:{self.port}"
        public = self.authority.root_public
        return self.tokens.create(role, "farm", address, public, **options)[0].text()

    async def join(self, name, text, **options):
        return await join(text, self.folder / name, labels={"host": name}, **options)

    def of(self, name):
        return IdentityFolder(self.folder / name)

    async def renew(self, material):
        request = certificate_request(new_key())
        return await renew_call(self.links, CLOUD, material, request, 10)


def within(folder, scenario, **options):
    async def run():
        async with World(folder, **options).serve() as world:
            return await scenario(world)

    return asyncio.run(run())


def test_a_device_and_an_edge_join_by_a_token_and_get_numbers_of_their_own(tmp_path):
    async def scenario(world):
        first = await world.join("one", world.token())
        second = await world.join("two", world.token())
        edge = await world.join("edge", world.token(Role.EDGE, addresses=["edge.example"]))
        assert [p.common_name for p in (first, second, edge)] == ["device-1", "device-2", "edge-1"]
        facts = world.of("one").facts()
        assert facts.federation == "farm" and facts.homes == (HOME,)
        node = world.registry.nodes[Node(Tier.DEVICE, 1)]
        assert node["labels"] == {"host": "one"} and node["serial"] == f"{first.serial:x}"
        assert world.service.counts["enrolled"] == 3

    within(tmp_path, scenario)


def test_a_token_is_good_once_and_the_second_try_leaves_no_identity(tmp_path):
    async def scenario(world):
        text = world.token()
        await world.join("one", text)
        with pytest.raises(IdentityError, match=r"token is not valid .permission denied"):
            await world.join("two", text)
        assert not world.of("two").exists() and world.service.counts["refused"] == 1

    within(tmp_path, scenario)


def test_an_expired_token_lets_nobody_in_and_the_peer_learns_no_more_than_that(tmp_path):
    async def scenario(world):
        text = world.token(valid_s=1, now_s=1000)
        with pytest.raises(IdentityError) as refusal:
            await world.join("one", text)
        assert "token is not valid" in str(refusal.value) and "expired" not in str(refusal.value)

    within(tmp_path, scenario)


def enrol_request(text, tier=link_pb2.NODE_DEVICE, **changes):
    request = certificate_request(new_key())
    return enrolment_pb2.EnrolRequest(**{"token": text, "request": request, "tier": tier} | changes)


async def ask(world, request):
    options = authority_options("farm")
    credentials = grpc.ssl_channel_credentials(world.authority.pem)
    async with grpc.aio.secure_channel(
        f"127.0.0.1:{world.port}", credentials, options=options
    ) as channel:
        return await enrolment_pb2_grpc.EnrolmentStub(channel).Enrol(request, timeout=60)


CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("changes", "code", "count"),
    [
        ({"tier": link_pb2.NODE_EDGE}, CODE.PERMISSION_DENIED, "refused"),
        ({"tier": link_pb2.NODE_CLOUD}, CODE.PERMISSION_DENIED, "refused"),
        ({"tier": link_pb2.NODE_TIER_UNSPECIFIED}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"tier": 17}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"token": ""}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"token": "x" * 2000}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"request": b""}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"request": b"x" * 9000}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"request": b"x" * 40_000}, CODE.RESOURCE_EXHAUSTED, "malformed"),
        ({"labels": {str(n): "" for n in range(17)}}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"labels": {"host": "x" * 300}}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"labels": {"host": "pi\x1b[2K\rdevice-1"}}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"labels": {"host\n": "pi"}}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"labels": {"grpc": "unix:/run/delian.sock"}}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"labels": {"grpc": "barn:0"}}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"labels": {"mqtt": "http://barn:8883"}}, CODE.INVALID_ARGUMENT, "malformed"),
        ({"labels": {"mqtt": "mqtts://me@barn:8883"}}, CODE.INVALID_ARGUMENT, "malformed"),
    ],
)
def test_a_request_that_is_not_as_it_must_be_is_refused_and_counted(tmp_path, changes, code, count):
    async def scenario(world):
        text = world.token()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ask(world, enrol_request(text, **changes))
        assert refusal.value.code() is code
        async with asyncio.timeout(60):  # gRPC answers a request that is too large by itself
            while not world.service.counts[count]:
                await asyncio.sleep(0)
        assert world.service.counts[count] == 1
        await world.join("one", text)  # and the token is still good

    within(tmp_path, scenario)


def test_a_lost_answer_costs_neither_the_token_nor_a_second_number_or_certificate(tmp_path):
    async def scenario(world):
        request = enrol_request(world.token())
        first = await ask(world, request)
        second = await ask(world, request)
        assert first.node == second.node and first.certificate == second.certificate
        third, fourth = await asyncio.gather(ask(world, request), ask(world, request))
        assert first.node == third.node == fourth.node and len(world.registry.nodes) == 1
        assert world.service.counts["enrolled"] == 1
        world.issuing._known.clear()  # it was started again
        fifth = await ask(world, request)
        assert first.node == fifth.node and first.certificate != fifth.certificate

    within(tmp_path, scenario)


def test_a_revoked_node_is_not_let_in_again_by_its_token_and_key(tmp_path):
    async def scenario(world):
        text = world.token(uses=2)
        request = enrol_request(text)
        await ask(world, request)
        Authority(world.authority.folder).revoke("device-1")  # by another process
        issued = len(world.authority.issued())
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await ask(world, request)
            assert refusal.value.code() is CODE.PERMISSION_DENIED
            world.issuing._known.clear()  # it was started again
        assert len(world.authority.issued()) == issued
        assert (await world.join("two", text)).common_name == "device-2"

    within(tmp_path, scenario)


def test_one_token_and_key_get_only_so_many_certificates(tmp_path):
    async def scenario(world):
        request = enrol_request(world.token())
        made = set()
        for _ in range(CERTIFICATES_MAX + 8):
            world.issuing._known.clear()  # a coordinator that starts again and again
            world.rates += 3600
            with contextlib.suppress(grpc.aio.AioRpcError):
                made.add((await ask(world, request)).certificate)
        assert len(made) == CERTIFICATES_MAX
        assert world.service.counts["limited"] == 8

    within(tmp_path, scenario, limit=e.RateLimit(burst=100))


@pytest.mark.parametrize("older", ["registry", "ca"])
def test_a_number_is_not_given_out_twice_when_one_of_two_places_is_restored(tmp_path, older):
    async def first(world):
        text = world.token(uses=2)
        await world.join("one", text)
        backup = {p: p.read_bytes() for p in (tmp_path / older).glob("*.jsonl*")}
        await world.join("two", text)
        return backup

    backup = within(tmp_path, first)
    for path in (tmp_path / older).glob("*.jsonl*"):
        path.unlink()
    for path, content in backup.items():
        path.write_bytes(content)

    async def second(world):
        assert (await world.join("three", world.token())).common_name == "device-3"

    within(tmp_path, second)


def test_the_coordinator_goes_on_with_its_numbers_and_tokens_after_a_restart(tmp_path):
    async def first(world):
        text = world.token(uses=2)
        await world.join("one", text)
        return parse(text)

    token = within(tmp_path, first)

    async def second(world):
        import dataclasses

        text = dataclasses.replace(token, address=f"127.0.0.1:{world.port}").text()
        assert (await world.join("two", text)).common_name == "device-2"
        with pytest.raises(IdentityError):
            await world.join("three", text)

    within(tmp_path, second)


def test_another_federation_s_server_gets_neither_the_token_nor_the_node(tmp_path):
    async def scenario(world):
        impostor = World(tmp_path / "impostor")
        async with impostor.serve():
            text = world.token()
            with pytest.raises(IdentityError, match="not of the federation that the token is for"):
                await world.join("one", text, address=f"127.0.0.1:{impostor.port}")
            assert sum(impostor.service.counts.values()) == 0, "the token was never sent"
        await world.join("one", text)

    within(tmp_path, scenario)


@pytest.mark.parametrize("role", [Role.EDGE, Role.CLOUD])
def test_neither_an_edge_nor_the_coordinator_passes_for_the_authority(tmp_path, role):
    """A reader of the token could use it for a node of its own."""

    async def scenario(world):
        material = world.of_role(role)
        server, port = await e.serve_enrolment("127.0.0.1:0", material, world.service)
        try:
            with pytest.raises(IdentityError, match=f"{role}-0 answered, not the authority"):
                await world.join("one", world.token(), address=f"127.0.0.1:{port}")
        finally:
            await server.stop(None)

    within(tmp_path, scenario)


def test_a_server_without_tls_and_one_that_is_not_there_are_told_apart(tmp_path):
    async def scenario(world):
        text = world.token()
        plain = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        port = plain.sockets[0].getsockname()[1]
        with pytest.raises(IdentityError, match=r"does not support TLS|cannot reach"):
            await world.join("one", text, address=f"127.0.0.1:{port}")
        plain.close()
        await plain.wait_closed()
        with pytest.raises(IdentityError, match=r"cannot reach the authority .*\n  hint"):
            await world.join("one", text, address=f"127.0.0.1:{port}")

    within(tmp_path, scenario)


def test_who_has_an_identity_does_not_join_over_it(tmp_path):
    async def scenario(world):
        await world.join("one", world.token())
        with pytest.raises(IdentityError, match="holds the identity device-1 already"):
            await world.join("one", world.token())

    within(tmp_path, scenario)


def test_one_address_may_not_try_as_often_as_it_likes(tmp_path):
    async def scenario(world):
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(world, enrol_request("delian1.x"))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ask(world, enrol_request("delian1.x"))
        assert refusal.value.code() is CODE.RESOURCE_EXHAUSTED
        assert world.service.counts["limited"] == 1

    within(tmp_path, scenario, limit=e.RateLimit(burst=3, per_minute=1))


def test_a_bucket_fills_again_and_there_are_only_so_many():
    now = [0.0]
    limiter = e.RateLimiter(e.RateLimit(burst=2, per_minute=60, addresses_max=2), lambda: now[0])
    peer = "ipv4:10.0.0.1:4711"
    assert [limiter.take(peer) for _ in range(3)] == [True, True, False]
    now[0] = 1.0
    assert limiter.take("ipv4:10.0.0.1:4712") and not limiter.take(peer)
    for n in range(2, 5):
        limiter.take(f"ipv4:10.0.0.{n}:1")
    assert len(limiter._buckets) == 2


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.1.2.3:4711", "10.1.2.3"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2::/64"),
        ("ipv6:%5B::1%5D:4711", "::/64"),
        ("ipv6:[::ffff:10.1.2.3]:1", "10.1.2.3"),
        ("ipv6:[fe80::1%eth0]:1", "fe80::/64"),
        ("unix:", "unix"),
        ("ipv4:nonsense", "unknown"),
        ("", ""),
    ],
)
def test_addresses_that_one_customer_has_count_as_one(peer, address):
    assert e.address_of(peer) == address


# ---------------------------------------------------------------- renewing and being denied


def test_a_node_renews_for_a_new_key_and_keeps_its_name(tmp_path):
    async def scenario(world):
        before = await world.join("one", world.token())
        folder = world.of("one")
        key = folder.pending_key()
        request = certificate_request(key)
        reply = await renew_call(world.links, CLOUD, folder.material(), request, 10)
        after = folder.accept(key, reply)
        assert after.common_name == "device-1" and after.serial != before.serial
        assert world.registry.nodes[Node(Tier.DEVICE, 1)]["serial"] == f"{after.serial:x}"

    within(tmp_path, scenario)


def test_a_certificate_is_not_renewed_as_often_as_its_holder_likes(tmp_path):
    async def scenario(world):
        await world.join("one", world.token())
        material = world.of("one").material()
        with pytest.raises(IdentityError, match=r"too many certificates \(resource exhausted\)"):
            for _ in range(DEVICE_BURST):
                await world.renew(material)
        assert world.identity.counts["renewed"] == DEVICE_BURST - 1, "the first was by the token"
        for _ in range(CERTIFICATES_MAX):
            world.rates += 30.0
            with contextlib.suppress(IdentityError):
                await world.renew(material)
        assert world.identity.counts["renewed"] == CERTIFICATES_MAX - 1
        # And it can be revoked.
        assert world.authority.revoke("device-1")[1]
        with pytest.raises(RenewalRefused, match="revoked"):
            await world.renew(material)

    within(tmp_path, scenario)


def test_a_revoked_node_cannot_renew_on_a_connection_that_it_still_has(tmp_path):
    async def scenario(world):
        await world.join("one", world.token())
        material = world.of("one").material()
        await world.renew(material)
        Authority(world.authority.folder).revoke("device-1")  # by another process
        with pytest.raises(RenewalRefused, match="revoked"):
            await world.renew(material)
        assert world.identity.counts["renewed"] == world.identity.counts["refused"] == 1

    within(tmp_path, scenario)


def test_an_expired_certificate_opens_no_connection_and_renews_nothing(tmp_path):
    async def scenario(world):
        request = certificate_request(key := new_key())
        then = time.time() - 40 * DAY
        issued = world.authority.issue(request, Role.DEVICE, 5, now_s=then)
        from delian.core.node.identity.pki.certificates import key_pem

        material = TlsMaterial(key_pem(key), issued.chain, world.authority.pem)
        with pytest.raises(IdentityError, match="unavailable"):
            await world.renew(material)
        assert world.identity.counts["renewed"] == 0

    within(tmp_path, scenario)


def test_a_certificate_that_ends_while_the_connection_lasts_renews_nothing(tmp_path):
    async def scenario(world):
        _, issued = issue_to(world.authority, Role.DEVICE, 5)
        key, issued = issue_to(world.authority, Role.DEVICE, 5)
        material = TlsMaterial(key, issued.chain, world.authority.pem)
        with pytest.raises(RenewalRefused, match="certificate expired"):
            await world.renew(material)

    within(tmp_path, scenario, clock=lambda: time.time() + 31 * DAY)


def test_an_edge_renews_too(tmp_path):
    async def scenario(world):
        key, issued = issue_to(world.authority, Role.EDGE, 3)
        folder = world.of("it")
        material = TlsMaterial(key, issued.chain, world.authority.pem)
        folder.store(material, renew_after_s=1)
        key = folder.pending_key()
        request = certificate_request(key)
        reply = await renew_call(world.links, CLOUD, material, request, 10)
        assert folder.accept(key, reply).tier is Role.EDGE

    within(tmp_path, scenario)


def test_the_deny_list_is_told_to_who_has_another(tmp_path):
    async def scenario(world):
        victim = await world.join("one", world.token())
        await world.join("two", world.token())
        material = world.of("two").material()
        options = channel_options("farm", CLOUD)
        async with grpc.aio.secure_channel(
            world.links, channel_credentials(material), options=options
        ) as channel:
            stub = enrolment_pb2_grpc.IdentityStub(channel)

            known = KnownDenied(world.of("two"))
            assert await known.fetch(stub.Denied) and not known().names
            world.authority.revoke("device-1")
            assert await known.fetch(stub.Denied)
            assert known().denies(victim) and len(known().names) == 1
            assert not await known.fetch(stub.Denied)
        assert world.identity.counts["denied_asked"] == 3

    within(tmp_path, scenario)


def test_identity_is_for_nobody_without_a_certificate_even_on_a_port_that_asks_for_none(tmp_path):
    async def scenario(world):
        server = grpc.aio.server()
        enrolment_pb2_grpc.add_IdentityServicer_to_server(world.identity, server)
        port = server.add_secure_port(
            "127.0.0.1:0", server_credentials(world.cloud, require_client=False)
        )
        await server.start()
        credentials = grpc.ssl_channel_credentials(world.authority.pem)
        try:
            async with grpc.aio.secure_channel(
                f"127.0.0.1:{port}", credentials, options=channel_options("farm", CLOUD)
            ) as channel:
                stub = enrolment_pb2_grpc.IdentityStub(channel)
                for call, request in (
                    (stub.Denied, link_pb2.DeniedAsk()),
                    (stub.Renew, link_pb2.RenewalAsk()),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as refusal:
                        await call(request, timeout=60)
                    assert refusal.value.code() is CODE.PERMISSION_DENIED
        finally:
            await server.stop(None)

    within(tmp_path, scenario)


def test_a_port_that_is_in_use_is_told(tmp_path):
    async def scenario(world):
        with pytest.raises(IdentityError, match="cannot listen on"):
            await e.serve_enrolment(f"127.0.0.1:{world.port}", world.material, world.service)

    within(tmp_path, scenario)
