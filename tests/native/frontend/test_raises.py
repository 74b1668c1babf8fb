"""Errors of the running program: through derivatives, lanes and back ends (`programs/raises.txt`
has the programs themselves).
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler.frontend import trace

TABLE = np.array([4.0, 9.0, -1.0, -2.0])


def root(x: Any) -> Any:
    if x < 0:
        raise ValueError(f"the root of {x}")
    return np.sqrt(x)


def total(xs: Any) -> Any:
    out = 0.0
    for x in xs:
        out = out + root(x)
    return out


def scaled(xs: Any) -> Any:
    return xs * total(xs)


def _pulled(xs: Any) -> Any:
    value, pullback = dl.vjp(total, xs)
    return value, pullback(1.0)


def _linear(xs: Any) -> Any:
    value, push = dl.linearize(total, xs)
    return value, push(np.ones(4)), push(np.zeros(4))


#: Functions of `total` or `root` that meet its error.
TRANSFORMED = {
    "grad": dl.grad(total),
    "value_and_grad": dl.value_and_grad(total),
    "vjp": _pulled,
    "linearize": _linear,
    "jvp": lambda xs: dl.jvp(total, (xs,), (xs,)),
    "jacfwd": dl.jacfwd(scaled),
    "jacrev": dl.jacrev(scaled),
    "hessian": dl.hessian(total),
    "checkpoint": dl.grad(dl.checkpoint(total)),
    "checkpoint in segments": dl.grad(dl.checkpoint(total, every=2)),
    "mixed precision": dl.mixed_precision(total),
    "vmap": dl.vmap(root),
    "vmap of grad": dl.vmap(dl.grad(root)),
    "grad of vmap": dl.grad(lambda xs: np.sum(dl.vmap(root)(xs))),
    "vmap of vmap": lambda xs: dl.vmap(dl.vmap(root))(xs.reshape(2, 2)),
    "vmap of a loop": lambda xs: dl.vmap(total)(xs.reshape(2, 2)),
}


def _raises(f: Any) -> None:
    with pytest.raises(ValueError) as caught:
        f(TABLE)
    assert str(caught.value) == "the root of -1.0"


@pytest.mark.parametrize("name", TRANSFORMED)
def test_through_derivatives_and_lanes(name: str) -> None:
    f = dl.compile(TRANSFORMED[name], backend="reference")
    _raises(f)
    dl.tree.map(lambda x: np.testing.assert_(np.all(np.isfinite(x))), f(abs(TABLE)))


def test_derivatives_that_meet_no_error_are_as_without_the_check() -> None:
    def free(xs: Any) -> Any:
        return np.sum(np.sqrt(xs))

    for g in (dl.grad, dl.hessian):
        got = dl.compile(g(total), backend="reference")(abs(TABLE))
        np.testing.assert_allclose(got, dl.compile(g(free), backend="reference")(abs(TABLE)))


@pytest.mark.parametrize("backend", ["reference", "native", "torch:cpu"])
def test_in_every_back_end(backend: str) -> None:
    if backend.startswith("torch"):
        pytest.importorskip("torch")
    f = dl.compile(total, backend=backend)
    _raises(f)
    assert f(abs(TABLE)) == pytest.approx(total(abs(TABLE)))


def test_a_derivative_that_is_called_from_python_raises() -> None:
    _raises(dl.grad(total))


def test_the_error_shows_the_users_line() -> None:
    with pytest.raises(ValueError) as caught:
        dl.compile(root)(-1.0)
    said = "".join(traceback.format_exception_only(caught.value))
    assert "test_raises.py:" in said
    assert 'raise ValueError(f"the root of {x}")' in said


def test_each_call_raises_an_error_of_its_own() -> None:
    @dl.compile
    def f(x: Any) -> Any:
        if x < 0:
            raise KeyError("x")
        return x

    errors = []
    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            f(-1.0)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert len(errors[1].__notes__) == 1


class Limit(Exception):
    def __init__(self, value: float, *, most: float) -> None:
        super().__init__(f"{value} > {most}")
        self.value = value


def test_an_error_of_the_users_own_class() -> None:
    @dl.compile
    def f(x: Any) -> Any:
        if x > 2:
            raise Limit(x, most=2)
        return x

    with pytest.raises(Limit, match=r"3\.5 > 2") as caught:
        f(3.5)
    assert caught.value.value == 3.5


def test_the_callers_arrays_stay_as_they_were() -> None:
    @dl.compile
    def f(x: Any) -> Any:
        x[0] = 5.0
        if x[1] < 0:
            raise ValueError("negative")

    x = np.array([1.0, -1.0])
    with pytest.raises(ValueError, match="negative"):
        f(x)
    assert x.tolist() == [1.0, -1.0]
    x[1] = 1.0
    f(x)
    assert x.tolist() == [5.0, 1.0]


def test_without_checks_assertions_are_left_out_and_errors_stay() -> None:
    @dl.compile(checks=False)
    def f(x: Any) -> Any:
        assert x < 3
        if x > 4:
            raise ValueError(x)
        return x

    assert f(3.5) == 3.5
    with pytest.raises(ValueError, match=r"4\.5"):
        f(4.5)


def test_a_program_without_a_caller_in_python() -> None:
    """A bundle's: assertions are left out, and errors refused."""

    def asserted(x: Any) -> Any:
        assert x > 0
        return x

    made = trace(asserted, 1.5)
    assert not made.function.body.ops and not made.hidden
    with pytest.raises(ProgramError, match="DL112: the numbers of the running program decide"):
        trace(root, 1.5)


