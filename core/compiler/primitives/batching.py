"""Batching rules: a primitive over many lanes at once.

A rule is asked for `size` copies of an operation that run side by side. Operands that differ from
lane to lane are `batched`: they come with one more axis, the first. It builds the results, each
with that axis. None says that the rule has nothing better than the loop over lanes, which works for
every primitive (`lane_loop`).

Elementwise primitives (rows with a C expression) need no rule: their operands are repeated where
they are not batched. `transforms.vmap` asks the rules, and batches operations with regions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ir import Builder, DType, Op, TensorType, Value, Values
from .table import BatchRule

Flags = Sequence[bool]


def spread(b: Builder, value: Value, flag: bool, size: int) -> Value:
    """The value with a leading axis of lanes: as it is when batched, else repeated."""
    if flag:
        return value
    shape = value.shape
    dims = tuple(range(1, len(shape) + 1))
    return b("broadcast", value, shape=(size, *shape), dims=dims)


def to_front(b: Builder, value: Value, axis: int) -> Value:
    """Moves one axis to the front."""
    if axis == 0:
        return value
    perm = (axis, *[i for i in range(len(value.shape)) if i != axis])
    return b("transpose", value, perm=perm)


def from_front(b: Builder, value: Value, axis: int) -> Value:
    """Moves the first axis to a place."""
    if axis == 0:
        return value
    perm = list(range(1, len(value.shape)))
    perm.insert(axis, 0)
    return b("transpose", value, perm=tuple(perm))


def _later(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple([i + 1 for i in axes])


def elementwise(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    wide = [spread(b, v, f, size) for v, f in zip(operands, flags, strict=True)]
    return b.emit(op.name, wide, op.attrs)


def same_attrs(*names: str, axes: Sequence[str] = ()) -> BatchRule:
    """Spreads every operand; attributes that name axes move on by one (`axes`: one axis each)."""

    def rule(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
        wide = [spread(b, v, f, size) for v, f in zip(operands, flags, strict=True)]
        attrs = dict(op.attrs)
        for name in names:
            attrs[name] = _later(attrs[name])
        for name in axes:
            attrs[name] = attrs[name] + 1
        return b.emit(op.name, wide, attrs)

    return rule


def leading(**first: Any) -> BatchRule:
    """Rule of one operand: named attributes get an entry in front, "size" for the lanes."""

    def rule(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
        attrs = dict(op.attrs)
        for name, value in first.items():
            attrs[name] = (size if value == "size" else value, *attrs[name])
        return b.emit(op.name, operands, attrs)

    return rule


def broadcast(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    attrs = {"shape": (size, *op.attrs["shape"]), "dims": (0, *_later(op.attrs["dims"]))}
    return b.emit("broadcast", operands, attrs)


def transpose(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    return b.emit("transpose", operands, {"perm": (0, *_later(op.attrs["perm"]))})


def pad(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    """Pads with zeros where lanes have values of their own, then chooses the value there."""
    x, value = operands
    attrs = {k: (0, *op.attrs[k]) for k in ("low", "high", "interior")}
    wide = spread(b, x, flags[0], size)
    if not flags[1]:
        return b.emit("pad", (wide, value), attrs)
    padded = b.emit("pad", (wide, b.zeros(TensorType(x.dtype))), attrs)[0]
    inside = b.full(TensorType(DType.BOOL, wide.shape), True)
    mask = b.emit("pad", (inside, b.constant(False, DType.BOOL)), attrs)[0]
    around = b("broadcast", value, shape=padded.shape, dims=(0,))
    return (b("select", mask, padded, around),)


def _clamped(b: Builder, indices: Value, size: int) -> Value:
    """Indices as i64, moved into 0..size-1."""
    if indices.dtype is not DType.I64:
        indices = b("convert", indices, dtype=DType.I64)
    low, high = b.full(indices.tensor, 0), b.full(indices.tensor, size - 1)
    return b("min", b("max", indices, low), high)


def _own_rows(b: Builder, indices: Value, count: int) -> Value:
    """Indices [lanes, ...] into each lane's `count` rows, as indices into all lanes' rows."""
    shape = indices.shape
    lanes = b("iota", dtype=DType.I64, shape=shape, axis=0)
    starts = b("mul", lanes, b.full(TensorType(DType.I64, shape), count))
    return b("add", _clamped(b, indices, count), starts)


def take(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    (x, indices), axis = operands, op.attrs["axis"]
    return (_take(b, x, indices, flags, axis),)


def _take(b: Builder, x: Value, indices: Value, flags: Flags, axis: int) -> Value:
    """Rows of x along an axis of one lane; the lanes' axis comes first in the result."""
    if not flags[1]:
        return b("take", x, indices, axis=axis + 1)
    if not flags[0]:
        return to_front(b, b("take", x, indices, axis=axis), axis)
    # Both: the axis goes next to the lanes, and each lane's indices into its own rows.
    moved = to_front(b, x, axis + 1)  # [n, lanes, ...]
    moved = from_front(b, moved, 1)  # [lanes, n, ...]
    size, count = moved.shape[:2]
    rows = b("reshape", moved, shape=(size * count, *moved.shape[2:]))
    taken = b("take", rows, _own_rows(b, indices, count), axis=0)  # [lanes, I..., ...]
    return _move_block(b, taken, 1, len(indices.shape) - 1, axis + 1)


