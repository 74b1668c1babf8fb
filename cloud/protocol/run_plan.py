"""A run's plan as it is submitted: the settings of `core.learning.plan`, and what they are for.

A plan is rejected where it is read, by the name of the field at fault: what runs afterwards may
rely on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...core.common.errors import DelianError
from ...core.learning import plan_checks, plan_codec
from ...core.learning.bundle import check_metric_names
from ...core.learning.metrics import metrics_plan
from ...core.learning.plan import Plan
from ...core.learning.plan_settings import PlanError as PlanError
from ...core.privacy.mechanisms.accountant import BudgetError
from ...core.privacy.mechanisms.adaptive_clip import AdaptiveClip
from ...core.privacy.mechanisms.ring import RingError, RingPlan
from ...core.privacy.secagg.helper import SEEDS_BYTES_MAX
from ...core.privacy.secagg.limits import HELPERS_MAX
from ...core.privacy.task_limits import MANIFEST_BYTES_MAX, are_parts
from ...core.protocol.ports import BLOB_BYTES_MAX, FROZEN_PARTS_MAX, MS, window
from ...core.wire.admission_pb2 import Requirements, RetryWindow
from ...core.wire.blob_pb2 import BlobRef
from ...core.wire.operator_pb2 import PlanMessage
from ...core.wire.secure_pb2 import HelperKey, SecurePlan

#: Of a round whose updates are not added up on their way: they are kept until it is over.
APART_BYTES_MAX = 2**27
RUN_MAX = 2**31 - 1  # a ticket is a run's number and a count, in 64 bits
NAME_MAX = 128  # characters
LABELS_MAX = 64
LABEL_BYTES_MAX = 1024
DIGEST_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class RunPlan(Plan):
    """One run: a plan, and what its submission adds."""

    run: int
    """The number that the coordinator gave the run."""
    ring: RingPlan
    """How updates become ring elements."""
    bundle: BlobRef
    """The programs."""
    weights: BlobRef
    """The first model."""
    frozen: tuple[BlobRef, ...] = ()
    """The parts of its frozen leaves, as the bundle's manifest names them."""
    split: bool = False
    """Whether devices may train with their edges, as the bundle says."""
    name: str = ""
    """What people call it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What people want to find it by."""
    helpers: tuple[int, ...] = ()
    """The edges that help, by their numbers; `privacy.helpers` is how many."""
    manifest: bytes = b""
    """Lets devices run the bundle; empty: it is not signed."""
    own_metrics: tuple[str, ...] = ()
    """Names of the task's own metrics, which evaluations report too."""
    requirements: Requirements = field(default_factory=Requirements)
    """What devices must be and have."""
    after_task: RetryWindow | None = None
    """When devices come back after a task; None: as the coordinator's policy says."""

    @staticmethod
    def submitted(plan: Plan, **facts: Any) -> RunPlan:
        """A plan with what its submission adds."""
        return RunPlan(**{f.name: getattr(plan, f.name) for f in dataclasses.fields(Plan)}, **facts)

    @staticmethod
    def from_message(run: int, message: PlanMessage, stored: bool = False) -> RunPlan:
        """The plan of run number `run`.

        Args:
            stored: whether a coordinator accepted it before. It is not checked then: bounds may
                have become narrower since, and a restart must not end a run.

        Raises:
            PlanError: no run can keep the plan; it names the field.
        """
        ring = _ring(message)
        if any(card != HelperKey(edge=card.edge) for card in message.secure.helpers):
            raise PlanError("privacy.helpers", "keys in a plan", "edges publish their own")
        helpers = tuple(card.edge for card in message.secure.helpers)
        if len(helpers) > HELPERS_MAX or len({*helpers, 0}) <= len(helpers):
            raise PlanError(
                "privacy.helpers",
                f"{', '.join(map(str, helpers[:9]))}",
                f"1 to {HELPERS_MAX} different edges; 0 is the coordinator's own",
            )
        plan = RunPlan(
            **plan_codec.decode(message, ring, bounded=not stored),
            run=run,
            ring=ring,
            bundle=message.bundle,
            weights=message.weights,
            frozen=tuple(message.frozen),
            split=message.split,
            name=message.name,
            labels=dict(message.labels),
            helpers=helpers,
            manifest=message.manifest,
            own_metrics=tuple(message.own_metrics),
            requirements=message.requirements,
            after_task=message.after_task if message.HasField("after_task") else None,
        )
        if not stored:
            plan.check()
        return plan

    def message(self) -> PlanMessage:
        """The plan as an operator submits it."""
        message = PlanMessage(
            name=self.name,
            labels=self.labels,
            bundle=self.bundle,
            weights=self.weights,
            frozen=self.frozen,
            split=self.split,
            ring=self.ring.message(),
            manifest=self.manifest,
            own_metrics=self.own_metrics,
            requirements=self.requirements if self.requirements.ByteSize() else None,
            after_task=self.after_task,
        )
        plan_codec.encode(self, message)
        if self.masked:
            message.secure.helpers.extend(HelperKey(edge=edge) for edge in self.helpers)
        return message

    def check(self) -> None:
        """Rejects what no run can keep. Raises PlanError, which names the field."""
        if not 1 <= self.run <= RUN_MAX:
            raise PlanError("run", f"{self.run}", f"from 1 to {RUN_MAX}")
        self._check_submission()
        plan_checks.check(self)
        self._check_ring()
        self._check_split()
        self._check_promise()

    def _check_submission(self) -> None:
        """Checks what is submitted besides the plan's settings: sizes, and the blobs' names."""
        if len(self.manifest) > MANIFEST_BYTES_MAX:
            raise PlanError(
                "manifest", f"{len(self.manifest)} bytes", f"at most {MANIFEST_BYTES_MAX}"
            )
        if len(self.name) > NAME_MAX:
            raise PlanError("name", f"{len(self.name)} characters", f"at most {NAME_MAX}")
        if len(self.labels) > LABELS_MAX:
            raise PlanError("labels", f"{len(self.labels)} entries", f"at most {LABELS_MAX}")
        for name, value in self.labels.items():
            if len(name.encode()) + len(value.encode()) > LABEL_BYTES_MAX:
                raise PlanError(
                    "labels", f"{name[:32]!r} is long", f"at most {LABEL_BYTES_MAX} bytes"
                )
        for name, ref in (("bundle", self.bundle), ("weights", self.weights)):
            if len(ref.digest) != DIGEST_BYTES:
                raise PlanError(name, f"a digest of {len(ref.digest)} bytes", "it is a SHA-256")
            if not 0 < ref.size <= BLOB_BYTES_MAX:
                raise PlanError(name, f"{ref.size} bytes", f"from 1 to {BLOB_BYTES_MAX}")
        if not are_parts(self.frozen):
            raise PlanError(
                "frozen",
                f"{len(self.frozen)} parts",
                f"at most {FROZEN_PARTS_MAX}, each of 1 to {BLOB_BYTES_MAX} bytes, by SHA-256",
            )
        try:
            check_metric_names(self.own_metrics)
        except DelianError as error:
            raise PlanError("own_metrics", error.message, error.hint) from None

    def _check_ring(self) -> None:
        """The ring must hold all devices that can be in one sum: those that are tasked at once."""
        ring, privacy = self.ring, self.privacy
        if not self.selected <= ring.clients_max <= 2**32:
            raise PlanError(
                "ring.clients_max", f"{ring.clients_max}", f"from {self.selected} to {2**32}"
            )
        if ring.wide:
            self._check_exact()
        elif self.weights.size != 4 * ring.dimension:
            raise PlanError(
                "weights",
                f"{self.weights.size} bytes, where {ring.dimension} numbers take"
                f" {4 * ring.dimension}",
                "the weights belong to another bundle",
            )
        if ring.within:
            raise PlanError("ring.within", "a round's clip is not a plan's", "say moving_clip")
        if privacy.clip_quantile is not None:
            try:
                self.first_clip(privacy.clip_quantile)
            except DelianError as fault:
                raise PlanError("privacy.clip_quantile", fault.message, fault.hint) from fault
        needed = self.selected * ring.nbytes
        if self.apart and needed > APART_BYTES_MAX:
            raise PlanError(
                "round.rule",
                f"{self.selected} updates one by one are {needed} bytes",
                f"at most {APART_BYTES_MAX}: a smaller cohort",
            )

    def _check_split(self) -> None:
        """Of an update that two sides make each adds its own vector to one plain ring."""
        if not self.split:
            return
        ring, moving = self.ring, self.privacy.clip_quantile is not None
        other = ring.noise or ring.rotated or ring.kept or ring.top or ring.wide or moving
        if other or self.buffered or self.apart or self.cohorts > 1:
            raise PlanError(
                "split",
                "devices that train with their edges, in a run with waves, cohorts, a rule, noise,"
                " rotation, a moving clip or numbers that stay away",
                "leave these out, or train without split",
            )

    def _check_exact(self) -> None:
        """A step of a question is one round, whose sum is its result."""
        if self.rounds != 1 or self.buffered or self.by_rule or self.evaluates or self.noised:
            raise PlanError(
                "ring.wide",
                "an exact sum in a run of several rounds, with waves, a rule, evaluations or noise",
                "a step of a question is a run of one round",
            )

    def _check_promise(self) -> None:
        """Noise only where it keeps what is promised; sites account for that of exact sums."""
        if not self.noised:
            if self.ring.noise and not self.ring.wide:
                raise PlanError("privacy.noise", "noise that nothing is promised by", "say epsilon")
            return
        try:
            assert self.promise is not None
            kept = self.promise.is_kept(self.ring)
        except (BudgetError, RingError) as fault:
            raise PlanError("privacy.noise", fault.message, fault.hint) from fault
        if not kept:
            raise PlanError(
                "privacy.noise",
                f"the ring's noise does not keep epsilon {self.privacy.epsilon:g} for"
                f" {self.rounds} rounds of {self.reports_min} updates",
                "build the bundle for these numbers",
            )

    def first_clip(self, quantile: float) -> AdaptiveClip:
        """The clip of the first round, where it follows a quantile. Raises DelianError."""
        return AdaptiveClip.of(self.ring, quantile, self.privacy.clip_rate)

    @cached_property
    def lasting(self) -> frozenset[bytes]:
        """Digests of the blobs that are the same in all rounds: the bundle and the frozen parts."""
        return frozenset(ref.digest for ref in (self.bundle, *self.frozen))

    @cached_property
    def secure(self) -> SecurePlan | None:
        """How updates are masked, as tasks say it; None: they are not."""
        return self.message().secure if self.masked else None

    @property
    def apart(self) -> bool:
        """Whether updates come one by one, and not as sums."""
        return self.by_rule and not self.masked

    @property
    def report_bytes(self) -> int:
        """Of the largest sum, or updates one by one, that an edge may send."""
        seeds = SEEDS_BYTES_MAX if self.helpers else 0
        return self.ring.nbytes * (self.selected if self.apart else 1) + seeds * self.selected

    @property
    def timeout_ns(self) -> int:
        return self.round.timeout_ms * MS

    @property
    def margin_ns(self) -> int:
        return self.margin_ms * MS

    @property
    def wait_ns(self) -> int:
        return self.round.wait_ms * MS

    @property
    def rest_ns(self) -> int:
        return self.round.rest_ms * MS

    @property
    def after_task_ms(self) -> tuple[int, int] | None:
        return None if self.after_task is None else window(self.after_task)

    @property
    def metrics(self) -> RingPlan:
        """How evaluations are summed."""
        return metrics_plan(self.evaluation_selected, len(self.own_metrics))


def change(plan: PlanMessage, changes: PlanMessage) -> None:
    """Gives a plan all that `changes` has.

    Lists are replaced; another bundle has other metrics and other frozen parts, and may be split.
    """
    if changes.own_metrics or changes.HasField("bundle"):
        plan.ClearField("own_metrics")
    if changes.frozen or changes.HasField("bundle"):
        plan.ClearField("frozen")
    if changes.HasField("bundle"):
        plan.ClearField("split")
    if changes.secure.helpers:
        plan.secure.ClearField("helpers")
    plan.MergeFrom(changes)


def _ring(message: PlanMessage) -> RingPlan:
    try:
        return RingPlan.of(message.ring)
    except RingError as fault:
        raise PlanError("ring", fault.message, fault.hint) from fault
