"""Linear algebra on top of products and solves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....common.errors import ProgramError
from ...ir import Tensor
from .np_arrays import place


def cross(
    a: Tensor, b: Tensor, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None
) -> Tensor:
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = np.moveaxis(a, axisa, -1), np.moveaxis(b, axisb, -1)
    if a.shape[-1] not in (2, 3) or b.shape[-1] not in (2, 3):
        raise ProgramError("DL115", "np.cross takes vectors of 2 or 3 elements")
    z = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    if a.shape[-1] == 2 and b.shape[-1] == 2:
        return z
    nothing = np.zeros_like(z)
    az = a[..., 2] if a.shape[-1] == 3 else nothing
    bz = b[..., 2] if b.shape[-1] == 3 else nothing
    x = a[..., 1] * bz - az * b[..., 1]
    y = az * b[..., 0] - a[..., 0] * bz
    return np.stack([x, y, z], axis=axisc)


def linalg_cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """`np.linalg.cross`, of vectors of three elements alone."""
    for x in (x1, x2):
        if np.shape(x)[axis] != 3:
            raise ProgramError("DL115", "np.linalg.cross takes vectors of 3 elements")
    return np.cross(x1, x2, axis=axis)


def linalg_outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """`np.linalg.outer`, which does not flatten its operands."""
    if np.ndim(x1) != 1 or np.ndim(x2) != 1:
        text = f"np.linalg.outer takes two vectors, not ranks {np.ndim(x1)} and {np.ndim(x2)}"
        raise ProgramError("DL115", text, hint="np.outer flattens its arguments")
    return np.outer(x1, x2)


def vecdot(x1: Tensor, x2: Tensor, axis: int = -1) -> Tensor:
    if np.shape(x1)[axis] != np.shape(x2)[axis]:
        raise ProgramError("DL115", "np.vecdot takes vectors of one length")
    product = np.moveaxis(x1, axis, -1) * np.moveaxis(x2, axis, -1)
    return np.sum(product, axis=-1, dtype=product.dtype)


def matvec(x1: Tensor, x2: Tensor) -> Tensor:
    if np.ndim(x1) < 2:
        raise ProgramError("DL115", "np.matvec takes a matrix, then a vector")
    return (x1 @ np.asarray(x2)[..., None])[..., 0]


def vecmat(x1: Tensor, x2: Tensor) -> Tensor:
    if np.ndim(x2) < 2:
        raise ProgramError("DL115", "np.vecmat takes a vector, then a matrix")
    return (np.asarray(x1)[..., None, :] @ x2)[..., 0, :]


def det(a: Tensor) -> Tensor:
    """In full up to 3 by 3, which has derivatives where the matrix is singular; else by slogdet."""
    n = a.shape[-1]
    if n == 0:
        return np.ones(a.shape[:-2], a.dtype)
    if n == 1:
        return a[..., 0, 0]
    if n == 2:
        return a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]
    if n == 3:
        return np.sum(a[..., 0, :] * np.cross(a[..., 1, :], a[..., 2, :]), axis=-1)
    sign, size = np.linalg.slogdet(a)
    return sign * np.exp(size)


def matrix_power(a: Tensor, n: int) -> Tensor:
    """By squaring."""
    if not isinstance(n, int | np.integer):
        raise ProgramError("DL119", "np.linalg.matrix_power takes a whole number that is known")
    a = np.asarray(a)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ProgramError("DL115", "np.linalg.matrix_power takes square matrices")
    if n < 0:
        a, n = np.linalg.inv(a), -n
    if n == 0:
        return np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape)
    result = None
    while n > 0:
        if n % 2 == 1:
            result = a if result is None else result @ a
        n = n // 2
        if n > 0:
            a = a @ a
    return result


def multi_dot(arrays: Sequence[Tensor], splits: Any) -> Tensor:
    """The product in an order that is given: (order of the left, of the right), or a place."""
    n = len(arrays)
    first = np.atleast_2d(arrays[0])
    last = arrays[-1] if np.ndim(arrays[-1]) == 2 else np.reshape(arrays[-1], (-1, 1))
    product = _chain([first, *arrays[1 : n - 1], last], splits)
    if np.ndim(arrays[0]) == 1:
        product = product[0]
    return product[..., 0] if np.ndim(arrays[-1]) == 1 else product


def _chain(matrices: Sequence[Tensor], splits: Any) -> Tensor:
    if not isinstance(splits, tuple):
        return matrices[splits]
    return _chain(matrices, splits[0]) @ _chain(matrices, splits[1])


def norm(x: Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Vector norms, and the matrix norms that need no singular values."""
    x = np.asarray(x)
    x = x.astype(np.float64) if x.dtype.kind in "biu" else x
    if axis is None:
        if ord is None or (ord == 2 and x.ndim == 1) or (ord == "fro" and x.ndim == 2):
            return np.sqrt(np.sum(x * x, axis=None, keepdims=keepdims))
        axis = tuple(range(x.ndim))
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    axes = tuple(place(k, x.ndim) for k in axes)
    if len(set(axes)) < len(axes):
        raise ProgramError("DL115", "np.linalg.norm: an axis is named twice")
    if len(axes) == 1:
        return _vector_norm(x, 2 if ord is None else ord, axes, keepdims)
    if len(axes) == 2:
        return _matrix_norm(x, "fro" if ord is None else ord, axes, keepdims)
    raise ProgramError("DL115", f"np.linalg.norm: no norm of order {ord} over {len(axes)} axes")


