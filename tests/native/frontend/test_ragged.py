"""Arrays whose length the data decide: as NumPy's, with its errors, on each back end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler import tree
from support.frontend_programs.ragged_cases import ARRAYS, FUNCTIONS, REFUSED, SAME, VALUES, VIEWS

CASES = [*SAME, *FUNCTIONS]


def arguments(f: Callable[..., Any]) -> list[Any]:
    return [VALUES[n] for n in inspect.signature(f).parameters]


def outcome(f: Callable[..., Any], args: list[Any]) -> Any:
    with np.errstate(all="ignore"):
        try:
            return f(*args)
        except (ValueError, IndexError) as e:
            return type(e), str(e)


def words(f: Any) -> str:
    line = inspect.getsource(f).strip().splitlines()[0]
    return line.removeprefix("lambda ").rstrip(",")[:70]


def assert_same(got: Any, want: Any) -> None:
    made, structure = tree.flatten(got)
    wanted, expected = tree.flatten(want)
    assert structure == expected, (got, want)
    for x, y in zip(made, wanted, strict=True):
        if isinstance(y, str | type):
            assert x == y
            continue
        assert type(x) is type(y), (x, y)
        assert np.shape(x) == np.shape(y), (x, y)
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("f", CASES, ids=words)
def test_as_numpy(f: Callable[..., Any]) -> None:
    assert_same(outcome(dl.compile(f, backend="reference"), arguments(f)), outcome(f, arguments(f)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("f", FUNCTIONS, ids=words)
def test_natively(f: Callable[..., Any]) -> None:
    assert_same(outcome(dl.compile(f), arguments(f)), outcome(f, arguments(f)))


@pytest.mark.parametrize(("f", "said"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_refused(f: Callable[..., Any], said: str) -> None:
    with pytest.raises(ProgramError) as caught:
        dl.compile(f, backend="reference")(*arguments(f))
    text = str(caught.value)  # It shows the line of the program too, which has `said` in it.
    assert said in text.splitlines()[0]
    assert not text.startswith("DL121")


@pytest.mark.parametrize("make", VIEWS, ids=words)
def test_what_may_share_memory_is_not_changed(make: Callable[..., Any]) -> None:
    def shown(w: Any, h: Any) -> Any:
        return make(w[h])

    def one_changed(w: Any, h: Any) -> Any:
        rows = w[h]
        view = make(rows)
        view += 1
        return rows

    def other_changed(w: Any, h: Any) -> Any:
        rows = w[h]
        view = make(rows)
        rows += 1
        return view

    assert_same(dl.compile(shown, backend="reference")(*arguments(shown)), shown(*arguments(shown)))
    for f, said in ((one_changed, "may be one of several"), (other_changed, "in place since")):
        with pytest.raises(ProgramError, match=said):
            dl.compile(f, backend="reference")(*arguments(f))


@pytest.mark.parametrize("make", ARRAYS, ids=words)
def test_the_array_itself_or_a_copy(make: Callable[..., Any]) -> None:
    def f(w: Any, h: Any) -> Any:
        rows = w[h]
        made = make(rows)
        made += 1
        rows *= 2
        return rows, made

    assert_same(dl.compile(f, backend="reference")(*arguments(f)), f(*arguments(f)))


def test_weights_that_sum_to_zero_fail() -> None:
    def f(x: Any) -> Any:
        kept = x[x > 0]
        return np.average(kept, weights=kept * 0)

    with pytest.raises(ZeroDivisionError, match="Weights sum to zero"):
        dl.compile(f, backend="reference")(VALUES["x"])


#: Losses of x, with no point near where a mask changes.
LOSSES: list[Any] = [
    lambda x: np.sum(x[x > 0] ** 2),
    lambda x: np.mean(np.log(x[x > 0])),
    lambda x: np.std(x[x > 0]) + np.median(x[x > 0]) * x[x > 0].max(),
    lambda x: np.sum(np.sort(x[x > 0]) * np.cumsum(x[x > 0])),
    lambda x: np.linalg.norm(x[np.where(x > 0)[0]]) / x[x > 0][0],
    lambda x: np.sum(np.diff(x[x > 0]) ** 2) + x[x > 0][-1] ** 3 + x[x > 0][1:].prod(),
    lambda x: np.sum(np.sqrt(x[x > 100])) + np.sum(1 / x[x > 100]) + x[x > 2].sum(),
    lambda x: np.sum(1 / np.concatenate([x[x > 0], x[x < 0] * 2])),
    lambda x: written(x),
    lambda x: walked(x),
]


def written(x: Any) -> Any:
    z = x * 2
    z[z > 0] = x[x > 0] ** 2
    z[np.where(x < 0)[0]] *= z[0]
    return z.sum()


def walked(x: Any) -> Any:
    total = 0.0
    for v in x[x > 0]:
        total = np.sin(total * v) + v
    return total


@pytest.mark.parametrize("f", LOSSES, ids=words)
def test_gradients_are_those_of_differences(f: Callable[..., Any]) -> None:
    x, step = VALUES["x"] + np.arange(7) * 0.01, 1e-6  # No two are equal.
    got = dl.compile(dl.grad(f), backend="reference")(x)
    shifts = np.eye(x.size) * step
    want = [(f(x + d) - f(x - d)) / (2 * step) for d in shifts]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    twice = dl.compile(dl.grad(lambda x: np.sum(dl.grad(f)(x) ** 2)), backend="reference")(x)
    slopes = dl.compile(dl.grad(f), backend="reference")
    norms = [(np.sum(slopes(x + d) ** 2) - np.sum(slopes(x - d) ** 2)) / (2 * step) for d in shifts]
    np.testing.assert_allclose(twice, norms, rtol=1e-4, atol=1e-4)
    along = dl.jvp(f, (x,), (np.ones(7),))[1]
    np.testing.assert_allclose(along, np.sum(got), rtol=1e-9)


def test_each_lane_has_its_own_length() -> None:
    x = np.random.default_rng(0).normal(size=(5, 8))

    def f(x: Any) -> Any:
        kept = x[x > 0]
        return kept.mean(), np.sort(kept)[0], len(kept)

    got = dl.vmap(f)(x)
    np.testing.assert_allclose(got, np.array([f(row) for row in x]).T)
    with pytest.raises(IndexError, match="index 0 is out of bounds for axis 0 with size 0"):
        dl.vmap(f)(-np.abs(x))


def test_what_has_no_meaning_for_a_length_of_the_data_is_refused() -> None:
    x = VALUES["x"]
    for f in (dl.vmap(lambda x: x[x > 0]), lambda x: dl.jvp(lambda x: x[x > 0], (x,), (x,))):
        with pytest.raises(ProgramError, match="which the data decide"):
            f(np.stack([x, x]))
    with pytest.raises(ProgramError, match="no gradient with respect to"):
        dl.compile(lambda x: dl.grad(np.sum)(x[x > 0]))(x)


def test_without_checks_nothing_is_raised() -> None:
    f = dl.compile(lambda x, k: x[x > 0][k], checks=False)
    assert f(VALUES["x"], 100) == 4.0


def test_lengths_of_one_are_repeated() -> None:
    x = np.array([1.0, 2.0, 3.0])
    f = dl.compile(lambda x, y: (x[x > 2] + y[y > 0], x[x > 2] * np.arange(3.0)))
    for y in (x, -x, np.array([-1.0, 5.0, -2.0])):
        want = x[x > 2] + y[y > 0], x[x > 2] * np.arange(3.0)
        assert_same(f(x, y), want)
