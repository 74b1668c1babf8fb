"""ATen's products and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....compiler import ops
from ....compiler.ir import Tensor
from .aten_row import Row


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, stored: bool = False) -> Tensor:
    """x W^T + b: [..., inputs], [outputs, inputs] -> [..., outputs].

    stored: the weight is [inputs, outputs].
    """
    product = x @ (weight if stored else np.transpose(weight))
    return product if bias is None else product + bias


def matmul(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def addmm(x: Tensor, first: Tensor, second: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta x + alpha first second; without x for beta = 0, whatever it is."""
    product = first @ second
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return product + (x if beta == 1 else x * beta)


def bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., I], [..., J], [O, I, J] -> [..., O]."""
    lead = x.shape[:-1]
    rows = np.reshape(x, (-1, x.shape[-1]))
    inner = np.reshape(
        rows @ np.reshape(np.moveaxis(weight, 0, 1), (x.shape[-1], -1)),
        (rows.shape[0], weight.shape[0], y.shape[-1]),
    )
    out = np.sum(inner * np.reshape(y, (-1, 1, y.shape[-1])), axis=-1)
    out = np.reshape(out, (*lead, weight.shape[0]))
    return out if bias is None else out + bias


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    draw: Tensor = None,
) -> Tensor:
    """Scaled dot-product attention: `is_causal` lines up the first query with the first key."""
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = np.repeat(key, times, axis=-3), np.repeat(value, times, axis=-3)
    length, keys = query.shape[-2], key.shape[-2]
    causal = is_causal and length == keys
    if is_causal and not causal:
        attn_mask = np.arange(keys) <= np.arange(length)[:, None]
    if dropout_p == 0.0 or draw is None:
        return ops.attention(query, key, value, attn_mask, causal, scale)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ np.swapaxes(key, -1, -2)
    if causal:
        attn_mask = np.arange(keys) <= np.arange(length)[:, None]
    if attn_mask is not None:
        if attn_mask.dtype.kind == "b":
            scores = np.where(attn_mask, scores, -1e30)
        else:
            scores = scores + attn_mask
    return ops.dropout(ops.softmax(scores), dropout_p, draw) @ value


ROWS: dict[str, Row] = {
    "linear": Row(linear),
    "matmul": Row(matmul),
    "mm": Row(matmul),
    "bmm": Row(matmul),
    "mv": Row(matmul),
    "dot": Row(matmul),
    "vdot": Row(matmul),
    "addmm": Row(addmm),
    "addmv": Row(addmm),
    "baddbmm": Row(addmm),
    "bilinear": Row(bilinear),
    "scaled_dot_product_attention": Row(attention, extras=("draw",)),
}
