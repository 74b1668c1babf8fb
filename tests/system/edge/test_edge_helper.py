"""The tests of `test_edge_helper` that need a process, a socket or a clock."""

from __future__ import annotations

import asyncio

from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.enrolment.kept_deny_list import page_of
from delian.core.node.identity.pki.certificates import Role, TlsMaterial
from delian.core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder
from delian.core.protocol.ports import (
    CLOUD,
    Ordered,
    Received,
)
from delian.core.wire.journal_pb2 import DeniedVersion, Forget
from delian.edge.service.daemon import EdgeDaemon, EdgeSettings
from support.edge_bench import help_request


def test_the_daemon_tells_the_machine_of_the_revoked_devices_of_a_batch_before_the_request(
    tmp_path,
):
    authority = Authority.create(tmp_path / "ca", "farm")
    key, issued = issue_to(authority, Role.EDGE, 4)
    folder = IdentityFolder(tmp_path / "own")
    folder.store(TlsMaterial(key, issued.chain, authority.pem), renew_after_s=9e9)
    issue_to(authority, Role.DEVICE, 2)
    authority.revoke("device-2")

    async def page(wanted):
        return page_of(authority.signed(), wanted)

    async def scenario() -> None:
        home = HomeAddress(CLOUD, grpc="127.0.0.1:1")
        settings = EdgeSettings(
            tmp_path / "edge", folder.folder, "127.0.0.1:0", cloud=home, helps=True
        )
        edge = await asyncio.to_thread(EdgeDaemon, settings)
        await edge.start()
        try:
            assert await edge.trust.denied.fetch(page)
            posted = []
            edge.driver.post = lambda event, *_: posted.append(event)
            edge._inbox(Received(CLOUD, help_request()))
        finally:
            await edge.close()
        told, request = [e for e in posted if not is_notice(e)]
        assert told == Ordered(Forget(device=2)) and type(request) is Received

    asyncio.run(scenario())


def is_notice(event):
    return isinstance(event, Ordered) and isinstance(event.order, DeniedVersion)
