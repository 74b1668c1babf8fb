"""Batching rules for convolutions whose kernels differ from lane to lane.

They are for machines that want one large operation rather than a loop over lanes.

    grouped    the lanes' channels side by side: one convolution in as many groups as there are
               lanes. Nothing is copied but to put the channels in place.
    patches    what each place of the output sees, side by side, times the kernels: one product of
               matrices for each lane, in one batch. It takes KH x KW times the input's memory.

With x [L,N,H,W,C], k [L,KH,KW,C,O] and y [L,N,OH,OW,O], the patches of x are [L, N OH OW, KH KW C]:

    y = patches(x) k        dk = patches(x)^T dy        dx = patches(dy, spread and edged) k turned

The last is the convolution of dy, its rows and columns as far apart as the strides, with the kernel
turned by half a circle. Where the padding is wider than the kernel it has no such form, and groups
do it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..ir import Builder, Op, TensorType, Value, Values
from ..primitives.batching import spread
from ..primitives.table import BatchRule

Flags = Sequence[bool]
Pair = tuple[int, int]


def _both(b: Builder, operands: Values, flags: Flags, size: int) -> tuple[Value, Value]:
    first, second = (spread(b, v, f, size) for v, f in zip(operands, flags, strict=True))
    return first, second


# Groups


def _side_by_side(b: Builder, value: Value) -> Value:
    """[L, ..., C] as [..., L C]."""
    rank = len(value.shape)
    moved = b("transpose", value, perm=(*range(1, rank - 1), 0, rank - 1))
    return b("reshape", moved, shape=(*moved.shape[:-2], moved.shape[-2] * moved.shape[-1]))


def _apart(b: Builder, value: Value, size: int) -> Value:
    """[..., L C] as [L, ..., C]."""
    *front, channels = value.shape
    cut = b("reshape", value, shape=(*front, size, channels // size))
    rank = len(cut.shape)
    return b("transpose", cut, perm=(rank - 2, *range(rank - 2), rank - 1))


def _grouped(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    first, second = _both(b, operands, flags, size)
    groups = size * op.attrs.get("groups", 1)
    name = op.name.removeprefix("grouped_")
    sides = (_side_by_side(b, first), _side_by_side(b, second))
    made = b.emit(f"grouped_{name}", sides, {**op.attrs, "groups": groups})[0]
    return (_apart(b, made, size),)


# Patches


def _patches(b: Builder, x: Value, kernel: Pair, out: Pair, strides: Pair) -> Value:
    """[L,N,H,W,C] as [L,N,OH,OW,KH KW C], of an input that has its edges already."""
    lanes, images, _, _, channels = x.shape
    (kh, kw), (oh, ow), (sh, sw) = kernel, out, strides
    parts = []
    for i in range(kh):
        for j in range(kw):
            start = (0, 0, i, j, 0)
            stop = (lanes, images, i + (oh - 1) * sh + 1, j + (ow - 1) * sw + 1, channels)
            parts.append(b("slice", x, start=start, stop=stop, step=(1, 1, sh, sw, 1)))
    return parts[0] if len(parts) == 1 else b("concat", *parts, axis=4)


def _edged(b: Builder, x: Value, edges: Sequence[Pair], gaps: Pair = (0, 0)) -> Value:
    (top, bottom), (left, right) = edges
    if not any((top, bottom, left, right, *gaps)):
        return x
    zero = b.zeros(TensorType(x.dtype))
    low, high = (0, 0, top, left, 0), (0, 0, bottom, right, 0)
    return b("pad", x, zero, low=low, high=high, interior=(0, 0, *gaps, 0))


def _matrices(b: Builder, x: Value, columns: int) -> Value:
    """[L, ..., columns of the last axes] as [L, rows, columns]."""
    lanes = x.shape[0]
    return b("reshape", x, shape=(lanes, x.tensor.size // (lanes * columns), columns))


def _times(b: Builder, x: Value, y: Value, inner_x: int, inner_y: int) -> Value:
    batch: dict[str, Any] = {"batch_a": (0,), "batch_b": (0,)}
    return b("dot", x, y, contract_a=(inner_x,), contract_b=(inner_y,), **batch)


def _correlated(b: Builder, x: Value, k: Value, out: Pair, strides: Pair) -> Value:
    """The convolution of an input that has its edges already, for each lane."""
    lanes, kh, kw, channels, outputs = k.shape
    seen = _patches(b, x, (kh, kw), out, strides)
    inner = kh * kw * channels
    product = _times(b, _matrices(b, seen, inner), _matrices(b, k, outputs), 2, 1)
    return b("reshape", product, shape=(lanes, x.shape[1], *out, outputs))


def _pair(values: Sequence[int]) -> Pair:
    first, second = values
    return first, second


def _conv(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    x, k = _both(b, operands, flags, size)
    out = _pair(op.result.shape[1:3])
    x = _edged(b, x, op.attrs["padding"])
    return (_correlated(b, x, k, out, op.attrs["strides"]),)


def _weight_grad(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    x, y = _both(b, operands, flags, size)
    kernel, out = _pair(op.attrs["kernel_size"]), _pair(op.operands[1].shape[1:3])
    channels, outputs = x.shape[4], y.shape[4]
    seen = _patches(b, _edged(b, x, op.attrs["padding"]), kernel, out, op.attrs["strides"])
    inner = math.prod(kernel) * channels
    product = _times(b, _matrices(b, seen, inner), _matrices(b, y, outputs), 1, 1)
    return (b("reshape", product, shape=(size, *kernel, channels, outputs)),)


def _input_grad(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values:
    whole, strides = _pair(op.attrs["input_size"]), _pair(op.attrs["strides"])
    kernel, out = op.operands[1].shape[:2], op.operands[0].shape[1:3]
    edges: list[Pair] = []
    for n, taps, m, step, (low, _) in zip(
        whole, kernel, out, strides, op.attrs["padding"], strict=True
    ):
        before = taps - 1 - low
        edges.append((before, n + taps - 1 - before - ((m - 1) * step + 1)))
    if any(e < 0 for pair in edges for e in pair):
        return _grouped(b, op, operands, flags, size)
    y, k = _both(b, operands, flags, size)
    turned = b("transpose", b("reverse", k, axes=(1, 2)), perm=(0, 1, 2, 4, 3))
    wide = _edged(b, y, edges, (strides[0] - 1, strides[1] - 1))
    return (_correlated(b, wide, turned, whole, (1, 1)),)


def _where_kernels_differ(rule: BatchRule, kernel: int) -> BatchRule:
    """The rule, but where all lanes have one kernel: there lanes are more images."""

    def chosen(b: Builder, op: Op, operands: Values, flags: Flags, size: int) -> Values | None:
        if not flags[kernel]:
            from ..primitives import PRIMITIVES

            own = PRIMITIVES[op.name].batch
            return None if own is None else own(b, op, operands, flags, size)
        return rule(b, op, operands, flags, size)

    return chosen


_GROUPED: Mapping[str, BatchRule] = {
    "grouped_conv": _where_kernels_differ(_grouped, 1),
    "grouped_conv_input_grad": _where_kernels_differ(_grouped, 1),
    "grouped_conv_weight_grad": _grouped,
}

GROUPED: Mapping[str, BatchRule] = {
    "conv": _where_kernels_differ(_grouped, 1),
    "conv_input_grad": _where_kernels_differ(_grouped, 1),
    "conv_weight_grad": _grouped,
    **_GROUPED,
}

PATCHES: Mapping[str, BatchRule] = {
    "conv": _where_kernels_differ(_conv, 1),
    "conv_input_grad": _where_kernels_differ(_input_grad, 1),
    "conv_weight_grad": _weight_grad,
    **_GROUPED,
}
