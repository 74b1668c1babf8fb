"""Complex numbers: values, classes and types are those of Python and NumPy, derivatives those of
JAX's convention, on both back ends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler import tree
from delian.core.compiler.frontend import trace
from delian.core.compiler.primitives import PRIMITIVES
from support.frontend_programs import complex_cases as cases
from support.frontend_programs import fourier_cases as fourier

SAME = {"arithmetic": cases.SAME, "fourier": fourier.SAME}
REFUSED = [*cases.REFUSED, *fourier.REFUSED]


def named(f: Any) -> list[str]:
    return list(inspect.signature(f).parameters)


def assert_alike(got: Any, want: Any, what: str, narrow: bool = False) -> None:
    left, right = tree.leaves(got), tree.leaves(want)
    assert len(left) == len(right), what
    for x, y in zip(left, right, strict=True):
        assert type(x) is type(y) and np.shape(x) == np.shape(y), what
        assert np.asarray(x).dtype == np.asarray(y).dtype, what
        wide = not narrow and np.asarray(y).dtype in (np.float64, np.complex128)
        close = 1e-10 if wide else 2e-5
        np.testing.assert_allclose(x, y, close, close, err_msg=what)


@pytest.mark.parametrize("group", SAME)
@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.filterwarnings("ignore")
def test_values_classes_and_types_are_those_of_python_and_numpy(backend: Any, group: str) -> None:
    values = cases.arguments()

    def everything(values: Any) -> Any:
        return [f(*[values[n] for n in names]) for f, names in functions]

    functions = tuple((f, tuple(named(f))) for f in SAME[group])
    got = dl.compile(everything, backend=backend)(values)
    for (f, names), result in zip(functions, got, strict=True):
        want = f(*[cases.arguments()[n] for n in names])
        assert_alike(result, want, inspect.getsource(f))


@pytest.mark.parametrize("k", range(len(REFUSED)))
def test_what_has_no_complex_meaning_is_refused(k: int) -> None:
    f, words = REFUSED[k]
    with pytest.raises(ProgramError, match=words.replace("(", "\\(")) as caught:
        dl.compile(f, backend="reference")(*[cases.arguments()[n] for n in named(f)])
    assert caught.value.code != "DL121"


FORMULAS: dict[str, Callable[[Any], Any]] = {
    "exp": lambda z: np.exp(z),
    "log": lambda z: np.log(z),
    "sqrt": lambda z: np.sqrt(z),
    "sin": lambda z: np.sin(z),
    "cos": lambda z: np.cos(z),
    "tan": lambda z: np.tan(z),
    "sinh": lambda z: np.sinh(z),
    "cosh": lambda z: np.cosh(z),
    "tanh": lambda z: np.tanh(z),
    "arcsin": lambda z: np.arcsin(z),
    "arccos": lambda z: np.arccos(z),
    "arctan": lambda z: np.arctan(z),
    "arcsinh": lambda z: np.arcsinh(z),
    "arccosh": lambda z: np.arccosh(z),
    "arctanh": lambda z: np.arctanh(z),
    "reciprocal": lambda z: np.reciprocal(z),
    "expm1": lambda z: np.expm1(z),
    "log1p": lambda z: np.log1p(z),
    "exp2": lambda z: np.exp2(z),
    "power": lambda z: z ** (1.5 - 0.5j),
    "cube": lambda z: z**3,
    "quotient": lambda z: (1 + z) / (2j - z),
    "size": lambda z: np.abs(z) * (1 + 2j),
    "angle": lambda z: np.angle(z) * (1 + 1j),
    "product": lambda z: np.prod(z * np.array([1, 2j, 3])) + np.cumprod(z * np.ones(3))[2],
    "matrices": lambda z: np.sum((z * np.ones((2, 2)) + np.eye(2)) @ np.array([[1, 1j], [z, 2]])),
    "system": lambda z: np.linalg.solve(np.eye(2) * z + np.array([[0, 1j], [2, 0]]), [1, z])[0],
    "loop": lambda z: _looped(z),
    "fourier": lambda z: np.fft.fft(z * np.arange(6))[2] + np.fft.ifft([z, 1j, z * z])[1],
    "real fourier": lambda z: np.fft.irfft([z, z * 1j, 2])[1] + np.fft.rfft([z.real, z.imag])[1],
    "spread": lambda z: np.var(np.array([z, 1, 2j * z])) * (1 - 1j),
}


def _looped(z: Any) -> Any:
    total = z * 0
    count = 0
    while abs(total) < 4 and count < 9:
        total = total * total / 8 + z
        count += 1
    return total


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_have_the_convention_of_jax(name: str) -> None:
    """d/dx - i d/dy of a real function of z = x + iy; also where z is real."""
    f = FORMULAS[name]

    def loss(z: Any) -> Any:
        return (f(z) * (0.7 - 0.2j)).real

    gradient = dl.compile(dl.grad(loss), backend="reference")
    step = 1e-6
    for z in (0.5 + 0j, 0.3 + 0.4j, -0.7 + 0.2j, 1.5 + 0.01j, 0.25j):
        if name == "arccosh" and z == 0.5:
            continue  # On its branch cut.
        ends = [
            (loss(np.complex128(z + step * d)) - loss(np.complex128(z - step * d))) for d in (1, 1j)
        ]
        slope = (ends[0] - 1j * ends[1]) / (2 * step)
        got = gradient(z)
        assert type(got) is complex
        assert got == pytest.approx(slope, rel=1e-5, abs=1e-6), z


@pytest.mark.parametrize("n", [2, 31, 33, 60, 97, 101, 128, 206, 360, 1009])
def test_transforms_of_any_length_have_the_accuracy_of_numpys(n: int) -> None:
    """Direct, by factors, and by Bluestein's convolution, of real and of complex numbers."""
    r = np.random.default_rng(n)
    x, y = r.normal(size=(2, n)), r.normal(size=(2, n))

    def transforms(x: Any, z: Any) -> Any:
        spectrum = np.fft.fft(z)
        return spectrum, np.fft.ifft(spectrum), np.fft.rfft(x), np.fft.irfft(np.fft.rfft(x), n)

    want = transforms(x, x + 1j * y)
    got = dl.compile(transforms, backend="reference")(x, x + 1j * y)
    for a, b in zip(got, want, strict=True):
        assert np.max(np.abs(a - b)) <= 1e-14 * np.max(np.abs(b)) * np.log2(n)


