"""A run's plan: rounds and their timing, privacy, evaluation, and the chain that follows from them.

Each setting is one field, with its type, default, bounds and meaning. From the fields are derived
(`plan_settings`): the tables [round], [privacy] and [evaluation] of a scenario and their
documentation, the codec of `PlanMessage`, and the names in errors. A new setting is a field here
and a line in proto/operator.proto.

    scenario.toml  ->  the scenario's tables  ->  Plan     ->  plan_checks
    PlanMessage   <->  plan_codec            <->  RunPlan  ->  plan_checks, and its own

Tables and codec check types and bounds, `plan_checks` what goes together. RunPlan, in
`cloud.protocol.run_plan`, is a plan with what a submission adds: programs, ring plan and weights.

Where a field may be None, the value follows from other settings: the properties of `Plan` say how.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from ..privacy.secagg.limits import COHORT_MIN, HELPERS_MAX, MEMBERS_MAX
from .hyperparameters import Bounds
from .plan_settings import NO_KEY, Key, settings

if TYPE_CHECKING:
    from ..privacy.mechanisms.noise_mechanism import PrivacyTarget
    from ..wire.operator_pb2 import AggregationRule
    from .aggregate.chains import Chain

#: Devices in one attempt; with masks at most 1,000 in each cohort.
SELECTED_MAX = 100_000
#: Cohorts of a masked round: an edge keeps the ends of so many attempts of a run.
COHORTS_MAX = 16
ROUNDS_MAX = 1_000_000
OVER_SELECTION = 1.3
#: A week; what devices are sent away for is no longer either.
TIME_MS_MAX = 7 * 24 * 3600 * 1000
#: A tenth of a round is for the sums' way up.
MARGIN_SHARE = 10
STALENESS_MAX = 1_000  # models

Rule = Literal[
    "weighted_mean",
    "median",
    "trimmed_mean",
    "geometric_median",
    "krum",
    "multi_krum",
    "clipped_mean",
]
Devices = Bounds(ge=1, le=SELECTED_MAX)
Share = Bounds(ge=0.0, lt=1.0)
Part = Bounds(gt=0.0, le=1.0)


@dataclass(frozen=True)
class Round:
    """How a round gathers its cohort."""

    cohort: Annotated[int | None, Devices, Key(scenario=10, was=("round.devices",))] = None
    """Updates that a round aims for. In a scenario the default is at most the training devices."""
    over_selection: Annotated[float | None, Bounds(ge=1.0, le=10.0), Key(scenario=1.0)] = None
    """Devices selected for each of `cohort`, against dropout. Absent: 1.3; 1 in a buffered run."""
    timeout_ms: Annotated[
        int,
        Bounds(ge=2, le=TIME_MS_MAX),
        Key(scenario=60_000, was=("round.deadline_s", "round_ms")),
    ] = 300_000
    """From the tasks to the last sum, in ms: after it a round takes what it has."""
    margin_ms: Annotated[int | None, Bounds(ge=1, le=TIME_MS_MAX), Key()] = None
    """The part of `timeout_ms` that is kept for the sums' way up. Absent: a tenth."""
    wait_ms: Annotated[int, Bounds(ge=1, le=TIME_MS_MAX), Key()] = 120_000
    """How long to wait for enough devices before going on with fewer, in ms."""
    rest_ms: Annotated[int, Bounds(ge=0, le=TIME_MS_MAX), Key(scenario=6_000)] = 0
    """Pause between rounds in ms, in which the last round's devices may come back."""
    reports_min: Annotated[int, Devices, Key(was=("round.min_reports",))] = 1
    """An attempt at a round with fewer reports changes nothing."""
    attempts_max: Annotated[int, Bounds(ge=1, le=1_000), Key()] = 5
    """Attempts in a row that may fail before the run gives up."""
    pool_min: Annotated[int | None, Bounds(ge=0, le=SELECTED_MAX), Key()] = None
    """Devices that must be ready. Absent: as many as are selected; in a scenario 80% of the devices
    that train, so that selection is nearly uniform.
    """
    mode: Annotated[Literal["synchronous", "buffered"], Key(stage="fedbuff")] = "synchronous"
    """`synchronous` (one cohort after the other) or `buffered` (devices train all the time;
    FedBuff, Nguyen et al. 2022).
    """
    buffer: Annotated[int | None, Devices, Key(when="buffered")] = None
    """Buffered: updates that make the next model. Absent: as many as `cohort`."""
    concurrency: Annotated[int | None, Devices, Key(when="buffered")] = None
    """Buffered: devices at work at once. Absent: twice the buffer."""
    staleness_max: Annotated[
        int, Bounds(ge=1, le=STALENESS_MAX), Key(stage="fedbuff.staleness_max", when="buffered")
    ] = 20
    """Buffered: updates from models older than this are not used."""
    rule: Annotated[Rule, Key("aggregation.rule", stage="rule")] = "weighted_mean"
    """How updates become one: `weighted_mean`, or a rule that bears hostile ones and gives each the
    same weight. Masked updates: the rule is used on the means of a round's cohorts.
    """
    hostile: Annotated[
        float,
        Bounds(ge=0.0, lt=0.5),
        Key(
            "aggregation.hostile",
            stage="rule.hostile",
            when="by_rule",
            was=("aggregation.corrupt",),
        ),
    ] = 0.0
    """Rule: the share of updates, or of cohorts, that may be hostile."""


