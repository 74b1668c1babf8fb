"""`quantised_conv`: a convolution of bytes, summed exactly: the work of quantised inference.

    x u8[N,H,W,C]   k u8[KH,KW,C/4,O,4]   ->   i32[N,OH,OW,O]

    y[n,p,q,o] = sum of x[n, p sh + i, q sw + j, 4 c + t] * signed(k[i,j,c,o,t])  over i, j, c, t

x counts from 0 to 255; k holds the bits of signed bytes, -128 to 127. Four channels stand together
in k, which is how processors' dot products of bytes take them. A dense layer is the case of one
pixel. There is no padding: what stands for zero is not 0, so `pad` puts it there. Sizes for which a
sum could leave i32 are refused, so every back end gives the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..ir import Array, Block, DType, Op, TensorType, Type
from . import batching
from .rules import one_result
from .table import Attrs, Primitive
from .type_checks import INTS, fail, int_tuple, tensor

NAME = "quantised_conv"
#: Channels that stand together in the kernel.
TOGETHER = 4
#: The largest magnitude that one product can have: 255 * -128.
_PRODUCT_MAX = 255 * 128
#: Channels and taps of one sum.
TERMS_MAX = (2**31 - 1) // _PRODUCT_MAX


def _type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    x = tensor(NAME, types[0], INTS, "the input [N,H,W,C]")
    k = tensor(NAME, types[1], INTS, "the kernel [KH,KW,C/4,O,4]")
    if x.dtype is not DType.U8 or k.dtype is not DType.U8:
        fail(NAME, f"the input and the kernel must be u8, not {x} and {k}")
    strides = int_tuple(NAME, attrs, "strides", 2)
    if len(x.shape) != 4 or len(k.shape) != 5:
        fail(NAME, f"the input must have rank 4 and the kernel rank 5, not {x} and {k}")
    if k.shape[4] != TOGETHER or x.shape[3] != k.shape[2] * TOGETHER:
        fail(NAME, f"the kernel {k} does not hold the channels of {x} in fours")
    if math.prod(k.shape[:3]) * TOGETHER > TERMS_MAX:
        fail(NAME, f"a sum over {k} could be too large for i32", f"sum at most {TERMS_MAX} terms")
    out = []
    for n, size, stride in zip(x.shape[1:3], k.shape[:2], strides, strict=True):
        if size < 1 or size > n:
            fail(NAME, f"the kernel {k} does not fit the input {x}")
        out.append((n - size) // stride + 1)
    return (TensorType(DType.I32, (x.shape[0], *out, k.shape[3])),)


def packed(kernel: Array) -> Array:
    """A kernel of signed bytes i8[KH,KW,C,O] as u8[KH,KW,C/4,O,4]; C is a multiple of four."""
    kh, kw, channels, outputs = kernel.shape
    fours = kernel.reshape(kh, kw, channels // TOGETHER, TOGETHER, outputs).transpose(0, 1, 2, 4, 3)
    return np.ascontiguousarray(fours).view(np.uint8)


def unpacked(kernel: Array) -> Array:
    """The reverse of `packed`."""
    kh, kw, fours, outputs, _ = kernel.shape
    signed = np.ascontiguousarray(kernel).view(np.int8).transpose(0, 1, 2, 4, 3)
    return signed.reshape(kh, kw, fours * TOGETHER, outputs)


def _conv(x: Array, k: Array, attrs: Attrs) -> Array:
    (sh, sw), wide = attrs["strides"], x.astype(np.int32)
    kernel = unpacked(k).astype(np.int32)
    kh, kw, _, outputs = kernel.shape
    oh, ow = (x.shape[1] - kh) // sh + 1, (x.shape[2] - kw) // sw + 1
    y = np.zeros((x.shape[0], oh, ow, outputs), np.int32)
    for i in range(kh):
        for j in range(kw):
            seen = wide[:, i : i + (oh - 1) * sh + 1 : sh, j : j + (ow - 1) * sw + 1 : sw]
            y += seen @ kernel[i, j]
    return y


def _cost(op: Op) -> int:
    kernel = op.operands[1].shape
    return 2 * op.result.tensor.size * math.prod(kernel[:3]) * TOGETHER


ROWS = (
    Primitive(
        NAME,
        _type,
        one_result(_conv),
        None,
        None,
        _cost,
        attrs=("strides",),
        operands=2,
        # Lanes with one kernel are more images.
        batch=batching.images(1),
    ),
)
