"""Functions that are primitives of the IR: the compiler knows them by identity.

Eagerly they run by their reference rule, so that both ways have one meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .ir import Array


def _reference(name: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """A primitive's own meaning, on arrays of types that its type rule takes."""
    from ..common.errors import TypeRuleError
    from .ir import TensorType
    from .primitives import PRIMITIVES

    row = PRIMITIVES[name]
    arrays = [np.asarray(x) for x in operands]
    try:
        types = [TensorType.of(a) for a in arrays]
    except KeyError as error:
        found = ", ".join(str(a.dtype) for a in arrays)
        raise TypeRuleError(f"{name}: takes numbers and bools, not {found}") from error
    row.infer(types, attrs, ())
    assert row.reference is not None, name
    return row.reference(arrays, attrs)[0]


def _floating(x: Any) -> Array:
    array = np.asarray(x)
    return array if array.dtype.kind not in "biu" else array.astype(np.float64)


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

    `padding` is ((top, bottom), (left, right)), of zeros. `conv2d` is the friendlier one.
    """
    dtype = np.result_type(x, kernel)
    operands = [np.asarray(x, dtype), np.asarray(kernel, dtype)]
    return _reference("conv", operands, {"strides": strides, "padding": padding})  # type: ignore[no-any-return]


def grouped_conv(
    x: Array,
    kernel: Array,
    strides: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    groups: int,
) -> Array:
    """`conv` in groups: f32[N, H, W, C], f32[h, w, C / groups, O] -> f32[N, OH, OW, O]."""
    dtype = np.result_type(x, kernel)
    operands = [np.asarray(x, dtype), np.asarray(kernel, dtype)]
    attrs = {"strides": strides, "padding": padding, "groups": groups}
    return _reference("grouped_conv", operands, attrs)  # type: ignore[no-any-return]


def conv_input_grad(
    y: Array,
    kernel: Array,
    strides: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    input_size: tuple[int, int],
) -> Array:
    """The transpose of `conv` in its images.

    f32[N, OH, OW, O], f32[height, width, C, O] -> f32[N, H, W, C], where (H, W) is `input_size`, of
    which `conv` must give (OH, OW).
    """
    dtype = np.result_type(y, kernel)
    operands = [np.asarray(y, dtype), np.asarray(kernel, dtype)]
    attrs = {"strides": strides, "padding": padding, "input_size": input_size}
    return _reference("conv_input_grad", operands, attrs)  # type: ignore[no-any-return]


def attend(
    query: Array, key: Array, value: Array, mask: Array | None = None, causal: bool = False
) -> Array:
    """softmax(query key^T) value, for sequences N and heads H.

    f32[N, T, H, D], f32[N, S, H, D], f32[N, S, H, E] -> f32[N, T, H, E]. `mask` is bool[N, H, T,
    S], of which the first three may be 1. `ops.attention` is the friendlier one.
    """
    dtype = np.result_type(query, key, value)
    operands = [np.asarray(x, dtype) for x in (query, key, value)]
    operands += [] if mask is None else [np.asarray(mask)]
    return _reference("attention", operands, {"causal": causal})  # type: ignore[no-any-return]


def dynamic_slice(x: Array, starts: Sequence[Any], sizes: Sequence[int]) -> Array:
    """A window of fixed size whose place the program computes.

    It is moved inwards where it would stick out.

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
            dtype of `x`.
        starts: one whole number an axis.
    """
    array = np.asarray(x)
    places = [np.int64(v) for v in starts]
    return _reference("dynamic_update", [array, np.asarray(update, array.dtype), *places], {})  # type: ignore[no-any-return]


def put_add(x: Array, indices: Array, updates: Array, axis: int = 0) -> Array:
    """A copy of `x` with `updates` added at `indices` along an axis; equal indices add up.

    Args:
        x: numbers.
        indices: whole numbers of any shape, moved into 0..size-1 where they lie outside.
        updates: `x.shape[:axis] + indices.shape + x.shape[axis + 1:]`, converted to the dtype of
            `x`.
    """
    array = np.asarray(x)
    operands = [array, np.asarray(indices), np.asarray(updates, array.dtype)]
    return _reference("put_add", operands, {"axis": axis})  # type: ignore[no-any-return]