def _move_block(b: Builder, value: Value, start: int, count: int, to: int) -> Value:
    """Moves `count` neighbouring axes so that they begin at place `to` of the result."""
    axes = list(range(len(value.shape)))
    block = axes[start : start + count]
    rest = axes[:start] + axes[start + count :]
    perm = tuple(rest[:to] + block + rest[to:])
    return value if perm == tuple(axes) else b("transpose", value, perm=perm)


def put_add(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    (x, indices, updates), axis = operands, op.attrs["axis"]
    x, updates = spread(b, x, flags[0], size), spread(b, updates, flags[2], size)
    if not flags[1]:
        return (b("put_add", x, indices, updates, axis=axis + 1),)
    moved = from_front(b, to_front(b, x, axis + 1), 1)  # [lanes, n, ...]
    count = moved.shape[1]
    rows = b("reshape", moved, shape=(size * count, *moved.shape[2:]))
    news = _move_block(b, updates, axis + 1, len(indices.shape) - 1, 1)
    put = b("put_add", rows, _own_rows(b, indices, count), news, axis=0)
    back = b("reshape", put, shape=moved.shape)
    return (from_front(b, to_front(b, back, 1), axis + 1) if axis else back,)


def dynamic_slice(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    """Starts of each lane's own: the window's rows are taken, an axis at a time."""
    x, *starts = operands
    sizes, flag = op.attrs["sizes"], flags[0]
    if not any(flags[1:]):
        zero = b.constant(0, DType.I64)
        return (b("dynamic_slice", x, zero, *starts, sizes=(size, *sizes)),)
    shape = x.shape[1:] if flag else x.shape
    shared = [not f for f in flags[1:]]
    if any(n != d and s for n, d, s in zip(sizes, shape, shared, strict=True)):
        # What all lanes share is cut first, in one piece.
        zero = b.constant(0, DType.I64)
        places = [v if s else zero for v, s in zip(starts, shared, strict=True)]
        cut = [n if s else d for n, d, s in zip(sizes, shape, shared, strict=True)]
        head, whole = ([zero], [size]) if flag else ([], [])
        x = b("dynamic_slice", x, *head, *places, sizes=(*whole, *cut))
    for axis, (n, d) in enumerate(zip(sizes, shape, strict=True)):
        if n == d or shared[axis]:
            continue
        first = _clamped(b, starts[axis], d - n + 1)
        index = TensorType(DType.I64, (size, n))
        offsets = b("iota", dtype=DType.I64, shape=index.shape, axis=1)
        rows = b("add", b("broadcast", first, shape=index.shape, dims=(0,)), offsets)
        x, flag = _take(b, x, rows, (flag, True), axis), True
    return (spread(b, x, flag, size),)


def dynamic_update(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values | None:
    if any(flags[2:]):
        return None  # each lane writes its window in place: the loop does no more work than that
    x, update, *starts = operands
    x, update = spread(b, x, flags[0], size), spread(b, update, flags[1], size)
    return (b("dynamic_update", x, update, b.constant(0, DType.I64), *starts),)


def dot(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    """Both batched: one more batch axis. One batched: lanes are rows or columns of a product."""
    attrs = dict(op.attrs)
    sides = ("a", "b")
    for side, flag in zip(sides, flags, strict=True):
        if flag:
            for kind in ("contract", "batch"):
                attrs[f"{kind}_{side}"] = _later(attrs[f"{kind}_{side}"])
    if all(flags):
        attrs["batch_a"], attrs["batch_b"] = (0, *attrs["batch_a"]), (0, *attrs["batch_b"])
        return b.emit("dot", operands, attrs)
    product = b.emit("dot", operands, attrs)[0]
    at = len(attrs["batch_a"])
    if flags[1]:
        a = operands[0]
        at = len(a.shape) - len(attrs["contract_a"])
    return (to_front(b, product, at),)


def images(*fixed: int) -> BatchRule:
    """The rule of a convolution whose first operand and result count images along axis 0.

    Lanes are more images, unless an operand of `fixed` differs from lane to lane.
    """

    def rule(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values | None:
        if any(flags[i] for i in fixed):
            return None
        x, *rest = operands
        many = b("reshape", x, shape=(size * x.shape[1], *x.shape[2:]))
        made = b.emit(op.name, (many, *rest), op.attrs)[0]
        return (b("reshape", made, shape=(size, x.shape[1], *made.shape[1:])),)

    return rule


def lane_loop(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    """Any primitive on tensors: a `for` over the lanes, each writing its part of the results."""
    types = [TensorType(r.dtype, (size, *r.shape)) for r in op.results]
    inner = Builder([TensorType(DType.I64), *(v.type for v in operands), *types], b.locs)
    lane, *rest = inner.params
    zero = inner.constant(0, DType.I64)
    args = [
        _lane(inner, v, lane, zero) if flag else v
        for v, flag in zip(rest[: len(operands)], flags, strict=True)
    ]
    made = inner.emit(op.name, args, op.attrs, op.regions)
    outs = [
        inner(
            "dynamic_update",
            carry,
            inner("reshape", value, shape=(1, *value.shape)),
            lane,
            *(zero,) * len(value.shape),
        )
        for carry, value in zip(rest[len(operands) :], made, strict=True)
    ]
    zeros = [b.zeros(t) for t in types]
    bounds = b.constant(0, DType.I64), b.constant(size, DType.I64)
    attrs: Mapping[str, Any] = {"consts": len(operands)}
    return b.emit("for", (*bounds, *operands, *zeros), attrs, (inner.finish(outs),))


def _lane(b: Builder, value: Value, lane: Value, zero: Value) -> Value:
    shape = value.shape[1:]
    row = b("dynamic_slice", value, lane, *(zero,) * len(shape), sizes=(1, *shape))
    return b("reshape", row, shape=shape)


def threefry(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    """Keys of each lane's own are repeated to the shape of its counters."""
    k0, k1, c0, c1 = operands
    c0, c1 = spread(b, c0, flags[2], size), spread(b, c1, flags[3], size)
    if flags[0] or flags[1]:
        keys = [spread(b, k, f, size) for k, f in zip((k0, k1), flags[:2], strict=True)]
        k0, k1 = (
            k if k.shape == c0.shape else b("broadcast", k, shape=c0.shape, dims=_shared(k))
            for k in keys
        )
    return b.emit("threefry", (k0, k1, c0, c1))


def _shared(key: Value) -> tuple[int, ...]:
    return tuple(range(len(key.shape)))
