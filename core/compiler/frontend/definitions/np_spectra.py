"""Factorisations of matrices: QR, eigenvalues and singular values.

QR goes by Householder's reflections, the others by Jacobi's rotations.

A round rotates n / 2 pairs of columns at once, the first half with the second; then columns change
places, so that n - 1 rounds, a sweep, meet all pairs (Golub and Van Loan, Matrix Computations,
section 8.5). It converges quadratically, and each round is a few operations on whole matrices.

Reverse derivatives of eigenvectors and singular vectors go by rules of their own; second ones go
through the rotations. Giles, "An extended collection of matrix derivative results for forward and
reverse mode algorithmic differentiation", 2008; Townsend, "Differentiating the singular value
decomposition", 2016; for pseudo-inverses Golub and Pereyra 1973. Vectors of equal values have no
derivative of their own; turning them into one another counts as free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....common.errors import ProgramError
from ...api import custom_vjp, vmap
from ...ir import Tensor

_EIGH: Any = type(np.linalg.eigh(np.eye(1)))
_QR: Any = type(np.linalg.qr(np.eye(1)))
_SVD: Any = type(np.linalg.svd(np.eye(1)))

#: Jacobi's method needs six to ten sweeps; where it does not settle, there is a NaN.
_SWEEPS_MAX = 24
#: Sweeps once it has settled: a derivative settles a sweep later than what it is of. So first to
#: third derivatives are right, also of a matrix that is diagonal from the start.
_MORE = 2


def _matrix(a: Tensor, what: str) -> Tensor:
    a = np.asarray(a)
    if a.ndim < 2:
        raise ProgramError("DL115", f"np.linalg.{what} takes matrices")
    if a.dtype == np.float16:
        raise ProgramError("DL116", f"np.linalg.{what} takes no f16", hint="x.astype(np.float32)")
    return a.astype(np.float64) if a.dtype.kind in "biu" else a


def _square(a: Tensor, what: str) -> Tensor:
    a = _matrix(a, what)
    if a.shape[-1] != a.shape[-2]:
        raise ProgramError("DL115", f"np.linalg.{what} takes square matrices")
    return a


def _each(f: Any, a: Tensor) -> Any:
    """A function of one matrix for each of a batch."""
    for _ in range(a.ndim - 2):
        f = vmap(f)
    return f(a)


def _epsilon(a: Tensor) -> float:
    return 1.2e-07 if a.dtype == np.float32 else 2.3e-16


# QR


def _householder(a: Tensor) -> tuple[Tensor, Tensor]:
    """Q complete and R, with LAPACK's signs: a reflection turns a column to minus its own sign."""
    rows, columns = a.shape
    q = np.eye(rows, dtype=a.dtype)
    place = np.arange(rows)
    for k in range(min(rows, columns)):
        column = np.where(place >= k, a[:, k], 0)
        first = column[k]
        below = np.where(place > k, column, 0)
        rest = np.sum(below * below)
        idle = rest == 0  # Nothing to turn: the sign stays.
        size = np.sqrt(np.where(idle, 1, first * first + rest))
        target = np.where(first >= 0, -size, size)
        v = np.where(place == k, np.where(idle, 1, first - target), below)
        turn = np.where(idle, 0, 2 / np.sum(v * v))
        a = a - turn * np.outer(v, v @ a)
        q = q - turn * np.outer(q @ v, v)
    return q, np.where(place[:, None] <= np.arange(columns), a, 0)


