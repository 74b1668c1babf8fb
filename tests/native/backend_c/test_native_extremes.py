"""Empty and extreme shapes: compiled programs end, and give what the reference gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.native.program import compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType

F32 = DType.F32


def family(
    name: str,
    x: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    dtype: DType = F32,
) -> Block:
    """A convolution and its two gradients."""
    out = [(x[i + 1] + sum(padding[i]) - k[i]) // strides[i] + 1 for i in range(2)]
    y = (x[0], *out, k[3])
    b = Builder([TensorType(dtype, s) for s in (x, k, y)])
    how: dict[str, Any] = {"strides": strides, "padding": padding}
    if name == "grouped_conv":
        how["groups"] = max(k[3] if k[2] == 1 else 1, 1)
    u, v, w = b.params
    return b.finish(
        [
            b(name, u, v, **how),
            b(f"{name}_input_grad", w, v, input_size=x[1:3], **how),
            b(f"{name}_weight_grad", u, w, kernel_size=k[:2], **how),
        ]
    )


NONE = ((0, 0), (0, 0))
WIDE = ((9, 30), (7, 0))
CASES: dict[str, tuple[Any, ...]] = {
    "no input channels": ("conv", (2, 5, 5, 0), (3, 3, 0, 4), (1, 1), NONE),
    "no input channels, many outputs": ("conv", (1, 5, 5, 0), (1, 1, 0, 40), (2, 2), NONE),
    "no output channels": ("conv", (2, 5, 5, 3), (3, 3, 3, 0), (1, 1), NONE),
    "no channels": ("conv", (2, 5, 5, 0), (3, 3, 0, 0), (2, 1), NONE),
    "no images": ("conv", (0, 5, 5, 3), (3, 3, 3, 4), (1, 1), NONE),
    "no channels, one group": ("grouped_conv", (1, 5, 5, 0), (3, 3, 0, 0), (1, 1), NONE),
    "no images, depthwise": ("grouped_conv", (0, 5, 5, 4), (3, 3, 1, 4), (2, 2), NONE),
    "stride beyond the kernel": ("conv", (2, 9, 8, 3), (2, 1, 3, 4), (7, 5), NONE),
    "stride beyond the image": ("conv", (1, 3, 3, 2), (1, 1, 2, 3), (2**16, 2**16), NONE),
    "stride beyond in one direction": ("conv", (1, 9, 9, 2), (3, 1, 2, 3), (1, 4), NONE),
    "padding beyond the kernel": ("conv", (1, 4, 4, 2), (3, 3, 2, 3), (1, 2), WIDE),
    "padding beyond the kernel, depthwise": (
        *("grouped_conv", (1, 4, 4, 20), (3, 3, 1, 20)),
        *((1, 2), WIDE),
    ),
    "padding and a stride, depthwise": (
        *("grouped_conv", (1, 40, 3, 16), (3, 3, 1, 16)),
        *((21, 1), ((2, 12), (0, 0))),
    ),
    "padding and a stride, few channels": (
        *("grouped_conv", (1, 40, 3, 2), (5, 2, 1, 2)),
        *((2**16, 1), ((2**16, 40), (3, 0))),
    ),
}


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_convolutions_without_elements_or_with_windows_outside(
    toolchain: Toolchain, dtype: DType
) -> None:
    functions = {
        label: Function("f", family(*case, dtype=dtype), ("x", "k", "y"), ("a", "b", "c"))
        for label, case in CASES.items()
    }
    compiled = compile_native(functions, toolchain)
    rng = np.random.default_rng(3)
    for label, function in functions.items():
        args = [rng.standard_normal(p.shape).astype(dtype.numpy) for p in function.body.params]
        for made, expected in zip(
            compiled[label](*args), run_block(function.body, args), strict=True
        ):
            np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4, err_msg=label)


def test_one_element_with_a_step_or_gaps_of_any_size(toolchain: Toolchain) -> None:
    """A step along an axis of one element multiplies nothing, and so wraps nothing around."""
    b = Builder([TensorType(F32, (5, 7)), TensorType(F32)])
    x, value = b.params
    one = b("slice", x, start=(4, 0), stop=(5, 7), step=(2**40, 1))
    twice = b("slice", one, start=(0, 6), stop=(1, 7), step=(2**40, 2**40))
    gaps = b("pad", one, value, low=(1, 0), high=(0, 1), interior=(2**40, 1))
    none = b("slice", x, start=(5, 0), stop=(5, 7), step=(2**40, 2**40))
    block = b.finish([b("neg", one), b("neg", twice), gaps, none])
    function = Function("f", block, ("x", "v"), ("a", "b", "c", "d"))
    args = [np.arange(35, dtype=np.float32).reshape(5, 7), np.float32(2)]
    made = compile_native({"f": function}, toolchain)["f"](*args)
    for got, expected in zip(made, run_block(block, args), strict=True):
        np.testing.assert_array_equal(got, expected)
