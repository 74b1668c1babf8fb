"""The stages of a `chain`: what happens to updates between a device's training and the next model.

A stage is a frozen dataclass of numbers and a pair of functions:

    init(ring)                -> state            what it keeps from round to round
    apply(value, state, turn) -> value, state     one update, or the result of many

Its class attributes name the tier that runs it, and what it takes and gives:

    update     f32[D] and a factor that it is yet to be multiplied by: a model's change
    elements   u32[L] of the ring Z_2^bits: one device's update as it travels
    sums       u32[L], of several devices each
    mean       f32[D], one update in the place of many
    model      f32[D], the next one

The stages of a device's program (`top_k` to `quantise`) are written in the compiled language: they
are traced into `client_update`, and run as plain NumPy too. The others call the functions that the
tiers call, so a chain that runs here gives what a federation gives.

    top_k         Stich, Cordonnier and Jaggi 2018, "Sparsified SGD with memory", algorithm 1
    clip, noise   McMahan, Ramage, Talwar and Zhang 2018, "Learning differentially private recurrent
                  language models", algorithm 1; the noise is whole numbers (`mechanisms.noise`)
    rotate        Suresh et al. 2017 (`mechanisms.rotation`)
    moving_clip   Andrew, Thakkar, McMahan and Ramaswamy 2021 (`mechanisms.adaptive_clip`)
    quantise, random_k   Konecny et al. 2016, "Federated learning: strategies for improving
                  communication efficiency", sections 2 and 3, one choice for all
    mask          Bell et al. 2020 (`core.privacy.secagg`)
    rules         Yin et al. 2018 and others (`learn.aggregate.robust`)
    fedbuff       Nguyen et al. 2022
    server        Reddi et al. 2021, "Adaptive federated optimization", algorithm 2
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ...common.errors import DelianError
from ...privacy.mechanisms import adaptive_clip, noise_mechanism, post_processing, ring, rotation
from ...privacy.mechanisms.ring import RingPlan
from ...protocol.ports import Floats, Vector
from ...wire.operator_pb2 import AggregationRule
from ..nn.optim import Optimizer, Rate, adagrad, adam, sgd, yogi
from ..nn.optim import apply as moved
from ..nn.schedules import cosine
from ..plan import ROUNDS_MAX, STALENESS_MAX, Privacy, Round
from . import robust

#: Where the denominator of a server's optimiser begins at nothing: tau of Reddi et al. 2021.
TAU = 1e-3
SERVERS: Mapping[str, Callable[[Rate], Optimizer]] = {
    "sgd": sgd,
    "momentum": partial(sgd, momentum=0.9),
    "adam": adam,
    "yogi": partial(yogi, epsilon=TAU),
    "adagrad": partial(adagrad, epsilon=TAU),
}


# A number that is a setting of a plan, too, has its default at the setting (`learning.plan`), and
# takes it from there.
_ONE = np.float32(1.0)


class Update(NamedTuple):
    """A model's change, and a factor that it is yet to be multiplied by."""

    parts: Sequence[Any]
    """f32[D], or as long as a rotation makes it, in parts."""
    factor: Any = _ONE
    """f32[], multiplied when the update is rounded, so that nothing is rounded twice."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a stage may know of a round."""

    ring: RingPlan
    """The round's ring plan."""
    weight: Any = _ONE
    """The device's weight, f32[] in (0, 1]."""
    key: Any = None
    """The key that the device's update is rounded by, u32[2]."""
    own: Any = None
    """The device's key, u32[2]; `key` was split from it."""
    round_key: bytes = b""
    """The round's key, 8 bytes."""
    noise: bytes = b""
    """32 secret bytes, of the device or of the coordinator."""
    sizes: tuple[int, ...] = ()
    """Devices in each sum; empty: updates arrive one by one."""
    ages: tuple[int, ...] = ()
    """How many models each update is behind."""
    model: Floats | None = None
    """The model that devices began from, f32[D]."""


class Stage(Protocol):
    """A stage of a chain, as the module describes it."""

    where: ClassVar[str]
    """The tier that runs it."""
    takes: ClassVar[str]
    """What it takes: update, elements, sums or mean."""
    gives: ClassVar[str]
    """What it gives: update, elements, sums, mean or model."""

    @property
    def name(self) -> str:
        """What a chain is written with."""

    @property
    def group(self) -> str:
        """The name in rules of order, one for all rules in the mean's place."""

    def init(self, ring: RingPlan) -> Any: ...

    def apply(self, value: Any, state: Any, turn: Turn) -> tuple[Any, Any]: ...


