"""Arrays that lie where vectors are read from fastest, and what differs in them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

#: Bytes: a cache line, and the widest vector.
ALIGNMENT = 64


def aligned(array: Array) -> Array:
    """The array, or a copy of it row by row, whose memory begins at a multiple of `ALIGNMENT`.

    A vector that is read across the end of a cache line is read twice: a product of one row with a
    matrix that a cache holds takes twice as long. NumPy aligns to 16 bytes alone.
    """
    if array.flags.c_contiguous and not array.ctypes.data % ALIGNMENT:
        return array
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    out: Array = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def distinct(array: Array) -> Array:
    """Its distinct numbers, sorted; `np.unique` would import numpy.ma, 1.3 MB."""
    ordered = np.sort(array, axis=None)
    first = np.ones(ordered.shape, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]
