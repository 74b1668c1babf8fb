"""NumPy's vocabulary: compiled, each function gives NumPy's values, dtypes and shapes."""

from __future__ import annotations

import numpy as np
import pytest

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype(np.float32)
Y = RNG.normal(size=(4,)).astype(np.float32)
P = np.abs(X) + np.float32(0.5)
I = RNG.integers(-9, 9, size=(3, 4)).astype(np.int32)  # noqa: E741
U = RNG.integers(0, 200, size=(3, 4)).astype(np.uint8)
B = X > 0
D = X.astype(np.float64)
L = I.astype(np.int64)

ELEMENTWISE = [
    lambda x: x + 1,
    lambda x: 2.5 - x,
    lambda x: x * 3,
    lambda x: x / 2,
    lambda x: 1 / (x + 30),
    lambda x: x // 2,
    lambda x: x % 3,
    lambda x: x**2,
    lambda x: x**5,
    lambda x: x < 1,
    lambda x: x >= 1,
    lambda x: x == 1,
    lambda x: x > 0,
    lambda x: abs(x),
    lambda x: np.sign(x.astype(np.int32)),
    lambda x: np.maximum(x, 1),
    lambda x: np.minimum(1.5, x),
    lambda x: np.where(x > 0, x, 0),
    lambda x: np.where(x > 0, 1.5, x),
    lambda x: np.clip(x, 1, 2),
    lambda x: np.square(x),
    lambda x: np.isnan(x),
    lambda x: np.isfinite(x),
    lambda x: np.isinf(x),
    lambda x: np.floor(x),
    lambda x: np.logical_not(x),
    lambda x: np.logical_and(x, x > 1),
    lambda x: np.sqrt(np.abs(x.astype(np.float32))),
    lambda x: x.astype(np.float64) + x,
    lambda x: np.float32(0.5) * x,
    lambda x: np.float64(0.5) * x,
    lambda x: x + np.arange(4),
    lambda x: np.array([1, 2, 3, 4], dtype=np.uint8) + x,
    lambda x: np.multiply(x, [1, 2, 3, 4]),
]


@pytest.mark.parametrize("x", [X, I, U, D, L], ids=["f32", "i32", "u8", "f64", "i64"])
@pytest.mark.parametrize("k", range(len(ELEMENTWISE)))
def test_elementwise_promotes_as_numpy(k, x, agree):
    agree(ELEMENTWISE[k], x)


FLOATS = [
    np.exp,
    np.exp2,
    np.expm1,
    np.log,
    np.log2,
    np.log10,
    np.log1p,
    np.sqrt,
    np.sin,
    np.cos,
    np.tan,
    np.sinh,
    np.cosh,
    np.tanh,
    np.floor,
    np.ceil,
    np.rint,
    np.reciprocal,
    np.negative,
    np.positive,
    np.fabs,
    np.sign,
    np.square,
    np.nan_to_num,
    lambda x: x**0.5,
    lambda x: x**-2,
    lambda x: x**1.7,
    lambda x: 2.0**x,
    lambda x: x**x,
    lambda x: np.round(x * 10, 1),
    lambda x: np.logaddexp(x, x * 2),
    lambda x: np.hypot(x, 2),
    lambda x: x.round(),
    lambda x: np.float32(x),
    lambda x: np.int32(x * 5),
    lambda x: (x * 9).astype(np.uint8),
    lambda x: x.view(np.int32),
]


@pytest.mark.parametrize("k", range(len(FLOATS)))
def test_functions_of_floats(k, agree):
    agree(lambda x: FLOATS[k](x), P)


@pytest.mark.parametrize("f", [np.exp, np.sqrt, np.tanh, np.mean, np.var], ids=lambda f: f.__name__)
def test_functions_of_floats_take_integers_as_f64(f, agree):
    agree(lambda x: f(x), np.abs(L) + 1)


BITS = [
    lambda a, b: a & b,
    lambda a, b: a | b,
    lambda a, b: a ^ b,
    lambda a, b: ~a,
    lambda a, b: np.bitwise_xor(a, b),
    lambda a, b: np.invert(a),
    lambda a, b: a & 1,
]


@pytest.mark.parametrize("x", [I, U, B, L], ids=["i32", "u8", "bool", "i64"])
@pytest.mark.parametrize("k", range(len(BITS)))
def test_bitwise(k, x, agree):
    agree(BITS[k], x, x[::-1].copy())


def test_shifts(agree):
    agree(lambda a: (a << 3, a >> 2, np.left_shift(a, 1)), I)
    agree(lambda a: (a << 3, a >> 2), U)


def test_bools_add_and_multiply_as_logic(agree):
    agree(lambda a, b: (a + b, a * b, np.maximum(a, b), np.minimum(a, b)), B, ~B)
    agree(lambda a: (a + 1, a * 2.5, a + np.float32(1)), B)


