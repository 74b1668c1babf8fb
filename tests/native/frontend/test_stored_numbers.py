"""Numbers that are stored in arrays of integers: NumPy's errors are raised, or it is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

NUMBERS = (
    300,
    -1,
    -1.5,
    300.5,
    7,
    True,
    np.int64(300),
    np.int16(-7),
    np.uint8(200),
    np.float64(-1.5),
    np.float64(300.5),
    np.array(300),
)
TYPES = (np.int8, np.uint8, np.uint64)


def one(x: Any, v: Any) -> Any:
    x[0] = v
    return x


def row(x: Any, v: Any) -> Any:
    x[:] = v
    return x


def part(x: Any, v: Any) -> Any:
    x[1:2] = v + 1
    return x


def none_of_it(x: Any, v: Any) -> Any:
    x[2:] = v
    return x


def whole(x: Any, v: Any) -> Any:
    x[...] = v
    return x


def chosen(x: Any, v: Any) -> Any:
    x[np.array([0])] = v
    return x


def filled(x: Any, v: Any) -> Any:
    x.fill(v)
    return x


def put(x: Any, v: Any) -> Any:
    np.put(x, [1], v)
    return x


def put_nowhere(x: Any, v: Any) -> Any:
    np.put(x, [], v)
    return x


def put_masked(x: Any, v: Any) -> Any:
    np.putmask(x, x > 0, v)
    return x


def made(x: Any, v: Any) -> Any:
    return np.array([v, v], np.int8)


STORED = (one, row, part, none_of_it, whole, chosen, filled, put, put_nowhere, put_masked, made)


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    try:
        return f(*copy.deepcopy(args))
    except ProgramError:
        return ProgramError
    except (OverflowError, TypeError, ValueError) as e:
        return type(e), str(e)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("f", STORED, ids=lambda f: f.__name__)
def test_a_number_that_does_not_fit_is_numpy_s_error(f: Callable[..., Any]) -> None:
    compiled = dl.compile(f, backend="reference")
    for dtype in TYPES:
        for number in NUMBERS:
            args = (np.array([1, 2], dtype), number)
            want, got = outcome(f, *args), outcome(compiled, *args)
            if got is ProgramError:
                continue
            what = f"{f.__name__} {dtype.__name__} {number!r}"
            if isinstance(want, tuple):
                assert got == want, what
            else:
                assert not isinstance(got, tuple), (what, got)
                np.testing.assert_array_equal(got, want, what)
                assert got.dtype == want.dtype, what


def put_list(x: Any) -> Any:
    np.put(x, [0], [1, -2])
    return x


def place_list(x: Any) -> Any:
    np.place(x, x > 0, [300, 1])
    return x


def put_float(x: Any) -> Any:
    np.put(x, [], -1.5)
    return x


def put_scalars(x: Any) -> Any:
    np.put(x, [0], [np.int64(300), 1])
    return x


def fill_list(x: Any) -> Any:
    x.fill([1, 2])
    return x


def scalar_item(x: Any) -> Any:
    x[0] = np.int64(300)
    return x


@pytest.mark.parametrize(
    "f", [put_list, place_list, put_float, put_scalars, fill_list, scalar_item]
)
def test_a_number_that_is_known_and_does_not_fit_is_refused(f: Callable[..., Any]) -> None:
    refused = 0
    for dtype in TYPES:
        x = np.array([1, 2], dtype)
        want, got = outcome(f, x), outcome(dl.compile(f, backend="reference"), x)
        refused += got is ProgramError
        if got is not ProgramError:
            assert not isinstance(want, tuple), (f.__name__, dtype)
            np.testing.assert_array_equal(got, want)
    assert refused


def both(x: Any, i: Any) -> Any:
    return np.array([x, i], np.int64)


def with_a_constant(x: Any, i: Any) -> Any:
    return np.array([[2**60 + 1, x], [i, 1.5]], np.int64)


@pytest.mark.parametrize("f", [both, with_a_constant])
def test_each_number_of_a_list_becomes_an_integer_by_itself(f: Callable[..., Any]) -> None:
    """In the type of all of them, f64, large integers would lose digits."""
    for x in (2.5, np.float64(2.5), np.float32(-1.5)):
        for i in (2**60 + 1, np.int64(2**60 + 1), -(2**59) - 1):
            np.testing.assert_array_equal(dl.compile(f, backend="reference")(x, i), f(x, i))


def reversed_mask(x: Any) -> Any:
    x[x[::-1]] = False
    return x


def turned_mask(x: Any) -> Any:
    x[np.einsum("ij->ji", x.T[::-1])] = False
    return x


def own_mask(x: Any) -> Any:
    x[x] = False
    return x


def copied_mask(x: Any) -> Any:
    x[x[::-1].copy()] = False
    return x


def inverted_mask(x: Any) -> Any:
    x[~x[::-1]] = True
    return x


def test_a_mask_that_is_read_while_it_changes_is_refused() -> None:
    x = np.array([[True, False, True], [True, True, False]])
    for f in (reversed_mask, turned_mask):
        with pytest.raises(ProgramError, match="while it changes"):
            dl.compile(f, backend="reference")(x.copy())
    for f in (own_mask, copied_mask, inverted_mask):
        want = f(x.copy())
        np.testing.assert_array_equal(dl.compile(f, backend="reference")(x.copy()), want)


def all_of_it(x: Any, v: Any, python: bool) -> Any:
    x[...] = v if python else np.float64(v)
    return x


@pytest.mark.parametrize("size", [0, 3])
def test_a_number_whose_class_the_path_decides_does_not_wrap(size: int) -> None:
    """Python's float raises an error in an array of u64, and NumPy's wraps."""
    compiled = dl.compile(all_of_it, backend="reference")
    x = np.zeros(size, np.uint64)
    for v in (1.5, -0.5):
        for python in (True, False):
            want = all_of_it(x.copy(), v, python)
            np.testing.assert_array_equal(compiled(x.copy(), v, python), want)
    for v in (-1.5, np.nan):
        for python in (True, False):
            with pytest.raises(ArithmeticError, match="the path of the program decides"):
                compiled(x.copy(), v, python)
    signed = dl.compile(all_of_it, backend="reference")
    with pytest.raises(OverflowError):
        signed(np.zeros(1, np.int8), 300.0, False)


@pytest.mark.parametrize("number", [np.float64(-1.5), np.float32(300.7), np.float64(1e10)])
def test_a_known_float_of_numpys_wraps_around(number: Any) -> None:
    def stores(x, y, z):
        x[0] = number
        y.fill(number)
        z[...] = number
        return x, y, z

    def in_a_try(x):
        try:
            x.fill(number)
        except OverflowError:
            x[0] = 7
        return x

    given = [np.zeros(2, np.uint8) for _ in range(3)]
    want = stores(*(x.copy() for x in given))
    got = dl.compile(stores, backend="reference")(*given)
    assert [x.tolist() for x in got] == [x.tolist() for x in want]
    caught = dl.compile(in_a_try, backend="reference")(np.zeros(2, np.uint8))
    assert caught.tolist() == want[1].tolist()
