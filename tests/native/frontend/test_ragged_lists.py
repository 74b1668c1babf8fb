"""List comprehensions whose condition the running program decides."""

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


def a_list(v, t):
    return [x for x in v if x > t]


def lists_of_classes(v, t):
    floats = [float(x) * 2 for x in v if x > t]
    places = [i for i, x in enumerate(v) if x > t]
    return floats, places, [x > 4 for x in v if x > t], [bool(x > 4) for x in v if x > t]


def its_length(v, t):
    kept = [x for x in v if x > t]
    return len(kept), bool(kept), not kept, 1 if kept else 2, len(kept) / len(v)


def the_length_of_pairs(w, t):
    return len([row for row in w if row[0] > t]), len([(x, y) for x, y in w if x + y > t])


def sums(v, t):
    kept = [x * x for x in v if x > t]
    return sum(kept, np.float64(0.0)), sum([1 for x in v if x > t])


def a_mean(v, t):
    kept = [x for x in v if x > t]
    if not kept:
        return v[0]
    return sum(kept, np.float64(0.0)) / len(kept)


def extremes(v, t):
    kept = [x for x in v if x > t]
    nearest = min(kept, key=lambda x: abs(x - 4), default=v[0])
    return max(kept, default=v[1]), nearest, any(kept), all(kept)


def the_least_of_none(v, t):
    return min([x for x in v if x > t])


def numpys_functions(v, t):
    kept = [x for x in v if x > t]
    array = np.array(kept)
    return array, np.asarray(kept) * 2, np.sum(kept), np.sort(kept), np.cumsum(kept), array.size


def numpys_mean(v, t):
    kept = [x for x in v if x > t]
    return np.mean(kept) + np.median(kept) + np.std(kept) + np.max(kept) if kept else v[0]


def of_a_given_type(v, t):
    return np.array([int(x) for x in v if x > t], dtype=np.float32)


def going_through_it(v, t):
    total = v[0]
    for x in [y for y in v if y > t]:
        if x > 6:
            break
        total = total * x
    return total


def going_through_places(v, t):
    marks = np.zeros(4)
    for i in [i for i in range(len(v)) if v[i] > t]:
        marks[i] += v[i]
    return marks


def an_index(v, t):
    kept = [x for x in v if x > t]
    return kept[0], kept[-1], kept[len(kept) // 2]


def an_index_beyond(v, t):
    return [x for x in v if x > t][2]


def a_handler_of_an_index(v, t):
    try:
        return [x for x in v if x > t][2]
    except IndexError:
        return v[0]


def two_lists_of_two_paths(v, t):
    kept = [x for x in v if x > t] if t > 2 else [x * 2 for x in v if x < t]
    for k in range(3):
        kept = [x for x in kept if x != k]
    return kept, len(kept)


def errors_of_items(v, t):
    try:
        kept = [1 / (float(x) - 5) for x in v if x > t]
        return kept[0] + len(kept)
    except ZeroDivisionError:
        return t


def differences(v, t):
    kept = [x for x in v if x > t]
    return [kept[j] - kept[j - 1] for j in range(1, len(kept))]


def lists_of_a_list(v, t):
    kept = [x for x in v if x > t]
    pairs = [x * y for x, y in zip(kept, v)]  # noqa: B905
    return [x + 1 for x in kept], [x for x in kept if x < 6], pairs, [i for i, _ in enumerate(kept)]


def of_a_mask(v, t):
    return [x for x in v[v > t]], [x * 2 for x in v[v > t] if x < 6]  # noqa: C416


def of_an_array(v, t):
    places = np.where(v > t)[0].tolist()
    return places, list(v[v > t]), v[v > t].tolist(), (v > 4)[v > t].tolist(), v[places]


def places_as_an_index(v, t):
    return v[[i for i in range(len(v)) if v[i] > t]]


def lists_in_a_list(w, t):
    return [len([x for x in row if x > t]) for row in w]


def an_error_in_a_condition(v, t):
    def known(x):
        if x == 2.0:
            raise KeyError("two")
        return x > t

    return [x for x in v if known(x)]


def a_change_afterwards(v, t):
    w = v.copy()
    kept = [x for x in w if x > t]
    w[:] = 0.0
    return kept, list(x for x in v if x > t)  # noqa: C400


def within_a_tuple(v, t):
    return {"kept": [x for x in v if x > t], "rest": ([x for x in v if x <= t], t)}


def over_two(w, t):
    return [x for row in w for x in row if x > t], [x for row in w if row[0] > t for x in row]


def over_three(w, t):
    return [x + y for x in w[0] for y in w[1] for row in w if x + y + row[0] > t]


def over_rows_of_several_lengths(w, t):
    short_first = [x for row in [w[0][:1], w[1], w[2]] for x in row if x > t]
    triangle = [float(i * j) for i in range(3) for j in range(i + 1) if w[i, 0] > j + t]
    return short_first, triangle, [x for row in [w[1], w[0][:0]] for x in row if x > t]


def over_a_list_of_such_a_length(w, t):
    kept = [x for x in w[:, 0] if x > t]
    return [x * y for x in kept for y in w[1] if y > x], [x * y for y in w[1] for x in kept]


def reductions_of_two(w, t):
    kept = [x for row in w for x in row if x > t]
    return len(kept), max(kept, default=w[0, 0]), any(x > t for row in w for x in row if x > 1)


AGREE = [
    *(over_two, over_three, over_rows_of_several_lengths, over_a_list_of_such_a_length),
    reductions_of_two,
    *(a_list, lists_of_classes, its_length, the_length_of_pairs, sums, a_mean, extremes),
    *(the_least_of_none, numpys_functions, numpys_mean, of_a_given_type, going_through_it),
    *(going_through_places, an_index, an_index_beyond, differences, lists_of_a_list, of_a_mask),
    *(places_as_an_index, lists_in_a_list, an_error_in_a_condition, a_change_afterwards),
    *(within_a_tuple, a_handler_of_an_index, of_an_array),
    *(two_lists_of_two_paths, errors_of_items),
]


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("f", AGREE, ids=lambda f: f.__name__)
def test_it_is_as_in_python(f: Callable[..., Any], backend: str) -> None:
    compiled = dl.compile(f, backend=backend)
    first = ROWS if f.__code__.co_varnames[0] == "w" else VALUES
    for t in (1.5, 4.0, 9.0, -3.0):
        want = same.value_or_error(f, first, t)
        assert not same.difference(same.value_or_error(compiled, first, t), want), t


def test_no_items_at_all() -> None:
    compiled = dl.compile(lambda v, t: ([x for x in v if x > t], len([x for x in v if x > t])))
    assert compiled(np.zeros(0), 1.0) == ([], 0)


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8])
def test_items_keep_their_class(dtype: Any) -> None:
    v = VALUES.astype(dtype)
    assert not same.difference(dl.compile(a_list)(v, 1.5), a_list(v, 1.5))
    array = dl.compile(lambda v, t: np.array([x for x in v if x > t]))
    assert not same.difference(array(v, 1.5), v[v > 1.5])
    with pytest.raises(ArithmeticError, match=r"float64 for `np.array` of an empty list"):
        array(v, 9.0)