def test_a_long_transform_has_little_more_work_than_its_logarithm_asks_for() -> None:
    """Tables of roots beyond a size are computed by the program, which stays small."""

    def work(n: int) -> int:
        function = trace(lambda z: np.fft.fft(z), np.zeros(n, complex)).function
        assert len(str(function)) < 200_000
        return sum(PRIMITIVES[op.name].cost(op) for op in function.body.ops)

    assert 0 < work(1 << 16) < 25 * work(1 << 12)  # 21 by n log n, 256 by n^2
    long = dl.compile(lambda z: np.fft.fft(z), backend="reference")
    z = np.random.default_rng(1).normal(size=1 << 15) + 0j
    np.testing.assert_allclose(long(z), np.fft.fft(z), atol=1e-11)
    z = z[:8209]  # A prime: its convolution is one of 32,768.
    np.testing.assert_allclose(long(z), np.fft.fft(z), atol=1e-11)


def test_derivatives_of_holomorphic_functions_are_complex() -> None:
    z, t = np.array([0.3 + 0.4j, -1 + 1j]), np.array([1 - 2j, 0.5j])

    def f(z: Any) -> Any:
        return np.exp(z) * z

    slope = np.exp(z) * (z + 1)
    value, pull = dl.vjp(f, z)
    np.testing.assert_allclose(value, f(z))
    np.testing.assert_allclose(pull(t)[0], slope * t)
    np.testing.assert_allclose(dl.jvp(f, (z,), (t,))[1], slope * t)
    np.testing.assert_allclose(dl.linearize(f, z)[1](t), slope * t)
    per_lane = dl.compile(dl.vmap(dl.grad(lambda z: f(z).real)), backend="reference")(z)
    np.testing.assert_allclose(per_lane, slope)


