"""Operators that look at shapes, change them, or make tensors of a shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from .....compiler.ir import Tensor
from ..element_types import Coded, numpy_type
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows

#: Vectors up to this length are kept as known numbers where they are.
SHORT = 1024


def ints(values: Tensor) -> tuple[int, ...]:
    """A known vector (or number) as Python's ints."""
    return tuple([int(v) for v in np.reshape(values, (-1,))])


def placed(axis: int, rank: int) -> int:
    """An axis counted from the front. Raises OnnxError for one that is not there."""
    if not -rank <= axis < rank:
        raise OnnxError(f"there is no axis {axis} among {rank}")
    return axis + rank if axis < 0 else axis


def moved(move: Any, x: Tensor, *options: Any) -> Tensor:
    """What moves elements, of the bits of a `Coded` too."""
    if isinstance(x, Coded):
        return Coded(move(x.bits, *options), x.kind)
    return move(x, *options)


def shape_of(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """Shape: i64[rank], or a part of it."""
    return np.array(x.shape[slice(start, end)], np.int64)


def size_of(x: Tensor) -> Tensor:
    """Size: i64[]."""
    count = 1
    for n in x.shape:
        count = count * n
    return np.array(count, np.int64)


def reshape(x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    """Reshape: -1 is what is left, 0 the input's own size."""
    wanted = []
    for k, n in enumerate(ints(shape)):
        wanted.append(x.shape[k] if n == 0 and not allowzero else n)
    return moved(_reshaped, x, tuple(wanted))


def _reshaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return np.reshape(x, shape)


def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """Flatten: to a matrix, the axes before `axis` its rows."""
    rank = len(x.shape)
    front = rank if axis == rank else placed(axis, rank)
    rows = 1
    for n in x.shape[:front]:
        rows = rows * n
    columns = 1
    for n in x.shape[front:]:
        columns = columns * n
    return moved(_reshaped, x, (rows, columns))


def squeeze(x: Tensor, where: Tensor = None, *, axes: tuple[int, ...] | None = None) -> Tensor:
    """Squeeze: axes of size 1 are left out, all where none are named."""
    rank = len(x.shape)
    if where is not None:
        axes = ints(where)
    if axes is None:
        axes = tuple([k for k in range(rank) if x.shape[k] == 1])
    gone = [placed(a, rank) for a in axes]
    for a in gone:
        if x.shape[a] != 1:
            raise OnnxError(f"Squeeze: axis {a} of {list(x.shape)} has more than one element")
    if len(gone) == rank:
        return moved(_reshaped, x, ())
    return moved(_indexed, x, tuple([0 if k in gone else slice(None) for k in range(rank)]))


def unsqueeze(x: Tensor, where: Tensor = None, *, axes: tuple[int, ...] | None = None) -> Tensor:
    """Unsqueeze: axes of size 1 are added, counted in the result."""
    wanted = axes if where is None else ints(where)
    if wanted is None:
        raise OnnxError("Unsqueeze without axes")
    rank = len(x.shape) + len(wanted)
    new = [placed(a, rank) for a in wanted]
    if len(new) == rank:
        return moved(_reshaped, x, (1,) * rank)
    return moved(_indexed, x, tuple([None if k in new else slice(None) for k in range(rank)]))


def transpose(x: Tensor, *, perm: tuple[int, ...] | None = None) -> Tensor:
    """Transpose: reversed where no order is given."""
    order = tuple(range(len(x.shape)))[::-1] if perm is None else perm
    return moved(_transposed, x, order)


def _transposed(x: Tensor, order: tuple[int, ...]) -> Tensor:
    return np.transpose(x, order)


def concat(*values: Tensor, axis: int) -> Tensor:
    """Concat."""
    if isinstance(values[0], Coded):
        return Coded(np.concatenate([v.bits for v in values], axis), values[0].kind)
    return np.concatenate(values, axis)


def split(
    x: Tensor,
    sizes: Tensor = None,
    *,
    axis: int = 0,
    split: tuple[int, ...] | None = None,
    num_outputs: int | None = None,
    outputs: tuple[bool, ...] = (True,),
) -> tuple[Tensor, ...]:
    """Split: by sizes, or into as many equal parts as outputs, the last one smaller."""
    length = x.shape[axis]
    if sizes is not None:
        parts = ints(sizes)
    elif split is not None:
        parts = split
    else:
        many = len(outputs) if num_outputs is None else num_outputs
        each = -(-length // many)
        parts = tuple([each] * (many - 1) + [length - each * (many - 1)])
    if sum(parts) != length or min(parts) < 0:
        raise OnnxError(f"Split: parts of {list(parts)} are not {length} elements")
    found = []
    start = 0
    for n in parts:
        found.append(part(x, axis, start, start + n))
        start = start + n
    return tuple(found)


def part(x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """x[..., start:stop:step, ...] along an axis."""
    before = (slice(None),) * placed(axis, x.ndim)
    return x[(*before, slice(start, stop, step))]


def slices(
    x: Tensor,
    first: Tensor = None,
    last: Tensor = None,
    along: Tensor = None,
    by: Tensor = None,
    *,
    starts: tuple[int, ...] | None = None,
    ends: tuple[int, ...] | None = None,
    axes: tuple[int, ...] | None = None,
) -> Tensor:
    """Slice: bounds are moved into the axis, steps may be negative."""
    low = ints(first) if starts is None else starts
    high = ints(last) if ends is None else ends
    if along is not None:
        axes = ints(along)
    if axes is None:
        axes = tuple(range(len(low)))
    steps = (1,) * len(low) if by is None else ints(by)
    rank = len(x.shape)
    index = [slice(None)] * rank
    for k in range(len(low)):
        axis = placed(axes[k], rank)
        size = x.shape[axis]
        start, stop, step = low[k], high[k], steps[k]
        start = start + size if start < 0 else start
        stop = stop + size if stop < 0 else stop
        if step > 0:
            start, stop = min(max(start, 0), size), min(max(stop, 0), size)
            index[axis] = slice(start, max(start, stop), step)
        else:
            start = min(max(start, 0), size - 1)
            stop = min(max(stop, -1), size - 1)
            index[axis] = slice(start, None if stop < 0 else stop, step)
            if stop >= start:
                index[axis] = slice(0, 0, 1)
    return moved(_indexed, x, tuple(index))


def _indexed(x: Tensor, index: tuple[Any, ...]) -> Tensor:
    """A view, or a part; one of the axes may have a length that the data decide."""
    return x[index]


def expand(x: Tensor, shape: Tensor) -> Tensor:
    """Expand: broadcast against a shape, both ways."""
    return moved(np.broadcast_to, x, both_ways(x.shape, ints(shape)))


def both_ways(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that two broadcast to."""
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + tuple(a)
    right = (1,) * (rank - len(b)) + tuple(b)
    return tuple([right[k] if left[k] == 1 else left[k] for k in range(rank)])


def tile(x: Tensor, repeats: Tensor) -> Tensor:
    """Tile."""
    return np.tile(x, ints(repeats))


def pad(
    x: Tensor,
    widths: Tensor = None,
    constant: Tensor = None,
    along: Tensor = None,
    *,
    mode: str = "constant",
    pads: tuple[int, ...] | None = None,
    value: float = 0.0,
) -> Tensor:
    """Pad: before and after each axis; a negative width cuts off."""
    wanted = ints(widths) if pads is None else pads
    rank = len(x.shape)
    axes = tuple(range(rank)) if along is None else tuple([placed(a, rank) for a in ints(along)])
    edges = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        edges[axis] = (wanted[k], wanted[k + len(axes)])
    for axis in range(rank):
        before, after = edges[axis]
        if before < 0 or after < 0:
            x = part(x, axis, max(-before, 0), x.shape[axis] - max(-after, 0))
    around = tuple([(max(a, 0), max(b, 0)) for a, b in edges])
    if mode == "constant":
        return filled_around(x, around, value if constant is None else np.reshape(constant, ()))
    if mode not in ("edge", "reflect", "wrap"):
        raise OnnxError(f"Pad: the mode {mode!r} is unknown")
    return np.pad(x, around, mode=mode)  # type: ignore[call-overload]


def filled_around(x: Tensor, around: tuple[tuple[int, int], ...], fill: Tensor) -> Tensor:
    """A tensor with a value around it, which the program may compute."""
    for axis, (before, after) in enumerate(around):
        if before + after:
            sides = []
            for n in (before, after):
                shape = (*x.shape[:axis], n, *x.shape[axis + 1 :])
                sides.append(np.broadcast_to(np.asarray(fill).astype(x.dtype), shape))
            x = np.concatenate([sides[0], x, sides[1]], axis)
    return x


def constant_of_shape(shape: Tensor, *, value: Tensor = None) -> Tensor:
    """ConstantOfShape: f32 zeros where no value is given."""
    if value is None:
        return np.zeros(ints(shape), np.float32)
    if isinstance(value, Coded):
        return Coded(np.full(ints(shape), value.bits.reshape(-1)[0], value.bits.dtype), value.kind)
    sizes = ints(shape)
    if value.dtype.kind in "iu" and len(sizes) == 1 and sizes[0] <= SHORT:
        return np.tile(value.reshape(-1), sizes)  # stays known: it may be a part of a shape
    return np.full(sizes, value.reshape(-1)[0], value.dtype)


def counted_range(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """Range: start, start + delta, ... below the limit."""
    first, last, step = np.reshape(start, ()), np.reshape(limit, ()), np.reshape(delta, ())
    count = int(np.maximum(np.ceil((last.astype(np.float64) - first) / step), 0))
    if start.dtype.kind in "iu" and count <= SHORT:  # may be axes, and stays known
        return np.array([int(first) + k * int(step) for k in range(count)], start.dtype)
    return first + np.arange(count).astype(start.dtype) * step


def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """EyeLike: ones on the k-th diagonal of a matrix of the same shape."""
    kind = x.dtype if dtype is None else numpy_type(dtype)
    return np.eye(x.shape[0], x.shape[1], k).astype(kind)


def triangle(x: Tensor, k: Tensor = None, *, upper: int = 1) -> Tensor:
    """Trilu: the upper or lower triangle of matrices, from the k-th diagonal."""
    diagonal = 0 if k is None else int(np.reshape(k, ()))
    rows, columns = x.shape[-2:]
    place = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    kept = place >= diagonal if upper else place <= diagonal
    return np.where(kept, x, 0).astype(x.dtype)


def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """DepthToSpace: channels to blocks of an image [N, C, H, W]."""
    n, c, h, w = x.shape
    b = blocksize
    if mode == "CRD":
        parts = np.transpose(x.reshape(n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3))
    else:
        parts = np.transpose(x.reshape(n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2))
    return parts.reshape(n, c // (b * b), h * b, w * b)


def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """SpaceToDepth: blocks of an image [N, C, H, W] to channels."""
    n, c, h, w = x.shape
    b = blocksize
    parts = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    return np.transpose(parts, order).reshape(n, c * b * b, h // b, w // b)


def center_crop_pad(x: Tensor, shape: Tensor, *, axes: tuple[int, ...] | None = None) -> Tensor:
    """CenterCropPad: the middle of each axis, or zeros around it, to a given size."""
    rank = len(x.shape)
    wanted = ints(shape)
    for k, axis in enumerate(range(rank) if axes is None else axes):
        size, new = x.shape[axis], wanted[k]
        if new < size:
            start = (size - new) // 2
            x = part(x, axis, start, start + new)
        elif new > size:
            before = (new - size) // 2
            edges = [(0, 0)] * rank
            edges[placed(axis, rank)] = (before, new - size - before)
            x = filled_around(x, tuple(edges), np.zeros((), x.dtype))
    return x


SHAPE_ROWS: Rows = {
    "CenterCropPad": Row(center_crop_pad, known=(1,), wide=False),
    "Concat": Row(concat, wide=False),
    "ConstantOfShape": Row(constant_of_shape, known=(0,), wide=False),
    "DepthToSpace": Row(depth_to_space, wide=False),
    "Expand": Row(expand, known=(1,), wide=False),
    "EyeLike": Row(eye_like, shape_only=True, wide=False),
    "Flatten": Row(flatten, wide=False),
    "Pad": Row(pad, known=(1, 3), wide=False),
    "Range": Row(counted_range, known=(0, 1, 2), wide=False),
    "Reshape": Row(reshape, known=(1,), wide=False),
    "Shape": Row(shape_of, shape_only=True, wide=False),
    "Size": Row(size_of, shape_only=True, wide=False),
    "Slice": Row(slices, known=(1, 2, 3, 4), wide=False),
    "SpaceToDepth": Row(space_to_depth, wide=False),
    "Split": Row(split, known=(1,), several=True, counted=True, wide=False),
    "Squeeze": Row(squeeze, known=(1,), wide=False),
    "Tile": Row(tile, known=(1,), wide=False),
    "Transpose": Row(transpose, wide=False),
    "Trilu": Row(triangle, known=(1,), wide=False),
    "Unsqueeze": Row(unsqueeze, known=(1,), wide=False),
}
