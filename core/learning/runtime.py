"""Runs a bundle's programs on flat vectors: what a device, a coordinator and the simulator call.

The state travels and is stored as one f32 vector, as the manifest lays it out; a program's
parameters are views into it and its results are written into views of a new one, so that nothing is
copied on the way in or out. Every method may be called from many threads at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import DelianError
from ..compiler import tree
from ..compiler.backends import Backend, Executable, compile_function, compile_module
from ..compiler.ir import Array, DType, Function
from ..compiler.verify import Limits, verify_arena
from .bundle import WINDOW_PROGRAMS, Bundle
from .leaf import Leaf

BEGIN, CHUNK, END = WINDOW_PROGRAMS


def ready(
    functions: Mapping[str, Function], backend: Backend = "native", artifacts: Sequence[Path] = ()
) -> dict[str, Executable]:
    """Functions ready to be called: those that are in artifacts, and the others compiled."""
    found: dict[str, Executable] = {}
    if artifacts and backend == "native":
        from ..compiler.backends.native.program import load_artifacts

        found.update(load_artifacts(functions, artifacts))
    rest = {n: f for n, f in functions.items() if n not in found}
    return {**found, **compile_module(rest, backend)} if rest else found


def verify_programs(programs: Mapping[str, Executable], limits: Limits) -> None:
    """Raises MemoryLimitError for a program whose arena exceeds the limits."""
    for program in programs.values():
        report = getattr(program, "report", None)
        if report is not None:
            verify_arena(program.function, report.arena_bytes, limits)


def run_once(function: Function, args: Sequence[Any]) -> tuple[Array, ...]:
    """Runs a function, once: the interpreter is done sooner than a compiler is."""
    return compile_function(function, "reference")(*[np.asarray(a) for a in args])


@dataclass(frozen=True)
class Update:
    """A training's ring vector u32[L], mean loss, finiteness, and next client state."""

    vector: Array
    loss: float
    finite: bool
    kept: Array


@dataclass(frozen=True)
class Score:
    """Sums over a query set, as the task's metrics are (`learn.task.Metrics`)."""

    loss: float
    correct: float
    count: float
    more: tuple[tuple[float, float], ...] = ()
    """(above, below) of each of the task's own, in the manifest's order."""

    @property
    def accuracy(self) -> float:
        """The share of right answers, or a regression's mean absolute error; 0 without rows."""
        return self.correct / self.count if self.count else 0.0


#: Programs that take no frozen leaves: the coordinator's.
WITHOUT_FROZEN = frozenset(("init", "server_update"))


