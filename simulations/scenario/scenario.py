"""A scenario: everything that decides what a simulation computes, in one TOML file.

These models are the file's grammar: a key, its range and its meaning stand here once, those of the
run's plan at the fields of `core.learning.plan`; the errors, `delian scenario keys` and
docs/scenarios.md are made from them. What only decides how fast
it runs (threads, the back end, where the report goes) is no part of a scenario. Units come last in
names. `scenario_file` reads and overrides them.

The tables that stand for absent ones are made without validation, which would build a validator for
each of them and for all algorithms, and then the scenario's, which has all of theirs in it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator

from ...core.learning.plan import ROUNDS_MAX, TABLES, Plan
from ...core.learning.plan_settings import PlanError
from . import data_settings, settings_table
from .algorithm_table import ChosenTable, alternatives
from .device_classes import CLASSES, DeviceClass, DeviceTraits
from .partial_settings import Partial
from .plan_tables import PlanEvaluation, Privacy, Round, key_at_top, part_of
from .split_settings import Split

EDGES_MAX = 4_096  # as many as a coordinator serves

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1e6)]


if TYPE_CHECKING:
    Alternatives = settings_table.Table
else:
    Alternatives = alternatives()

#: Data that needs a number of devices.
_COUNTED = ("synthetic", "logistic", "sinusoid", "text", "script")
#: Models that may take ids of texts, if they are made for it.
_OF_IDS = ("torch", "onnx", "given")


class Mix(settings_table.Table):
    """Shares of the fleet's device profiles; they need not sum to one."""

    phone: Share = 0.6
    """A current phone."""
    laptop: Share = 0.2
    """A laptop."""
    board: Share = 0.2
    """A small single-board computer."""
    gpu_board: Share = 0.0
    """A board with a GPU, such as an NVIDIA Jetson."""

    @property
    def shares(self) -> dict[str, float]:
        """By class, those that are not zero."""
        return {kind: share for kind, share in self if share > 0.0}

    @model_validator(mode="after")
    def _some_share(self) -> Mix:
        if not self.shares:
            raise settings_table.conflict("phone", "the shares are all zero")
        return self


class Fleet(settings_table.Table):
    """The devices and the edges that gather them."""

    devices: int | None = Field(default=None, ge=1, le=settings_table.DEVICES_MAX)
    """Devices in the federation. Absent: all that natural data has; `digits` and `synthetic` need
    it.
    """
    edges: int = Field(default=3, ge=1, le=EDGES_MAX)
    """Edges; devices are shared out evenly among them. Unless it is set, no more than devices."""
    dropout: Fraction = 0.0
    """Chance that a selected device vanishes before it reports."""
    mix: Mix = Mix.model_construct()
    """Shares of device profiles."""
    phone: DeviceTraits | None = None
    laptop: DeviceTraits | None = None
    board: DeviceTraits | None = None
    gpu_board: DeviceTraits | None = None

    @property
    def classes(self) -> dict[str, DeviceClass]:
        """What each kind of device is like."""
        changed = {kind: getattr(self, kind) for kind in CLASSES}
        return {k: t.given(CLASSES[k]) if t else CLASSES[k] for k, t in changed.items()}


class Link(settings_table.Table):
    """One kind of network link."""

    latency_ms: float = Field(default=20.0, ge=0.0, le=600_000.0)
    """One-way delay."""
    jitter_ms: float = Field(default=0.0, ge=0.0, le=600_000.0)
    """How far the delay strays."""
    bandwidth_mbps: float = Field(default=100.0, gt=0.0, le=1e6)
    """Megabits a second, each way."""
    loss: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Chance that a message is lost and must be sent again."""


class Network(settings_table.Table):
    """The links between the tiers."""

    device_edge: Link = Link(latency_ms=40.0, jitter_ms=10.0, bandwidth_mbps=20.0)
    """Between a device and its edge."""
    edge_cloud: Link = Link(latency_ms=20.0, jitter_ms=2.0, bandwidth_mbps=1000.0)
    """Between an edge and the cloud."""


class Evaluation(PlanEvaluation):
    """When, and on which devices, accuracy is measured."""

    every: int = Field(default=1, ge=1, le=ROUNDS_MAX)
    """Measure after every so many rounds, and after the last."""
    federated: bool = False
    """Have devices evaluate the model through the protocol too, as a deployment does."""
    devices: int | None = Field(default=None, ge=1, le=settings_table.DEVICES_MAX)
    """Measure on so many devices (the held-out ones among them). Absent: on all."""
    episodes: int = Field(default=5, ge=1, le=10_000)
    """Few-shot: a device's accuracy is the mean over so many episodes."""
    steps: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = Field(
        default=(), strict=False, max_length=16
    )
    """At the end, measure devices' models after so many local steps too, rising: [1, 5, 10]."""
    target: float | None = Field(default=None, gt=0.0)
    """Report when personalized accuracy first reached this: rounds, bytes and time."""

    @model_validator(mode="after")
    def _steps_rise(self) -> Evaluation:
        if list(self.steps) != sorted(set(self.steps)):
            raise settings_table.conflict("steps", f"{list(self.steps)} do not rise")
        return self


