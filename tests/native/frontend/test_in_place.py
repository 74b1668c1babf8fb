"""Changes in place are NumPy's, or refused: values, types and shapes of the results and of the
caller's arrays, on both back ends, with gradients.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler import tree
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import DType, TensorType
from support import vocabulary_cases as vocabulary
from support.frontend_programs import in_place_functions as functions
from support.frontend_programs import in_place_loops as loops
from support.frontend_programs import in_place_refused as refused

X = np.array([3.0, 1.0, 2.0, 0.5])
EQUAL = [f for m in (functions, loops) for f in vars(m).values() if type(f) is FunctionType]


def argument(f: Callable[..., Any]) -> Any:
    return np.outer(X, X) if "m" in inspect.signature(f).parameters else X.copy()


def assert_alike(got: Any, want: Any, what: str, tolerance: float = 1e-9) -> None:
    left, right = tree.leaves(got), tree.leaves(want)
    assert len(left) == len(right), what
    for x, y in zip(left, right, strict=True):
        assert type(x) is type(y) and np.shape(x) == np.shape(y), what
        assert np.asarray(x).dtype == np.asarray(y).dtype, what
        np.testing.assert_allclose(x, y, tolerance, tolerance, err_msg=what)


@pytest.mark.parametrize("f", EQUAL, ids=lambda f: f.__name__)
def test_the_reference_back_end_is_numpy(f: Callable[..., Any]) -> None:
    mine, theirs = argument(f), argument(f)
    want = f(theirs)
    got = dl.compile(f, backend="reference")(mine)
    assert_alike((got, mine), (want, theirs), f.__name__)


def test_native_code_is_numpy() -> None:
    """All of them in one program."""
    vectors = [f for f in EQUAL if "m" not in inspect.signature(f).parameters]

    def everything(x: Any) -> list[Any]:
        return [f(x.copy()) for f in vectors]

    assert_alike(dl.compile(everything)(X.copy()), everything(X.copy()), "native")


@pytest.mark.parametrize("name", sorted(refused.REFUSED))
def test_what_cannot_be_equal_is_refused(name: str) -> None:
    f = getattr(refused, name)
    with pytest.raises(ProgramError) as raised:
        dl.compile(f, backend="reference")(argument(f))
    assert raised.value.code == refused.REFUSED[name]
    assert raised.value.locs[0].file == refused.__file__


V = np.arange(1.0, 5.0)
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("returns_nothing", (V,)),
    ("returns_nothing", (np.arange(4),)),
    ("returns_nothing", (np.arange(8.0)[::2],)),
    ("one_of_two_arguments", (V, V + 1)),
    ("a_view_of_a_result", (V,)),
    ("arguments_in_a_dict", ({"a": V, "b": V + 2},)),
    ("an_alias_of_an_argument", (V,)),
    ("rows_of_an_argument", (np.outer(V, V),)),
    ("rows_of_an_argument", (np.outer(V, V + 1).T,)),
    ("a_branch_that_changes_it", (V,)),
    ("ravel_of_an_argument", (np.outer(V, V),)),
    ("reshape_of_an_argument", (np.outer(V, V),)),
    ("ravel_of_a_vector", (V,)),
    ("whatever_it_is", (np.array(3.0),)),
    ("whatever_it_is", (np.float64(3.0),)),
    ("whatever_it_is", (3,)),
]


@pytest.mark.parametrize(("name", "args"), CALLS)
def test_a_call_changes_the_callers_arrays(name: str, args: tuple[Any, ...]) -> None:
    f = getattr(refused, name)
    mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
    want = f(*theirs)
    got = dl.compile(f, backend="reference")(*mine)
    assert_alike((got, mine), (want, theirs), name)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("ravel_of_an_argument", np.outer(V, V + 1).T),
        ("reshape_of_an_argument", np.outer(V, V + 1).T),
        ("ravel_of_a_vector", np.arange(8.0)[::2]),
    ],
)
def test_what_is_a_view_depends_on_the_argument_s_layout(name: str, array: Any) -> None:
    compiled = dl.compile(getattr(refused, name), backend="reference")
    compiled(np.ascontiguousarray(array))
    with pytest.raises(ProgramError, match="may be one of several"):
        compiled(array)


def _read_only() -> Any:
    array = V.copy()
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((_read_only(), V.copy()), "read-only"),
        ((V, V), "shares its memory"),
        ((V[:3], V[1:]), "shares its memory"),
        ((np.broadcast_to(np.float64(1), 4), V), "read-only"),
        ((np.lib.stride_tricks.as_strided(V.copy(), (4,), (0,)), V), "share their memory"),
    ],
)
def test_a_call_that_cannot_change_them_as_python_would_is_refused(args: Any, why: str) -> None:
    before = [np.array(a) for a in args]
    with pytest.raises(ProgramError, match=why) as raised:
        dl.compile(refused.one_of_two_arguments, backend="reference")(*args)
    assert raised.value.code == "DL111"
    assert_alike(list(args), before, "unchanged")


def test_a_program_without_a_caller_changes_no_argument() -> None:
    with pytest.raises(ProgramError, match="argument `x` cannot be changed in place"):
        trace(refused.returns_nothing, TensorType(DType.F64, (4,)))
    with pytest.raises(ProgramError, match="DL111"):
        dl.vjp(lambda x: refused.whatever_it_is(x), V.copy())


# Gradients


def lu(a: Any) -> Any:
    a = a.copy()
    n = a.shape[0]
    for k in range(n):
        for i in range(n):
            if i > k:
                a[i, k] /= a[k, k]
                for j in range(n):
                    if j > k:
                        a[i, j] -= a[i, k] * a[k, j]
    return (a**2).sum()


def stencil(x: Any) -> Any:
    y = np.zeros_like(x)
    n, m = x.shape
    for i in range(1, n - 1):
        for j in range(1, m - 1):
            y[i, j] = x[i - 1, j] + x[i + 1, j] - 4 * x[i, j] * x[i, j]
    y[y > 0] *= 2
    return (y * y).sum()


def places(x: Any) -> Any:
    y = x.copy()
    y[[0, 1, 1]] = y[[2, 2, 3], :]
    np.add.at(y, np.array([0, 0, 2]), x[:3] * x[1:4])
    y[::2, 1:] *= x[::2, 1:]
    y.T[0] -= y.mean()
    y.sort()
    return (y**3).sum()


def growth(x: Any) -> Any:
    y = x.copy()
    while y[0, 0] < 20.0:
        y[0] = y[0] * 1.5 + 1
        y[1] += y[0]
    return np.sin(y).sum()


def relaxed(x: Any) -> Any:
    a = x.copy()
    b = x.copy()
    steps = 0
    while steps < 3:
        for i in range(1, 3):
            b[i, 1:3] = 0.25 * (a[i - 1, 1:3] + a[i + 1, 1:3] + a[i, :2] * a[i, 2:])
            if b[i, 1] > 1:
                b[i, 2] *= a[i, 2]
        a, b = b, a
        a[0, 0] += b.sum()
        steps += 1
    return np.sin(a).sum() + (b * a).sum()


@pytest.mark.parametrize("f", [lu, stencil, places, growth, relaxed])
def test_gradients_are_those_of_finite_differences(f: Callable[..., Any]) -> None:
    a = np.random.default_rng(0).normal(size=(4, 4)) + 4 * np.eye(4)
    step = 1e-6
    want = np.zeros_like(a)
    for place in np.ndindex(a.shape):
        shift = np.zeros_like(a)
        shift[place] = step
        want[place] = (f(a + shift) - f(a - shift)) / (2 * step)
    got = dl.compile(dl.grad(f), backend="reference")(a)
    np.testing.assert_allclose(got, want, 1e-5, 1e-5)


# Sharing


def arguments_changed_after(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        result = f(*args)
        for x in args:
            x += 1
        return result

    return run


def results_changed_after(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        result = f(*args)
        for part in result if isinstance(result, tuple | list) else (result,):
            if np.ndim(part) > 0:
                part[...] = 0
        return args

    return run


@pytest.mark.parametrize("changed", [arguments_changed_after, results_changed_after])
@pytest.mark.filterwarnings("ignore")
def test_results_share_memory_with_arguments_as_numpys_do(changed: Any) -> None:
    compared = 0
    for f in (*vocabulary.SMOOTH, *vocabulary.FLAT):
        names = list(inspect.signature(f).parameters)
        mine, theirs = ([vocabulary.arrays(np.float64)[n] for n in names] for _ in range(2))
        run = changed(f)
        try:
            got = tree.leaves((dl.compile(run, backend="reference")(*mine), mine))
        except ProgramError as e:
            assert e.code in ("DL111", "DL116"), f"{inspect.getsource(f)}{e}"
            continue
        assert_alike(got, tree.leaves((run(*theirs), theirs)), inspect.getsource(f), 1e-6)
        compared += 1
    assert compared > 120


def greatest_of_wider_numbers(x: Any, places: Any, values: Any) -> Any:
    np.maximum.at(x, places, values)
    np.floor_divide.at(x, places[:1], values[1:])
    np.remainder.at(x, places[1:], values[1:])
    return x


def test_at_computes_in_the_type_of_both() -> None:
    """NumPy converts the result to the array's type, not the operand."""
    values = np.array([2**33 + 1, 2**32 + 3])
    mine, theirs = (np.array([100, 7, 90], np.int32) for _ in range(2))
    want = greatest_of_wider_numbers(theirs, np.array([0, 2]), values)
    got = dl.compile(greatest_of_wider_numbers, backend="reference")(mine, np.array([0, 2]), values)
    assert_alike((got, mine), (want, theirs), "at")