class _Named:
    """Most stages are of a group of their own, and have no state."""

    __slots__ = ()
    group: ClassVar[str]
    where: ClassVar[str]
    takes: ClassVar[str]
    gives: ClassVar[str]

    @property
    def name(self) -> str:
        return self.group

    def init(self, ring: RingPlan) -> Any:
        return ()


def _between(stage: str, what: str, value: float, low: float, high: float) -> None:
    if not (low < value <= high and value < math.inf):
        raise DelianError(f"{stage}: {what} is {value:g}", f"above {low:g}, at most {high:g}")


@dataclass(frozen=True, slots=True)
class TopK(_Named):
    """Keeps the largest coordinates; sends the others later. State: f32[D], on the device."""

    share: float
    """The share of the coordinates that is sent, in (0, 1]."""
    group = "top_k"
    where, takes, gives = "device, its program", "update", "update"

    def __post_init__(self) -> None:
        _between("top_k", "the share", self.share, 0.0, 1.0)

    def count(self, coordinates: int) -> int:
        """How many of them."""
        return max(1, round(self.share * coordinates))

    def init(self, ring: RingPlan) -> Any:
        return np.zeros(ring.dimension, np.float32)

    def apply(self, value: Update, state: Any, turn: Turn) -> tuple[Update, Any]:
        wanted = np.concatenate(value.parts) + state
        size = np.abs(wanted)
        count = self.count(turn.ring.dimension)
        least = np.sort(size)[turn.ring.dimension - count]
        above, alike = size > least, size == least
        room = count - np.sum(above.astype(np.int32))
        # Of equal ones the first: never more than `count` travel.
        sent = above | (alike & (np.cumsum(alike.astype(np.int32)) <= room))
        said = np.where(sent, wanted, np.float32(0.0))
        return Update((said,), value.factor), wanted - said


@dataclass(frozen=True, slots=True)
class Clip(_Named):
    """The update, scaled down if its L2 norm is above a bound."""

    norm: float
    """The bound."""
    group = "clip"
    where, takes, gives = "device, its program", "update", "update"

    def __post_init__(self) -> None:
        _between("clip", "the norm", self.norm, 0.0, ring.CLIP_MAX)

    def apply(self, value: Update, state: Any, turn: Turn) -> tuple[Update, Any]:
        return Update(value.parts, ring.shrink(value.parts, self.norm)), state


@dataclass(frozen=True, slots=True)
class Rotate(_Named):
    """A fixed rotation that spreads the update, for up to eight times finer `quantise` steps."""

    group = "rotate"
    where, takes, gives = "device, its program", "update", "update"

    def apply(self, value: Update, state: Any, turn: Turn) -> tuple[Update, Any]:
        turned = rotation.rotate(np.concatenate(value.parts), turn.ring.dimension)
        return Update((turned,), value.factor), state


@dataclass(frozen=True, slots=True)
class Quantise(_Named):
    """The update rounded to whole steps of a ring, up or down by chance, without bias."""

    bits: int = 0
    """Width of the ring in bits. 0: as few as noise needs, or 32."""
    group = "quantise"
    where, takes, gives = "device, its program", "update", "elements"

    def __post_init__(self) -> None:
        if self.bits and not ring.BITS_MIN <= self.bits <= ring.BITS:
            raise DelianError(
                f"quantise: a ring of {self.bits} bits", f"from {ring.BITS_MIN} to {ring.BITS}"
            )

    def apply(self, value: Update, state: Any, turn: Turn) -> tuple[Any, Any]:
        parts, factor = value
        return ring.quantised(parts, factor, turn.weight, turn.key, turn.ring), state


@dataclass(frozen=True, slots=True)
class MovingClip(_Named):
    """Adaptive clipping: a bound of each round below `clip`'s. State: the coordinator's."""

    quantile: float = 0.5
    """The share of devices whose updates are to be within the bound."""
    rate: float = Privacy.clip_rate
    """How far the bound's logarithm moves in a round."""
    group = "moving_clip"
    where, takes, gives = "device", "elements", "elements"

    def __post_init__(self) -> None:
        adaptive_clip.AdaptiveClip(1.0, self.quantile, self.rate)

    def init(self, ring: RingPlan) -> adaptive_clip.AdaptiveClip:
        return adaptive_clip.AdaptiveClip.of(ring, self.quantile, self.rate)

    def apply(self, value: Vector, state: Any, turn: Turn) -> tuple[Vector, Any]:
        return post_processing.shortened(value, turn.ring, turn.own), state


