"""Running a training step that is cut into parts.

What each tier does between messages, which devices share what is above, and what of it is averaged.

A *side* is one tier in one step: it takes a message, runs the parts that are ready, and gives the
message that it sends next. It knows no transport; messages are tensors as they travel. The step's
parts alternate on their own, so a side is a pointer into its tier's list of steps.

What is above a device is its *chain*: the sides of the edge and, where the cut goes so high, of the
cloud, with the weights that they own. Devices share a chain in one of three ways.

    copies        each device trains with a copy of its own; the copies are averaged at the end of
                  the round (Thapa, Arachchige, Camtepe and Sun 2022, "SplitFed", its version 1)
    sequential    one chain serves the devices one after the other, in a drawn order, and keeps what
                  each leaves (its version 2; without rounds it is split learning: Vepakomma, Gupta,
                  Swedish and Raskar 2018)
    synchronous   one chain serves all at once, step by step: its parts run over all batches in one
                  call, and it moves by the mean of what each device's batch would have moved it

With plain or momentum descent a synchronous step is one step on all batches together, weighed
alike; with an optimiser that is not linear in the gradient it is a mean of moves, and no more.

Weights belong to a tier and are named by their numbers in the step's program. A device's are its
own in all three, begin each round where all begin, and leave the device only through their
aggregation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

import numpy as np

from ...common.errors import DelianError
from ...compiler.backends import Backend, Executable, compile_function
from ...compiler.ir import Array
from ...compiler.passes.number_profiles import Profile
from ..cut.batched_parts import lanes
from ..cut.cut import DEVICE
from ..cut.program_split import Message, Part, Parts
from ..cut.wire_formats import Encoded, decode, encode

Weights: TypeAlias = Mapping[int, Array]
#: What a message holds, by value's number.
Tensors: TypeAlias = Mapping[int, Encoded]
#: What is done to a tensor before it leaves a device: (value, array) -> array.
Guard: TypeAlias = Callable[[int, Array], Array]


class Sharing(StrEnum):
    """How devices share what is above them."""

    COPIES = "copies"
    SEQUENTIAL = "sequential"
    SYNCHRONOUS = "synchronous"


class SplitError(DelianError):
    """A step that cannot be run so, or messages that do not belong to it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a side sends, and for each lane what it holds."""

    message: Message
    tensors: tuple[Tensors, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors' contents."""
        return sum(len(e.content) for lane in self.tensors for e in lane.values())


class PartPrograms(Protocol):
    """The parts of a step, ready to be run."""

    parts: Parts

    def run(self, part: Part, count: int, args: Sequence[Array]) -> tuple[Array, ...]:
        """A part's results. count: 0, or how many requests at once, each with one more axis."""


class Programs:
    """The parts of a step, compiled when they are first run: alone, or for many at once."""

    def __init__(
        self, parts: Parts, backend: Backend = "native", profile: Profile = "fast"
    ) -> None:
        self.parts = parts
        self.backend, self.profile = backend, profile
        self._ready: dict[tuple[int, int, int], Executable] = {}

    def run(self, part: Part, count: int, args: Sequence[Array]) -> tuple[Array, ...]:
        """A part's results. count: 0, or how many requests at once, each with one more axis."""
        key = part.tier, part.phase, count
        found = self._ready.get(key)
        if found is None:
            program = (lanes(part, count) if count else part).program
            found = compile_function(program, self.backend, self.profile)
            self._ready[key] = found
        return found(*args)


class Side:
    """One tier in a step.

    weights: those that it has, frozen ones among them, by number; `moved` has the new values of
    those that the step changes, with an axis in front where there are lanes.

    lanes: how many devices it serves at once; 0: one. guard: what tensors go through before they
    go up.
    """

    def __init__(
        self,
        programs: PartPrograms,
        tier: int,
        weights: Weights,
        lanes: int = 0,
        guard: Guard | None = None,
    ) -> None:
        self.tier, self.lanes = tier, lanes
        self.weights = weights
        self.moved: dict[int, Array] = {}
        self._programs, self._guard = programs, guard
        self._steps = programs.parts.steps_of(tier)
        self._at = 0
        self._have: dict[int, Array] = {}
        # As it came, for the tier that it is passed on to.
        self._came: dict[int, tuple[Encoded, ...]] = {}

    @property
    def done(self) -> bool:
        return self._at == len(self._steps)

    def start(self, inputs: Mapping[int, Array]) -> Sent | None:
        """Begins a device's step with its batch: its first message, or None without one."""
        self._have.update(inputs)
        return self._go_on()

    def take(self, sent: Sent) -> Sent | None:
        """A message that has come; the next that this side sends, or None where its step is over.

        Raises SplitError for a message that is not the one that it waits for, WireError for tensors
        of other types.
        """
        expected = None if self.done else self._steps[self._at]
        if sent.message != expected or len(sent.tensors) != max(1, self.lanes):
            raise SplitError(f"tier {self.tier} waits for another message, or for none")
        for port in sent.message.ports:
            encoded = tuple(lane[port.value] for lane in sent.tensors if port.value in lane)
            if len(encoded) != len(sent.tensors):
                raise SplitError(f"value {port.value} is missing in a message")
            arrays = [decode(one, port.type) for one in encoded]
            self._came[port.value] = encoded
            self._have[port.value] = np.stack(arrays) if self.lanes else arrays[0]
        self._at += 1
        return self._go_on()

    def value(self, number: int) -> Array:
        """A value that this side has at the end of its step."""
        return self._have[number]

    def _go_on(self) -> Sent | None:
        while not self.done:
            step = self._steps[self._at]
            if isinstance(step, Message):
                if step.sender != self.tier:
                    return None
                self._at += 1
                return self._send(step)
            self._run(step)
            self._at += 1
        return None

    def _run(self, part: Part) -> None:
        args = [self.weights[i] for i in part.resident]
        args += [self._have[p.value] for p in part.inputs]
        made = self._programs.run(part, self.lanes, args)
        count = len(part.outputs)
        self._have.update(zip([p.value for p in part.outputs], made[:count], strict=True))
        self.moved.update(zip(part.updates, made[count:], strict=True))

    def _send(self, message: Message) -> Sent:
        out: list[dict[int, Encoded]] = [{} for _ in range(max(1, self.lanes))]
        for port in message.ports:
            encoded = self._came.get(port.value)
            if encoded is None:
                array = self._have[port.value]
                rows = list(array) if self.lanes else [array]
                if self._guard is not None and message.up:
                    rows = [self._guard(port.value, row) for row in rows]
                encoded = tuple(encode(row, port.wire) for row in rows)
            for lane, one in zip(out, encoded, strict=True):
                lane[port.value] = one
        return Sent(message, tuple(out))


