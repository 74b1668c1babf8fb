"""Lists that long loops and comprehensions make: loops of the program, and Python's lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.frontend.containers import list_stacks
from delian.core.compiler.frontend.specialise import Specialiser
from delian.core.compiler.ir import count_ops


def rows(n: int, seed: int = 0) -> list[list[float]]:
    made: list[list[float]] = np.random.default_rng(seed).random((n, n)).tolist()
    return made


def product_of_comprehensions(a, b):
    return [
        [sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))]
        for i in range(len(a))
    ]


def product_of_columns(a, b):
    return [
        [sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)]
        for row in a
    ]


def product_of_known_columns(a, b):
    columns = list(zip(*b, strict=True))
    return [
        [sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in a
    ]


def product_of_appended_rows(a, b):
    out = []
    for i in range(len(a)):
        row = []
        for j in range(len(b[0])):
            total = 0.0
            for k in range(len(b)):
                total += a[i][k] * b[k][j]
            row.append(total)
        out.append(row)
    return out


PRODUCTS = [
    product_of_comprehensions,
    product_of_columns,
    product_of_known_columns,
    product_of_appended_rows,
]


def size(f: Callable[..., Any], *given: Any) -> int:
    return count_ops(dl.compile(f)._trace(given, True, True).function.body)


def same(got: Any, want: Any) -> bool:
    """Whether two values are of the same classes and close."""
    if type(got) is not type(want):
        return False
    if isinstance(want, list | tuple):
        return len(got) == len(want) and all(map(same, got, want))
    return bool(np.allclose(got, want))


def agrees(f: Callable[..., Any], *makes: Callable[[], Any], backend: str = "reference") -> bool:
    """Whether results and arguments are as in Python."""
    mine, theirs = [m() for m in makes], [m() for m in makes]
    got, want = dl.compile(f, backend=backend)(*mine), f(*theirs)
    return same(got, want) and same(mine, theirs)


@pytest.mark.parametrize("f", PRODUCTS)
def test_products_of_lists_of_60_by_60_are_loops(f):
    assert size(f, rows(60), rows(60, 1)) < 300


@pytest.mark.parametrize("f", PRODUCTS)
def test_products_of_lists_are_those_of_python(f):
    assert agrees(f, lambda: rows(24), lambda: rows(24, 1))


def test_a_product_is_compiled_natively():
    made = (lambda: rows(24), lambda: rows(24, 1))
    assert agrees(product_of_comprehensions, *made, backend="native")


def long(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function in a program that is unrolled too far otherwise."""

    def run(a: Any, b: Any) -> Any:
        waste = product_of_appended_rows(a, b)
        return f(a, b), waste[0][0]

    return run


def test_rows_of_a_comprehension_are_lists_of_their_own():
    def f(a, b):
        made = [[2 * x for x in row] for row in a]
        for i in range(len(made)):
            made[i][0] += a[i][1]
        return made

    assert agrees(long(f), lambda: rows(24), lambda: rows(24, 1))


def test_rows_that_others_hold_stay_those():
    def f(a, b):
        held = [a[k] for k in range(len(a))]
        held[0][0] = 9.0
        same = [held[1] for _ in a]
        same[3][1] = 8.0
        return held, same[0]

    assert agrees(long(f), lambda: rows(24), lambda: rows(24, 1))


def test_a_row_that_changes_after_it_was_appended_changes_in_the_list():
    def f(a, b):
        out = []
        for row in a:
            made = [x * 2 for x in row]
            out.append(made)
            made[0] = 5.0
        return out

    assert agrees(long(f), lambda: rows(24), lambda: rows(24, 1))


def test_a_row_that_a_name_keeps_is_the_one_in_the_list():
    def f(a, b):
        out, kept = [], [0.0]
        for row in a:
            made = [x * 2 for x in row]
            out.append(made)
            kept = made
        kept[0] = 7.0
        return out

    assert agrees(long(f), lambda: rows(24), lambda: rows(24, 1))


def test_a_row_that_another_list_holds_is_the_one_in_the_list():
    def f(a, b):
        out, others = [], []
        for row in a:
            made = [x * 2 for x in row]
            out.append(made)
            others.append([made, 1.0])
        others[2][0][1] = 7.0
        return out

    assert agrees(long(f), lambda: rows(24), lambda: rows(24, 1))


def test_a_list_that_the_body_reads_grows_in_each_round():
    def f(a, b):
        out, also = [], {}
        also["out"] = out

        def count(x):
            return len(out) + x

        for row in a:
            out.append(row[0] + len(also["out"]) + count(1.0))
        return out

    assert agrees(long(f), lambda: rows(24), lambda: rows(24, 1))


def test_a_list_has_the_items_of_several_loops():
    def f(a, b):
        out = [1.0]
        for row in a:
            out.append(row[0])
        for row in b:
            if row[0] > 0.5:
                out[0] += 1.0
            out.append(row[1])
        out[-1] *= 2.0
        return out, len(out)

    assert agrees(long(f), lambda: rows(24), lambda: rows(24, 1))


def test_items_of_several_types_are_as_in_python():
    def f(a, b):
        out = []
        for i, row in enumerate(a):
            out.append(i if i < 3 else row[0])
        return out, [i if i < 3 else row[0] for i, row in enumerate(b)]

    assert agrees(long(f), lambda: rows(24), lambda: rows(24, 1))


def test_reductions_of_lists_are_loops():
    def f(a, b):
        most = [max(row) for row in a]
        small = [min(x * x for x in row) for row in b]
        found = [any(x > 0.99 for x in row) for row in a]
        return most, small, found, sum(sum(row) for row in a)

    assert agrees(long(f), lambda: rows(24), lambda: rows(24, 1))


def test_the_slope_of_a_product_is_that_of_arrays():
    def f(a, b):
        return sum(sum(row) for row in product_of_comprehensions(a, b))

    a, b = rows(24), rows(24, 1)
    got = dl.grad(f)(a, b)
    want = np.broadcast_to(np.sum(b, axis=1), (24, 24))
    assert np.allclose(got, want)


def test_lists_of_known_numbers_stay_known():
    def f(a, b):
        places = [(7 * i) % len(a) for i in range(len(a))]
        counts = []
        for i in range(len(a)):
            counts.append(i * i)
        total = a[places[1]][0] if places[2] == 14 else 0.0
        return np.zeros(counts[3]) + total, {places[1]: total}

    want = f(rows(24), rows(24, 1))
    got, _ = dl.compile(long(f), backend="reference")(rows(24), rows(24, 1))
    assert np.array_equal(got[0], want[0])
    assert got[1] == want[1]


def test_ints_of_more_than_64_bits_are_not_held_as_an_array():
    assert list_stacks.whole(Specialiser(), [[1, 2], [3, 2**63]]) is None
    assert list_stacks.whole(Specialiser(), [[1, 2], [3, 2**63 - 1]]) is not None
