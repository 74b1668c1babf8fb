"""Arrays whose length only the running program knows: as long as the data allow, and a count.

`x[mask]`, `np.nonzero` and `np.unique` give arrays whose length depends on the data, and every type
of the IR has a shape. So such an array is two values of the program, and this is the node that
holds them: elements up to a capacity, which the shapes give, and how many of them there are. The
IR, derivatives and back ends see two dense arrays. `frontend.ragged` says what operators and
functions mean on them; a caller in Python gets an array of the right length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import tree


@dataclass(frozen=True, eq=False)
class Ragged:
    """An array of which only the running program knows how long one axis is."""

    data: Any
    """An array; behind the first `count` entries of the axis there is padding, which no result
    depends on.
    """
    count: Any
    """i64[], from 0 to the length of that axis of `data`."""
    axis: int = tree.static_field(default=0)
    """The axis."""

    def __str__(self) -> str:
        type_ = getattr(self.data, "type", None)
        if type_ is None:
            return "an array of a length that the data decide"
        sizes = [f"<={n}" if k == self.axis else str(n) for k, n in enumerate(type_.shape)]
        return f"{type_.dtype.value}[{','.join(sizes)}]"

    @classmethod
    def tree_build(cls, parts: Iterable[Any], axis: int) -> Any:
        """The node of these parts; of arrays the array itself, without its padding."""
        data, count = parts
        if isinstance(data, np.ndarray) and isinstance(count, int | np.integer | np.ndarray):
            return data[(slice(None),) * axis + (slice(int(count)),)].copy()
        return cls(data, count, axis)
