"""Whole families of NumPy's functions over shapes, element types and axes: broadcasting, promotion,
empty arrays, several axes, kept dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.frontend.vocabulary import vocabulary_numpy
from delian.core.compiler.ir import DType

UFUNCS = [row for row in vocabulary_numpy.rows() if isinstance(row.function, np.ufunc)]


def operand(dtype: Any, shape: tuple[int, ...], key: int) -> Any:
    r = np.random.default_rng(key)
    if np.dtype(dtype).kind == "b":
        return np.asarray(r.random(shape) < 0.5)
    if np.dtype(dtype).kind == "i":
        return np.asarray(r.integers(1, 6, shape)).astype(dtype)
    return np.asarray(r.uniform(-0.9, 0.9, shape)).astype(dtype)


def numpys(f: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What NumPy gives; None where it refuses, or gives a type that programs have not."""
    try:
        with np.errstate(all="ignore"):
            made = f(*args)
    except (TypeError, ValueError):
        return None
    parts = made if isinstance(made, tuple) else (made,)
    known = {d.numpy for d in DType if d.numpy != np.float16}
    return made if all(np.asarray(p).dtype in known for p in parts) else None


def assert_same(calls: Sequence[tuple[str, Callable[..., Any]]], args: Sequence[Any]) -> int:
    """Compares all calls of these arguments in one program; gives how many there were."""
    wanted = [(name, f, numpys(f, args)) for name, f in calls]
    there = [(name, f, want) for name, f, want in wanted if want is not None]
    functions = tuple(f for _, f, _ in there)

    def everything(*args: Any) -> Any:
        return [f(*args) for f in functions]

    got = dl.compile(everything, backend="reference")(*args)
    for (name, _, want), made in zip(there, got, strict=True):
        pairs = zip(made, want, strict=True) if isinstance(want, tuple) else [(made, want)]
        for x, y in pairs:
            y = np.asarray(y)
            described = f"{name} of {[(np.shape(a), np.result_type(a)) for a in args]}"
            assert (x.dtype, x.shape) == (y.dtype, y.shape), described
            narrow = any(np.asarray(v).dtype == np.float32 for v in (y, *args))
            tolerance = 1e-4 if narrow else 1e-10
            np.testing.assert_allclose(x, y, tolerance, tolerance, err_msg=described)
    return len(there)


ONE = [(np.float64, ()), (np.float32, (2, 3)), (np.float64, (0, 3)), (np.int64, (4,))]
ONE += [(np.int32, (2, 2)), (np.bool_, (3,))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "shape"), ONE, ids=str)
def test_functions_of_one_array(dtype: Any, shape: tuple[int, ...]) -> None:
    calls = [(row.name, row.function) for row in UFUNCS if row.function.nin == 1]
    assert assert_same(calls, [operand(dtype, shape, 1)]) > 5


TWO = [
    ((np.float64, (2, 3)), (np.float64, (3,))),
    ((np.float32, (2, 1)), (np.float32, (1, 3))),
    ((np.float32, ()), (np.float64, (2, 3))),
    ((np.float64, (0, 3)), (np.float64, (3,))),
    ((np.float32, (3,)), (np.int32, (2, 3))),
    ((np.int64, (2, 3)), (np.float32, (2, 3))),
    ((np.int32, (4, 1)), (np.int64, (3,))),
    ((np.int32, (2, 3)), (np.int32, (2, 3))),
    ((np.bool_, (2, 3)), (np.float32, (3,))),
    ((np.bool_, (2, 3)), (np.bool_, (3,))),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("first", "second"), TWO, ids=str)
