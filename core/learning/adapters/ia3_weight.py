"""A layer with scaled inputs or outputs ((IA)^3; Liu et al. 2022, arXiv 2205.05638, section 3.3).

    x W + c  becomes  (x W + c) l,   l [outputs];   in a feed-forward part  (x l) W + c,  l [inputs]

The scaled output has the bias in it. So the bias moves into the weight's object, and `MovedBias`,
which adds nothing, stands in its place.
"""

from __future__ import annotations

import numpy as np

from ...compiler.api import module
from ...compiler.ir import Tensor
from ...compiler.tree import static_field
from .adapter_settings import AdapterSettings
from .low_rank import dense
from .weight_object import WeightObject


@module
class Ia3(WeightObject):
    """A linear layer's weight, and its bias where the output is scaled."""

    base: Tensor  # f32[inputs, outputs] or a `QuantisedWeight`, frozen
    factors: Tensor  # f32[outputs], or f32[inputs] in a feed-forward part
    bias: Tensor | None = None  # f32[outputs], frozen
    feedforward: bool = static_field(default=False)
    settings: AdapterSettings | None = static_field(default=None)

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """f32[..., inputs] -> f32[..., outputs]."""
        if self.feedforward:
            return (x * self.factors) @ self.base
        product = x @ self.base
        return (product if self.bias is None else product + self.bias) * self.factors

    def merged(self) -> Tensor:
        """f32[inputs, outputs]: the weight that multiplies as this one does."""
        factors = self.factors[:, None] if self.feedforward else self.factors
        return np.asarray(dense(self.base) * factors)

    def merged_bias(self) -> Tensor | None:
        """f32[outputs]: the bias that is added then, if it is here."""
        return None if self.bias is None else np.asarray(self.bias * self.factors)


@module
class MovedBias:
    """Where a bias was that an `Ia3` has now: it adds nothing."""

    __array_ufunc__ = None

    def __radd__(self, y: Tensor) -> Tensor:
        return y
