"""Calls that go from the caller's arguments straight to the program."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler import tree
from delian.core.compiler.backends.native import direct
from delian.core.compiler.backends.native.toolchain.toolchain import find

pytestmark = pytest.mark.skipif(find() is None, reason="needs a C compiler")

MANY = 40


def warm(f: Callable[..., Any], *args: Any) -> Any:
    """The compiled function after so many calls that they are direct ones."""
    run = dl.compile(f, threads=1)
    for _ in range(MANY):
        run(*tree.map(lambda v: v.copy() if isinstance(v, np.ndarray) else v, args))
    assert run._direct is not None, "calls with these arguments are not direct"
    return run


def same(got: Any, want: Any) -> bool:
    if type(got) is not type(want):
        return False
    if isinstance(want, tuple | list):
        return len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, dict):
        return list(got) == list(want) and all(map(same, got.values(), want.values()))
    if isinstance(want, np.ndarray | np.generic):
        return got.dtype == want.dtype and got.shape == want.shape and np.array_equal(got, want)
    return bool(got == want)


X = np.arange(6.0).reshape(2, 3)


def one_array(x):
    return x * 2.0


def numbers(x, a, n, yes):
    return x.sum(), a * 2.0, n + 1, not yes, x[0, 1] > a


def nested(x, a):
    return {"b": [x + a, a], "a": (x.shape[0], x[:, 0])}


def small_types(x):
    return x + x, x.astype(np.float32), x.astype(np.int32), np.float32(2) * x[0, 0]


def with_a_shape(x, n):
    return np.zeros(n) + x.sum()


def large(x):
    return (x[:, None, :] * x[None, :, :] @ x.T).sum(1) @ np.ones((2, 700))


def without_arguments():
    return np.arange(3.0)


def twenty(*x):
    return sum(x), [v + 1.0 for v in x]


CASES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (one_array, (X,)),
    (one_array, (np.empty((0, 3)),)),
    (one_array, (np.array(3.0),)),
    (numbers, (X, 1.5, 7, True)),
    (numbers, (X, -0.0, -(2**63) + 5, False)),
    (nested, (X, 2.0)),
    (small_types, (X.astype(np.float32),)),
    (with_a_shape, (X, 4)),
    (large, (X,)),
    (without_arguments, ()),
    (twenty, tuple(np.full(3, float(k)) for k in range(20))),
]


@pytest.mark.parametrize(("f", "args"), CASES)
def test_results_are_those_of_python(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    run = warm(f, *args)
    got = run._direct(*args)
    assert got is not NotImplemented
    assert same(got, f(*args)), (got, f(*args))


class Own(np.ndarray):
    """A class of arrays that is not NumPy's own."""


OTHERS: list[tuple[Any, ...]] = [
    (X.astype(np.float32), 1.0),
    (X.astype(">f8"), 1.0),
    (np.ones((3, 2)), 1.0),
    (np.ones(6), 1.0),
    (np.asfortranarray(X), 1.0),
    (X[:, ::2], 1.0),
    (X.view(Own), 1.0),
    (X, 1),
    (X, True),
    (X, np.float64(1.0)),
    (X.tolist(), 1.0),
    (2.0, 1.0),
    (X,),
    (X, 1.0, 2.0),
]


@pytest.mark.parametrize("others", OTHERS)
def test_other_arguments_are_left_to_the_long_way(others: tuple[Any, ...]) -> None:
    assert warm(lambda x, a: (x, a), X, 2.0)._direct(*others) is NotImplemented


def test_other_arguments_give_their_own_results() -> None:
    def f(x, a):
        return x * a

    run = warm(f, X, 2.0)
    for args in [(X[:, ::2], 1.0), (X, 3), (X.astype(np.float32), 2.0), (X, 2.0), (X.T, 2.0)]:
        assert same(run(*args), f(*args))
    assert same(run(x=X, a=4.0), f(X, 4.0))
    with pytest.raises(dl.DelianError, match="takes 2 arguments, not 3"):
        run(X, 1.0, 2.0)


def test_an_int_that_has_more_than_64_bits_is_no_direct_argument() -> None:
    run = warm(lambda n: n + 1, 5)
    assert run._direct(2**70) is NotImplemented and run._direct(-1) == 0


def test_a_number_that_a_shape_needs_is_compared() -> None:
    run = warm(with_a_shape, X, 4)
    assert run._direct(X, 5) is NotImplemented and run._direct(X, True) is NotImplemented
    assert same(run(X, 5), with_a_shape(X, 5)) and same(run(X, 4), with_a_shape(X, 4))


scale = 2.0
weights = np.ones(3)
config = {"rate": 1.0}


def outside(x):
    return x * scale * config["rate"] + weights


