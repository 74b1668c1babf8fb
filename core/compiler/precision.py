"""Training in 16 bits: `mixed_precision` and the scale of the loss that f16 needs.

    scale = dl.loss_scale(np.float16)

    def step(params, scale, batch):
        loss, grads, finite = scale.value_and_grad(dl.mixed_precision(f, np.float16))(params, batch)
        if finite:
            params = dl.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return params, scale.updated(finite)

A gradient below 6e-8 is zero in f16. So the loss is multiplied by a scale before the reverse pass
and its gradients divided by it after. The scale doubles after 2,000 steps without an overflow; a
step that overflows halves it, and is skipped (Micikevicius et al., "Mixed precision training", ICLR
2018, section 3.2). bf16 has the range of f32 and needs none: its scale has no state at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..common.errors import DelianError
from . import tree
from .api import module, static_field, value_and_grad
from .ir import DType

#: The scale at first: 2^15, so that a loss of one is within f16.
_INITIAL = 2.0**15
_GROWTH_STEPS = 2000
#: Beyond this a scale is no use: f16 has none larger.
_SCALE_MAX = 2.0**24


def all_finite(values: Any) -> Any:
    """bool[]: whether every number of a tree of floats is finite."""
    finite: Any = True
    for leaf in tree.leaves(values):
        finite = finite & np.all(np.isfinite(leaf))
    return finite


@module
class LossScale:
    """The scale of the loss, and how many steps in a row have been finite with it.

    Attributes:
        scale: f32[]. good_steps: i32[].
        growth_steps: after so many finite steps the scale doubles.
    """

    scale: Any
    good_steps: Any
    growth_steps: int = static_field()

    def value_and_grad(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        """`dl.value_and_grad` of the scaled loss: (loss, unscaled gradient, finite)."""

        def run(*args: Any) -> Any:
            def scaled(*inner: Any) -> Any:
                loss = f(*inner)
                return loss * self.scale, loss

            (_, loss), grads = value_and_grad(scaled, argnums, has_aux=True)(*args)
            finite = all_finite(grads)
            return loss, tree.map(lambda g: g / self.scale, grads), finite

        return run

    def updated(self, finite: Any) -> LossScale:
        """The scale for the next step."""
        good = np.where(finite, self.good_steps + np.int32(1), np.int32(0))
        grow = good >= self.growth_steps
        larger = np.minimum(self.scale * np.float32(2.0), np.float32(_SCALE_MAX))
        smaller = np.maximum(self.scale * np.float32(0.5), np.float32(1.0))
        scale = np.where(finite, np.where(grow, larger, self.scale), smaller)
        return LossScale(scale, np.where(grow, np.int32(0), good), self.growth_steps)


@module
class NoLossScale:
    """What bf16 and f32 need: nothing. It has no leaves, so a program carries no state for it."""

    def value_and_grad(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        """(loss, gradient, whether the gradient is finite)."""

        def run(*args: Any) -> Any:
            loss, grads = value_and_grad(f, argnums)(*args)
            return loss, grads, all_finite(grads)

        return run

    def updated(self, finite: Any) -> NoLossScale:
        """Itself."""
        return self


def loss_scale(dtype: Any, growth_steps: int = _GROWTH_STEPS) -> LossScale | NoLossScale:
    """The state of the loss scale for training with products in this type.

    f16 needs one, wider ranges do not. Raises DelianError for what is no type of floating point.
    """
    if not DType.of(np.dtype(dtype)).is_float:
        raise DelianError(f"a loss is of floating point, not {np.dtype(dtype)}", "np.float16")
    if np.dtype(dtype) == np.float16:
        return LossScale(np.float32(_INITIAL), np.int32(0), growth_steps)
    return NoLossScale()
