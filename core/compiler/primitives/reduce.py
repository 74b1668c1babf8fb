"""Primitives along axes: reductions, first extremes, order, running sums.

Sums and products of f32 are kept in f64 and rounded once here; a back end for speed keeps them in
f32. The derivative of an extreme is shared equally by the elements that tie for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Blocks, Builder, DType, Op, TensorType, Type, Types, Value
from . import table
from .batching import same_attrs
from .products import product_back, product_forward
from .rules import cast, linear, one_result, widen, zeros_like
from .type_checks import ALL, NUMERIC, axes_of, axis_of, fail, tensor


def _reduce_type(name: str, kinds: tuple[DType, ...], empty: bool) -> table.InferRule:
    """`empty` says that reducing no elements at all has a meaning (it has for bool in any case)."""

    def rule(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
        x = tensor(name, types[0], kinds)
        axes = axes_of(name, attrs, "axes", len(x.shape))
        if tuple(sorted(axes)) != axes:
            fail(name, f"axes {axes} must be sorted")
        if not empty and x.dtype is not DType.BOOL and any(x.shape[a] == 0 for a in axes):
            fail(name, f"{x} has no elements along axes {axes}, so there is no extreme one")
        return (TensorType(x.dtype, tuple([d for i, d in enumerate(x.shape) if i not in axes])),)

    return rule


def _argument_type(name: str) -> table.InferRule:
    def rule(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
        x = tensor(name, types[0])
        axis = axis_of(name, attrs, len(x.shape))
        if x.shape[axis] == 0:
            fail(name, f"{x} has no elements along axis {axis}")
        return (TensorType(DType.I64, x.shape[:axis] + x.shape[axis + 1 :]),)

    return rule


def _argsort_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    x = tensor("argsort", types[0])
    axis_of("argsort", attrs, len(x.shape))
    return (TensorType(DType.I64, x.shape),)


def _cumsum_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    x = tensor("cumsum", types[0], NUMERIC)
    axis_of("cumsum", attrs, len(x.shape))
    return (x,)


def _sum(x: Array, attrs: table.Attrs) -> Array:
    return np.asarray(np.sum(widen(x), attrs["axes"], dtype=widen(x).dtype)).astype(x.dtype)


def _prod(x: Array, attrs: table.Attrs) -> Array:
    return np.asarray(np.prod(widen(x), attrs["axes"], dtype=widen(x).dtype)).astype(x.dtype)


def _max(x: Array, attrs: table.Attrs) -> Any:
    return np.any(x, attrs["axes"]) if x.dtype == np.bool_ else np.max(x, attrs["axes"])


def _min(x: Array, attrs: table.Attrs) -> Any:
    return np.all(x, attrs["axes"]) if x.dtype == np.bool_ else np.min(x, attrs["axes"])


def _cumsum(x: Array, attrs: table.Attrs) -> Array:
    return np.cumsum(widen(x), attrs["axis"], dtype=widen(x).dtype).astype(x.dtype)


def _first(f: Callable[[Array, int], Any]) -> table.ReferenceRule:
    return one_result(lambda x, attrs: np.asarray(f(x, attrs["axis"])).astype(np.int64))


def _argsort(x: Array, attrs: table.Attrs) -> Array:
    return np.argsort(x, attrs["axis"], kind="stable").astype(np.int64)


def _spread(b: Builder, g: Value, like: Value, axes: Sequence[int]) -> Value:
    """Repeats a reduced value along the axes that were reduced."""
    dims = tuple([i for i in range(len(like.shape)) if i not in axes])
    return b("broadcast", g, shape=like.shape, dims=dims)


def _sum_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    return (_spread(b, g, op.operands[0], op.attrs["axes"]),)


def _ties(b: Builder, op: Op) -> tuple[Value, Value]:
    """Which elements equal the extreme one, and how many along the axes."""
    x, axes = op.operands[0], op.attrs["axes"]
    tied = b("eq", x, _spread(b, op.result, x, axes))
    return tied, b("reduce_sum", cast(b, tied, x), axes=axes)


def _extreme_back(b: Builder, op: Op, cotangents: Sequence[table.Maybe]) -> Sequence[table.Maybe]:
    (g,), (x,) = cotangents, op.operands
    if g is None:
        return (None,)
    tied, count = _ties(b, op)
    share = _spread(b, b("div", g, count), x, op.attrs["axes"])
    return (b("select", tied, share, zeros_like(b, x)),)


def _extreme_forward(b: Builder, op: Op, tangents: Sequence[table.Maybe]) -> Sequence[table.Maybe]:
    (t,), (x,) = tangents, op.operands
    if t is None:
        return (None,)
    tied, count = _ties(b, op)
    chosen = b("select", tied, t, zeros_like(b, x))
    return (b("div", b("reduce_sum", chosen, axes=op.attrs["axes"]), count),)


def _cumsum_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    axes = (op.attrs["axis"],)
    running = b.emit("cumsum", (b("reverse", g, axes=axes),), op.attrs)[0]
    return (b("reverse", running, axes=axes),)


def _one_each(op: Op) -> int:
    return op.operands[0].tensor.size


def _sorting(op: Op) -> int:
    """n log2 n comparisons for each row of n."""
    x = op.operands[0].tensor
    row: int = x.shape[op.attrs["axis"]]
    return x.size * max(1, row.bit_length())


def _row(
    name: str,
    rule: table.InferRule,
    reference: table.ReferenceRule,
    rules: tuple[table.VjpRule, table.JvpRule] | None,
    attr: str,
    cost: table.CostRule = _one_each,
) -> table.Primitive:
    vjp, jvp = rules or (None, None)
    batch = same_attrs("axes") if attr == "axes" else same_attrs(axes=(attr,))
    return table.Primitive(
        name, rule, reference, vjp, jvp, cost, attrs=(attr,), operands=1, batch=batch
    )


_EXTREME = (_extreme_back, _extreme_forward)

ROWS = (
    _row(
        "reduce_sum",
        _reduce_type("reduce_sum", NUMERIC, True),
        one_result(_sum),
        linear(_sum_back),
        "axes",
    ),
    _row(
        "reduce_prod",
        _reduce_type("reduce_prod", NUMERIC, True),
        one_result(_prod),
        (product_back, product_forward),
        "axes",
    ),
    _row("reduce_max", _reduce_type("reduce_max", ALL, False), one_result(_max), _EXTREME, "axes"),
    _row("reduce_min", _reduce_type("reduce_min", ALL, False), one_result(_min), _EXTREME, "axes"),
    _row("argmax", _argument_type("argmax"), _first(np.argmax), None, "axis"),
    _row("argmin", _argument_type("argmin"), _first(np.argmin), None, "axis"),
    _row("argsort", _argsort_type, one_result(_argsort), None, "axis", _sorting),
    _row("cumsum", _cumsum_type, one_result(_cumsum), linear(_cumsum_back), "axis"),
)
