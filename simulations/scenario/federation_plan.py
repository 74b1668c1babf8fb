"""A simulated federation, and the plan of the run that its operator submits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ...cloud.protocol.coordinator_state import CoordinatorPolicy
from ...cloud.protocol.run_plan import RunPlan
from ...core.learning.plan import Plan
from ...core.learning.plan_settings import settings
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.wire.blob_pb2 import BlobRef
from ...core.wire.operator_pb2 import PlanMessage
from ...core.wire.secure_pb2 import SecurePlan
from ...device.protocol.device_state import DevicePolicy
from ...edge.protocol.edge_state import EdgePolicy
from ..federation.fault_settings import Faults
from ..federation.fleet import Fleet
from ..federation.network import LINKS, LinkProfile


@dataclass(frozen=True)
class FederationPlan:
    """A federation and the plan of its run. Times are virtual."""

    plan: Plan
    """What the run is to do."""
    ring: RingPlan
    """How updates become ring elements."""
    fleet: Fleet
    """The devices, and how they are shared out among edges."""
    edge_link: LinkProfile = LINKS["fibre"]
    """Between an edge and the coordinator."""
    own_metrics: tuple[str, ...] = ()
    """Names of the task's own metrics."""
    frozen: tuple[BlobRef, ...] = ()
    """The parts of the model's frozen leaves, as the bundle's manifest names them."""
    split: bool = False
    """Whether devices may train with their edges, as the bundle says."""
    pool_share: float = 0.8
    """The share of the fleet that a round waits for, unless the plan has `pool_min`: selection is
    then uniform over nearly all devices.
    """
    ready_per_edge_max: int | None = None
    """Devices that an edge keeps ready; None: all of its own."""
    lease_s: float = 600.0
    """How long an edge's offer of devices holds."""
    device_policy: DevicePolicy = field(default_factory=DevicePolicy)
    edge_policy: EdgePolicy = field(default_factory=EdgePolicy)
    faults: Faults = field(default_factory=Faults)

    @staticmethod
    def of(ring: RingPlan, fleet: Fleet, rounds: int, **values: Any) -> FederationPlan:
        """A federation whose settings are given side by side, the plan's by their names."""
        plan = Plan(rounds).but(rest_ms=settings()["round.rest_ms"].key.scenario)
        return FederationPlan(plan, ring, fleet).but(**values)

    def but(self, **values: Any) -> FederationPlan:
        """The federation with other settings, the plan's by their names."""
        known = self.__dataclass_fields__
        own = {name: value for name, value in values.items() if name in known}
        asked = {name: value for name, value in values.items() if name not in known}
        return replace(self, plan=self.plan.but(**asked), **own)

    def run_plan(self, bundle: BlobRef, weights: BlobRef, seed: int) -> RunPlan:
        """The plan as it is submitted; what follows from other settings is written out."""
        plan, round, privacy = self.plan, self.plan.round, self.plan.privacy
        pool = math.floor(self.pool_share * self.fleet.devices)
        return RunPlan.submitted(
            replace(
                plan,
                seed=seed,
                round=replace(
                    round,
                    margin_ms=plan.margin_ms,
                    pool_min=pool if round.pool_min is None else round.pool_min,
                    buffer=plan.buffer if plan.buffered else None,
                ),
                privacy=replace(
                    privacy,
                    cohort_min=plan.cohort_min if plan.masked else None,
                    cohorts=plan.cohorts if plan.cohorts > 1 else None,
                    noise_corrupt=plan.noise_corrupt if plan.noised else None,
                ),
            ),
            run=1,
            name="simulation",
            ring=self.ring,
            bundle=bundle,
            weights=weights,
            frozen=self.frozen,
            split=self.split,
            helpers=tuple(self.fleet.edges + i for i in range(privacy.helpers)),
            own_metrics=self.own_metrics,
        )

    def message(self, bundle: BlobRef, weights: BlobRef, seed: int) -> PlanMessage:
        """The plan as an operator submits it."""
        return self.run_plan(bundle, weights, seed).message()

    @cached_property
    def secure(self) -> SecurePlan | None:
        """How updates are masked; None: they are not."""
        return self.run_plan(BlobRef(), BlobRef(), 0).secure

    def policy(self) -> CoordinatorPolicy:
        """What the coordinator's operator sets."""
        per_edge = math.ceil(self.fleet.devices / self.fleet.edges)
        return CoordinatorPolicy(
            ready_per_edge_max=self.ready_per_edge_max or per_edge,
            lease_ms=round(self.lease_s * 1000),
            names_sums=False,  # a simulation has no audit,
            explain_ns=0,  # and no operator that waits
        )
