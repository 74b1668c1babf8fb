"""A node of a simulated federation: its machine, and what a daemon would keep for it."""

from __future__ import annotations

import hashlib
from collections.abc import Set
from dataclasses import replace
from typing import Any, NamedTuple

from ...cloud.protocol.coordinator_state import CoordinatorState
from ...cloud.protocol.machine import Coordinator
from ...core.privacy.secagg.member_identity import SimulatedIdentity, simulated_coordinator
from ...core.privacy.secagg.simulated_log import simulated_log, simulated_rules
from ...core.protocol.machine import Machine
from ...core.protocol.ports import Floats, Node, Tier
from ...core.protocol.random_streams import Streams
from ...core.wire.admission_pb2 import DeviceFacts, Eligibility
from ...core.wire.blob_pb2 import Blob
from ...core.wire.journal_pb2 import Conditions
from ...device.protocol.device_state import DeviceState
from ...device.protocol.machine import DeviceMachine
from ..scenario.federation_plan import FederationPlan
from .fleet import DeviceProfile
from .helping import trust_in
from .network import Channel
from .round_records import WAYS
from .training import Job

_WITHDRAWN = Eligibility(powered=False, unmetered=True, idle=True, consented=False)


class Stored(NamedTuple):
    """A blob that a node keeps."""

    blob: Blob
    weights: Floats | None = None
    """f32[D], of a model's, which are nowhere in `blob`: one array serves all nodes."""


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
        "ways",
    )

    def __init__(self, node: Node, machine: Machine[Any], up: Channel, down: Channel) -> None:
        self.node = node
        self.machine = machine
        self.up = up  # towards the cloud; the cloud's own are never used
        self.down = down
        self.ways = WAYS[node.tier]  # the names of its hop, up and down
        self.online = False
        self.coming = 0  # messages on their way to it
        self.muted = False
        self.timers: dict[str, int] = {}
        self.store: dict[bytes, Stored] = {}
        self.job: tuple[int, Job] | None = None  # a device's
        self.updates: set[int] = set()  # tickets of the cloud's programs, or an edge's
        self.profile: DeviceProfile | None = None


class Devices:
    """Makes the devices' machines of a plan.

    What they have in common is there once: a large population's are made again whenever they wake.
    """

    __slots__ = ("_eligibility", "_exhausted", "_facts", "_masked", "_policy", "_seed", "_streams")

    def __init__(
        self, plan: FederationPlan, streams: Streams, seed: int, exhausted: Set[int] = frozenset()
    ) -> None:
        self._exhausted = exhausted  # devices that take part no more
        self._streams, self._seed = streams, seed
        self._masked = plan.secure is not None
        # The owners of a simulated fleet have agreed to the scenario: with a plain one they allow
        # plain tasks.
        policy = plan.device_policy
        if self._masked:  # and all of them are in the simulated log
            policy = replace(policy, floor=replace(policy.floor, log=simulated_rules(seed)))
        self._policy = replace(policy, secure_required=self._masked, helpers=trust_in(plan.secure))
        self._eligibility = Eligibility(powered=True, unmetered=True, idle=True, consented=True)
        self._facts: dict[int, DeviceFacts] = {}  # by memory

    def machine(self, state: DeviceState, profile: DeviceProfile) -> DeviceMachine:
        """A device's machine; `state` may be one that has never run."""
        device, memory = state.device, profile.traits.memory_mib
        facts = self._facts.get(memory)
        if facts is None:
            facts = self._facts[memory] = DeviceFacts(memory_mib=memory)
        secret, identity = b"", None
        if self._masked:
            # A master secret of the seed, so that a simulation can be repeated.
            named = f"delian simulated secret {self._seed} {device}"
            secret = hashlib.sha256(named.encode()).digest()
            identity = SimulatedIdentity(device, self._seed)
        return DeviceMachine(
            state,
            (Node(Tier.EDGE, profile.edge),),
            self._streams,
            facts,
            _WITHDRAWN if device in self._exhausted else self._eligibility,
            self._policy,
            secret,
            identity,
        )

    def withdrawal(self, state: DeviceState) -> Conditions:
        """The order by which the owner of a device ends its part in all runs."""
        return Conditions(facts=state.facts, eligibility=_WITHDRAWN)


def coordinator_of(plan: FederationPlan, seed: int) -> Coordinator:
    """The coordinator of a plan.

    With masks it signs tasks, can verify the owners of keys, and proves that all devices'
    certificates are in the log.
    """
    if plan.secure is None:
        return Coordinator(CoordinatorState(), None, plan.policy())
    log = simulated_log(seed, plan.fleet.devices)
    state = CoordinatorState(log=log.head())
    return Coordinator(state, simulated_coordinator(seed), plan.policy(), log)
