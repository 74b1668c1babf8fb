"""Links over an MQTT broker: `MqttHub` serves the nodes below, `MqttUplink` goes to the one above.

How two nodes come together (`core/node/net/mqtt/seal.py` says why it is safe):

    hub                                        uplink
    up/home        retained ---------------->  knows where to go
                   <----------------- up/birth/{hub}
    down/welcome   ------------------------->  has the keys
                   <----------------- up/envelope, empty: "so have I"
    down/envelope, empty ------------------->  all that waits is sent

The uplink carries the burden: it repeats its birth until it is answered, sends a new birth when a
home has started again, when it was away for some time, when keys are worn, and when it has sent and
received nothing for a while, since the home may have dropped its state. The hub only answers. An
uplink has one home at a time, the one that was sent to last.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping

from google.protobuf.message import Message

from ....common.errors import DelianError
from ....protocol.ports import Node, Tier
from ....wire.mqtt_pb2 import PRESENCE_BIRTH, PRESENCE_DEATH, PRESENCE_HOME, PRESENCE_WELCOME
from ...storage.blobs import BlobStore
from ..message_limits import Buckets, Faults
from ..switch import Switch
from ..transfer import Intake
from .mqtt_client import WILL_DELAY_S, BrokerAddress, Publication
from .mqtt_peer import MESSAGE_EXPIRY_S, Below, Peer
from .mqtt_side import MqttIdentity, OwnHome, Side
from .seal import Ephemeral, SealError, Seen, agree, presence_in
from .topics import Direction, Kind, Topic, filters_of_hub, filters_of_uplink, home, host_of, hosts

__all__ = ["MqttHub", "MqttIdentity", "MqttUplink"]

log = logging.getLogger("delian.net.mqtt")

#: Nodes of a hub. Beyond them the one that was silent for longest is dropped; it comes back when it
#: has something to say.
PEERS_MAX = 20_000
#: Births of one node that a hub reads, and deaths: so many at once, and one every so many seconds.
#: To read one costs about 0.5 ms, a certificate and two signatures, whatever it says.
BIRTHS_BURST = 10
BIRTH_EVERY_S = 3.0
#: Births of all nodes together that are not here: so many at once, and so many a second, a quarter
#: of a core. Without an access list a client may publish under any name.
NEWCOMERS_BURST = 4_000
NEWCOMERS_PER_S = 500.0
#: Nodes whose births and deaths are counted apart; beyond them the oldest count is forgotten.
NODES_COUNTED = PEERS_MAX
#: For the answer to a birth, at first; it doubles up to the longest.
WELCOME_S = 2.0
WELCOME_S_MAX = 60.0
#: After a home has started again its nodes come back within so many seconds, each at its own time.
CROWD_S = 2.0
#: An uplink that has sent and received nothing for so long sends a new birth.
SILENCE_S = 30.0
#: An uplink that has received nothing for so long asks whether it is still known.
KEEP_S = 600.0
#: A home without a way to it for so long is not reached: messages for it are not even kept.
BROKEN_S = 5.0
#: New keys at least as often, which also shows a renewed certificate.
CHANNEL_S_MAX = 24 * 3600.0


# ---------------------------------------------------------------- downwards


class MqttHub(Side):
    """Serves nodes below: `identity.node` is an edge or the cloud."""

    def __init__(
        self,
        switch: Switch,
        identity: MqttIdentity,
        broker: str,
        *,
        on_peer: Callable[[Node, bool], None] | None = None,
        intake: Intake | None = None,
    ) -> None:
        """broker: its URL. on_peer: called when a node has come or gone. Raises DelianError."""
        me = host_of(identity.node)
        super().__init__(
            switch,
            identity,
            BrokerAddress.parse(broker),
            "hub",
            Direction.DOWN,
            filters_of_hub(identity.federation, me),
            Faults("mqtt hub"),
            intake or Intake(),
        )
        assert me.tier is not Tier.DEVICE
        self._on_peer = on_peer or (lambda node, here: None)
        self._home = OwnHome(
            home(identity.federation, me),
            lambda: self.credentials.home(self.session),
            lambda payload: self.publish(self._home.topic, payload, retain=True),
        )
        self._peers: OrderedDict[Node, Below] = OrderedDict()
        self._births = Buckets(BIRTHS_BURST, 1 / BIRTH_EVERY_S, NODES_COUNTED)
        self._deaths = Buckets(BIRTHS_BURST, 1 / BIRTH_EVERY_S, NODES_COUNTED)
        self._newcomers = Buckets(NEWCOMERS_BURST, NEWCOMERS_PER_S, 1)

    def start(self) -> None:
        """Begins to serve; it goes on until `close`."""
        self.connection.start()

    def redial(self) -> None:
        """Reconnects to the broker, with the current certificate."""
        self.connection.redial()

    async def close(self) -> None:
        """Says that the home is gone, and ends. May be called twice."""
        for below in self._peers.values():
            await below.peer.close()
        farewell = self.credentials.death(self.session)
        await self.connection.close(Publication(self._home.topic, farewell, retain=True))
        await self.office.close()
        self._peers.clear()

    # ------------------------------------------------ the link

    def reaches(self, to: Node) -> bool:
        below = self._peers.get(to)
        return below is not None and below.peer.current is not None

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        below = self._peers.get(to)
        if below is None:
            self.faults.count("unreachable", to)
            return
        below.peer.send(sender, to, message, traceparent)

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        below = self._peers.get(to)
        if below is None:
            self.faults.count("unreachable", to)
            return
        below.peer.send_blob(sender, to, digest, blobs)

    @property
    def peers(self) -> tuple[Node, ...]:
        """The nodes that are here now."""
        return tuple(node for node, below in self._peers.items() if below.peer.current is not None)

    def forget(self, node: Node) -> None:
        """Ends the conversation with a node. One that is still trusted comes back."""
        below = self._peers.pop(node, None)
        if below is not None:
            self._left(below)
            self.office.spawn(below.peer.close())

    def _left(self, below: Below) -> None:
        if below.here:
            below.here = False
            self._on_peer(below.peer.other, False)

    # ------------------------------------------------ the connection

    def will(self) -> Publication:
        return Publication(self._home.topic, self.credentials.death(self.session), retain=True)

    def changed(self, connected: bool) -> None:
        if not connected:
            return
        # Each time: a will may have taken its place, or the broker may have lost it.
        self._home.publish()
        for below in self._peers.values():
            below.peer.kick()

    def take(self, topic: Topic, text: str, payload: bytes, retained: bool) -> None:
        if text == self._home.topic:
            self._home.heard(payload, asyncio.get_running_loop().time())
            return
        if topic.upper != self.me or topic.direction is not Direction.UP:
            raise SealError("wrong topic")
        if retained:  # nothing that nodes below say is retained
            raise SealError("retained")
        if topic.kind is Kind.BIRTH:
            self._born(topic.node, payload)
        elif topic.kind is Kind.DEATH:
            self._died(topic.node, payload)
        else:
            below = self._peers.get(topic.node)
            if below is None:
                raise SealError("stale")
            try:
                below.peer.take(topic, text, payload)
            finally:
                if below.peer.current is None:
                    self._left(below)
            self._peers.move_to_end(topic.node)

    def _born(self, node: Node, payload: bytes) -> None:
        now = asyncio.get_running_loop().time()
        below = self._peers.get(node)
        # Before anything is verified: a forged birth costs as much as a genuine one.
        if not self._births.take(node, now):
            raise SealError("too many births")
        if below is None and not self._newcomers.take("all", now):
            raise SealError("too many newcomers")
        seen = self.read(payload, PRESENCE_BIRTH, node)
        if seen.other != self.me:
            raise SealError("forged")
        if seen.presence.other_session != self.session:
            raise SealError("stale")
        if below is None:
            below = Below(Peer(self.office, node, self._confirmed))
            self._make_room()
            self._peers[node] = below
        if seen.encoded != below.birth:
            ephemeral = Ephemeral(self.credentials.sealed)
            welcome = self.credentials.welcome(self.session, ephemeral, seen)
            channel = agree(
                seen.encoded,
                presence_in(welcome),
                ephemeral,
                lower=False,
                sealed=self.credentials.sealed,
            )
            below.birth, below.welcome = seen.encoded, welcome
            below.peer.propose(channel, seen.presence.session, seen.identity)
        topic = Topic(self.identity.federation, node, Direction.DOWN, Kind.WELCOME, self.me)
        self.publish(str(topic), below.welcome, expiry_s=MESSAGE_EXPIRY_S)

    def _confirmed(self, peer: Peer) -> None:
        below = self._peers.get(peer.other)
        if below is None or below.here:
            return
        below.here = True
        log.info("node is here", extra={"node": str(peer.other), "link": "mqtt"})
        self._on_peer(peer.other, True)

    def _died(self, node: Node, payload: bytes) -> None:
        below = self._peers.get(node)
        if below is None:
            raise SealError("stale")
        if not self._deaths.take(node, asyncio.get_running_loop().time()):
            raise SealError("too many deaths")
        seen = self.read(payload, PRESENCE_DEATH, node)
        if seen.other != self.me or seen.presence.session != below.peer.session:
            raise SealError("stale")
        log.info("node is gone", extra={"node": str(node), "link": "mqtt"})
        # Its transfers stay for a while: it may come back. Its keys do not.
        below.peer.silence()
        self._left(below)

    def _make_room(self) -> None:
        while len(self._peers) >= PEERS_MAX:
            node = next((n for n, b in self._peers.items() if b.peer.current is None), None)
            node = node if node is not None else next(iter(self._peers))
            self.faults.counts["peers forgotten"] += 1
            self.forget(node)


# ---------------------------------------------------------------- upwards


class _Visit(Side):
    """An uplink's time at one home, over one broker."""

    def __init__(
        self,
        switch: Switch,
        identity: MqttIdentity,
        upper: Node,
        broker: BrokerAddress,
        faults: Faults,
        intake: Intake,
        on_connected: Callable[[Node], None],
    ) -> None:
        super().__init__(
            switch,
            identity,
            broker,
            "up",
            Direction.UP,
            filters_of_uplink(identity.federation, identity.node, upper),
            faults,
            intake,
        )
        self.upper = upper
        self._on_connected = on_connected
        self._well_at = asyncio.get_running_loop().time()
        self.peer = Peer(self.office, upper, self._confirmed)
        self._home: Seen | None = None
        self._birth: tuple[bytes, Ephemeral] | None = None  # that waits for its answer
        self._channel_at = self._away_at = 0.0
        self._wake = asyncio.Event()
        self._crowd = False  # the home has started again: many come now
        self._tender: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.connection.start()
        self._tender = asyncio.get_running_loop().create_task(self._tend())

    def redial(self) -> None:
        self._be_born_soon()
        self.connection.redial()

    async def close(self) -> None:
        if self._tender is not None:
            self._tender.cancel()
            await asyncio.gather(self._tender, return_exceptions=True)
        await self.peer.close()
        await self.connection.close(self.will())
        await self.office.close()

    @property
    def broken(self) -> bool:
        """Whether there has been no way to the home for some time."""
        now = asyncio.get_running_loop().time()
        if self.peer.current is not None and self.connection.connected:
            self._well_at = now
        return now - self._well_at > BROKEN_S

    # ------------------------------------------------ the connection

    def will(self) -> Publication:
        return Publication(
            self._topic(Kind.DEATH), self.credentials.death(self.session, self.upper)
        )

    def changed(self, connected: bool) -> None:
        now = asyncio.get_running_loop().time()
        if not connected:
            self._away_at = now
            self._well_at = now if self.peer.current is not None else self._well_at
        elif now - self._away_at > WILL_DELAY_S / 2:
            # The broker may have said that this node is gone.
            self._be_born_soon()
        else:
            self.peer.kick()
            if self.peer.current is not None:
                self._on_connected(self.upper)
        self._wake.set()

    def take(self, topic: Topic, text: str, payload: bytes, retained: bool) -> None:
        if topic.kind is Kind.HOME:
            if topic.node != self.upper:
                raise SealError("wrong topic")
            self._take_home(payload)
            return
        if retained:
            raise SealError("retained")
        mine = topic.node == self.me and topic.upper == self.upper
        if not mine or topic.direction is not Direction.DOWN:
            raise SealError("wrong topic")
        if topic.kind is Kind.WELCOME:
            self._take_welcome(payload)
        else:
            self.peer.take(topic, text, payload)

    def _take_home(self, payload: bytes) -> None:
        if not payload:  # it was removed; the home will put it back
            return
        self.limit(Kind.HOME)
        seen = self.credentials.read(payload)
        if seen.presence.state == PRESENCE_DEATH:
            self.read(payload, PRESENCE_DEATH, self.upper)
            if self._home is not None and seen.presence.session == self._home.presence.session:
                log.info("home is gone", extra={"home": str(self.upper)})
                self._home = self._birth = None
                self.peer.silence()
            return
        seen = self.read(payload, PRESENCE_HOME, self.upper)
        known = self._home
        self._home = seen
        if known is None or known.presence.session != seen.presence.session:
            self._crowd = known is not None
            self._be_born_soon()

    def _take_welcome(self, payload: bytes) -> None:
        self.limit(Kind.WELCOME)
        seen = self.read(payload, PRESENCE_WELCOME, self.upper)
        if self._home is None or self._birth is None:
            raise SealError("stale")
        birth, ephemeral = presence_in(self._birth[0]), self._birth[1]
        if (
            seen.presence.session != self._home.presence.session
            or seen.other != self.me
            or seen.presence.other_session != self.session
            or seen.presence.answers != hashlib.sha256(birth).digest()
        ):
            raise SealError("stale")
        channel = agree(birth, seen.encoded, ephemeral, lower=True, sealed=self.credentials.sealed)
        self.peer.propose(channel, seen.presence.session, seen.identity)
        self.peer.greet()

    def _confirmed(self, peer: Peer) -> None:
        log.info("at home", extra={"home": str(self.upper), "link": "mqtt"})
        self._birth = None
        self._channel_at = asyncio.get_running_loop().time()
        self._wake.set()
        self._on_connected(self.upper)

    # ------------------------------------------------ being born

    def _be_born_soon(self) -> None:
        self._birth = None
        self.peer.said_at = None
        self._channel_at = 0.0
        self._wake.set()

    async def _tend(self) -> None:
        """Repeats births until they are answered, and sees when another is due."""
        pause = WELCOME_S
        while True:
            self._wake.clear()
            if self._crowd:
                self._crowd = False
                await asyncio.sleep(random.uniform(0, CROWD_S))
            if self._home is None or not self.connection.connected:
                await self._wake.wait()
                pause = WELCOME_S
                continue
            if not self._birth_is_due():
                pause = WELCOME_S
                if asyncio.get_running_loop().time() - self.peer.heard_at > KEEP_S:
                    self.peer.greet()
                await self._woken(SILENCE_S / 3)
                continue
            self._be_born(self._home)
            await self._woken(pause * random.uniform(0.75, 1.25))
            pause = min(pause * 2, WELCOME_S_MAX)

    async def _woken(self, pause_s: float) -> None:
        # Not wait_for: where both come at once it would lose a cancellation, and `close` wait.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wake.wait()

    def _birth_is_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self._birth is not None or self._channel_at == 0.0:
            return True
        said_at, channel = self.peer.said_at, self.peer.current
        unheard = said_at is not None and now - said_at > SILENCE_S
        worn = channel is None or channel.worn or now - self._channel_at > CHANNEL_S_MAX
        return unheard or worn

    def _be_born(self, at: Seen) -> None:
        if self._birth is None:
            ephemeral = Ephemeral(self.credentials.sealed)
            self._birth = self.credentials.birth(self.session, ephemeral, at), ephemeral
        self.publish(self._topic(Kind.BIRTH), self._birth[0], expiry_s=MESSAGE_EXPIRY_S)

    def _topic(self, kind: Kind) -> str:
        node = self.me
        return str(Topic(self.identity.federation, node, Direction.UP, kind, self.upper))


