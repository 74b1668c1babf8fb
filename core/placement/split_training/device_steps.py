"""A device's local training in a run that it trains together with its edge, without I/O.

    steps = DeviceSteps(run_step, number, programs, leaves, frozen, data, key)
    sent = steps.start()
    while sent is not None:                   # each turn of each step
        sent = steps.take(reply_to(sent))
    steps.upload()                            # the ring vector of the device's part

It takes the batches that `client_update` takes, in its order, and ends with the vector that
`client_update` would upload, with zeros for the leaves that the edge has. The simulator and a
device's training process run this; how a message gets to the edge and back is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...common.errors import DelianError
from ...compiler.backends import Executable
from ...compiler.ir import Array, Function
from ...compiler.ir_codec import content_hash
from ...learning.bundle import SPLIT_PROGRAMS
from ..cut.cut import DEVICE
from ..cut.program_split import Message, Part
from .run_step import RunStep
from .step_sides import PartPrograms, Sent, Side, SplitError
from .trainings import STEPS_MAX, turns_of

BATCH, UPLOAD = SPLIT_PROGRAMS


class MadePrograms:
    """Parts of a step that were compiled as programs of the run's bundle (`step_sides.Programs`).

    made: programs ready to be called, by name; functions: the same as the bundle has them. A part
    is the program that equals it.
    """

    def __init__(
        self,
        step: RunStep,
        number: int,
        made: Mapping[str, Executable],
        functions: Mapping[str, Function],
    ) -> None:
        self.parts = step.parts[number]
        self._made = {
            content_hash(function): made[name]
            for name, function in functions.items()
            if name.startswith("split_part_") and name in made
        }
        self._hashes = {part.phase: content_hash(part.program) for part in self.parts.of(DEVICE)}
        if missing := set(self._hashes.values()) - self._made.keys():
            raise DelianError(f"the bundle lacks {len(missing)} of the device's parts of its step")

    def run(self, part: Part, count: int, args: Sequence[Array]) -> tuple[Array, ...]:
        """A part's results."""
        assert not count and part.tier == DEVICE
        return self._made[self._hashes[part.phase]](*args)


class DeviceSteps:
    """The steps of one round on one device.

    number: of the plan's piece, one that is cut. made: the bundle's programs, ready to be called.
    leaves: trained ones of the round, in order. frozen: the model's others, in order. data, key: as
    `client_update` takes them. Raises DelianError.
    """

    def __init__(
        self,
        step: RunStep,
        number: int,
        made: Mapping[str, Executable],
        programs: PartPrograms,
        leaves: Sequence[Array],
        frozen: Sequence[Array],
        data: Sequence[Array],
        key: Array,
    ) -> None:
        self._step, self._made, self._programs = step, made, programs
        self._parts = step.parts[number]
        self.turns: tuple[tuple[Message, Message], ...] = turns_of(self._parts)
        self._data, self._key = data, key
        bundle = step.bundle
        named = dict(zip((leaf.name for leaf in bundle.frozen), frozen, strict=True))
        self._held = bundle.held(self._parts, False, named)
        self._leaves = leaves
        self.owned = bundle.owned_by(self._parts, above=False)
        self._first = bundle.started(self._parts, False, {i: leaves[i] for i in self.owned})
        self._now = dict(self._first)
        self._values = [port.value for port in self._parts.inputs]
        *_, each = self._batch(0, 0)
        self._a_pass = int(each)
        #: Of all passes.
        self.steps = step.epochs * self._a_pass
        if not 1 <= self.steps <= STEPS_MAX:
            raise DelianError(f"{self.steps} steps of a device; from 1 to {STEPS_MAX}")
        self.done = 0
        self._turn = 0  # of the step at hand
        self._side: Side | None = None
        self._total = 0.0

    def _batch(self, epoch: int, step: int) -> tuple[Array, ...]:
        place = (np.array(epoch, np.int64), np.array(step, np.int64))
        return self._made[BATCH](*self._data, self._key, *place)

    @property
    def turn(self) -> int:
        """The number of the turn that waits for its answer, over all steps, from 1."""
        return self.done * len(self.turns) + self._turn + 1

    @property
    def reply(self) -> Message:
        """What answers it."""
        return self.turns[self._turn][1]

    def start(self) -> Sent:
        """The first request."""
        return self._begun()

    def _begun(self) -> Sent:
        epoch, step = divmod(self.done, self._a_pass)
        batch = self._batch(epoch, step)[:3]
        self._side = Side(self._programs, DEVICE, {**self._held, **self._now})
        sent = self._side.start(dict(zip(self._values, batch, strict=True)))
        if sent is None:
            raise SplitError("the device's part asks for nothing where the edge is asked")
        return sent

    def take(self, reply: Sent) -> Sent | None:
        """The next request; None: all steps are done. Raises SplitError, WireError."""
        assert self._side is not None
        sent = self._side.take(reply)
        self._turn += 1
        if sent is not None:
            return sent
        self._now = {**self._now, **self._side.moved}
        self._total += float(self._side.value(self._parts.results[0]))
        self.done, self._turn, self._side = self.done + 1, 0, None
        return self._begun() if self.done < self.steps else None

    @property
    def loss(self) -> float:
        """The mean over the steps that are done."""
        return self._total / max(self.done, 1)

    def upload(self, examples: int) -> tuple[Array, bool]:
        """The device's part of the update as the ring has it, and whether it is finite."""
        moved = {i: self._now[i] - self._first[i] for i in self.owned}
        return uploaded(self._made[UPLOAD], moved, self._leaves, examples, self._key)


def uploaded(
    program: Callable[..., tuple[Array, ...]],
    moved: Mapping[int, Array],
    leaves: Sequence[Array],
    examples: int,
    key: Array,
) -> tuple[Array, bool]:
    """What some leaves moved by, as the ring vector of an update in which the others did not."""
    update = [moved[i] if i in moved else np.zeros_like(leaf) for i, leaf in enumerate(leaves)]
    vector, finite = program(*update, np.array(examples, np.float32), key)
    return vector, bool(finite)
