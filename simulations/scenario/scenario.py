"""A scenario: everything that decides what a simulation computes, in one TOML file.

These models are the file's grammar: a key, its range and its meaning stand here once, and the
errors, `delian scenario keys` and docs/scenarios.md are made from them. What only decides how fast
it runs (threads, the back end, where the report goes) is no part of a scenario. Units come last in
names. `scenario_file` reads and overrides them.

The tables that stand for absent ones are made without validation, which would build a validator for
each of them and for all algorithms, and then the scenario's, which has all of theirs in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from .algorithm_table import ChosenTable, alternatives
from .data_settings import (
    DEVICES_MAX,
    Data,
    Model,
    Table,
    conflict,
    hint_of,
    learns_numbers,
    with_defaults,
)

ROUNDS_MAX = 1_000_000
EDGES_MAX = 4_096  # as many as a coordinator serves
SEED_MAX = 2**63 - 1
#: Devices that a masked sum may be of, and the silence that masks bear (`core.privacy.secagg`,
#: which takes long to import).
MASKED_MIN, MASKED_MAX, HELPED_MAX = 3, 1_000, 700
COHORTS_MAX = 16  # of a masked round
MASKS_BEAR = 0.9

Rule = Literal[
    "weighted_mean",
    "median",
    "trimmed_mean",
    "geometric_median",
    "krum",
    "multi_krum",
    "clipped_mean",
]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1e6)]


if TYPE_CHECKING:
    Alternatives = Table
else:
    Alternatives = alternatives()


class Mix(Table):
    """Shares of the fleet's device profiles; they need not sum to one."""

    phone: Share = 0.6
    """A current phone."""
    laptop: Share = 0.2
    """A laptop."""
    board: Share = 0.2
    """A small single-board computer."""

    @model_validator(mode="after")
    def _some_share(self) -> Mix:
        if self.phone + self.laptop + self.board <= 0.0:
            raise conflict("phone", "the shares are all zero")
        return self


class Fleet(Table):
    """The devices and the edges that gather them."""

    devices: int | None = Field(default=None, ge=1, le=DEVICES_MAX)
    """Devices in the federation. Absent: all that natural data has; `digits` and `synthetic` need
    it.
    """
    edges: int = Field(default=3, ge=1, le=EDGES_MAX)
    """Edges; devices are shared out evenly among them. Unless it is set, no more than devices."""
    dropout: Fraction = 0.0
    """Chance that a selected device vanishes before it reports."""
    mix: Mix = Mix.model_construct()
    """Shares of device profiles."""


class Round(Table):
    """How a round gathers its cohort."""

    devices: int = Field(default=10, ge=1, le=100_000)
    """Reports that a round aims for. Unless it is set, no more than devices that train."""
    over_selection: float = Field(default=1.0, ge=1.0, le=10.0)
    """So many times more devices are selected, against those who drop out."""
    deadline_s: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """Seconds of virtual time after which a round takes what it has."""
    min_reports: int = Field(default=1, ge=1, le=100_000)
    """A round with fewer reports changes nothing."""
    mode: Literal["synchronous", "buffered"] = "synchronous"
    """`synchronous` (one cohort after the other) or `buffered` (devices train all the time;
    FedBuff, Nguyen et al. 2022).
    """
    buffer: int | None = Field(default=None, ge=1, le=100_000)
    """Buffered: updates that make the next model. Absent: as many as `devices`."""
    concurrency: int | None = Field(default=None, ge=1, le=100_000)
    """Buffered: devices at work at once. Absent: twice the buffer."""
    staleness_max: int | None = Field(default=None, ge=1, le=1_000)
    """Buffered: updates from models older than this are not used. Absent: 20."""
    rule: Rule = "weighted_mean"
    """How updates become one: `weighted_mean`, or a rule that bears hostile ones and gives each the
    same weight. Masked updates: the rule is used on the means of a round's cohorts.
    """
    hostile: float = Field(default=0.0, ge=0.0, lt=0.5)
    """Rule: the share of updates, or of cohorts, that may be hostile."""

    @property
    def at_once(self) -> int:
        """Devices that have a task at once: the most that one sum holds."""
        if self.mode == "buffered":
            return self.concurrency or 2 * (self.buffer or self.devices)
        # Here, for what a plan is made with takes long to import, and most commands need it not.
        from ...cloud.protocol.plan import over

        return over(self.devices, self.over_selection)


