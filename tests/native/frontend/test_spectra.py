"""QR, eigenvalues, singular values and pseudo-inverses: as NumPy's, vectors up to their signs, with
derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError


def matrix(rows: int, columns: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def symmetric(n: int) -> Any:
    a = matrix(n, n, n)
    return a + a.T


def assert_spectrum(a: Any, found: Any) -> None:
    w, v = found
    n = a.shape[-1]
    np.testing.assert_allclose(w, np.linalg.eigvalsh(a), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(v * w @ v.T, a, atol=1e-12)
    np.testing.assert_allclose(v.T @ v, np.eye(n), atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 9])
def test_eigenvalues_of_symmetric_matrices(n: int) -> None:
    found = dl.compile(lambda a: np.linalg.eigh(a), backend="reference")(symmetric(n))
    assert type(found) is type(np.linalg.eigh(symmetric(n)))
    assert_spectrum(symmetric(n), found)


def test_one_triangle_is_read_and_equal_eigenvalues_are_found() -> None:
    a = matrix(4, 4)
    both = np.array([a, np.diag([2.0, 1.0, 2.0, 1.0])])
    w, v = dl.compile(lambda a: np.linalg.eigh(a), backend="reference")(both)
    lower = np.tril(a) + np.tril(a, -1).T
    assert_spectrum(lower, (w[0], v[0]))
    assert_spectrum(both[1], (w[1], v[1]))
    upper = dl.compile(lambda a: np.linalg.eigvalsh(a, "U"), backend="reference")(a)
    np.testing.assert_allclose(upper, np.linalg.eigvalsh(a, "U"))


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (5, 3), (3, 5), (2, 7)])
@pytest.mark.parametrize("deficient", [False, True])
def test_singular_values(shape: tuple[int, int], deficient: bool) -> None:
    a = matrix(*shape)
    if deficient:
        a[:, -1] = a[:, 0] * (shape[1] > 1)

    def everything(a: Any) -> Any:
        thin = np.linalg.svd(a, full_matrices=False)
        return thin, np.linalg.svd(a), np.linalg.pinv(a), np.linalg.matrix_rank(a)

    (u, s, vt), (full_u, _, full_vt), inverse, rank = dl.compile(everything, backend="reference")(a)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(u * s @ vt, a, atol=1e-12)
    np.testing.assert_allclose(u.T @ u, np.eye(len(s)), atol=1e-12)
    np.testing.assert_allclose(vt @ vt.T, np.eye(len(s)), atol=1e-12)
    np.testing.assert_allclose(full_u[:, : len(s)] * s @ full_vt[: len(s)], a, atol=1e-12)
    np.testing.assert_allclose(full_u.T @ full_u, np.eye(shape[0]), atol=1e-12)
    np.testing.assert_allclose(full_vt.T @ full_vt, np.eye(shape[1]), atol=1e-12)
    np.testing.assert_allclose(inverse, np.linalg.pinv(a), atol=1e-10)
    assert rank == np.linalg.matrix_rank(a) and type(rank) is np.int64


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
def test_qr_has_the_signs_of_lapack(shape: tuple[int, int]) -> None:
    def everything(a: Any) -> Any:
        return np.linalg.qr(a), np.linalg.qr(a, "complete"), np.linalg.qr(a, mode="r")

    a = matrix(*shape)
    (q, r), (full_q, full_r), alone = dl.compile(everything, backend="reference")(a)
    want = everything(a)
    found = (q, r, full_q, full_r, alone)
    for got, expected in zip(found, (*want[0], *want[1], want[2]), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)


def test_native_code_and_f32_factor_too() -> None:
    def everything(a: Any) -> Any:
        both = a.T @ a
        return np.linalg.eigh(both), np.linalg.svd(a, full_matrices=False), np.linalg.qr(a)

    a = matrix(6, 4)
    spectrum, (u, s, vt), (q, r) = dl.compile(everything)(a)
    assert_spectrum(a.T @ a, spectrum)
    np.testing.assert_allclose(u * s @ vt, a, atol=1e-12)
    np.testing.assert_allclose(q @ r, a, atol=1e-12)
    narrow = dl.compile(everything, backend="reference")(a.astype(np.float32))
    assert narrow[0][0].dtype == narrow[1][1].dtype == narrow[2][0].dtype == np.float32
    np.testing.assert_allclose(narrow[1][1], s, rtol=1e-5)


W = np.random.default_rng(9).normal(size=(8, 8))

#: Losses that do not depend on the signs of vectors.
LOSSES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "eigenvalues": (lambda a: np.sum(np.sin(np.linalg.eigvalsh(a))), symmetric(5)),
    "eigenvectors": (lambda a: np.sum(np.linalg.eigh(a)[1] ** 2 * W[:4, :4]), symmetric(4)),
    "of a diagonal": (
        lambda a: np.sum(np.linalg.eigh(a)[1] ** 2 * W[:3, :3]),
        np.diag([1.0, 4.0, 2.0]),
    ),
    "singular values": (lambda a: np.sum(np.linalg.svd(a)[1] ** 3), matrix(4, 3)),
    "left vectors": (
        lambda a: np.sum(np.linalg.svd(a, full_matrices=False)[0] ** 2 * W[:5, :3]),
        matrix(5, 3),
    ),
    "right vectors": (
        lambda a: np.sum(np.linalg.svd(a, full_matrices=False)[2] ** 2 * W[:3, :5]),
        matrix(3, 5),
    ),
    "pseudo-inverse": (lambda a: np.sum(np.linalg.pinv(a) * W[:3, :5]), matrix(5, 3)),
    "deficient": (lambda a: np.sum(np.linalg.pinv(a @ a.T, 1e-9) * W[:4, :4]), matrix(4, 2)),
    "q": (lambda a: np.sum(np.linalg.qr(a)[0] * W[:5, :3]), matrix(5, 3)),
    "r": (lambda a: np.sum(np.linalg.qr(a)[1] * W[:3, :4]), matrix(3, 4)),
    "condition": (lambda a: np.linalg.cond(a), matrix(3, 3)),
}


def slope_along(f: Callable[[Any], Any], a: Any, v: Any, step: float = 1e-5) -> float:
    return float((f(a + step * v) - f(a - step * v)) / (2 * step))


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    f, a = LOSSES[name]
    v = matrix(*a.shape, seed=4)
    if name in ("eigenvalues", "eigenvectors", "of a diagonal"):
        v = v + v.T
    g = dl.compile(dl.grad(f), backend="reference")(a)
    assert np.sum(g * v) == pytest.approx(slope_along(f, a, v), rel=1e-6, abs=1e-7)


TWICE = ["eigenvectors", "of a diagonal", "singular values", "pseudo-inverse"]


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives_are_those_of_finite_differences(name: str) -> None:
    f, a = LOSSES[name]
    v = matrix(*a.shape, seed=4)
    v = v + v.T if v.shape[0] == v.shape[1] else v

    def along(t: Any) -> Any:
        return f(a + t * v)

    slope = dl.compile(dl.grad(along), backend="reference")
    curvature = dl.compile(dl.grad(dl.grad(along)), backend="reference")(0.0)
    assert curvature == pytest.approx(slope_along(slope, 0.0, 1.0), rel=1e-5, abs=1e-6)


def test_vectors_that_complete_a_basis_have_no_slope() -> None:
    def loss(a: Any) -> Any:
        return np.sum(np.linalg.svd(a)[0] * W[:4, :4])

    assert np.isnan(dl.compile(dl.grad(loss), backend="reference")(matrix(4, 2))).all()


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda a: np.linalg.eig(a), "use np.linalg.eigh"),
        (lambda a: np.linalg.svd(a + 1j), "does not take complex numbers"),
        (lambda a: np.linalg.eigh(a[:2]), "takes square matrices"),
        (lambda a: np.linalg.qr(a[0]), "takes matrices"),
        (lambda a: dl.jvp(lambda a: np.linalg.eigh(a)[0], (a,), (a,)), "forward"),
    ],
)
def test_what_is_not_there_is_refused(f: Any, words: str) -> None:
    with pytest.raises(DelianError, match=words):
        dl.compile(f, backend="reference")(symmetric(3))
