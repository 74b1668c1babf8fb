"""What the language costs, counted in operations, which no machine's speed changes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.ir import count_ops

#: A derivative has at most so many times the operations of what it is a derivative of.
GROWTH_MAX = 4


def unknown_loop(x: Any) -> Any:
    while x < 30.0:
        if x > 3.0:
            x = x * np.exp(0.1 * x)
        else:
            x = x * x + 0.5
    return np.sin(x)


def dense_layers(x: Any) -> Any:
    for _ in range(3):
        x = np.tanh(np.outer(x, x) @ x)
    return np.sum(x)


@pytest.mark.parametrize(
    ("f", "x", "orders"), [(unknown_loop, np.float64(1.1), 4), (dense_layers, np.ones(3), 2)]
)
def test_each_derivative_is_at_most_four_times_as_large(f: Any, x: Any, orders: int) -> None:
    sizes = []
    for order in range(orders + 1):
        sizes.append(count_ops(dl.trace(f, x).function.body))
        f = dl.grad(f) if order == 0 or x.shape == () else dl.grad(summed(f))
    assert all(after <= GROWTH_MAX * before for before, after in pairwise(sizes)), sizes


def summed(f: Any) -> Any:
    return lambda x: np.sum(f(x))


@pytest.mark.parametrize("transform", [lambda f: f, dl.grad, lambda f: dl.grad(dl.grad(f))])
def test_a_loop_is_as_large_whatever_its_trips(transform: Any) -> None:
    def looped(trips: int) -> int:
        def f(x: Any) -> Any:
            for i in range(trips):
                x = np.where(x > 2.0, x / 2.0, np.sin(x) + i * 0.1)
            return x

        return count_ops(dl.trace(transform(f), np.float64(0.5)).function.body)

    assert looped(10) == looped(1_000_000)


def test_a_choice_costs_one_switch_however_often_it_is_made() -> None:
    functions = tuple(lambda v, k=k: v * k for k in range(10))

    def f(x: Any, codes: Any) -> Any:
        for c in codes:
            x = functions[c](x)
        return x

    ops = list(dl.trace(f, np.ones(3), np.zeros(100, np.int64)).function.body.walk())
    assert [op.name for op in ops if op.regions] == ["for", "switch"]
