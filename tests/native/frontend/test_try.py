"""`try` beyond the table in `programs/try.txt`: derivatives, lanes, programs without a caller in
Python, the caller's arrays, and errors that pass on.
"""

from __future__ import annotations

import math
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler.backends.reference import ReferenceProgram
from delian.core.compiler.frontend import trace

BACKENDS = ["reference", "native"]


def root(x: Any) -> Any:
    if x < 0:
        raise ValueError(f"the root of {x}")
    return np.sqrt(x)


def root_or_slope(x: Any) -> Any:
    try:
        y = root(x) * 3
    except ValueError:
        y = x * x
    return y


@pytest.mark.parametrize("x", [4.0, -3.0])
def test_the_derivative_is_that_of_the_path_that_was_taken(x: float) -> None:
    assert dl.grad(root_or_slope)(x) == pytest.approx(0.75 if x > 0 else 2 * x)
    assert dl.jvp(root_or_slope, (x,), (1.0,))[1] == pytest.approx(0.75 if x > 0 else 2 * x)


def quotient_or_root(x: Any) -> Any:
    try:
        return math.sqrt(x - 1) / (x - 2) + (x - 3) ** -1.0
    except ZeroDivisionError:
        return x * 5
    except ValueError:
        return x * x


@pytest.mark.parametrize(("x", "slope"), [(2.0, 5.0), (3.0, 5.0), (0.5, 1.0)])
def test_no_nan_of_what_was_not_computed_reaches_a_gradient(x: float, slope: float) -> None:
    assert dl.grad(quotient_or_root)(x) == pytest.approx(slope, rel=1e-6)


def test_lanes_take_handlers_of_their_own() -> None:
    xs = np.array([4.0, -3.0, 9.0])
    np.testing.assert_allclose(dl.vmap(root_or_slope)(xs), [6.0, 9.0, 9.0])


def of_grad(x: Any) -> Any:
    try:
        return dl.grad(root)(x)
    except ValueError:
        return x * 0 - 1.0


@pytest.mark.parametrize("x", [4.0, -3.0])
def test_an_error_within_a_derivative_is_caught(x: float) -> None:
    assert dl.compile(of_grad)(x) == pytest.approx(0.25 if x > 0 else -1.0)


def looked_up(table: Any, k: Any) -> Any:
    try:
        return table[k]
    except IndexError:
        return table[0] - 100


def test_errors_are_met_where_no_caller_is_in_python() -> None:
    table = np.array([1.0, 2.0])
    traced = trace(looked_up, table, np.int64(0))
    run = ReferenceProgram(traced.function)
    got = [float(run(table, np.array(k))[0]) for k in (-3, -2, 1, 2)]
    assert got == [-99.0, 1.0, 2.0, -99.0]
    assert dl.compile(looked_up, checks=False)(table, 5) == -99.0


def test_what_no_handler_takes_is_refused_without_a_caller() -> None:
    def f(x: Any) -> Any:
        try:
            return root(x)
        except KeyError:
            return x

    with pytest.raises(ProgramError, match="no handler takes it: ValueError") as refused:
        trace(f, np.float64(1.0))
    assert refused.value.code == "DL112"
    with pytest.raises(ValueError, match=r"the root of -2\.0"):
        dl.compile(f)(-2.0)


def filled(out: Any, values: Any) -> Any:
    count = 0
    try:
        for value in values:
            out[count] = math.sqrt(value)
            count += 1
    except (ValueError, IndexError):
        out[0] = -1.0
    return count


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("values", [[1.0, 4.0], [1.0, -4.0, 9.0], [1.0, 4.0, 9.0, 16.0]])
def test_arrays_keep_what_was_changed_before_the_error(backend: str, values: list[float]) -> None:
    mine, theirs, given = np.zeros(3), np.zeros(3), np.array(values)
    want = filled(theirs, given)
    assert dl.compile(filled, backend=backend)(mine, given) == want
    np.testing.assert_allclose(mine, theirs)


def passed_on(a: Any, b: Any) -> Any:
    try:
        try:
            c = a // b
        except KeyError:
            c = 1
        if c > 3:
            raise KeyError("c")
        c += 10
    except ZeroDivisionError:
        c = -1
    return c


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_goes_to_the_first_handler_that_takes_it(backend: str) -> None:
    run = dl.compile(passed_on, backend=backend)
    assert (run(6, 3), run(6, 0)) == (passed_on(6, 3), passed_on(6, 0)) == (12, -1)
    with pytest.raises(KeyError, match="c"):
        run(6, 1)


def endless_without_a_stop(x: Any) -> Any:
    k = 0
    try:
        while k < x:
            k += 10 // (3 - k)
    except ZeroDivisionError:
        k = -k
    return k


def test_a_loop_ends_with_its_error() -> None:
    assert dl.compile(endless_without_a_stop)(7) == endless_without_a_stop(7) == -3


def assigns_an_item(x, i):
    try:
        x[i] = 0.0
    except TypeError as e:
        return str(e), x + 1
    return "", x


@pytest.mark.parametrize("x", [2.5, 3, True, np.float64(2.5), np.float32(2.5), np.ones(3)])
def test_a_handler_takes_that_a_number_has_no_items(x: Any) -> None:
    words, want = assigns_an_item(np.copy(x) if np.ndim(x) else x, 0)

    def caught(x):
        return assigns_an_item(x, 0)[1]

    got = dl.compile(caught, backend="reference")(x)
    assert type(got) is type(want)
    assert np.array_equal(got, want)

    def raises(x):
        x[0] = 0.0
        return x

    if words:
        with pytest.raises(ProgramError, match="cannot be changed in place"):
            dl.compile(raises, backend="reference")(x)


def of_a_conditional(x: float) -> float:
    try:
        return {}["key"] if x > 2 else 1.0
    except KeyError:
        return 7.0


def of_the_right_of_and(x: float) -> float:
    try:
        found = x > 2 and [].index(True)
    except ValueError:
        found = False
    return 1.0 if found is False else 2.0


def of_a_chain(x: float) -> float:
    try:
        if 2.0 < x <= [].index(True):
            return 3.0
    except ValueError:
        return 7.0
    return 1.0


def of_the_words_of_an_assertion(x: float) -> float:
    try:
        assert x <= 2, [].index(True)
    except ValueError:
        return 7.0
    except AssertionError:
        return 5.0
    return 1.0


def of_nested_conditionals(x: float) -> float:
    z = 0.0
    try:
        z = z + 1.0 if x < 1 else ([].pop() if x > 2 else 9.0)
        z += 1
    except LookupError:
        z -= 1
    finally:
        z *= 2
    return z


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "f",
    [
        of_a_conditional,
        of_the_right_of_and,
        of_a_chain,
        of_the_words_of_an_assertion,
        of_nested_conditionals,
    ],
)
def test_a_known_error_is_raised_where_the_program_comes_to_it(f: Any, backend: str) -> None:
    compiled = dl.compile(f, backend=backend)
    for x in (0.5, 1.5, 3.0):
        assert compiled(x) == f(x)
