"""Loops over lists of numbers stay loops in programs that would be unrolled too far."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler.frontend import trace, tracing
from delian.core.compiler.frontend.containers import list_packing
from delian.core.compiler.frontend.flow import iteration, unroll_limits
from delian.core.compiler.ir import count_ops
from support.frontend_programs import list_programs as written


def rows(n: int, m: int, seed: int = 0) -> list[list[float]]:
    return np.random.default_rng(seed).random((n, m)).tolist()  # type: ignore[no-any-return]


def squares(rows):
    total = 0.0
    for row in rows:
        for x in row:
            total = total + x * x
    return total


def product(a, b):
    n = len(a)
    c = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            for k in range(n):
                c[i][j] += a[i][k] * b[k][j]
    return c


def same(got: Any, want: Any) -> bool:
    if type(got) is not type(want):
        return False
    if isinstance(want, list | tuple):
        return len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, dict):
        return all(same(got[k], v) for k, v in want.items())
    return bool(np.allclose(got, want, equal_nan=True))


def compiled(f: Callable[..., Any], *args: Any) -> Any:
    return dl.compile(f, backend="reference")(*args)


def test_nested_loops_over_lists_of_100_by_100_are_loops():
    a = rows(100, 100)
    traced = dl.compile(squares)._trace((a,), True, True)
    assert count_ops(traced.function.body) < 50
    assert same(compiled(squares, a), squares(a))


@pytest.mark.parametrize("kind", [list, np.array])
def test_a_product_of_lists_of_60_by_60_is_a_loop(kind):
    a, b = rows(60, 60), rows(60, 60, 1)
    given = (a, b) if kind is list else (np.array(a), np.array(b))
    traced = dl.compile(product)._trace(given, True, True)
    assert count_ops(traced.function.body) < 100
    assert traced.function.param_names == ("a", "b")


def test_a_product_of_lists_is_that_of_python():
    a, b = rows(20, 20), rows(20, 20, 1)
    got = compiled(product, a, b)
    assert same(got, product(a, b))
    assert type(got) is list and type(got[0]) is list and type(got[0][0]) is float


def test_small_programs_are_unrolled_as_before():
    traced = dl.compile(product)._trace((rows(4, 4), rows(4, 4, 1)), True, True)
    assert len(traced.function.param_names) == 32
    assert all(not op.regions for op in traced.function.body.ops)


def test_a_program_without_a_caller_in_python_takes_number_by_number():
    traced = trace(squares, rows(40, 60))
    assert len(traced.function.param_names) == 2400
    assert any(op.regions for op in traced.function.body.ops)


def test_a_gradient_of_lists(monkeypatch):
    forced(monkeypatch)
    a = np.array(rows(3, 4))

    def loss(a):
        c = [list(row) for row in a]
        total = 0.0
        for i in range(3):
            for j in range(4):
                c[i][j] = c[i][j] * c[i][j - 1]
                total = total + c[i][j]
        return total

    got, step = dl.compile(dl.grad(loss), backend="reference")(a), 1e-6
    for place in np.ndindex(3, 4):
        more, less = a.copy(), a.copy()
        more[place] += step
        less[place] -= step
        slope = (loss(more) - loss(less)) / (2 * step)
        assert float(got[place]) == pytest.approx(float(slope), rel=1e-5, abs=1e-6)


def test_integers_stay_integers():
    def f(table, n):
        count = [0] * 10
        for row in table:
            for v in row:
                count[v % n] += 1
        return count

    table = [[(i * j) % 17 for j in range(80)] for i in range(80)]
    assert same(compiled(f, table, 7), f(table, 7))


def test_an_index_out_of_range_is_an_error_of_pythons(monkeypatch):
    forced(monkeypatch)

    def read(a, n):
        t = 0.0
        for i in range(n):
            t = t + a[i][i + 1]
        return t

    def store(a, n):
        for i in range(n):
            a[i][0] = 1.0
        return a

    def stored(a, n):
        return store([list(row) for row in a], n)

    a = rows(5, 5)
    for f, text in ((read, "list index"), (stored, "list index")):
        assert same(compiled(f, a, 4), f(a, 4))
        with pytest.raises(IndexError, match=text):
            f(a, 6)
        with pytest.raises(IndexError, match=text):
            compiled(f, a, 6)


def test_one_list_in_several_places_is_not_taken_for_several_lists():
    def f(x):
        c = [[x, x, x]] * 3
        for i in range(3):
            for j in range(3):
                c[i][j] = c[i][j] + i * j
        return c

    assert same(compiled(f, 2.0), f(2.0))


def test_a_static_result_of_an_unrolled_loop_is_still_known():
    def f(rows):
        size = 0
        for row in rows:
            size = size + len(row)
        total = 0.0
        for row in rows:
            for x in row:
                total = total + x * x
        return np.zeros(size) + total

    a = rows(50, 50)
    assert compiled(f, a).shape == f(a).shape


def too_far(x):
    seen = [x]
    for i in range(400):
        for k in range(400):
            seen.append(x * i + k)
    return seen


def test_what_is_unrolled_too_far_is_refused_with_the_loop(monkeypatch):
    monkeypatch.setattr(unroll_limits, "UNROLLED_MAX", 10_000)
    with pytest.raises(ProgramError) as caught:
        compiled(too_far, 1.0)
    error = caught.value
    assert error.code == "DL122" and "more than 10000 operations" in error.message
    assert "for k in range(400)" in str(error) and error.hint


def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program as one that would be unrolled too far."""
    whole = tracing._traced

    def stacked(f: Any, stacking: bool, size_max: int, *rest: Any) -> Any:
        return whole(f, True, unroll_limits.UNROLLED_MAX, *rest)

    monkeypatch.setattr(tracing, "_traced", stacked)
    monkeypatch.setattr(iteration, "LOOP_MIN", 2)
    monkeypatch.setattr(list_packing, "_SIZE_MIN", 2)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))]
)
def test_random_programs(seed: int, monkeypatch: pytest.MonkeyPatch):
    forced(monkeypatch)
    rng = random.Random(seed)
    kept = 0
    for _ in range(15):
        text, f = written.program(rng)
        want = f(*written.arguments())
        try:
            got = compiled(f, *written.arguments())
        except ProgramError as e:
            assert e.code in ("DL107", "DL108", "DL109", "DL111", "DL118"), f"{text}\n{e}"
            continue
        kept += 1
        assert same(got, want), text
    assert kept > 7
