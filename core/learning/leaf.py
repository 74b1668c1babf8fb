"""One array of a tree, as manifests name it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..compiler.ir import TensorType


@dataclass(frozen=True)
class Leaf:
    """One array of a tree: its dotted name, dtype (`f32`) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @classmethod
    def of(cls, name: str, type: TensorType) -> Leaf:
        return cls(name, type.dtype.value, type.shape)
