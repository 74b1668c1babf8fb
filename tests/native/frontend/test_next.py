"""`next`: of an iterator, an item after the other; of a generator expression, a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

VALUES = np.array([1.0, 5.0, 2.0, 7.0])


def numbers(x):
    yield x
    yield x + 1.0
    yield x + 2.0


def first_above(v, n):
    return next((x for x in v if x > n), np.float64(-1.0))


def place_of_the_first_above(v, n):
    return next((i for i, x in enumerate(v) if x > n), len(v))


def first_pair(v, n):
    return next((x + y for x in v for y in v if x < y if x * y > n), np.float64(0.0))


def searches_in_a_loop(v, n):
    total = 0.0
    for k in range(30):
        total += next((x for x in v[1:] if x > k), -n)
    return total


def a_search_in_a_search(v, n):
    return next((next((y for y in v if y < x), v[0]) for x in v if x > n), v[3])


def a_search_that_a_handler_ends(v, n):
    try:
        return next(x for x in v if x > n)
    except StopIteration:
        return v[0] / 2


def a_search_among_known_items(v, n):
    named = {"a": v, "b": v + n}
    return next(w for name, w in named.items() if name == "b")


def what_a_search_has_done(v, n):
    seen = []
    found = next((seen.append(k) or k for k in range(5) if k > 2), None)
    return found * v, seen


def a_name_that_a_search_leaves(v, n):
    x = 3.0
    found = next((x for x in v if x > n), v[0])
    return found, x


def a_next_of_ones_own(v, n):
    def next(values, more):
        return sum(values) + more

    return next((2 * x for x in v), n)


def one_after_the_other(v, n):
    it = numbers(n)
    a, b = next(it), next(it, 0.0)
    return a, b, next(it), next(it, 5.0), list(it)


def the_rest_of_an_iterator(v, n):
    it = iter(v)
    total = next(it)
    for x in it:
        total += x * n
    return total


def a_loop_that_asks(v, n):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    total = n
    for x in v:
        total += x * next(it)
    return total, list(it)


def a_long_list_that_asks(v, n):
    it = iter(range(20))
    return [n * next(it) for _ in range(12)], next(it)


def a_function_that_asks(v, n):
    it = enumerate(v)

    def fresh():
        return next(it)

    return fresh(), fresh(), n


def the_end_that_a_handler_takes(v, n):
    it = numbers(n)
    try:
        for _ in range(4):
            n += next(it)
    except StopIteration:
        n = -n
    return n


def a_list_that_grows_meanwhile(v, n):
    q = [1.0, 2.0, n]
    it = iter(q)
    a = next(it)
    q[1] = 5.0
    q.append(3.0)
    return a, next(it), list(it)


AGREE = [
    first_above,
    place_of_the_first_above,
    first_pair,
    searches_in_a_loop,
    a_search_in_a_search,
    a_search_that_a_handler_ends,
    a_search_among_known_items,
    what_a_search_has_done,
    a_name_that_a_search_leaves,
    a_next_of_ones_own,
    one_after_the_other,
    the_rest_of_an_iterator,
    a_loop_that_asks,
    a_long_list_that_asks,
    a_function_that_asks,
    the_end_that_a_handler_takes,
    a_list_that_grows_meanwhile,
]


def _flat(value: Any) -> list[float]:
    parts = value if isinstance(value, tuple | list) else [value]
    return [n for p in parts for n in (_flat(p) if isinstance(p, tuple | list) else np.ravel(p))]


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("f", AGREE, ids=lambda f: f.__name__)
def test_it_is_as_in_python(f: Callable[..., Any], backend: str) -> None:
    compiled = dl.compile(f, backend=backend)
    for n in (3.0, 9.0, -1.0):
        np.testing.assert_allclose(_flat(compiled(VALUES, n)), _flat(f(VALUES, n)), rtol=1e-14)


def test_a_search_without_a_default_ends_in_stop_iteration() -> None:
    compiled = dl.compile(lambda v, n: next(x for x in v if x > n))
    assert compiled(VALUES, 3.0) == 5.0
    with pytest.raises(StopIteration):
        compiled(VALUES, 9.0)


def the_end(v, n):
    it = iter([n])
    return next(it) + next(it)


def a_list(v, n):
    return next([n, n])


def two_defaults(v, n):
    return next((x for x in v), n, n)


def beyond_a_loop(v, n):
    it = iter([1, 2, 3, 4])
    n += next(it)
    for k in it:
        if k == 2:
            break
    return n + next(it, 0)


def beyond_a_list(v, n):
    it = iter([1, 2, 3])
    return list(it), next(it, 0)


def in_a_running_loop(v, n):
    it = iter(v)
    t = next(it)
    while t < n:
        t = next(it)
    return t


def a_list_that_a_generator_reads(v, n):
    q = [1.0, 2.0, n]
    it = (x * 2 for x in q)
    a = next(it)
    q[1] = 5.0
    return a, next(it)


def an_array_that_a_generator_reads(v, n):
    w = v.copy()
    it = (x * 2 for x in w)
    a = next(it)
    w[1] = n
    return a, next(it)


def a_generator_that_prints(v, n):
    def printed():
        print("first")
        yield n
        print("second")
        yield n

    it = printed()
    return next(it)


REFUSED = [
    (the_end, "DL113", "no more items"),
    (a_list, "DL119", r"iter\(values\)"),
    (two_defaults, "DL105", "one or two arguments"),
    (beyond_a_loop, "DL113", "gone through twice"),
    (beyond_a_list, "DL113", "gone through twice"),
    (in_a_running_loop, "DL107", "outside the branch or loop"),
    (a_list_that_a_generator_reads, "DL111", "a list changes"),
    (an_array_that_a_generator_reads, "DL111", "an array changes"),
    (a_generator_that_prints, "DL111", "prints"),
]


@pytest.mark.parametrize(("f", "code", "words"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_it_is_refused(f: Callable[..., Any], code: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as raised:
        dl.compile(f, backend="reference")(VALUES, 3.0)
    assert raised.value.code == code


def test_iterators_have_no_length_and_no_index() -> None:
    for f in (lambda v: len(numbers(v)), lambda v: numbers(v)[0]):
        with pytest.raises(ProgramError, match="an iterator"):
            dl.compile(f)(VALUES)


def test_a_nonlocal_name_that_is_not_set_is_an_error_in_words() -> None:
    def f(x):
        def read():
            nonlocal kept
            kept = kept if kept is not None else x
            return kept

        found = read()
        kept = x
        return found

    with pytest.raises(ProgramError, match="`nonlocal` shares is read before it is assigned"):
        dl.compile(f)(VALUES)
