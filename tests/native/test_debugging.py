"""Plain Python in the place of programs: what prints, stops and asserts in a function whose
derivative is taken, and where numbers stop being finite.
"""

from __future__ import annotations

import pdb
import warnings

import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler import api, debugging
from delian.core.learning.nn import Dense

X = np.array([1.0, -2.0, 3.0], np.float32)
STOPS = []


@pytest.fixture(autouse=True)
def debug(monkeypatch):
    monkeypatch.setattr(debugging, "on", True)
    monkeypatch.setattr(debugging, "_said", {})
    STOPS.clear()


def loud(x):
    print("x is", float(x[0]), f"{x.sum():.1f}")
    if np.max(x) > 2.0:
        breakpoint()
    pdb.set_trace()
    return np.sum(x**3)


@pytest.fixture
def no_prompt(monkeypatch):
    monkeypatch.setattr("sys.breakpointhook", lambda *a, **k: STOPS.append("breakpoint"))
    monkeypatch.setattr(pdb, "set_trace", lambda *a, **k: STOPS.append("pdb"))
    pdb.set_trace.__name__ = "set_trace"


def test_a_derivative_s_function_prints_and_stops(no_prompt, capsys):
    np.testing.assert_allclose(api.grad(loud)(X), 3 * X**2)
    assert capsys.readouterr().out == "x is 1.0 2.0\n"
    assert STOPS == ["breakpoint", "pdb"]
    np.testing.assert_allclose(api.compile(api.grad(loud))(X), 3 * X**2)
    assert capsys.readouterr().out == "x is 1.0 2.0\n"


def test_so_does_one_of_a_derivative_of_a_derivative(no_prompt, capsys):
    inner = lambda x: np.sum(api.grad(loud)(x))  # noqa: E731
    np.testing.assert_allclose(api.grad(inner)(X), 6 * X)
    value, tangent = api.jvp(loud, (X,), (X,))
    assert (value, tangent) == (pytest.approx(20.0), pytest.approx(60.0))
    value, pull = api.vjp(loud, X)
    np.testing.assert_allclose(pull(np.float32(1))[0], 3 * X**2)
    assert capsys.readouterr().out == "x is 1.0 2.0\n" * 3


def test_without_it_what_stops_is_refused(monkeypatch):
    monkeypatch.setattr(debugging, "on", False)
    with pytest.raises(ProgramError, match="DELIAN_DEBUG=1"):
        api.grad(lambda x: breakpoint())(X)


def test_without_it_a_derivative_s_program_prints(monkeypatch, capsys):
    monkeypatch.setattr(debugging, "on", False)
    got = api.grad(lambda x: (print(x[0]), np.sum(x**3))[1])(X)
    np.testing.assert_allclose(got, 3 * X**2)
    assert capsys.readouterr().out == f"{X[0]}\n"


def test_an_assertion_about_tensors_is_judged():
    def f(x):
        assert np.all(x > 0), "all above zero"
        return np.sum(x)

    np.testing.assert_array_equal(api.grad(f)(np.abs(X)), np.ones(3))
    with pytest.raises(AssertionError, match="all above zero"):
        api.grad(f)(X)


def said(f, *args):
    """The lines of this file that were named, with what was said of them by programs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f(*args)
    return [
        (w.lineno, str(w.message))
        for w in caught
        if w.filename == __file__ and "of finite numbers" in str(w.message)
    ]


def test_the_line_that_makes_a_nan_is_named_once():
    def f(x):
        y = np.log(x)
        return np.sum(y * 2.0)

    line = f.__code__.co_firstlineno + 1
    both = api.value_and_grad(f)
    assert said(both, X) == [(line, "NaN of finite numbers, by `log`")]
    assert said(both, np.abs(X)) == []


def test_nothing_is_said_any_more_where_nobody_debugs(monkeypatch):
    f = api.value_and_grad(lambda x: np.sum(np.log(x)))
    assert said(f, X)
    monkeypatch.setattr(debugging, "on", False)
    assert not said(f, -X)


def test_a_derivative_that_is_infinite_is_named_where_its_function_is_finite():
    def f(x):
        return np.sum(np.sqrt(x))

    ((line, text),) = said(api.grad(f), np.zeros(3, np.float32))
    assert line == f.__code__.co_firstlineno + 1 and text.startswith("infinity of finite numbers")


def test_of_the_library_s_lines_the_user_s_call_is_named():
    layer = Dense(np.full((3, 2), 3e38, np.float32), np.zeros(2, np.float32))

    def f(x):
        return np.sum(layer(x))

    ((line, text),) = said(api.value_and_grad(f), np.ones((1, 3), np.float32))
    assert line == f.__code__.co_firstlineno + 1 and text == "infinity of finite numbers, by `dot`"


def test_a_derivative_is_made_once_for_a_function():
    """A step of a training that is debugged makes none anew."""
    f = lambda x: np.sum(x * x)  # noqa: E731
    first = [api.grad(f)(X), api.grad(f)(X + 1)]
    np.testing.assert_allclose(first[1], 2 * (X + 1))
    made = debugging_derivative(f)
    assert len(made._compiled._entries) == 1


def debugging_derivative(f):
    return api._derivatives["grad", f, 0, False]
