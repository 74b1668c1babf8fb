"""A frozen weight and a part that rounds add to it: what exact aggregation of LoRA needs.

    x W  becomes  x W + s (x R),   R f32[inputs, outputs]

R is the mean of A_i B_i over devices less the product of the means, which has no factors of the
adapters' rank (`algorithms.adapters.fedexlora`).
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from ...compiler import tree
from ...compiler.api import module
from ...compiler.ir import Tensor
from ...compiler.tree import static_field
from .low_rank import LowRank
from .weight_object import WeightObject

M = TypeVar("M")

#: The end of a residual's dotted name, after that of its adapter.
RESIDUAL = ".base.residual"


@module
class SummedWeight(WeightObject):
    """W + s R, without the sum."""

    base: Tensor  # f32[inputs, outputs], or another weight object: frozen
    residual: Tensor  # f32[inputs, outputs]
    scale: float = static_field(default=1.0)

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """f32[..., inputs] -> f32[..., outputs]."""
        return x @ self.base + (x @ self.residual) * self.scale

    def __getitem__(self, symbols: Tensor) -> Tensor:
        """Integers [...] below `inputs` -> f32[..., outputs]: rows of a table."""
        return self.base[symbols] + self.residual[symbols] * self.scale


def with_residuals(model: M) -> M:
    """The model with a residual of zeros in each of its LoRA weights. Compiled."""
    nodes, structure = tree.flatten(model, lambda node: isinstance(node, LowRank))
    made: M = tree.unflatten(structure, [_summed(node) for node in nodes])
    return made


def _summed(node: Any) -> Any:
    if not isinstance(node, LowRank):
        return node
    base = SummedWeight(node.base, np.zeros(node.base.shape, np.float32), node.scale)
    return LowRank(base, node.a, node.b, node.key, node.scale, node.settings)
