"""What NumPy lacks for learning: convolution, pooling, activations, losses. Public as `delian.ops`.

Every function takes and gives NumPy arrays and runs eagerly; inside a compiled function the same
source is inlined. The few that are primitives of the IR (`sigmoid`, `erf`, `stop_gradient`, `conv`,
`dynamic_slice`, `dynamic_update`) run eagerly by their reference rule. Images are [N, H, W, C],
kernels [height, width, inputs, outputs].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .ir import Array

__all__ = [
    "avg_pool",
    "conv",
    "conv2d",
    "cross_entropy",
    "dynamic_slice",
    "dynamic_update",
    "erf",
    "gelu",
    "log_softmax",
    "logsumexp",
    "max_pool",
    "one_hot",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "stop_gradient",
]


def _reference(name: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """A primitive's own meaning, on arrays."""
    from .ops import PRIMITIVES

    rule = PRIMITIVES[name].reference
    assert rule is not None, name
    return rule([np.asarray(x) for x in operands], attrs)[0]


def _floating(x: Any) -> Array:
    array = np.asarray(x)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


# Primitives: the compiler knows these by identity


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow. Floats of any shape."""
    return _reference("sigmoid", [_floating(x)], {})  # type: ignore[no-any-return]


def erf(x: Array) -> Array:
    """The error function. Floats of any shape."""
    return _reference("erf", [_floating(x)], {})  # type: ignore[no-any-return]


def stop_gradient(x: Array) -> Array:
    """`x`, through which no gradient flows."""
    return np.asarray(x)


def conv(
    x: Array,
    kernel: Array,
    strides: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
) -> Array:
    """Cross-correlation: f32[N, H, W, C], f32[height, width, C, O] -> f32[N, OH, OW, O].

    `padding` is ((top, bottom), (left, right)), of zeros.
    """
    dtype = np.result_type(x, kernel)
    operands = [np.asarray(x, dtype), np.asarray(kernel, dtype)]
    return _reference("conv", operands, {"strides": strides, "padding": padding})  # type: ignore[no-any-return]


def dynamic_slice(x: Array, starts: Sequence[Any], sizes: Sequence[int]) -> Array:
    """A window of fixed size whose place the program computes; it is moved inwards where it would
    stick out.

    Args:
        x: any array.
        starts: one whole number an axis.
        sizes: the window's shape.
    """
    places = [np.int64(v) for v in starts]
    return _reference("dynamic_slice", [x, *places], {"sizes": tuple(sizes)})  # type: ignore[no-any-return]


def dynamic_update(x: Array, update: Array, starts: Sequence[Any]) -> Array:
    """A copy of `x` with a window replaced; the window is moved inwards where it would stick out.

    Args:
        x: any array.
        update: the window, of the rank of `x` and no longer along any axis; it is converted to the
        dtype of `x`. starts: one whole number an axis.
    """
    array = np.asarray(x)
    places = [np.int64(v) for v in starts]
    return _reference("dynamic_update", [array, np.asarray(update, array.dtype), *places], {})  # type: ignore[no-any-return]


# Convolution and pooling


def conv2d(
    x: Array, kernel: Array, stride: int | tuple[int, int] = 1, padding: str | int = "SAME"
) -> Array:
    """Cross-correlation of images with a kernel.

    Args:
        x: f32[N, H, W, C].
        kernel: f32[height, width, C, O].
        stride: of both axes, or of each.
        padding: "SAME" (as many outputs as inputs / stride, rounded up), "VALID" (none), or zeros
        on every side.

    Returns:
        f32[N, OH, OW, O].
    """
    if x.ndim != 4 or kernel.ndim != 4:
        raise ValueError(
            f"conv2d takes images [N, H, W, C] and a kernel [height, width, C, O], "
            f"not shapes {list(x.shape)} and {list(kernel.shape)}"
        )
    if x.shape[3] != kernel.shape[2]:
        raise ValueError(
            f"conv2d: the images have {x.shape[3]} channels and the kernel takes {kernel.shape[2]} "
            f"(shapes {list(x.shape)} and {list(kernel.shape)})"
        )
    strides = (stride, stride) if isinstance(stride, int) else tuple(stride)
    edges = tuple(_edges(x.shape[1 + k], kernel.shape[k], strides[k], padding) for k in range(2))
    return conv(x, kernel, strides, edges)  # type: ignore[arg-type]


def _edges(size: int, window: int, stride: int, padding: str | int) -> tuple[int, int]:
    """Zeros before and after an axis."""
    if isinstance(padding, int):
        return padding, padding
    if padding == "VALID":
        return 0, 0
    if padding != "SAME":
        raise ValueError(f'padding is "SAME", "VALID" or a number, not {padding!r}')
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def max_pool(x: Array, size: int = 2) -> Array:
    """The largest of each `size` x `size` window: [N, H, W, C] -> [N, H // size, W // size, C]."""
    return np.max(_windows(x, size, "max_pool"), axis=(2, 4))  # type: ignore[no-any-return]


def avg_pool(x: Array, size: int = 2) -> Array:
    """The mean of each `size` x `size` window: [N, H, W, C] -> [N, H // size, W // size, C]."""
    return np.mean(_windows(x, size, "avg_pool"), axis=(2, 4))  # type: ignore[no-any-return]


def _windows(x: Array, size: int, name: str) -> Array:
    """[N, H, W, C] -> [N, H // size, size, W // size, size, C]; what does not fill a window is left
    out.
    """
    if x.ndim != 4:
        raise ValueError(f"{name} takes images [N, H, W, C], not shape {list(x.shape)}")
    rows, columns = x.shape[1] // size, x.shape[2] // size
    x = x[:, : rows * size, : columns * size]
    return x.reshape(x.shape[0], rows, size, columns, size, x.shape[3])


# Activations


def relu(x: Array) -> Array:
    """max(x, 0), with derivative 0 at 0; NaN stays NaN."""
    return np.where(x <= 0, 0, x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def silu(x: Array) -> Array:
    """x sigmoid(x) (Elfwing et al. 2018)."""
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """x Phi(x), exact (Hendrycks and Gimpel 2016)."""
    return x * (erf(x * 0.7071067811865476) + 1.0) * 0.5


def logsumexp(x: Array, axis: int = -1, keepdims: bool = False) -> Array:
    """log sum exp(x) along an axis, without overflow."""
    top = stop_gradient(np.max(x, axis=axis, keepdims=True))
    total: Array = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis=axis)


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / sum exp(x) along an axis."""
    raised = np.exp(x - stop_gradient(np.max(x, axis=axis, keepdims=True)))
    return raised / np.sum(raised, axis=axis, keepdims=True)  # type: ignore[no-any-return]


def log_softmax(x: Array, axis: int = -1) -> Array:
    """x - log sum exp(x) along an axis."""
    shifted = x - stop_gradient(np.max(x, axis=axis, keepdims=True))
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))  # type: ignore[no-any-return]


# Losses


def one_hot(labels: Array, classes: int, dtype: Any = np.float32) -> Array:
    """Integers [...] -> [..., classes], one at the label and zero elsewhere; all zero where it is
    out of range.
    """
    return (labels[..., None] == np.arange(classes)).astype(dtype)  # type: ignore[no-any-return]


def cross_entropy(logits: Array, labels: Array) -> Array:
    """-log softmax(logits) at the label: f32[..., C], integers [...] -> f32[...]."""
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"cross_entropy takes logits [..., C] and labels [...], "
            f"not shapes {list(logits.shape)} and {list(labels.shape)}"
        )
    return -np.take_along_axis(log_softmax(logits), labels[..., None], axis=-1)[..., 0]