def test_what_is_read_from_outside_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    run = warm(outside, X)
    assert same(run._direct(X), outside(X))
    monkeypatch.setitem(globals(), "scale", 3.0)
    assert run._direct(X) is NotImplemented and same(run(X), outside(X))
    run = warm(outside, X)
    monkeypatch.setitem(config, "rate", 0.5)
    assert run._direct(X) is NotImplemented and same(run(X), outside(X))
    run = warm(outside, X)
    weights[0] += 1.0
    assert run._direct(X) is NotImplemented and same(run(X), outside(X))


def test_a_function_that_only_reads_names_of_modules_calls_nothing_of_python() -> None:
    def f(x):
        return np.sqrt(x) * scale

    run = warm(f, X)
    seen: list[str] = []
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    try:
        run._direct(X)
    finally:
        sys.setprofile(None)
    assert "call" not in seen


def changed(x, k):
    x[k] += 1.0
    return x.sum()


def test_arrays_of_the_caller_change() -> None:
    run = warm(changed, np.zeros(4), 2)
    x, y = np.arange(4.0), np.arange(4.0)
    assert same(run._direct(x, 2), changed(y, 2)) and same(x, y)


def test_an_error_leaves_the_arrays_as_they_were() -> None:
    run = warm(changed, np.zeros(4), 2)
    x = np.arange(4.0)
    assert run._direct(x, 7) is NotImplemented
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        run(x, 7)
    assert same(x, np.arange(4.0))
    assert same(run(x, 3), 7.0 * np.float64(1)) and x[3] == 4.0


def raises(x, a):
    if a < 0:
        raise ValueError(f"{a} is negative")
    return x * a


def test_errors_are_raised_with_their_words() -> None:
    run = warm(raises, X, 1.0)
    with pytest.raises(ValueError, match=r"^-2.5 is negative"):
        run(X, -2.5)
    assert same(run(X, 2.5), X * 2.5)


def both_change(x, y):
    x[0] = 5.0
    y[1] = x[0] + y[0]


def test_arrays_that_overlap_or_are_read_only_are_left_to_the_long_way() -> None:
    run = warm(both_change, np.zeros(3), np.zeros(3))
    whole = np.zeros(8)
    assert run._direct(whole[:3], whole[2:5]) is NotImplemented
    with pytest.raises(dl.DelianError, match="another argument shares its memory"):
        run(whole[:3], whole[2:5])
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    assert run._direct(np.zeros(3), frozen) is NotImplemented
    with pytest.raises(dl.DelianError, match="read-only"):
        run(np.zeros(3), frozen)
    assert run._direct(whole[:3], whole[3:6]) is None
    assert whole.tolist() == [5, 0, 0, 0, 5, 0, 0, 0]


def test_an_argument_that_only_is_read_may_be_read_only() -> None:
    run = warm(one_array, X)
    frozen = X.copy()
    frozen.flags.writeable = False
    assert same(run._direct(frozen), X * 2.0)


def test_nothing_is_held_after_a_call() -> None:
    run = warm(nested, X, 2.0)
    a = 1234.5
    watched = (X, a, None, True, X.dtype, NotImplemented)
    before = [sys.getrefcount(v) for v in watched]
    for _ in range(200):
        run._direct(X, a)
        run._direct(X)
        run._direct(X.T, a)
    after = [sys.getrefcount(v) for v in watched]
    # A leak of one reference a call is 200; what other threads do with None is a few tens.
    assert max(abs(x - y) for x, y in zip(before, after, strict=True)) < 150


def test_many_threads_call_at_once() -> None:
    def f(x, n):
        y = x.copy()
        for _ in range(n):
            y = np.sin(y @ y)
        return y

    x = np.random.default_rng(0).random((30, 30))
    run = warm(f, x, 2)
    want = {n: f(x, n) for n in range(1, 9)}
    wrong: list[int] = []

    def call(n: int) -> None:
        for _ in range(20):
            if not np.allclose(run(x, n), want[n]):
                wrong.append(n)

    threads = [threading.Thread(target=call, args=(n,)) for n in want]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("args", [((X, X),), ([1.0, 2.0],), ({"a": X},)])
def test_trees_go_the_long_way(args: tuple[Any, ...]) -> None:
    run = dl.compile(lambda x: x, threads=1)
    for _ in range(MANY):
        run(*args)
    assert run._direct is None


def test_a_python_of_other_fields_goes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_is_known_array", lambda array: False)
    direct._library.cache_clear()
    try:
        run = dl.compile(one_array, threads=1)
        for _ in range(MANY):
            assert same(run(X), X * 2.0)
        assert run._direct is None
    finally:
        direct._library.cache_clear()


def test_debugging_runs_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def f(x):
        ran.append(1)
        return x + 1.0

    run = dl.compile(lambda x: x + 1.0, threads=1)
    for _ in range(MANY):
        run(X)
    monkeypatch.setattr(run, "__wrapped__", f)
    monkeypatch.setattr(dl.core.compiler.debugging, "on", True)
    run(X)
    assert ran
