"""Recursion, choices among functions, and patterns, compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from delian.core.compiler.api import compile as compile_
from delian.core.compiler.api import grad, module
from delian.core.compiler.frontend import trace

F = np.float32
X = np.array([1.0, -2.0, 3.0], F)


class Point(NamedTuple):
    x: Any
    y: Any


def doubling(g: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: 2 * g(*args)


@doubling
def decorated_recursion(x, n):
    if n == 0:
        return x
    return decorated_recursion(x + 1, n - 1)


def recursion_in_recursion(x, n, m):
    """The inner call ends in the function's own; the outer one does not."""
    if n <= 0:
        return x
    if m > 0:
        x = x + recursion_in_recursion(x, 1, 0)
    return recursion_in_recursion(x * 0.5, n - 1, m)


def test_a_call_of_itself_at_the_end_is_a_loop(agree):
    def climb(x, n, by):
        return climb(x=x + by, n=n - 1, by=by) if n > 0 else x

    f = trace(climb, X, np.int64(4), F(2)).function
    assert [op.name for op in f.body.ops if op.regions] == ["while"]
    agree(climb, X, np.int64(300), F(2))

    def sums(x, n):
        total = climb(x, n, 1.0)
        if total[0] > 5:
            return climb(total, 2, -1.0)
        return climb(total, 3, total)

    agree(sums, X, np.int64(3))
    agree(sums, X, np.int64(9))


