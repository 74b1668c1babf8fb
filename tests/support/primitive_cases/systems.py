"""Cases of the primitives that solve linear systems."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from delian.core.compiler.ir import Array

from .base import Case, numbers


def _definite(label: str, *shape: int) -> Array:
    """Symmetric matrices whose eigenvalues are at least 1."""
    x = numbers(label, shape)
    return np.asarray(x @ np.swapaxes(x, -1, -2) / shape[-1] + np.eye(shape[-1]))


def _cramer(a: Array, b: Array) -> Array:
    """Each unknown as a quotient of determinants."""
    out = np.empty_like(b)
    for at in np.ndindex(b.shape):
        matrix = a[at[:-2]].copy()
        matrix[:, at[-2]] = b[(*at[:-2], slice(None), at[-1])]
        out[at] = np.linalg.det(matrix) / np.linalg.det(a[at[:-2]])
    return out


def systems() -> Iterator[Case]:
    for label, shape in (("one", (1, 1)), ("small", (3, 3)), ("batch", (2, 2, 3, 3))):
        definite = _definite(label, *shape)
        # By LDL': the factor's rows from Schur complements.
        yield Case("cholesky", label, (definite,), _by_complements, smooth=(0,))
        general = numbers(f"{label}a", shape) + 3 * np.eye(shape[-1])
        right = numbers(f"{label}b", (*shape[:-1], 2))
        yield Case("solve", label, (general, right), _cramer, smooth=(0, 1))
        for lower in (True, False):
            triangle = np.tril if lower else np.triu
            yield Case(
                "triangular_solve",
                f"{label}-{'lower' if lower else 'upper'}",
                (general, right),
                lambda a, b, triangle=triangle: _cramer(triangle(a), b),
                {"lower": lower},
                smooth=(0, 1),
            )
        yield Case("slogdet", label, (general,), _eigen, smooth=(0,))
    swapped = np.array([[0.0, 2.0], [3.0, 0.0]])
    yield Case("solve", "swapped", (swapped, np.eye(2)), lambda a, b: _cramer(a, b))
    yield Case("slogdet", "swapped", (swapped,), lambda a: (-1.0, np.log(6.0)))
    singular = np.array([[[1.0, 2.0], [2.0, 4.0]], [[2.0, 0.0], [0.0, 2.0]]])
    right = np.ones((2, 2, 1))
    nothing = np.array([np.nan, np.nan, 0.5, 0.5]).reshape(2, 2, 1)
    yield Case("solve", "singular", (singular, right), lambda a, b: nothing)
    signs = (np.array([0.0, 1.0]), np.array([-np.inf, np.log(4.0)]))
    yield Case("slogdet", "singular", (singular,), lambda a: signs)
    none = np.array([[np.nan, 0.0], [np.nan, np.nan]])
    yield Case("cholesky", "indefinite", (np.array([[1.0, 2.0], [2.0, 1.0]]),), lambda a: none)
    big = _definite("big", 20, 20)
    yield Case("cholesky", "big", (big,), _by_complements)
    yield Case("solve", "big", (big, numbers("bigb", (20, 5))), lambda a, b: np.linalg.inv(a) @ b)


def _by_complements(a: Array) -> Array:
    out = np.zeros_like(a)
    rest = a.copy()
    for k in range(a.shape[-1]):
        column = rest[..., :, k] / np.sqrt(rest[..., k, k])[..., None]
        out[..., :, k] = np.where(np.arange(a.shape[-1]) < k, 0, column)
        rest = rest - out[..., :, None, k] * out[..., None, :, k]
    return out


def _eigen(a: Array) -> tuple[Array, Array]:
    product = np.prod(np.linalg.eigvals(a), axis=-1).real
    return np.sign(product), np.log(np.abs(product))