class Link(Table):
    """One kind of network link."""

    latency_ms: float = Field(default=20.0, ge=0.0, le=600_000.0)
    """One-way delay."""
    jitter_ms: float = Field(default=0.0, ge=0.0, le=600_000.0)
    """How far the delay strays."""
    bandwidth_mbps: float = Field(default=100.0, gt=0.0, le=1e6)
    """Megabits a second, each way."""
    loss: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Chance that a message is lost and must be sent again."""


class Network(Table):
    """The links between the tiers."""

    device_edge: Link = Link(latency_ms=40.0, jitter_ms=10.0, bandwidth_mbps=20.0)
    """Between a device and its edge."""
    edge_cloud: Link = Link(latency_ms=20.0, jitter_ms=2.0, bandwidth_mbps=1000.0)
    """Between an edge and the cloud."""


class Privacy(Table):
    """What an update goes through before it leaves the device."""

    clip: float = Field(default=10.0, gt=0.0, le=1e6)
    """The largest L2 norm of an update; a longer one is shortened to it."""
    rotation: bool = False
    """Whether updates are rotated before they are rounded: steps are up to eight times finer, and
    uploads whole blocks of up to 4,096 numbers.
    """
    bits: int | None = Field(default=None, ge=8, le=32)
    """Width of a sum of updates, and of the numbers that travel: fewer are fewer bytes and coarser
    steps (with `rotation` they stay eight times finer). Absent: 32, or with noise as few as its
    steps need.
    """
    kept: float | None = Field(default=None, gt=0.0, le=1.0)
    """The share of an update's numbers that travels in a round: the round's key chooses which, the
    same for all devices, so that they add. Absent: all.
    """
    top: float | None = Field(default=None, gt=0.0, le=1.0)
    """The share of an update's numbers that travels, which each device chooses: the largest. It
    remembers the others and adds them to its next update. Not with masks. Absent: all.
    """
    clip_quantile: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Have the clip follow the updates' lengths, so that this share of devices is within it; it
    begins at `clip`, which it never exceeds. Absent: it is the same in all rounds.
    """
    clip_rate: float = Field(default=0.2, gt=0.0, le=1.0)
    """How fast it follows, in logarithms a round (Andrew et al. 2021)."""
    aggregation: Literal["secure", "plain"] | None = None
    """`secure` (updates are masked: edges and the coordinator read sums alone; SecAgg+, Bell et al.
    2020) or `plain`. Absent: `plain` in virtual time, `secure` by daemons.
    """
    cohort_min: int | None = Field(default=None, ge=3, le=1_000)
    """Secure: no sum of fewer devices is ever read. Absent: half of a round's devices, and 3 at
    least; with distributed noise also `round.min_reports` at least, which it may not be below.
    """
    corrupt: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Secure: the share of devices that may work together with the coordinator and all edges."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Secure: the share of devices that may fall silent between their keys and the sum."""
    helpers: int = Field(default=0, ge=0, le=3)
    """Secure and buffered: so many further edges, each with an operator of its own, hold what
    unmasks; devices need not wait for each other. Updates are hidden from the coordinator as long
    as one of them does not work with it. 0: none; waves of devices have sessions.
    """
    cohorts: int | None = Field(default=None, ge=1, le=COHORTS_MAX)
    """Secure: how many sums a round's devices are cut into. Absent: as few as have room for all,
    1,000 devices in each.
    """
    noise: Literal["none", "distributed", "central"] = "none"
    """Differential privacy of a device's updates (docs/privacy.md), for which updates are masked:
    `distributed` (each device adds its part of the noise) or `central` (the coordinator adds it).
    """
    epsilon: float | None = Field(default=None, gt=0.0, le=1_000.0)
    """Noise: what the whole run may tell of a device; smaller is more private."""
    delta: float = Field(default=1e-6, ge=1e-12, lt=1.0)
    """Noise: the chance with which epsilon need not hold."""


