"""Primitives along axes: reductions, first extremes, order, running sums."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Block, DType, TensorType, Type
from .checks import ALL, NUMERIC, axes_of, axis_of, fail, tensor
from .table import Attrs, InferRule, Primitive


def _reduce_type(name: str, kinds: tuple[DType, ...], empty: bool) -> InferRule:
    """`empty` says that reducing no elements at all has a meaning (it has for bool in any case)."""

    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
        x = tensor(name, types[0], kinds)
        axes = axes_of(name, attrs, "axes", len(x.shape))
        if any(a >= b for a, b in zip(axes, axes[1:], strict=False)):
            fail(name, f"axes {axes} must be sorted")
        if not empty and x.dtype is not DType.BOOL and any(x.shape[a] == 0 for a in axes):
            fail(name, f"{x} has no elements along axes {axes}, so there is no extreme one")
        return (TensorType(x.dtype, tuple([d for i, d in enumerate(x.shape) if i not in axes])),)

    return rule


def _argument_type(name: str) -> InferRule:
    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
        x = tensor(name, types[0])
        axis = axis_of(name, attrs, len(x.shape))
        if x.shape[axis] == 0:
            fail(name, f"{x} has no elements along axis {axis}")
        return (TensorType(DType.I64, x.shape[:axis] + x.shape[axis + 1 :]),)

    return rule


def _argsort_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    x = tensor("argsort", types[0])
    axis_of("argsort", attrs, len(x.shape))
    return (TensorType(DType.I64, x.shape),)


def _cumsum_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    x = tensor("cumsum", types[0], NUMERIC)
    axis_of("cumsum", attrs, len(x.shape))
    return (x,)


def _row(name: str, rule: InferRule, attr: str) -> Primitive:
    return Primitive(name, rule, None, None, None, lambda op: 0, attrs=(attr,), operands=1)


ROWS = (
    _row("reduce_sum", _reduce_type("reduce_sum", NUMERIC, True), "axes"),
    _row("reduce_prod", _reduce_type("reduce_prod", NUMERIC, True), "axes"),
    _row("reduce_max", _reduce_type("reduce_max", ALL, False), "axes"),
    _row("reduce_min", _reduce_type("reduce_min", ALL, False), "axes"),
    _row("argmax", _argument_type("argmax"), "axis"),
    _row("argmin", _argument_type("argmin"), "axis"),
    _row("argsort", _argsort_type, "axis"),
    _row("cumsum", _cumsum_type, "axis"),
)
