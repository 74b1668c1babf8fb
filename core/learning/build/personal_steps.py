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
from ..task import Task


def stepped(task: Task, algorithm: Algorithm, data: Any) -> Function:
    """(state, data, key u32[2], kept, steps i64[]) -> model: `personalise` of this many steps.

    `data` is as in `build`; `kept` is the algorithm's own client state, without that of a chain's
    stages. With zero steps the model may still differ from the shared one: prototypes are of at
    least one batch.

    Raises:
        ProgramError: the algorithm makes no loop of its `personal_steps`.
    """
    task = algorithm.task(task)
    data = tree.map(
        lambda leaf: leaf if isinstance(leaf, TensorType) else TensorType.of(leaf), data
    )

    def init(key: Tensor) -> Any:
        return algorithm.init(task, key)

    def client_state(state: Any) -> Any:
        return algorithm.client_state(task, state)

    def personalise(state: Any, data: Any, key: Tensor, kept: Any, steps: Tensor) -> Any:
        own = replace(algorithm, personal_steps=steps)
        return own.personalise(task, state, data, key, kept)

    key = TensorType.of(random.key(0))
    made = trace(init, key, name="init")
    state = tree.unflatten(made.out_structure, made.function.result_types)
    first = trace(client_state, state, name="client_state")
    kept = tree.unflatten(first.out_structure, first.function.result_types)
    count = TensorType.of(np.array(0, np.int64))
    return trace(personalise, state, data, key, kept, count, name="personalise_steps").function
