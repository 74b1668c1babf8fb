"""Primitives that read and write at places known only when the program runs.

Every place is clamped into range, so that a program can never read or write outside a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Blocks, Builder, DType, Op, TensorType, Type, Types, Value
from . import batching, table
from .rules import free, linear, one_result, zeros_like
from .type_checks import INTS, NUMERIC, axis_of, differ, fail, int_tuple, scalar, tensor


def _starts(name: str, x: TensorType, starts: Types) -> None:
    if len(starts) != len(x.shape):
        fail(name, f"{x} needs {len(x.shape)} starts, not {len(starts)}")
    for start in starts:
        scalar(name, start, DType.I64, "a start")


def _dynamic_slice_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    if not types:
        fail("dynamic_slice", "needs a tensor to slice")
    x = tensor("dynamic_slice", types[0])
    _starts("dynamic_slice", x, types[1:])
    sizes = int_tuple("dynamic_slice", attrs, "sizes", len(x.shape))
    if any(s > d for s, d in zip(sizes, x.shape, strict=True)):
        fail("dynamic_slice", f"sizes {sizes} exceed {x}")
    return (TensorType(x.dtype, sizes),)


def _dynamic_update_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    if len(types) < 2:
        fail("dynamic_update", "needs a tensor and its update")
    x, update = tensor("dynamic_update", types[0]), tensor("dynamic_update", types[1])
    _starts("dynamic_update", x, types[2:])
    if update.dtype is not x.dtype:
        differ("dynamic_update", x, update)
    if len(update.shape) != len(x.shape) or any(
        s > d for s, d in zip(update.shape, x.shape, strict=True)
    ):
        fail("dynamic_update", f"the update {update} does not fit in {x}")
    return (x,)


def _take_shape(name: str, types: Types, attrs: table.Attrs) -> tuple[TensorType, TensorType]:
    """What taking these indices of this tensor gives, and the tensor."""
    x = tensor(name, types[0])
    indices = tensor(name, types[1], INTS, "the indices")
    axis = axis_of(name, attrs, len(x.shape))
    if x.shape[axis] == 0 and indices.size:
        fail(name, f"{x} has nothing to index along axis {axis}")
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    return TensorType(x.dtype, shape), x


def _take_along_shape(name: str, types: Types, attrs: table.Attrs) -> tuple[TensorType, TensorType]:
    x = tensor(name, types[0])
    indices = tensor(name, types[1], INTS, "the indices")
    axis = axis_of(name, attrs, len(x.shape))
    if (
        len(indices.shape) != len(x.shape)
        or indices.shape[:axis] != x.shape[:axis]
        or indices.shape[axis + 1 :] != x.shape[axis + 1 :]
    ):
        fail(name, f"{x} and the indices {indices} must have one shape off axis {axis}")
    if x.shape[axis] == 0 and indices.size:
        fail(name, f"{x} has nothing to index along axis {axis}")
    return TensorType(x.dtype, indices.shape), x


def _take_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    return (_take_shape("take", types, attrs)[0],)


def _take_along_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    return (_take_along_shape("take_along", types, attrs)[0],)


def _put_add_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    taken, x = _take_shape("put_add", types, attrs)
    tensor("put_add", x, NUMERIC)
    if types[2] != taken:
        fail("put_add", f"the updates must be {taken} for {x} and {types[1]}, not {types[2]}")
    return (x,)


def _put_along_add_type(types: Types, attrs: table.Attrs, regions: Blocks) -> tuple[Type, ...]:
    taken, x = _take_along_shape("put_along_add", types, attrs)
    tensor("put_along_add", x, NUMERIC)
    if types[2] != taken:
        fail("put_along_add", f"the updates must be {taken} for {x} and {types[1]}, not {types[2]}")
    return (x,)


def _clamped(indices: Array, size: int) -> Array:
    return np.clip(indices.astype(np.int64), 0, size - 1)


def _window(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Array]) -> Any:
    """The slices of a window of `sizes`, moved to lie within `shape`."""
    rows = zip(shape, sizes, starts, strict=True)
    clamped = [(min(max(int(start), 0), whole - size), size) for whole, size, start in rows]
    return tuple(slice(start, start + size) for start, size in clamped)


def _dynamic_slice(x: Array, *rest: Any) -> Array:
    *starts, attrs = rest
    return x[_window(x.shape, attrs["sizes"], starts)]  # type: ignore[no-any-return]


def _dynamic_update(x: Array, update: Array, *rest: Any) -> Array:
    result = x.copy()
    result[_window(x.shape, update.shape, rest[:-1])] = update
    return result


def _take(x: Array, indices: Array, attrs: table.Attrs) -> Array:
    axis = attrs["axis"]
    return np.take(x, _clamped(indices, x.shape[axis]), axis)


def _put_add(x: Array, indices: Array, updates: Array, attrs: table.Attrs) -> Array:
    axis, result = attrs["axis"], x.copy()
    np.add.at(result, (*(slice(None),) * axis, _clamped(indices, x.shape[axis])), updates)
    return result


def _take_along(x: Array, indices: Array, attrs: table.Attrs) -> Array:
    axis = attrs["axis"]
    return np.take_along_axis(x, _clamped(indices, x.shape[axis]), axis)


def _put_along_add(x: Array, indices: Array, updates: Array, attrs: table.Attrs) -> Array:
    axis, result = attrs["axis"], x.copy()
    places: list[Any] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    places[axis] = _clamped(indices, x.shape[axis])
    np.add.at(result, tuple(places), updates)
    return result


def _dynamic_slice_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    x, *starts = op.operands
    return (b("dynamic_update", zeros_like(b, x), g, *starts),)


def _dynamic_slice_put(b: Builder, op: Op, total: Value, g: Value) -> Value:
    starts = op.operands[1:]
    part = b("dynamic_slice", total, *starts, sizes=g.shape)
    return b("dynamic_update", total, b("add", part, g), *starts)


def _dynamic_update_back(b: Builder, op: Op, g: Value) -> Sequence[table.Maybe]:
    _, update, *starts = op.operands
    part = b("dynamic_slice", g, *starts, sizes=update.shape)
    return (b("dynamic_update", g, zeros_like(b, update), *starts), part)


def _take_put(b: Builder, op: Op, total: Value, g: Value) -> Value:
    return b.emit("put_add", (total, op.operands[1], g), op.attrs)[0]


def _take_along_put(b: Builder, op: Op, total: Value, g: Value) -> Value:
    return b.emit("put_along_add", (total, op.operands[1], g), op.attrs)[0]


def _from_zeros(
    put: Callable[[Builder, Op, Value, Value], Value],
) -> Callable[[Builder, Op, Value], Sequence[table.Maybe]]:
    return lambda b, op, g: (put(b, op, zeros_like(b, op.operands[0]), g),)


def _adder(take: str) -> tuple[table.VjpRule, table.JvpRule]:
    """The rules of x + (updates put at indices): linear in the first and the third operand."""

    def vjp(b: Builder, op: Op, cotangents: Sequence[table.Maybe]) -> Sequence[table.Maybe]:
        (g,) = cotangents
        if g is None:
            return (None, None, None)
        return (g, None, b.emit(take, (g, op.operands[1]), op.attrs)[0])

    def jvp(b: Builder, op: Op, tangents: Sequence[table.Maybe]) -> Sequence[table.Maybe]:
        (x, indices, _), (into, _, put) = op.operands, tangents
        if put is None:
            return (into,)
        into = zeros_like(b, x) if into is None else into
        return b.emit(op.name, (into, indices, put), op.attrs)

    return vjp, jvp


def _one_each(op: Op) -> int:
    """An addition for every update."""
    return op.operands[2].tensor.size


def _row(
    name: str,
    rule: table.InferRule,
    f: Callable[..., Any],
    rules: tuple[table.VjpRule, table.JvpRule],
    operands: int | None,
    batch: table.BatchRule,
    attrs: tuple[str, ...] = ("axis",),
    cost: table.CostRule = free,
    put: table.PutRule | None = None,
) -> table.Primitive:
    reference = one_result(f)
    return table.Primitive(
        name, rule, reference, *rules, cost, attrs=attrs, operands=operands, batch=batch, put=put
    )


_SAME_AXIS = batching.same_attrs(axes=("axis",))
_SLICE, _UPDATE = linear(_dynamic_slice_back, 1), linear(_dynamic_update_back, 2)
_TAKE, _ALONG = linear(_from_zeros(_take_put), 1), linear(_from_zeros(_take_along_put), 1)
_PUT, _PUT_ALONG = _adder("take"), _adder("take_along")

ROWS = (
    _row(
        "dynamic_slice",
        _dynamic_slice_type,
        _dynamic_slice,
        _SLICE,
        None,
        batching.dynamic_slice,
        ("sizes",),
        put=_dynamic_slice_put,
    ),
    _row(
        "dynamic_update",
        _dynamic_update_type,
        _dynamic_update,
        _UPDATE,
        None,
        batching.dynamic_update,
        (),
    ),
    _row("take", _take_type, _take, _TAKE, 2, batching.take, put=_take_put),
    _row("put_add", _put_add_type, _put_add, _PUT, 3, batching.put_add, cost=_one_each),
    _row("take_along", _take_along_type, _take_along, _ALONG, 2, _SAME_AXIS, put=_take_along_put),
    _row(
        "put_along_add",
        _put_along_add_type,
        _put_along_add,
        _PUT_ALONG,
        3,
        _SAME_AXIS,
        cost=_one_each,
    ),
)
