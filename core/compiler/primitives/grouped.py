"""Convolution in groups of channels that see nothing of one another, and its two derivatives.

Layouts: x [N,H,W,C], k [KH,KW,C/G,O], y [N,OH,OW,O]. The channels of x and those of y fall into G
groups, in order; group g of y is the convolution of group g of x with the columns of k that belong
to it. G = 1 is `conv`; G = C is the depthwise convolution, with O / C outputs a channel.

As in `conv`, the three are one trilinear form: the derivatives of each are the other two.
"""

from __future__ import annotations

import numpy as np

from ..ir import Array
from . import conv
from .rules import widen
from .table import Attrs


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
    "[KH,KW,C/G,O]",
    (_conv, _input_grad, _weight_grad),
)