@dataclass(frozen=True)
class Privacy:
    """What an update goes through before it leaves the device."""

    clip: Annotated[float, Bounds(gt=0.0, le=1e6), Key("ring.clip", stage="clip.norm")] = 10.0
    """The largest L2 norm of an update; a longer one is scaled down to it."""
    rotated: Annotated[bool, Key("ring.rotated", stage="rotate", was=("privacy.rotation",))] = False
    """Whether updates are rotated: up to 8 times finer steps, uploads in blocks of up to 4,096."""
    bits: Annotated[int | None, Bounds(ge=8, le=32), Key("ring.bits", stage="quantise.bits")] = None
    """Width of a sum of updates, and of the numbers that travel: fewer are fewer bytes and coarser
    steps (with `rotated` they stay eight times finer). Absent: 32, or with noise as few as its
    steps need.
    """
    random_k: Annotated[
        float | None, Part, Key("ring.kept", stage="random_k.share", was=("privacy.kept",))
    ] = None
    """The share of an update's numbers that is sent. The round's key chooses them, the same for all
    devices, so that they can be added. Absent: all.
    """
    top_k: Annotated[
        float | None, Part, Key("ring.top", stage="top_k.share", was=("privacy.top",))
    ] = None
    """The share of an update's numbers that travels, which each device chooses: the largest. It
    keeps the others and adds them to its next update. Not with masks. Absent: all.
    """
    clip_quantile: Annotated[
        float | None,
        Bounds(gt=0.0, lt=1.0),
        Key("moving_clip.quantile", stage="moving_clip.quantile"),
    ] = None
    """Adaptive clipping: the clip follows the updates' norms, so that this share of devices is
    within it; it begins at `clip`, which it never exceeds. Absent: it is the same in all rounds.
    """
    clip_rate: Annotated[float, Part, Key("moving_clip.rate", stage="moving_clip.rate")] = 0.2
    """How fast it follows, in logarithms a round (Andrew et al. 2021)."""
    aggregation: Annotated[Literal["secure", "plain"] | None, Key("secure", stage="mask")] = None
    """`secure` (updates are masked: edges and the coordinator read sums alone; SecAgg+, Bell et al.
    2020) or `plain`. Absent: `plain` in virtual time, `secure` by daemons.
    """
    suite: Annotated[int, Bounds(ge=1, le=2), Key("secure.suite")] = 1
    """Secure: masks by AES-256-CTR (1), which most processors support, or ChaCha20 (2)."""
    cohort_min: Annotated[
        int | None,
        Bounds(ge=COHORT_MIN, le=MEMBERS_MAX),
        Key("secure.cohort_min", stage="mask.least"),
    ] = None
    """Secure: no sum of fewer devices is ever read. Absent: half of a round's devices, and 3 at
    least; with distributed noise also `round.reports_min` at least, which it may not be below.
    """
    corrupt: Annotated[float, Share, Key("secure.corrupt", stage="mask.corrupt")] = 0.2
    """Secure: the share of devices that may work together with the coordinator and all edges."""
    dropout: Annotated[float, Share, Key("secure.dropout", stage="mask.dropout")] = 0.1
    """Secure: the share of devices that may drop out between their keys and the sum."""
    helpers: Annotated[
        int,
        Bounds(ge=0, le=HELPERS_MAX),
        Key("secure.helpers", stage="mask.helpers", when="masked"),
    ] = 0
    """Secure and buffered: so many further edges, each with an operator of its own, hold what
    unmasks; devices need not wait for each other. Updates are hidden from the coordinator as long
    as one of them does not work with it. 0: none; waves of devices have sessions.
    """
    cohorts: Annotated[
        int | None, Bounds(ge=1, le=COHORTS_MAX), Key(stage="mask.cohorts", when="masked")
    ] = None
    """Secure: number of cohorts of a round. Absent: the fewest of at most 1,000 devices."""
    noise: Annotated[Literal["none", "distributed", "central"], Key("privacy", stage="noise")] = (
        "none"
    )
    """Differential privacy of a device's updates (docs/privacy.md), for which updates are masked:
    `distributed` (each device adds its part of the noise) or `central` (the coordinator adds it).
    """
    epsilon: Annotated[
        float | None,
        Bounds(gt=0.0, le=1_000.0),
        Key("privacy.epsilon", stage="noise.epsilon", when="noised"),
    ] = None
    """Noise: the privacy loss of a device over the whole run; smaller is more private."""
    delta: Annotated[float, Bounds(ge=1e-12, lt=1.0), Key("privacy.delta", stage="noise.delta")] = (
        1e-6
    )
    """Noise: the probability with which epsilon need not hold."""
    noise_corrupt: Annotated[
        float | None, Share, Key("privacy.corrupt", when="noised", scenario=NO_KEY)
    ] = None
    """Noise by devices: the share whose noise the coordinator may know. Absent: `corrupt`."""


