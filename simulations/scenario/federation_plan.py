"""What a simulated federation is and does, and the plan that its operator submits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...cloud.protocol.coordinator_state import CoordinatorPolicy
from ...cloud.protocol.plan import STALENESS_DEFAULT
from ...core.privacy.mechanisms.noise_mechanism import Promise
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.wire.blob_pb2 import BlobRef
from ...core.wire.operator_pb2 import (
    BUFFERED,
    SYNCHRONOUS,
    WEIGHTED_MEAN,
    Aggregation,
    AggregationRule,
    MovingClip,
    PlanMessage,
    PrivacyPlan,
)
from ...core.wire.secure_pb2 import SecurePlan
from ...device.protocol.device_state import DevicePolicy
from ...edge.protocol.edge_state import EdgePolicy
from ..federation.fault_settings import Faults
from ..federation.fleet import Fleet
from ..federation.network import LINKS, LinkProfile


@dataclass(frozen=True)
class FederationPlan:
    """A federation and what it is to do. Times are virtual; see `cloud.protocol.plan.RunPlan` for
    the run's part.

    ready_per_edge_max: devices that an edge keeps ready; None: all of its own.
    pool_share: the share of the fleet that a round waits for, so that selection is uniform over
    nearly all. buffer: updates that make a model in a buffered run; None: the run is in rounds.
    concurrency: devices at work at once; zero: twice the buffer. secure: how updates are masked;
    None: they are not. cohorts: sums that a masked round is cut into. rule: an AggregationRule, in
    small letters; hostile: the share of hostile updates, or cohorts, that it is to bear. promise:
    what the ring's noise is for; None: it has none. clip_quantile, clip_rate: of a clip that
    follows the updates' lengths; zero: it does not. own_metrics: names of the task's own.
    """

    rounds: int
    cohort: int
    ring: RingPlan
    fleet: Fleet
    edge_link: LinkProfile = LINKS["fibre"]
    over_selection: float = 1.3
    reports_min: int = 1
    attempts_max: int = 5
    round_s: float = 300.0
    wait_s: float = 120.0
    rest_s: float = 6.0
    pool_share: float = 0.8
    buffer: int | None = None
    concurrency: int = 0
    staleness_max: int = STALENESS_DEFAULT
    evaluate_every: int = 0
    evaluate_cohort: int = 0
    patience: int = 0
    improvement_min: float = 0.0
    rollback_worse: float = 0.0
    rollback_accuracy: float = 0.0
    rule: str = "weighted_mean"
    hostile: float = 0.0
    secure: SecurePlan | None = None
    cohorts: int = 1
    promise: Promise | None = None
    clip_quantile: float = 0.0
    clip_rate: float = 0.0
    own_metrics: tuple[str, ...] = ()
    ready_per_edge_max: int | None = None
    lease_s: float = 600.0
    device_policy: DevicePolicy = field(default_factory=DevicePolicy)
    edge_policy: EdgePolicy = field(default_factory=EdgePolicy)
    faults: Faults = field(default_factory=Faults)

    def message(self, bundle: BlobRef, weights: BlobRef, seed: int) -> PlanMessage:
        """The plan as an operator submits it."""
        return PlanMessage(
            name="simulation",
            mode=SYNCHRONOUS if self.buffer is None else BUFFERED,
            rounds=self.rounds,
            cohort=self.cohort,
            bundle=bundle,
            weights=weights,
            ring=self.ring.message(),
            over_selection=self.over_selection,
            reports_min=self.reports_min,
            attempts_max=self.attempts_max,
            round_ms=max(2, round(self.round_s * 1000)),
            # A tenth of the time is for the sums' way up.
            margin_ms=max(1, round(self.round_s * 100)),
            wait_ms=max(1, round(max(self.wait_s, self.rest_s) * 1000)),
            rest_ms=round(self.rest_s * 1000),
            pool_min=math.floor(self.pool_share * self.fleet.devices),
            evaluate_every=self.evaluate_every,
            evaluate_cohort=self.evaluate_cohort,
            patience=self.patience,
            improvement_min=self.improvement_min,
            buffer=self.buffer or 0,
            concurrency=self.concurrency,
            staleness_max=self.staleness_max,
            seed=seed,
            secure=self.secure,
            cohorts=self.cohorts if self.cohorts > 1 else 0,
            privacy=self._privacy(),
            rollback_worse=self.rollback_worse,
            rollback_accuracy=self.rollback_accuracy,
            aggregation=self._aggregation(),
            moving_clip=MovingClip(quantile=self.clip_quantile, rate=self.clip_rate)
            if self.clip_quantile
            else None,
            own_metrics=self.own_metrics,
        )

    def _aggregation(self) -> Aggregation | None:
        name = self.rule.upper()
        if AggregationRule.Value(name) == WEIGHTED_MEAN:
            return None
        return Aggregation(rule=name, corrupt=self.hostile)

    def _privacy(self) -> PrivacyPlan | None:
        if self.promise is None:
            return None
        promise = self.promise
        return PrivacyPlan(epsilon=promise.epsilon, delta=promise.delta, corrupt=promise.corrupt)

    def policy(self) -> CoordinatorPolicy:
        """What the coordinator's operator sets."""
        per_edge = math.ceil(self.fleet.devices / self.fleet.edges)
        return CoordinatorPolicy(
            ready_per_edge_max=self.ready_per_edge_max or per_edge,
            lease_ms=round(self.lease_s * 1000),
            names_sums=False,  # a simulation has no audit
        )