def test_functions_of_two_arrays(first: Any, second: Any) -> None:
    calls = [(row.name, row.function) for row in UFUNCS if row.function.nin == 2]
    assert assert_same(calls, [operand(*first, 1), operand(*second, 2)]) > 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [2, 0.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_functions_of_an_array_and_a_number_of_python(dtype: Any, number: Any) -> None:
    rows = [row for row in UFUNCS if row.function.nin == 2]
    x = operand(dtype, (2, 3), 1)
    right = [(r.name, lambda x, f=r.function: f(x, number)) for r in rows]
    left = [(r.name, lambda x, f=r.function: f(number, x)) for r in rows]
    assert assert_same([*right, *left], [x]) > 40


AXES: list[Any] = [None, 0, -1, (0, -1), (1, 0)]
REDUCTIONS: list[Any] = [
    *(np.sum, np.prod, np.mean, np.var, np.std, np.max, np.min, np.ptp, np.any, np.all),
    *(np.median, np.count_nonzero, np.average, np.nansum, np.nanprod, np.nanmean, np.nanvar),
    *(np.nanstd, np.nanmax, np.nanmin, np.nanmedian, np.linalg.norm),
]
ALONG: list[Any] = [
    *(np.argmax, np.argmin, np.sort, np.cumsum, np.cumprod, np.nanargmax, np.nanargmin),
    *(np.nancumsum, np.nancumprod, np.flip),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *(((3, 4), np.float64), ((3, 4), np.float32), ((3, 4), np.int64), ((3, 4), np.bool_)),
        *(((2, 3, 2), np.float64), ((5,), np.float64)),
    ],
    ids=str,
)
def test_reductions_over_axes(shape: tuple[int, ...], dtype: Any) -> None:
    calls: list[Any] = []
    for axis in AXES:
        for f in REDUCTIONS:
            calls.append((f"{f.__name__} {axis}", lambda x, f=f, a=axis: f(x, axis=a)))
            kept = lambda x, f=f, a=axis: f(x, axis=a, keepdims=True)  # noqa: E731
            calls.append((f"{f.__name__} {axis} kept", kept))
        for q in (0.0, 0.3, [0.25, 1.0]):
            for quantile in (np.quantile, np.nanquantile):
                call = lambda x, q=q, f=quantile, a=axis: f(x, q, axis=a, keepdims=True)  # noqa: E731
                calls.append((f"{quantile.__name__} {q} {axis}", call))
        if not isinstance(axis, tuple):
            calls += [(f.__name__, lambda x, f=f, a=axis: f(x, axis=a)) for f in ALONG]
    assert assert_same(calls, [operand(dtype, shape, 3)]) > 30


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4,)], ids=str)
def test_shapes_of_several_ranks(shape: tuple[int, ...]) -> None:
    rank = len(shape)
    calls: list[Any] = [
        ("transpose", lambda x: np.transpose(x)),
        ("atleast", lambda x: (np.atleast_1d(x), np.atleast_2d(x), np.atleast_3d(x))),
        ("stacks", lambda x: (np.vstack([x, x]), np.hstack([x, x]), np.dstack([x, x]))),
        ("tile", lambda x: (np.tile(x, 2), np.tile(x, (2, 1, 3)), np.tile(x, ()))),
        ("pads", lambda x: tuple(np.pad(x, 1, m) for m in ("edge", "wrap", "reflect"))),
        ("ravel", lambda x: (np.ravel(x), x.flatten(), np.resize(x, (3, 7)))),
        ("append", lambda x: np.append(x, x)),
        ("kron", lambda x: np.kron(x, x[..., :2])),
        ("outer", lambda x: np.outer(x, x) if rank == 1 else np.inner(x, x)),
        ("meshgrid", lambda x: np.meshgrid(np.ravel(x), np.arange(2.0))),
    ]
    for axis in range(-rank, rank):
        calls += [
            ("roll", lambda x, a=axis: (np.roll(x, 2, a), np.roll(x, -1))),
            ("diff", lambda x, a=axis: np.diff(x, axis=a)),
            ("gradient", lambda x, a=axis: np.gradient(x, axis=a) if x.shape[a] > 1 else x),
            ("repeat", lambda x, a=axis: np.repeat(x, 2, axis=a)),
            ("take", lambda x, a=axis: np.take(x, [[0, -1], [1, 0]], axis=a)),
            ("split", lambda x, a=axis: tuple(np.array_split(x, 2, axis=a))),
            ("delete", lambda x, a=axis: np.delete(x, 0, axis=a)),
            ("insert", lambda x, a=axis: np.insert(x, 1, 5.0, axis=a)),
            ("expand", lambda x, a=axis: np.expand_dims(x, a)),
            ("moved", lambda x, a=axis: np.moveaxis(x, a, 0)),
            ("trapezoid", lambda x, a=axis: np.trapezoid(x, axis=a)),
        ]
    assert assert_same(calls, [operand(np.float64, shape, 4)]) == len(calls)