class Runtime:
    """A compiled bundle.

    artifacts: files of `delian build`; a program that one of them has is not compiled. programs:
    which of the bundle's are made ready; None: all. made: programs that are ready; then nothing is
    compiled. limits: what a program may take, which is checked before it takes it. frozen: the
    frozen leaves, where the bundle is bare; none where no program that is made ready takes them.

    Raises DelianError when a program does not compile or takes too much, an artifact does not fit
    this machine, or the frozen leaves are not the bundle's.
    """

    def __init__(
        self,
        bundle: Bundle,
        backend: Backend = "native",
        artifacts: Sequence[Path] = (),
        programs: Sequence[str] | None = None,
        *,
        made: Mapping[str, Executable] | None = None,
        limits: Limits | None = None,
        frozen: Sequence[Array] | None = None,
    ) -> None:
        self.bundle = bundle
        self.manifest = bundle.manifest
        wanted = (
            bundle.programs
            if programs is None
            else {n: bundle.programs[n] for n in programs if n in bundle.programs}
        )
        self.programs = ready(wanted, backend, artifacts) if made is None else dict(made)
        if limits is not None:
            verify_programs(self.programs, limits)
        self.ring = self.manifest.ring
        self._state = self.manifest.state
        self._model = self.manifest.model_leaves()
        given = bundle.frozen if frozen is None else frozen
        takes = set(self.programs) - WITHOUT_FROZEN
        self.frozen = _frozen(self.manifest.frozen, given) if given or takes else ()
        self._kept = self.manifest.client_state
        self.kept_size = sum(leaf.size for leaf in self._kept)
        # Found by identity: to add them up again takes as long as to make the views.
        self._places = {id(each): _places(each) for each in (self._state, self._model, self._kept)}

    def views(self, vector: Array, leaves: Sequence[Leaf]) -> list[Array]:
        """The leaves of a flat f32 vector, as views."""
        size, places = self._places.get(id(leaves)) or _places(leaves)
        if vector.shape != (size,) or vector.dtype != np.float32:
            raise DelianError(
                f"a state of f32[{size}] is needed, not {vector.dtype}{list(vector.shape)}",
                hint="the weights belong to another bundle",
            )
        return [vector[start:stop].reshape(shape) for start, stop, shape in places]

    def model_of(self, state: Array) -> Array:
        """The model in a state: f32[D] -> f32[M]; no copy when the state is the model.

        Personal leaves have their first values.
        """
        if self.manifest.model == tuple(range(len(self._state))):
            return state
        leaves = [*self.views(state, self._state), *self.frozen]
        return np.concatenate([leaves[i].reshape(-1) for i in self.manifest.model])

    def memory(self) -> list[Array]:
        """The server's memory before the first round: zeros, as every optimiser here starts."""
        return [
            np.zeros(leaf.shape, leaf.dtype.replace("f", "float")) for leaf in self.manifest.memory
        ]

    def memory_bytes(self, memory: Sequence[Array]) -> bytes:
        """The server's memory as stored: its leaves, little-endian, in order."""
        return b"".join(m.astype(m.dtype.newbyteorder("<"), copy=False).tobytes() for m in memory)

    def memory_from(self, content: bytes) -> list[Array]:
        """The reverse of `memory_bytes`. Raises DelianError for another bundle's memory."""
        first = self.memory()
        if not content:
            return first
        if len(content) != sum(m.nbytes for m in first):
            raise DelianError(
                f"a server's memory of {len(content)} bytes, where the bundle's takes"
                f" {sum(m.nbytes for m in first)}",
                hint="the memory belongs to another bundle",
            )
        out, offset = [], 0
        for m in first:
            part = np.frombuffer(content, m.dtype.newbyteorder("<"), m.size, offset)
            out.append(part.astype(m.dtype, copy=False).reshape(m.shape))
            offset += m.nbytes
        return out

    def client_state(self, state: Array) -> Array:
        """The first client state, one f32 vector; empty where the algorithm keeps none."""
        kept = np.empty(self.kept_size, np.float32)
        if self._kept:
            self.programs["client_state"](
                *self.views(state, self._state), *self.frozen, out=self.views(kept, self._kept)
            )
        return kept

    def client_update(
        self, state: Array, data: Any, key: Array, kept: Array | None = None
    ) -> Update:
        """A device's local training.

        `data` is the tree of arrays that the bundle was built for, `key` u32[2]; `kept` the client
        state, None for a device that has none yet.
        """
        after, result = self._update_buffers()
        self.programs["client_update"](
            *self.views(state, self._state),
            *self.frozen,
            *_leaves(data),
            key,
            *self._kept_views(state, kept),
            out=[*result, *self.views(after, self._kept)],
        )
        vector, loss, finite = result
        return Update(vector, float(loss), bool(finite), after)

    def begin(self, state: Array, kept: Array | None = None) -> list[Array]:
        """The carry of a training by windows, before the first. kept: as in `client_update`."""
        views = self.views(state, self._state)
        return list(self.programs[BEGIN](*views, *self.frozen, *self._kept_views(state, kept)))

    def chunk(
        self,
        state: Array,
        carry: Sequence[Array],
        data: Any,
        key: Array,
        kept: Array | None = None,
        *,
        epoch: int,
        window: int,
        out: Sequence[Array] | None = None,
    ) -> list[Array]:
        """The carry after one more window of rows.

        `data` is the window as the bundle takes it; `epoch` and `window` say where it is. out:
        where the carry is written; it overlaps none of the arguments. The rest: as in
        `client_update`.
        """
        return list(
            self.programs[CHUNK](
                *self.views(state, self._state),
                *self.frozen,
                *carry,
                *_leaves(data),
                key,
                *self._kept_views(state, kept),
                np.array(epoch, np.int64),
                np.array(window, np.int64),
                out=out,
            )
        )

    def end(
        self, state: Array, carry: Sequence[Array], key: Array, kept: Array | None = None
    ) -> Update:
        """The update of a training by windows; key, kept: those of its windows."""
        after, result = self._update_buffers()
        self.programs[END](
            *self.views(state, self._state),
            *self.frozen,
            *carry,
            key,
            *self._kept_views(state, kept),
            out=[*result, *self.views(after, self._kept)],
        )
        vector, loss, finite = result
        return Update(vector, float(loss), bool(finite), after)

    def _update_buffers(self) -> tuple[Array, list[Array]]:
        """Where a training writes: the next client state; vector, loss and finiteness."""
        vector = np.empty(self.ring.length, np.uint32)
        loss, finite = np.empty((), np.float32), np.empty((), np.bool_)
        return np.empty(self.kept_size, np.float32), [vector, loss, finite]

    def _kept_views(self, state: Array, kept: Array | None) -> list[Array]:
        return self.views(self.client_state(state) if kept is None else kept, self._kept)

    def memory_views(self, content: Array) -> list[Array] | None:
        """The server's memory as u8 views, where alignment and byte order allow, else None."""
        views, offset = [], 0
        for leaf in self.memory():
            part = content[offset : offset + leaf.nbytes]
            if sys.byteorder != "little" or part.ctypes.data % leaf.itemsize:
                return None
            views.append(part.view(leaf.dtype).reshape(leaf.shape))
            offset += leaf.nbytes
        return views

    def server_update(
        self,
        state: Array,
        memory: Sequence[Array],
        mean: Array,
        out: tuple[Array, Sequence[Array]] | None = None,
        *,
        weight: float | None = None,
    ) -> tuple[Array, list[Array]]:
        """The next state and memory from the weighted mean update f32[D].

        out: where they are written; it overlaps none of the arguments. weight: the sum of weights
        in the mean. Raises DelianError where the program takes it and there is none.
        """
        program = self.programs["server_update"]
        taken = 2 * len(self._state) + len(memory)
        weighed = len(program.function.param_types) > taken
        if weighed and weight is None:
            raise DelianError(
                f"the server's update of {self.manifest.algorithm} needs the sum of weights",
                "give server_update the weight that came with the mean",
            )
        after = np.empty_like(state) if out is None else out[0]
        remembered = [np.empty_like(m) for m in memory] if out is None else [*out[1]]
        program(
            *self.views(state, self._state),
            *memory,
            *self.views(mean, self._state),
            *([np.array(weight, np.float32)] if weighed else []),
            out=[*self.views(after, self._state), *remembered],
        )
        return after, remembered

    def evaluate(self, model: Array, data: Any, key: Array) -> Score:
        """Judges a model, f32[M], by a device's query set."""
        found = self.programs["evaluate"](
            *self.views(model, self._model), *self.frozen, *_leaves(data), key
        )
        loss, correct, count, *more = map(float, found)
        return Score(loss, correct, count, tuple(zip(more[::2], more[1::2], strict=True)))

    def personalise(self, state: Array, data: Any, key: Array, kept: Array | None = None) -> Array:
        """The device's own model, f32[M]. `kept`: as in `client_update`."""
        model = np.empty(sum(leaf.size for leaf in self._model), np.float32)
        self.programs["personalise"](
            *self.views(state, self._state),
            *self.frozen,
            *_leaves(data),
            key,
            *self._kept_views(state, kept),
            out=self.views(model, self._model),
        )
        return model

    def infer(self, model: Array, x: Array) -> Array:
        """Logits of a batch of the size that the bundle was built for."""
        return self.programs["infer"](*self.views(model, self._model), *self.frozen, x)[0]


def _frozen(leaves: Sequence[Leaf], arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The frozen leaves. Raises DelianError for others than the manifest's."""
    found = [(array.dtype.newbyteorder("="), array.shape) for array in arrays]
    if found != [(DType(leaf.dtype).numpy, leaf.shape) for leaf in leaves]:
        raise DelianError(
            f"{len(arrays)} frozen leaves, where the bundle has {len(leaves)} of other types",
            "give the frozen leaves of this bundle: a bare bundle does not have them",
        )
    return tuple(arrays)


def _leaves(data: Any) -> list[Any]:
    """The leaves of a tree; a list of arrays is returned as it is, which is faster."""
    if type(data) is list and all(type(each) is np.ndarray for each in data):
        return data
    return tree.leaves(data)


def _places(leaves: Sequence[Leaf]) -> tuple[int, list[tuple[int, int, tuple[int, ...]]]]:
    """The length of leaves that lie one after the other, and where each begins and ends."""
    places, offset = [], 0
    for leaf in leaves:
        places.append((offset, offset + leaf.size, leaf.shape))
        offset += leaf.size
    return offset, places
