"""A node's ways to others and the identity that it shows on them.

What devices and edges have in common.

A home offers gRPC, MQTT or both; a node uses one of them with it, gRPC where it may choose. The
coordinator is asked for a new certificate, and by edges for the deny list, over its gRPC where it
can be reached, and else through the home (`core/node/net/relay.py`). After a renewal the links
reconnect with the new certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from google.protobuf.message import Message

from ...common.errors import DelianError
from ...protocol.ports import CLOUD, Node
from ...protocol.random_streams import Streams
from ...wire.enrolment_pb2 import EnrolReply
from ...wire.link_pb2 import DeniedAsk, DeniedPage
from ..identity.authority.deny_list import SignedList
from ..identity.enrolment.joining import CALL_S
from ..identity.enrolment.kept_deny_list import ASK_EVERY_S, PAGE_BYTES, KnownDenied
from ..identity.enrolment.renewal import RenewalRefused, Renewer, renew_call
from ..identity.pki.certificates import (
    IdentityError,
    PeerIdentity,
    channel_credentials,
    channel_options,
)
from ..identity.pki.identity_folder import HomeAddress, IdentityFolder, NodeFacts
from ..net.loopback import check_loopback
from .hosting import Who

if TYPE_CHECKING:
    import grpc

    from ..net.grpc.grpc_guard import Policy, Servicer
    from ..net.grpc.grpc_link import GrpcUplink
    from ..net.grpc.grpc_server import GrpcHub
    from ..net.message_limits import PeerTimes
    from ..net.mqtt.mqtt_link import MqttHub, MqttIdentity, MqttUplink
    from ..net.relay import RelayedRequests
    from ..net.switch import Switch
    from ..storage.blobs import BlobStore
    from .prometheus import Sources

log = logging.getLogger("delian.node")

#: A deny list whose signature is older than this is behind: the CA signs it again every hour, and
#: edges ask every five minutes.
LIST_FRESH_S = 2 * 3600.0
#: Until the deny list is asked for again when no answer came; twice as long each time.
ASK_AGAIN_S = 0.5

Transport: TypeAlias = Literal["auto", "grpc", "mqtt"]
Distrust: TypeAlias = Callable[[PeerIdentity], str | None]


def trust_all(peer: PeerIdentity) -> str | None:
    """What a node does that keeps no deny list: TLS has checked the certificate."""
    return None


class Hubs:
    """Where nodes below come in: gRPC at `listen`, MQTT over `broker`, either or both.

    policy: which role may make which call (`identity.roles.Guard`). servicers: what else the gRPC
    port serves. on_peer: called with a node that has come (True) or gone, over gRPC alone: a broker
    does not say. Raises DelianError for an address that an insecure node may not use.
    """

    def __init__(
        self,
        switch: Switch,
        who: Who,
        policy: Policy,
        *,
        listen: str = "",
        broker: str = "",
        broker_authority: Path | None = None,
        distrust: Distrust = trust_all,
        servicers: Sequence[Servicer] = (),
        times: PeerTimes | None = None,
        on_peer: Callable[[Node, bool], None] | None = None,
    ) -> None:
        self._switch = switch
        self.grpc: GrpcHub | None = None
        self.mqtt: MqttHub | None = None
        self.port: int | None = None
        identity = who.identity
        if listen:
            from ..net.grpc.grpc_server import GrpcHub

            credentials = None if identity is None else identity.material
            self.grpc = GrpcHub(
                switch,
                listen,
                credentials,
                policy,
                servicers=servicers,
                federation=who.federation,
                times=times,
                on_peer=on_peer,
            )
        if broker:
            from ..net.mqtt.mqtt_link import MqttHub

            self.mqtt = MqttHub(switch, _mqtt_identity(who, distrust, broker_authority), broker)

    async def start(self) -> None:
        """Serves from now on. Raises DelianError where an address is taken."""
        if self.grpc is not None:
            self.port = await self.grpc.start()
            self._switch.add_link(self.grpc)
        if self.mqtt is not None:
            self.mqtt.start()
            self._switch.add_link(self.mqtt)

    @property
    def peers(self) -> set[Node]:
        """The nodes that are here now."""
        hubs = [hub for hub in (self.grpc, self.mqtt) if hub is not None]
        return {node for hub in hubs for node in hub.peers}

    def redial(self) -> None:
        """Shows the certificate of now: it was renewed.

        gRPC does so at each handshake by itself. A home on MQTT is valid no longer than the
        certificate with which it was published.
        """
        if self.mqtt is not None:
            self.mqtt.redial()

    def forget(self, node: Node) -> None:
        """Ends the conversations with a node that is no longer trusted."""
        if self.grpc is not None:
            self.grpc.forget(node, "revoked")
        if self.mqtt is not None:
            self.mqtt.forget(node)

    def tell(self, sources: Sources) -> None:
        """Says where the hubs' counts are."""
        if (over_grpc := self.grpc) is not None:
            sources.refusals["grpc"] = lambda: over_grpc.faults.counts
            sources.peers["grpc"] = lambda: over_grpc.peers
        if (over_mqtt := self.mqtt) is not None:
            sources.refusals["mqtt"] = lambda: over_mqtt.faults.counts
            sources.peers["mqtt"] = lambda: over_mqtt.peers

    async def close(self) -> None:
        """Sends goodbye to all. May be called twice."""
        for hub in (self.grpc, self.mqtt):
            if hub is not None:
                await hub.close()