@dataclass(frozen=True)
class Evaluation:
    """When devices evaluate the model, and how many of them."""

    every: Annotated[
        int, Bounds(ge=0, le=ROUNDS_MAX), Key("evaluation_every", was=("evaluate_every",))
    ] = 0
    """Evaluate on devices after every so many models, and after the last. 0: never."""
    cohort: Annotated[
        int | None,
        Devices,
        Key("evaluation_cohort", when="evaluates", was=("evaluate_cohort",)),
    ] = None
    """Federated: devices that evaluate. Absent: as many as a round (or its first cohort) aims for.
    """
    patience: Annotated[int, Bounds(ge=0, le=ROUNDS_MAX), Key(when="evaluates")] = 0
    """Federated: stop when so many evaluations in a row bring nothing better. 0: never."""
    improvement_min: Annotated[float, Share, Key(when="evaluates")] = 0.0
    """Federated: the share by which the personal loss must fall to count as better."""
    rollback_worse: Annotated[float, Bounds(ge=0.0, le=100.0), Key(when="evaluates")] = 0.0
    """Federated, synchronous: roll back to the best model when the personal loss is above its by
    more than this share. 0: never.
    """
    rollback_accuracy: Annotated[float, Bounds(ge=0.0, le=1.0), Key(when="evaluates")] = 0.0
    """Federated, synchronous: roll back to the best model when the personal accuracy is below its
    by more than this. 0: never.
    """


#: A plan's parts, which are tables of a scenario.
TABLES: Mapping[str, type] = {"round": Round, "privacy": Privacy, "evaluation": Evaluation}


