"""Reductions over axes, softmax and its kind, products of matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .....compiler import ops
from .....compiler.ir import Tensor
from ..operator_rows import Row, Rows
from .shape_rows import ints, placed


def _reducer(reduce: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator that reduces axes, which are an attribute or an input."""

    def over_axes(
        x: Tensor,
        where: Tensor = None,
        *,
        axes: tuple[int, ...] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        if where is not None:
            axes = ints(where)
        if axes is None or len(axes) == 0:
            axes = () if noop_with_empty_axes else tuple(range(x.ndim))
        return reduce(x, axes, bool(keepdims))

    return over_axes


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.dtype.kind in "iu":
        return np.sum(x.astype(np.int64), axis=axes, keepdims=keep).astype(x.dtype)
    return np.sum(x, axis=axes, keepdims=keep)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.dtype.kind in "iu":
        return np.mean(x.astype(np.float64), axis=axes, keepdims=keep).astype(x.dtype)
    return np.mean(x, axis=axes, keepdims=keep)


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return np.prod(x, axis=axes, keepdims=keep).astype(x.dtype)


def _empty(x: Tensor, axes: tuple[int, ...]) -> bool:
    return 0 in [x.shape[a] for a in axes]


def _max(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if _empty(x, axes):
        return _filled(x, axes, keep, False)
    return np.max(x, axis=axes, keepdims=keep)


def _min(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if _empty(x, axes):
        return _filled(x, axes, keep, True)
    return np.min(x, axis=axes, keepdims=keep)


def _filled(x: Tensor, axes: tuple[int, ...], keep: bool, high: bool) -> Tensor:
    """The extreme of no elements: the lowest number of the type, or the highest."""
    gone = [placed(a, x.ndim) for a in axes]
    shape = []
    for k, n in enumerate(x.shape):
        if k not in gone:
            shape.append(n)
        elif keep:
            shape.append(1)
    if x.dtype.kind == "f":
        fill = np.inf if high else -np.inf
        return np.full(tuple(shape), fill, x.dtype)
    if x.dtype.kind == "b":
        return np.full(tuple(shape), high, x.dtype)
    limits = np.iinfo(x.dtype)
    return np.full(tuple(shape), limits.max if high else limits.min, x.dtype)


def _l1(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _sum(np.abs(x), axes, keep)


def _sum_square(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _sum(x * x, axes, keep)


def _l2(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.dtype.kind in "iu":
        return np.sqrt(_sum_square(x.astype(np.float64), axes, keep)).astype(x.dtype)
    return np.sqrt(_sum_square(x, axes, keep))


def _log_sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.dtype.kind in "iu":
        return np.log(_sum(x, axes, keep).astype(np.float64)).astype(x.dtype)
    return np.log(_sum(x, axes, keep))


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.dtype.kind in "iu":
        return _log_sum_exp(x.astype(np.float64), axes, keep).astype(x.dtype)
    if _empty(x, axes):
        return _filled(x, axes, keep, False)
    top = ops.stop_gradient(np.max(x, axis=axes, keepdims=True))
    top = np.where(np.isfinite(top), top, 0)
    found = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
    return found if keep else np.squeeze(found, axis=axes)


def _place(x: Tensor, axis: int, keepdims: int, last: int, most: bool) -> Tensor:
    """Of the largest or smallest along an axis, the first or the last place."""
    if last:
        x = np.flip(x, axis)
    found = np.argmax(x, axis=axis) if most else np.argmin(x, axis=axis)
    if last:
        found = x.shape[axis] - 1 - found
    return np.expand_dims(found, axis) if keepdims else found


def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """ArgMax."""
    return _place(x, axis, keepdims, select_last_index, True)


def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """ArgMin."""
    return _place(x, axis, keepdims, select_last_index, False)


def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """Softmax along an axis; NaN, with the slope 0, where all of it is minus infinity.

    Attention masks whole rows so, and takes what is not NaN of the result.
    """
    top = ops.stop_gradient(np.max(x, axis=axis, keepdims=True))
    masked = top == -np.inf
    raised = np.exp(x - np.where(masked, 0, top))
    total = np.where(masked, 1, np.sum(raised, axis=axis, keepdims=True))
    return np.where(masked, np.nan, raised / total).astype(x.dtype)


def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """LogSoftmax along an axis."""
    return ops.log_softmax(x, axis)


def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """Hardmax: one at the first of the largest along an axis, else zero."""
    first = np.expand_dims(np.argmax(x, axis=axis), axis)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return (np.arange(x.shape[axis]).reshape(shape) == first).astype(x.dtype)


def _as_matrix(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The operator before version 13: over all axes from `axis` on, as one."""

    def over_rest(x: Tensor, *, axis: int = 1) -> Tensor:
        rows = 1
        for n in x.shape[: placed(axis, x.ndim)]:
            rows = rows * n
        return f(x.reshape(rows, -1), axis=-1).reshape(x.shape)

    return over_rest


def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # ONNX's name
    transB: int = 0,
) -> Tensor:
    """Gemm: alpha A B + beta C, each transposed on demand."""
    left = a.T if transA else a
    right = b.T if transB else b
    product = left @ right
    if alpha != 1:
        product = product * alpha
    if c is None or beta == 0:
        return product.astype(a.dtype)
    return (product + (c if beta == 1 else c * beta)).astype(a.dtype)


def einsum(*values: Tensor, equation: str) -> Tensor:
    """Einsum."""
    return np.einsum(equation.replace(" ", ""), *values)


def determinant(x: Tensor) -> Tensor:
    """Det, of each matrix."""
    return np.linalg.det(x)


REDUCTION_ROWS: Rows = {
    "ArgMax": Row(arg_max),
    "ArgMin": Row(arg_min),
    "Det": Row(determinant),
    "Einsum": Row(einsum),
    "Gemm": Row(gemm),
    "Hardmax": (Row(_as_matrix(hardmax)), Row(hardmax, since=13)),
    "LogSoftmax": (Row(_as_matrix(log_softmax)), Row(log_softmax, since=13)),
    "MatMul": Row(np.matmul),
    "ReduceL1": Row(_reducer(_l1), known=(1,)),
    "ReduceL2": Row(_reducer(_l2), known=(1,)),
    "ReduceLogSum": Row(_reducer(_log_sum), known=(1,)),
    "ReduceLogSumExp": Row(_reducer(_log_sum_exp), known=(1,)),
    "ReduceMax": Row(_reducer(_max), known=(1,)),
    "ReduceMean": Row(_reducer(_mean), known=(1,)),
    "ReduceMin": Row(_reducer(_min), known=(1,)),
    "ReduceProd": Row(_reducer(_product), known=(1,)),
    "ReduceSum": Row(_reducer(_sum), known=(1,)),
    "ReduceSumSquare": Row(_reducer(_sum_square), known=(1,)),
    "Softmax": (Row(_as_matrix(softmax)), Row(softmax, since=13)),
}