def test_a_program_without_errors_has_no_code() -> None:
    made = trace(lambda x: x + 1, 1.5, raises=True)
    assert made.hidden == 0 and len(made.function.body.results) == 1


def test_indices_that_are_known_to_be_in_range_are_not_checked() -> None:
    def f(x: Any) -> Any:
        out = x.copy()
        for i in range(1, len(x) - 1):
            out[i] = x[i - 1] + x[i + 1] + x[-i] + x[i // 2] + x[len(x) - 1 - i] + x[(3 * i) % 4]
            for j in range(i + 1, len(x)):
                out[j] += x[j - i]
        return out

    assert not trace(f, np.zeros(8), raises=True).hidden


def test_an_index_is_checked_once_in_a_block() -> None:
    def f(x: Any, i: Any) -> Any:
        return x[i] * x[i] + x[i]

    assert len(trace(f, np.zeros(8), 3, raises=True).faults) == 1


def test_a_check_that_an_attempt_undid_is_made_again() -> None:
    """The loop is first tried as a loop of the IR, then unrolled for the tuple's sake."""

    def f(x: Any, i: Any) -> Any:
        total = 0.0
        for n in range(2):
            total += x[i] * (1, 2)[n]
        return total

    for checked in (dl.compile(f, backend="reference"), dl.compile(f)):
        with pytest.raises(IndexError, match="index 9 is out of bounds for axis 0 with size 8"):
            checked(np.zeros(8), 9)


def test_without_checks_an_index_is_moved() -> None:
    f = dl.compile(lambda x, i: x[i], backend="reference", checks=False)
    assert f(np.arange(3.0), 7) == 2.0


def test_checks_through_derivatives_and_lanes() -> None:
    def f(x: Any, i: Any) -> Any:
        return np.sum(x[i] ** 2)

    x = np.arange(3.0)
    lanes = dl.vmap(f, in_axes=(None, 0))
    for g, i in (
        (dl.grad(f), 5),
        (dl.hessian(f), np.array([1, -8])),
        (lanes, np.array([1, 2, 4, 9])),
        (dl.grad(lambda x, i: np.sum(lanes(x, i))), np.array([0, 3])),
    ):
        bad = next(n for n in np.ravel(i) if not -3 <= n < 3)
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
            dl.compile(g, backend="reference")(x, i)


def _down(a: Any, n: Any) -> Any:
    return a if n <= 0 else _down(a + 1, n - 1)


def test_a_recursion_that_python_cuts_off_raises_its_error() -> None:
    compiled = dl.compile(_down, backend="reference")
    assert compiled(1.0, 500.5) == _down(1.0, 500.5)
    for rounds in (float("nan"), sys.getrecursionlimit() + 1.0):
        with pytest.raises(RecursionError, match="maximum recursion depth exceeded"):
            compiled(1.0, rounds)
