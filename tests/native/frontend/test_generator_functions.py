"""Generator functions and classes with `__iter__`: as in Python, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

X = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]])


def rows(x: Any) -> Iterator[Any]:
    for k in range(x.shape[0]):
        yield x[k]


def counted(x: Any) -> Iterator[Any]:
    """A `while`, a result of `yield`, and an early end."""
    k = 0
    while True:
        sent = yield x[k]
        k += 1 if sent is None else 2
        if k == 2:
            return


def orders(path: list[int], rest: list[int]) -> Iterator[Any]:
    if not rest:
        yield tuple(path)
        return
    for k, v in enumerate(rest):
        path.append(v)
        yield from orders(path, rest[:k] + rest[k + 1 :])
        path.pop()


def scaled(x: Any, *, n: int = 2, scale: float = 1.0) -> Iterator[Any]:
    held = np.zeros(2)
    for k in range(n):
        held += x[k] * scale
        yield held.copy()


def checked(x: Any) -> Iterator[Any]:
    for row in rows(x):
        if row.sum() < 0:
            raise ValueError("a sum below zero")
        yield row


def noisy(x: Any) -> Iterator[Any]:
    print("begin")
    try:
        yield x.sum()
    finally:
        print("end")


class Tree:
    def __init__(self, v: Any, *kids: Any) -> None:
        self.v = v
        self.kids = kids

    def __iter__(self) -> Iterator[Any]:
        yield self.v
        for kid in self.kids:
            yield from kid


class Bag:
    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)


def in_one_go(x):
    return list(rows(x)), sum(rows(x)), max(r.sum() for r in rows(x)), dict(enumerate(rows(x)))


def in_turns(x):
    total, w = 0.0, x.copy()
    for k, (a, b) in enumerate(zip(rows(x), rows(2 * x), strict=True)):
        total = total + k * a @ b
        w -= a
    first, *others = rows(x)
    return total, w, first, others, [*counted(x)]


def left_early(x):
    out = []
    for row in rows(x):
        out.append(row)
        if len(out) == 2:
            break
    return out, any(r is None for r in rows(x))


def recursive(x):
    return [x[p[0], 0] * p[1] for p in orders([], [0, 1, 2])]


def with_keywords(x):
    return list(scaled(x, scale=2.0)), list(scaled(x, n=1))


def of_names_around(x):
    c = 1.0

    def gen():
        yield x * c

    made = gen()
    c = 5.0  # Read when the generator runs.
    return list(made)


def printing(x):
    print("before")
    made = noisy(x)
    print("made")
    return list(made), noisy(x) is None


def with_errors(x):
    return list(checked(x))


def of_objects(x):
    tree = Tree(x, Tree(x + 1.0, Tree(x * 2)), Tree(x - 1.0))
    bag = Bag([1, 2])
    out = []
    for v in bag:
        if len(bag.values) < 4:
            bag.values.append(v + 2)  # As by its places.
        out.append(x * v)
    a, *b = Bag([x, 2 * x])
    return (
        *([v.sum() for v in tree], out, a, b, 2 in bag, 9 in bag, 2 in counted([1, 2])),
        *(list(zip(bag, tree, strict=False)), sum(Bag([1, 2])), list(map(abs, Bag([-1, 2])))),
    )


def of_iter(x):
    values = [x]
    made = iter(values)
    values.append(x + 1)
    return list(made), list(iter(x)), sum(iter(iter([1, 2])))


def many(x):
    def gen():
        for k in range(600):
            yield x * k

    return sum(gen())


EQUAL = [
    *(in_one_go, in_turns, left_early, recursive, with_keywords, of_names_around, with_errors),
    *(of_objects, of_iter, many, printing),
]


@pytest.mark.parametrize("f", EQUAL, ids=lambda f: f.__name__)
def test_it_is_as_in_python(f: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    want, said = f(X.copy()), capsys.readouterr().out
    for backend in ("reference", "native"):
        np.testing.assert_equal(dl.compile(f, backend=backend)(X.copy()), want)
        assert capsys.readouterr().out == said


def test_its_derivative() -> None:
    def f(x):
        return sum((k + 1) * row @ row for k, row in enumerate(rows(x)))

    np.testing.assert_allclose(dl.grad(f)(X), 2 * X * np.array([[1.0], [2.0], [3.0]]))


def a_count_that_the_data_decide(x):
    def gen():
        for row in rows(x):
            if row.sum() > 2:
                yield row

    return list(gen())


def a_list_that_it_changes_later(x):
    def gen():
        path = []
        for row in rows(x):
            path.append(row)
            yield path

    return [sum(path) for path in gen()]


def an_array_that_it_changes_later(x):
    def gen():
        held = np.zeros(2)
        for row in rows(x):
            held += row
            yield held

    return [held.sum() for held in gen()]


def a_new_array_that_it_changes_later(x):
    def gen():
        held = x * 2
        for k in range(2):
            yield held
            held[k] = 0

    return [held.sum() for held in gen()]


def a_new_array_that_the_loop_changes(x):
    y, total = x * 2, 0.0
    for row in rows(y):
        y[2] = 0
        total += row.sum()
    return total


def an_array_of_an_object_that_the_loop_changes(x):
    tree, total = Tree(x * 2), 0.0
    for k, v in enumerate(v.sum() * tree.v[2, 0] for v in [x, x]):
        tree.v[2] = k
        total += v
    return total


def a_function_of_its_names(x):
    def gen():
        for k in range(3):
            yield lambda: k * x  # noqa: B023 - read when it is called

    return [f() for f in gen()]


def an_array_that_the_loop_changes(x):
    total = 0.0
    for row in rows(x):
        x[1] += 1
        total += row.sum()
    return total


def a_name_that_the_loop_changes(x):
    c, out = 1.0, []

    def gen():
        for row in rows(x):
            yield row * c

    for row in gen():
        c += 1
        out.append(row)
    return out


def a_list_that_the_loop_changes(x):
    values, total = [x, x + 1], 0.0

    def gen():
        yield from values

    for v in gen():
        values[1] = x
        total = total + v
    return total


def texts_between_the_rounds(x):
    for v in noisy(x):
        print(v)
    return x


def texts_of_a_generator_that_is_left(x):
    for v in noisy(x):
        return v


def errors_within_a_try(x):
    try:
        return list(checked(x))
    except ValueError:
        return [x]


def errors_between_the_rounds(x):
    total = 0.0
    for row in checked(x):
        total = total + row
    return total


def twice(x):
    made = rows(x)
    return sum(made), list(made)


def within_a_branch(x):
    made = rows(x)
    return sum(made) if x.sum() > 0 else x[0]


def without_end(x):
    def gen():
        while True:
            yield x

    for v in gen():
        return v


def a_result(x):
    def gen():
        yield x
        return x

    return list(gen())


def a_generator_joined(x):
    return np.stack(rows(x))


def columns_of_a_generator(x):
    return np.column_stack(rows(x))


REFUSED = [
    *(a_count_that_the_data_decide, a_list_that_it_changes_later, an_array_that_it_changes_later),
    *(a_new_array_that_it_changes_later, a_new_array_that_the_loop_changes),
    *(an_array_of_an_object_that_the_loop_changes, a_function_of_its_names),
    *(an_array_that_the_loop_changes, a_name_that_the_loop_changes),
    *(a_list_that_the_loop_changes, texts_between_the_rounds, texts_of_a_generator_that_is_left),
    *(
        errors_within_a_try,
        errors_between_the_rounds,
        twice,
        within_a_branch,
        without_end,
        a_result,
    ),
    *(a_result, a_generator_joined, columns_of_a_generator),
]


@pytest.mark.parametrize("f", REFUSED, ids=lambda f: f.__name__)
def test_it_is_refused(f: Callable[..., Any]) -> None:
    with pytest.raises(ProgramError):
        dl.compile(f, backend="reference")(X.copy())


def test_texts_of_a_map_between_rounds_are_refused() -> None:
    def f(x):
        for v in map(print, [x, x]):
            print(v)

    with pytest.raises(ProgramError, match="prints between the rounds"):
        dl.compile(f, backend="reference")(1.0)
