"""`sum`, `any`, `all`, `min` and `max` of generator expressions whose items the program picks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from support.frontend_programs import same_as_python as same

VALUES = np.array([1.0, 5.0, 2.0, 7.0])
ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]])


def how_many(v, t):
    return sum(1 for x in v if x > t)


def how_many_of_a_start(v, t):
    return sum((1 for x in v if x > t), start=2), sum((True for x in v if x > t), 1)


def pairs_out_of_order(v, t):
    return sum(1 for i in range(len(v)) for j in range(i + 1, len(v)) if v[i] > v[j] + t)


def a_sum_that_starts_as_numpys(v, t):
    return sum((x * x for x in v if x > t), np.float64(0.0))


def a_sum_of_rows(w, t):
    return sum((row for row in w if row[0] > t), np.zeros(2))


def a_sum_of_floats_is_compensated(v, t):
    return sum((float(x) * 0.1 for x in v if x > t), 1e16)


def any_of_some(v, t):
    return any(x < 3 for x in v if x > t), all(x < 6 for x in v if x > t)


def any_ends_before_an_error(v, t):
    def known(x):
        if x == 2.0:
            raise KeyError("two")
        return x > t

    return any(known(x) for x in v)


def an_error_in_a_test(v, t):
    def known(x):
        if x == 5.0:
            raise KeyError("five")
        return x > t

    return sum(1 for x in v if known(x))


def a_handler_around_a_test(v, t):
    try:
        return an_error_in_a_test(v, t)
    except KeyError:
        return -1


def all_of_all(w, t):
    return sum(1 for row in w if all(x > 0.5 for x in row if x < t))


def the_least(v, t):
    return min(x for x in v if x > t)


def the_least_that_a_handler_misses(v, t):
    try:
        return min(x for x in v if x > t)
    except ValueError:
        return v[0]


def the_least_or_a_default(v, t):
    return min((x for x in v if x > t), default=np.float64(-1.0))


def the_first_of_equals(v, t):
    return max((i for i in range(4) if v[i] > t), key=lambda i: v[i] > 4, default=-1)


def the_nearest(v, t):
    return min((x for x in v if x != 7), key=lambda x: abs(x - t))


def a_pair_by_its_first(v, t):
    return min(((abs(x - t), i) for i, x in enumerate(v) if x > 1), key=lambda pair: pair[0])


def a_row_by_its_last(w, t):
    return min((row for row in w if row[0] > t), key=lambda row: row[1], default=w[0])


def a_nan_exceeds_nothing(v, t):
    w = np.where(v == 5.0, np.nan, v)
    return max(x for x in w if x != 1), min(x for x in w if x == x or x != x)


def the_most_of_a_mask(v, t):
    return max((x * x for x in v[v > t] if x != 2), default=np.float64(0.0))


def of_known_names(v, t):
    d = {"a": t, "b": v[0], "c": 3.0}
    return sum(1 for name, x in d.items() if x > 2 and name != "c")


def an_iterator(v, t):
    pairs = zip(v, v[::-1], strict=True)
    return sum(1 for x, y in pairs if x > y + t)


def in_a_loop(w, t):
    best = 0
    for row in w:
        best = max(best, sum(1 for x in row if x > t))
    return best


def in_the_test_of_a_loop(v, t):
    n = 0
    while any(x > t + n for x in v if x < 6):
        n += 1
    return n


def texts(v, t):
    return any(name == "b" for name in ("a", "b") if t > 2), sum(len(n) for n in "abc" if t > 2)


def a_function_of_ones_own(v, t):
    def sum(items):
        return list(items)[1] * t

    return sum(x for x in v)


def names_stay(v, t):
    x, total, found = 1.0, 2.0, 3.0
    count = sum(1 for x in v if x > t)
    return x, total, found, count


def kept_under_a_name(v, t):
    squares = (x * x for x in v if x > t)
    return sum(squares, np.float64(0.0)), sum(squares, 1), list(squares), any(squares)


def kept_and_changed_before_use(v, t):
    values = v.copy()
    near = (x for x in values if x > t)
    t = t + 1
    values[0] = 9.0
    return list(near), tuple(near)


def kept_by_a_function(v, t):
    def above(values):
        return (x for x in values if x > t)

    def total(items):
        return sum(items, np.float64(0.0))

    again = above(v)
    return total(above(v)) + min(above(v), default=np.float64(7.0)), total(again) - total(again)


def kept_of_two(w, t):
    kept = (x for row in w for x in row if x > t)
    same = kept
    return max(kept, key=lambda x: -x, default=w[0, 0]), [sum(same) for _ in range(2)]


def kept_and_without_items(v, t):
    kept = (x for x in v if x > t)
    return max(kept)


def kept_with_an_error(v, t):
    kept = (v[int(x)] for x in v if x > t)
    return sum(kept, np.float64(0.0))


def one_item_of_the_rest(v, t):
    kept = (x for x in v if x > t)
    total = sum(kept, np.float64(0.0))
    for x in kept:
        total += x
    return total + next(kept, 2.0)


AGREE = [
    *(kept_under_a_name, kept_and_changed_before_use, kept_by_a_function, kept_of_two),
    *(kept_and_without_items, kept_with_an_error, one_item_of_the_rest),
    *(how_many, how_many_of_a_start, pairs_out_of_order, a_sum_that_starts_as_numpys),
    *(a_sum_of_rows, a_sum_of_floats_is_compensated, any_of_some, any_ends_before_an_error),
    *(an_error_in_a_test, a_handler_around_a_test, all_of_all, the_least, the_least_or_a_default),
    *(the_least_that_a_handler_misses, the_first_of_equals, the_nearest, a_pair_by_its_first),
    *(a_row_by_its_last, a_nan_exceeds_nothing, the_most_of_a_mask, of_known_names, an_iterator),
    *(in_a_loop, in_the_test_of_a_loop, texts, a_function_of_ones_own, names_stay),
]


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("f", AGREE, ids=lambda f: f.__name__)
def test_it_is_as_in_python(f: Callable[..., Any], backend: str) -> None:
    compiled = dl.compile(f, backend=backend)
    first = ROWS if f.__code__.co_varnames[0] == "w" else VALUES
    for t in (1.5, 2.5, 9.0, -3.0):
        want = same.value_or_error(f, first, t)
        assert not same.difference(same.value_or_error(compiled, first, t), want), t


def a_sum(v, t):
    return sum(x for x in v if x > t)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_a_sum_of_numpys_numbers_has_their_type(dtype: Any) -> None:
    """Of none it is 0; Python's is an int then."""
    v = VALUES.astype(dtype)
    compiled = dl.compile(a_sum)
    assert not same.difference(compiled(v, 1.5), a_sum(v, 1.5))
    none = compiled(v, 9.0)
    assert none == 0 and np.asarray(none).dtype == dtype


