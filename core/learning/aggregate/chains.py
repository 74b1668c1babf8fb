"""Composition: one chain of stages that turns updates into a model.

    chain(clip(1.0), quantise(16), random_k(0.1), noise(8.0), mask(), mean(), server("adam", 0.01))

A chain is a value: it can be compared, printed, and read back from its printed form. It decides
everything between a device's training and the next model, except how many devices take part, and
when. A scenario's keys and a run's plan describe a chain (`simulations.scenario.composition`,
`learning.plan`). Orders of stages that do not work are rejected in one place (`stage_order`).

A chain is a pair (init, apply) like its stages. `apply` is a whole round in NumPy, without
messages: the reference that federations are compared with.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...common.errors import DelianError
from ...compiler import random
from ...privacy.mechanisms import noise_mechanism, ring
from ...privacy.mechanisms.ring import RingPlan
from ...protocol.ports import Floats, Vector
from ...protocol.random_streams import device_key
from . import stages
from .stage_order import AGGREGATES, check
from .stages import Mask, Noise, Stage, Turn, Update

clip, quantise, rotate, moving_clip = stages.Clip, stages.Quantise, stages.Rotate, stages.MovingClip
random_k, top_k, noise, mask = stages.RandomK, stages.TopK, stages.Noise, stages.Mask
mean, fedbuff, server = stages.Mean, stages.FedBuff, stages.Server
krum, multi_krum = partial(stages.Rule, "krum"), partial(stages.Rule, "multi_krum")
trimmed_mean, median = partial(stages.Rule, "trimmed_mean"), partial(stages.Rule, "median")
geometric_median = partial(stages.Rule, "geometric_median")
clipped_mean = partial(stages.Rule, "clipped_mean")

#: What makes a stage, by the name that it prints.
MAKERS: Mapping[str, Callable[..., Stage]] = {
    **{
        kind.group: kind
        for kind in (
            *(top_k, clip, rotate, quantise, moving_clip, random_k),
            *(noise, mask, mean, fedbuff, server),
        )
    },
    **{name: partial(stages.Rule, name) for name in stages.RULES},
}
TEXT_MAX = 2_000  # characters of a chain


State: TypeAlias = tuple[Any, ...]
"""The stages' states, in their order: a device's by its number, in a dict."""


@dataclass(frozen=True, slots=True)
class Round:
    """A round's updates as a chain takes them."""

    model: Floats
    """The model that devices began from, f32[D]."""
    key: bytes
    """The round's key, 8 bytes."""
    updates: Mapping[int, Floats]
    """f32[D] by device."""
    weights: Mapping[int, float] = field(default_factory=dict)
    """Weights in (0, 1] by device; absent: 1."""
    noise: Mapping[int, bytes] = field(default_factory=dict)
    """32 secret bytes by device; if the coordinator adds the noise, those of device 0."""
    cohorts: Sequence[Sequence[int]] = ()
    """The devices of each masked sum; empty: there is one sum."""
    ages: Mapping[int, int] = field(default_factory=dict)
    """How many models an update is behind, by device."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages in an order that works. Raises ChainError for any other."""

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        check(self.stages)

    def __str__(self) -> str:
        return " | ".join(map(shown, self.stages))

    def get(self, group: str) -> Any:
        """The stage of this group, or None."""
        return next((stage for stage in self.stages if stage.group == group), None)

    @property
    def central(self) -> bool:
        """Whether the coordinator adds the noise."""
        groups = [stage.group for stage in self.stages]
        return "noise" in groups and groups.index("noise") > groups.index("mask")

    @property
    def programmed(self) -> tuple[Stage, ...]:
        """The stages of a device's program, which is compiled: up to `quantise`."""
        groups = [stage.group for stage in self.stages]
        return self.stages[: groups.index("quantise") + 1]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The chain as a table: each stage, where it runs, what it takes and what it gives."""
        found, masked = [], False
        for stage in self.stages:
            found.append((shown(stage), *stages.place_of(stage, masked)))
            masked = masked or isinstance(stage, Mask)
        return found

    # ------------------------------------------------ what it decides

    def promise(self, releases: int, survivors: int) -> noise_mechanism.PrivacyTarget | None:
        """The privacy target that the noise is for; None: the chain adds no noise.

        Args:
            releases: rounds.
            survivors: the fewest devices in a sum.

        Raises:
            BudgetError: no noise keeps the target.
        """
        asked: Noise | None = self.get("noise")
        if asked is None:
            return None
        corrupt: float = self.get("mask").corrupt
        return noise_mechanism.PrivacyTarget(
            asked.epsilon, asked.delta, releases, survivors, corrupt, self.central
        )

    def ring(
        self, dimension: int, clients_max: int, promise: noise_mechanism.PrivacyTarget | None = None
    ) -> RingPlan:
        """The ring plan: updates of `dimension` numbers, so many in a sum at most.

        Raises:
            RingError: no ring has room for the sum or its noise.
        """
        bits = self.get("quantise").bits
        rotated = self.get("rotate") is not None
        norm = self.get("clip").norm
        plan = RingPlan(norm, clients_max, dimension, bits or ring.BITS, rotated=rotated)
        if promise is not None:
            plan = noise_mechanism.planned(plan, promise)
            plan = plan if bits else ring.narrowed(plan)
        return self.finished(plan)

    def finished(self, plan: RingPlan) -> RingPlan:
        """The plan of a program with what is done outside it: the choice of coordinates."""
        if (sparse := self.get("random_k")) is not None:
            return replace(plan, kept=sparse.count(plan.coordinates))
        if (sparse := self.get("top_k")) is not None:
            return replace(plan, top=sparse.count(plan.coordinates))
        return plan

    @property
    def remembers(self) -> bool:
        """Whether a device's program keeps anything for the next round."""
        return any(map(_of_device, self.programmed))

    def remembered(self, plan: RingPlan) -> State:
        """What it keeps before the first round."""
        return tuple(stage.init(plan) for stage in self.programmed)

    def program(self, update: Sequence[Any], memory: State, turn: Turn) -> tuple[Any, State]:
        """The stages of a device's program: an update, in parts (`ring.parts`), becomes u32[L].

        Also returns what the device is to keep. It is written in the compiled language.
        """
        value: Any = Update(update)
        after = []
        for stage, state in zip(self.programmed, memory, strict=True):
            value, state = stage.apply(value, state, turn)
            after.append(state)
        return value, tuple(after)

    # ------------------------------------------------ the whole, in NumPy

    def init(self, ring: RingPlan) -> State:
        """The stages' states before the first round."""
        return tuple({} if _of_device(s) else s.init(ring) for s in self.stages)

    def apply(self, plan: RingPlan, given: Round, state: State) -> tuple[Floats, State]:
        """One round: the next model f32[D], and the state of the stages after it.

        Without a server's optimiser it returns the mean in place of the model. `plan` is what
        `ring` gives, with noise or without.
        """
        state = tuple(map(copy.copy, state))
        plan = self._of_round(plan, state)
        groups = [stage.group for stage in self.stages]
        cut = next((i for i, g in enumerate(groups) if g in ("mask", *AGGREGATES)), len(groups))
        vectors = {d: self._device(d, cut, plan, given, state) for d in sorted(given.updates)}
        ages = tuple(given.ages.get(d, 0) for d in vectors)
        turn = Turn(plan, round_key=given.key, ages=ages, model=given.model)
        value: Any = list(vectors.values())
        after = list(state)
        for i, stage in enumerate(self.stages[cut:], cut):
            if isinstance(stage, Mask):
                cohorts = [c for c in (given.cohorts or [list(vectors)]) if c]
                sums = [stage.apply([vectors[d] for d in c], (), turn)[0] for c in cohorts]
                value, turn = sums, replace(turn, sizes=tuple(map(len, cohorts)), ages=())
            elif isinstance(stage, Noise):
                turn = replace(turn, noise=given.noise[0])
                value = [stage.apply(total, (), turn)[0] for total in value]
            else:
                if stage.group in AGGREGATES:
                    self._follow(value, plan, state)
                value, after[i] = stage.apply(value, state[i], turn)
        return value, tuple(after)

    def _device(self, device: int, cut: int, plan: RingPlan, given: Round, state: State) -> Vector:
        """A device's elements as they are masked or sent; its memory is put down in `state`."""
        own = np.array(device_key(given.key, device), np.uint32)
        weight = np.float32(given.weights.get(device, 1.0))
        turn = Turn(
            plan, weight, random.split(own, 2)[1], own, given.key, given.noise.get(device, b"")
        )
        value: Any = Update((given.updates[device],))
        for stage, its in zip(self.stages[:cut], state, strict=False):
            before = its.get(device, stage.init(plan)) if _of_device(stage) else its
            value, remembered = stage.apply(value, before, turn)
            if _of_device(stage):
                its[device] = remembered
        made: Vector = value
        return made

    def _of_round(self, plan: RingPlan, state: State) -> RingPlan:
        """The plan with the round's own clip, where it moves."""
        for stage, its in zip(self.stages, state, strict=True):
            if stage.group == "moving_clip":
                return replace(plan, within=its.clip)
        return plan

    def _follow(self, vectors: list[Vector], plan: RingPlan, state: State) -> None:
        for stage, its in zip(self.stages, state, strict=True):
            if stage.group == "moving_clip":
                total = ring.zeros(plan)
                for vector in vectors:
                    ring.add(total, vector)
                its.follow(ring.indicator(total, plan))


