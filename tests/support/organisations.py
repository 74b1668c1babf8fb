"""A root authority, organisations with authorities of their own, and a coordinator, as daemons over
loopback in this process.
"""

from __future__ import annotations

import asyncio
import contextlib

import grpc
from delian.cloud.authority.authority_settings import AuthoritySettings
from delian.cloud.authority.daemon import AuthorityDaemon
from delian.cloud.protocol.coordinator_state import CoordinatorPolicy
from delian.cloud.service.daemon import CloudDaemon, CloudSettings
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.delegation import accept_authority, request_authority
from delian.core.node.identity.authority.founding import publish
from delian.core.node.identity.authority.tokens import TokenBook
from delian.core.node.identity.enrolment.joining import join
from delian.core.node.identity.log.log_entries import read_entry
from delian.core.node.identity.pki.certificates import (
    NUMBER_BITS,
    Role,
    authority_options,
    channel_credentials,
)
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.node.identity.pki.local_identity import operator_identity
from delian.core.node.net.free_ports import free_ports
from delian.core.wire import link_pb2
from delian.core.wire.authority_pb2_grpc import AuthorityStub
from delian.core.wire.operator_pb2 import TokenRequest
from delian.edge.protocol.edge_state import EdgeState
from delian.edge.protocol.machine import EdgeMachine, restore

from support.waiting import run, until

NORTH, SOUTH = 1, 2
NORTHS, SOUTHS = NORTH << NUMBER_BITS, SOUTH << NUMBER_BITS
DEVICE_TOKEN = TokenRequest(tier=link_pb2.NODE_DEVICE)


def gatherer(snapshot):
    return EdgeMachine(EdgeState(0, 1) if snapshot is None else restore(snapshot))


class Organisation:
    """An issuing authority: its folder, and its daemon while that runs."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.folder = world.folder / name
        self.ports = dict(zip(("grpc", "enrolment"), free_ports(2), strict=True))
        self.daemon = None

    def found(self):
        """The ceremony: request, delegation, acceptance."""
        request = request_authority(self.folder / "ca", "farm", self.name)
        answer = self.world.ca.delegate(request, self.name)
        return accept_authority(self.folder / "ca", answer, self.world.ca.fingerprint)

    async def start(self):
        settings = AuthoritySettings(
            self.folder,
            superior=f"127.0.0.1:{self.world.ports['grpc']}",
            listen=f"127.0.0.1:{self.ports['grpc']}",
            enrolment=f"127.0.0.1:{self.ports['enrolment']}",
            news_s=self.world.news_s,
        )
        self.daemon = await self.world.run(AuthorityDaemon(settings))
        owner = self.folder / "owner"
        if not (owner / "live").exists():
            await asyncio.to_thread(operator_identity, self.daemon.hosted.ca, owner, Role.OWNER)
        self.owner = IdentityFolder(owner)
        await until(lambda: self.daemon.service.counts["announced"])  # by the coordinator

    async def token(self):
        """A device's, as the owner asks for it."""
        return (await (await self.stub(self.owner)).CreateToken(DEVICE_TOKEN)).token

    async def join(self, name, token=None):
        own = self.folder / name
        await join(token or await self.token(), own, labels={"host": name})
        return IdentityFolder(own)

    async def stub(self, own):
        number = self.daemon.hosted.ca.number
        return await self.world.stub(own.material(), self.ports["grpc"], number)


class World:
    """A root authority, organisations and a coordinator. Ends with `stack`."""

    def __init__(self, folder, stack, news_s):
        self.folder, self.stack, self.news_s = folder, stack, news_s
        self.ports = dict(zip(("grpc", "enrolment", "cloud"), free_ports(3), strict=True))
        self.north, self.south = Organisation(self, "north"), Organisation(self, "south")

    async def start(self):
        self.ca = Authority.create(self.folder / "root" / "ca", "farm")
        publish(self.ca, cohort_min=3, log_required=True, fresh=True)
        operator_identity(self.ca, self.folder / "admin")
        self.admin = IdentityFolder(self.folder / "admin")
        self.north.found()
        self.root = await self.run_root()
        book, at = TokenBook(self.ca.folder, self.ca.lock), f"127.0.0.1:{self.ports['enrolment']}"
        token, _ = book.create(Role.CLOUD, "farm", at, self.ca.root_public)
        await join(token.text(), self.folder / "cloud" / "identity", labels={})
        self.cloud = await self.run(CloudDaemon(self.cloud_settings(), gatherer))
        await self.north.start()
        await until(lambda: NORTH in self.cloud.authority.issuing)

    def cloud_settings(self):
        return CloudSettings(
            self.folder / "cloud",
            authority=f"127.0.0.1:{self.ports['grpc']}",
            listen=f"127.0.0.1:{self.ports['cloud']}",
            health="",
            backend="reference",
            news_s=self.news_s,
            policy=CoordinatorPolicy(after_reject_ms=(50, 100), after_task_ms=(50, 100)),
        )

    async def run_root(self):
        settings = AuthoritySettings(
            self.folder / "root",
            listen=f"127.0.0.1:{self.ports['grpc']}",
            enrolment=f"127.0.0.1:{self.ports['enrolment']}",
            news_s=self.news_s,
        )
        return await self.run(AuthorityDaemon(settings))

    async def run(self, daemon):
        self.stack.push_async_callback(daemon.close)
        await daemon.start()
        return daemon

    async def stub(self, material, port, number=0):
        """The service `Authority` of an authority, with a certificate."""
        channel = grpc.aio.secure_channel(
            f"127.0.0.1:{port}",
            channel_credentials(material),
            options=list(authority_options("farm", number)),
        )
        return AuthorityStub(await self.stack.enter_async_context(channel))

    async def at_root(self, material):
        return await self.stub(material, self.ports["grpc"])

    def logged(self):
        """The names in the certificate log."""
        size = self.ca.log.tree.size
        return [read_entry(entry).name for entry in self.ca.log.file.entries(0, size)]


def within(folder, scenario, every_s=0.1):
    """Runs a test in a federation. every_s: how often daemons ask one another for news."""

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            world = World(folder, stack, every_s)
            await world.start()
            await scenario(world)

    run(main())
