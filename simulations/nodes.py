"""A node of a simulated federation: its machine, and what a daemon would keep for it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, NamedTuple

from ..core.machine import Machine
from ..core.ports import Floats, Node, Tier
from ..core.secagg.identity import SimulatedIdentity
from ..core.streams import Streams
from ..core.wire.admission_pb2 import DeviceFacts, Eligibility
from ..core.wire.blob_pb2 import Blob
from ..device.machine import DeviceMachine, DeviceState
from .fleet import DeviceProfile
from .helping import trust_in
from .network import Channel
from .plan import FederationPlan
from .training import Job


class Stored(NamedTuple):
    """A blob that a node keeps. weights: f32[D], of a model's, which are nowhere in `blob`: one
    array serves all nodes.
    """

    blob: Blob
    weights: Floats | None = None


class Host:
    """A node of the simulation: its machine, and what a daemon would keep for it."""

    __slots__ = (
        "coming",
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
        self.coming = 0  # messages on their way to it
        self.muted = False
        self.timers: dict[str, int] = {}
        self.store: dict[bytes, Stored] = {}
        self.job: tuple[int, Job] | None = None  # a device's
        self.updates: set[int] = set()  # tickets of the cloud's programs, or an edge's
        self.profile: DeviceProfile | None = None


def device_of(
    state: DeviceState, profile: DeviceProfile, plan: FederationPlan, streams: Streams, seed: int
) -> DeviceMachine:
    """A device's machine; `state` may be one that has never run."""
    device, masked = state.device, plan.secure is not None
    return DeviceMachine(
        state,
        (Node(Tier.EDGE, profile.edge),),
        streams,
        DeviceFacts(memory_mib=profile.traits.memory_mib),
        Eligibility(powered=True, unmetered=True, idle=True, consented=True),
        replace(plan.device_policy, helpers=trust_in(plan.secure)),
        # A master secret of the seed, so that a simulation can be repeated.
        hashlib.sha256(f"delian simulated secret {seed} {device}".encode()).digest(),
        SimulatedIdentity(device, seed) if masked else None,
    )
