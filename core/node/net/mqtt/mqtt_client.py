"""A connection to a broker that comes back by itself, over aiomqtt.

It keeps the filters subscribed, hands over what comes, and publishes at QoS 1 with at most
`OUTSTANDING_MAX` messages that the broker has not acknowledged; `publish` raises `Unsent` at once
when the connection is lost, and the caller decides what is still worth sending. Between tries it
waits a random time that doubles up to half a minute.

What MQTT 5 gives is used where it helps, and nothing breaks without it:

- session expiry: the broker keeps subscriptions and messages for a client that is away for less
  than `SESSION_S`. The client's id is drawn at random by each process, so no client can push a node
  out by taking its id, and what was meant for an earlier life of a node is not delivered to the
  next;
- message expiry: what was not fetched in time is worth nothing;
- receive maximum and maximum packet size: limits that the broker keeps for us;
- subscription options: no echo of one's own messages, and no retained ones with a filter that has a
  wildcard;
- user properties: the contract's version and the trace context, for tools on the way. The receiver
accepts only what is inside the sealed message.

Response topic and correlation data are not used: the answer's topic follows from the name of the
requester, and messages name what they answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from ....common.errors import DelianError
from ..message_limits import Faults
from .broker import PACKET_BYTES_MAX, is_loopback
from .seal import VERSION

log = logging.getLogger("delian.net.mqtt")

#: Messages that the broker has not acknowledged. Every broker bears so many (HiveMQ no more).
OUTSTANDING_MAX = 10
#: What the broker may send before it waits for acknowledgements.
RECEIVE_MAX = 64
#: Messages that wait for this process. Beyond them messages are dropped and counted.
INBOX_MAX = 1_024
#: How long a broker keeps things for a client that is away.
SESSION_S = 300
#: A will is published only when the client has been away so long.
WILL_DELAY_S = 5
KEEPALIVE_S = 30
#: For an answer of the broker.
BROKER_TIMEOUT_S = 10.0
BACKOFF_S = 0.25
BACKOFF_S_MAX = 30.0
#: A connection that lasted so long was a good one: the next pause is a short one again.
STABLE_S = 10.0
_PORTS = {"mqtt": 1883, "mqtts": 8883}

# aiomqtt and paho report through a logger; what they say is known here anyway, from exceptions.
_quiet = logging.getLogger("delian.net.mqtt.aiomqtt")
_quiet.setLevel(logging.CRITICAL)


class Unsent(Exception):
    """The message was not acknowledged by the broker; it may have been sent."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker is, of a URL: `mqtts://host:port`, or `mqtt://` on loopback."""

    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, url: str) -> BrokerAddress:
        """Raises DelianError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise DelianError(f"`{url[:200]}` is no address of a broker") from None
        if parts.scheme not in _PORTS or not parts.hostname or parts.path.strip("/"):
            raise DelianError(f"`{url[:200]}` is no address of a broker", "write mqtts://host:8883")
        return cls(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "mqtts")


@dataclass(frozen=True, slots=True)
class Publication:
    """A message for a topic."""

    topic: str
    payload: bytes
    retain: bool = False
    expiry_s: int = 0
    """0 keeps it for as long as the broker likes."""
    traceparent: str = ""


class _Inbox(asyncio.Queue[aiomqtt.Message]):
    """Counts what it has no room for; aiomqtt would log a line for each."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(INBOX_MAX)
        self._faults = faults

    def put_nowait(self, item: aiomqtt.Message) -> None:
        if self.full():
            self._faults.count("inbox is full", "the broker")
            return
        super().put_nowait(item)


