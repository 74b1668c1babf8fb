"""Python's `sum`: plain to 3.11, compensated for floats from 3.12 on."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.frontend.vocabulary import python_sums


def compensated(values: Iterable[Any], start: Any = 0) -> Any:
    """CPython 3.12's `sum` of numbers, written out."""
    values, total = iter(values), start
    while type(total) in (int, bool):
        try:
            total = total + next(values)
        except StopIteration:
            return total
    if type(total) is not float:
        return sum(values, total)
    lost = 0.0
    for value in values:
        if type(value) is float:
            after = total + value
            if abs(total) >= abs(value):
                lost += (total - after) + value
            else:
                lost += (value - after) + total
            total = after
        elif type(value) in (int, bool):
            total += float(value)
        else:
            rest = total + lost if lost and math.isfinite(lost) else total
            total = rest + value
            for later in values:
                total = total + later
            return total
    return total + lost if lost and math.isfinite(lost) else total


def several(x, k):
    return (
        *(sum([x] * 10), sum([0.1] * 10), sum([x, 1e100, 1.0, -1e100]), sum([])),
        *(sum([1, x, 1e100, k, x, -1e100]), sum((x for _ in range(10)), 0.5), sum([k, k, True])),
        *(sum([np.float64(x)] * 10), sum([x, np.float64(1e16), 1.0, 1.0, -1e16])),
        *(sum([x, -x, math.inf, 1.0]), sum([-0.0, -0.0], -0.0), sum([k, 2], 1.5)),
        *(sum([1e16, 1.0, 1.0, k, -1e16]), sum(np.array([x, 1e16, 1.0, -1e16]))),
    )


X = [(0.1, 3), (-2.7, 0), (1e-30, -4), (3e15, 2**40)]


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("new", [False, True])
def test_a_sum_is_that_of_the_python_that_runs(new, backend, monkeypatch):
    """Under the other rule, it is what the other Pythons give."""
    monkeypatch.setattr(python_sums, "COMPENSATED", new)
    compiled = dl.compile(several, backend=backend)
    same = new is (sys.version_info >= (3, 12))
    for x, k in X:
        wanted = several(x, k) if same else _by(compensated if new else _plain, x, k)
        for found, want in zip(compiled(x, k), wanted, strict=True):
            assert type(found) is type(want)
            np.testing.assert_array_equal(found, want)
            assert np.signbit(found) == np.signbit(want)


def _by(rule: Any, x: float, k: int) -> Any:
    scope = {"sum": rule, "np": np, "math": math}
    return type(several)(several.__code__, scope)(x, k)


def _plain(values: Iterable[Any], start: Any = 0) -> Any:
    for value in values:
        start = start + value
    return start


def test_the_model_of_the_new_sum_is_the_new_sum():
    """Where this Python has it."""
    if sys.version_info < (3, 12):
        assert compensated([0.1] * 10) == 1.0 != sum([0.1] * 10)
        return
    for x, k in X:
        assert repr(_by(compensated, x, k)) == repr(several(x, k))


def test_slopes_of_a_compensated_sum(monkeypatch):
    monkeypatch.setattr(python_sums, "COMPENSATED", True)
    slope = dl.compile(dl.grad(lambda x: sum([x * float(i) for i in range(5)], 0.5)))(0.3)
    assert slope == 10.0
