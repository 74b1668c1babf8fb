"""`np.r_[a, b, 0]` and `np.c_[x, y]`: objects of NumPy that join what they are indexed with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import operators
from ..values import Text, is_static
from . import arithmetic, elementwise, shapes

if TYPE_CHECKING:
    from ..specialise import Specialiser

_NAMES = {id(np.r_): "np.r_", id(np.c_): "np.c_"}


def is_concatenator(value: Any) -> bool:
    """Whether it is `np.r_` or `np.c_`."""
    return id(value) in _NAMES


def joined(s: Specialiser, value: Any, index: Any) -> Any:
    """`value[index]`: slices are ranges, numbers are arrays of one element.

    `np.r_` joins rows, `np.c_` puts vectors side by side as columns.

    Raises:
        ProgramError: DL119, for the directives in text ('r', '0,2'); those of `shapes.concatenate`.
    """
    name, columns = _NAMES[id(value)], value is np.c_
    items = index if isinstance(index, tuple) else (index,)
    if any(isinstance(item, str) or type(item) is Text for item in items):
        text = f"`{name}` takes arrays, numbers and slices, no text"
        raise s.error("DL119", text, "np.concatenate and np.stack name their axis")
    if is_static(index):
        return operators.python(s, lambda: value[index], f"`{name}`")
    parts = [_range(s, v) if isinstance(v, slice) else elementwise.array(s, v) for v in items]
    kind, _ = arithmetic.result_dtype(s, parts)
    arrays = [arithmetic.tensor(s, p, kind) for p in parts]
    if columns:
        wide = [x if len(x.shape) > 1 else shapes.reshape(s, x, (-1, 1)) for x in arrays]
    else:
        wide = [x if x.shape else shapes.reshape(s, x, 1) for x in arrays]
    return shapes.concatenate(s, wide, -1 if columns else 0)


def _range(s: Specialiser, item: slice) -> Any:
    start, step = 0 if item.start is None else item.start, item.step
    if isinstance(step, complex):
        return shapes.linspace(s, start, item.stop, int(abs(step)))
    return shapes.arange(s, start, item.stop, 1 if step is None else step)
