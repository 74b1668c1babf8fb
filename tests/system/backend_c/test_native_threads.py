"""The tests of `test_native_threads` that need a process, a socket or a clock."""

from __future__ import annotations

import os
from typing import Any

import delian as dl
import numpy as np
import pytest


def step(model: Any, x: Any, y: Any) -> Any:
    def loss(model: Any) -> Any:
        hidden = np.tanh(x @ model[0] + model[1])
        logits = hidden @ model[2]
        top = np.max(logits, axis=-1, keepdims=True)
        total = np.sum(np.exp(logits - top), axis=-1, keepdims=True)
        return np.mean(np.log(total) - (logits - top) * y)

    value, gradient = dl.value_and_grad(loss)(model)
    return dl.tree.map(lambda w, g: w - np.float32(0.1) * g, model, gradient), value


def large_step() -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(3)
    shapes = ((256, 300), (300,), (300, 40))
    model = tuple(np.asarray(rng.standard_normal(s) * 0.1, np.float32) for s in shapes)
    x = np.asarray(rng.standard_normal((48, 256)), np.float32)
    y = np.asarray(rng.random((48, 40)), np.float32)
    return step, [model, x, y]


def flat(results: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in dl.tree.leaves(results)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    f, args = large_step()
    compiled = dl.compile(f, threads=3)
    expected = flat(compiled(*args))
    child = os.fork()
    if child == 0:  # no assertion may leave the child
        right = 1
        try:
            right = 0 if all(flat(compiled(*args)) == expected for _ in range(5)) else 2
        finally:
            os._exit(right)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert flat(compiled(*args)) == expected