class Evaluation(Table):
    """When and on whom accuracy is measured."""

    every: int = Field(default=1, ge=1, le=ROUNDS_MAX)
    """Measure after every so many rounds, and after the last."""
    devices: int | None = Field(default=None, ge=1, le=DEVICES_MAX)
    """Measure on so many devices (the held-out ones among them). Absent: on all."""
    episodes: int = Field(default=5, ge=1, le=10_000)
    """Few-shot: a device's accuracy is the mean over so many episodes."""
    steps: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = Field(
        default=(), strict=False, max_length=16
    )
    """At the end, measure devices' models after so many local steps too, rising: [1, 5, 10]."""
    target: float | None = Field(default=None, gt=0.0)
    """Tell when devices' own models first were this good: rounds, bytes and time."""

    @model_validator(mode="after")
    def _steps_rise(self) -> Evaluation:
        if list(self.steps) != sorted(set(self.steps)):
            raise conflict("steps", f"{list(self.steps)} do not rise")
        return self

    federated: bool = False
    """Have devices judge the model through the protocol too, as a deployment does."""
    cohort: int | None = Field(default=None, ge=1, le=100_000)
    """Federated: devices that judge. Absent: as many as a round (or its first cohort) aims for."""
    patience: int = Field(default=0, ge=0, le=ROUNDS_MAX)
    """Federated: stop when so many evaluations in a row bring nothing better. 0: never."""
    improvement_min: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Federated: the share by which the personal loss must fall to count as better."""
    rollback_worse: float = Field(default=0.0, ge=0.0, le=100.0)
    """Federated, synchronous: go back to the best model when the personal loss is above its by more
    than this share. 0: never.
    """
    rollback_accuracy: float = Field(default=0.0, ge=0.0, le=1.0)
    """Federated, synchronous: go back to the best model when the personal accuracy is below its by
    more than this. 0: never.
    """


class Scenario(Table):
    """One simulation, from the data to the last round."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Names the scenario in reports and folders: letters, digits, `-`, `_` and `.`."""
    description: str = Field(default="", max_length=2000)
    """One or two sentences for the report."""
    seed: int = Field(default=1, ge=0, le=SEED_MAX)
    """Decides everything random. Same seed, same report."""
    rounds: int = Field(ge=1, le=ROUNDS_MAX)
    """Rounds of training."""
    data: Data
    """What the devices hold."""
    model: Model
    """What they learn."""
    algorithm: ChosenTable
    """How they learn it."""
    alternatives: Alternatives = Alternatives.model_construct()
    """Settings for `--algorithm` and `--compare`."""
    fleet: Fleet = Fleet.model_construct()
    """Devices and edges."""
    round: Round = Round.model_construct()
    """How a round gathers its cohort."""
    network: Network = Network.model_construct()
    """Links between the tiers."""
    privacy: Privacy = Privacy.model_construct()
    """What happens to an update before it leaves."""
    evaluation: Evaluation = Evaluation.model_construct()
    """When accuracy is measured."""
    chain: str | None = Field(default=None, max_length=2000)
    """What an update goes through, as one line in the place of the keys that say it:
    `clip(1) | quantise(16) | mask | mean | server(adam, 0.01)` (docs/algorithms.md).
    """

    _folder: Path | None = PrivateAttr(default=None)

    @property
    def regression(self) -> bool:
        """Whether numbers are learnt, and not labels."""
        return learns_numbers(self.data.source, getattr(self.data, "targets", ""))

    @property
    def cohorts(self) -> int:
        """Sums that a round's devices are cut into where updates are masked."""
        if self.round.mode == "buffered":
            return 1
        return self.privacy.cohorts or min(-(-self.round.at_once // MASKED_MAX), COHORTS_MAX)

    @property
    def smallest_sum(self) -> int:
        """Devices of the smallest sum that is aimed at, where updates are masked."""
        each = (self.round.buffer or self.round.devices) // self.cohorts
        return min(each, self.evaluation.cohort or each)

    @property
    def data_file(self) -> Path | None:
        """The scenario's own data file, if it names one, from the scenario's folder."""
        path: str | None = getattr(self.data, "path", None)
        return None if path is None else (self._folder or Path()) / path

    @property
    def model_file(self) -> Path | None:
        """The Python file of the scenario's own model, if it has one."""
        file: str | None = getattr(self.model, "file", None)
        return None if file is None else (self._folder or Path()) / file

    @property
    def algorithm_file(self) -> Path | None:
        """The Python file of the scenario's own algorithm, if it has one."""
        file: str | None = getattr(self.algorithm, "file", None)
        return None if file is None else (self._folder or Path()) / file

    def to_json(self) -> dict[str, Any]:
        """The scenario as plain data, as reports show it: without alternatives and absent keys."""
        plain = self.model_dump(mode="json", exclude_none=True, exclude={"alternatives"})
        if "path" in plain["data"]:
            # A report says which file, not where somebody keeps it.
            plain["data"]["path"] = Path(plain["data"]["path"]).name
        for table in ("model", "algorithm"):
            if "file" in plain[table]:
                plain[table]["file"] = Path(plain[table]["file"]).name
        return plain

    @model_validator(mode="before")
    @classmethod
    def _chain_in_keys(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or not isinstance(raw.get("chain"), str):
            return raw
        from .composition import written_out

        return written_out(raw)

    @model_validator(mode="after")
    def _parts_fit(self) -> Scenario:
        self._follow_fleet()
        text = self.data.source == "shakespeare"
        if self.model.name != "python" and (self.model.name == "lstm") != text:
            raise conflict(
                "model.name",
                f"the {self.model.name} model does not read the data source {self.data.source}; "
                "lstm reads shakespeare, and the others read images",
            )
        if self.regression:
            self._check_regression()
        elif (self.evaluation.target or 0) > 1:
            raise conflict("evaluation.target", "an accuracy is at most 1")
        if self.round.min_reports > self.round.devices:
            raise conflict(
                "round.min_reports",
                f"{self.round.min_reports} reports of a round of {self.round.devices} devices",
                hint_of({"round.min_reports": self.round.devices}),
            )
        self._check_modes()
        self._check_masks()
        self._check_chain()
        if self.fleet.devices is None:
            dealt = getattr(self.data, "partition", "natural") != "natural"
            if dealt or self.data.source in ("synthetic", "logistic", "sinusoid"):
                raise conflict(
                    "fleet.devices", f"the data source {self.data.source} needs a number of devices"
                )
            return self
        if self.data.source == "omniglot":
            raise conflict(
                "fleet.devices",
                "the data source omniglot makes its devices of alphabets and drawers; "
                "set data.drawers instead",
            )
        self._check_counts(self.fleet.devices)
        return self

    def _follow_fleet(self) -> None:
        """What nobody set follows a fleet that is smaller than usual. It stays unset, so that it
        follows anew where the fleet is changed.
        """
        if self.fleet.devices is None:
            return
        training = self.fleet.devices - getattr(self.data, "held_out_devices", 0)
        for table, key, most in (
            ("fleet", "edges", self.fleet.devices),
            ("round", "devices", training),
        ):
            owner = getattr(self, table)
            if key not in owner.model_fields_set and getattr(owner, key) > most >= 1:
                self.__dict__[table] = with_defaults(owner, {key: most})

    def _check_regression(self) -> None:
        """What only labels have is refused where there are none."""
        if getattr(self.model, "classes", None) is not None:
            raise conflict("model.classes", "numbers are learnt here, and there are no classes")
        if self.evaluation.rollback_accuracy:
            raise conflict(
                "evaluation.rollback_accuracy",
                "an error is judged here; evaluation.rollback_worse is for it",
            )

    def _check_modes(self) -> None:
        """What only one mode reads is refused in the other."""
        round, evaluation = self.round, self.evaluation
        if round.mode == "synchronous":
            for name in ("buffer", "concurrency", "staleness_max"):
                if getattr(round, name) is not None:
                    raise conflict(
                        f"round.{name}", 'only a buffered run reads it (round.mode = "buffered")'
                    )
        elif round.at_once < (round.buffer or round.devices):
            raise conflict(
                "round.concurrency",
                f"{round.at_once} devices at work never have {round.buffer or round.devices}"
                " updates at once (round.buffer)",
            )
        else:
            for name in ("rollback_worse", "rollback_accuracy"):
                if getattr(evaluation, name):
                    raise conflict(
                        f"evaluation.{name}",
                        "a buffered run has newer models when one is judged, and goes back to none"
                        ' (round.mode = "synchronous")',
                    )
        if not evaluation.federated:
            for name in (
                *("cohort", "patience", "improvement_min"),
                *("rollback_worse", "rollback_accuracy"),
            ):
                if getattr(evaluation, name):
                    raise conflict(
                        f"evaluation.{name}",
                        "only a federated evaluation reads it (evaluation.federated = true)",
                    )

    def _check_masks(self) -> None:
        """Whether cohorts can be masked, where they are to be."""
        privacy, round = self.privacy, self.round
        if privacy.corrupt + 2 * privacy.dropout > MASKS_BEAR:
            raise conflict(
                "privacy.dropout",
                f"masks bear corrupt + 2 dropout <= {MASKS_BEAR:g}, not"
                f" {privacy.corrupt:g} + 2 * {privacy.dropout:g}",
            )
        self._check_noise()
        if privacy.helpers and privacy.aggregation == "plain":
            raise conflict(
                "privacy.helpers", "they unmask masked sums (privacy.aggregation = secure)"
            )
        if round.rule == "weighted_mean" and round.hostile:
            raise conflict("round.hostile", "only a rule reads it (round.rule)")
        if privacy.aggregation != "secure" and privacy.noise == "none" and not privacy.helpers:
            if privacy.cohorts is not None:
                raise conflict(
                    "privacy.cohorts", "only masked rounds are cut (privacy.aggregation = secure)"
                )
            return
        planned = round.min_reports if privacy.noise == "distributed" else 0
        if privacy.cohort_min is not None and privacy.cohort_min < planned:
            raise conflict(
                "privacy.cohort_min",
                f"sums of {privacy.cohort_min} devices, where the noise is planned for {planned}"
                " (round.min_reports)",
            )
        smallest = self.smallest_sum
        if smallest < (privacy.cohort_min or MASKED_MIN):
            raise conflict(
                "round.devices",
                f"a sum of {smallest} devices, of which none under"
                f" {privacy.cohort_min or MASKED_MIN} is read (privacy.cohort_min)",
            )
        most = HELPED_MAX if privacy.helpers else MASKED_MAX
        if round.at_once > most * self.cohorts:
            raise conflict(
                "round.devices",
                f"{round.at_once} devices at once; masks are for at most {most} in a sum"
                f" (privacy.cohorts; of a round, up to {COHORTS_MAX})",
            )

    def _check_chain(self) -> None:
        """Whether the stages go together that these keys ask for."""
        # Here, for it takes long to import, and most commands need it not.
        from .composition import ChainError, chain_of, key_of

        try:
            chain_of(self)
        except ChainError as fault:
            raise conflict(key_of(fault), fault.message) from fault

    def _check_noise(self) -> None:
        """Whether there can be noise, where it is asked for."""
        privacy = self.privacy
        if privacy.noise == "none":
            if privacy.epsilon is not None:
                raise conflict("privacy.epsilon", "only noise reads it (privacy.noise)")
            return
        if privacy.epsilon is None:
            raise conflict("privacy.noise", "how much noise? Set privacy.epsilon")
        if self.evaluation.federated:
            raise conflict(
                "privacy.noise", "a federated evaluation has none (evaluation.federated = false)"
            )

    def _check_counts(self, devices: int) -> None:
        held_out = getattr(self.data, "held_out_devices", 0)
        training = devices - held_out
        edges, cohort = self.fleet.edges, self.round.devices
        if training >= 1 and edges <= devices and cohort <= training:
            return
        # All that a small fleet asks for is said at once.
        fitting = {} if training >= 1 else {"data.held_out_devices": 0}
        left = training if training >= 1 else devices
        fitting |= {"fleet.edges": devices} if edges > devices else {}
        fitting |= {"round.devices": left} if cohort > left else {}
        fitting |= {"round.min_reports": left} if self.round.min_reports > left else {}
        hint = hint_of(fitting)
        if training < 1:
            raise conflict(
                "data.held_out_devices",
                f"none of the {devices} devices (fleet.devices) would be left to train",
                hint,
            )
        if edges > devices:
            raise conflict(
                "fleet.edges", f"{edges} edges for {devices} devices (fleet.devices)", hint
            )
        raise conflict(
            "round.devices",
            f"a round of {cohort}, and {training} devices train "
            "(fleet.devices less data.held_out_devices)",
            hint,
        )
