"""Convolutions of single pixels as products: the same numbers, and no convolution left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Builder, DType, Function, TensorType
from delian.core.compiler.passes.lowering.pointwise_convolutions import (
    pointwise_convolutions_to_products,
)
from delian.core.compiler.verify import verify


def convolutions(side: int, stride: int, edge: int, images: int = 2) -> Function:
    """A convolution of 5x4 images, 3 channels to 6, and its two gradients."""
    padding = ((edge, edge), (edge, edge))
    oh, ow = ((size + 2 * edge - side) // stride + 1 for size in (5, 4))
    shapes = ((images, 5, 4, 3), (side, side, 3, 6), (images, oh, ow, 6))
    b = Builder([TensorType(DType.F32, s) for s in shapes])
    x, k, y = b.params
    how: dict[str, Any] = {"strides": (stride, stride), "padding": padding}
    results = [
        b("conv", x, k, **how),
        b("conv_input_grad", y, k, input_size=(5, 4), **how),
        b("conv_weight_grad", x, y, kernel_size=(side, side), **how),
    ]
    return Function("f", b.finish(results), ("x", "k", "y"), ("y", "dx", "dk"))


def test_a_convolution_of_single_pixels_and_its_gradients_are_products() -> None:
    function = convolutions(1, 1, 0)
    after = pointwise_convolutions_to_products(function)
    verify(after.body)
    assert [op.name for op in after.body.ops if op.name != "reshape"] == ["dot"] * 3
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(p.shape).astype(np.float32) for p in function.body.params]
    results = run_block(after.body, args)
    for one, other in zip(run_block(function.body, args), results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("side", "stride", "edge", "images"), [(3, 1, 1, 2), (1, 2, 0, 2), (1, 1, 1, 2), (1, 1, 0, 0)]
)
def test_others_stay(side: int, stride: int, edge: int, images: int) -> None:
    function = convolutions(side, stride, edge, images)
    assert pointwise_convolutions_to_products(function) is function
