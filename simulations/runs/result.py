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


StoppedBy = Literal["interrupt", "failure", "unfinished"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The tenth and the ninetieth percentile over devices."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round.

    Accuracies are means over the evaluated devices; None in rounds without evaluation.

    `selected` devices were asked; each then is counted once: it `reported`, was `refused` (its
    update is not finite), `dropped` (vanished), `late` (after the deadline) or `spare` (the round
    had its target without it). `applied` is False when too few reported and nothing changed.
    `seconds` sums over devices, `virtual_seconds` is how long the round took; of real daemons both
    are zero, and `wall_seconds` says how long. An accuracy is the mean over devices; pooled, it is
    the share of right answers over all their examples. Where numbers are learnt it is the mean
    squared error (`measures`), and `r_squared` and `absolute_error` are those of all examples.
    metrics: the task's own (`own_metrics`), over all examples; None where it has none.
    """

    round: int
    selected: int
    reported: int
    dropped: int
    late: int
    refused: int
    spare: int
    applied: bool
    bytes: Mapping[str, int]
    seconds: Mapping[str, float]
    virtual_seconds: float
    wall_seconds: float | None = None
    training_loss: float | None = None
    global_accuracy: float | None = None
    personalised_accuracy: float | None = None
    global_loss: float | None = None
    personalised_loss: float | None = None
    global_spread: Spread | None = None
    personalised_spread: Spread | None = None
    global_pooled_accuracy: float | None = None
    personalised_pooled_accuracy: float | None = None
    global_r_squared: float | None = None
    personalised_r_squared: float | None = None
    global_absolute_error: float | None = None
    personalised_absolute_error: float | None = None
    global_metrics: Mapping[str, float | None] | None = None
    personalised_metrics: Mapping[str, float | None] | None = None

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
    """With `steps_support`: its accuracy after none and each of `evaluation.steps` local steps, on
    the rows that judge and on those that it adapts to; empty where it was not requested.
    """
    steps_support: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A whole run, or the part of it that was done when it was stopped."""

    scenario: Scenario
    rounds: tuple[RoundRecord, ...]
    devices: tuple[DeviceRecord, ...]
    parameters: int
    trace_hash: str
    data: Mapping[str, Any]
    host: Mapping[str, Any] = field(default_factory=dict)
    stopped_by: StoppedBy | None = None
    """None for a run that came to its last round, "interrupt" when it was stopped, "unfinished" for
    what there is of one that goes on, "failure" when it gave up; `why` then says what was in the
    way, or why a run ended early that came to no harm, and `hint` what to do about it.
    """
    why: str = ""
    evaluations: tuple[Evaluation, ...] = ()
    """What devices said through the protocol."""
    algorithm: Mapping[str, Any] | None = None
    """Name and settings of one that the caller brought, in place of the scenario's."""
    bundle: Bundle | None = None
    """The programs, with the weights as they are at the end."""
    chain: str = ""
    """What updates went through."""
    hint: str = ""
    fitting: Mapping[str, tuple[Any, Any]] | None = None
    """Of real daemons the scenario's keys that were changed to fit them, before and after."""
    resumable: int = 0
    """The round with which the run is kept, to be resumed.

    Zero: with none, and `not_resumable` says why such a run is not kept, where it was to be. `data`
    is the data card, `host` what differs between machines and runs (wall times, versions, threads);
    nothing else may.
    """
    not_resumable: str = ""

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
class UpdateFinished:
    """One device's local training (or evaluation) of round `round` is computed.

    `done` of `expected`.
    """

    round: int
    done: int
    expected: int
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


Event = Started | Phase | UpdateFinished | RoundFinished | Unfinished | Replayed
