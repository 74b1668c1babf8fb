"""A weight with an update of low rank (LoRA; Hu et al. 2021, arXiv 2106.09685).

    x W  becomes  x W + s (x A) B,   A [inputs, rank], B [rank, outputs], s = alpha / rank

The object stands where the weight stood. Layers write `x @ weight`, and Python gives that to
`__rmatmul__` here. So no merged weight is made, and since W is never the operand of a derivative
that is asked for, its dense slope is not computed either.
"""

from __future__ import annotations

from ...compiler import ops
from ...compiler.api import module
from ...compiler.ir import Tensor
from ...compiler.ops.quantised_weights import QuantisedWeight
from ...compiler.tree import static_field
from .adapter_settings import AdapterSettings
from .weight_object import WeightObject


@module
class LowRank(WeightObject):
    """W + s A B of a linear layer, or of a table of vectors, without the sum."""

    base: Tensor  # f32[inputs, outputs] or a `QuantisedWeight`, frozen
    a: Tensor  # f32[inputs, rank]
    b: Tensor  # f32[rank, outputs]
    key: Tensor | None = None
    """u32[2] in training with dropout (`adapters.with_key`); None drops nothing."""
    scale: float = static_field(default=1.0)
    settings: AdapterSettings | None = static_field(default=None)

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """f32[..., inputs] -> f32[..., outputs]."""
        inner = dropped(x, self.key, self.settings) @ self.a
        return x @ self.base + (inner * self.scale) @ self.b

    def __getitem__(self, symbols: Tensor) -> Tensor:
        """Integers [...] below `inputs` -> f32[..., outputs]: rows of a table. Nothing drops."""
        return self.base[symbols] + (self.a[symbols] * self.scale) @ self.b

    def merged(self) -> Tensor:
        """f32[inputs, outputs]: the sum, for a model without adapters."""
        return dense(self.base) + (self.a * self.scale) @ self.b


def dense(base: Tensor) -> Tensor:
    """f32[inputs, outputs]: the numbers of a frozen weight, also of one in few bits."""
    return base.expanded() if isinstance(base, QuantisedWeight) else base


def dropped(x: Tensor, key: Tensor | None, settings: AdapterSettings | None) -> Tensor:
    """The input of an adapter in training."""
    if key is None or settings is None or settings.dropout == 0.0:
        return x
    return ops.dropout(x, settings.dropout, key)
