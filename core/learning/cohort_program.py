"""A cohort's client updates as one program: `client_update` over lanes, a device in each.

    lanes[k] = client_update(state, data[k], key[k], kept[k])      one call, k = 0 .. size - 1

All lanes share the state; each has its own data, key and client state, and its weights part from
the others' at its first step. Loops run as long as the longest lane needs, and a lane that is done
keeps what it has. That is worth it where one device's work does not fill the machine: on a GPU. A
CPU does better with a device on each core (docs/performance.md).

What a lane gives is what the device alone would give, up to rounding: products of another shape
are added in another order. A cohort smaller than the program's size is filled up with copies of its
first device, so that a device's result does not depend on how many others there are.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from ..compiler import tree
from ..compiler.backends import TORCH, Backend, Executable, compile_function
from ..compiler.ir import Array, Function
from .bundle import Bundle
from .runtime import Runtime, Update

Convolutions: TypeAlias = Literal["patches", "grouped", "loop"]

#: Devices in one program by default: enough rows for a GPU's matrix units.
SIZE_DEFAULT = 64


@dataclass(frozen=True, slots=True)
class Member:
    """A device's part of a cohort: its data, its key u32[2], its state f32[kept_size] or None."""

    data: Any
    key: Array
    kept: Array | None = None


def cohort_program(
    client_update: Function, shared: int, size: int, convolutions: Convolutions = "patches"
) -> tuple[Function, tuple[bool, ...]]:
    """`client_update` over `size` lanes, and which of its results differ from lane to lane.

    Its first `shared` parameters are the same in all lanes.

    convolutions: how those with a kernel for each lane are done (`transforms.wide`; loop: lane
    after lane).
    """
    from ..compiler.passes.simplify import simplify
    from ..compiler.transforms.vmap import Manner, vmap
    from ..compiler.transforms.wide import GROUPED, PATCHES

    rules: Mapping[Convolutions, Any] = {"patches": PATCHES, "grouped": GROUPED, "loop": {}}
    body = client_update.body
    flags = [i >= shared for i in range(len(body.params))]
    # Nothing differentiates a whole local training: its derivatives are in it.
    wide, made = vmap(body, flags, size, Manner(rules[convolutions], last=True))
    names = client_update.param_names, client_update.result_names
    return Function(f"{client_update.name}_of_{size}", simplify(wide), *names), made


class Cohort:
    """A compiled local training of `size` devices at a time; thread-safe."""

    def __init__(
        self,
        runtime: Runtime,
        size: int = SIZE_DEFAULT,
        backend: Backend = "native",
        convolutions: Convolutions | None = None,
    ) -> None:
        """convolutions: absent, patches on torch and a loop elsewhere."""
        assert size >= 1
        self.runtime, self.size = runtime, size
        if convolutions is None:
            convolutions = "patches" if backend.startswith(TORCH) else "loop"
        self._shared = len(runtime.manifest.state) + len(runtime.frozen)
        function, self._made = cohort_program(
            runtime.bundle.programs["client_update"], self._shared, size, convolutions
        )
        self.program: Executable = compile_function(function, backend)

    def arguments(self, state: Array, members: Sequence[Member]) -> list[Array]:
        """What the program takes for these devices, at most `size` and at least one."""
        assert 1 <= len(members) <= self.size
        rows = [self._row(state, m) for m in members]
        rows += rows[:1] * (self.size - len(rows))
        shared = self.runtime.views(state, self.runtime.manifest.state)
        return [
            *shared,
            *self.runtime.frozen,
            *(np.stack(column) for column in zip(*rows, strict=True)),
        ]

    def _row(self, state: Array, member: Member) -> list[Array]:
        leaves = [np.asarray(leaf) for leaf in tree.flatten(member.data)[0]]
        runtime = self.runtime
        kept = runtime.client_state(state) if member.kept is None else member.kept
        return [*leaves, member.key, *runtime.views(kept, runtime.manifest.client_state)]

    def updates(self, state: Array, members: Sequence[Member]) -> list[Update]:
        """Each device's local training, from one state; in as many calls as it takes."""
        out: list[Update] = []
        for start in range(0, len(members), self.size):
            out += self._some(state, members[start : start + self.size])
        return out

    def _some(self, state: Array, members: Sequence[Member]) -> list[Update]:
        results = self.program(*self.arguments(state, members))
        count = len(members)
        columns = [
            found[:count] if flag else np.broadcast_to(found, (count, *found.shape))
            for found, flag in zip(results, self._made, strict=True)
        ]
        vectors, losses, finite, *kept = columns
        return [
            Update(
                # Copies: else one device's vector would hold the whole cohort's in memory.
                vectors[k].copy(),
                float(losses[k]),
                bool(finite[k]),
                self._flat([leaf[k] for leaf in kept]),
            )
            for k in range(count)
        ]

    def _flat(self, leaves: Sequence[Array]) -> Array:
        parts = [np.asarray(leaf, np.float32).reshape(-1) for leaf in leaves]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)


#: How long the first of a cohort waits for others to come, after the last that came.
GATHER_S = 0.002


class _Call:
    """One device's update, asked for and then there."""

    __slots__ = ("done", "error", "member", "state", "update")

    def __init__(self, state: Array, member: Member) -> None:
        self.state, self.member = state, member
        self.update: Update | None = None
        self.error: BaseException | None = None
        self.done = False


class GatheringRuntime(Runtime):
    """Runs client updates of many threads as cohorts, other programs on another back end."""

    def __init__(
        self,
        bundle: Bundle,
        backend: Backend,
        size: int = SIZE_DEFAULT,
        rest: Backend = "native",
    ) -> None:
        """backend: of the cohorts; rest: back end of the other programs."""
        others = [name for name in bundle.programs if name != "client_update"]
        super().__init__(bundle, rest, programs=others)
        self._cohort = Cohort(self, size, backend)
        self._turn = threading.Lock()
        self._came = threading.Condition()
        self._waiting: list[_Call] = []

    def client_update(
        self, state: Array, data: Any, key: Array, kept: Array | None = None
    ) -> Update:
        """As `Runtime.client_update`; returns when the cohort that it is in has run."""
        call = _Call(state, Member(data, key, kept))
        with self._came:
            self._waiting.append(call)
            self._came.notify()
        with self._turn:
            if not call.done:
                self._lead(call)
        if call.error is not None:
            raise call.error
        assert call.update is not None
        return call.update

    def _lead(self, own: _Call) -> None:
        with self._came:
            while len(self._waiting) < self._cohort.size and self._came.wait(GATHER_S):
                continue
            fitting = [c for c in self._waiting if c.state is own.state and c is not own]
            group = [own, *fitting[: self._cohort.size - 1]]
            self._waiting = [c for c in self._waiting if c not in group]
        try:
            found = self._cohort.updates(own.state, [c.member for c in group])
            for call, update in zip(group, found, strict=True):
                call.update = update
        except BaseException as error:
            for call in group:
                call.error = error
            raise
        finally:
            for call in group:
                call.done = True


def gathers(backend: Backend) -> bool:
    """Whether a simulation does better with cohorts on this back end: not on a CPU."""
    return backend.startswith(TORCH) and not backend.startswith(f"{TORCH}cpu")


def runtime_of(bundle: Bundle, backend: Backend) -> Runtime:
    """What a simulation runs a bundle with."""
    return GatheringRuntime(bundle, backend) if gathers(backend) else Runtime(bundle, backend)