ALONG = [
    lambda x: np.sum(x),
    lambda x: x.sum(axis=0),
    lambda x: x.sum(1, keepdims=True),
    lambda x: np.sum(x, axis=(0, -1)),
    lambda x: np.mean(x, axis=-1),
    lambda x: x.mean(),
    lambda x: np.max(x, axis=1),
    lambda x: x.min(axis=0, keepdims=True),
    lambda x: np.amax(x),
    lambda x: np.prod(x, axis=0),
    lambda x: np.any(x > 1, axis=0),
    lambda x: np.all(x > 1),
    lambda x: np.argmax(x, axis=1),
    lambda x: x.argmin(),
    lambda x: np.argmax(x, axis=0, keepdims=True),
    lambda x: np.argsort(x, axis=0, kind="stable"),
    lambda x: np.sort(x),
    lambda x: np.sort(x, axis=0),
    lambda x: np.cumsum(x, axis=1),
    lambda x: x.cumsum(),
    lambda x: np.var(x, axis=0),
    lambda x: np.std(x, ddof=1),
    lambda x: np.median(x, axis=1),
    lambda x: np.median(x),
    lambda x: np.average(x, axis=0),
    lambda x: np.average(x, axis=1, weights=np.array([1.0, 2.0, 3.0, 4.0])),
    lambda x: np.count_nonzero(x > 0, axis=1),
    lambda x: np.linalg.norm(x),
    lambda x: np.linalg.norm(x, axis=1),
    lambda x: np.diff(x),
    lambda x: np.diff(x, n=2, axis=0),
]


@pytest.mark.parametrize("x", [X, I, D], ids=["f32", "i32", "f64"])
@pytest.mark.parametrize("k", range(len(ALONG)))
def test_along_axes(k, x, agree):
    agree(ALONG[k], x)


SHAPES = [
    lambda x: x.reshape(2, 6),
    lambda x: x.reshape((4, -1)),
    lambda x: np.reshape(x, -1),
    lambda x: x.ravel(),
    lambda x: x.flatten(),
    lambda x: x.T,
    lambda x: np.transpose(x, (1, 0)),
    lambda x: x.transpose(1, 0),
    lambda x: np.swapaxes(x, 0, 1),
    lambda x: np.moveaxis(x[None], 0, -1),
    lambda x: np.expand_dims(x, 1),
    lambda x: np.expand_dims(x, (0, -1)),
    lambda x: np.squeeze(x[:, None]),
    lambda x: x[None].squeeze(0),
    lambda x: np.broadcast_to(x[:, None], (2, 3, 5, 4)),
    lambda x: np.concatenate([x, x * 2]),
    lambda x: np.concatenate((x, x[:, :1]), axis=-1),
    lambda x: np.concatenate([x, np.ones((1, 4), np.int32)]),
    lambda x: np.stack([x, x]),
    lambda x: np.stack((x, x), axis=-1),
    lambda x: np.vstack([x[0], x]),
    lambda x: np.hstack([x, x]),
    lambda x: np.split(x, 2, axis=1),
    lambda x: np.split(x, [1, 3], axis=-1),
    lambda x: np.repeat(x, 2, axis=0),
    lambda x: np.repeat(x, 3),
    lambda x: np.tile(x, 2),
    lambda x: np.tile(x, (2, 1, 2)),
    lambda x: np.flip(x),
    lambda x: np.flip(x, 1),
    lambda x: np.roll(x, 1),
    lambda x: np.roll(x, -5, axis=1),
    lambda x: np.roll(x, (1, 2), axis=(0, 1)),
    lambda x: np.pad(x, 1),
    lambda x: np.pad(x, ((0, 1), (2, 0)), constant_values=3),
    lambda x: np.tril(x),
    lambda x: np.triu(x, 1),
    lambda x: np.atleast_1d(x[0, 0]),
    lambda x: np.take(x, [0, 2], axis=1),
    lambda x: np.take(x, np.array([[1, -1]])),
    lambda x: np.take_along_axis(x, np.array([[0], [1], [-1]]), axis=1),
    lambda x: np.take_along_axis(x, np.argsort(x, axis=0), axis=0),
    lambda x: np.array([x[0], x[1]]),
    lambda x: np.array([[x[0, 0], 1], [2, x[1, 1]]]),
    lambda x: (np.shape(x), np.ndim(x), np.size(x)),
    lambda x: x.astype(x.dtype).copy(),
    lambda x: np.zeros_like(x) + np.ones_like(x) * np.full_like(x, 3),
]


@pytest.mark.parametrize("x", [X, I], ids=["f32", "i32"])
@pytest.mark.parametrize("k", range(len(SHAPES)))
def test_shapes(k, x, agree):
    agree(SHAPES[k], x)


