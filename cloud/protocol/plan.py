"""What a run's owner plans, read from the wire and checked.

A plan is refused where it is read, by the name of the field that is at fault: what runs afterwards
may rely on it. `PlanMessage` in proto/operator.proto says what each field means and what its
absence stands for; here it becomes values in the machines' own units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...core.common.errors import DelianError
from ...core.learning.aggregate import chains, robust
from ...core.learning.aggregate.chains import Chain
from ...core.learning.aggregate.stage_order import ChainError
from ...core.learning.aggregate.stages import Stage
from ...core.learning.bundle import check_metric_names
from ...core.learning.metrics import metrics_plan
from ...core.privacy.mechanisms.accountant import BudgetError
from ...core.privacy.mechanisms.adaptive_clip import AdaptiveClip
from ...core.privacy.mechanisms.noise_mechanism import Promise
from ...core.privacy.mechanisms.ring import RingError, RingPlan
from ...core.privacy.secagg.helper import SEEDS_BYTES_MAX
from ...core.privacy.secagg.limits import BATCH_MAX, COHORT_MIN, HELPERS_MAX, MEMBERS_MAX, SUITES
from ...core.privacy.secagg.params import parameters
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.task_limits import MANIFEST_BYTES_MAX
from ...core.protocol.ports import BLOB_BYTES_MAX, MS, RETRY_MS_MAX, SECOND, window
from ...core.wire.admission_pb2 import Requirements
from ...core.wire.blob_pb2 import BlobRef
from ...core.wire.operator_pb2 import (
    BUFFERED,
    RUN_MODE_UNSPECIFIED,
    SYNCHRONOUS,
    WEIGHTED_MEAN,
    AggregationRule,
    PlanMessage,
    RunMode,
)
from ...core.wire.secure_pb2 import HelperKey, SecurePlan

#: Devices in one attempt; with masks at most 1,000 in each cohort.
SELECTED_MAX = 100_000
#: Cohorts of a masked round: of no more attempts of a run does an edge remember the end.
COHORTS_MAX = 16
#: Of a round whose updates are not added up on their way: they are kept until it is over.
APART_BYTES_MAX = 2**27
ROLLBACK_MAX = 100.0
RUN_MAX = 2**31 - 1  # a ticket is a run's number and a count, in 64 bits
ROUNDS_MAX = 1_000_000
ATTEMPTS_MAX = 1_000
OVER_SELECTION_MAX = 10.0
NAME_MAX = 128  # characters
LABELS_MAX = 64
LABEL_BYTES_MAX = 1024
DIGEST_BYTES = 32
STALENESS_DEFAULT = 20
STALENESS_MAX = 1_000
#: A margin of a tenth of a round is for the sums' way up.
MARGIN_SHARE = 10


#: Which field to change where a stage does not go with another: its own, but for these.
_FIELDS = {
    "moving_clip": "moving_clip",
    "random_k": "ring.kept",
    "top_k": "ring.top",
    "rule": "aggregation.rule",
    "noise": "privacy",
    "mask": "cohorts",
}
_FIELDS_OF_TWO = {
    ("noise", "with", "fedbuff"): "mode",
    ("noise", "with", "mask"): "cohorts",
    ("noise", "without", "mask"): "secure",
    ("mask", "with", "mean"): "secure.helpers",
    ("mask", "with", "rule"): "secure.helpers",
}


class PlanError(DelianError):
    """A plan that no run can keep. `field` is the name of the PlanMessage's field at fault."""

    def __init__(self, field: str, message: str, hint: str = "") -> None:
        super().__init__(f"plan.{field}: {message}", hint)
        self.field = field


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run. Times are in ns unless the name says otherwise.

    cohort: updates that a round aims at; a round closes early when it has them. over_selection: how
    many devices are tasked for each of them. reports_min: fewer updates than this fail the attempt.
    attempts_max: how often in a row an attempt may fail before the run gives up. round_ns: from the
    tasks to the last sum. margin_ns: the part of it that is kept for the sums' way up. wait_ns: how
    long to wait for enough devices before going on with fewer. rest_ns: pause before selecting, in
    which the last round's devices may come back. pool_min: devices that must be ready; zero: as
    many as are tasked. evaluate_every: models between evaluations, zero: none. patience:
    evaluations in a row that may bring nothing better, zero: any number. buffer, concurrency,
    staleness_max: see `buffered`. secure: how updates are masked; None: they are not. promise:
    what the ring's noise is for; None: there is none. manifest: lets devices run the bundle; empty:
    nobody signed it. aggregation, corrupt: how updates become one, and against which share of
    hostile ones; with masks, of hostile cohorts. rollback_worse: an evaluation whose loss is above
    the best one by more than this share of it brings the best model back; so does one whose
    accuracy is below that model's by more than rollback_accuracy; zero: none does. cohorts: masked
    sums that a round's devices are cut into. quantile, clip_rate: see `privacy.clipping`; zero: all
    rounds have one clip. own_metrics: names of the task's own, which evaluations tell of too.
    """

    run: int
    rounds: int
    cohort: int
    ring: RingPlan
    bundle: BlobRef
    weights: BlobRef
    mode: RunMode = SYNCHRONOUS
    over_selection: float = 1.3
    reports_min: int = 1
    attempts_max: int = 5
    round_ns: int = 300 * SECOND
    margin_ns: int = 30 * SECOND
    wait_ns: int = 120 * SECOND
    rest_ns: int = 0
    pool_min: int = 0
    after_task_ms: tuple[int, int] | None = None
    requirements: Requirements = field(default_factory=Requirements)
    evaluate_every: int = 0
    evaluate_cohort: int = 0
    patience: int = 0
    improvement_min: float = 0.0
    buffer: int = 0
    concurrency: int = 0
    staleness_max: int = STALENESS_DEFAULT
    seed: int = 0
    secure: SecurePlan | None = None
    promise: Promise | None = None
    manifest: bytes = b""
    aggregation: AggregationRule = WEIGHTED_MEAN
    corrupt: float = 0.0
    rollback_worse: float = 0.0
    rollback_accuracy: float = 0.0
    cohorts: int = 1
    quantile: float = 0.0
    clip_rate: float = 0.0
    own_metrics: tuple[str, ...] = ()

    @staticmethod
    def from_message(run: int, message: PlanMessage) -> RunPlan:
        """The plan of run number `run`. Raises PlanError, which names the field."""
        _check_names(message)
        buffered = message.mode == BUFFERED
        cohorts = _cohorts(message)
        reports_min = max(message.reports_min or 1, _reports_min(message, cohorts))
        plan = RunPlan(
            run=run,
            rounds=message.rounds,
            cohort=message.buffer if buffered else message.cohort,
            ring=_ring(message),
            bundle=_ref("bundle", message.bundle),
            weights=_ref("weights", message.weights),
            mode=message.mode or SYNCHRONOUS,
            over_selection=message.over_selection or (1.0 if buffered else 1.3),
            reports_min=reports_min,
            attempts_max=message.attempts_max or 5,
            round_ns=(message.round_ms or 300_000) * MS,
            margin_ns=(message.margin_ms or (message.round_ms or 300_000) // MARGIN_SHARE) * MS,
            wait_ns=(message.wait_ms or 120_000) * MS,
            rest_ns=message.rest_ms * MS,
            pool_min=message.pool_min,
            after_task_ms=window(message.after_task) if message.HasField("after_task") else None,
            requirements=message.requirements,
            evaluate_every=message.evaluate_every,
            evaluate_cohort=message.evaluate_cohort
            or -(-(message.cohort or message.buffer) // cohorts),
            patience=message.patience,
            improvement_min=message.improvement_min,
            buffer=message.buffer,
            concurrency=message.concurrency or 2 * message.buffer,
            staleness_max=message.staleness_max or STALENESS_DEFAULT,
            seed=message.seed,
            secure=message.secure if message.HasField("secure") else None,
            promise=_promise(message, reports_min),
            manifest=message.manifest,
            aggregation=message.aggregation.rule,
            corrupt=message.aggregation.corrupt,
            rollback_worse=message.rollback_worse,
            rollback_accuracy=message.rollback_accuracy,
            cohorts=cohorts,
            quantile=message.moving_clip.quantile,
            clip_rate=message.moving_clip.rate,
            own_metrics=tuple(message.own_metrics),
        )
        plan._check()
        return plan

    def _check(self) -> None:
        """Refuses what no run can keep, each by its field."""
        _between("run", self.run, 1, RUN_MAX)
        _between("rounds", self.rounds, 1, ROUNDS_MAX)
        _between("buffer" if self.buffered else "cohort", self.cohort, 1, SELECTED_MAX)
        if not 1.0 <= self.over_selection <= OVER_SELECTION_MAX:
            raise PlanError(
                "over_selection", f"{self.over_selection:g}", f"from 1 to {OVER_SELECTION_MAX:g}"
            )
        self._check_cohorts()
        self._check_numbers()
        self._check_chain()
        if self.secure is not None:
            self._check_masks(self.secure)
        _between("reports_min", self.reports_min, 1, self.cohort)
        _between("attempts_max", self.attempts_max, 1, ATTEMPTS_MAX)
        _between("round_ms", self.round_ns // MS, 2, RETRY_MS_MAX)
        _between("margin_ms", self.margin_ns // MS, 1, self.round_ns // MS - 1)
        _between("wait_ms", self.wait_ns // MS, 1, RETRY_MS_MAX)
        _between("rest_ms", self.rest_ns // MS, 0, self.wait_ns // MS)
        _between("pool_min", self.pool_min, 0, SELECTED_MAX)
        if self.buffered:
            _between("concurrency", self.concurrency, self.buffer, SELECTED_MAX)
        # The ring must hold all who can be in one sum: those who are tasked at once.
        _between("ring.clients_max", self.ring.clients_max, self.selected, 2**32)
        if self.weights.size != 4 * self.ring.dimension:
            raise PlanError(
                "weights",
                f"{self.weights.size} bytes, where {self.ring.dimension} numbers take"
                f" {4 * self.ring.dimension}",
                "the weights belong to another bundle",
            )
        self._check_evaluation()
        self._check_aggregation()
        self._check_privacy()

    def _check_numbers(self) -> None:
        """Of masks, of a rule, of a buffer and of a moving clip, each by itself."""
        if self.buffered:
            _between("staleness_max", self.staleness_max, 0, STALENESS_MAX)
        for name in ("corrupt", "dropout") if self.secure is not None else ():
            share = getattr(self.secure, name)
            if not 0.0 <= share < 1.0:
                raise PlanError(f"secure.{name}", f"{share:g}", "a share, 0 to below 1")
        if self.aggregation not in AggregationRule.values():
            raise PlanError("aggregation.rule", f"{self.aggregation} is not known here")
        if not 0.0 <= self.corrupt < 0.5:
            raise PlanError("aggregation.corrupt", f"{self.corrupt:g}", "a share, 0 to below 0.5")
        if self.corrupt and not self.by_rule:
            raise PlanError(
                "aggregation.corrupt", "the mean holds against nobody", "choose another rule"
            )
        if self.quantile or self.clip_rate:
            try:
                AdaptiveClip.of(self.ring, self.quantile, self.clip_rate)
            except DelianError as fault:
                raise PlanError("moving_clip", fault.message, fault.hint) from fault
        if self.ring.within:
            raise PlanError("ring.within", "a round's clip is not a plan's", "say moving_clip")

    def _check_chain(self) -> None:
        """What the plan asks for must go together (`core.learning.aggregate.stage_order`)."""
        try:
            assert self.chain.stages
        except ChainError as fault:
            field = _FIELDS_OF_TWO.get((fault.first, fault.how, fault.second))
            raise PlanError(field or _FIELDS[fault.first], fault.message, fault.hint) from fault

    @property
    def chain(self) -> Chain:
        """What an update goes through, but for the server's optimiser, which is in the bundle.
        Raises ChainError for a plan whose parts do not go together.
        """
        ring, secure, promise = self.ring, self.secure, self.promise
        stages: list[Stage] = [chains.top_k(ring.top / ring.dimension)] if ring.top else []
        stages.append(chains.clip(ring.clip))
        if ring.rotated:
            stages.append(chains.rotate())
        stages.append(chains.quantise(ring.bits))
        if self.quantile:
            stages.append(chains.moving_clip(self.quantile, self.clip_rate))
        if ring.kept:
            stages.append(chains.random_k(ring.kept / ring.coordinates))
        noise = [] if promise is None else [chains.noise(promise.epsilon, promise.delta)]
        stages += [] if ring.central else noise
        if secure is not None:
            shares = (secure.corrupt, secure.dropout)
            helpers = len(secure.helpers)
            stages.append(chains.mask(self.cohorts, secure.cohort_min, *shares, helpers))
        stages += noise if ring.central else []
        if self.buffered:
            stages.append(chains.fedbuff(self.staleness_max))
        if self.by_rule:
            rule = AggregationRule.Name(self.aggregation).lower()
            stages.append(chains.MAKERS[rule](hostile=self.corrupt))
        elif not self.buffered:
            stages.append(chains.mean())
        return Chain(tuple(stages))

    def _check_privacy(self) -> None:
        """Noise: only where it keeps what is promised, and nothing goes past it."""
        ring, promise = self.ring, self.promise
        if promise is None:
            if ring.noise:
                raise PlanError("privacy", "noise that nothing is promised by", "say epsilon")
            return
        if self.evaluate_every:
            raise PlanError(
                "evaluate_every", "evaluations have no noise", "leave it at 0 in a run with some"
            )
        try:
            kept = promise.is_kept(ring)
        except RingError as fault:
            raise PlanError("privacy", fault.message, fault.hint) from fault
        if not kept:
            raise PlanError(
                "privacy",
                f"the ring's noise does not keep epsilon {promise.epsilon:g} for {self.rounds}"
                f" rounds of {self.reports_min} updates",
                "build the bundle for these numbers",
            )
        if self.secure and not promise.central and self.cohort_min < promise.survivors:
            raise PlanError(
                "secure.cohort_min",
                f"{self.cohort_min}, where the devices' noise is planned for {promise.survivors}",
                f"set it to {promise.survivors}: devices refuse smaller sums than that",
            )

    def _check_evaluation(self) -> None:
        _between("evaluate_every", self.evaluate_every, 0, ROUNDS_MAX)
        try:
            check_metric_names(self.own_metrics)
        except DelianError as error:
            raise PlanError("own_metrics", error.message, error.hint) from None
        if self.evaluate_every:
            _between("evaluate_cohort", self.evaluate_selected, 1, SELECTED_MAX)
        if self.patience and not self.evaluate_every:
            raise PlanError(
                "patience", "nothing is evaluated", "set evaluate_every, or leave patience at 0"
            )
        if not 0.0 <= self.improvement_min < 1.0:
            raise PlanError(
                "improvement_min", f"{self.improvement_min:g}", "a share of the loss, 0 to below 1"
            )
        if not 0.0 <= self.rollback_worse <= ROLLBACK_MAX:
            raise PlanError(
                "rollback_worse",
                f"{self.rollback_worse:g}",
                f"a share of the best loss, above 0 and at most {ROLLBACK_MAX:g}; 0: never",
            )
        if not 0.0 <= self.rollback_accuracy <= 1.0:
            raise PlanError(
                "rollback_accuracy", f"{self.rollback_accuracy:g}", "from 0 (never) to 1"
            )
        for name in ("rollback_worse", "rollback_accuracy"):
            if getattr(self, name) and (self.buffered or not self.evaluate_every):
                raise PlanError(
                    name,
                    "models are compared in rounds that are evaluated",
                    f"set evaluate_every in a SYNCHRONOUS run, or leave {name} at 0",
                )

    def _check_aggregation(self) -> None:
        """A rule in place of the mean: it must have enough to compare, updates one by one or, where
        they are masked, cohorts' means.
        """
        if not self.by_rule:
            return
        name = AggregationRule.Name(self.aggregation)
        count, what = self.cohort, "updates"
        if self.secure is not None:
            count, what = self.cohorts, "cohorts"
        if not robust.is_enough(self.aggregation, self.corrupt, count):
            raise PlanError(
                "aggregation.corrupt",
                f"{name} cannot do with {count} {what} of which"
                f" {robust.hostile_of(self.corrupt, count)} may be hostile",
                f"more {what}, or a smaller share",
            )
        needed = self.selected * self.ring.nbytes
        if self.apart and needed > APART_BYTES_MAX:
            raise PlanError(
                "aggregation.rule",
                f"{self.selected} updates one by one are {needed} bytes",
                f"at most {APART_BYTES_MAX}: a smaller cohort",
            )

    def _check_cohorts(self) -> None:
        """Several cohorts: of masked rounds, each as large as a sum must be to be read."""
        _between("cohorts", self.cohorts, 1, COHORTS_MAX)
        if self.cohorts == 1:
            return
        if self.secure is None:
            raise PlanError(
                "cohorts",
                "only masked rounds are cut into cohorts",
                "leave it at 0, or submit a SYNCHRONOUS run with `secure`",
            )

    def _check_masks(self, secure: SecurePlan) -> None:
        """Masks: suites and shares that are spoken, and cohorts that they can be made for."""
        parts: tuple[int, ...] = (
            self.cohort // self.cohorts,
            -(-self.selected // self.cohorts),
        )
        evaluated = (self.evaluate_cohort, self.evaluate_selected) if self.evaluate_every else ()
        if secure.helpers:
            self._check_helpers(secure)
            parts = ()
        sizes = (*parts, *evaluated)
        if secure.suite not in SUITES:
            raise PlanError("secure.suite", f"{secure.suite} is not known here", "1 or 2")
        least = min((self.buffer, *evaluated) if secure.helpers else sizes)
        if least < COHORT_MIN:
            raise PlanError(
                "secure",
                f"{least} devices in one sum, and masks hide one among {COHORT_MIN} at least",
                "have more devices in a round, or updates without masks (--plain)",
            )
        _between("secure.cohort_min", secure.cohort_min, COHORT_MIN, least)
        if max(sizes, default=0) > MEMBERS_MAX:
            asked = f"bring cohort times over_selection down to {COHORTS_MAX * MEMBERS_MAX}"
            if self.buffered:
                asked = f"bring concurrency down to {MEMBERS_MAX}"
            elif max(parts) <= MEMBERS_MAX:
                asked = f"bring evaluate_cohort times over_selection down to {MEMBERS_MAX}"
            elif self.selected <= COHORTS_MAX * MEMBERS_MAX:
                asked = f"cut rounds into {-(-self.selected // MEMBERS_MAX)} cohorts"
            raise PlanError(
                "secure",
                f"{max(sizes)} devices in one sum, and masks are for at most {MEMBERS_MAX}",
                f"{asked}, or submit the run with --plain",
            )
        for size in sizes:
            try:
                parameters(size, secure.corrupt, secure.dropout)
            except SecureError as fault:
                raise PlanError("secure", fault.message, fault.hint) from fault

    def _check_helpers(self, secure: SecurePlan) -> None:
        """Helpers: a few edges, named by their numbers, of a run whose devices do not wait."""
        edges = [card.edge for card in secure.helpers]
        if len(edges) > HELPERS_MAX or len(set(edges)) < len(edges) or 0 in edges:
            raise PlanError(
                "secure.helpers",
                f"{', '.join(map(str, edges[:9]))}",
                f"1 to {HELPERS_MAX} different edges; 0 is the coordinator's own",
            )
        if any(card != HelperKey(edge=card.edge) for card in secure.helpers):
            raise PlanError("secure.helpers", "keys in a plan", "edges publish their own")
        _between("concurrency", self.concurrency, self.buffer, BATCH_MAX)

    @property
    def cohort_min(self) -> int:
        """Devices in a sum that anybody may read."""
        return 1 if self.secure is None else self.secure.cohort_min

    @property
    def buffered(self) -> bool:
        return self.mode == BUFFERED

    @property
    def by_rule(self) -> bool:
        """Whether a round's update is another than the weighted mean."""
        return self.aggregation != WEIGHTED_MEAN

    @property
    def apart(self) -> bool:
        """Whether updates come one by one, and not as sums."""
        return self.by_rule and self.secure is None

    @property
    def cohorts_min(self) -> int:
        """Cohorts whose sums a round needs."""
        return robust.COHORTS_MIN if self.by_rule and self.secure is not None else 1

    @property
    def report_bytes(self) -> int:
        """Of the largest sum, or updates one by one, that an edge may send."""
        seeds = 0 if self.secure is None or not self.secure.helpers else SEEDS_BYTES_MAX
        return self.ring.nbytes * (self.selected if self.apart else 1) + seeds * self.selected

    @property
    def selected(self) -> int:
        """Devices tasked at once: of a round where enough are ready, or of all waves."""
        return self.concurrency if self.buffered else over(self.cohort, self.over_selection)

    @property
    def enough(self) -> int:
        """Ready devices that a round waits for."""
        return max(self.selected, self.pool_min)

    @property
    def evaluate_selected(self) -> int:
        """Devices tasked in an evaluation."""
        return over(self.evaluate_cohort, self.over_selection)

    @property
    def evaluate_min(self) -> int:
        """Fewer reports than this skip an evaluation."""
        return min(self.reports_min, self.evaluate_cohort)

    @property
    def metrics(self) -> RingPlan:
        """How evaluations are summed."""
        return metrics_plan(self.evaluate_selected, len(self.own_metrics))


