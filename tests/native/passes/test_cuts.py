"""Loops that change a number which they read in each round are cut there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from delian.core.compiler import tree
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import Function, TensorType
from delian.core.compiler.passes.lowering.element_selects import convert_branches_to_selects
from delian.core.compiler.passes.lowering.loop_registers import promote_elements_to_scalars
from delian.core.compiler.passes.lowering.loop_splits import split_loops
from delian.core.compiler.passes.simplify import simplify

N = 20


def shortest(d: Any) -> Any:
    d = d.copy()
    for k in range(N):
        for i in range(N):
            for j in range(N):
                if d[i, k] + d[k, j] < d[i, j]:
                    d[i, j] = d[i, k] + d[k, j]
    return d


def down_a_column(x: Any) -> Any:
    x = x.copy()
    for k in range(N):
        for j in range(N):
            for i in range(N):
                x[i, j] = x[i, j] * 0.5 + x[k, j] * x[i, k]
    return x


def scaled_by_the_next(x: Any) -> Any:
    x = x.copy()
    for k in range(N - 1):
        for j in range(N):
            x[k, j] = x[k, j] * 0.75 + x[k, k + 1]
    return x


def a_fixed_place(x: Any) -> Any:
    x = x.copy()
    for i in range(N):
        for j in range(N):
            x[i, j] -= x[i, 7] * 0.5
    return x


def bounds_that_may_miss(x: Any) -> Any:
    """The place is before the first round, in the loop or after the last one."""
    x = x.copy()
    for k in range(N):
        for j in range(2, N - 1):
            x[0, j] = x[0, j] * 0.5 + x[0, k]
    return x


def backwards(x: Any) -> Any:
    x = x.copy()
    for k in range(N):
        for j in range(N):
            x[k, N - 1 - j] = x[k, N - 1 - j] * 0.5 + x[k, k]
    return x


def two_arrays(x: Any) -> Any:
    x = x.copy()
    total = 0.0
    y = np.zeros(N)
    for k in range(N):
        for j in range(N):
            total = total + y[k]
            y[j] = y[j] + y[k] * 0.25 + x[k, j]
    return x, y, total


def read_after_the_change(x: Any) -> Any:
    y = np.zeros(N)
    total = 0.0
    for k in range(N):
        for j in range(N):
            y[j] = y[j] + y[k] * 0.25 + x[k, j]
            total = total + y[k]
    return y, total


def outside_the_place(x: Any) -> Any:
    """The loop never comes by the number that it reads."""
    x = x.copy()
    for k in range(N):
        for i in range(k + 1, N):
            for j in range(k + 1, N):
                x[i, j] -= x[i, k] * x[k, j] * 0.1
    return x


def every_second(x: Any) -> Any:
    """Rounds change every other place of the row by its number."""
    flat = x.copy().ravel()
    for k in range(N):
        for j in range(N):
            flat[2 * j] = flat[2 * j] * 0.5 + flat[k]
    return flat


def a_number_that_moves(x: Any) -> Any:
    x = x.copy()
    for i in range(N):
        for j in range(1, N):
            x[i, j] = x[i, j] + x[i, j - 1] * 0.5
    return x


def lowered(f: Callable[..., Any]) -> tuple[Function, Function]:
    function = trace(f, TensorType.of(np.ones((N, N)))).function
    before = promote_elements_to_scalars(
        convert_branches_to_selects(function.with_body(simplify(function.body)))
    )
    return before, split_loops(before)


def loops(function: Function) -> int:
    return sum(op.name == "for" for op in function.body.walk())


CUT = [
    shortest,
    down_a_column,
    scaled_by_the_next,
    a_fixed_place,
    bounds_that_may_miss,
    backwards,
    two_arrays,
]


@pytest.mark.parametrize("f", CUT)
def test_the_inner_loop_is_three(f: Callable[..., Any]) -> None:
    before, after = lowered(f)
    assert loops(after) == loops(before) + 2


def test_a_loop_that_never_changes_the_number_stays_one_and_reads_it_once() -> None:
    before, after = lowered(outside_the_place)
    assert loops(after) == loops(before)
    inner = [op for op in after.body.walk() if op.name == "for"][-1]
    assert sum(op.name == "take" for op in inner.regions[0].ops) == 2


@pytest.mark.parametrize("f", [every_second, a_number_that_moves, read_after_the_change])
def test_loops_whose_round_is_not_known_stay(f: Callable[..., Any]) -> None:
    before, after = lowered(f)
    assert after is before


@pytest.mark.parametrize(
    "f", [*CUT, outside_the_place, every_second, a_number_that_moves, read_after_the_change]
)
def test_results_are_the_same_bits(f: Callable[..., Any]) -> None:
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (N, N))
    want = tree.leaves(f(x))
    for function in lowered(f):
        for got, expected in zip(run_block(function.body, [x]), want, strict=True):
            np.testing.assert_array_equal(got, expected)