def _of_device(stage: Stage) -> bool:
    """Whether each device has a state."""
    return stage.group == "top_k"


def chain(*given: Stage) -> Chain:
    """The chain of these stages. Raises ChainError where they do not go together in this order."""
    return Chain(given)


# ---------------------------------------------------------------- as text


def shown(stage: Stage) -> str:
    """A stage as `read` takes it: its numbers, but for those that are the defaults."""
    said = []
    for f in dataclasses.fields(stage):  # type: ignore[arg-type]
        value = getattr(stage, f.name)
        if f.name == "rule" or value == f.default:
            continue
        text = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else value
        said.append(f"{f.name}={text}")
    return f"{stage.name}({', '.join(said)})" if said else stage.name


_STAGE = re.compile(r"(\w+)\s*(?:\((.*)\))?", re.ASCII)


def read(text: str) -> Chain:
    """The chain that a text describes.

    Stages stand between `|`, each with its numbers in brackets, by place or by name.

    Raises:
        DelianError: a stage is unknown, or its numbers are wrong.
    """
    if len(text) > TEXT_MAX:
        raise DelianError(f"a chain of {len(text)} characters", f"at most {TEXT_MAX}")
    return Chain(tuple(_read_stage(part.strip()) for part in text.split("|")))


def _read_stage(text: str) -> Stage:
    found = _STAGE.fullmatch(text)
    if text.count("(") != text.count(")"):
        raise DelianError(
            f"`{text}` is no stage: a bracket lacks its other half", "write stages as clip(1)"
        )
    if found is None or found[1] not in MAKERS:
        close = difflib.get_close_matches(found[1] if found else text, MAKERS, 1)
        near = f"did you mean `{close[0]}`? " if close else ""
        raise DelianError(f"`{text}` is no stage", f"{near}stages: {', '.join(MAKERS)}")
    maker = MAKERS[found[1]]
    kind: Any = maker.func if isinstance(maker, partial) else maker
    fields = {f.name: f.type for f in dataclasses.fields(kind) if f.name != "rule"}
    arguments: dict[str, Any] = {}
    for place, said in enumerate(s.strip() for s in (found[2] or "").split(",") if s.strip()):
        name, equals, value = (part.strip() for part in said.partition("="))
        if not equals:
            name, value = next(iter(list(fields)[place:]), ""), name
        if name not in fields or name in arguments:
            raise DelianError(
                f"`{text}`: {found[1]} has no number for `{said}`", f"it has {', '.join(fields)}"
            )
        arguments[name] = _value(value, str(fields[name]), text)
    try:
        return maker(**arguments)
    except TypeError:
        raise DelianError(f"`{text}` lacks a number", f"it has {', '.join(fields)}") from None


def _value(text: str, kind: str, stage: str) -> Any:
    try:
        return {"int": int, "float": float, "str": str}[kind](text.strip("\"'"))
    except ValueError:
        raise DelianError(f"`{stage}`: `{text}` is no number") from None
