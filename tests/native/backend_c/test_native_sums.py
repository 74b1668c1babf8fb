"""Sums natively that go through memory in another order than its own.

GCC 12 adds the last number of each vector of such a sum twice (DL_IN_ORDER).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.backends.native import emit
from delian.core.compiler.passes.pipeline import lowered

#: Eight pairs: powers of two, so that a sum shows which numbers it has.
PAIRS = 2.0 ** np.arange(16).reshape(8, 2)


def by_turns(x: Any) -> Any:
    total = 0.0
    for row in x:
        total = total + row[1]
        total = total + row[0]
    return total


def nested(x: Any) -> Any:
    total = 0.0
    for i in range(len(x)):
        for j in (1, 0):
            total += x[i, j]
    return total


def where_positive(x: Any) -> Any:
    total = 0.0
    for row in x:
        if row[1] > 3:
            total += row[1]
        if row[0] > 2:
            total += row[0]
    return total


def in_an_array(x: Any) -> Any:
    total = np.zeros(1, x.dtype)
    for row in x:
        total[0] += row[1]
        total[0] += row[0]
    return total


def filled(x: Any) -> Any:
    x[...] = np.flip(x, 1).sum()
    return x


def mixed(x: Any) -> Any:
    turned = x.reshape(2, 4, 2)[:, :, ::-1]
    return turned.sum(), turned.T.sum(), np.linalg.norm(turned), np.std(turned), turned.sum((1, 2))


def products(x: Any) -> Any:
    return np.sum(x[:, ::-1] * x), np.sum(x[:, ::-1] * x[0, ::-1]), np.einsum("ij->", x[::-1, ::-1])


PROGRAMS = [by_turns, nested, where_positive, in_an_array, filled, mixed, products]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_each_number_is_added_once(program: Callable[..., Any], dtype: Any) -> None:
    x = PAIRS.astype(dtype)
    got, want = dl.compile(program, backend="native")(x.copy()), program(x.copy())
    for mine, numpys in zip(*((v if type(v) is tuple else (v,)) for v in (got, want)), strict=True):
        np.testing.assert_allclose(mine, numpys, rtol=1e-6)


def test_a_sum_in_the_order_of_memory_is_left_to_the_compiler() -> None:
    """Only sums that need it are held back: what holds them keeps loops from being vectors."""

    def holds(program: Callable[..., Any]) -> bool:
        function = dl.compile(program, backend="reference").trace(PAIRS).function
        text = emit.emit({"entry": lowered(function)})[0]
        return re.search(r"DL_IN_ORDER\(\w+\);", text) is not None

    def dotted(x: Any) -> Any:
        total = 0.0
        for row in x:
            total += row[0] * row[1]
        return total

    for plain in (dotted, lambda x: x[:, :1].sum(), lambda x: (x * 2).sum()):
        assert not holds(plain)
    assert holds(lambda x: x[:, ::-1].sum())
    assert holds(by_turns)
