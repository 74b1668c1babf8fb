"""Parts under TLS: a peer is whom its certificate names, and only while it is trusted."""

from __future__ import annotations

import asyncio

import pytest
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.deny_list import FOR_GOOD, DenyList
from delian.core.node.identity.pki.certificates import (
    Role,
    TlsMaterial,
    certificate_request,
    channel_credentials,
    key_pem,
    new_key,
    server_credentials,
)
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.switch import Switch
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.subgraphs.frames.probing import Prober
from delian.core.placement.subgraphs.frames.stream_client import Upstream
from delian.core.placement.subgraphs.parts_host import PartsHost
from delian.core.protocol.ports import Tier


@pytest.fixture(scope="module")
def farm(tmp_path_factory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("parts-farm"), "farm")


def material(authority, node) -> TlsMaterial:
    key = new_key()
    issued = authority.issue(certificate_request(key), Role(node.tier.value), node.number)
    return TlsMaterial(key_pem(key), issued.chain, authority.pem)


class Serving:
    """An edge with a certificate."""

    def __init__(self, farm, tiers, model):
        self.denied = DenyList()
        guard = Guard("farm", Tier.EDGE, lambda: self.denied)
        self.parts = PartsHost([model], tiers.EDGE, guard, "farm", True, backend="reference")
        credentials = server_credentials(material(farm, tiers.EDGE))
        servicers = (self.parts.service.add,)
        self.hub = GrpcHub(Switch(), "127.0.0.1:0", credentials, guard, servicers=servicers)

    async def __aenter__(self):
        self.address = f"127.0.0.1:{await self.hub.start()}"
        return self

    async def __aexit__(self, *_):
        await self.parts.close()
        await self.hub.close()


def test_a_device_with_a_certificate_is_served_until_it_is_revoked(tiers, model, farm):
    async def run():
        async with Serving(farm, tiers, model) as edge:
            shown = material(farm, tiers.DEVICE)
            prober = Prober()
            upstream = Upstream(
                tiers.DEVICE,
                [(tiers.EDGE, edge.address)],
                prober,
                lambda: channel_credentials(shown),
                "farm",
            )
            task = asyncio.create_task(prober.measure(upstream))
            await tiers.until(lambda: edge.parts.service.lines)
            (line,) = edge.parts.service.lines.values()
            assert line.peer.node == tiers.DEVICE
            assert isinstance(await task, LinkProfile)
            edge.denied = DenyList(1, {(line.peer.tier, line.peer.number): FOR_GOOD})
            again = Upstream(
                tiers.DEVICE,
                [(tiers.EDGE, edge.address)],
                prober,
                lambda: channel_credentials(shown),
                "farm",
            )
            again.start()
            await tiers.until(lambda: edge.parts.service.faults.counts["revoked"] or _refused(edge))
            await again.close()
            assert not edge.parts.service.lines

    asyncio.run(run())


def test_one_that_is_there_already_is_sent_away_when_it_is_revoked(tiers, model, farm):
    async def run():
        async with Serving(farm, tiers, model) as edge:
            shown = material(farm, tiers.DEVICE)
            prober = Prober()
            upstream = Upstream(
                tiers.DEVICE,
                [(tiers.EDGE, edge.address)],
                prober,
                lambda: channel_credentials(shown),
                "farm",
            )
            upstream.start()
            await tiers.until(lambda: edge.parts.service.lines)
            (line,) = edge.parts.service.lines.values()
            edge.denied = DenyList(1, {(line.peer.tier, line.peer.number): FOR_GOOD})
            edge.parts.service.review()
            await tiers.until(lambda: not edge.parts.service.lines)
            await upstream.close()

    asyncio.run(run())


def _refused(edge) -> bool:
    return bool(edge.hub.faults.counts["revoked"])
