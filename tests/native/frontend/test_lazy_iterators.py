"""Iterators compute an item when it is asked for: as in Python, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

#: `map` of lambdas, which linters would write otherwise.
each = map


class Holder:
    def __init__(self, v):
        self.v = v


def a_name_that_changes(n):
    k, t = 1, 0
    for x in (i * k for i in range(3)):
        k += n
        t += x
    return t


def a_name_that_a_function_reads(n):
    k, t = 1, 0

    def scaled(i):
        return i * k

    for x in map(scaled, [1, 2, 3]):
        k += n
        t += x
    return t


def a_list_that_is_read(n):
    c, t = [n], 0
    for x in (i * c[0] for i in range(3)):
        c[0] += 1
        t += x
    return t


def a_dict_that_is_read(n):
    d, t = {"k": n}, 0
    for x in each(lambda i: i * d["k"], range(1, 4)):
        d["k"] += 1
        t += x
    return t


def an_object_that_is_read(n):
    o, t = Holder(n), 0
    for x in (i * o.v for i in range(3)):
        o.v += 1
        t += x
    return t


def items_that_change_before_they_are_drawn(n):
    objects, t = [Holder(n), Holder(2 * n)], 0
    for x in each(lambda o: o.v, objects):
        objects[1].v += 1
        t += x
    return t


def a_list_that_the_function_changes(n):
    log, t = [], 0
    for x in each(lambda v: log.append(v) or v, [n, 2 * n]):
        t += len(log) * x
    return t


def a_comprehension_over_one(n):
    log = []
    return [x + len(log) for x in each(lambda v: log.append(v) or v, [n, n + 1])]


def any_ends_early(n):
    log = []
    return any(log.append(v) or v >= n for v in [1, 2, 3, 4]), len(log)


def all_ends_early(n):
    log = []
    return all(each(lambda v: log.append(v) or v < n, [1, 2, 3, 4])), len(log)


def zip_ends_early(n):
    log = []
    return list(zip((log.append(v) or v for v in [1, 2, 3]), [n], strict=False)), len(log)


def zip_takes_turns(n):
    k = [0]

    def f(v):
        k[0] += 1
        return v

    return list(zip(map(f, [1, 2]), each(lambda v: v * k[0] * n, [4, 5]), strict=False))


def one_within_another(n):
    k = [0]

    def f(v):
        k[0] += 1
        return v * n

    return list(each(lambda v: v + k[0], map(f, [1, 2, 3])))


def one_around_another(n):
    k = [0]

    def f(v):
        k[0] += 1
        return v

    return list(map(f, each(lambda v: v + k[0], [1, 2, n])))


REFUSED = [
    *(a_name_that_changes, a_name_that_a_function_reads, a_list_that_is_read, a_dict_that_is_read),
    *(an_object_that_is_read, items_that_change_before_they_are_drawn),
    *(a_list_that_the_function_changes, a_comprehension_over_one, any_ends_early, all_ends_early),
    *(zip_ends_early, zip_takes_turns, one_within_another, one_around_another),
]


@pytest.mark.parametrize("f", REFUSED, ids=lambda f: f.__name__)
def test_what_python_computes_at_another_time_is_refused(f: Callable[..., Any]) -> None:
    f(3)
    with pytest.raises(ProgramError) as raised:
        dl.compile(f, backend="reference")(3)
    assert raised.value.code == "DL111"
    assert raised.value.locs[0].file == __file__


def computed_first(n):
    k, t = [n], 0
    for x in list(each(lambda v: v * k[0], [1, 2, 3])):
        k[0] += 1
        t += x
    return t, k


def kept_elsewhere(n):
    out, scale, total = [], [1.0, 2.0], 0.0
    for x in each(lambda v: v * scale[0], [n, 2 * n]):
        out.append(x)
        total += x
    return out, total


def gone_through_whole(n):
    k = [0]

    def f(v):
        k[0] += 1
        return v * n

    first, *rest = map(f, [1, 2, 3])
    return first, rest, max(map(f, [1, 2])), sum(map(f, [n])), sorted(map(f, [3, 1])), k


def bound_before(n):
    made = (i * n for i in range(3))
    n = n + 1
    return list(made)


def a_dict_whose_values_change(n):
    d, t = {"a": 1, "b": 2, "c": n}, 0
    for _, v in d.items():
        d["c"] += 10
        t = t * 10 + v
    for v in d.values():
        d["b"] = 50
        t = t * 10 + v
    for i, (k, v) in enumerate(d.items()):
        d["c"] = t
        d[k] += i
        t += v
    return t, list(d.values())


def a_list_that_changes_under_enumerate_and_zip(n):
    a, b, t = [1, 2, 3], [4, 5, n], 0
    for i, x in enumerate(a):
        a[i] = x * n
        a[2] += 1
    for x, y in zip(a, b, strict=False):
        b[2] = 9
        t = t * 10 + x * y
        if len(b) < 5:
            a.append(y)
            b.append(x)
    return a, b, t


def an_array_that_changes_under_zip(n):
    x, t = np.array([1, 2, n]), 0
    for v, w in zip(x, [5, 6, 7], strict=False):
        x[2] = 9
        t = t * 10 + v * w
    for i, v in enumerate(x):
        x[1] = i
        t = t * 2 + v
    return int(t), x.tolist()


def pure_ones(n):
    pairs = zip(each(lambda v: v * n, [1, 2]), [3, 4], strict=True)
    return (
        *([x + y for x, y in pairs], any(v > n for v in [1, 2, 5])),
        *(all(each(lambda v: v < n, [1, 2])), list(filter(None, [0, 2, 3]))),
        sum(a * b for a, b in zip([1, n], [n, 2], strict=True)),
    )


EQUAL = [
    *(computed_first, kept_elsewhere, gone_through_whole, bound_before, pure_ones),
    *(a_dict_whose_values_change, a_list_that_changes_under_enumerate_and_zip),
    an_array_that_changes_under_zip,
]


@pytest.mark.parametrize("f", EQUAL, ids=lambda f: f.__name__)
def test_what_is_the_same_at_any_time_is_compiled(f: Callable[..., Any]) -> None:
    assert dl.compile(f, backend="reference")(3) == f(3)
    np.testing.assert_equal(dl.compile(f)(5), f(5))
