"""What both ends of an MQTT link have.

Its name, a connection, and a place where everything that comes is read, and counted when it is
refused.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ....protocol.ports import Node, ProtocolError
from ...identity.pki.certificates import PeerIdentity, TlsFiles, TlsMaterial
from ...identity.pki.tls_contexts import client_context
from ..message_limits import PRESENCES_BURST, PRESENCES_PER_S, Buckets, Faults
from ..switch import Switch
from ..transfer import Intake
from .mqtt_client import BrokerAddress, Connection, Publication, Unsent
from .mqtt_peer import Office
from .seal import Credentials, SealError, Seen, new_session
from .topics import Direction, Kind, Topic, host_of, name_of, parse

#: How often a hub puts its home back: so many times at once, and once every so many seconds.
PUT_BACK_BURST = 10
PUT_BACK_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class MqttIdentity:
    """The sender."""

    federation: str
    node: Node
    files: Callable[[], TlsFiles] | None = None
    """Where its key and certificate are now.

    None: without certificates, which is for a broker on loopback.
    """
    distrust: Callable[[PeerIdentity], str | None] = lambda peer: None
    """Why a peer is not trusted any more, else None (`roles.Guard.distrust`)."""
    broker_authority: Path | None = None
    """The CA of the broker's certificate, where that is not the federation's CA."""
    connect: Callable[..., Connection] = Connection
    """Makes its connections to brokers."""
    clock: Callable[[], float] = time.time
    """Unix time, at which certificates of others are checked."""

    def credentials(self) -> Credentials:
        return Credentials(self.federation, host_of(self.node), self._material(), self.clock)

    def _material(self) -> Callable[[], TlsMaterial] | None:
        files = self.files
        return None if files is None else lambda: files().read()

    def connection(self, broker: BrokerAddress, role: str, link: Side) -> Connection:
        """A connection of its own under a name that cannot be guessed."""
        files = self.files
        return self.connect(
            broker,
            f"{name_of(host_of(self.node))}-{role}-{secrets.token_hex(8)}",
            tls=None if files is None else lambda: client_context(files(), self.broker_authority),
            filters=link.filters,
            will=link.will,
            receive=link.receive,
            changed=link.changed,
            faults=link.faults,
        )


class OwnHome:
    """A hub's retained message that says where it serves, and that stays in its place.

    Another takes its place when the will of an earlier life of the hub comes some seconds after
    this life began, or when it is removed. Without a home no node would come.
    """

    def __init__(
        self, topic: str, make: Callable[[], bytes], publish: Callable[[bytes], None]
    ) -> None:
        self.topic = topic
        self._make, self._publish = make, publish
        self._newest = b""
        self._again = Buckets(PUT_BACK_BURST, 1 / PUT_BACK_EVERY_S, 1)

    def publish(self) -> None:
        """Signed at this time."""
        self._newest = self._make()
        self._publish(self._newest)

    def heard(self, payload: bytes, now: float) -> None:
        """Publishes the home again unless this is it: some brokers do not know "no local".

        now: in seconds. Raises SealError.
        """
        if payload == self._newest:
            return
        if not self._again.take(self.topic, now):
            raise SealError("too many homes")
        self.publish()


class Side(ABC):
    """What a hub is, and an uplink's visit to a home. filters: what it receives."""

    def __init__(
        self,
        switch: Switch,
        identity: MqttIdentity,
        broker: BrokerAddress,
        role: str,
        sends: Direction,
        filters: tuple[str, ...],
        faults: Faults,
        intake: Intake,
    ) -> None:
        self.faults = faults
        self.filters = filters
        self.session = new_session()
        self._presences = Buckets(PRESENCES_BURST, PRESENCES_PER_S, len(Kind))
        self.me = host_of(identity.node)
        self.identity = identity
        self.credentials = identity.credentials()
        self.connection = identity.connection(broker, role, self)
        self.office = Office(
            federation=identity.federation,
            me=self.me,
            sends=sends,
            switch=switch,
            faults=faults,
            meter=switch.traffic.meter("mqtt"),
            intake=intake,
            connected=lambda: self.connection.connected,
            publish=self.connection.publish,
            distrust=identity.distrust,
        )

    @abstractmethod
    def will(self) -> Publication:
        """What the broker says when this process is gone."""

    @abstractmethod
    def changed(self, connected: bool) -> None:
        """The connection is there, or is not."""

    @abstractmethod
    def take(self, topic: Topic, text: str, payload: bytes, retained: bool) -> None:
        """What has come for this side. Raises ProtocolError."""

    def limit(self, kind: Kind) -> None:
        """Counts a word of a home before it is verified.

        Each new session of a home costs a birth, too. Raises SealError beyond the rate.
        """
        if not self._presences.take(kind, asyncio.get_running_loop().time()):
            raise SealError(f"too many words of kind {kind.value}")

    def receive(self, text: str, payload: bytes, retained: bool) -> None:
        """Everything that comes goes through here: what is refused is counted."""
        who: object = "the broker"
        try:
            topic = parse(text)
            who = topic.node if topic.node != self.me else topic.upper or topic.node
            if topic.federation != self.identity.federation:
                raise SealError("other federation")
            self.take(topic, text, payload, retained)
        except SealError as refusal:
            self.faults.count(refusal.message, who)
        except ProtocolError as refusal:
            self.faults.count("protocol", who, why=refusal.message)

    def read(self, payload: bytes, state: int, node: Node) -> Seen:
        """A presence that came where presences of `state` and `node` belong. Raises SealError."""
        seen = self.credentials.read(payload)
        if seen.node != node or seen.presence.state != state:
            raise SealError("forged")
        if seen.identity is not None and (reason := self.identity.distrust(seen.identity)):
            raise SealError(reason)
        return seen

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, expiry_s: int = 0
    ) -> None:
        """Once; a node that needs an answer repeats it."""
        message = Publication(topic, payload, retain, expiry_s)
        self.office.spawn(self._publish(message))

    async def _publish(self, message: Publication) -> None:
        try:
            await self.connection.publish(message)
        except Unsent:
            self.faults.counts["unsent"] += 1