def test_derivatives_go_through() -> None:
    def squares(v, t):
        kept = [x * x for x in v if x > t]
        return np.mean(kept) + kept[0]

    def product(v, t):
        total = v[0]
        for x in [x * t for x in v if x > t]:
            total = total * x
        return total

    for backend in ("reference", "native"):
        found = [dl.compile(dl.grad(f), backend=backend)(VALUES, 3.0) for f in (squares, product)]
        np.testing.assert_allclose(found, [[0, 15, 0, 7], [315, 63, 0, 45]])


def test_each_lane_has_its_own() -> None:
    compiled = dl.compile(lambda w: dl.vmap(lambda row: len([x for x in row if x > 1.5]))(w))
    np.testing.assert_array_equal(compiled(ROWS), [1, 2, 1])


def a_list_that_grows(v, t):
    kept = [x for x in v if x > t]
    kept.append(t)
    return kept


def a_change_of_an_item(v, t):
    kept = [x for x in v if x > t]
    kept[0] = t
    return kept


def a_list_of_one_path(v, t):
    kept = [x for x in v if x > t] if t > 2 else []
    return len(kept)


def a_slice(v, t):
    return [x for x in v if x > t][1:]


def joined(v, t):
    return [x for x in v if x > t] + [t]


def equal(v, t):
    return [x for x in v if x > t] == [5.0, 7.0]


def among(v, t):
    return 5.0 in [x for x in v if x > t]


def pairs(v, t):
    return [(i, x) for i, x in enumerate(v) if x > t]


def a_shape(v, t):
    return np.zeros(len([x for x in v if x > t]))


def unpacked(v, t):
    a, b = [x for x in v if x > t]
    return a + b


def over_two_that_grow(w, t):
    seen = []
    return [seen.append(x) or x for row in w for x in row if x > t]


def over_too_many(w, t):
    n = range(1001)
    return len([x for _ in n for _ in n for row in w for x in row if x > t])


def over_an_iterators_function(w, t):
    return [x for row in w for x in map(lambda v: v * 2, row) if x > t]  # noqa: C417


def a_dict(v, t):
    return {i: x for i, x in enumerate(v) if x > t}


def a_set(v, t):
    return {i for i, x in enumerate(v) if x > t}


def two_classes(v, t):
    return [x if i > 1 else np.float32(1) for i, x in enumerate(v) if x > t]


REFUSED = [
    (a_list_that_grows, "DL107", "`append` of a list whose length"),
    (a_change_of_an_item, "DL107", "a store into a list"),
    (a_list_of_one_path, "DL108", "a list whose length"),
    (a_slice, "DL107", "such an index"),
    (joined, "DL107", r"`\+` of a list"),
    (equal, "DL107", "`==` of a list"),
    (among, "DL107", "`in` of a list"),
    (pairs, "DL118", "no real numbers"),
    (a_shape, "DL107", "a shape must be known"),
    (unpacked, "DL107", "item by item"),
    (over_two_that_grow, "DL107", "changes a list or object"),
    (over_too_many, "DL107", "that may give 1002001 items"),
    (over_an_iterators_function, "DL107", "over an iterator's function"),
    (a_dict, "DL107", r"v\[v > t\]"),
    (a_set, "DL107", r"v\[v > t\]"),
    (two_classes, "DL108", "f64|f32"),
]


@pytest.mark.parametrize(("f", "code", "words"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_it_is_refused(f: Callable[..., Any], code: str, words: str) -> None:
    first = ROWS if f.__code__.co_varnames[0] == "w" else VALUES
    with pytest.raises(ProgramError, match=words) as raised:
        dl.compile(f, backend="reference")(first, 3.0)
    assert raised.value.code == code