def test_second_derivatives_go_through_complex_numbers() -> None:
    """The curvature of |e^(i k x)|-like sums over a real argument."""

    def f(x: Any) -> Any:
        return np.abs(np.exp(1j * x) + 2.0) ** 2  # 5 + 4 cos x

    assert dl.compile(dl.grad(dl.grad(f)))(0.3) == pytest.approx(-4 * np.cos(0.3))
    steps = dl.compile(dl.value_and_grad(lambda p: np.abs(p["z"]) ** 2 + p["x"]))
    value, slope = steps({"z": 1 + 2j, "x": 1.0})
    assert value == pytest.approx(6.0)
    assert slope["z"] == pytest.approx(2 - 4j) and slope["x"] == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda z: dl.grad(lambda z: z * 2)(z),
        lambda z: dl.jacfwd(lambda z: abs(z))(z),
        lambda z: dl.jacrev(lambda x: x * 1j)(z.real),
    ],
)
def test_derivatives_without_a_meaning_are_refused(call: Any) -> None:
    with pytest.raises(ProgramError, match="DL117"):
        dl.compile(call, backend="reference")(1 + 2j)


def test_a_call_changes_the_callers_complex_array() -> None:
    def shift(z: Any, c: Any) -> None:
        z[1:] *= c

    z = np.array([1 + 1j, 2.0, 3j])
    want = z.copy()
    shift(want, 1j)
    assert dl.compile(shift)(z, 1j) is None
    np.testing.assert_array_equal(z, want)
    frozen = z.copy()
    frozen.flags.writeable = False
    with pytest.raises(ProgramError, match="read-only"):
        dl.compile(shift)(frozen, 1j)


def test_a_function_of_trees_takes_a_complex_array_as_one_leaf() -> None:
    def step(p: Any, g: Any) -> Any:
        return dl.tree.map(lambda a, b: np.abs(a) * b, p, g)

    p, g = {"z": np.array([3 + 4j])}, {"z": np.array([1j])}
    np.testing.assert_allclose(dl.compile(step)(p, g)["z"], [5j])


def test_complex_arrays_from_outside_are_read() -> None:
    weights = np.array([1j, 2.0])
    step = dl.compile(lambda x: (weights * x, weights[int(x > 0)] + x))
    first, second = step(2.0)
    np.testing.assert_allclose(first, [2j, 4.0])
    assert second == 4.0 and type(second) is np.complex128
    weights[0] = 5
    np.testing.assert_allclose(step(2.0)[0], [10, 4.0])


@pytest.mark.parametrize("seed", range(3))
def test_random_formulas_are_numpys(seed: int) -> None:
    r = np.random.default_rng(seed)
    unary = ("np.sin", "np.exp", "np.conj", "np.sqrt", "-", "1j*", "np.tanh", "np.abs", "np.real")
    texts = ["z", "x", "c", "2.5", "z4"]
    for _ in range(40):
        a, b = (texts[k] for k in r.integers(len(texts), size=2))
        op = str(r.choice(["+", "-", "*", "/"]))
        made = f"({a} {op} (3 + {b}))" if r.random() < 0.6 else f"{r.choice(unary)}({a})"
        if len(made) < 90:
            texts.append(made)
    names: dict[str, Any] = {"np": np}
    source = "def f(z, x, c, z4):\n    return " + ", ".join(texts[5:]) + "\n"
    file = f"<complex program {seed}>"
    import linecache

    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), names)
    given = [cases.arguments()[n] for n in ["z", "x", "c", "z4"]]
    given[0], given[3] = given[0] / 4, given[3] / 4
    with np.errstate(all="ignore"):
        want = names["f"](*given)
    got = dl.compile(names["f"], backend="reference")(*given)
    for text, x, y in zip(texts[5:], got, want, strict=True):
        assert_alike(x, y, text, narrow="z4" in text)


@pytest.mark.parametrize("dtype", [np.complex128, np.complex64])
def test_an_exponential_that_overflows_along_the_real_axis_has_no_imaginary_part(
    dtype: Any,
) -> None:
    def f(z: Any) -> Any:
        return np.exp(z), np.exp2(z)

    z = np.array([complex(a, b) for a in (5e4, -5e4, 1.0) for b in (0.0, -0.0)], dtype)
    with np.errstate(all="ignore"):
        want = f(z)
    for made, expected in zip(dl.compile(f, backend="reference")(z), want, strict=True):
        np.testing.assert_allclose(made.real, expected.real, rtol=1e-6)
        np.testing.assert_array_equal(made.imag, expected.imag)
