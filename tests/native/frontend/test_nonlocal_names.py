"""Names that functions within a function write: as in Python, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

X = np.array([1.0, 2.0, 3.0])


def added_up(x):
    total = 0.0

    def add(v):
        nonlocal total
        total += v

    for k in range(3):
        add(x[k])
    return total


def counted_in_a_branch(x):
    n = 0

    def step():
        nonlocal n
        n += 1
        return n

    for k in range(20):
        if x[k % 3] > 1:
            step()
    return n, step()


def none_at_first(x):
    best = None

    def see(v):
        nonlocal best
        best = v if best is None else max(best, v)

    for k in range(3):
        see(x[k])
    return best


def set_by_the_inner_function_alone(x):
    def put(v):
        nonlocal y
        y = v

    y = x
    shown = lambda y=y: y * 2  # noqa: E731
    put(x * 2)
    return y, shown(), (lambda: y + 1)()


def two_levels(x):
    a = 1

    def middle():
        b = 2

        def low():
            nonlocal a, b
            a += b
            b += 1

        low()
        low()
        return b

    return middle(), a, x


def a_cell_for_each_call(x):
    def counter():
        c = 0

        def step():
            nonlocal c
            c += 1
            return c

        return step

    p, q = counter(), counter()
    return p(), p(), q(), x


def a_parameter(x):
    def grow():
        nonlocal x
        x = x + 1

    grow()
    grow()
    return x


def an_array_in_place(x):
    s = np.zeros(3)

    def add(v):
        nonlocal s
        before = s
        s += v
        return before.sum()  # The same array.

    return add(x), s


def in_a_running_while(x):
    i, total = 0, 0.0

    def following():
        nonlocal i
        i += 1
        return x[i - 1]

    while total < 3:
        total = total + following()
    return i, total


def a_target_of_a_loop(x):
    for i in range(3):

        def more():
            nonlocal i
            i += 10

        more()
    return i * x


def in_a_recursion(x):
    total = 0.0

    def walk(k):
        nonlocal total
        if k < 3:
            total += x[k]
            walk(k + 1)

    walk(0)
    return total


def in_a_generator(x):
    total = 0.0

    def gen():
        nonlocal total
        for v in x:
            total += v
            yield v

    return list(gen()), total


def of_one_name_in_two_functions(x):
    t = 1

    def other(v):
        t = 5  # Its own.
        return t + v

    def same(v):
        nonlocal t
        t = t + v

    same(2)
    return other(x), t


EQUAL = [
    *(added_up, counted_in_a_branch, none_at_first, set_by_the_inner_function_alone, two_levels),
    *(a_cell_for_each_call, a_parameter, an_array_in_place, in_a_running_while),
    *(a_target_of_a_loop, in_a_recursion, in_a_generator, of_one_name_in_two_functions),
]


@pytest.mark.parametrize("f", EQUAL, ids=lambda f: f.__name__)
def test_it_is_as_in_python(f: Callable[..., Any]) -> None:
    for backend in ("reference", "native"):
        np.testing.assert_equal(dl.compile(f, backend=backend)(X.copy()), f(X.copy()))


def test_its_derivative() -> None:
    def f(x):
        t = x[0]

        def square():
            nonlocal t
            t = t * t

        square()
        square()
        return t

    np.testing.assert_allclose(dl.grad(f)(2 * X), [32.0, 0.0, 0.0])


def read_before_it_is_set(x):
    def g():
        nonlocal z
        z = z + 1

    g()
    z = 1
    return z * x


def a_condition_before_it_is_set(x):
    def g():
        nonlocal z
        return x if z else 2 * x

    g()
    z = 1
    return z * x


def deleted(x):
    z = 1

    def g():
        nonlocal z
        z = 2

    g()
    del z
    return x


def a_loop_over_a_generator_that_writes(x):
    total = 0.0

    def gen():
        nonlocal total
        for v in x:
            total += v
            yield v

    for v in gen():
        total = total * v
    return total


def made() -> Any:
    n = 0

    def of_a_function_around_the_compiled_one(x):
        nonlocal n
        n += 1
        return x * n

    return of_a_function_around_the_compiled_one


REFUSED = [
    *(read_before_it_is_set, a_condition_before_it_is_set, deleted),
    *(a_loop_over_a_generator_that_writes, made()),
]


@pytest.mark.parametrize("f", REFUSED, ids=lambda f: f.__name__)
def test_it_is_refused(f: Callable[..., Any]) -> None:
    with pytest.raises((ProgramError, UnboundLocalError)):
        dl.compile(f, backend="reference")(X.copy())
