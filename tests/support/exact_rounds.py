"""Rounds of compiled programs with exact means, for algorithms computed by hand next to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
from delian.core.compiler.backends import compile_function
from delian.core.learning import Algorithm
from delian.core.learning.build.partial_training import divided
from delian.core.learning.leaf_roles import Roles


class Federated:
    """Rounds in which all devices take part, of compiled programs, with exact means."""

    def __init__(self, algorithm: Algorithm, task: Any, data: list[Any]) -> None:
        task = algorithm.task(task)
        self.algorithm, self.task, self.data = algorithm, task, data
        self.division = division = divided(task, algorithm, Roles(), 0)
        whole = algorithm.init(division.task, dl.random.key(0))
        self.state = tree_arrays(division.shared(whole))
        self.memory = tree_arrays(division.shared_memory(algorithm.memory(whole)))
        self.frozen = list(division.arrays)

        def first(state: Any, frozen: Any) -> Any:
            opened = division.opened(state, division.first_personal(frozen))
            return division.kept(opened, algorithm.client_state(division.task_of(frozen), opened))

        def client(state: Any, frozen: Any, data: Any, key: Any, kept: Any) -> Any:
            opened, own = division.opened_by(state, kept), division.own(kept)
            result = algorithm.client_update(division.task_of(frozen), opened, data, key, own)
            after = division.kept(algorithm.alone(opened, result.update), result.kept)
            update = division.shared(result.update)
            return result._replace(update=update, kept=after)

        def server(state: Any, memory: Any, mean: Any) -> Any:
            opened = [division.opened_server(part) for part in (state, mean)]
            known = division.opened_memory(memory)
            after, remembered = algorithm.server_update(opened[0], known, opened[1])
            return division.shared(after), division.shared_memory(remembered)

        made = compiled(first, self.state, self.frozen)
        self.kept = [made(self.state, self.frozen) for _ in data]
        key, kept = dl.random.key(0), self.kept[0]
        self.client = compiled(client, self.state, self.frozen, data[0], key, kept)
        self.server = compiled(server, self.state, self.memory, self.state)

    def round(self, number: int) -> list[Any]:
        """One round; the results of its devices. Device d's key is (round, d)."""
        results = []
        for d, data in enumerate(self.data):
            key = key_of(number, d)
            results.append(self.client(self.state, self.frozen, data, key, self.kept[d]))
            self.kept[d] = results[-1].kept
        weights = np.array([float(r.weight) for r in results])
        mean = dl.tree.map(
            lambda *parts: np.asarray(np.average(parts, axis=0, weights=weights), np.float32),
            *(r.update for r in results),
        )
        self.state, self.memory = self.server(self.state, self.memory, mean)
        return results

    def personal(self, d: int) -> Any:
        """A device's own model."""
        division = self.division

        def personal(state: Any, frozen: Any, data: Any, key: Any, kept: Any) -> Any:
            task, opened = division.task_of(frozen), division.opened_by(state, kept)
            return self.algorithm.personalise(task, opened, data, key, division.own(kept))

        given = self.state, self.frozen, self.data[d], dl.random.key(9), self.kept[d]
        return compiled(personal, *given)(*given)


def key_of(number: int, d: int) -> Any:
    return np.array([number, d], np.uint32)


def tree_arrays(tree: Any) -> Any:
    return dl.tree.map(np.asarray, tree)


def compiled(f: Callable[..., Any], *examples: Any) -> Callable[..., Any]:
    traced = dl.trace(f, *examples)
    program = compile_function(traced.function, "reference")

    def run(*arguments: Any) -> Any:
        leaves = [np.asarray(a) for a in dl.tree.leaves(arguments)]
        return dl.tree.unflatten(traced.out_structure, [np.asarray(r) for r in program(*leaves)])

    return run
