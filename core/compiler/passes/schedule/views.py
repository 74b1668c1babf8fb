"""Where the elements of a tensor lie: views, and the arithmetic of strides.

A view names a base (a tensor stored contiguously, or an iota, which needs no storing) and says that
element [i, j, ...] is number offset + i * strides[0] + j * strides[1] + ... of it. Reshapes,
broadcasts, transposes, slices and reversals give views and cost nothing; a reader that needs the
elements in a row copies them.

The iteration space of fused loops is a set of cuts. The cuts of a shape are the products of its
trailing sizes, so [4, 6] has the cuts {1, 6, 24}; two shapes of the same elements fit in one nest
of loops when their cuts together still divide one another: [4, 6] and [4, 2, 3] run as [4, 2, 3],
[4, 6] and [3, 8] do not fit.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...ir import Op, Value

Cuts = frozenset[int]


@dataclass(frozen=True, slots=True)
class View:
    """Elements of `base`; one stride, in elements, an axis."""

    base: Value
    offset: int
    strides: tuple[int, ...]


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor stored row by row."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def own(value: Value) -> View:
    """A value that is its own base."""
    return View(value, 0, contiguous_strides(value.shape))


def is_contiguous(view: View, shape: Sequence[int]) -> bool:
    """Whether the elements follow one another in the base, from any offset."""
    if 0 in shape:
        return True
    expected = contiguous_strides(shape)
    return all(n == 1 or s == e for n, s, e in zip(shape, view.strides, expected, strict=True))


def is_whole(view: View, value: Value) -> bool:
    """Whether the value is all of its base, in its base's order."""
    base = view.base
    return (
        view.offset == 0
        and base.tensor.size == value.tensor.size
        and is_contiguous(view, value.shape)
    )


VIEWS = frozenset(["reshape", "broadcast", "transpose", "slice", "reverse", "stop_gradient"])


def through(op: Op, view: View) -> View | None:
    """The view that an operation of `VIEWS` gives; None when no strides say it (some reshapes)."""
    shape, strides, offset = op.operands[0].shape, view.strides, view.offset
    match op.name:
        case "stop_gradient":
            return view
        case "broadcast":
            out = [0] * op.result.tensor.rank
            for dim, size, stride in zip(op.attrs["dims"], shape, strides, strict=True):
                out[dim] = stride if size != 1 else 0
            return View(view.base, offset, tuple(out))
        case "transpose":
            return View(view.base, offset, tuple(strides[p] for p in op.attrs["perm"]))
        case "slice":
            offset += sum(s * a for s, a in zip(strides, op.attrs["start"], strict=True))
            # An axis that is left with one element has any stride: its own stays within the base.
            rows = zip(strides, op.attrs["step"], op.result.shape, strict=True)
            return View(view.base, offset, tuple(s * k if n > 1 else s for s, k, n in rows))
        case "reverse":
            axes = op.attrs["axes"]
            offset += sum((shape[a] - 1) * strides[a] for a in axes if shape[a])
            flipped = (-s if i in axes else s for i, s in enumerate(strides))
            return View(view.base, offset, tuple(flipped))
        case "reshape":
            new = reshape_strides(shape, strides, op.result.shape)
            return None if new is None else View(view.base, offset, new)
    raise AssertionError(op.name)


def collapse(axes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Merges axes (size, stride, stride, ...), outermost first, that run as one."""
    merged: list[tuple[int, ...]] = []
    for axis in axes:
        if axis[0] == 1:
            continue
        if merged and all(
            outer == inner * axis[0] for outer, inner in zip(merged[-1][1:], axis[1:], strict=True)
        ):
            merged[-1] = (merged[-1][0] * axis[0], *axis[1:])
        else:
            merged.append(axis)
    return merged


def reshape_strides(
    shape: Sequence[int], strides: Sequence[int], new: Sequence[int]
) -> tuple[int, ...] | None:
    """The strides of the same elements under a new shape, or None when there are none."""
    if 0 in shape:
        return contiguous_strides(new)
    runs = collapse(list(zip(shape, strides, strict=True)))
    out = [0] * len(new)
    size, stride = 1, 0  # what is left of the innermost run
    for i in range(len(new) - 1, -1, -1):
        if new[i] == 1:
            continue
        if size == 1:
            size, stride = runs.pop()
        if size % new[i]:
            return None
        out[i] = stride
        size, stride = size // new[i], stride * new[i]
    return tuple(out)


def cuts_of(shape: Sequence[int]) -> Cuts:
    """The products of its trailing sizes. The shape has no zero."""
    cuts, product = {1}, 1
    for size in reversed(shape):
        product *= size
        cuts.add(product)
    return frozenset(cuts)


def join_cuts(a: Cuts, b: Cuts) -> Cuts | None:
    """The iteration space that serves both, or None. Spaces of other sizes are never one."""
    if a == b:
        return a
    if max(a) != max(b):
        return None
    ordered = sorted(a | b)
    for small, large in pairwise(ordered):
        if large % small:
            return None
    return a | b


@functools.lru_cache(maxsize=1 << 12)
def extents(cuts: Cuts) -> tuple[int, ...]:
    """The sizes of the loops, outermost first."""
    ordered = sorted(cuts)
    return tuple(large // small for small, large in pairwise(ordered))[::-1]


def strides_in(cuts: Cuts, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides along the loops of a space; a rank-0 value fits any space."""
    if not shape:
        return (0,) * (len(cuts) - 1)
    inner = sorted(cuts)[:-1]
    out = []
    product, axis = 1, len(shape)
    for cut in inner:  # the loop whose inner loops run `cut` elements
        while axis and product <= cut:
            axis -= 1
            product *= shape[axis]
        out.append(strides[axis] * (cut // (product // shape[axis])))
    return tuple(reversed(out))


def tile_strides(cuts: Cuts, columns: int, strides: Sequence[int]) -> tuple[int, int] | None:
    """Strides along rows and columns, from those along loops; None: no single stride."""
    sizes, inner = extents(cuts), sorted(cuts)[:-1][::-1]
    out = []
    for part in (
        [(n, s) for n, s, cut in zip(sizes, strides, inner, strict=True) if cut >= columns],
        [(n, s) for n, s, cut in zip(sizes, strides, inner, strict=True) if cut < columns],
    ):
        merged = collapse(part)
        if len(merged) > 1:
            return None
        out.append(merged[0][1] if merged else 0)
    return out[0], out[1]


def axes_in(cuts: Cuts, shape: Sequence[int], axes: Sequence[int]) -> tuple[bool, ...]:
    """Which loops of a space run along these axes of a shape that fits it."""
    marks = [1 if i in axes else 0 for i in range(len(shape))]
    inner = sorted(cuts)[:-1]
    out = []
    product, axis = 1, len(shape)
    for cut in inner:
        while axis and product <= cut:
            axis -= 1
            product *= shape[axis]
        out.append(bool(marks[axis]))
    return tuple(reversed(out))