MAKING = [
    lambda: np.zeros(3),
    lambda: np.zeros((2, 3), np.float32),
    lambda: np.ones((2,), dtype=np.int32),
    lambda: np.full((2, 2), 7),
    lambda: np.full(3, 1.5, np.float32),
    lambda: np.arange(5),
    lambda: np.arange(2, 9, 3),
    lambda: np.arange(5, 0, -2),
    lambda: np.arange(0.0, 1.0, 0.25),
    lambda: np.arange(4, dtype=np.float32),
    lambda: np.linspace(0, 1, 5),
    lambda: np.eye(3),
    lambda: np.eye(2, 4, 1, dtype=np.float32),
    lambda: np.array([1, 2]),
    lambda: np.array([[1.0, 2.0]], dtype=np.float32),
    lambda: np.sqrt(2.0),
    lambda: np.prod((2, 3)),
    lambda: 3,
    lambda: 2.5,
    lambda: True,
]


@pytest.mark.parametrize("k", range(len(MAKING)))
def test_making_arrays(k, agree):
    agree(MAKING[k])


A3 = RNG.normal(size=(2, 3, 4)).astype(np.float32)
B3 = RNG.normal(size=(2, 4, 5)).astype(np.float32)
M = RNG.normal(size=(4, 5)).astype(np.float32)
PRODUCTS = [
    lambda: (X, M),
    lambda: (X, Y),
    lambda: (Y, M),
    lambda: (Y, Y),
    lambda: (A3, M),
    lambda: (A3, B3),
    lambda: (A3, Y),
    lambda: (Y, B3),
    lambda: (A3[:, None], B3),
    lambda: (A3[0], B3),
    lambda: (X, M.astype(np.float64)),
    lambda: (I, M),
]


@pytest.mark.parametrize("k", range(len(PRODUCTS)))
def test_matmul(k, agree):
    a, b = PRODUCTS[k]()
    agree(lambda a, b: a @ b, a, b)
    agree(lambda a, b: np.matmul(a, b), a, b)


def test_other_products(agree):
    agree(lambda a, b: (np.dot(a, b), a.dot(b)), X, M)
    agree(lambda a, b: np.dot(a, b), A3, B3)
    agree(lambda a: (np.inner(a, a), np.outer(a, a[:2]), np.vdot(a, a), np.dot(a, 2)), Y)
    agree(lambda a, b: np.tensordot(a, b, 1), X, M)
    agree(lambda a, b: np.tensordot(a, b, axes=((0, 2), (0, 1))), A3, B3)
    agree(lambda a, b: np.tensordot(a, b, axes=([0, 2], [0, 1])), A3, B3)


EINSUM = [
    ("ij,jk->ik", lambda: (X, M)),
    ("ij,jk", lambda: (X, M)),
    ("bij,bjk->bik", lambda: (A3, B3)),
    ("bij,bjk->ki", lambda: (A3, B3)),
    ("ij->ji", lambda: (X,)),
    ("ij->", lambda: (X,)),
    ("ij,ij->i", lambda: (X, X)),
    ("i,j->ji", lambda: (Y, Y)),
    ("ij,jk,k->i", lambda: (X, M, M[0])),
    ("ij,k->j", lambda: (X, Y)),
]


@pytest.mark.parametrize("text, make", EINSUM, ids=[t for t, _ in EINSUM])
def test_einsum(text, make, agree):
    agree(lambda *arrays: np.einsum(text, *arrays), *make())


def test_python_numbers_are_weak_through_any_chain(compiled):
    def f(x, lr):
        scale = lr * 2 + 1
        return x * scale, x * float(3), x * (1 / 3)

    assert {y.dtype for y in compiled(f, X, 0.1)} == {np.dtype(np.float32)}


def test_static_numpy_scalars_are_strong(compiled):
    assert compiled(lambda x: x / np.sqrt(2.0), X).dtype == np.float64
    assert compiled(lambda x: x * np.float32(2), X).dtype == np.float32


def test_comparing_with_a_number_out_of_range_is_answered(agree):
    agree(lambda x: (x < 300, x == 1000, x > -1), U)


def test_every_row_has_a_name_and_a_signature():
    import inspect

    from delian.core.compiler.frontend.vocabulary import vocabulary_table

    names = vocabulary_table.names()
    assert len(names) > 150
    for row in vocabulary_table._table().values():
        # Where NumPy has an argument `s`, the specialiser is `spec`.
        first, *others = inspect.signature(row.handler).parameters
        assert first == ("spec" if "s" in others else "s"), row.name


def test_lists_of_tensors_are_arrays_to_numpys_functions(agree):
    def f(x):
        a, b = x[0, 0], x[1, 1]
        rows = [x[0], x[1]]
        return (
            np.sum([a, b, 2.0]),
            np.max((a, b)),
            np.mean(rows, axis=0),
            np.exp([a, b]),
            np.maximum([a, b], 0.5),
            np.where([True, False, True, False], rows[0], rows[1]),
            np.argmax([a, b, 9]),
        )

    agree(f, X)


def test_powers_by_a_known_nan_or_infinity(agree):
    agree(lambda x: x ** float("nan"), np.array([2.0, 1.0, 0.5]))
    agree(lambda x: x**np.inf, np.array([2.0, 1.0, 0.5]))
