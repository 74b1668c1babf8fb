"""What a daemon that runs parts for others adds to itself.

Models, a machine with its driver, the service on its gRPC port, and where there is a tier above,
the way there.

    parts = await host_below(files, identity, guard, "cloud:7443")
    parts.attach(servicers, tasks, sources, switch)
    hub = GrpcHub(..., servicers=servicers)
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...compiler.backends import Backend
from ...node.identity.pki.certificates import channel_credentials
from ...node.net.grpc.grpc_guard import Policy, Servicer
from ...node.net.switch import Switch
from ...node.net.traffic import Traffic
from ...node.service.hosting import Tasks, Who
from ...protocol.ports import CLOUD, Node, Tier
from .frames.enveloped import EnvelopedService
from .frames.stream_client import Upstream
from .frames.stream_service import SubgraphService
from .machines.part_ports import Link
from .machines.part_server import Server, ServerSettings
from .part_programs import Model, Programs, load_models
from .part_server_driver import ServingDriver
from .upstream_driver import Above

if TYPE_CHECKING:
    import grpc

    from ...node.service.prometheus import Sources

log = logging.getLogger("delian.subgraphs")

#: What a link between an edge and its cloud is taken to be until it was measured.
NOMINAL = Link(up=12.5e6, down=12.5e6, latency_s=0.01)
#: Runs at once; a program may use more threads itself.
THREADS = 1
#: Requests in one run.
LANES = 8

#: Gives what to show at each dialling.
Credentials = Callable[[], "grpc.ChannelCredentials"]


class PartsHost:
    """Runs parts of these models for lower nodes.

    policy: which nodes may call. federation: whose nodes these are. secure: whether callers have
    certificates. above: the next tier and its "host:port", and credentials, what to show there;
    None: there is none.
    """

    def __init__(
        self,
        models: Sequence[Model],
        node: Node,
        policy: Policy,
        federation: str,
        secure: bool,
        above: tuple[Node, str] | None = None,
        credentials: Credentials | None = None,
        backend: Backend = "native",
        traffic: Traffic | None = None,
    ) -> None:
        self.models = {model.name: model for model in models}
        machine = Server(
            ServerSettings(lanes=LANES, workers=THREADS), None if above is None else NOMINAL
        )

        def upstream(owner: Above) -> Upstream:
            assert above is not None
            return Upstream(node, [above], owner, credentials, federation, traffic)

        self.driver = ServingDriver(
            self.models,
            machine,
            Programs(backend),
            None if above is None else upstream,
            threads=THREADS,
        )
        self._numbers = itertools.count(1)
        shown = None if secure else federation
        self.service = SubgraphService(self.driver, policy, shown, self._numbers, traffic)
        self.enveloped: EnvelopedService | None = None
        self._node = node

    @classmethod
    async def load(cls, files: Sequence[Path], *args: Any, **more: Any) -> PartsHost:
        """The same with models of bundle files. Raises DelianError for an unusable one."""
        models = await asyncio.to_thread(load_models, files)
        return cls(tuple(models.values()), *args, **more)

    async def _run(self) -> None:
        """Keeps the way up, and closes lines of distrusted peers, until it is cancelled."""
        self.driver.start()
        await self.service.keep_reviewing()

    def review(self, revoked: Callable[[Node], bool]) -> None:
        """Ends what goes on with nodes that are revoked."""
        self.service.review()
        if self.enveloped is not None:
            self.enveloped.review(revoked)

    def redial(self) -> None:
        """The certificate was renewed."""
        if self.driver.upstream is not None:
            self.driver.upstream.redial()

    async def close(self) -> None:
        """Ends. May be called twice."""
        self.service.close()
        if self.enveloped is not None:
            self.enveloped.close()
        await self.driver.close()

    def attach(
        self,
        servicers: list[Servicer],
        tasks: Tasks,
        sources: Sources,
        switch: Switch,
        closers: AsyncExitStack | None = None,
    ) -> None:
        """Becomes a part of a daemon.

        One of the servicers of its hub, tasks, counts, and the receiver of frames that come in
        envelopes. closers: where it is closed; None: by `close`.
        """
        # To devices the coordinator is its own gathering edge.
        node = Node(Tier.EDGE, 0) if self._node == CLOUD else self._node
        self.enveloped = EnvelopedService(self.driver, switch, node, self._numbers)
        tasks.start("parts in envelopes", self.enveloped.run())
        enveloped = self.enveloped.faults
        sources.refusals["parts in envelopes"] = lambda: enveloped.counts
        if closers is not None:
            closers.push_async_callback(self.close)
        servicers.append(self.service.add)
        tasks.start("parts", self._run())
        sources.refusals["parts"] = lambda: self.service.faults.counts + self.driver.counts


async def host_top(
    files: Sequence[Path], policy: Policy, federation: str, secure: bool, traffic: Traffic
) -> PartsHost | None:
    """What a coordinator adds to itself; None where it serves no bundles. Raises DelianError."""
    if not files:
        return None
    return await PartsHost.load(files, CLOUD, policy, federation, secure, traffic=traffic)


async def host_below(
    files: Sequence[Path], who: Who, policy: Policy, above: str, traffic: Traffic
) -> PartsHost:
    """What an edge adds to itself that serves bundles.

    above: "host:port" of its cloud; empty: it does not support gRPC there. Raises DelianError.
    """
    identity = who.identity

    def credentials() -> grpc.ChannelCredentials:
        assert identity is not None
        return channel_credentials(identity.material())

    return await PartsHost.load(
        files,
        who.node,
        policy,
        who.federation,
        identity is not None,
        (CLOUD, above) if above else None,
        None if identity is None else credentials,
        traffic=traffic,
    )