@dataclass(frozen=True)
class Plan:
    """What decides how a run goes on."""

    rounds: Annotated[int, Bounds(ge=1, le=ROUNDS_MAX), Key()]
    """Rounds of training, a model each."""
    seed: Annotated[int, Bounds(ge=0, le=2**64 - 1), Key(scenario=1)] = 0
    """Decides everything random. Same seed, same report."""
    round: Round = field(default_factory=Round)
    privacy: Privacy = field(default_factory=Privacy)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def but(self, **values: Any) -> Self:
        """The plan with these values of settings, by name.

        Settings of tables are named without the table, but `evaluation_every` and
        `evaluation_cohort` as messages name them.
        """
        by_name = {s.wire if s.table == "evaluation" else s.name: s for s in settings().values()}
        parts: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            parts.setdefault(by_name[name].table, {})[by_name[name].name] = value
        own = parts.pop("", {})
        return replace(self, **own, **{t: replace(getattr(self, t), **p) for t, p in parts.items()})

    # ------------------------------------------------ what follows from the settings

    @property
    def buffered(self) -> bool:
        return self.round.mode == "buffered"

    @property
    def by_rule(self) -> bool:
        """Whether a round's update is another than the weighted mean."""
        return self.round.rule != "weighted_mean"

    @property
    def aggregation(self) -> AggregationRule:
        """The rule as messages name it."""
        from ..wire import operator_pb2

        rule: AggregationRule = getattr(operator_pb2, self.round.rule.upper())
        return rule

    @property
    def masked(self) -> bool:
        """Whether updates are masked: where that, or what needs it, is asked for."""
        asked = self.privacy.aggregation
        return asked == "secure" or (asked is None and (self.noised or self.privacy.helpers > 0))

    @property
    def noised(self) -> bool:
        return self.privacy.noise != "none"

    @property
    def central(self) -> bool:
        """Whether the coordinator adds the noise."""
        return self.privacy.noise == "central"

    @property
    def evaluates(self) -> bool:
        return self.evaluation.every > 0

    @property
    def buffer(self) -> int:
        """Updates that make a model of a buffered run."""
        return self.round.buffer or self.round.cohort or 0

    @property
    def cohort(self) -> int:
        """Updates that make a model."""
        return self.buffer if self.buffered else self.round.cohort or 0

    @property
    def concurrency(self) -> int:
        """Devices at work at once, of a buffered run."""
        return self.round.concurrency or 2 * self.buffer

    @property
    def over_selection(self) -> float:
        """Devices that are tasked for each that is wanted."""
        return self.round.over_selection or (1.0 if self.buffered else OVER_SELECTION)

    @property
    def selected(self) -> int:
        """Devices tasked at once: of a round where enough are ready, or of all waves."""
        return self.concurrency if self.buffered else over(self.cohort, self.over_selection)

    @property
    def margin_ms(self) -> int:
        """The part of a round that is kept for the sums' way up."""
        return self.round.margin_ms or max(1, self.round.timeout_ms // MARGIN_SHARE)

    @property
    def cohorts(self) -> int:
        """Sums that a round's devices are cut into."""
        if self.privacy.cohorts or self.buffered or not self.masked:
            return self.privacy.cohorts or 1
        return min(max(1, -(-self.selected // MEMBERS_MAX)), COHORTS_MAX)

    @property
    def cohorts_min(self) -> int:
        """Cohorts whose sums a round needs."""
        if not (self.by_rule and self.masked):
            return 1
        from .aggregate.robust import COHORTS_MIN

        return COHORTS_MIN

    @property
    def smallest_sum(self) -> int:
        """Devices of the smallest sum that is aimed for, where updates are masked."""
        each = self.cohort // self.cohorts
        return min(each, self.evaluation.cohort or each)

    @property
    def cohort_min(self) -> int:
        """Minimum of devices in a sum that is decoded."""
        if not self.masked:
            return 1
        half = max(COHORT_MIN, self.smallest_sum // 2)
        # Devices refuse sums with fewer devices than their noise is planned for.
        distributed = self.privacy.noise == "distributed"
        return self.privacy.cohort_min or (
            max(half, self.round.reports_min) if distributed else half
        )

    @property
    def noise_corrupt(self) -> float:
        """The share of devices whose noise the coordinator may know."""
        asked = self.privacy
        return asked.corrupt if asked.noise_corrupt is None else asked.noise_corrupt

    @property
    def reports_min(self) -> int:
        """Fewer updates than this fail the attempt: no attempt of fewer can succeed."""
        needed = self.cohorts_min if self.cohorts > 1 else 1
        return max(self.round.reports_min, self.cohort_min * needed)

    @property
    def evaluation_cohort(self) -> int:
        """Devices whose reports an evaluation aims for."""
        cohort = self.round.cohort or self.buffer
        return self.evaluation.cohort or -(-cohort // self.cohorts)

    @property
    def evaluation_selected(self) -> int:
        """Devices tasked in an evaluation."""
        return over(self.evaluation_cohort, self.over_selection)

    @property
    def evaluation_min(self) -> int:
        """Fewer reports than this skip an evaluation."""
        return min(self.reports_min, self.evaluation_cohort)

    @cached_property
    def promise(self) -> PrivacyTarget | None:
        """The privacy target of the noise, if any. Raises BudgetError where no noise keeps it."""
        if not self.noised:
            return None
        from ..privacy.mechanisms.noise_mechanism import PrivacyTarget

        numbers = (self.privacy.epsilon or 0.0, self.privacy.delta, self.rounds, self.reports_min)
        return PrivacyTarget(*numbers, self.noise_corrupt, self.central)

    @cached_property
    def chain(self) -> Chain:
        """The stages of an update, without the server's optimiser, which is the algorithm's.

        Raises ChainError where stages do not go together.
        """
        from .aggregate import chains

        numbers: dict[str, dict[str, Any]] = {}
        for setting in settings().values():
            stage, _, number = setting.key.stage.partition(".")
            value = setting.of(self)
            if number and value is not None:
                numbers.setdefault(stage, {})[number] = value
        numbers.setdefault("mask", {})["cohorts"] = self.cohorts
        return chains.chain(
            *(
                chains.MAKERS[self.round.rule if name == "rule" else name](**numbers.get(name, {}))
                for name in self._stages()
            )
        )

    def _stages(self) -> list[str]:
        """The names of the chain's stages."""
        privacy, noise = self.privacy, ["noise"] if self.noised else []
        there = {
            "top_k": privacy.top_k is not None,
            "clip": True,
            "rotate": privacy.rotated,
            "quantise": True,
            "moving_clip": privacy.clip_quantile is not None,
            "random_k": privacy.random_k is not None,
        }
        last = ["fedbuff"] if self.buffered else []
        if self.by_rule or not self.buffered:
            last.append("rule" if self.by_rule else "mean")
        masked = ["mask"] if self.masked else []
        masked = [*masked, *noise] if self.central else [*noise, *masked]
        return [*(name for name, is_there in there.items() if is_there), *masked, *last]


def over(cohort: int, factor: float) -> int:
    """`cohort` devices and as many more as `factor` says."""
    # 10 * 1.3 is 13.000000000000002 in floats: 1e-9, far below one device, keeps it 13.
    return math.ceil(cohort * factor - 1e-9)
