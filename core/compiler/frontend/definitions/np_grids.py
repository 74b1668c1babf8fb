"""Places of an array by its shape, and functions along one of its axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....common.errors import ProgramError
from ...ir import Tensor
from .np_arrays import place


def triu_indices_from(arr: Tensor, k: Any = 0) -> Any:
    rows, columns = _matrix_shape(arr, "np.triu_indices_from")
    return np.triu_indices(rows, k, columns)


def tril_indices_from(arr: Tensor, k: Any = 0) -> Any:
    rows, columns = _matrix_shape(arr, "np.tril_indices_from")
    return np.tril_indices(rows, k, columns)


def _matrix_shape(arr: Tensor, name: str) -> Any:
    if np.ndim(arr) != 2:
        raise ProgramError("DL115", f"{name} takes a matrix")
    return np.shape(arr)


def diag_indices_from(arr: Tensor) -> Any:
    shape = np.shape(arr)
    if len(shape) < 2 or any(n != shape[0] for n in shape):
        raise ProgramError("DL115", "np.diag_indices_from: all dimensions must be of equal length")
    return np.diag_indices(shape[0], len(shape))


def row_stack(tup: Sequence[Tensor]) -> Tensor:
    return np.vstack(tup)


def apply_along_axis(
    func1d: Callable[..., Tensor], axis: int, arr: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """A loop over the vectors along an axis; the axes of a result stand in its place."""
    arr = np.asarray(arr)
    axis = place(axis, arr.ndim)
    moved = np.moveaxis(arr, axis, -1)
    lead = moved.shape[:-1]
    vectors = np.reshape(moved, (-1, moved.shape[-1]))
    made = np.stack([np.asarray(func1d(v, *args, **kwargs)) for v in vectors])
    each = made.shape[1:]
    out = np.reshape(made, (*lead, *each))
    places = tuple(range(len(lead), out.ndim))
    return np.moveaxis(out, places, tuple(range(axis, axis + len(each))))
