"""Judges `delian.ops` by torch's own samples, as `opinfo` judges NumPy's vocabulary.

    python tests/judges/opinfo_nn.py [NAME...] [--markdown]

A call below is torch's, in the compiled language: channels go last and back. An option of torch's
that `delian.ops` has not is refused with its name, and counts among what fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import opinfo
from delian import nn
from delian.core.compiler import ops as ops


def lack(option: str) -> None:
    raise ValueError(f"delian.ops has no {option}")


def sizes(value: Any, rank: int) -> Any:
    """Torch's numbers for all axes or for each; one in a sequence is for all."""
    if isinstance(value, int):
        return value
    return tuple(value) if len(value) == rank else value[0]


def reduced(losses: Any, reduction: str) -> Any:
    return {"none": lambda: losses, "mean": lambda: np.mean(losses), "sum": lambda: np.sum(losses)}[
        reduction
    ]()


def spatial(rank: int, f: Callable[..., Any]) -> Callable[..., Any]:
    """A call on [N, C, space...] or [C, space...], of a function on [N, space..., C]."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        whole = x if x.ndim == rank + 2 else x[None]
        out = np.moveaxis(f(np.moveaxis(whole, 1, -1), *args, **kwargs), -1, 1)
        return out if x.ndim == rank + 2 else out[0]

    return call


def same(kernel: Any, dilation: Any, rank: int) -> Any:
    """Torch's padding "same": the odd element goes behind."""
    apart = (dilation,) * rank if isinstance(dilation, int) else tuple(dilation)
    spans = [(kernel.shape[2 + k] - 1) * apart[k] for k in range(rank)]
    return tuple((n // 2, n - n // 2) for n in spans)


def convolution(rank: int) -> Callable[..., Any]:
    f = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}[rank]

    def call(
        x: Any,
        kernel: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Any = 1,
    ) -> Any:
        kernel_last = np.transpose(kernel, (*range(2, 2 + rank), 1, 0))
        if padding == "same":
            edges = same(kernel, sizes(dilation, rank), rank)
        else:
            edges = "VALID" if padding == "valid" else sizes(padding, rank)
        out = f(x, kernel_last, sizes(stride, rank), edges, sizes(dilation, rank), groups)
        return out if bias is None else out + bias

    return spatial(rank, call)


def transposed(rank: int) -> Callable[..., Any]:
    f = {1: ops.conv_transpose1d, 2: ops.conv_transpose2d, 3: ops.conv_transpose3d}[rank]

    def call(
        x: Any,
        kernel: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: Any = 1,
        dilation: Any = 1,
    ) -> Any:
        kernel_last = np.transpose(kernel, (*range(2, 2 + rank), 0, 1))
        options = (sizes(v, rank) for v in (stride, padding, dilation))
        out = f(x, kernel_last, *options, groups, sizes(output_padding, rank))
        return out if bias is None else out + bias

    return spatial(rank, call)


def max_pool(rank: int) -> Callable[..., Any]:
    def call(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if return_indices:
            lack("places of the largest of a window")
        stride = None if not stride else sizes(stride, rank)
        options = sizes(kernel_size, rank), stride, sizes(padding, rank)
        return ops.max_pool(x, *options, sizes(dilation, rank), ceil_mode)

    return spatial(rank, call)


def avg_pool(rank: int) -> Callable[..., Any]:
    def call(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Any:
        if divisor_override:
            lack("divisor of pooling")
        stride = None if not stride else sizes(stride, rank)
        options = sizes(kernel_size, rank), stride, sizes(padding, rank), count_include_pad
        return ops.avg_pool(x, *options, ceil_mode)

    return spatial(rank, call)


def adaptive_avg_pool(rank: int) -> Callable[..., Any]:
    def call(x: Any, wanted: Any) -> Any:
        if isinstance(wanted, int):
            return ops.adaptive_avg_pool(x, wanted)
        kept = tuple(n if n else x.shape[1 + k] for k, n in enumerate(wanted))
        return ops.adaptive_avg_pool(x, kept)

    return spatial(rank, call)


def resize(mode: str) -> Callable[..., Any]:
    def call(x: Any, size: Any = None, scale_factor: Any = None, **options: Any) -> Any:
        rank = x.ndim - 2
        if size is None:
            lack("resizing by a factor")
        wanted = (size,) * rank if isinstance(size, int) else tuple(size)
        out = ops.resize(np.moveaxis(x, 1, -1), wanted, mode, bool(options.get("align_corners")))
        return np.moveaxis(out, -1, 1)

    return call


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p or enable_gqa:
        lack("dropout and grouped queries in attention")
    if is_causal and query.shape[-2] != key.shape[-2]:
        lack("causal mask that lines up the first positions")
    return ops.attention(query, key, value, attn_mask, is_causal, scale)


def cross_entropy(
    x: Any,
    y: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if weight is not None or ignore_index != -100:
        lack("class weights and ignored class in a loss")
    x = x if x.ndim < 2 else np.moveaxis(x, 1, -1)
    y = np.moveaxis(y, 1, -1) if y.dtype.kind == "f" and y.ndim > 1 else y
    return reduced(ops.cross_entropy(x, y, label_smoothing), reduction)


def nll(
    x: Any, y: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    if weight is not None or ignore_index != -100:
        lack("class weights and ignored class in a loss")
    return reduced(ops.nll(x if x.ndim < 2 else np.moveaxis(x, 1, -1), y), reduction)


def binary(
    x: Any, y: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None, **_: Any
) -> Any:
    if weight is not None or pos_weight is not None:
        lack("weights in a loss")
    return reduced(ops.binary_cross_entropy(x, y), reduction)


def kl_div(x: Any, y: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    if log_target or reduction == "none" or x.ndim == 0:
        lack("divergence element by element, or from logarithms")
    total = np.sum(ops.kl_divergence(x, y))
    return total / {"mean": x.size, "sum": 1, "batchmean": x.shape[0]}[reduction]


def elementwise(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, y: Any, reduction: str = "mean", weight: Any = None, **options: Any) -> Any:
        if weight is not None:
            lack("weights in a loss")
        return reduced(f(x, y, **options), reduction)

    return call


def activation(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *args, inplace=False: f(x, *args)


def along(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, dim: int, dtype: Any = None, **_: Any) -> Any:
        if dtype is not None or x.ndim == 0:
            lack("another dtype, or an axis of a number")
        return f(x, dim)

    return call


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    return ops.softplus(beta * x) / beta


def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if len(shape) != 1:
        lack("normalisation over several axes")
    scale = np.ones(shape) if weight is None else weight
    return nn.LayerNorm(scale, np.zeros(shape) if bias is None else bias, eps)(x)


def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    channels = x.shape[1]
    scale = np.ones(channels) if weight is None else weight
    layer = nn.GroupNorm(scale, np.zeros(channels) if bias is None else bias, groups, eps)
    return np.moveaxis(layer(np.moveaxis(x, 1, -1)), -1, 1)


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.ndim == 0:
        lack("largest of a number")
    x = np.moveaxis(x, dim, -1)
    out = ops.top_k(x, k)[0] if largest else -ops.top_k(-x, k)[0]
    return np.moveaxis(out, -1, dim)


def embedding(table: Any, symbols: Any, padding_idx: Any = None, **options: Any) -> Any:
    if padding_idx is not None or any(options.values()):
        lack("padding symbol, norm and frequencies of an embedding")
    return ops.embedding(table, symbols)


CALLS: dict[str, Callable[..., Any]] = {
    **{f"nn.functional.conv{r}d": convolution(r) for r in (1, 2, 3)},
    **{f"nn.functional.conv_transpose{r}d": transposed(r) for r in (1, 2, 3)},
    **{f"nn.functional.max_pool{r}d": max_pool(r) for r in (1, 2, 3)},
    **{f"nn.functional.avg_pool{r}d": avg_pool(r) for r in (1, 2, 3)},
    **{f"nn.functional.adaptive_avg_pool{r}d": adaptive_avg_pool(r) for r in (1, 2, 3)},
    "nn.functional.interpolate.nearest": resize("nearest"),
    "nn.functional.interpolate.bilinear": resize("bilinear"),
    "nn.functional.scaled_dot_product_attention": attention,
    **{
        f"nn.functional.{f.__name__}": activation(f)
        for f in (ops.relu, ops.relu6, ops.elu, ops.selu, ops.silu, ops.mish, ops.softsign)
    },
    "nn.functional.hardswish": activation(ops.hardswish),
    "nn.functional.leaky_relu": lambda x, negative_slope=0.01, inplace=False: ops.leaky_relu(
        x, negative_slope
    ),
    "nn.functional.gelu": lambda x, approximate="none": ops.gelu(x, approximate == "tanh"),
    "nn.functional.softplus": softplus,
    "nn.functional.glu": lambda x, dim=-1: ops.glu(x, dim),
    "softmax": along(ops.softmax),
    "log_softmax": along(ops.log_softmax),
    "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.nll_loss": nll,
    "nn.functional.binary_cross_entropy_with_logits": binary,
    "nn.functional.kl_div": kl_div,
    "nn.functional.mse_loss": elementwise(ops.squared_error),
    "nn.functional.l1_loss": elementwise(ops.absolute_error),
    "nn.functional.huber_loss": elementwise(ops.huber),
    "nn.functional.cosine_similarity": lambda a, b, dim=1, eps=1e-8: ops.cosine_similarity(
        a, b, dim
    ),
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.group_norm": group_norm,
    "nn.functional.embedding": embedding,
    "topk": topk,
}

if __name__ == "__main__":
    opinfo.CALLS.clear()
    opinfo.CALLS.update(CALLS)
    sys.exit(opinfo.main())
