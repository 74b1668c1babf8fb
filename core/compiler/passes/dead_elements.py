"""Dead-element elimination: a product of which only slices are read computes what they read.

    %2: f32[16,64,8] = dot(%0, %1) {...}             %2: f32[16,1,4] = slice(%0) {...}
    %3: f32[16,64,8] = tanh(%2)                =>    %3: f32[16,1,8] = dot(%2, %1) {...}
    %4: f32[16,1,8] = slice(%3) {...}                %4: f32[16,1,8] = tanh(%3)

A classifier on a transformer's first token reads one row of the last block: its projections and its
feed-forward part are computed for that row alone, and so are their derivatives, because this comes
before reverse mode.

Demand is a box, an interval per axis. It goes backwards from the results, through operations of
which each element needs a box of each operand; a value that several operations read has the least
box that holds theirs. What is computed is kept exactly, but for how a product of fewer rows rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from ...common.errors import Loc
from ..ir import Block, Op, TensorType, Value
from ..primitives import PRIMITIVES, infer

#: For each axis the first element that is needed, and the first after the last.
Box: TypeAlias = "tuple[tuple[int, int], ...]"

#: Operations whose work is worth a slice in front of them.
_PRODUCTS = ("dot", "attention")
_REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
#: What a copied element costs, in operations of a product.
_COPY_COST = 8
#: So much of the products must be saved: the rows that are left no longer follow one another.
_SAVED_MIN = 1 / 8


@dataclass(frozen=True, slots=True)
class _Need:
    """What an operation is computed for."""

    results: tuple[Box, ...]
    """Of each result: what is asked for, or more."""
    operands: tuple[Box, ...]
    attrs: Mapping[str, Any]
    """The operation's attributes for these operands."""


def drop_dead_elements(block: Block) -> Block:
    """The block without what no result needs of its products; the same object where that is none.

    Inside regions too. Its parameters stay. Operations that nothing reads are left to `dce`.

    >>> from delian.core.compiler.ir import Builder, DType, TensorType
    >>> b = Builder([TensorType(DType.F32, (64, 8)), TensorType(DType.F32, (8, 8))])
    >>> none = {"batch_a": (), "batch_b": ()}
    >>> y = b("dot", *b.params, contract_a=(1,), contract_b=(0,), **none)
    >>> first = b("slice", y, start=(0, 0), stop=(1, 8), step=(1, 1))
    >>> after = drop_dead_elements(b.finish([first]))
    >>> [(op.name, str(op.results[0].type)) for op in after.ops]
    [('slice', 'f32[1,8]'), ('dot', 'f32[1,8]'), ('slice', 'f32[1,8]')]
    """
    ops = [op.with_regions(map(drop_dead_elements, op.regions)) for op in block.ops]
    if any(new is not old for new, old in zip(ops, block.ops, strict=True)):
        block = Block(block.params, ops, block.results)
    if not any(op.name == "slice" for op in ops):
        return block
    needs = _needs(block)
    if not any(op.name in _PRODUCTS and op in needs for op in ops):
        return block
    made = _Rebuilt()
    for op in block.ops:
        need = needs.get(op)
        if need is None:
            made.keep(op)
        else:
            made.narrow(op, need)
    results = tuple([made.whole(result) for result in block.results])
    return Block(block.params, made.ops, results) if made.pays else block


def _whole(value: Value) -> Box:
    return tuple((0, size) for size in value.shape)


def _hull(a: Box, b: Box) -> Box:
    return tuple((min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True))


def _sizes(box: Box) -> tuple[int, ...]:
    return tuple(high - low for low, high in box)


def _needs(block: Block) -> dict[Op, _Need]:
    """Of each operation that is needed in part, and of each slice, what is needed."""
    asked: dict[Value, Box] = {}
    needs: dict[Op, _Need] = {}

    def ask(value: Value, box: Box) -> None:
        before = asked.get(value)
        asked[value] = box if before is None else _hull(before, box)

    for result in block.results:
        if isinstance(result.type, TensorType):
            ask(result, _whole(result))
    for op in reversed(block.ops):
        need = _need(op, asked)
        in_part = need is not None and need.results != tuple(map(_whole, op.results))
        if need is not None and (in_part or op.name == "slice"):
            needs[op] = need
        for i, value in enumerate(op.operands):
            if isinstance(value.type, TensorType):
                ask(value, _whole(value) if need is None else need.operands[i])
    return needs