def test_more_items_than_are_unrolled() -> None:
    v = np.arange(5000.0)
    f = dl.compile(lambda v, t: (sum(x * 0.5 for x in v if x > t), max(x * t for x in v)))
    assert f(v, 4990.0) == (sum(v[4991:] * 0.5), 4999.0 * 4990.0)


def test_derivatives_go_through() -> None:
    def squares(v, t):
        return sum((x * x for x in v if x > t), 0.0)

    def highest(v, t):
        return max(x * x * x for x in v if x < t)

    def nearest(v, t):
        return min((x * t for x in v if x > 1), key=lambda x: abs(x - 4), default=t)

    for backend in ("reference", "native"):
        gradients = [dl.compile(dl.grad(f), backend=backend) for f in (squares, highest, nearest)]
        found = [g(VALUES, 3.0) for g in gradients]
        np.testing.assert_allclose(found, [[0, 10, 0, 14], [0, 0, 12, 0], [0, 0, 3, 0]])
    twice = dl.compile(dl.grad(lambda v, t: np.sum(dl.grad(highest)(v, t))))
    np.testing.assert_allclose(twice(VALUES, 3.0), [0, 0, 12, 0])


def test_each_lane_has_its_own() -> None:
    compiled = dl.compile(lambda w, t: dl.vmap(lambda row: how_many(row, t))(w))
    np.testing.assert_array_equal(compiled(ROWS, 1.5), [1, 2, 1])


def a_default_of_another_class(v, t):
    return min((x for x in v if x > t), default=None)


def arrays_from_a_zero(w, t):
    return sum(row for row in w if row[0] > t)


def texts_that_are_picked(v, t):
    return max((name for name in ("ab", "c") if t > 0), key=len)


def a_list_that_grows(v, t):
    seen = []
    return sum(seen.append(x) or 1 for x in v if x > t), seen


def the_last_that_any_binds(v, t):
    if any((y := x) > t for x in v):
        return y
    return t


def an_iterator_gone_through_twice(v, t):
    it = iter(v)
    return sum(1 for x in it if x > t), sum(1 for x in it if x > t)


def kept_and_reduced_in_a_branch(v, t):
    kept = (x for x in v if x > t)
    return sum(kept, 0.0) if t > 0 else 0.0


def kept_and_left_early(v, t):
    kept = (x for x in v if x > t)
    return any(kept), sum(kept, 0.0)


def kept_and_reduced_in_a_try(v, t):
    kept = (x for x in v if x > t)
    try:
        first = 1 // int(t) + sum(kept, 0.0)
    except ZeroDivisionError:
        first = 0.0
    return sum(kept, first)


REFUSED = [
    (kept_and_reduced_in_a_branch, "DL113", "made outside the branch or loop"),
    (kept_and_left_early, "DL113", "gone through twice"),
    (kept_and_reduced_in_a_try, "DL113", "gone through twice"),
    (a_default_of_another_class, "DL108", "the result is f64"),
    (arrays_from_a_zero, "DL108", "the total of a reduction"),
    (texts_that_are_picked, "DL108", "the best of a reduction"),
    (a_list_that_grows, "DL108", "both paths|one path"),
    (the_last_that_any_binds, "DL107", "`:=` binds last"),
    (an_iterator_gone_through_twice, "DL113", "gone through twice"),
]


@pytest.mark.parametrize(("f", "code", "words"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_it_is_refused(f: Callable[..., Any], code: str, words: str) -> None:
    first = ROWS if f.__code__.co_varnames[0] == "w" else VALUES
    with pytest.raises(ProgramError, match=words) as raised:
        dl.compile(f, backend="reference")(first, 3.0)
    assert raised.value.code == code
