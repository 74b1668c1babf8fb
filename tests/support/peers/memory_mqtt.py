"""A broker in memory: filters, retained messages and wills, and no access list.

broker = MemoryBroker()
hub = MqttHub(switch, MqttIdentity(..., connect=broker.connect), "mqtts://memory:1")
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from delian.core.node.net.mqtt.mqtt_client import BrokerAddress, Publication, Unsent
from paho.mqtt.client import topic_matches_sub


class MemoryConnection:
    """What `mqtt_client.Connection` is to its owner."""

    def __init__(
        self,
        broker: MemoryBroker,
        address: BrokerAddress,
        filters: Iterable[str],
        receive: Callable[[str, bytes, bool], None],
        changed: Callable[[bool], None],
    ) -> None:
        self.address, self.filters, self.receive = address, tuple(filters), receive
        self.reconnects = 0
        self._broker, self._changed = broker, changed

    @property
    def connected(self) -> bool:
        return self in self._broker.connections

    def start(self) -> None:
        asyncio.get_running_loop().call_soon(self._up)

    def redial(self) -> None:
        self._down()
        self.start()

    def _up(self) -> None:
        self.reconnects += 1
        self._broker.join(self)
        self._changed(True)

    def _down(self) -> None:
        if self.connected:
            self._broker.connections.remove(self)
            self._changed(False)

    async def close(self, *farewell: Publication) -> None:
        for message in farewell:
            self._broker.publish(self, message)
        self._down()

    async def publish(self, message: Publication) -> None:
        if not self.connected:
            raise Unsent
        self._broker.publish(self, message)
        await asyncio.sleep(0)  # others take their turn, as while a broker acknowledges


class MemoryBroker:
    """Delivers in order, once, and not to the publisher."""

    def __init__(self) -> None:
        self.connections: list[MemoryConnection] = []
        self._retained: dict[str, bytes] = {}

    def connect(self, address: BrokerAddress, identifier: str, **told: Any) -> MemoryConnection:
        """Stands in for the class `Connection`."""
        return MemoryConnection(self, address, told["filters"], told["receive"], told["changed"])

    def join(self, connection: MemoryConnection) -> None:
        self.connections.append(connection)
        for topic, payload in self._retained.items():
            if topic in connection.filters:  # retained messages go to filters without wildcards
                self._deliver(connection, topic, payload, retained=True)

    def publish(self, sender: MemoryConnection | None, message: Publication) -> None:
        topic, payload = message.topic, message.payload
        if message.retain:
            self._retained[topic] = payload
        for each in self.connections:
            if each is not sender and any(topic_matches_sub(f, topic) for f in each.filters):
                self._deliver(each, topic, payload, retained=False)

    def _deliver(self, to: MemoryConnection, topic: str, payload: bytes, retained: bool) -> None:
        asyncio.get_running_loop().call_soon(to.receive, topic, payload, retained)