def _need(op: Op, asked: Mapping[Value, Box]) -> _Need | None:
    """None: it is computed as a whole."""
    rule = _RULES.get(op.name) or (_elementwise if PRIMITIVES[op.name].c is not None else None)
    if rule is None:
        return None
    boxes = [asked.get(r) for r in op.results]
    read = [r for r, box in zip(op.results, boxes, strict=True) if box is not None]
    if not read or 0 in read[0].shape:
        return None
    return rule(op, boxes)


# Rules: an operation and the box that is asked of each result, None where nothing is. They give
# None where it does not pay to compute less.

_Rule: TypeAlias = Callable[[Op, "Sequence[Box | None]"], "_Need | None"]


def _only(boxes: Sequence[Box | None]) -> Box:
    (box,) = boxes
    assert box is not None
    return box


def _elementwise(op: Op, boxes: Sequence[Box | None]) -> _Need | None:
    box = _only(boxes)
    if any(v.shape != op.results[0].shape for v in op.operands):
        return None
    return _Need((box,), (box,) * len(op.operands), op.attrs)


def _broadcast(op: Op, boxes: Sequence[Box | None]) -> _Need:
    box, dims = _only(boxes), op.attrs["dims"]
    x = op.operands[0]
    of = tuple((0, 1) if n == 1 else box[d] for n, d in zip(x.shape, dims, strict=True))
    return _Need((box,), (of,), {"shape": _sizes(box), "dims": dims})


def _transpose(op: Op, boxes: Sequence[Box | None]) -> _Need:
    box, perm = _only(boxes), op.attrs["perm"]
    return _Need((box,), (tuple(box[perm.index(k)] for k in range(len(perm))),), op.attrs)


def _slice(op: Op, boxes: Sequence[Box | None]) -> _Need:
    box, start, step = _only(boxes), op.attrs["start"], op.attrs["step"]
    of = tuple(
        (first + low * by, first + (high - 1) * by + 1)
        for (low, high), first, by in zip(box, start, step, strict=True)
    )
    return _Need((box,), (of,), op.attrs)