def _vector_norm(x: Tensor, ord: Any, axes: Any, keepdims: bool) -> Tensor:
    if isinstance(ord, str):
        raise ProgramError("DL119", f"np.linalg.norm: a vector has no norm {ord!r}")
    if ord == 2:
        return np.sqrt(np.sum(x * x, axis=axes, keepdims=keepdims))
    if ord == np.inf:
        return np.max(np.abs(x), axis=axes, keepdims=keepdims)
    if ord == -np.inf:
        return np.min(np.abs(x), axis=axes, keepdims=keepdims)
    if ord == 0:
        return np.sum((x != 0).astype(x.dtype), axis=axes, keepdims=keepdims)
    if ord == 1:
        return np.sum(np.abs(x), axis=axes, keepdims=keepdims)
    return np.sum(np.abs(x) ** ord, axis=axes, keepdims=keepdims) ** (1 / ord)


def _matrix_norm(x: Tensor, ord: Any, axes: Any, keepdims: bool) -> Tensor:
    if ord == "fro":
        return np.sqrt(np.sum(x * x, axis=axes, keepdims=keepdims))
    if ord not in (1, -1, np.inf, -np.inf):
        raise ProgramError(
            "DL119", f"np.linalg.norm: the matrix norm {ord!r} needs singular values"
        )
    rows, columns = axes
    summed, left = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = np.sum(np.abs(x), axis=summed, keepdims=True)
    best = np.max(sums, axis=left, keepdims=True) if ord > 0 else np.min(sums, left, keepdims=True)
    return best if keepdims else np.squeeze(best, axis=axes)


def vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    x = np.asarray(x)
    x = x.astype(np.float64) if x.dtype.kind in "biu" else x
    axes = tuple(range(x.ndim)) if axis is None else axis
    axes = axes if isinstance(axes, tuple | list) else (axes,)
    return _vector_norm(x, ord, tuple(place(k, x.ndim) for k in axes), keepdims)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    return np.linalg.norm(x, ord, (-2, -1), keepdims)


def tensorsolve(a: Tensor, b: Tensor, axes: Any = None) -> Tensor:
    a, b = np.asarray(a), np.asarray(b)
    if axes is not None:
        kept = [k for k in range(a.ndim) if k not in axes]
        a = np.transpose(a, (*kept, *axes))
    shape = a.shape[b.ndim :]
    return np.linalg.solve(a.reshape((b.size, b.size)), np.ravel(b)).reshape(shape)


def tensorinv(a: Tensor, ind: int = 2) -> Tensor:
    a = np.asarray(a)
    if ind <= 0 or a.ndim == 0:
        raise ProgramError("DL115", "np.linalg.tensorinv takes an array, and a positive number")
    front, back = a.shape[:ind], a.shape[ind:]
    size = rest = 1
    for n in front:
        size *= n
    for n in back:
        rest *= n
    if size != rest:
        raise ProgramError("DL115", "np.linalg.tensorinv: the axes are those of no square matrix")
    return np.linalg.inv(a.reshape((size, size))).reshape((*back, *front))
