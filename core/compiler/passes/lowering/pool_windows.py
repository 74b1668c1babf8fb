"""Pools and their gradients in a block: what is to be known to write their windows out.

A pool is a maximum over small windows whose gradient asks which elements tied for it. From there
what each window gets goes to those that tie, back through the cut that left out what filled no
window and through the mask of a rectifier, and is summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod

from ...ir import Block, DType, Op, Value
from .readers import Readers

Shape = tuple[int, ...]
#: Smaller tensors stay as they are.
SIZE_MIN = 1024
#: The most places of a window, and operations of all of them together: a loop has so many.
PLACES_MAX = 9
OPS_MAX = 76
#: Operations of each place to find the maximum and the ties.
_TIE_OPS = 7
#: What costs so little that windows compute it even if something else needs it, too.
_CHEAP = frozenset(
    ("add", "sub", "mul", "neg", "abs", "max", "min", "select", "le", "lt", "eq", "ne")
)


def is_pool(op: Op) -> bool:
    """Whether an operation takes the maximum of each of many small windows."""
    if op.name != "reduce_max" or op.result.dtype is not DType.F32:
        return False
    x, axes = op.operands[0], op.attrs["axes"]
    places = prod(x.shape[a] for a in axes)
    # The innermost axis is whole, so that what is next to one another stays so.
    inner = 0 not in axes and x.tensor.rank - 1 not in axes
    apart = not any(a + 1 in axes for a in axes)
    return inner and apart and 1 < places <= PLACES_MAX and x.tensor.size >= SIZE_MIN


@dataclass(frozen=True, slots=True)
class Part:
    """Elements start, start + step, ... of a tensor along each axis, up to stop."""

    start: Shape
    stop: Shape
    step: Shape

    @property
    def shape(self) -> Shape:
        axes = zip(self.start, self.stop, self.step, strict=True)
        return tuple(-(-(stop - start) // step) for start, stop, step in axes)

    def within(self, outer: Op) -> Part:
        """The same part of what was sliced without steps."""
        first = outer.attrs["start"]
        start, stop = (
            tuple(n + o for n, o in zip(ends, first, strict=True))
            for ends in (self.start, self.stop)
        )
        return Part(start, stop, self.step)


@dataclass(slots=True, eq=False)
class Pool:
    """One pool."""

    op: Op
    """Its maximum."""
    image: Value
    """What falls into windows, before it was split into them."""
    shape: Shape
    """Of the image."""
    sizes: Shape
    """Of a window, along the image's axes."""
    ties: set[Value] = field(default_factory=set)
    """The comparisons of all elements with their window's maximum."""
    rectified: tuple[Value, Value] | None = None
    """What the image was cut out of, if that is max(x, 0), and the mask of x <= 0."""
    factors: list[Value] = field(default_factory=list)
    """Values that the gradient is multiplied by before it is summed."""
    late: bool = False
    """Whether ties matter only where the maximum is positive: then windows are of what is not yet
    rectified, and their maximum is.
    """

    @property
    def windows(self) -> Shape:
        return tuple(n // k for n, k in zip(self.shape, self.sizes, strict=True))

    @property
    def kept(self) -> Shape:
        """The axes of what is reduced that say which window."""
        axes = self.op.attrs["axes"]
        return tuple(a for a in range(self.op.operands[0].tensor.rank) if a not in axes)

    @property
    def places(self) -> Iterator[Part]:
        """Those of a window, in the order of its elements."""
        for start in product(*(range(k) for k in self.sizes)):
            yield Part(start, self.shape, self.sizes)


@dataclass(frozen=True, slots=True)
class Routed:
    """A pool's gradient on its way back."""

    pool: Pool
    """The pool."""
    given: Value
    """What each window gets, before it goes to those that tie."""
    tie: Value
    """The comparison that finds the ties."""
    clamped: bool
    """Whether the pool's rectifier has been passed."""
    pad: Op | None
    """The operation that put back what no window had, if any."""


class Pools:
    """The pools of one block."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.readers = Readers(block)
        self.place = {op: i for i, op in enumerate(block.ops)}
        self.pools: dict[Op, Pool] = {}
        self.by_tie: dict[Value, Pool] = {}
        self.routed: dict[Value, Routed] = {}
        for op in block.ops:
            if is_pool(op):
                self._find(op)
        for op in block.ops:
            self._route(op)
        for pool in self.pools.values():
            pool.factors = self._factors(pool)
            pool.late = pool.rectified is not None and self._is_late(pool)

    def _find(self, op: Op) -> None:
        """Enters a maximum if its gradient needs the ties for it."""
        x, axes = op.operands[0], op.attrs["axes"]
        kept = tuple(a for a in range(x.tensor.rank) if a not in axes)
        shape = tuple(x.shape[a] * (x.shape[a + 1] if a + 1 in axes else 1) for a in kept)
        sizes = tuple(x.shape[a + 1] if a + 1 in axes else 1 for a in kept)
        made = self.readers.made.get(x)
        image = made.operands[0] if made is not None and made.name == "reshape" else x
        if image.shape != shape:
            return
        pool = Pool(op, image, shape, sizes)
        for spread in self.readers.of(op.result):
            if spread.name == "broadcast" and spread.attrs["dims"] == kept:
                ties = (u for u in self.readers.of(spread.result) if u.name == "eq")
                pool.ties |= {u.result for u in ties if x in u.operands}
        count = prod(sizes)
        if not pool.ties or count * (self._cone([image]) + _TIE_OPS) > OPS_MAX:
            return
        pool.rectified = self._rectified(image)
        self.pools[op] = pool
        self.by_tie.update(dict.fromkeys(pool.ties, pool))

    def _rectified(self, image: Value) -> tuple[Value, Value] | None:
        """What an image was cut out of, and its mask, if that is max(x, 0)."""
        whole = image
        made = self.readers.made.get(whole)
        if made is not None and is_crop(made):
            whole = made.operands[0]
            made = self.readers.made.get(whole)
        if made is None or made.name != "select":
            return None
        mask, low, x = made.operands
        below = self.readers.made.get(mask)
        if below is None or below.name != "le" or below.operands[0] is not x:
            return None
        zeros = [self.readers.number(v) for v in (low, below.operands[1])]
        return (whole, mask) if zeros == [0, 0] else None

    def _route(self, op: Op) -> None:
        """Enters a value that is a pool's gradient."""
        if op.name in ("reshape", "pad") and op.operands[0] in self.routed:
            before = self.routed[op.operands[0]]
            pool = before.pool
            if op.name == "reshape" and op.result.shape == pool.shape:
                self.routed[op.result] = before
            elif op.name == "pad" and before.pad is None and self._uncrops(pool, op):
                self.routed[op.result] = Routed(pool, before.given, before.tie, False, op)
        if op.name != "select" or op.result.dtype is not DType.F32:
            return
        mask, one, other = op.operands
        if mask in self.by_tie and self.readers.number(other) == 0:
            spread = self.readers.made.get(one)
            pool = self.by_tie[mask]
            if spread is None or spread.name != "broadcast":
                return
            (given,) = spread.operands
            if given.shape == pool.windows and spread.attrs["dims"] == pool.kept:
                self.routed[op.result] = Routed(pool, given, mask, False, None)
        elif other in self.routed and self.readers.number(one) == 0:
            before = self.routed[other]
            whole = before.pool.rectified
            if whole and whole[1] is mask and op.result.shape == whole[0].shape:
                routed = Routed(before.pool, before.given, before.tie, True, before.pad)
                self.routed[op.result] = routed

    def _uncrops(self, pool: Pool, op: Op) -> bool:
        """Whether a `pad` puts zeros where the image was cut."""
        crop = self.readers.made.get(pool.image)
        if crop is None or not is_crop(crop) or self.readers.number(op.operands[1]) != 0:
            return False
        whole = crop.operands[0]
        return (
            op.operands[0].shape == pool.shape
            and op.result.shape == whole.shape
            and op.attrs["low"] == crop.attrs["start"]
            and not any(op.attrs["interior"])
        )

    def _factors(self, pool: Pool) -> list[Value]:
        """What the gradient is multiplied by before its sum over windows, where windows have it."""
        found: list[Value] = []
        for op in self.block.ops:
            summed = self.summed(op)
            if summed is None or summed[0].pool is not pool or summed[1] is None:
                continue
            factor = summed[1]
            made = self.readers.made.get(factor)
            early = made is None or self.place[made] < self.place[pool.op]
            if factor in found or not early:
                continue
            values = [pool.image, *found, factor]
            ops = prod(pool.sizes) * (self._cone(values) + _TIE_OPS + 2 * len(found) + 2)
            if ops <= OPS_MAX:
                found.append(factor)
        return found

    def summed(self, op: Op) -> tuple[Routed, Value | None] | None:
        """Whether a sum is of a pool's gradient, times a factor if there is one."""
        if op.name != "reduce_sum" or op.result.dtype is not DType.F32:
            return None
        (x,) = op.operands
        routed, factor = self.routed.get(x), None
        if routed is None:
            made = self.readers.made.get(x)
            if made is None or made.name != "mul":
                return None
            a, b = made.operands
            routed, factor = (self.routed[a], b) if a in self.routed else (self.routed.get(b), a)
        if routed is None:
            return None
        pool = routed.pool
        split = {a for a, k in enumerate(pool.sizes) if k > 1}
        whole = x.shape == (pool.shape if routed.pad is None else routed.pad.result.shape)
        return (routed, factor) if whole and split <= set(op.attrs["axes"]) else None

    def _is_late(self, pool: Pool) -> bool:
        """Whether all readers of ties end in the rectifier's mask."""
        of = self.readers.of
        given = {r.given for r in self.routed.values() if r.pool is pool and r.clamped}
        spread = [u for v in given for u in of(v)]
        seen = {*pool.ties, *given, *(u.result for u in spread)}
        for user in (u for tie in pool.ties for u in of(tie)):
            counts = of(user.result) if user.name == "convert" else []
            if counts and all(self.counted(c) is pool for c in counts):
                seen.update((user.result, *(c.result for c in counts)))
                if not all(u.result in given for c in counts for u in of(c.result)):
                    return False
            elif not self._ends_clamped(user):
                return False
        alone = seen.isdisjoint(self.block.results)
        return alone and all(u.name == "broadcast" and self._only_routed(u, pool) for u in spread)

    def _only_routed(self, spread: Op, pool: Pool) -> bool:
        users = self.readers.of(spread.result)
        return all(u.name == "select" and u.operands[0] in pool.ties for u in users)

    def _ends_clamped(self, op: Op) -> bool:
        routed = self.routed.get(op.result) if len(op.results) == 1 else None
        if routed is None or op.result in self.block.results:
            return False
        return routed.clamped or all(self._ends_clamped(u) for u in self.readers.of(op.result))

    def _cone(self, values: list[Value]) -> int:
        """Operations that these values take from what is stored."""
        seen: set[Value] = set()
        left, count = list(values), 0
        while left:
            v = left.pop()
            op = self.readers.made.get(v)
            if v in seen or op is None:
                continue
            seen.add(v)
            if self.again(op):
                count += 1
                left += op.operands
            elif is_crop(op):
                left += op.operands
        return count

    def again(self, op: Op) -> bool:
        """Whether the windows compute an operation themselves."""
        return (
            op.name in _CHEAP
            and all(v.shape == op.result.shape for v in op.operands)
            and not self.readers.is_stored(op.result)
        )

    def counted(self, op: Op) -> Pool | None:
        """The pool whose ties a sum counts."""
        made = self.readers.made.get(op.operands[0]) if op.name == "reduce_sum" else None
        if made is None or made.name != "convert" or made.result.dtype is not DType.F32:
            return None
        pool = self.by_tie.get(made.operands[0])
        return pool if pool is not None and op.attrs["axes"] == pool.op.attrs["axes"] else None


def is_crop(op: Op) -> bool:
    """Whether an operation cuts out what is side by side."""
    return op.name == "slice" and all(s == 1 for s in op.attrs["step"])