def test_a_row_that_may_be_a_view_of_its_place_is_written(agree):
    def unit(v):
        n = np.sqrt(np.sum(v * v))
        return v if n == 0 else v / n

    def f(x):
        y, z = x.copy(), x.copy()
        for i in range(len(x)):
            y[i] = unit(y[i])
            z[:, i] = unit(z[:, i])
        return y, z

    agree(f, np.array([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0], [1.0, 0.0, 2.0]]))


def test_a_row_that_may_be_a_view_of_another_stride_is_refused(refusal):
    def f(x):
        y = x.copy()
        y[:, 0] = y[0] if x[0, 0] > 0 else x[1] * 2.0
        return y

    assert "depends on the order" in refusal(f, np.ones((3, 3)))


@pytest.mark.parametrize("view", [np.squeeze, np.transpose, np.ravel, np.atleast_1d, np.asarray])
def test_a_view_of_rank_0_sees_what_becomes_of_its_array(agree, view):
    def f(x):
        x = x.copy()
        y, z = view(x), np.squeeze(x[None])
        v = x[None]
        v /= 2
        x += 1
        return y, z

    def g(x):
        x = x.copy()
        y = view(x)
        y += 1
        return x, y

    agree(f, np.array(-0.75))
    agree(g, np.array(-0.75))