def _reshape(op: Op, boxes: Sequence[Box | None]) -> _Need:
    """Axes that are merged or split together are needed as a whole, unless the first one says."""
    box, x = list(_only(boxes)), op.operands[0]
    of = list(_whole(x))
    for before, after in _groups(x.shape, op.attrs["shape"]):
        first, *rest = after
        row = prod(op.attrs["shape"][k] for k in rest)
        inner = prod(x.shape[k] for k in before[1:])
        low, high = box[first][0] * row, box[first][1] * row
        if low % inner or high % inner:
            low, high, row = 0, inner * x.shape[before[0]], row
        of[before[0]] = (low // inner, high // inner)
        box[first] = (low // row, high // row)
        for k in rest:
            box[k] = (0, op.attrs["shape"][k])
    result = tuple(box)
    return _Need((result,), (tuple(of),), {"shape": _sizes(result)})


def _groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The axes of two shapes that hold the same elements, axes of size 1 left out."""
    left, right = [i for i, n in enumerate(a) if n != 1], [i for i, n in enumerate(b) if n != 1]
    groups = []
    while left:
        mine, yours = [left.pop(0)], [right.pop(0)]
        while (m := prod(a[i] for i in mine)) != (n := prod(b[i] for i in yours)):
            if m < n:
                mine.append(left.pop(0))
            else:
                yours.append(right.pop(0))
        groups.append((mine, yours))
    return groups


def _reduction(op: Op, boxes: Sequence[Box | None]) -> _Need:
    box, x, axes = _only(boxes), op.operands[0], op.attrs["axes"]
    kept = iter(box)
    of = tuple((0, n) if k in axes else next(kept) for k, n in enumerate(x.shape))
    return _Need((box,), (of,), op.attrs)


def _dot(op: Op, boxes: Sequence[Box | None]) -> _Need:
    """The result's axes are those of the batch, then the free ones of each operand."""
    box, attrs = _only(boxes), op.attrs
    place = len(attrs["batch_a"])
    operands = []
    for value, side in zip(op.operands, "ab", strict=True):
        of = list(_whole(value))
        for k, axis in enumerate(attrs[f"batch_{side}"]):
            of[axis] = box[k]
        taken = {*attrs[f"contract_{side}"], *attrs[f"batch_{side}"]}
        for axis in range(len(value.shape)):
            if axis not in taken:
                of[axis], place = box[place], place + 1
        operands.append(tuple(of))
    return _Need((box,), tuple(operands), attrs)


def _attention(op: Op, boxes: Sequence[Box | None]) -> _Need | None:
    """Fewer sequences, queries or heads. The last query of `causal` may look at all keys."""
    asked = [box[:3] for box in boxes if box is not None]
    both = asked[0] if len(asked) == 1 else _hull(*asked)
    q, k, v, *masks = op.operands
    n, t, h = both
    if op.attrs["causal"]:
        t = (t[0], q.shape[1])
    keys, channels = (0, k.shape[1]), (0, v.shape[3])
    seen = tuple(
        tuple((0, 1) if size == 1 else b for size, b in zip(m.shape, (n, h, t, keys), strict=True))
        for m in masks
    )
    operands = ((n, t, h, (0, q.shape[3])), (n, keys, h, (0, k.shape[3])), (n, keys, h, channels))
    return _Need(((n, t, h, channels), (n, t, h)), (*operands, *seen), op.attrs)


_RULES: Mapping[str, _Rule] = {
    "broadcast": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "reshape": _reshape,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "dot": _dot,
    "attention": _attention,
}


class _Rebuilt:
    """The operations as they are needed, and whether that pays."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._before = self._after = 0  # operations of the products, and of copies
        self._made: dict[Value, tuple[Value, Box]] = {}
        self._cut: dict[tuple[Value, Box], Value] = {}

    @property
    def pays(self) -> bool:
        return self._before - self._after > _SAVED_MIN * self._before

    def there(self, value: Value) -> tuple[Value, Box]:
        """What stands for a value, and which elements of it that holds."""
        return self._made.get(value) or (value, _whole(value))

    def part(self, value: Value, box: Box, locs: tuple[Loc, ...]) -> Value:
        """A box of a value."""
        found, there = self.there(value)
        if there == box:
            return found
        if (value, box) not in self._cut:
            self._after += _COPY_COST * prod(_sizes(box))
            attrs = _within(box, (1,) * len(box), there)
            self._cut[value, box] = self._add("slice", (found,), attrs, locs).results[0]
        return self._cut[value, box]

    def whole(self, value: Value, locs: tuple[Loc, ...] = ()) -> Value:
        return (
            self.part(value, _whole(value), locs) if isinstance(value.type, TensorType) else value
        )

    def keep(self, op: Op) -> None:
        """An operation that is needed as a whole."""
        operands = tuple([self.whole(v, op.locs) for v in op.operands])
        if operands != op.operands:
            op = Op(op.name, operands, op.results, op.attrs, op.regions, op.locs)
        self.ops.append(op)

    def narrow(self, op: Op, need: _Need) -> None:
        if op.name == "slice":
            operand, there = self.there(op.operands[0])
            less = self._add(
                "slice", (operand,), _within(need.operands[0], op.attrs["step"], there), op.locs
            )
        else:
            parts = zip(op.operands, need.operands, strict=True)
            operands = tuple([self.part(v, box, op.locs) for v, box in parts])
            less = self._add(op.name, operands, need.attrs, op.locs)
        if op.name in _PRODUCTS:
            cost = PRIMITIVES[op.name].cost
            self._before, self._after = self._before + cost(op), self._after + cost(less)
        for old, new, box in zip(op.results, less.results, need.results, strict=True):
            self._made[old] = new, box

    def _add(
        self,
        name: str,
        operands: tuple[Value, ...],
        attrs: Mapping[str, Any],
        locs: tuple[Loc, ...],
    ) -> Op:
        results = tuple([Value(t) for t in infer(name, operands, attrs, ())])
        self.ops.append(Op(name, operands, results, attrs, (), locs))
        return self.ops[-1]


def _within(box: Box, step: tuple[int, ...], there: Box) -> dict[str, tuple[int, ...]]:
    """The attributes of the slice that takes a box, every `step`th element, of one around it."""
    pairs = tuple(zip(box, there, strict=True))
    start = tuple([low - first for (low, _), (first, _) in pairs])
    stop = tuple([high - first for (_, high), (first, _) in pairs])
    return {"start": start, "stop": stop, "step": step}