def change(plan: PlanMessage, changes: PlanMessage) -> None:
    """Gives a plan all that `changes` has: its lists as well, which merged would become longer. Of
    another bundle the metrics are others.
    """
    if changes.own_metrics or changes.HasField("bundle"):
        plan.ClearField("own_metrics")
    if changes.secure.helpers:
        plan.secure.ClearField("helpers")
    plan.MergeFrom(changes)


def _cohorts(message: PlanMessage) -> int:
    """How many cohorts a round is cut into, also where the plan does not say."""
    if message.cohorts or message.mode == BUFFERED or not message.HasField("secure"):
        return message.cohorts or 1
    factor = message.over_selection or 1.3
    if not 1.0 <= factor <= OVER_SELECTION_MAX:
        return 1  # refused where it is checked
    needed = -(-over(message.cohort, factor) // MEMBERS_MAX)
    return min(max(1, needed), COHORTS_MAX)


def _reports_min(message: PlanMessage, cohorts: int) -> int:
    """No attempt of fewer updates can succeed, whatever the plan says."""
    by_rule = cohorts > 1 and message.aggregation.rule != WEIGHTED_MEAN
    return message.secure.cohort_min * (robust.COHORTS_MIN if by_rule else 1)


def over(cohort: int, factor: float) -> int:
    """`cohort` devices and as many more as `factor` says."""
    # Not ceil(10 * 1.3) = 14 for want of a last bit: 1e-9 is far below one device.
    return math.ceil(cohort * factor - 1e-9)


def _between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise PlanError(name, f"{value}", f"from {low} to {high}")


def _check_names(message: PlanMessage) -> None:
    if len(message.manifest) > MANIFEST_BYTES_MAX:
        raise PlanError(
            "manifest", f"{len(message.manifest)} bytes", f"at most {MANIFEST_BYTES_MAX}"
        )
    if message.mode not in (RUN_MODE_UNSPECIFIED, SYNCHRONOUS, BUFFERED):
        raise PlanError("mode", f"{message.mode} is not known here", "SYNCHRONOUS or BUFFERED")
    if len(message.name) > NAME_MAX:
        raise PlanError("name", f"{len(message.name)} characters", f"at most {NAME_MAX}")
    if len(message.labels) > LABELS_MAX:
        raise PlanError("labels", f"{len(message.labels)} entries", f"at most {LABELS_MAX}")
    for name, value in message.labels.items():
        if len(name.encode()) + len(value.encode()) > LABEL_BYTES_MAX:
            raise PlanError("labels", f"{name[:32]!r} is long", f"at most {LABEL_BYTES_MAX} bytes")


def _ref(name: str, ref: BlobRef) -> BlobRef:
    if len(ref.digest) != DIGEST_BYTES:
        raise PlanError(name, f"a digest of {len(ref.digest)} bytes", "it is a SHA-256")
    if not 0 < ref.size <= BLOB_BYTES_MAX:
        raise PlanError(name, f"{ref.size} bytes", f"from 1 to {BLOB_BYTES_MAX}")
    return ref


def _ring(message: PlanMessage) -> RingPlan:
    try:
        return RingPlan.of(message.ring)
    except RingError as fault:
        raise PlanError("ring", fault.message, fault.hint) from fault


def _promise(message: PlanMessage, survivors: int) -> Promise | None:
    """What the run's devices are promised, if anything: of rounds of so many updates or more."""
    if not message.HasField("privacy"):
        return None
    asked = message.privacy
    if not 0.0 <= asked.corrupt < 1.0:
        raise PlanError("privacy.corrupt", f"{asked.corrupt:g}", "a share, 0 to below 1")
    try:
        return Promise(
            asked.epsilon,
            asked.delta,
            releases=message.rounds,
            survivors=survivors,
            corrupt=asked.corrupt,
            central=message.ring.central,
        )
    except BudgetError as fault:
        raise PlanError("privacy", fault.message, fault.hint) from fault