def test_a_known_recursion_may_change_shapes_under_conditions_of_the_program(agree):
    def halves(x):
        if x.shape[0] == 1:
            return x[0]
        if x[0] > 0:
            return halves(x[: x.shape[0] // 2])
        return halves(x[x.shape[0] // 2 :])

    agree(halves, np.array([1, -2, 3, 4, 0, 1, -1, 5], F))
    agree(halves, np.array([-1, 2, 3, -4, -1, 1, 1, 5], F))


def test_what_stands_between_a_function_and_itself_is_kept(refusal):
    """The decorator doubles at every level, so this is no loop."""
    assert "it calls itself" in refusal(decorated_recursion, X, np.int64(2))


def test_a_function_made_in_a_recursion_keeps_its_own_names(agree, refusal):
    def build(n, k):
        return k(1.0) if n == 0 else build(n - 1, lambda v: v * n)

    agree(lambda x: build(4, lambda v: v * x), X)
    assert "it calls itself" in refusal(lambda n: build(n, lambda v: v), np.int64(3))


def test_a_choice_of_functions_is_a_switch(agree):
    functions = (np.sin, np.cos, lambda v: v * 2, functools.partial(np.maximum, 0.5))

    def f(x, n):
        return functions[n](x)

    ops = [op for op in trace(f, X, np.int64(1)).function.body.ops if op.regions]
    assert [(op.name, len(op.regions)) for op in ops] == [("switch", 4)]
    for n in (*range(4), -1, -4):
        agree(f, X, np.int64(n))


def test_closures_leave_a_branch_with_what_they_hold(agree):
    def f(x, n):
        k = 1.0
        if n > 2:
            y = np.sum(x) * 2

            def g(v):
                return v * y + k

        elif n > 0:
            g = functools.partial(lambda a, v: a - v, np.exp(x))
        else:
            g = np.tanh
        k = 3.0
        h = g if n == 1 else lambda v: g(g(v))
        return h(x), list(map(g, [x, 2 * x]))

    for n in (3, 1, 2, 0):
        agree(f, X, np.int64(n), dtypes=False)


def test_methods_may_be_chosen(agree):
    @module
    class Line:
        slope: Any

        def up(self, x):
            return self.slope * x

        def down(self, x):
            return -self.slope * x

    def f(x, n):
        line = Line(x + 1)
        if n > 0:
            go = Line(x * 2).up
        else:
            go = line.down
        return go(3.0), (x.sum if n > 1 else x.max)()

    for n in (0, 1, 2):
        agree(f, X, np.int64(n))


def test_an_early_return_of_a_function(agree):
    def chosen(x, n):
        if n > 1:
            k = np.sum(x)
            return lambda v: v + k
        if n > 0:
            return lambda v: v * x[0]
        return np.sin

    def f(x, n):
        return chosen(x, n)(x)

    for n in (0, 1, 2):
        agree(f, X, np.int64(n))


def test_a_dict_keeps_its_order(agree):
    def f(params, x):
        for name, value in params.items():
            x = x + value if name < "b" else x * value
        return {name: value * x for name, value in params.items()}

    one = {"b": X, "a": F(2), "c": F(3)}
    two = {"a": F(2), "c": F(3), "b": X}
    agree(f, one, X)
    agree(f, two, X)
    compiled = compile_(f, backend="reference")
    for params in (one, two, one):
        got, want = compiled(params, X), f(params, X)
        assert list(got) == list(want)
        np.testing.assert_allclose(got["b"], want["b"])


def test_match(agree):
    def f(x, shape, n):
        match shape:
            case {"kind": "circle", "r": r}:
                area = 3.0 * r * r
            case Point(x=w, y=h) if isinstance(w, int):
                area = w
            case Point(w, h):
                area = w * h
            case (w, *rest):
                area = w + sum(rest)
            case None | "none":
                area = 0.0
            case float() | int():
                area = 1.0
            case _:
                area = 2.0
        match n:
            case 0:
                return x * area
            case k if k > 5:
                return x - k.astype(F)
        return x

    shapes = [{"kind": "circle", "r": 2.0}, Point(2.0, 3.0), (1.0, 2.0, 3.0), None, "none", "?"]
    for shape in shapes:
        for n in (0, 3, 7):
            agree(lambda x, n, shape=shape: f(x, shape, n), X, np.int64(n), dtypes=False)


def test_a_loop_carries_a_choice_of_functions(agree):
    """A machine whose states are functions that give the next one."""

    def up(x):
        return x + 1.0, (down if x[0] > 4 else up)

    def down(x):
        return x * 0.5, (stop if x[0] < 1 else down)

    def stop(x):
        return x, stop

    def f(x, n):
        step, last = up, np.sin
        for i in range(n):

            def third(v):
                return v - 1.0

            x, step = step(x)
            if i % 3 == 1:
                last = np.cos
            elif i % 3 == 2:
                last = third
        return last(x), step(x)[0]

    for n in (0, 1, 5, 12):
        agree(f, X, np.int64(n))
    ops = [op.name for op in trace(f, X, np.int64(1)).function.body.walk()]
    assert "switch" in ops


def test_a_function_that_a_round_made_does_not_leave_the_loop(refusal):
    def f(x, n):
        for i in range(n):
            if x[0] > i:
                y = x * i
                return lambda v: v + y
        return np.sin

    text = refusal(lambda x, n: f(x, n)(x), X, np.int64(3))
    assert "DL109: the result holds a function that a round of the loop made" in text


def test_caches_within_a_program_are_taken_off(agree):
    def f(x):
        @functools.lru_cache(maxsize=64)
        def power(k):
            return x if k == 0 else power(k - 1) * x

        @functools.cache
        def double(k):
            return 2 * k

        return power(5) * double(2)

    agree(f, X)


def test_a_cache_gives_one_result(agree):
    def f(x):
        @functools.lru_cache(maxsize=99)
        def fibonacci(n):
            return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

        @functools.cache
        def pair(n):
            return [n, x]

        weights = [x]
        weigh = functools.cache(lambda n: n * weights[0])
        before = weigh(2)
        weights[0] = x * 2
        return fibonacci(60) + x, pair(1) is pair(1), pair(2)[1], before, weigh(2), weigh(3)

    agree(f, X)


def log_of(x):
    log = []

    @functools.cache
    def g(n):
        log.append(n)
        return n * x

    return g(2) + g(2) + len(log)


def a_list_that_is_changed(x):
    @functools.cache
    def g(n):
        return [n * x]

    g(1).append(x)
    return len(g(1))


def an_array_that_is_changed(x):
    @functools.cache
    def g(n):
        return np.ones(3) * n

    first = g(float(x[0]))
    first += 1
    return g(float(x[0]))


def what_it_reads(x):
    weights = [x]

    @functools.cache
    def g(n):
        return n * weights[0]

    first = g(float(x[0]))
    weights[0] = x * 2
    return first + g(float(x[0]))


def a_name_it_reads(x):
    w = x

    @functools.cache
    def g(n):
        return n * w

    first = g(float(x[0]))
    w = x * 2
    return first + g(float(x[0]))


def one_and_one_point_zero(x):
    @functools.cache
    def g(a, b):
        return a * 2, b

    return g(1, 2)[0], g(1.0, 2)[0] / 2 + x


def an_array_it_takes(x):
    return functools.cache(lambda v: v * 2)(x)


def it_prints(x):
    g = functools.cache(lambda n: print(n))
    return g(1), g(1), x


CACHED = [
    *(log_of, a_list_that_is_changed, an_array_that_is_changed, what_it_reads, a_name_it_reads),
    *(one_and_one_point_zero, an_array_it_takes, it_prints),
]


@pytest.mark.parametrize("f", CACHED, ids=lambda f: f.__name__)
def test_what_a_cache_would_hide_is_refused(f, refusal):
    text = refusal(f, X)
    assert "DL111" in text or "unhashable type" in text or "`print` is a call" in text


def test_functions_of_a_generator_expression_read_its_names_as_they_are(agree, refusal):
    def late(x):
        return [f(x) for f in (lambda v: v + i for i in range(3))]  # noqa: B023

    def own(x):
        return [f(x) for f in (lambda v, i=i: v + i for i in range(3))]

    def of_a_list(x):
        return [f(x) for f in [lambda v: v + i for i in range(3)]]  # noqa: B023

    assert "DL111: a generator expression gives functions that read its names" in refusal(late, X)
    agree(own, X)
    agree(of_a_list, X)


def test_derivatives_may_be_chosen():
    def weighted(y):
        return lambda v: np.sum(v * v * y)

    def f(x, n):
        if n > 1:
            slope = grad(weighted(np.exp(x)))
        elif n > 0:
            slope = functools.partial(grad(lambda v, y: np.sum(v * y)), y=x * 2)
        else:
            slope = np.sin
        return slope(x)

    compiled = compile_(f, backend="reference")
    for n, want in ((2, 2 * X * np.exp(X)), (1, X * 2), (0, np.sin(X))):
        np.testing.assert_allclose(compiled(X, np.int64(n)), want, rtol=1e-6)


class Doubled:
    """A decorator that is a class: what it wraps is not what it does."""

    def __init__(self, f: Any) -> None:
        functools.update_wrapper(self, f)
        self.f = f

    def __call__(self, x: Any) -> Any:
        return 2 * self.f(x)


@Doubled
def plus_one(x: Any) -> Any:
    return x + 1


def test_an_object_that_wraps_a_function_is_called_itself() -> None:
    assert compile_(lambda x: plus_one(x), backend="reference")(3.0) == 8.0
    assert compile_(plus_one, backend="reference")(3.0) == 8.0
