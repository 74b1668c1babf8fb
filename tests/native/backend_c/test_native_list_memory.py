"""Lists take memory of the arena where loops say how much, and of the system after that."""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
from delian.core.compiler.backends.native.list_memory import LENT_BYTES_MAX


def arena_bytes(run: Any) -> int:
    found: int = next(iter(run._entries.values())).run.report.arena_bytes
    return found


def test_lists_of_known_rounds_lie_in_the_arena() -> None:
    def loss(x: Any) -> Any:
        y = x.copy()
        for i in range(40):
            for j in range(40):
                if y[j] > 0.5:
                    for k in range(j, 40):
                        y[k] = np.sin(y[j] + y[k] * i)
        return np.sum(y)

    x = np.linspace(0.1, 0.9, 40)
    run = dl.compile(dl.grad(loss))
    first = run(x)
    assert arena_bytes(run) > 40 * 40 * 16
    np.testing.assert_array_equal(run(x), first)
    np.testing.assert_allclose(first, dl.compile(dl.jacfwd(loss))(x), rtol=1e-9, atol=1e-9)


def test_longer_lists_go_on_in_memory_of_the_system() -> None:
    rounds = 9_000_000  # 72 MB of numbers, past what becomes a tensor and past what is lent

    def loss(x: Any) -> Any:
        for _ in range(rounds):
            x = x + 1e-8 * x * x
        return x

    run = dl.compile(dl.grad(loss))
    got = run(0.5)
    assert LENT_BYTES_MAX <= arena_bytes(run) < 2 * LENT_BYTES_MAX
    end = 0.5 / (1 - 0.5 * 1e-8 * rounds)  # of x' = 1e-8 x * x
    np.testing.assert_allclose(got, (end / 0.5) ** 2, rtol=1e-6)