@dataclass(slots=True)
class Traffic:
    """Bytes of tensors by (hop, whether up), and messages."""

    nbytes: dict[tuple[int, bool], int]
    messages: int = 0

    def add(self, sent: Sent) -> None:
        key = sent.message.hop, sent.message.up
        self.nbytes[key] = self.nbytes.get(key, 0) + sent.nbytes
        self.messages += len(sent.tensors)


class Stepper:
    """Steps of devices and the chain above in one process; what crosses is encoded.

    frozen: by number, the leaves that are not trained.
    """

    def __init__(
        self,
        parts: Parts,
        backend: Backend = "native",
        profile: Profile = "fast",
        frozen: Weights | None = None,
    ) -> None:
        self.parts = parts
        self.frozen = dict(frozen or {})
        self.programs = Programs(parts, backend, profile)
        self.traffic = Traffic({})
        #: Numbers of the weights that devices have, and of those above them.
        self.below = tuple(i for i in parts.homes if parts.homes[i] == DEVICE)
        self.above = tuple(i for i in parts.homes if parts.homes[i] != DEVICE)

    def step(
        self,
        devices: Sequence[Weights],
        chain: Weights,
        batches: Sequence[Sequence[Array]],
        guards: Sequence[Guard | None] = (),
    ) -> tuple[list[dict[int, Array]], dict[int, Array], list[dict[int, Array]]]:
        """One step of some devices that share a chain.

        Their new weights, the chain's, and each device's results that are no weights, by number of
        the result.

        devices, chain: weights by number. batches: each device's inputs, in the order of
        `parts.inputs`. One device steps alone; of several the chain moves by the mean of what each
        would have moved it.
        """
        count = len(devices)
        wide = count if count > 1 else 0
        below = [
            Side(self.programs, DEVICE, {**self.frozen, **weights}, guard=guard)
            for weights, guard in zip(devices, guards or [None] * count, strict=True)
        ]
        tiers = range(DEVICE + 1, self.parts.top + 1)
        held = {**self.frozen, **chain}
        above = {tier: Side(self.programs, tier, held, wide) for tier in tiers}
        numbers = [p.value for p in self.parts.inputs]
        sent = [
            side.start(dict(zip(numbers, batch, strict=True)))
            for side, batch in zip(below, batches, strict=True)
        ]
        while any(one is not None for one in sent):
            sent = self._exchange(sent, below, above)
        assert all(side.done for side in [*below, *above.values()])
        moved = {i: _mean(a) if wide else a for s in above.values() for i, a in s.moved.items()}
        return (
            [{**w, **side.moved} for w, side in zip(devices, below, strict=True)],
            {**chain, **moved},
            [self._results_of(side) for side in below],
        )

    def _exchange(
        self, sent: list[Sent | None], below: Sequence[Side], above: Mapping[int, Side]
    ) -> list[Sent | None]:
        """The devices' requests up, through the chain, and its replies down: their next ones."""
        asked = [one for one in sent if one is not None]
        if len(asked) != len(sent):
            raise SplitError("devices that share a chain step together")
        merged: Sent | None = Sent(
            asked[0].message, tuple(lane for one in asked for lane in one.tensors)
        )
        while merged is not None:
            self.traffic.add(merged)
            receiver = merged.message.receiver
            if receiver == DEVICE:
                lanes_of = (Sent(merged.message, (lane,)) for lane in merged.tensors)
                return [s.take(one) for s, one in zip(below, lanes_of, strict=True)]
            merged = above[receiver].take(merged)
        raise SplitError("a request without an answer")

    def _results_of(self, side: Side) -> dict[int, Array]:
        parts = self.parts
        return {
            k: side.value(value) for k, value in enumerate(parts.results) if k not in parts.updates
        }


def _mean(stacked: Array) -> Array:
    """f32[n, ...] -> f32[...], added in f64 in order, rounded once."""
    found: Array = (np.add.reduce(stacked.astype(np.float64), axis=0) / len(stacked)).astype(
        stacked.dtype
    )
    return found


def averaged(chains: Sequence[Weights], weights: Sequence[float]) -> dict[int, Array]:
    """The weighted mean of several chains' weights, added in f64 in order, rounded once.

    Raises SplitError where there is none, or no weight in them.
    """
    total = float(sum(weights))
    if not chains or total <= 0.0:
        raise SplitError("no chain to average, or no weight in any")
    out: dict[int, Array] = {}
    for number, first in chains[0].items():
        wide = np.zeros(first.shape, np.float64)
        for one, weight in zip(chains, weights, strict=True):
            wide += one[number].astype(np.float64) * (weight / total)
        out[number] = wide.astype(first.dtype)
    return out
