"""Rewriting rules for operations that move elements or reduce over axes.

`RULES` and `MULTI_RULES` list them. The canonical forms that the rest may rely on: no identity
reshape, broadcast, transpose, slice or pad; at most one of a kind in a row; a broadcast or
transpose that only adds or moves axes of size 1 is a reshape; a `dot` reads through transposes of
its operands, and a transpose of its result that swaps the two operands' axes is a swapped `dot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..ir import Op, TensorType, Value
from .rewrite import MultiRule, Rewriter, Rule


def _constant(r: Rewriter, op: Op) -> Value | None:
    array = op.attrs["value"]
    if array.size <= 1 or array.flat[0].tobytes() != array.flat[-1].tobytes():
        return None
    first = array.flat[0]
    same = array.tobytes() == first.tobytes() * array.size
    return r.full(op.results[0].tensor, first) if same else None


def _reshape(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    shape = op.attrs["shape"]
    if x.shape == shape:
        return x
    if inner := r.origin(x, "reshape"):
        return r("reshape", inner.operands[0], shape=shape)
    if inner := r.origin(x, "broadcast"):
        source = inner.operands[0]
        if source.tensor.size == 1 and x.tensor.size != 1:
            scalar = r("reshape", source, shape=())
            return r("broadcast", scalar, shape=shape, dims=())
        return _move_unit_axes(r, source, x.shape, inner.attrs["dims"], shape)
    return None


def _move_unit_axes(
    r: Rewriter,
    source: Value,
    before: tuple[int, ...],
    dims: tuple[int, ...],
    after: tuple[int, ...],
) -> Value | None:
    """A broadcast whose result gains or loses axes of size 1: one broadcast to the new shape."""
    if [d for d in before if d != 1] != [d for d in after if d != 1] or source.tensor.size == prod(
        after
    ):
        return None
    places = iter([i for i, d in enumerate(after) if d != 1])
    where = {axis: next(places) for axis, d in enumerate(before) if d != 1}
    kept = [(k, where[axis]) for k, axis in enumerate(dims) if axis in where]
    small = r("reshape", source, shape=tuple(source.shape[k] for k, _ in kept))
    return r("broadcast", small, shape=after, dims=tuple(axis for _, axis in kept))


def _broadcast(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    shape, dims = op.attrs["shape"], op.attrs["dims"]
    if x.shape == shape:
        return x
    if x.tensor.size == prod(shape):
        return r("reshape", x, shape=shape)
    if inner := r.origin(x, "broadcast"):
        through = tuple(dims[d] for d in inner.attrs["dims"])
        return r("broadcast", inner.operands[0], shape=shape, dims=through)
    if any(size == 1 for size in x.shape):
        # Axes of size 1 say nothing: the broadcast starts from the others.
        kept = [k for k, size in enumerate(x.shape) if size != 1]
        small = r("reshape", x, shape=tuple(x.shape[k] for k in kept))
        return r("broadcast", small, shape=shape, dims=tuple(dims[k] for k in kept))
    return None


def _transpose(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    perm: tuple[int, ...] = op.attrs["perm"]
    if perm == tuple(range(len(perm))):
        return x
    moved = [p for p in perm if x.shape[p] != 1]
    if moved == sorted(moved):
        return r("reshape", x, shape=op.results[0].shape)
    if inner := r.origin(x, "transpose"):
        first = inner.attrs["perm"]
        return r("transpose", inner.operands[0], perm=tuple(first[p] for p in perm))
    if inner := r.origin(x, "broadcast"):
        # Each axis of the source goes where the permutation sends it; their order may change on the
        # way.
        where = {p: i for i, p in enumerate(perm)}
        targets = [where[d] for d in inner.attrs["dims"]]
        order = tuple(sorted(range(len(targets)), key=targets.__getitem__))
        small = r("transpose", inner.operands[0], perm=order)
        return r("broadcast", small, shape=op.results[0].shape, dims=tuple(sorted(targets)))
    inner = r.origin(x, "dot")
    if inner is not None and r.used_once(x):
        return _swap_dot(r, inner, perm)
    return None


def _swap_dot(r: Rewriter, dot: Op, perm: tuple[int, ...]) -> Value | None:
    """A transposed dot as the dot of the swapped operands, when that is the permutation."""
    a, b = dot.operands
    batch = len(dot.attrs["batch_a"])
    free_a = len(a.shape) - batch - len(dot.attrs["contract_a"])
    rank = len(perm)
    if perm != (*range(batch), *range(batch + free_a, rank), *range(batch, batch + free_a)):
        return None
    return r("dot", b, a, **_swapped(dot))


def _swapped(dot: Op) -> dict[str, tuple[int, ...]]:
    names = ("contract_a", "contract_b", "batch_a", "batch_b")
    return {
        n: dot.attrs[m]
        for n, m in zip(names, (names[1], names[0], names[3], names[2]), strict=True)
    }


def _dot(r: Rewriter, op: Op) -> Value | None:
    operands = list(op.operands)
    attrs = dict(op.attrs)
    for i, side in enumerate("ab"):
        made = r.origin(operands[i], "transpose")
        if made is None:
            continue
        perm = made.attrs["perm"]
        used = {*attrs[f"contract_{side}"], *attrs[f"batch_{side}"]}
        free = [perm[k] for k in range(len(perm)) if k not in used]
        if free == sorted(free):
            operands[i] = made.operands[0]
            for kind in ("contract", "batch"):
                attrs[f"{kind}_{side}"] = tuple(perm[k] for k in attrs[f"{kind}_{side}"])
    if operands == list(op.operands):
        return None
    return r("dot", *operands, **attrs)


def _reverse(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    axes = tuple(a for a in op.attrs["axes"] if x.shape[a] > 1)
    if not axes:
        return x
    if axes != op.attrs["axes"]:
        return r("reverse", x, axes=axes)
    inner = r.origin(x, "reverse")
    if inner is not None:
        both = set(axes) ^ set(inner.attrs["axes"])
        return r("reverse", inner.operands[0], axes=tuple(sorted(both)))
    return None


def _slice(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    start, stop, step = op.attrs["start"], op.attrs["stop"], op.attrs["step"]
    if op.results[0].shape == x.shape and all(
        s == 1 or d <= 1 for s, d in zip(step, x.shape, strict=True)
    ):
        return x
    if inner := r.origin(x, "slice"):
        return _slice_of_slice(r, op, inner)
    if inner := r.origin(x, "concat"):
        axis, offset = inner.attrs["axis"], 0
        for piece in inner.operands:
            end = offset + piece.shape[axis]
            if offset <= start[axis] and stop[axis] <= end:
                lo = _replaced(start, axis, start[axis] - offset)
                hi = _replaced(stop, axis, stop[axis] - offset)
                return r("slice", piece, start=lo, stop=hi, step=step)
            offset = end
    if inner := r.origin(x, "pad"):
        source, low = inner.operands[0], inner.attrs["low"]
        inside = all(
            i == 0 and b <= a and z - b <= d
            for a, z, b, i, d in zip(
                start, stop, low, inner.attrs["interior"], source.shape, strict=True
            )
        )
        if inside:
            lo = tuple(a - b for a, b in zip(start, low, strict=True))
            hi = tuple(z - b for z, b in zip(stop, low, strict=True))
            return r("slice", source, start=lo, stop=hi, step=step)
    if inner := r.origin(x, "broadcast"):
        return _slice_of_broadcast(r, op, inner)
    return None


def _slice_of_broadcast(r: Rewriter, op: Op, made: Op) -> Value:
    source, dims, shape = made.operands[0], made.attrs["dims"], op.results[0].shape
    if all(made.attrs["shape"][d] == shape[d] for d in dims):
        return r("broadcast", source, shape=shape, dims=dims)
    # An axis of size 1 repeats, so it is taken whole.
    whole = {"start": 0, "stop": 1, "step": 1}
    attrs = {
        name: tuple(
            value if n == 1 else op.attrs[name][d] for n, d in zip(source.shape, dims, strict=True)
        )
        for name, value in whole.items()
    }
    small = r("slice", source, **attrs)
    return r("broadcast", small, shape=shape, dims=dims)


def _slice_of_slice(r: Rewriter, op: Op, inner: Op) -> Value:
    source = inner.operands[0]
    rows = zip(op.attrs["start"], op.attrs["step"], op.results[0].shape, strict=True)
    lo, hi, by = [], [], []
    for (a, s, n), first, stride in zip(
        rows, inner.attrs["start"], inner.attrs["step"], strict=True
    ):
        begin = first + a * stride
        lo.append(begin if n else 0)
        hi.append(begin + (n - 1) * s * stride + 1 if n else 0)
        by.append(s * stride if n > 1 else 1)
    return r("slice", source, start=tuple(lo), stop=tuple(hi), step=tuple(by))


def _replaced(items: tuple[int, ...], i: int, item: int) -> tuple[int, ...]:
    return (*items[:i], item, *items[i + 1 :])


def _pad(r: Rewriter, op: Op) -> Value | None:
    x = op.operands[0]
    if op.results[0].shape == x.shape:
        return x
    if x.tensor.size == 0 and (number := r.splat(op.operands[1])) is not None:
        return r.full(op.results[0].tensor, number)
    return None


def _concat(r: Rewriter, op: Op) -> Value | None:
    axis = op.attrs["axis"]
    kept = [v for v in op.operands if v.shape[axis]]
    if len(kept) == 1:
        return kept[0]
    if kept and len(kept) < len(op.operands):
        return r("concat", *kept, axis=axis)
    return None


def _dynamic_slice(r: Rewriter, op: Op) -> Value | None:
    x, *starts = op.operands
    sizes = op.attrs["sizes"]
    if sizes == x.shape:
        return x
    known = [r.splat(s) for s in starts]
    if any(k is None for k in known):
        return None
    lo = tuple(
        min(max(int(k), 0), d - n)
        for k, d, n in zip(known, x.shape, sizes, strict=True)
        if k is not None
    )
    hi = tuple(a + n for a, n in zip(lo, sizes, strict=True))
    return r("slice", x, start=lo, stop=hi, step=(1,) * len(lo))


def _dynamic_update(r: Rewriter, op: Op) -> Value | None:
    x, update = op.operands[:2]
    return update if update.shape == x.shape else None


def _indexed(r: Rewriter, op: Op) -> Value | None:
    """The operation without a clamp of its indices, which it clamps itself."""
    x, indices, *rest = op.operands
    last = x.shape[op.attrs["axis"]] - 1
    for name in ("min", "max"):
        made = r.origin(indices, name)
        bound = r.splat(made.operands[1]) if made is not None else None
        if made is None or bound is None:
            continue
        if int(bound) >= last if name == "min" else int(bound) <= 0:
            return r(op.name, x, made.operands[0], *rest, **op.attrs)
    return None


def _take(r: Rewriter, op: Op) -> Value | None:
    """One row at a known index is a slice."""
    x, indices = op.operands
    axis = op.attrs["axis"]
    known = r.splat(indices)
    if known is None or indices.tensor.size != 1 or x.shape[axis] == 0:
        return _indexed(r, op)
    i = min(max(int(known), 0), x.shape[axis] - 1)
    start, stop = (0,) * len(x.shape), x.shape
    row = r(
        "slice",
        x,
        start=_replaced(start, axis, i),
        stop=_replaced(stop, axis, i + 1),
        step=(1,) * len(stop),
    )
    return r("reshape", row, shape=op.results[0].shape)


def _reduce(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    axes = op.attrs["axes"]
    if not axes:
        return x
    if all(x.shape[a] == 1 for a in axes):
        return r("reshape", x, shape=op.results[0].shape)
    if inner := r.origin(x, op.name):
        left = [a for a in range(len(inner.operands[0].shape)) if a not in inner.attrs["axes"]]
        both = sorted({*inner.attrs["axes"], *(left[a] for a in axes)})
        return r(op.name, inner.operands[0], axes=tuple(both))
    if inner := r.origin(x, "broadcast"):
        return _reduce_broadcast(r, op, inner)
    if op.name != "reduce_sum":
        return None
    if inner := r.origin(x, "neg"):
        return r("neg", r("reduce_sum", inner.operands[0], axes=axes))
    inner = r.origin(x, "put_along_add")
    if inner is not None and inner.attrs["axis"] in axes and r.is_splat(inner.operands[0], 0):
        # However they were spread along the axis, the sum is that of the updates.
        return r("reduce_sum", inner.operands[2], axes=axes)
    return None


def _reduce_broadcast(r: Rewriter, op: Op, made: Op) -> Value | None:
    """A reduction over axes along which its operand repeats: a product with their size."""
    source, dims, shape = made.operands[0], made.attrs["dims"], made.attrs["shape"]
    axes = op.attrs["axes"]
    real = {d for d, size in zip(dims, source.shape, strict=True) if size == shape[d]}
    count = prod(shape[a] for a in axes if a not in real)
    if count == 1 or 0 in shape or op.name not in ("reduce_sum", "reduce_max", "reduce_min"):
        return None
    small = source
    gone = tuple(k for k, d in enumerate(dims) if d in axes)
    if gone:
        small = r(op.name, source, axes=gone)
    if op.name == "reduce_sum":
        number = np.asarray(count).astype(small.dtype.numpy)
        small = r("mul", small, r.full(small.tensor, number))
    left = [a for a in range(len(shape)) if a not in axes]
    place = {a: i for i, a in enumerate(left)}
    out = tuple(place[d] for d in dims if d not in axes)
    return r("broadcast", small, shape=op.results[0].shape, dims=out)


def _list_add(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    if r.origin(x, "list_empty"):
        return y
    if r.origin(y, "list_empty"):
        return x
    a, b = r.origin(x, "list_push"), r.origin(y, "list_push")
    if a is None or b is None or not (r.used_once(x) or r.used_once(y)):
        return None
    add = "add" if isinstance(a.operands[1].type, TensorType) else "list_add"
    rest = r("list_add", a.operands[0], b.operands[0])
    return r("list_push", rest, r(add, a.operands[1], b.operands[1]))


def _list_pop(r: Rewriter, op: Op) -> Sequence[Value] | None:
    (stack,) = op.operands
    if made := r.origin(stack, "list_push"):
        return made.operands
    if r.origin(stack, "list_empty"):
        element = op.results[1].type
        if isinstance(element, TensorType):
            return (stack, r.full(element, 0))
        return (stack, r("list_empty", type=element))
    return None


RULES: dict[str, Rule] = {
    "constant": _constant,
    "reshape": _reshape,
    "broadcast": _broadcast,
    "transpose": _transpose,
    "reverse": _reverse,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update": _dynamic_update,
    "take": _take,
    "take_along": _indexed,
    "put_add": _indexed,
    "put_along_add": _indexed,
    "dot": _dot,
    "list_add": _list_add,
    **{f"reduce_{kind}": _reduce for kind in ("sum", "max", "min", "prod")},
}
MULTI_RULES: dict[str, MultiRule] = {"list_pop": _list_pop}
