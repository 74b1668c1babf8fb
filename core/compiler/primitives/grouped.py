"""Convolution in groups of channels that see nothing of one another, and its two derivatives.

Layouts: x [N,H,W,C], k [KH,KW,C/G,O], y [N,OH,OW,O]. The channels of x and those of y fall into G
groups, in order; group g of y is the convolution of group g of x with the columns of k that belong
to it. G = 1 is `conv`; G = C is the depthwise convolution, with O / C outputs a channel.

As in `conv`, the three are one trilinear form: the derivatives of each are the other two.
"""

from __future__ import annotations

import numpy as np

from ..ir import Array, Blocks, TensorType, Type, Types
from . import conv
from .rules import widen
from .table import Attrs
from .type_checks import fail, int_tuple


def _groups(name: str, attrs: Attrs, channels: int, outputs: int) -> int:
    groups: int = attrs["groups"]
    if groups > max(outputs, 1):
        fail(name, f"groups must be an int from 1 to {max(outputs, 1)}, not {groups}")
    if channels % groups or outputs % groups:
        fail(name, f"{channels} and {outputs} channels do not fall into {groups} groups")
    return groups


def _conv_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    name = "grouped_conv"
    x, k = conv.operand_types(name, types, "the input [N,H,W,C]", "the kernel [KH,KW,C/G,O]")
    groups = _groups(name, attrs, x.shape[3], k.shape[3])
    if x.shape[3] != k.shape[2] * groups:
        fail(
            name,
            f"the input {x} has {x.shape[3]} channels, the kernel {k} takes {k.shape[2]} in each of"
            f" {groups} groups",
        )
    out = conv.out_size(name, x.shape[1:3], k.shape[:2], attrs)
    return (TensorType(x.dtype, (x.shape[0], *out, k.shape[3])),)


def _input_grad_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    name = "grouped_conv_input_grad"
    y, k = conv.operand_types(name, types, "the cotangent [N,OH,OW,O]", "the kernel [KH,KW,C/G,O]")
    groups = _groups(name, attrs, 0, k.shape[3])
    size = int_tuple(name, attrs, "input_size", 2)
    if y.shape[3] != k.shape[3]:
        fail(
            name, f"the cotangent {y} has {y.shape[3]} channels, the kernel {k} gives {k.shape[3]}"
        )
    if tuple(conv.out_size(name, size, k.shape[:2], attrs)) != y.shape[1:3]:
        fail(name, f"an input of {size} does not give {y} with the kernel {k}")
    return (TensorType(y.dtype, (y.shape[0], *size, k.shape[2] * groups)),)


def _weight_grad_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    name = "grouped_conv_weight_grad"
    x, y = conv.operand_types(name, types, "the input [N,H,W,C]", "the cotangent [N,OH,OW,O]")
    groups = _groups(name, attrs, x.shape[3], y.shape[3])
    kernel = int_tuple(name, attrs, "kernel_size", 2)
    if x.shape[0] != y.shape[0]:
        fail(name, f"the input {x} and the cotangent {y} differ in batch size")
    if tuple(conv.out_size(name, x.shape[1:3], kernel, attrs)) != y.shape[1:3]:
        fail(name, f"the input {x} does not give {y} with a kernel of {kernel}")
    return (TensorType(x.dtype, (*kernel, x.shape[3] // groups, y.shape[3])),)


def _by_group(x: Array, groups: int) -> Array:
    """[..., channels] as [..., groups, channels of each]."""
    return x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)


def _kernel_by_group(k: Array, groups: int) -> Array:
    """f64[KH,KW,G,C/G,O/G]."""
    return np.swapaxes(_by_group(widen(k), groups), 2, 3)


def _conv(x: Array, k: Array, attrs: Attrs) -> Array:
    groups = attrs["groups"]
    out = conv.out_size("grouped_conv", x.shape[1:3], k.shape[:2], attrs)
    padded = _by_group(conv.padded_input(x, attrs["padding"]), groups)
    kernel = _kernel_by_group(k, groups)
    y = np.zeros((x.shape[0], *out, groups, kernel.shape[4]), padded.dtype)
    for i, j, part in conv.taps(k.shape[:2], out, attrs["strides"]):
        y += np.einsum("npqgc,gco->npqgo", padded[part], kernel[i, j])
    return y.reshape(x.shape[0], *out, k.shape[3]).astype(x.dtype)


def _input_grad(y: Array, k: Array, attrs: Attrs) -> Array:
    (height, width), padding, groups = attrs["input_size"], attrs["padding"], attrs["groups"]
    kernel, cotangent = _kernel_by_group(k, groups), _by_group(widen(y), groups)
    channels = k.shape[2] * groups
    x = np.zeros((y.shape[0], height, width, channels), kernel.dtype)
    padded = _by_group(np.pad(x, ((0, 0), *padding, (0, 0))), groups)
    for i, j, part in conv.taps(k.shape[:2], y.shape[1:3], attrs["strides"]):
        padded[part] += np.einsum("npqgo,gco->npqgc", cotangent, kernel[i, j])
    top, left = padding[0][0], padding[1][0]
    inside = padded[:, top : top + height, left : left + width]
    return inside.reshape(x.shape).astype(y.dtype)


def _weight_grad(x: Array, y: Array, attrs: Attrs) -> Array:
    groups, kernel = attrs["groups"], attrs["kernel_size"]
    padded = _by_group(conv.padded_input(x, attrs["padding"]), groups)
    cotangent = _by_group(widen(y), groups)
    shape = (*kernel, padded.shape[4], groups, cotangent.shape[4])
    k = np.zeros(shape, padded.dtype)
    for i, j, part in conv.taps(kernel, y.shape[1:3], attrs["strides"]):
        k[i, j] = np.einsum("npqgc,npqgo->cgo", padded[part], cotangent)
    return k.reshape(*shape[:3], y.shape[3]).astype(x.dtype)


ROWS = conv.family(
    "grouped_conv",
    ("strides", "padding", "groups"),
    (_conv_type, _input_grad_type, _weight_grad_type),
    (_conv, _input_grad, _weight_grad),
)
