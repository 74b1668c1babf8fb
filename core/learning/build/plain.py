"""A bundle's programs as the plain Python that they were traced from, for `dl.debug()`.

Models and algorithms may print, have breakpoints, and fail with Python's own tracebacks. The
results are those of the programs, up to rounding; they take many times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...compiler import tree
from ...compiler.ir import Array, Function, TensorType
from ..aggregate.chains import Chain
from ..algorithm import Algorithm
from ..bundle import WINDOW_PROGRAMS, Bundle
from ..leaf_roles import Roles
from ..runtime import Runtime
from ..task import Task
from . import bundle_builder
from .partial_training import divided


class PlainProgram:
    """A function of trees, called as its program is: on the leaves of its arguments."""

    def __init__(
        self, function: Function, f: Callable[..., Any], arguments: tree.Structure
    ) -> None:
        """arguments: of the tuple of them."""
        self.function, self._f, self._arguments = function, f, arguments

    def __call__(self, *args: Array, out: Sequence[Array] | None = None) -> tuple[Array, ...]:
        leaves = tree.leaves(self._f(*tree.unflatten(self._arguments, args)))
        results = []
        for leaf, kind in zip(leaves, self.function.result_types, strict=True):
            assert isinstance(kind, TensorType)
            results.append(np.array(leaf, kind.dtype.numpy).reshape(kind.shape))
        if out is None:
            return tuple(results)
        for buffer, result in zip(out, results, strict=True):
            buffer[...] = result
        return tuple(out)


class PlainRuntime(Runtime):
    """Runs a bundle by its task and algorithm."""

    def __init__(
        self,
        bundle: Bundle,
        task: Task,
        algorithm: Algorithm,
        data: Any,
        chain: Chain,
        roles: Roles | None = None,
    ) -> None:
        """What the bundle was built from (`bundle_builder.build`); data: one device's."""
        super().__init__(bundle, "reference", programs=())
        self.programs = dict(_plain(bundle, task, algorithm, data, chain, roles or Roles()))


def _plain(
    bundle: Bundle, task: Task, algorithm: Algorithm, data: Any, chain: Chain, roles: Roles
) -> Mapping[str, PlainProgram]:
    manifest, programs = bundle.manifest, bundle.programs
    task, algorithm = bundle_builder.settled(task, algorithm, chain)
    plan = manifest.ring
    windows = bool(manifest.carry)
    division = divided(task, algorithm, roles, 0)
    functions = bundle_builder.functions(
        division, algorithm, chain, plan, manifest.weight_max, windows
    )

    def like(structure: tree.Structure) -> Any:
        return tree.unflatten(structure, range(structure.leaves))

    # The trees are those that the first call of each gives; what is in them does not matter.
    key, last = np.zeros(2, np.uint32), [0] * len(division.frozen)
    made = functions["init"](key)
    state, memory = (like(tree.flatten(part)[1]) for part in made)
    frozen = list(division.arrays)
    first = functions["client_state"](made[0], frozen)
    kept = like(tree.flatten(first)[1])
    personal = [0] * len(division.split.state)
    x, model = 0, algorithm.model(division.opened(state, personal))
    data = like(tree.flatten(data)[1])
    arguments: dict[str, tuple[Any, ...]] = {
        "init": (key,),
        "client_state": (state, last),
        "client_update": (state, last, data, 0, kept),
        "server_update": (
            state,
            memory,
            state,
            *([0] if bundle_builder.counts_reports(algorithm) else []),
        ),
        "evaluate": (model, last, data, 0),
        "personalise": (state, last, data, 0, kept),
        "infer": (model, last, x),
    }
    if windows:
        begin, chunk, end = WINDOW_PROGRAMS
        carry = like(tree.flatten(functions[begin](made[0], frozen, first))[1])
        arguments[begin] = (state, last, kept)
        arguments[chunk] = (state, last, carry, data, 0, kept, 0, 0)
        arguments[end] = (state, last, carry, 0, kept)
    return {
        name: PlainProgram(program, functions[name], tree.flatten(arguments[name])[1])
        for name, program in programs.items()
    }
