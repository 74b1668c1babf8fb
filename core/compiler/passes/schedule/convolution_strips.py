"""Loops that run over strips of a convolution's result, as it is computed.

Which rows of its result a convolution has at a time is the kernel's affair: an image, or some rows
of tiles, but always whole rows of pixels, and pairs of them where an image has an even number. A
loop can take the result so where its outermost indices are these rows: where all that it reads runs
along rows by one stride, and of the result it reads nothing but the rows that it is at.

    loop [8, 14, 2, 14, 2, 64]: a maximum over the axes of 2, of the result [8, 28, 28, 64]
    =>  for each of 112 pairs of rows: [2, 14, 2, 64]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...ir import DType, Op, Value
from .block_steps import Loop, reduced_loops
from .views import Cuts, View, collapse, extents, join_cuts, strides_in

#: Rows that a loop may take at once: kernels make so many, or a multiple.
_ROWS_AT_ONCE = (1, 2)
#: Kernels by tiles are of these sides, and for multiples of so many channels.
_TILED_SIDES = (3, 5)
_LANES = 16


@dataclass(frozen=True, slots=True)
class Strips:
    """How a loop goes over the rows of a result."""

    space: Cuts
    """The loop's, with a cut between what is of other rows and what is within."""
    cut: int
    """That cut, the numbers of each trip of the outermost loop."""
    rows: int
    """Of the result, which each trip takes."""


def _tiled(op: Op) -> bool:
    """Whether a convolution goes by tiles, if it is large enough."""
    side, across, inputs, outputs = op.operands[1].shape
    filled = inputs % _LANES == outputs % _LANES == 0
    return op.attrs["strides"] == (1, 1) and side == across in _TILED_SIDES and filled


def may_follow(loop: Loop, op: Op) -> bool:
    """Whether a loop should follow a convolution row by row.

    Tiles leave the first cache as they are, and pixels would go to memory and back between. Other
    kernels write one row after the other, which costs nothing relative to multiply-adds, while a
    loop by itself reads and writes as fast as it computes: there it pays only not to store what the
    loop makes less of, such as what is pooled. Tiles become pixels where tiles of the image have
    been: these must have been as many.
    """
    if op.name != "conv" or op.result.dtype is not DType.F32:
        return False
    if _tiled(op):
        return op.operands[1].shape[3] <= 2 * op.operands[1].shape[2]
    return bool(loop.reductions) or max(loop.space) < op.result.tensor.size


def strips_of(loop: Loop, value: Value, views: Mapping[Value, View]) -> Strips | None:
    """How a loop runs over a result [images, rows, columns, channels]; None where it cannot."""
    images, high, *row = value.shape
    width, total = row[0] * row[1], max(loop.space)
    for rows in _ROWS_AT_ONCE:
        trips = images * high // rows
        if high % rows or total % trips:
            continue
        cut = total // trips
        space = join_cuts(loop.space, frozenset({1, cut, total}))
        if space is None:
            continue
        outer = len([c for c in space if c >= cut]) - 1
        if any(any(reduced_loops(r, space)[:outer]) for r in loop.reductions):
            continue
        made = value, rows * width
        if all(_fits(views[v], v, space, outer, made) for v in loop.loads):
            return Strips(space, cut, rows)
    return None


def _fits(view: View, v: Value, space: Cuts, outer: int, made: tuple[Value, int]) -> bool:
    """Whether reads run along rows by one stride, and lie in the rows at hand if of the result."""
    strides, sizes = strides_in(space, v.shape, view.strides), extents(space)
    along = collapse(list(zip(sizes[:outer], strides[:outer], strict=True)))
    if len(along) > 1:
        return False
    value, length = made
    if view.base is not value:
        return True
    within = list(zip(sizes[outer:], strides[outer:], strict=True))
    last = view.offset + sum((n - 1) * s for n, s in within)
    forward = view.offset >= 0 and all(s >= 0 for _, s in within)
    return forward and last < length and (not along or along[0][1] == length)
