"""What a node runs of cut programs.

Bundles with their weights, and the parts of their cuts, ready to be called.

Every node derives a cut's parts from the bundle that it has itself; weights stay where they are. A
node runs its own tier's parts; and where no tier above can be asked, everything that follows
(`Work.REST`) or the whole. What is not compiled yet is compiled when it is prepared, off the event
loop, and kept by the back end's own cache from one run of the process to the next.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...common.aligned_arrays import aligned
from ...common.errors import DelianError
from ...compiler.backends import Backend, Executable, compile_function
from ...compiler.ir import Array, Function, TensorType
from ...learning.bundle import Bundle, load
from ...learning.runtime import ready
from ..cut.batched_parts import lanes
from ..cut.cut import Cut
from ..cut.program_split import Part, Parts, Port, split
from ..cut.wire_formats import wire_bytes
from .machines.part_ports import Course, Leg
from .request_codec import Values, array_of

#: Runs of a part that are timed, and after how long there are enough.
MEASURES = 8
MEASURES_S = 0.5
#: What a tensor costs on most links in addition to its content.
TENSOR_BYTES_TYPICAL = 32
#: And a message: its numbers, the chunk's, and the transport's frame.
MESSAGE_BYTES_TYPICAL = 96


@dataclass(frozen=True, slots=True)
class Model:
    """A program that may be cut, with the weights that every tier has."""

    bundle: bytes
    """Its content hash."""
    weights: bytes
    """SHA-256 of the f32 vector; empty where the program has its weights in it."""
    program: str
    function: Function
    leaves: tuple[Array, ...]
    """The arguments that come before the inputs, each where vectors are read from fastest."""

    @property
    def resident(self) -> range:
        """The numbers of the parameters that every tier has."""
        return range(len(self.leaves))

    @property
    def inputs(self) -> range:
        """The numbers of the others, which the device is given."""
        return range(len(self.leaves), len(self.function.body.params))

    @classmethod
    def of(cls, bundle: Bundle, program: str = "infer", weights: Array | None = None) -> Model:
        """The model of a bundle, by default with the bundle's weights.

        weights: the state or the model, f32. Raises DelianError where the bundle has no such
        program, or the weights are not its own.
        """
        if program not in bundle.programs:
            raise DelianError(f"the bundle has no program {program!r}")
        manifest = bundle.manifest
        function = bundle.programs[program]
        leaves = manifest.model_leaves()
        digest = bytes.fromhex(bundle.bare().content_hash())
        if not leaves:
            return cls(digest, b"", program, function, ())
        vector = bundle.weights if weights is None else weights
        if vector.size == manifest.dimension:
            vector = bundle.model_of(vector)
        if vector.size != sum(leaf.size for leaf in leaves):
            raise DelianError(
                f"{vector.size} weights for a model of {sum(leaf.size for leaf in leaves)}",
                "name a bundle that has its weights, or weights of this bundle's model",
            )
        vector = np.ascontiguousarray(vector, np.float32)
        ends = np.cumsum([leaf.size for leaf in leaves])
        arrays = tuple(
            aligned(part.reshape(leaf.shape))
            for part, leaf in zip(np.split(vector, ends[:-1]), leaves, strict=True)
        )
        content = vector.astype("<f4", copy=False).tobytes()
        arrays += tuple(aligned(leaf) for leaf in bundle.frozen)
        return cls(digest, hashlib.sha256(content).digest(), program, function, arrays)

    @property
    def name(self) -> tuple[bytes, bytes, str]:
        """What an opening names."""
        return (self.bundle, self.weights, self.program)


def load_models(files: Sequence[Path]) -> dict[tuple[bytes, bytes, str], Model]:
    """The models that a node runs parts of: `infer` of each bundle. Raises DelianError. Blocks."""
    models = [Model.of(load(file)) for file in files]
    return {model.name: model for model in models}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A cut of a model, derived and, as far as this node runs it, compiled."""

    model: Model
    cut: Cut
    tier: int
    """The node's in this cut.

    up, down: what comes from below and what goes back there; ask, answer: what this node asks the
    tier above with, and what it is given.
    """
    parts: Parts
    programs: Mapping[tuple[int, int], Executable]
    """Compiled parts by tier and phase."""
    seconds: Mapping[tuple[int, int], float]
    """What each takes here, once."""
    wide: dict[tuple[int, int, int], Executable] = field(default_factory=dict)
    """The same for several requests, by their number, as far as there are any yet."""

    @property
    def up(self) -> tuple[Port, ...]:
        return self._crossing(self.tier - 1, True)

    @property
    def down(self) -> tuple[Port, ...]:
        return self._crossing(self.tier - 1, False)

    @property
    def ask(self) -> tuple[Port, ...]:
        return self._crossing(self.tier, True)

    @property
    def answer(self) -> tuple[Port, ...]:
        return self._crossing(self.tier, False)

    def _crossing(self, hop: int, up: bool) -> tuple[Port, ...]:
        return self.parts.crossing(hop, up, 0) if hop >= 0 else ()

    def run(self, part: Part, values: Sequence[Values]) -> None:
        """Runs one part for each of some requests; what it gives is added to their values.

        Raises WireError for values that came broken, DelianError for ones that do not fit.
        """
        place = (part.tier, part.phase)
        leaves = [self.model.leaves[i] for i in part.resident]
        outputs = [p.value for p in part.outputs]
        for several in self._lots(place, values):
            count = len(several)
            if count == 1:
                (have,) = several
                made = self.programs[place](*leaves, *(array_of(have, p) for p in part.inputs))
                have.update(zip(outputs, made, strict=True))
                continue
            inputs = [np.stack([array_of(have, p) for have in several]) for p in part.inputs]
            rows = self.wide[(*place, count)](*leaves, *inputs)
            for n, have in enumerate(several):
                have.update(zip(outputs, [row[n] for row in rows], strict=True))

    def _lots(self, place: tuple[int, int], values: Sequence[Values]) -> Iterator[Sequence[Values]]:
        """The requests as they are run together: as many at once as there is a program for."""
        sizes = sorted((n for *at, n in list(self.wide) if tuple(at) == place), reverse=True)
        left = list(values)
        for size in (*sizes, 1):
            while len(left) >= size:
                yield left[:size]
                del left[:size]

    def own(self) -> tuple[Part, ...]:
        """This tier's parts, by phase."""
        return self.parts.of(self.tier)

    def rest(self) -> list[Part]:
        """The parts after this tier's first, up to its answer; without one, all."""
        parts = list(self.parts.parts)
        first = next((n for n, p in enumerate(parts) if p.tier == self.tier), -1)
        return [p for p in parts[first + 1 :] if p.tier >= self.tier]

    def legs(self) -> tuple[Leg, ...]:
        """What goes over each link from this tier upwards."""
        return tuple(
            Leg(_bytes(self.parts.crossing(hop, True)), _bytes(self.parts.crossing(hop, False)))
            for hop in range(self.tier, self.parts.top)
        )

    def course(self, name: bytes, above: Sequence[float] | None = None) -> Course:
        """The cut as its tier's machine sees it. above: seconds of tiers above; None: as here."""
        own, rest = self.own(), self.rest()
        cost = self.seconds
        if above is None:
            above = [
                sum(cost[p.tier, p.phase] for p in self.parts.of(tier))
                for tier in range(self.tier + 1, self.parts.top + 1)
            ]
        return Course(
            cut=name,
            before=0 if own else None,
            after=1 if len(own) > 1 else None,
            seconds=(sum(cost[p.tier, p.phase] for p in own), *above),
            legs=self.legs(),
            rest=sum(cost[p.tier, p.phase] for p in rest),
        )


