"""Personalization with any number of steps, as one program whose last argument is that number.

An algorithm takes `personal_steps` steps to make a model personal. Here that number is a value in
the program, and the length of its loop is not known when it is compiled. So the models after one,
five and ten steps come from the same code and differ in nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...compiler import random, tree
from ...compiler.frontend import trace
from ...compiler.ir import Function, Tensor, TensorType
from ..algorithm import Algorithm
from ..leaf_roles import Roles
from ..task import Task
from .partial_training import divided


def stepped(task: Task, algorithm: Algorithm, data: Any, roles: Roles | None = None) -> Function:
    """(state, frozen, data, key u32[2], kept, steps i64[]) -> model: `personalise` of these steps.

    `data` and `roles` are as in `build`; `kept` is the algorithm's own client state, after the
    personal leaves and without that of a chain's stages. With zero steps the model may still differ
    from the shared one: prototypes are of at least one batch.

    Raises:
        ProgramError: the algorithm makes no loop of its `personal_steps`.
    """
    division = divided(algorithm.task(task), algorithm, roles or Roles(), 0)
    data = tree.map(
        lambda leaf: leaf if isinstance(leaf, TensorType) else TensorType.of(leaf), data
    )

    def init(key: Tensor) -> Any:
        return division.shared(algorithm.init(division.task, key))

    def client_state(state: Any, frozen: Any) -> Any:
        whole = division.opened(state, division.first_personal(frozen))
        return division.kept(whole, algorithm.client_state(division.task_of(frozen), whole))

    def personalise(
        state: Any, frozen: Any, data: Any, key: Tensor, kept: Any, steps: Tensor
    ) -> Any:
        own = replace(algorithm, personal_steps=steps)
        whole, inner = division.opened_by(state, kept), division.own(kept)
        return own.personalise(division.task_of(frozen), whole, data, key, inner)

    key, frozen = TensorType.of(random.key(0)), division.types
    made = trace(init, key, name="init")
    state = tree.unflatten(made.out_structure, made.function.result_types)
    first = trace(client_state, state, frozen, name="client_state")
    kept = tree.unflatten(first.out_structure, first.function.result_types)
    count = TensorType.of(np.array(0, np.int64))
    steps = trace(personalise, state, frozen, data, key, kept, count, name="personalise_steps")
    return steps.function
