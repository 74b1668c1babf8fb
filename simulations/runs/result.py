"""What a simulation leaves behind, and what it says while it runs.

Plain values that progress and reports read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...core.common.collector import unsearched

with unsearched():
    from ...core.learning.bundle import Bundle
    from ..federation.round_records import Evaluation
    from ..scenario.scenario import Scenario

LINKS = ("device_edge_up", "device_edge_down", "edge_cloud_up", "edge_cloud_down")
"""The keys of a round's `bytes`: up is towards the cloud."""

TIMES = ("device_compute", "device_edge", "edge_cloud", "waiting")
"""The keys of a round's `seconds`: where virtual time went, summed over the cohort's devices."""

USES = ("compute", "radio", "idle")
"""The keys of a round's `joules`: what devices used energy for (`federation.energy`)."""


StoppedBy = Literal["interrupt", "failure", "unfinished"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The tenth and the ninetieth percentile over devices."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round.

    Each selected device is counted once: as reported, refused, dropped, late or spare. An accuracy
    is the mean over the evaluated devices; pooled, it is the share of right answers over all their
    examples. Where numbers are learnt, an accuracy is the mean squared error (`measures`). What is
    judged is None in rounds without evaluation.
    """

    round: int
    """Number of the round."""
    selected: int
    """Devices that were asked."""
    reported: int
    """Devices whose update is in the round."""
    dropped: int
    """Devices that vanished; with real daemons 0."""
    late: int
    """Devices after the deadline; with real daemons also those that vanished."""
    refused: int
    """Devices whose update is not finite."""
    spare: int
    """Devices without which the round had its target."""
    applied: bool
    """False when too few reported and nothing changed."""
    bytes: Mapping[str, int]
    """By link and direction (LINKS)."""
    seconds: Mapping[str, float]
    """Virtual time by what it went into (TIMES), summed over devices; zero with real daemons."""
    virtual_seconds: float
    """How long the round took; zero with real daemons."""
    wall_seconds: float | None = None
    """How long the round took by the clock, with real daemons; None otherwise."""
    training_loss: float | None = None
    """Mean of the reported devices' losses, weighed by examples; with real daemons None."""
    global_accuracy: float | None = None
    """The global model's, a mean over devices."""
    personalised_accuracy: float | None = None
    """The personalised models', a mean over devices."""
    global_loss: float | None = None
    """The global model's, a mean over devices."""
    personalised_loss: float | None = None
    """The personalised models', a mean over devices."""
    global_spread: Spread | None = None
    """Of the global model's accuracy over devices."""
    personalised_spread: Spread | None = None
    """Of the personalised models' accuracy over devices."""
    global_pooled_accuracy: float | None = None
    """The global model's, pooled."""
    personalised_pooled_accuracy: float | None = None
    """The personalised models', pooled."""
    global_r_squared: float | None = None
    """R² over all examples, where numbers are learnt that differ; else None."""
    personalised_r_squared: float | None = None
    """As `global_r_squared`."""
    global_absolute_error: float | None = None
    """Mean absolute error over all examples, where numbers are learnt; else None."""
    personalised_absolute_error: float | None = None
    """As `global_absolute_error`."""
    global_metrics: Mapping[str, float | None] | None = None
    """The task's own (`own_metrics`), over all examples; None where it has none."""
    personalised_metrics: Mapping[str, float | None] | None = None
    """As `global_metrics`."""
    epsilon: float | None = None
    """Of differential privacy: what all rounds up to this one spent; None without noise."""
    joules: Mapping[str, float] = field(default_factory=dict)
    """Energy that the devices used, by what it was for (USES); empty with real daemons."""
    exhausted: int = 0
    """Devices that have spent their batteries by the end of the round."""

    @property
    def took_seconds(self) -> float:
        """How long the round took, in the time of its federation."""
        return self.virtual_seconds if self.wall_seconds is None else self.wall_seconds


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One device at the end: its accuracy with the shared model and with its own.

    None: it was not evaluated.
    """

    device: int
    name: str
    edge: int
    examples: int
    held_out: bool
    rounds: int
    accuracy_before: float | None
    accuracy_after: float | None
    steps_query: tuple[float, ...] = ()
    """Its accuracy after none and each of `evaluation.steps` local steps, on the rows that judge;
    empty where it was not requested.
    """
    steps_support: tuple[float, ...] = ()
    """The same, on the rows that it adapts to."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What devices reach without the federation (`baselines`)."""

    updates: int
    """Local updates that each model was made by."""
    accuracies: Mapping[int, tuple[float, float]]
    """Of each judged device, before and after it personalises the model."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A whole run, or the part of it that was done when it was stopped."""

    scenario: Scenario
    rounds: tuple[RoundRecord, ...]
    devices: tuple[DeviceRecord, ...]
    parameters: int
    trace_hash: str
    data: Mapping[str, Any]
    """The data card."""
    host: Mapping[str, Any] = field(default_factory=dict)
    """What differs between machines and runs (wall times, versions, threads); nothing else may."""
    stopped_by: StoppedBy | None = None
    """None for a run that came to its last round, "interrupt" when it was stopped, "unfinished" for
    what there is of one that goes on, "failure" when it gave up.
    """
    why: str = ""
    """What was in the way of a run that gave up, or why a run ended early that came to no harm."""
    evaluations: tuple[Evaluation, ...] = ()
    """What devices said through the protocol."""
    algorithm: Mapping[str, Any] | None = None
    """Name and settings of one that the caller brought, in place of the scenario's."""
    bundle: Bundle | None = None
    """The programs, with the weights as they are at the end."""
    chain: str = ""
    """What updates went through."""
    hint: str = ""
    """What to do about `why`."""
    fitting: Mapping[str, tuple[Any, Any]] | None = None
    """Of real daemons the scenario's keys that were changed to fit them, before and after."""
    resumable: int = 0
    """The round with which the run is kept, to be resumed; 0: with none."""
    classes: Mapping[str, Any] | None = None
    """Accuracies by class and a confusion matrix (`class_view`); None where there are no classes,
    or the run was stopped.
    """
    baselines: Mapping[str, Baseline] | None = None
    """`alone` and `pooled` (`baselines`); None where they were not asked for."""
    not_resumable: str = ""
    """Why a run that was to be kept is not; empty: it is, or was not to be."""

    @property
    def interrupted(self) -> bool:
        return self.stopped_by == "interrupt"


@dataclass(frozen=True, slots=True)
class Started:
    """A run begins: after the data is loaded, before anything is compiled."""

    scenario: Scenario
    devices: int
    held_out: int


@dataclass(frozen=True, slots=True)
class Phase:
    """What the run does when it does not train: "compiling 6 programs"."""

    doing: str


@dataclass(frozen=True, slots=True)
class Notice:
    """What should be known before the rounds begin: a warning, and what to change."""

    text: str


@dataclass(frozen=True, slots=True)
class UpdateFinished:
    """One device's local training (or evaluation) of a round is computed."""

    round: int
    """The round."""
    done: int
    """How many of these are computed."""
    expected: int
    """How many there are to compute."""
    evaluating: bool = False


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """A round and its evaluation are over."""

    record: RoundRecord


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What there is of a run that goes on, now and then.

    Were it killed, nothing else would be left of it.
    """

    result: SimulationResult


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run that was resumed is where it was kept, and goes on after this round."""

    record: RoundRecord
    rounds: tuple[RoundRecord, ...] = ()
    """All rounds up to it."""


@dataclass(frozen=True, slots=True)
class Replaying:
    """A run that is resumed has gone through a round again."""

    round: int
    """Zero: it begins to."""
    last: int
    """The round after which it goes on."""


Event = (
    Started | Phase | Notice | UpdateFinished | RoundFinished | Unfinished | Replaying | Replayed
)
