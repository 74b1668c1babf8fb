"""Convolution in two dimensions and its two partial derivatives.

The three are one trilinear form T(x, k, y) = sum(conv(x, k) * y), each the gradient of T by one of its arguments. So
the derivatives of each are the other two, and any order of derivative stays within the three.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Block, TensorType, Type
from .checks import FLOATS, fail, int_tuple, tensor
from .table import Attrs, Primitive


def _geometry(name: str, attrs: Attrs) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Strides and padding, checked."""
    strides = int_tuple(name, attrs, "strides", 2)
    padding = attrs["padding"]
    good = (
        type(padding) is tuple
        and len(padding) == 2
        and all(
            type(p) is tuple and len(p) == 2 and all(type(i) is int and i >= 0 for i in p)
            for p in padding
        )
    )
    if not good:
        fail(name, f"padding must be ((low, high), (low, high)), not {padding!r}")
    if 0 in strides:
        fail(name, f"strides must be at least 1, not {strides}")
    return strides, padding


def _out_size(name: str, size: Sequence[int], kernel: Sequence[int], attrs: Attrs) -> list[int]:
    """The two sizes of the output."""
    strides, padding = _geometry(name, attrs)
    out = []
    for n, k, stride, (low, high) in zip(size, kernel, strides, padding, strict=True):
        room = n + low + high - k
        if room < 0 or k < 1:
            fail(name, f"a kernel of {k} does not fit {n} elements with padding ({low}, {high})")
        out.append(room // stride + 1)
    return out


def _operands(
    name: str, types: Sequence[Type], first: str, second: str
) -> tuple[TensorType, TensorType]:
    a, b = tensor(name, types[0], FLOATS, first), tensor(name, types[1], FLOATS, second)
    if a.dtype is not b.dtype:
        fail(name, f"element types of {a} and {b} differ", "convert one of them")
    if len(a.shape) != 4 or len(b.shape) != 4:
        fail(name, f"{first} and {second} must have rank 4, not {a} and {b}")
    return a, b


def _conv_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    x, k = _operands("conv", types, "the input [N,H,W,C]", "the kernel [KH,KW,C,O]")
    if x.shape[3] != k.shape[2]:
        fail("conv", f"the input {x} has {x.shape[3]} channels, the kernel {k} takes {k.shape[2]}")
    out = _out_size("conv", x.shape[1:3], k.shape[:2], attrs)
    return (TensorType(x.dtype, (x.shape[0], *out, k.shape[3])),)


def _input_grad_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    name = "conv_input_grad"
    y, k = _operands(name, types, "the cotangent [N,OH,OW,O]", "the kernel [KH,KW,C,O]")
    size = int_tuple(name, attrs, "input_size", 2)
    if y.shape[3] != k.shape[3]:
        fail(
            name, f"the cotangent {y} has {y.shape[3]} channels, the kernel {k} gives {k.shape[3]}"
        )
    if tuple(_out_size(name, size, k.shape[:2], attrs)) != y.shape[1:3]:
        fail(name, f"an input of {size} does not give {y} with the kernel {k}")
    return (TensorType(y.dtype, (y.shape[0], *size, k.shape[2])),)


def _weight_grad_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    name = "conv_weight_grad"
    x, y = _operands(name, types, "the input [N,H,W,C]", "the cotangent [N,OH,OW,O]")
    kernel = int_tuple(name, attrs, "kernel_size", 2)
    if x.shape[0] != y.shape[0]:
        fail(name, f"the input {x} and the cotangent {y} differ in batch size")
    if tuple(_out_size(name, x.shape[1:3], kernel, attrs)) != y.shape[1:3]:
        fail(name, f"the input {x} does not give {y} with a kernel of {kernel}")
    return (TensorType(x.dtype, (*kernel, x.shape[3], y.shape[3])),)


def _row(name: str, rule: object, *attrs: str) -> Primitive:
    return Primitive(
        name,
        rule,
        None,
        None,
        None,
        lambda op: 0,  # type: ignore[arg-type]
        attrs=("strides", "padding", *attrs),
        operands=2,
    )


ROWS = (
    _row("conv", _conv_type),
    _row("conv_input_grad", _input_grad_type, "input_size"),
    _row("conv_weight_grad", _weight_grad_type, "kernel_size"),
)