def _bytes(ports: Sequence[Port]) -> int:
    return MESSAGE_BYTES_TYPICAL + sum(
        wire_bytes(p.type, p.wire) + TENSOR_BYTES_TYPICAL for p in ports
    )


class Programs:
    """Compiles parts and runs work; safe to call from several threads.

    slowdown: makes every run take so many times as long, for tests and benchmarks in which a fast
    machine plays a slow one.
    """

    def __init__(self, backend: Backend = "native", slowdown: float = 1.0) -> None:
        assert slowdown >= 1
        self._backend, self._slowdown = backend, slowdown
        self._wholes: dict[tuple[bytes, bytes, str], Executable] = {}
        self._compiling = threading.Lock()

    def prepare(self, model: Model, cut: Cut, tier: int) -> Prepared:
        """Derives a cut's parts, compiles those of this tier and above, and times a run of each.

        Raises CutError for a cut that does not fit, DelianError where a part does not compile.
        Blocks.
        """
        parts = split(model.function, model.resident, cut)
        wanted = [p for p in parts.parts if p.tier >= tier]
        with self._compiling:
            made = (
                ready({p.program.name: p.program for p in wanted}, self._backend) if wanted else {}
            )
        programs = {(p.tier, p.phase): made[p.program.name] for p in wanted}
        seconds = {place: self.measure(program) for place, program in programs.items()}
        return Prepared(model, cut, tier, parts, programs, seconds)

    def widen(self, prepared: Prepared, part: Part, count: int) -> None:
        """Makes a part ready for so many requests at once. Raises DelianError. Blocks."""
        wide = lanes(part, count)
        with self._compiling:
            made = ready({wide.program.name: wide.program}, self._backend)
        prepared.wide[part.tier, part.phase, count] = made[wide.program.name]

    def measure(self, program: Executable) -> float:
        """Seconds of one run, on zeros: the least of a few, for the first ones warm up."""
        zeros = [
            np.zeros(t.shape, t.dtype.numpy)
            for t in program.function.param_types
            if isinstance(t, TensorType)
        ]
        spent: list[float] = []
        while len(spent) < MEASURES and sum(spent) < MEASURES_S:
            began = time.perf_counter()
            program(*zeros)
            spent.append(time.perf_counter() - began)
        return self._slowdown * min(spent)

    def whole(self, model: Model) -> Executable:
        """The program uncut, compiled. Raises DelianError. Blocks."""
        with self._compiling:
            if model.name not in self._wholes:
                self._wholes[model.name] = compile_function(model.function, self._backend)
            return self._wholes[model.name]

    def slowed(self, work: Callable[[], object]) -> float:
        """Does some work, as slowly as this node is to be; the seconds that it took."""
        began = time.perf_counter()
        work()
        spent = time.perf_counter() - began
        if self._slowdown > 1:
            time.sleep((self._slowdown - 1) * spent)
        return self._slowdown * spent