@dataclass(frozen=True, slots=True)
class RandomK(_Named):
    """Random coordinates, chosen by the round's key: the same at all devices, so that they add."""

    share: float
    """The share of the coordinates that is sent, in (0, 1]."""
    group = "random_k"
    where, takes, gives = "device", "elements", "elements"

    def __post_init__(self) -> None:
        _between("random_k", "the share", self.share, 0.0, 1.0)

    def count(self, coordinates: int) -> int:
        """How many of them."""
        return max(1, round(self.share * coordinates))

    def apply(self, value: Vector, state: Any, turn: Turn) -> tuple[Vector, Any]:
        return post_processing.chosen(value, turn.ring, turn.round_key), state


@dataclass(frozen=True, slots=True)
class Noise(_Named):
    """Noise that keeps (epsilon, delta) differential privacy over all rounds.

    Before the mask each device adds its part; behind it the coordinator adds noise to the sum.
    """

    epsilon: float
    """The privacy budget over all rounds."""
    delta: float = Privacy.delta
    """The probability that the budget does not hold, in (0, 1)."""
    group = "noise"
    where, takes, gives = "device; behind the mask: cloud", "elements", "elements"

    def __post_init__(self) -> None:
        _between("noise", "epsilon", self.epsilon, 0.0, math.inf)
        _between("noise", "delta", self.delta, 0.0, 1.0)

    def apply(self, value: Vector, state: Any, turn: Turn) -> tuple[Vector, Any]:
        """Raises RingError for a device's elements that are longer than was planned for."""
        if not turn.sizes:
            noise_mechanism.guard(value, turn.ring)
        noised = value.copy()
        noise_mechanism.add(noised, turn.ring, turn.noise)
        return noised, state


@dataclass(frozen=True, slots=True)
class Mask(_Named):
    """Masks that cancel in the sum of a cohort, so that only the sum can be read."""

    cohorts: int = 1
    """Sums that a round's devices are cut into."""
    least: int = 0
    """Devices of the smallest sum that is read. 0: half of those that are aimed at."""
    corrupt: float = Privacy.corrupt
    """The share of devices that may work with the coordinator."""
    dropout: float = Privacy.dropout
    """The share of devices that may drop out."""
    helpers: int = Privacy.helpers
    """Edges that hold seeds of masks."""
    group = "mask"
    where, takes, gives = "device; edges add, the cloud opens", "elements", "sums"

    def __post_init__(self) -> None:
        if self.cohorts < 1 or self.least < 0 or self.helpers < 0:
            raise DelianError("mask: a number below none", "cohorts from 1, the others from 0")
        for what, share in (("corrupt", self.corrupt), ("dropout", self.dropout)):
            if not 0.0 <= share < 1.0:
                raise DelianError(f"mask: {what} is {share:g}", "a share, 0 to below 1")

    def apply(self, value: list[Vector], state: Any, turn: Turn) -> tuple[Vector, Any]:
        """The sum of one cohort: with its masks or without, it is the same."""
        return _sum(value, turn.ring), state


def _sum(vectors: list[Vector], plan: RingPlan) -> Vector:
    total = ring.zeros(plan)
    for vector in vectors:
        ring.add(total, vector)
    return total


@dataclass(frozen=True, slots=True)
class Mean(_Named):
    """The mean, weighted by what devices say they trained on."""

    group = "mean"
    where, takes, gives = "edges add, the cloud divides", "elements or sums", "mean"

    def apply(self, value: list[Vector], state: Any, turn: Turn) -> tuple[Floats, Any]:
        return ring.decode(_sum(value, turn.ring), turn.ring, turn.round_key)[0], state


@dataclass(frozen=True, slots=True)
class FedBuff(_Named):
    """The mean of updates from models of several ages; older ones count less."""

    staleness_max: int = Round.staleness_max
    """Updates that are more models behind do not count."""
    group = "fedbuff"
    where, takes, gives = "edges add, the cloud divides", "elements or sums", "mean"

    def __post_init__(self) -> None:
        if not 0 <= self.staleness_max <= STALENESS_MAX:
            raise DelianError(
                f"fedbuff: staleness_max is {self.staleness_max}", f"from 0 to {STALENESS_MAX}"
            )

    def apply(self, value: list[Vector], state: Any, turn: Turn) -> tuple[Floats, Any]:
        by_age: dict[int, list[Vector]] = {}
        for age, vector in zip(turn.ages or [0] * len(value), value, strict=True):
            if age <= self.staleness_max:
                by_age.setdefault(age, []).append(vector)
        # The oldest first, as a coordinator adds them.
        sums = [(staleness_weight(a), _sum(by_age[a], turn.ring)) for a in sorted(by_age)[::-1]]
        return step_of(sums, turn.ring)[0], state


