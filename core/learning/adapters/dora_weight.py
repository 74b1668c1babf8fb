"""A weight whose columns have a trained length, and a direction of low rank (DoRA).

    V = W + s A B,   x W  becomes  (x V) m / |V|,   m [outputs], |V| the length of each column

Liu et al. 2024, arXiv 2402.09353; |V| counts as a constant in derivatives (section 4.3). It needs
no V:

    |V_j|^2 = |W_j|^2 + 2 s (W^T A)_j B_j + s^2 B_j^T (A^T A) B_j
"""

from __future__ import annotations

import numpy as np

from ...compiler import ops
from ...compiler.api import module
from ...compiler.ir import Tensor
from ...compiler.tree import static_field
from .adapter_settings import AdapterSettings
from .low_rank import dense, dropped
from .weight_object import WeightObject


@module
class Dora(WeightObject):
    """A linear layer's weight, decomposed into lengths and directions."""

    base: Tensor  # f32[inputs, outputs] or a `QuantisedWeight`, frozen
    a: Tensor  # f32[inputs, rank]
    b: Tensor  # f32[rank, outputs]
    magnitude: Tensor  # f32[outputs]
    key: Tensor | None = None
    """u32[2] in training with dropout; None drops nothing."""
    scale: float = static_field(default=1.0)
    settings: AdapterSettings | None = static_field(default=None)

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """f32[..., inputs] -> f32[..., outputs]."""
        factor = self.magnitude / ops.stop_gradient(column_norms(self))
        if self.key is None or self.settings is None or self.settings.dropout == 0.0:
            return (x @ self.base + ((x @ self.a) * self.scale) @ self.b) * factor
        # PEFT drops from what the adapter adds alone, the change of length included.
        part = dropped(x, self.key, self.settings)
        added = (part @ self.base) * (factor - 1.0)
        return x @ self.base + added + ((part @ self.a) * self.scale) @ self.b * factor

    def merged(self) -> Tensor:
        """f32[inputs, outputs]: the weight that multiplies as this one does."""
        whole = dense(self.base) + (self.a * self.scale) @ self.b
        return whole * (self.magnitude / column_norms(self))


def column_norms(weight: Dora) -> Tensor:
    """f32[outputs]: the length of each column of W + s A B."""
    a, b, base = weight.a * weight.scale, weight.b, dense(weight.base)
    across = np.sum((a.T @ base) * b, axis=0)
    inner = np.sum(((a.T @ a) @ b) * b, axis=0)
    # Rounding may leave less than nothing of a column that the update takes away.
    return np.sqrt(np.maximum(np.sum(base * base, axis=0) + 2.0 * across + inner, 0))
