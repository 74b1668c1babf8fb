"""Convolutions natively: strides, kernels and paddings of every kind against the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Builder, DType, Function, TensorType

Size = tuple[int, int]
#: image, channels in and out, kernel, strides, padding before and after.
CASES: dict[str, tuple[Size, Size, Size, Size, tuple[Size, Size]]] = {
    "plain": ((9, 8), (3, 20), (3, 3), (1, 1), ((1, 1), (1, 1))),
    "a stride": ((9, 8), (33, 16), (3, 3), (2, 2), ((1, 1), (0, 1))),
    "one stride an axis": ((7, 12), (5, 4), (4, 3), (2, 3), ((2, 1), (0, 2))),
    "a stride longer than the kernel": ((11, 10), (4, 17), (2, 1), (3, 3), ((0, 1), (0, 0))),
    "one place": ((8, 8), (16, 40), (1, 1), (2, 2), ((0, 0), (0, 0))),
    "an image that no stride divides": ((10, 13), (2, 3), (5, 5), (3, 2), ((4, 0), (1, 3))),
    "one pixel": ((1, 1), (3, 2), (3, 3), (2, 2), ((1, 1), (1, 1))),
    "nothing beside the kernel": ((5, 4), (3, 48), (5, 4), (1, 2), ((0, 0), (0, 0))),
}


def convolutions(name: str) -> Function:
    """A convolution and its two gradients."""
    (h, w), (c, o), (kh, kw), strides, padding = CASES[name]
    oh = (h + sum(padding[0]) - kh) // strides[0] + 1
    ow = (w + sum(padding[1]) - kw) // strides[1] + 1
    shapes = ((2, h, w, c), (kh, kw, c, o), (2, oh, ow, o))
    b = Builder([TensorType(DType.F32, s) for s in shapes])
    x, k, y = b.params
    how: dict[str, Any] = {"strides": strides, "padding": padding}
    results = [
        b("conv", x, k, **how),
        b("conv_input_grad", y, k, input_size=(h, w), **how),
        b("conv_weight_grad", x, y, kernel_size=(kh, kw), **how),
    ]
    return Function(name, b.finish(results), ("x", "k", "y"), ("y", "dx", "dk"))


@pytest.fixture(scope="module")
def programs(toolchain: Toolchain) -> Mapping[str, NativeProgram]:
    return compile_native({name: convolutions(name) for name in CASES}, toolchain)


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_and_its_gradients_equal_the_reference(
    name: str, programs: Mapping[str, NativeProgram]
) -> None:
    function = programs[name].function
    rng = np.random.default_rng(1)
    args = [np.asarray(rng.standard_normal(p.shape), np.float32) for p in function.body.params]
    for result, expected in zip(programs[name](*args), run_block(function.body, args), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
