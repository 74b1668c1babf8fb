"""A node of a simulated federation: its machine, and what a daemon would keep for it."""

from __future__ import annotations

from typing import Any

from ..core.machine import Machine
from ..core.ports import Node
from ..core.wire.blob_pb2 import Blob
from .fleet import DeviceProfile
from .network import Channel
from .training import Job


class Host:
    """A node of the simulation: its machine, and what a daemon would keep for it."""

    __slots__ = (
        "down",
        "job",
        "machine",
        "muted",
        "node",
        "online",
        "profile",
        "store",
        "timers",
        "up",
        "updates",
    )

    def __init__(self, node: Node, machine: Machine[Any], up: Channel, down: Channel) -> None:
        self.node = node
        self.machine = machine
        self.up = up  # towards the cloud; the cloud's own are never used
        self.down = down
        self.online = False
        self.muted = False
        self.timers: dict[str, int] = {}
        self.store: dict[bytes, Blob] = {}
        self.job: tuple[int, Job] | None = None  # a device's
        self.updates: set[int] = set()  # tickets of the cloud's programs, or an edge's
        self.profile: DeviceProfile | None = None