def qr(a: Tensor, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete", "r"):
        raise ProgramError("DL119", f"np.linalg.qr knows reduced, complete and r, not {mode!r}")
    a = _matrix(a, "qr")
    n = min(a.shape[-2], a.shape[-1])
    q, r = _each(_householder, a)
    if mode == "complete":
        return _QR(q, r)
    return r[..., :n, :] if mode == "r" else _QR(q[..., :n], r[..., :n, :])


# Jacobi's rotations


def _order(n: int) -> list[int]:
    """Where a round's columns come from in the next: all but the first move on by one place."""
    half = n // 2
    if half == 1:
        return [0, 1]
    return [0, half, *range(1, half - 1), *range(half + 1, n), half - 1]


def _rotation(p: Tensor, q: Tensor, between: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine that make the element between two diagonal ones zero.

    Smooth also where it is zero already: a rotation by nothing has a slope.
    """
    gap = q - p
    idle = (gap == 0) & (between == 0)
    side = np.where(gap >= 0, 1, -1).astype(p.dtype)
    below = side * gap + np.hypot(np.where(idle, 1, gap), 2 * between)
    t = 2 * side * between / below
    c = 1 / np.sqrt(1 + t * t)
    return c, t * c


def _turned(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Each column of the first half with that of the second."""
    half = c.shape[0]
    p, q = x[:, :half], x[:, half:]
    return np.concatenate([c * p - s * q, s * p + c * q], axis=1)


def _diagonalised(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors of a symmetric matrix, in rising order."""
    n = a.shape[0]
    size = np.sqrt(np.sum(a * a))
    if n % 2 == 1:  # One more, decoupled, greater than all eigenvalues.
        a = np.pad(a, ((0, 1), (0, 1)))
        a = np.where(np.arange(n + 1) * np.arange(n + 1)[:, None] == n * n, 2 * size + 1, a)
    m = a.shape[0]
    order, half = _order(m), m // 2
    aside = ~np.eye(m, dtype=np.bool_)
    v = np.eye(m, dtype=a.dtype)
    k = 0
    more: Any = 0
    rest = np.sum(np.where(aside, a, 0) ** 2)
    while (more < _MORE) & (k < _SWEEPS_MAX):
        for _ in range(m - 1):
            diagonal = np.diagonal(a)
            c, s = _rotation(diagonal[:half], diagonal[half:], np.diagonal(a[:half, half:]))
            a = _turned(_turned(a, c, s).T, c, s)[order][:, order]
            v = _turned(v, c, s)[:, order]
        a = (a + a.T) / 2
        rest = np.sum(np.where(aside, a, 0) ** 2)
        more += rest <= (_epsilon(a) * size) ** 2
        k += 1
    w = np.where(rest > (1e3 * _epsilon(a) * size) ** 2, np.nan, np.diagonal(a))
    rising = np.argsort(w)[:n]
    return w[rising], v[:n][:, rising]


def _spectrum_forward(a: Tensor) -> Any:
    w, v = _diagonalised(a)
    return (w, v), (w, v)


def _gaps(x: Tensor) -> Tensor:
    """1 / (x_j - x_i), 0 where they are equal."""
    gap = x[None, :] - x[:, None]
    same = gap == 0
    return np.where(same, 0, 1 / np.where(same, 1, gap))


def _spectrum_reverse(kept: Any, cotangents: Any) -> Any:
    w, v = kept
    gw, gv = cotangents
    inner = np.diag(gw) + _gaps(w) * (v.T @ gv)
    made = v @ inner @ v.T
    return ((made + made.T) / 2,)


_spectrum = custom_vjp(_diagonalised, _spectrum_forward, _spectrum_reverse)


def eigh(a: Tensor, UPLO: str = "L") -> Any:
    a = _square(a, "eigh")
    if UPLO not in ("L", "U", "l", "u"):
        raise ProgramError("DL113", "np.linalg.eigh fails: ValueError: UPLO must be L or U")
    half = np.tril(a, -1) if UPLO in ("L", "l") else np.triu(a, 1)
    n = a.shape[-1]
    both = half + np.swapaxes(half, -1, -2) + np.where(np.eye(n, dtype=np.bool_), a, 0)
    w, v = _each(_spectrum, both)
    return _EIGH(w, v)


def eigvalsh(a: Tensor, UPLO: str = "L") -> Tensor:
    return eigh(a, UPLO)[0]


# Singular values


def _orthogonalised(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U complete, singular values in falling order, V, of at least as many rows as columns."""
    n = a.shape[1]
    if n % 2 == 1:
        a = np.pad(a, ((0, 0), (0, 1)))
    m = a.shape[1]
    order, half = _order(m), m // 2
    v = np.eye(m, dtype=a.dtype)
    k = 0
    more: Any = 0
    worst = np.asarray(0.0, a.dtype)
    while (more < _MORE) & (k < _SWEEPS_MAX):
        worst = np.asarray(0.0, a.dtype)
        for _ in range(m - 1):
            p, q = a[:, :half], a[:, half:]
            alpha, beta = np.sum(p * p, axis=0), np.sum(q * q, axis=0)
            between = np.sum(p * q, axis=0)
            bound = np.sqrt(alpha) * np.sqrt(beta)
            share = np.abs(between) / np.where(bound == 0, 1, bound)
            worst = np.maximum(worst, np.max(np.where(bound == 0, 0, share)))
            c, s = _rotation(alpha, beta, between)
            a, v = _turned(a, c, s)[:, order], _turned(v, c, s)[:, order]
        more += worst <= 16 * _epsilon(a)
        k += 1
    squares = np.sum(a * a, axis=0)
    nothing = squares == 0  # Its root has no slope.
    sizes = np.where(nothing, 0, np.sqrt(np.where(nothing, 1, squares)))
    sizes = np.where(worst > 1e3 * _epsilon(a), np.nan, sizes)
    # The added column of zeros is the last of the zeros: it is the only one with its own place.
    added: Any = np.zeros(m) if n == m else np.abs(v[n])
    falling = np.lexsort((added, -sizes))[:n]
    u, r = _householder(a[:, falling])
    signs = np.where(np.diagonal(r) < 0, -1, 1).astype(a.dtype)
    u = np.concatenate([u[:, :n] * signs, u[:, n:]], axis=1)
    return u, sizes[falling], v[:n][:, falling]


def _tall(a: Tensor) -> Any:
    u, s, v = _orthogonalised(a)
    return u[:, : a.shape[1]], s, v, u[:, a.shape[1] :]


def _tall_forward(a: Tensor) -> Any:
    u, s, v, more = _tall(a)
    return (u, s, v, more), (u, s, v)


def _tall_reverse(kept: Any, cotangents: Any) -> Any:
    u, s, v = kept
    gu, gs, gv, g_more = cotangents
    gaps = _gaps(s * s)
    inverse = np.where(s == 0, 0, 1 / np.where(s == 0, 1, s))
    left, right = u.T @ gu, v.T @ gv
    inner = np.diag(gs) + gaps * (left - left.T) * s + s[:, None] * (gaps * (right - right.T))
    made = u @ inner @ v.T + (gu - u @ left) * inverse @ v.T
    made = made + (u * inverse) @ (gv - v @ right).T
    # The vectors that complete a basis are any: what depends on them has no derivative.
    return (np.where(np.any(g_more != 0), np.nan, made),)


_singular = custom_vjp(_tall, _tall_forward, _tall_reverse)


def svd(
    a: Tensor, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    a = _matrix(a, "svd")
    wide = a.shape[-2] < a.shape[-1]
    u, s, v, more = _each(_singular, np.swapaxes(a, -1, -2) if wide else a)
    if not compute_uv:
        return s
    if full_matrices:
        u = np.concatenate([u, more], axis=-1)
    if wide:
        u, v = v, u
    return _SVD(u, s, np.swapaxes(v, -1, -2))


def svdvals(x: Tensor, /) -> Tensor:
    return svd(x, compute_uv=False)


def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Tensor:
    A = _matrix(A, "matrix_rank")
    if any(np.ndim(v) for v in (tol, rtol) if v is not None):
        raise ProgramError("DL119", "np.linalg.matrix_rank takes one tolerance for all matrices")
    if hermitian and A.shape[-1] != A.shape[-2]:
        raise ProgramError("DL115", "np.linalg.matrix_rank: a Hermitian matrix is square")
    s = svdvals(A)
    if tol is None:
        share = max(A.shape[-2:]) * np.finfo(A.dtype).eps if rtol is None else rtol
        tol = np.max(s, axis=-1, keepdims=True) * share
    return np.count_nonzero(s > tol, axis=-1)


def cond(x: Tensor, p: Any = None) -> Tensor:
    if p not in (None, 2, -2):
        raise ProgramError("DL119", f"np.linalg.cond knows the norms None, 2 and -2, not {p!r}")
    s = svdvals(x)
    return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]


# Pseudo-inverses


def _inverse(a: Tensor, share: Tensor) -> Tensor:
    u, s, vt = svd(a, full_matrices=False)
    kept = s > share * np.max(s)
    weights = np.where(kept, 1 / np.where(kept, s, 1), 0)
    return (vt.T * weights) @ u.T


def _inverse_forward(a: Tensor, share: Tensor) -> Any:
    p = _inverse(a, share)
    return p, (a, p)


def _inverse_reverse(kept: Any, g: Tensor) -> Any:
    a, p = kept
    out = (np.eye(a.shape[0], dtype=a.dtype) - a @ p) @ g.T @ p @ p.T
    out = out + p.T @ p @ g.T @ (np.eye(a.shape[1], dtype=a.dtype) - p @ a)
    return out - p.T @ g @ p.T, None


_pseudo = custom_vjp(_inverse, _inverse_forward, _inverse_reverse)


def pinv(a: Tensor, rcond: Any = None, hermitian: bool = False) -> Tensor:
    a = _matrix(a, "pinv")
    share = np.asarray(1e-15 if rcond is None else rcond, a.dtype)
    if share.ndim:
        raise ProgramError("DL119", "np.linalg.pinv takes one rcond for all matrices")
    return _each(lambda m: _pseudo(m, share), a)