class Scenario(settings_table.FileTable):
    """One simulation, from the data to the last round."""

    documented: ClassVar[type | None] = Plan

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Names the scenario in reports and folders: letters, digits, `-`, `_` and `.`."""
    description: str = Field(default="", max_length=2000)
    """One or two sentences for the report."""
    seed: int = key_at_top("seed")
    rounds: int = key_at_top("rounds")
    data: data_settings.Data
    """What the devices hold."""
    model: data_settings.Model
    """What they learn."""
    algorithm: ChosenTable
    """How they learn it."""
    partial: Partial = Partial.model_construct()
    """Which leaves are trained and shared."""
    split: Split = Split.model_construct()
    """Devices that train with their edges."""
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

    @property
    def regression(self) -> bool:
        """Whether numbers are learnt, and not labels."""
        return data_settings.learns_numbers(self.data.source, getattr(self.data, "targets", ""))

    def plan(self, masked: bool = False) -> Plan:
        """The plan of the scenario's run. masked: whether updates are, where it does not say."""
        parts = {name: part_of(getattr(self, name), name) for name in TABLES}
        if not self.evaluation.federated:
            parts["evaluation"] = replace(parts["evaluation"], every=0)
        if masked and self.privacy.aggregation is None:
            parts["privacy"] = replace(parts["privacy"], aggregation="secure")
        return Plan(self.rounds, self.seed, **parts)

    @property
    def data_file(self) -> Path | None:
        """The scenario's own data file, if it names one, from the scenario's folder."""
        path: str | None = getattr(self.data, "path", None)
        return None if path is None else self._folder / path

    @property
    def tokenizer_file(self) -> Path | None:
        """The data's tokenizer.json, if the scenario names one."""
        file: str | None = getattr(self.data, "tokenizer", None)
        return None if file is None else self._folder / file

    @property
    def model_file(self) -> Path | None:
        """The Python file of the scenario's own model, if it has one."""
        file: str | None = getattr(self.model, "file", None)
        return None if file is None else self._folder / file

    @property
    def weights_file(self) -> Path | None:
        """The file of the model's first weights, if the scenario names one."""
        file: str | None = getattr(self.model, "weights", None)
        return None if file is None else self._folder / file

    @property
    def loss_file(self) -> Path | None:
        """The Python file of the scenario's own loss, if it has one."""
        file, colon, _ = getattr(self.model, "loss", "").rpartition(":")
        return self._folder / file if colon else None

    @property
    def algorithm_file(self) -> Path | None:
        """The Python file of the scenario's own algorithm, if it has one."""
        file: str | None = getattr(self.algorithm, "file", None)
        return None if file is None else self._folder / file

    def to_json(self) -> dict[str, Any]:
        """The scenario as plain data, as reports show it: without alternatives and absent keys."""
        plain = self.model_dump(mode="json", exclude_none=True, exclude={"alternatives"})
        if "path" in plain["data"]:
            # A report names the file, and not its folder.
            plain["data"]["path"] = Path(plain["data"]["path"]).name
        if "tokenizer" in plain["data"]:
            plain["data"]["tokenizer"] = Path(plain["data"]["tokenizer"]).name
        files = ("model", "file"), ("model", "weights"), ("model", "loss"), ("algorithm", "file")
        for table, key in files:
            if plain[table].get(key):
                plain[table][key] = Path(plain[table][key]).name
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
        self._check_text()
        self._check_script()
        if self.regression:
            self._check_regression()
        elif (self.evaluation.target or 0) > 1:
            raise settings_table.conflict("evaluation.target", "an accuracy is at most 1")
        if self.round.reports_min > self.round.cohort:
            raise settings_table.conflict(
                "round.reports_min",
                f"{self.round.reports_min} reports of a round of {self.round.cohort} devices",
                settings_table.hint_of({"round.reports_min": self.round.cohort}),
            )
        if ways := getattr(self.algorithm, "training_ways", 0):
            self._check_training_ways(ways)
        self._check_plan()
        if self.fleet.devices is None:
            dealt = getattr(self.data, "partition", "natural") != "natural"
            own = self.data.source == "text" and getattr(self.data, "clients", "") == "roles"
            labelled = getattr(self.data, "task", "") == "classification"
            if not (own or labelled) and (dealt or self.data.source in _COUNTED):
                raise settings_table.conflict(
                    "fleet.devices", f"the data source {self.data.source} needs a number of devices"
                )
            return self
        if self.data.source == "omniglot":
            raise settings_table.conflict(
                "fleet.devices",
                "the data source omniglot makes its devices of alphabets and drawers; "
                "set data.drawers instead",
            )
        self._check_counts(self.fleet.devices)
        return self

    def _follow_fleet(self) -> None:
        """Lowers what is not set to a fleet that is smaller than usual.

        It still counts as not set, so that it follows the fleet when that is changed again.
        """
        if self.fleet.devices is None:
            return
        training = self.fleet.devices - getattr(self.data, "held_out_devices", 0)
        for table, key, most in (
            ("fleet", "edges", self.fleet.devices),
            ("round", "cohort", training),
        ):
            owner = getattr(self, table)
            if key not in owner.model_fields_set and getattr(owner, key) > most >= 1:
                self.__dict__[table] = settings_table.with_defaults(owner, {key: most})

    def _check_text(self) -> None:
        """Models of sequences read texts, and nothing else does."""
        text = self.data.source in ("shakespeare", "text")
        reads = self.model.name in ("lstm", "transformer")
        any_kind = self.model.name in ("python", *(_OF_IDS if text else ()))
        if not any_kind and reads != text:
            raise settings_table.conflict(
                "model.name",
                f"the {self.model.name} model does not read the data source {self.data.source}; "
                "lstm and transformer read the sources shakespeare and text, and the others read"
                " numbers",
            )
        task = getattr(self.data, "task", "next-token")
        if self.model.name == "lstm" and task != "next-token":
            raise settings_table.conflict(
                "model.name", f"the lstm model reads from left to right, and data.task is {task}"
            )

    def _check_script(self) -> None:
        """A script, its model and its algorithm go together."""
        script = self.data.source == "script"
        if script and self.model.name not in ("script", "torch", "given"):
            raise settings_table.conflict(
                "model.name",
                f"a training script has a model of its own, and not {self.model.name}",
                "model.name = script, with a file of first weights, or torch, a module's",
            )
        if (self.model.name == "script" and not script) or (
            script != (self.algorithm.name == "script")
        ):
            raise settings_table.conflict(
                "algorithm.name",
                f"the data source {self.data.source} and the algorithm {self.algorithm.name}: the"
                " algorithm script is for the data source script, and only that",
            )
        if script and self.evaluation.steps:
            raise settings_table.conflict(
                "evaluation.steps", "a script is not asked for single steps"
            )

    def _check_regression(self) -> None:
        """What only labels have is refused where there are none."""
        if getattr(self.model, "classes", None) is not None:
            raise settings_table.conflict(
                "model.classes", "numbers are learnt here, and there are no classes"
            )
        if self.evaluation.rollback_accuracy:
            raise settings_table.conflict(
                "evaluation.rollback_accuracy",
                "an error is judged here; evaluation.rollback_worse is for it",
            )

    def _check_training_ways(self, ways: int) -> None:
        if not isinstance(self.data, data_settings.OmniglotData):
            raise settings_table.conflict(
                "algorithm.training_ways",
                f"the data source {self.data.source} has rows, and not few-shot episodes",
            )
        if ways < self.data.ways:
            raise settings_table.conflict(
                "algorithm.training_ways",
                f"it is 0, or at least data.ways, which is {self.data.ways}",
            )

    def _check_plan(self) -> None:
        """Whether the settings of the run go together."""
        # Here, for it takes long to import, and most commands need it not.
        from ...core.learning.plan_checks import check

        try:
            check(self.plan())
        except PlanError as fault:
            raise settings_table.conflict(
                fault.path, fault.reason, fault.hint or settings_table.CHANGE
            ) from fault

    def _check_counts(self, devices: int) -> None:
        held_out = getattr(self.data, "held_out_devices", 0)
        training = devices - held_out
        edges, cohort = self.fleet.edges, self.round.cohort
        if training >= 1 and edges <= devices and cohort <= training:
            return
        # All that a small fleet asks for is said at once.
        fitting = {} if training >= 1 else {"data.held_out_devices": 0}
        left = training if training >= 1 else devices
        fitting |= {"fleet.edges": devices} if edges > devices else {}
        fitting |= {"round.cohort": left} if cohort > left else {}
        fitting |= {"round.reports_min": left} if self.round.reports_min > left else {}
        hint = settings_table.hint_of(fitting)
        if training < 1:
            raise settings_table.conflict(
                "data.held_out_devices",
                f"none of the {devices} devices (fleet.devices) would be left to train",
                hint,
            )
        if edges > devices:
            raise settings_table.conflict(
                "fleet.edges", f"{edges} edges for {devices} devices (fleet.devices)", hint
            )
        raise settings_table.conflict(
            "round.cohort",
            f"a round of {cohort}, and {training} devices train "
            "(fleet.devices less data.held_out_devices)",
            hint,
        )