class Connection:
    """See the module. All callbacks come on the loop's thread and must not block or raise.

    tls: makes the TLS settings for each try; None: plain, to a broker on loopback. filters: what
    to subscribe to. will: what the broker says when this client is gone. farewell: what the client
    says itself when it is closed. receive(topic, payload, retained). changed(connected).
    """

    def __init__(
        self,
        address: BrokerAddress,
        identifier: str,
        *,
        tls: Callable[[], ssl.SSLContext] | None,
        filters: Iterable[str],
        will: Callable[[], Publication],
        receive: Callable[[str, bytes, bool], None],
        changed: Callable[[bool], None],
        faults: Faults,
    ) -> None:
        if address.tls != (tls is not None):
            raise DelianError(
                f"the broker at {address.host}:{address.port} is "
                f"{'reached by TLS' if address.tls else 'reached without TLS'}, this node "
                f"{'has no certificate' if tls is None else 'accepts TLS only'}",
                "join the federation first; --insecure is for mqtt:// on loopback",
            )
        if tls is None and not is_loopback(address.host):
            raise DelianError(
                f"without TLS a broker must be on loopback, not at {address.host}",
                "use mqtts:// and join the federation",
            )
        self.address = address
        self.reconnects = 0
        self._identifier = identifier
        self._tls = tls
        self._filters = tuple(filters)
        self._will = will
        self._receive = receive
        self._changed = changed
        self._faults = faults
        self._client: aiomqtt.Client | None = None
        self._lost: asyncio.Future[None] | None = None
        self._window = asyncio.Semaphore(OUTSTANDING_MAX)
        self._closing = asyncio.Event()
        self._redial = asyncio.Event()
        self._farewell: tuple[Publication, ...] = ()
        self._task: asyncio.Task[None] | None = None
        self._known = False  # the broker has had this client before

    @property
    def connected(self) -> bool:
        return self._client is not None

    def start(self) -> None:
        """Begins to connect; it goes on until `close`."""
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def redial(self) -> None:
        """Reconnects, with the current TLS settings."""
        self._redial.set()

    async def close(self, *farewell: Publication) -> None:
        """Says farewell if it is connected, and ends. Takes at most some seconds."""
        self._farewell = farewell
        self._closing.set()
        if self._task is not None:
            await self._task
            self._task = None

    # ------------------------------------------------ publishing

    async def publish(self, message: Publication) -> None:
        """Returns when the broker has taken it. Raises Unsent."""
        async with self._window:
            client, lost = self._client, self._lost
            if client is None or lost is None:
                raise Unsent
            task = asyncio.ensure_future(self._publish(client, message))
            try:
                await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            if task.cancelled():
                raise Unsent
            try:
                task.result()
            except (aiomqtt.MqttError, OSError, ValueError) as error:
                raise Unsent from error

    async def _publish(self, client: aiomqtt.Client, message: Publication) -> None:
        await client.publish(
            message.topic,
            message.payload,
            qos=1,
            retain=message.retain,
            properties=_properties(message),
            timeout=BROKER_TIMEOUT_S,
        )

    # ------------------------------------------------ connecting

    async def _run(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while not self._closing.is_set():
            began = loop.time()
            try:
                await self._live()
            except (aiomqtt.MqttError, OSError, DelianError) as error:
                failures = 1 if loop.time() - began > STABLE_S else failures + 1
                if failures == 1:
                    facts = {"broker": self.address.host, "error": str(error)}
                    log.warning("no connection to the broker", extra=facts)
            pause = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(failures, 10))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause * (0.5 + 0.5 * random.random()))

    async def _live(self) -> None:
        """One connection, from its beginning to its end."""
        context = None if self._tls is None else await asyncio.to_thread(self._tls)
        async with self._make(context) as client:
            reader = asyncio.ensure_future(self._read(client))
            try:
                await self._first(reader, asyncio.ensure_future(self._subscribe(client)))
                self._known = True
                self._up(client)
                await self._first(reader, asyncio.ensure_future(self._until_told()))
                if self._closing.is_set():
                    await self._first(reader, asyncio.ensure_future(self._leave(client)))
            finally:
                self._down()
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)

    async def _until_told(self) -> None:
        """Until it is to end, or to reconnect."""
        waits = [asyncio.ensure_future(e.wait()) for e in (self._closing, self._redial)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._redial.clear()

    async def _first(self, reader: asyncio.Future[None], other: asyncio.Future[Any]) -> None:
        """Waits for `other`; raises what ends the reader, which ends only with the connection."""
        try:
            await asyncio.wait({reader, other}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not other.done():
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)
        if reader.done():
            reader.result()
        other.result()

    def _make(self, context: ssl.SSLContext | None) -> aiomqtt.Client:
        connect = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        connect.SessionExpiryInterval = SESSION_S
        connect.ReceiveMaximum = RECEIVE_MAX
        connect.MaximumPacketSize = PACKET_BYTES_MAX
        will = self._will()
        about_will = _properties(will, PacketTypes.WILLMESSAGE)
        about_will.WillDelayInterval = WILL_DELAY_S
        client = aiomqtt.Client(
            self.address.host,
            self.address.port,
            identifier=self._identifier,
            protocol=aiomqtt.ProtocolVersion.V5,
            will=aiomqtt.Will(will.topic, will.payload, 1, will.retain, about_will),
            clean_start=not self._known,
            keepalive=KEEPALIVE_S,
            timeout=BROKER_TIMEOUT_S,
            properties=connect,
            tls_context=context,
            logger=_quiet,
            queue_type=lambda maxsize: _Inbox(self._faults),  # type: ignore[arg-type]
        )
        # Else it warns of more than ten; the window is the limit here.
        client.pending_calls_threshold = OUTSTANDING_MAX + len(self._filters) + 8
        return client

    async def _subscribe(self, client: aiomqtt.Client) -> None:
        for text in self._filters:
            # 2: no retained messages. Only a home is retained, and a home has no wildcard.
            retained = 2 if "+" in text else 0
            options = SubscribeOptions(qos=1, noLocal=True, retainHandling=retained)
            codes = await client.subscribe(text, options=options, timeout=BROKER_TIMEOUT_S)
            if any(getattr(code, "is_failure", False) for code in codes):
                self._faults.count("subscription refused", "the broker", filter=text)

    async def _read(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            payload = message.payload if isinstance(message.payload, bytes) else b""
            self._receive(message.topic.value, payload, bool(message.retain))

    async def _leave(self, client: aiomqtt.Client) -> None:
        for message in self._farewell:
            await self._publish(client, message)
        for text in self._filters:  # or the broker continues to collect messages for no reader
            await client.unsubscribe(text, timeout=BROKER_TIMEOUT_S)

    def _up(self, client: aiomqtt.Client) -> None:
        self.reconnects += 1
        self._client = client
        self._lost = asyncio.get_running_loop().create_future()
        log.info("connected to the broker", extra={"broker": self.address.host})
        self._changed(True)

    def _down(self) -> None:
        if self._client is None:
            return
        self._client = None
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        self._changed(False)


def _properties(message: Publication, kind: int = PacketTypes.PUBLISH) -> Properties:
    properties = Properties(kind)  # type: ignore[no-untyped-call]
    if message.expiry_s:
        properties.MessageExpiryInterval = message.expiry_s
    said = [("version", str(VERSION))]
    if message.traceparent:
        said.append(("traceparent", message.traceparent))
    properties.UserProperty = said
    return properties