def _mqtt_identity(who: Who, distrust: Distrust, authority: Path | None) -> MqttIdentity:
    from ..net.mqtt.mqtt_link import MqttIdentity

    files = None if who.identity is None else who.identity.files
    return MqttIdentity(who.federation, who.node, files, distrust, authority)


class Uplinks:
    """The ways up of one node of this process; to its callers, one Link (`net.switch`).

    homes: where the node may go, each once; one that does not offer the transport is left out.
    on_connected: called with a home whenever there is a new connection to it.
    on_renewed: called when there is a new certificate. on_refused: called with a home that does not
    let this node connect, and its reason; over gRPC alone, for a broker gives none. denied: the
    deny list that is known here; None: not kept. distrust: why a home's certificate is not trusted,
    or None. `relayed`: None without an identity. Raises DelianError when no home is left, or an
    insecure node's is not on this machine.
    """

    def __init__(
        self,
        switch: Switch,
        who: Who,
        homes: Sequence[HomeAddress],
        transport: Transport = "auto",
        broker_authority: Path | None = None,
        on_connected: Callable[[Node], None] | None = None,
        on_renewed: Callable[[], None] | None = None,
        on_refused: Callable[[Node, str], None] | None = None,
        denied: KnownDenied | None = None,
        distrust: Distrust = trust_all,
    ) -> None:
        self._switch, self._who, self._transport = switch, who, transport
        self._on_connected, self._on_renewed = on_connected, on_renewed
        self._renewer: Renewer | None = None
        self._denied = denied
        grpc_homes, mqtt_homes = _chosen(homes, transport)
        self._grpc_homes, self._mqtt_homes = grpc_homes, mqtt_homes
        self._homes = (*grpc_homes, *mqtt_homes)
        if not grpc_homes and not mqtt_homes:
            raise DelianError(
                f"no home of {who.node} offers {transport}", "choose another transport or home"
            )
        self.grpc: GrpcUplink | None = None
        self.mqtt: MqttUplink | None = None
        identity = who.identity
        if identity is None:
            for target in (*grpc_homes.values(), *mqtt_homes.values()):
                check_loopback(target, "the home")
        if grpc_homes:
            from ..net.grpc.grpc_link import GrpcUplink

            def credentials() -> grpc.ChannelCredentials:
                assert identity is not None
                return channel_credentials(identity.material())

            self.grpc = GrpcUplink(
                switch,
                who.node,
                grpc_homes,
                None if identity is None else credentials,
                who.federation,
                on_connected=self._connected,
                on_refused=on_refused,
            )
        if mqtt_homes:
            from ..net.mqtt.mqtt_link import MqttUplink

            self.mqtt = MqttUplink(
                switch,
                _mqtt_identity(who, distrust, broker_authority),
                mqtt_homes,
                on_connected=self._connected,
            )
        self.relayed: RelayedRequests | None = None
        if identity is not None:
            from ..net.relay import RelayedRequests

            self.relayed = RelayedRequests(switch, who.node, self._spoken_to, denied=self._signed)

    def review(self) -> None:
        """Leaves homes that are revoked. Call it when the deny list has changed."""
        for link, homes in ((self.grpc, self._grpc_homes), (self.mqtt, self._mqtt_homes)):
            if link is not None:
                trusted = {n: at for n, at in homes.items() if not self._is_revoked(n)}
                for node in homes.keys() - trusted.keys():
                    log.warning("%s does not go to %s: it is revoked", self._who.node, node)
                link.set_homes(trusted)

    def _is_revoked(self, home: Node) -> bool:
        return self._denied is not None and self._denied().revoked(home)

    def _signed(self) -> SignedList | None:
        return None if self._denied is None else self._denied.signed

    def start(self, *, add: bool = True) -> None:
        """Adds the links to the switch; they dial with the first message.

        add: False: the owner of this is the link, and the first homes are dialled now.
        """
        self.review()
        for link in (self.grpc, self.mqtt):
            if link is None:
                continue
            if add:
                self._switch.add_link(link)
            else:
                link.start()

    @property
    def home(self) -> Node | None:
        """The home that the node is connected to now."""
        return next((u.home for u in (self.grpc, self.mqtt) if u is not None and u.home), None)

    def _spoken_to(self) -> Node | None:
        """The same by its name in messages: over MQTT edge 0 is the coordinator."""
        from ..net.mqtt.topics import host_of

        home = self.home
        return next((h for h in self._homes if home is not None and home in (h, host_of(h))), None)

    def _connected(self, home: Node) -> None:
        if self._renewer is not None:
            self._renewer.again()
        if self._on_connected is not None:
            self._on_connected(home)

    # ------------------------------------------------ the Link

    def reaches(self, to: Node) -> bool:
        """Whether there is a connection to it now."""
        return any(link is not None and link.home == to for link in (self.grpc, self.mqtt))

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        for link in (self.grpc, self.mqtt):
            if link is not None and link.reaches(to):
                link.send(sender, to, message, traceparent)
                return

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        for link in (self.grpc, self.mqtt):
            if link is not None and link.reaches(to):
                link.send_blob(sender, to, digest, blobs)
                return

    # ------------------------------------------------ the identity

    async def keep_identity(self) -> None:
        """Renews the certificate for as long as the node runs.

        Raises RenewalRefused when the coordinator trusts it no more. Without an identity there is
        nothing to do.
        """
        identity = self._who.identity
        if identity is None:
            return
        streams = Streams(self._who.node.number)
        self._renewer = Renewer(identity, self._renew, self._renewed, streams)
        try:
            await self._renewer.run()
        finally:
            self._renewer = None

    async def _renew(self, request: bytes) -> EnrolReply:
        """By the coordinator's gRPC, and where that fails through the home.

        The other way round for a node that is to use MQTT. A refusal is final: TLS says that it is
        the coordinator's, or a signature that it is the authority's.
        """
        identity, relayed = self._who.identity, self.relayed
        assert identity is not None and relayed is not None
        material = await asyncio.to_thread(identity.material)

        async def by_grpc() -> EnrolReply:
            from ..net.grpc import grpc_core

            grpc_core.hold()
            facts = await asyncio.to_thread(identity.facts)
            return await renew_call(cloud_address(facts), CLOUD, material, request)

        async def by_home() -> EnrolReply:
            return await relayed.renew(material, request)

        ways = (by_home, by_grpc) if self._transport == "mqtt" else (by_grpc, by_home)
        faults = []
        for way in ways:
            try:
                return await way()
            except RenewalRefused:
                raise
            except (IdentityError, OSError, TimeoutError) as error:
                faults.append(error.message if isinstance(error, IdentityError) else str(error))
        raise IdentityError("; ".join(faults))

    def _renewed(self, identity: PeerIdentity) -> None:
        """The links show the new certificate at once.

        The other end accepts the old one no longer than it lasts.
        """
        for link in (self.grpc, self.mqtt):
            if link is not None:
                link.redial()
        if self._on_renewed is not None:
            self._on_renewed()

    async def close(self) -> None:
        """Says goodbye. May be called twice."""
        for link in (self.grpc, self.mqtt):
            if link is not None:
                await link.close()


