"""Short innermost axes as parts of longer ones, so that loops fill vectors.

A group of a few channels is such an axis: what is the same for a group is read along [groups,
channels of a group], with nothing to be done at once along the second, and a sum over space and
over a group's channels ends every few numbers. So what is the same for a group is written out once
for each channel, where it is small relative to what reads it; and sums run over space first,
channels side by side, and then over the channels of a group.

    %1: f32[8, 48, 48, 6, 8] = broadcast(%0: f32[8, 6]) {dims=[0, 3]}
    %3: f32[8, 6] = reduce_sum(%2) {axes=[1, 2, 4]}
        =>
    %4: f32[8, 6, 8] = broadcast(%0) {dims=[0, 1]}
    %5: f32[8, 48] = reshape(%4)                            stored
    %6: f32[8, 48, 48, 48] = broadcast(%5) {dims=[0, 3]}
    %1: f32[8, 48, 48, 6, 8] = reshape(%6)
    %7: f32[8, 6, 8] = reduce_sum(%2) {axes=[1, 2]}
    %3: f32[8, 6] = reduce_sum(%7) {axes=[2]}
"""

from __future__ import annotations

from math import prod

from ...ir import Builder, DType, Function, Op, Value, Values, replaced_in

#: An innermost axis of more elements fills vectors by itself.
SHORT_MAX = 16
#: How many times larger than what is written out a tensor must be that reads it.
LARGER_MIN = 16

_REDUCTIONS = frozenset(["reduce_sum", "reduce_max", "reduce_min"])


def vectorize_short_axes(function: Function) -> Function:
    """The function with short innermost axes as parts of longer ones."""
    written: dict[tuple[Value, int], Value] = {}

    def filled(b: Builder, op: Op, operands: list[Value]) -> Values:
        (x,) = operands
        if op.name != "broadcast":
            return (_sum(b, op, x),)
        each = (x, op.result.shape[-1])
        if each not in written:
            written[each] = _written(b, *each)
        return (_broadcast(b, op, written[each]),)

    return replaced_in(function, _is_short, filled)


def _is_short(op: Op) -> bool:
    """Whether it repeats or reduces a short innermost axis alone; sums in f64 keep their order."""
    if op.name == "broadcast":
        shape, kept = op.result.shape, op.attrs["dims"]
        last = len(shape) - 1
        small = LARGER_MIN * op.operands[0].tensor.size * shape[-1] if shape else 0
        written = op.operands[0].tensor.size > 1 and small <= op.result.tensor.size
        return _short(shape) and written and last not in kept and last - 1 in kept
    if op.name not in _REDUCTIONS or op.result.dtype is not DType.F32:
        return False
    shape, gone = op.operands[0].shape, op.attrs["axes"]
    last = len(shape) - 1
    rows = prod(shape[a] for a in gone[:-1])
    return _short(shape) and last in gone and last - 1 not in gone and rows >= LARGER_MIN


def _short(shape: tuple[int, ...]) -> bool:
    return len(shape) > 2 and 1 < shape[-1] <= SHORT_MAX and shape[-2] > 1


def _written(b: Builder, x: Value, size: int) -> Value:
    """Every element so many times, side by side."""
    repeated = b("broadcast", x, shape=(*x.shape, size), dims=tuple(range(len(x.shape))))
    return b("reshape", repeated, shape=(*x.shape[:-1], x.shape[-1] * size))


def _broadcast(b: Builder, op: Op, written: Value) -> Value:
    *outer, groups, size = op.result.shape
    wide = b("broadcast", written, shape=(*outer, groups * size), dims=op.attrs["dims"])
    return b("reshape", wide, shape=op.result.shape)


def _sum(b: Builder, op: Op, x: Value) -> Value:
    *rest, last = op.attrs["axes"]
    side_by_side = b(op.name, x, axes=tuple(rest))
    return b(op.name, side_by_side, axes=(last - len(rest),))