class MqttUplink:
    """The way up: `identity.node` is a device or an edge.

    homes: where its upper nodes are, node -> URL of the broker. The home is the node sent to;
    when that changes, the uplink says goodbye to the one and goes to the other. on_connected:
    called with a home whenever there is a new way to it.
    """

    def __init__(
        self,
        switch: Switch,
        identity: MqttIdentity,
        homes: Mapping[Node, str],
        *,
        on_connected: Callable[[Node], None] | None = None,
    ) -> None:
        """Raises DelianError."""
        self._switch = switch
        self._identity = identity
        self._homes: dict[Node, BrokerAddress] = {}
        self._on_connected = on_connected or (lambda home: None)
        self._intake = Intake()
        self.faults = Faults("mqtt uplink")
        self._visit: _Visit | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self.set_homes(homes)
        if not homes:
            raise DelianError("an uplink needs a home", "name one as mqtts://host:port")

    def set_homes(self, homes: Mapping[Node, str]) -> None:
        """Another address table. A visit at a home that is not in it ends. Raises DelianError."""
        self._homes = {node: BrokerAddress.parse(url) for node, url in homes.items()}
        visit = self._visit
        if visit is not None and not any(hosts(visit.upper, node) for node in self._homes):
            self._leave(visit)
            self._visit = None

    def start(self) -> None:
        """Goes to the first home at once, rather than with the first message."""
        if self._homes:
            self._go(next(iter(self._homes)))

    def redial(self) -> None:
        """Reconnects to the broker with the current certificate, and shows it to the home."""
        if self._visit is not None:
            self._visit.redial()

    async def close(self) -> None:
        """Says that the node is gone, and ends. May be called twice."""
        self._closed = True
        if self._visit is not None:
            await self._visit.close()
            self._visit = None
        await asyncio.gather(*self._leaving, return_exceptions=True)

    @property
    def home(self) -> Node | None:
        """The home with which there are keys now."""
        visit = self._visit
        return visit.upper if visit is not None and visit.peer.current is not None else None

    def knows(self, to: Node) -> bool:
        """Whether it has an address of a home."""
        return to in self._homes

    def reaches(self, to: Node) -> bool:
        """False for a home to which there has been no way for some time.

        Another home is used when it is sent to.
        """
        if to not in self._homes or self._closed:
            return False
        visit = self._visit
        return visit is None or not hosts(visit.upper, to) or not visit.broken

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        visit = self._go(to)
        if visit is not None:
            visit.peer.send(sender, to, message, traceparent)

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        visit = self._go(to)
        if visit is not None:
            visit.peer.send_blob(sender, to, digest, blobs)

    def expect(self, node: Node, at: Node, digest: bytes) -> None:
        """`node` has asked the home `at` for a blob by another way; it is taken here too."""
        visit = self._go(at)
        if visit is not None:
            visit.peer.transfers.asked(node, digest)

    def _go(self, to: Node) -> _Visit | None:
        """The visit at a home, begun if need be."""
        visit = self._visit
        if visit is not None and hosts(visit.upper, to):
            return visit
        if to not in self._homes or self._closed:
            self.faults.count("unreachable", to)
            return None
        if visit is not None:
            self._leave(visit)
        self._visit = _Visit(
            self._switch,
            self._identity,
            host_of(to),
            self._homes[to],
            self.faults,
            self._intake,
            self._on_connected,
        )
        self._visit.start()
        return self._visit

    def _leave(self, visit: _Visit) -> None:
        task = asyncio.get_running_loop().create_task(visit.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