def _chosen(
    homes: Sequence[HomeAddress], transport: Transport
) -> tuple[dict[Node, str], dict[Node, str]]:
    """Which home is used over gRPC, and which over MQTT."""
    over_grpc: dict[Node, str] = {}
    over_mqtt: dict[Node, str] = {}
    for home in homes:
        if home.grpc and transport != "mqtt":
            over_grpc[home.node] = home.grpc
        elif home.mqtt and transport != "grpc":
            over_mqtt[home.node] = home.mqtt
    return over_grpc, over_mqtt


# ---------------------------------------------------------------- asking the coordinator


def cloud_address(facts: NodeFacts) -> str:
    """Where renewals and the deny list are asked for: the coordinator's gRPC.

    Raises IdentityError where enrolment named none.
    """
    found = next((h.grpc for h in facts.homes if h.node == CLOUD and h.grpc), "")
    if not found:
        raise IdentityError("enrolment did not say where the coordinator is", "join again")
    return found


async def keep_denied(
    identity: IdentityFolder,
    denied: KnownDenied,
    asked: asyncio.Event,
    relayed: RelayedRequests,
    *,
    every_s: float = ASK_EVERY_S,
    home_first: bool = False,
) -> None:
    """Asks for the deny list.

    Again and again until it is cancelled, and at once when `asked` is set. Without an answer it
    asks again soon, then less and less often. It asks the coordinator's gRPC and the home
    (`relayed`), in this order unless `home_first`; the second where the first fails, or has a list
    that the CA should have signed again by now, or an older one than `denied.wanted`: an edge may
    keep the newest one to itself, above all one that is revoked.
    """
    failures = 0

    async def by_grpc(ask: DeniedAsk) -> DeniedPage:
        return await denied_call(identity, ask)

    ways = (relayed.denied, by_grpc) if home_first else (by_grpc, relayed.denied)
    while True:
        asked.clear()
        try:
            try:
                changed = await denied.fetch(ways[0])
            except (IdentityError, OSError, TimeoutError):
                changed = await denied.fetch(ways[1])
            else:
                late = time.time() - denied().issued_s > LIST_FRESH_S
                if late or denied().version < denied.wanted:
                    with contextlib.suppress(IdentityError, OSError, TimeoutError):
                        changed = await denied.fetch(ways[1]) or changed
            failures = 0
            if changed:
                log.info("deny list changed", extra={"version": denied().version})
        except (DelianError, OSError, TimeoutError) as error:
            failures += 1
            if failures == 1:
                log.warning("the deny list is as old as the last answer: %s", error)
        pause = min(every_s, ASK_AGAIN_S * 2 ** min(failures, 16)) if failures else every_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):  # wait_for may lose a cancellation
                await asked.wait()


async def denied_call(identity: IdentityFolder, asked: DeniedAsk) -> DeniedPage:
    """Asks the coordinator for a page. Raises IdentityError."""
    import grpc

    from ...wire import enrolment_pb2_grpc
    from ..net.grpc import grpc_core

    grpc_core.hold()
    facts = await asyncio.to_thread(identity.facts)
    material = await asyncio.to_thread(identity.material)
    options = [
        *channel_options(facts.federation, CLOUD),
        ("grpc.max_receive_message_length", PAGE_BYTES + 4096),
    ]
    async with grpc.aio.secure_channel(
        cloud_address(facts), channel_credentials(material), options=options
    ) as channel:
        stub = enrolment_pb2_grpc.IdentityStub(channel)
        try:
            reply: DeniedPage = await stub.Denied(asked, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            raise IdentityError(
                f"the coordinator did not give the deny list ({error.code().name.lower()})"
            ) from None
    return reply