def staleness_weight(tau: int) -> float:
    """s(tau) = 1 / sqrt(1 + tau) (Nguyen et al. 2022, section 5)."""
    return 1.0 / math.sqrt(1.0 + tau)


def step_of(sums: Iterable[tuple[float, Vector]], plan: RingPlan) -> tuple[Floats, float]:
    """The mean f32[D] of sums u32[L], and the sum of weights behind it.

    Args:
        sums: each sum after the factor that its updates count by.
        plan: the ring plan of the sums.

    Raises:
        RingError: a sum is none that devices can have made.
    """
    means = [(factor, *ring.decode(total, plan)) for factor, total in sums]
    weight = sum(w for _, _, w in means)
    step = np.zeros(plan.dimension, np.float32)
    for factor, mean, share in means:
        mean *= np.float32(factor * share / weight)
        step += mean
    return step, weight


@dataclass(frozen=True, slots=True)
class Rule(_Named):
    """A rule of `robust` in the mean's place. All updates have the same weight."""

    rule: str
    """The rule's name, one of `RULES`."""
    hostile: float = Round.hostile
    """The share of updates, behind a mask of cohorts, that may be hostile."""
    group = "rule"
    where, takes, gives = "cloud; edges pass updates on", "elements or sums", "mean"

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise DelianError(f"there is no rule `{self.rule}`", f"one of {', '.join(RULES)}")
        if not 0.0 <= self.hostile < 0.5:
            raise DelianError(f"{self.rule}: hostile is {self.hostile:g}", "0 to below 0.5")

    @property
    def name(self) -> str:
        return self.rule

    def apply(self, value: list[Vector], state: Any, turn: Turn) -> tuple[Floats, Any]:
        rule: Any = AggregationRule.Value(self.rule.upper())
        return robust.combine(value, turn.ring, rule, self.hostile, turn.sizes)[0], state


#: The rules by name: all that plans know, but for the mean.
RULES = tuple(name.lower() for name in AggregationRule.keys() if name != "WEIGHTED_MEAN")  # noqa: SIM118


@dataclass(frozen=True, slots=True)
class Server(_Named):
    """The server's optimiser, on the negative mean update. State: its moments."""

    optimizer: str = "sgd"
    """The optimiser's name, one of `SERVERS`."""
    learning_rate: float = 1.0
    """Its learning rate."""
    decay_rounds: int = 0
    """Rounds in which the rate falls to zero, along half a cosine. 0: it stays as it is."""
    group = "server"
    where, takes, gives = "cloud, the bundle's program", "mean", "model"

    def __post_init__(self) -> None:
        if self.optimizer not in SERVERS:
            raise DelianError(
                f"server: there is no optimiser `{self.optimizer}`", f"one of {', '.join(SERVERS)}"
            )
        _between("server", "the learning rate", self.learning_rate, 0.0, 100.0)
        if not 0 <= self.decay_rounds <= ROUNDS_MAX:
            raise DelianError(
                f"server: decay_rounds is {self.decay_rounds}", f"a number from 0 to {ROUNDS_MAX:_}"
            )

    def made(self) -> Optimizer:
        """What it stands for."""
        rate: Rate = self.learning_rate
        if self.decay_rounds:
            rate = cosine(self.learning_rate, self.decay_rounds)
        return SERVERS[self.optimizer](rate)

    def init(self, ring: RingPlan) -> Any:
        return self.made().init(np.zeros(ring.dimension, np.float32))

    def apply(self, value: Floats, state: Any, turn: Turn) -> tuple[Floats, Any]:
        step, state = self.made().update(np.negative(value), state, turn.model)
        return moved(turn.model, step), state


def place_of(stage: Stage, behind_mask: bool) -> tuple[str, str, str]:
    """Where a stage of a chain runs, what it takes and what it gives."""
    if isinstance(stage, Noise):
        kind = "sums" if behind_mask else "elements"
        return "cloud" if behind_mask else "device", kind, kind
    takes = ("sums" if behind_mask else "elements") if " or " in stage.takes else stage.takes
    return stage.where, takes, stage.gives
