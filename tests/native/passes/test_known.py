"""Checks that branches and loops make needless go, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from delian.core.compiler import tree
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import Function, TensorType
from delian.core.compiler.passes.lowering.known_numbers import fold_known_ranges
from delian.core.compiler.passes.simplify import simplify

N = 12
X = np.random.default_rng(0).uniform(-1.0, 1.0, N)


def sorted_in_place(x: Any, n: Any) -> Any:
    x = x.copy()
    for i in range(1, N):
        key = x[i]
        j = i - 1
        while j >= 0 and x[j] > key:
            x[j + 1] = x[j]
            j -= 1
        x[j + 1] = key
    return x


def counted(x: Any, n: Any) -> Any:
    k = 0
    out = np.zeros(N)
    for i in range(N):
        if x[i] > 0:
            out[k] = x[i]
            k += 1
    return out, k


def in_a_branch(x: Any, n: Any) -> Any:
    out = np.zeros(N)
    places = np.argsort(x) - 3
    for i in range(N):
        k = places[i]
        if k >= 0 and k < N:
            out[k] += x[i]
    return out


def up_to_a_bound(x: Any, n: Any) -> Any:
    i, total = 0, 0.0
    while i < N:
        total += x[i]
        i += 3
    return total, i


NEEDLESS = [sorted_in_place, counted, up_to_a_bound]


def may_leave_at_the_end(x: Any, n: Any) -> Any:
    total = 0.0
    for i in range(n):
        total += x[i]
    return total


def may_leave_at_the_start(x: Any, n: Any) -> Any:
    x = x.copy()
    j = N - 1
    while x[j] > -2.0 and j > -n:
        x[j] = 3.0
        j -= 1
    return x


def one_past_the_branch(x: Any, n: Any) -> Any:
    total = 0.0
    for i in range(n):
        if i < N:
            total += x[i + 1]
    return total


def in_the_other_branch(x: Any, n: Any) -> Any:
    total = 0.0
    for i in range(n):
        if i < N - 2:
            total += 1.0
        else:
            total += x[i + 1]
    return total


def moved_by_large_steps(x: Any, n: Any) -> Any:
    """The step wraps around before the bound would stop it."""
    i = 1
    for _ in range(n):
        i = i * 3
    total = 0.0
    while i < N and i > 0:
        total += x[i]
        i += n + 1
    return total


NEEDED = [
    may_leave_at_the_end,
    may_leave_at_the_start,
    one_past_the_branch,
    in_the_other_branch,
]


def programs(f: Callable[..., Any], raises: bool = True) -> tuple[Function, Function]:
    function = trace(f, TensorType.of(X), TensorType.of(np.array(3)), raises=raises).function
    before = function.with_body(simplify(function.body))
    return before, fold_known_ranges(before)


def raises(function: Function) -> bool:
    """Whether the fault code may be anything but 0."""
    if "fault" not in function.result_names:
        return False
    code = function.body.results[function.result_names.index("fault")]
    made = {r: op for op in function.body.ops for r in op.results}
    return made[code].name != "constant"


@pytest.mark.parametrize("f", NEEDLESS)
def test_checks_go_that_cannot_fail(f: Callable[..., Any]) -> None:
    before, after = programs(f)
    assert raises(before) and not raises(after)


@pytest.mark.parametrize("f", NEEDED)
def test_checks_stay_that_can_fail(f: Callable[..., Any]) -> None:
    assert raises(programs(f)[1])


@pytest.mark.parametrize("f", [*NEEDLESS, *NEEDED, in_a_branch, moved_by_large_steps])
def test_results_are_the_same_bits(f: Callable[..., Any]) -> None:
    before, after = programs(f)
    for n in (0, 3, 15):
        given = [X, np.array(n)]
        want = run_block(before.body, given)
        for got, expected in zip(run_block(after.body, given), want, strict=True):
            np.testing.assert_array_equal(got, expected)
        if not raises(after):
            shown = tree.leaves(f(X, n))
            for got, expected in zip(run_block(after.body, given), shown, strict=False):
                np.testing.assert_allclose(got, expected, 1e-12)
