"""NumPy's vocabulary beyond the basics: values, types and shapes are NumPy's, on both back ends,
and gradients are those of finite differences.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler import tree
from delian.core.compiler.frontend import trace
from support import vocabulary_cases as cases

SMOOTH: Sequence[Any] = cases.SMOOTH
FLOATS: Sequence[Any] = [*cases.SMOOTH, *cases.FLAT]
WHOLE: Sequence[Any] = cases.WHOLE
Everything = Callable[[dict[str, Any]], list[Any]]


def names_of(f: Any) -> list[str]:
    return list(inspect.signature(f).parameters)


def together(functions: Sequence[Any]) -> Everything:
    """One function that gives what all of them give, so that they are compiled as one program."""
    named = [(f, tuple(names_of(f))) for f in functions]

    def everything(operands: dict[str, Any]) -> list[Any]:
        return [f(*[operands[n] for n in names]) for f, names in named]

    return everything


def assert_alike(got: Any, want: Any, f: Any, tolerance: float) -> None:
    """Leaf by leaf: its class in Python, its element type, its shape, its values."""
    left, right = tree.flatten(got)[0], tree.flatten(want)[0]
    message = inspect.getsource(f)
    assert len(left) == len(right), message
    for x, y in zip(left, right, strict=True):
        assert type(x) is type(y), message
        assert np.shape(x) == np.shape(y), message
        assert np.asarray(x).dtype == np.asarray(y).dtype, message
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=message)


@pytest.mark.parametrize(
    ("functions", "dtype", "tolerance", "backends"),
    [
        (FLOATS, np.float64, 1e-10, ("reference", "native")),
        (FLOATS, np.float32, 1e-4, ("reference",)),
        (FLOATS[::8], np.float32, 1e-4, ("native",)),
        (WHOLE, np.int64, 1e-12, ("reference", "native")),
        # What differs natively by the type of integers is tried by the primitives' own tests.
        (WHOLE, np.int32, 1e-12, ("reference",)),
        (WHOLE, np.int16, 1e-4, ("reference",)),
        (WHOLE, np.int8, 2e-3, ("reference",)),
        (WHOLE, np.uint64, 1e-12, ("reference",)),
        (WHOLE, np.uint32, 1e-12, ("reference",)),
        (WHOLE, np.uint16, 1e-4, ("reference",)),
        (WHOLE, np.uint8, 2e-3, ("reference",)),
    ],
    ids=["f64", "f32", "f32-native", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"],
)
@pytest.mark.filterwarnings("ignore")
def test_values_types_and_shapes_are_numpys(
    functions: Sequence[Any], dtype: Any, tolerance: float, backends: Sequence[Any]
) -> None:
    operands = cases.arrays(dtype)
    want = together(functions)(operands)
    for backend in backends:
        got = dl.compile(together(functions), backend=backend)(operands)
        for f, x, y in zip(functions, got, want, strict=True):
            assert_alike(x, y, f, tolerance)


def scalar(f: Any, values: Sequence[Any]) -> Any:
    """A number that depends on every element of what f gives."""
    y = np.ravel(f(*values))
    return np.sum(y * np.cos(np.arange(np.size(y))))


@pytest.fixture(scope="module")
def gradients() -> list[Any]:
    named = [(f, tuple(names_of(f))) for f in SMOOTH]

    def all_slopes(operands: dict[str, Any]) -> list[Any]:
        return [
            dl.grad(lambda values, f=f: scalar(f, values))(tuple([operands[n] for n in names]))
            for f, names in named
        ]

    made: list[Any] = dl.compile(all_slopes, backend="native")(cases.arrays(np.float64))
    return made


def direction(name: str, like: Any) -> Any:
    v = np.random.default_rng(3).normal(size=like.shape)
    return v + v.T if name == "a" else v  # "a" is symmetric, and stays so.


@pytest.mark.parametrize("k", range(len(SMOOTH)))
@pytest.mark.filterwarnings("ignore")
def test_gradients_are_those_of_finite_differences(k: int, gradients: list[Any]) -> None:
    f, operands, step = SMOOTH[k], cases.arrays(np.float64), 1e-6
    at = [operands[n] for n in names_of(f)]
    along = [direction(n, x) for n, x in zip(names_of(f), at, strict=True)]
    ends = [scalar(f, [x + s * step * v for x, v in zip(at, along, strict=True)]) for s in (1, -1)]
    slope = sum(
        float(np.sum(np.where(np.isnan(x), 0, g * v)))
        for g, v, x in zip(gradients[k], along, at, strict=True)
    )
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=2e-6, abs=2e-6), (
        inspect.getsource(f)
    )


def test_functions_of_arrays_that_are_known_are_run_by_numpy_while_compiling() -> None:
    v = np.array([3.0, 1.0, 2.0])

    def f(x: Any) -> Any:
        return x + np.convolve(v, v)[2] + np.interp(1.5, np.sort(v), v) + np.linalg.det(np.eye(2))

    assert "dot" not in str(trace(f, v).function)


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda x: np.add(x, 1, out=x), "`out` would change an array"),
        (lambda x: np.exp(x, where=x > 0), "`where` is not known here"),
        (lambda x: x.sum(axis=0, out=x), "`out` would change an array"),
        (lambda x: np.mean(x, where=x > 0), "np.where(mask, np.add(a, b), other)"),
        (lambda x: np.intersect1d(x, x), "use np.sort and compare neighbours"),
        (lambda x: np.fft.fft(x[x > 0]), "which the data decide"),
        (lambda x: np.putmask(x, x > 0, 1), "use np.where(mask, new, old)"),
        (lambda x: np.add.at(x, [0], 1), "np.bincount(places, values, minlength=n)"),
        (lambda x: np.linalg.eig(x), "of symmetric matrices use np.linalg.eigh"),
        (lambda x: np.linalg.norm(x, 2), "needs singular values"),
        (lambda x: np.pad(x, 1, mode="maximum"), "np.pad knows the modes constant, empty, edge"),
        (lambda x: np.quantile(x, 0.5, method="inverted_cdf"), "knows the methods linear"),
        (lambda x: np.bincount(x.astype(int)[0]), "np.bincount(x, minlength=n)"),
        (lambda x: np.linalg.solve(x, x), "takes square matrices"),
        (lambda x: np.einsum("ij,jk", x, x), "`j` has two sizes, 4 and 3"),
        (lambda x: np.einsum("i...j.", x), "does not name the axes"),
        (lambda x: x[np.array([0, 5])], "index 5 is out of range"),
        (lambda x: np.take(x, [0, -4], axis=0), "index -4 is out of range"),
        (lambda x: x[np.array([True, False])], "a mask of shape [2] does not fit"),
        (lambda x: x[..., np.array([True, False])], "does not fit f64[3,4] at axis 1"),
        (lambda x: np.cross(x[:, :1], x), "vectors of 2 or 3 elements"),
        (lambda x: np.roll(x, 1, axis=2), "axis 2 is out of range"),
        (lambda x: np.quantile(x, 0.5, axis=5), "axis 5 is out of range for rank 2"),
        (lambda x: x.astype(int) ** -1, "by a negative number"),
    ],
)
def test_what_a_program_cannot_do_is_refused_with_a_hint(f: Any, words: str, refusal: Any) -> None:
    text = refusal(f, np.ones((3, 4)))
    assert words in text
    # The error is at the user's call, not in the definition of NumPy's function.
    assert "definitions" not in text and "at test_vocabulary.py" in text


def test_functions_stay_smooth_where_their_operands_tie() -> None:
    def curvature(f: Any) -> Any:
        return dl.compile(dl.grad(lambda x: dl.grad(f)(x)))(0.5)

    assert curvature(lambda x: np.logaddexp(x, 0.5)) == pytest.approx(0.25)
    assert curvature(lambda x: np.hypot(x, 0.5)) == pytest.approx(0.25 / 0.5**1.5)
    at_zero = dl.compile(dl.grad(lambda x: np.arcsinh(x) + np.fmod(x, 2.0)))(0.0)
    assert at_zero == 2.0


def test_numbers_outside_are_an_error_of_bincount() -> None:
    counted = dl.compile(lambda x: np.bincount(x, minlength=3))
    assert counted(np.array([0, 2, 2])).tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match="no negative elements"):
        counted(np.array([-1, 0]))
    with pytest.raises(ArithmeticError, match="longer"):
        counted(np.array([0, 7]))


#: NumPy's numbers where functions ask for whole ones, which NumPy computes with in their own types.
OF_THEIR_TYPE = [
    lambda x: np.triu(x, np.uint8(2)),
    lambda x: np.tril(x, np.uint16(300)),
    lambda x: np.tri(3, 4, np.uint8(2)),
    lambda x: np.vander(x[0], True),
    lambda x: np.linalg.matrix_power(x, np.bool_(True)),
    lambda x: np.linalg.matrix_power(x, 1.0),
    lambda x: np.partition(x, 7),
    lambda x: np.partition(x, True),
    lambda x: np.histogram(x, np.bool_(True)),
    lambda x: np.rollaxis(x, np.bool_(True)),
    lambda x: np.unravel_index(x[0, 0], (3, 4)),
    lambda x: np.nan_to_num(x, nan=np.ones((2, 3, 3))),
    lambda x: np.nan_to_num(x, nan=1j),
    lambda x: np.array([np.float64(np.inf), x[0, 0]], np.int32),
    lambda x: np.array([np.int64(2**40), x[0, 0]], np.int32),
]


@pytest.mark.parametrize("f", OF_THEIR_TYPE)
def test_numbers_of_numpys_are_refused_where_their_type_decides(f: Any) -> None:
    with pytest.raises(ProgramError):
        dl.compile(f, backend="reference")(np.ones((3, 3)))


def test_numbers_of_numpys_count_as_whole_ones_elsewhere() -> None:
    x = np.arange(9.0).reshape(3, 3)
    for f in (
        lambda x: np.var(x, ddof=np.uint16(300)),
        lambda x: np.var(x + 1j * x.T, ddof=np.uint16(300)),
        lambda x: np.resize(x, (np.uint32(1), 2)),
        lambda x: np.bincount([0, 1], minlength=np.int8(2)),
        lambda x: np.triu(x, np.int64(1)),
        lambda x: np.rollaxis(x, np.int8(1)),
        lambda x: np.clip(x.astype(np.int32), np.int64(2**40), 2**53),
        lambda x: np.clip(x.astype(np.int8), -300, np.int64(5)),
    ):
        np.testing.assert_array_equal(dl.compile(f, backend="reference")(x), f(x))


def test_nan_to_num_keeps_the_type_of_its_array() -> None:
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    for end in (np.float64(2.5), np.array([1.0, 2.0, 3.0]), 7):
        for f in (
            lambda x, n: np.nan_to_num(x, nan=n),
            lambda x, n: np.nan_to_num(x, posinf=n, neginf=n),
        ):
            found, wanted = dl.compile(f, backend="reference")(x, end), f(x, end)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def test_a_matrix_without_a_solution_gives_nan_where_nothing_is_checked() -> None:
    def f(a: Any) -> Any:
        return np.linalg.solve(a, a), np.linalg.cholesky(a), np.linalg.slogdet(a)

    singular = np.array([[1.0, 1.0], [1.0, 1.0]])
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        dl.compile(f)(singular)
    solved, factor, (sign, size) = dl.compile(f, checks=False)(singular)
    assert np.isnan(solved).all() and np.isnan(factor[1, 1]) and sign == 0 and size == -np.inf


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_nan_in_a_matrix_is_nan_in_what_is_solved_and_its_determinant(n: int, backend: str) -> None:
    def f(a: Any) -> Any:
        return np.linalg.solve(a, a), np.linalg.slogdet(a).logabsdet, np.linalg.det(a)

    for place in range(n):
        a = np.eye(n) + 0.25
        a[place, 0] = np.nan
        solved, size, determinant = dl.compile(f, backend=backend)(a)
        assert np.isnan(solved).any() and np.isnan(size) and np.isnan(determinant)


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_hyperbolic_functions_are_finite_where_numpys_are(dtype: Any, backend: str) -> None:
    def f(x: Any) -> Any:
        return np.sinh(x), np.cosh(x), np.arcsinh(x), np.arccosh(x)

    top = float(np.finfo(dtype).max)
    near = [80.0, 80.01, 88.9, 89.4, 89.5, 709.9, 710.4, 710.5, 2.0**27, 2.0**60, top / 2, top]
    sizes = [v for v in (0.0, 1e-3, 1.0, 11.0, *near, np.inf) if v <= top or v == np.inf]
    x = np.array([*sizes, *(-v for v in sizes), np.nan]).astype(dtype)
    with np.errstate(all="ignore"):
        want = f(x)
    for made, expected in zip(dl.compile(f, backend=backend)(x), want, strict=True):
        assert made.dtype == dtype
        np.testing.assert_allclose(made, expected, rtol=4 * float(np.finfo(dtype).eps))


def test_a_singular_matrix_of_three_rows_has_a_determinant_with_a_slope() -> None:
    a = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
    slope = dl.compile(dl.grad(lambda a: np.linalg.det(a)))(a)
    np.testing.assert_allclose(slope[0], [4.0, 4.0, -4.0], atol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_every_case_runs_over_a_batch() -> None:
    functions = [*FLOATS, *cases.BASIC]
    operands = cases.arrays(np.float64)
    pairs = {k: np.stack([x, x * 1.1 if k in "as" else x[::-1]]) for k, x in operands.items()}

    everything = together(functions)

    def one_by_one(pairs: dict[str, Any]) -> list[Any]:
        return [everything({k: x[n] for k, x in pairs.items()}) for n in (0, 1)]

    def side_by_side(pairs: dict[str, Any]) -> Any:
        return dl.vmap(everything)(pairs)

    got = dl.compile(side_by_side, backend="reference")(pairs)
    want = dl.compile(one_by_one, backend="reference")(pairs)
    for f, both, first, second in zip(functions, got, *want, strict=True):
        lanes = zip(tree.leaves(first), tree.leaves(second), strict=True)
        assert_alike(tree.leaves(both), [np.stack(pair) for pair in lanes], f, 1e-9)


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_reads_one_triangle_as_numpy(upper: bool) -> None:
    def f(a: Any) -> Any:
        return np.linalg.cholesky(a, upper=upper)

    a = np.array([[4.0, 0.5, 0.2], [1.0, 3.0, 0.3], [0.1, 0.4, 5.0]])
    np.testing.assert_allclose(dl.compile(f, backend="reference")(a), f(a), rtol=1e-14)
    slope = dl.grad(lambda a: np.sum(np.sin(f(a))))(a)
    steps = 1e-6 * np.eye(9).reshape(9, 3, 3)
    wanted = [(np.sum(np.sin(f(a + h))) - np.sum(np.sin(f(a - h)))) / 2e-6 for h in steps]
    np.testing.assert_allclose(slope.ravel(), wanted, atol=1e-8)


def test_ldexp_of_an_int_by_a_bool_is_of_f64() -> None:
    compiled = dl.compile(lambda n: np.ldexp(n, True), backend="reference")
    found = compiled(2**31)
    assert found == 2.0**32 and found.dtype == np.float64
