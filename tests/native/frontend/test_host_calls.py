"""`print` and loggers in compiled functions: Python makes the calls once the program has run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler.frontend import trace

LOG = logging.getLogger("delian.tests.host_calls")
X = np.array([1.0, -2.0, 3.0])


def plain(x: Any) -> Any:
    print("x:", x, x.sum(), [x[0], {"n": x.size}], f"{x[1]:.2f}", sep=" | ", end=".\n")
    return x


def in_branches(x: Any) -> Any:
    if x[0] > 0:
        print("above")
    elif x[1] > 0:
        print("never")
    return x


def changed_later(x: Any) -> Any:
    x = x.copy()
    items = [x[0]]
    print(x, items)
    x[0] = 7.0
    items.append(2.0)
    print(x, items)
    return x


def in_loops(x: Any) -> Any:
    for k, v in enumerate(x):
        if v < 0:
            continue
        print(k, v)
    for k in range(40):
        if k > x[2]:
            print("ends at", k)
            break
    return x


def in_a_gradient(x: Any) -> Any:
    def f(x: Any) -> Any:
        print("in f", x[0])
        return np.sum(x * x)

    return dl.value_and_grad(f)(x)


def around_an_error(x: Any) -> Any:
    print("before", x[0])
    if x[1] < 0:
        raise ValueError("negative")
    print("after")
    return x


def in_a_handler(x: Any) -> Any:
    try:
        y = 1 / (x[0] - 1.0).item()
    except ZeroDivisionError:
        print("by zero")
        y = 0.0
    return y


FUNCTIONS = (
    *(plain, in_branches, changed_later, in_loops, in_a_gradient, around_an_error),
    in_a_handler,
)


def _said(f: Callable[..., Any], x: Any, capsys: Any) -> list[str]:
    lines = []
    try:
        f(x)
    except ValueError as e:
        lines.append(str(e))
    return [capsys.readouterr().out, *lines]


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_program_prints_what_python_prints(f: Any, backend: str, capsys: Any) -> None:
    compiled = dl.compile(f, backend=backend)
    for x in (X, abs(X), X - 9.0):
        want = _said(f, x, capsys)
        assert _said(compiled, x, capsys) == want
    assert _said(f, X, capsys)[0]


def test_each_call_prints(capsys: Any) -> None:
    f = dl.compile(plain, backend="native")
    want = _said(plain, X, capsys)
    for _ in range(40):  # From the sixteenth on, calls may take a shorter way.
        assert _said(f, X, capsys) == want


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_loggers(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Any) -> Any:
        LOG.info("x[0] is %s", x[0])
        logging.getLogger("delian.tests.other").warning("%d", x.size)
        LOG.debug("not shown")
        logging.error("%s", x)
        return x

    with caplog.at_level(logging.INFO):
        dl.compile(f, backend=backend)(X)
    got = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
    assert got == [
        (LOG.name, "INFO", "x[0] is 1.0"),
        ("delian.tests.other", "WARNING", "3"),
        ("root", "ERROR", "[ 1. -2.  3.]"),
    ]


def _endless(x: Any) -> Any:
    v = x[0]
    while v < 10:
        v = v * 2
        print(v)
    return v


def _lanes(x: Any) -> Any:
    return dl.vmap(lambda v: (print(v), v)[1])(x)


def _tried(x: Any) -> Any:
    try:
        print(1 / x[0].item())
    except ZeroDivisionError:
        return 0.0
    return 1.0


def _large(x: Any) -> Any:
    print(np.zeros(200_000) + x[0])
    return x


@pytest.mark.parametrize(
    ("f", "code", "words"),
    [
        (_endless, "DL106", "in a loop that cannot be unrolled"),
        (_lanes, "DL106", "in `dl.vmap`"),
        (_tried, "DL102", "within a `try`"),
        (_large, "DL112", "`print` cannot hold f64[200000]"),
    ],
)
def test_what_is_refused(f: Any, code: str, words: str) -> None:
    with pytest.raises(ProgramError) as caught:
        dl.compile(f, backend="reference")(X)
    assert caught.value.code == code
    assert words in caught.value.message


def test_a_program_without_a_caller_in_python_prints_nothing() -> None:
    with pytest.raises(ProgramError, match="no caller in Python") as caught:
        trace(plain, X)
    assert caught.value.code == "DL106"


class Written:
    def __init__(self, v: Any) -> None:
        self.v = v
        self.log = [0]


class Counting(Written):
    def __str__(self) -> str:
        self.v = self.v + 1
        return "counting"


class Logging(Written):
    def __repr__(self) -> str:
        self.log.append(1)
        return "logging"


class Pure(Written):
    def __str__(self) -> str:
        parts = []
        parts.append("pure")
        return " ".join(parts)


@pytest.mark.parametrize("kind", [Counting, Logging])
def test_an_object_that_changes_when_it_is_written_is_refused(kind: Any) -> None:
    def f(x: Any) -> Any:
        o = kind(x)
        print([o], f"{o}")
        return o.v

    with pytest.raises(ProgramError, match=f"of `{kind.__name__}` changes something"):
        dl.compile(f, backend="reference")(X)


def test_the_text_of_an_object_may_be_made_in_steps(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        print(Pure(x))
        return x

    dl.compile(f, backend="reference")(X)
    assert capsys.readouterr().out == "pure\n"
