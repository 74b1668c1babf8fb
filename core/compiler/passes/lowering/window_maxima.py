"""Maxima of small windows, and in the same loop all that their gradient will ask of the windows.

A pool's gradient goes to the elements that tie for the maximum. To say which they are, all elements
had to be stored, compared and counted later, each a sweep over an image. But a window of few
elements is computed whole, as one elementwise operation for each of its places on views of what is
stored before; and the ties are one integer a window: a bit for each place, and above them how many.

    %2 = mul(%0, %1)                       places of %0 and %1, mul of each: %20, %21, ...
    %3 = reshape(%2)                       %4 = max(%20, max(%21, ...))
    %4 = reduce_max(%3)                    %22 = sum over places of select(eq(%2k, %4), 1 << k, 0)
    ...                               =>   ...
    %6 = eq(%3, broadcast(%4))             %6 = ne(and(broadcast(%22), [1, 2, 4, 8]), 0)

A rectifier before the pool is passed where the maximum is positive, so its mask is one of windows,
too. Sums of the gradient, or of it times another value, are sums over windows of what comes back to
each, times how many tied, or times the sum of the other value over those. So the image before the
pool is not stored, if it is not read elsewhere, and its gradient is computed where it is used.

The maxima, and the ties, are the same for any numbers; sums of finite ones round in another way.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...ir import Block, Builder, DType, Function, Op, TensorType, Value
from ..dce import dce
from .pool_windows import Part, Pool, Pools, Routed, is_crop, is_pool

#: Above the bits of the ties stands their number.
_COUNT_SHIFT = 16


def expand_pool_windows(function: Function) -> Function:
    """The function with the windows of its pools written out where their gradient needs them."""
    if not any(is_pool(op) for op in function.body.walk()):
        return function
    return function.with_body(_Writer(function.body).written_out())


class _Writer:
    """Writes one block again."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.found = Pools(block)
        #: What was made for a pool: bits, how many tie, which tie, sums of factors.
        self.bits: dict[Pool, Value] = {}
        self.counts: dict[Pool, Value] = {}
        self.early: dict[Pool, Value] = {}
        self.sums: dict[tuple[Pool, Value], Value] = {}
        #: What windows give on; sums that were made where the gradient was.
        self.given: dict[tuple[Pool, Value, bool], Value] = {}
        self.ready: dict[Op, Value] = {}

    def written_out(self) -> Block:
        b = Builder(self.block.params)
        mapping: dict[Value, Value] = {p: p for p in self.block.params}
        for op in self.block.ops:
            op = op.with_regions(_Writer(r).written_out() for r in op.regions)
            with b.at(op.locs):
                made = self._made(b, op, mapping)
                if made is not None:
                    mapping[op.result] = made
                    continue
                for v in op.operands:
                    if v in self.found.by_tie:
                        mapping[v] = self._tie(b, v)
            b.copy(op, mapping)
        block = b.finish([mapping[r] for r in self.block.results])
        return dce(block) if self.found.pools else block

    def _made(self, b: Builder, op: Op, mapping: dict[Value, Value]) -> Value | None:
        """What an operation is computed by instead, if anything."""
        if op in self.found.pools:
            return self._maximum(b, self.found.pools[op], mapping)
        if op.name == "reduce_sum":
            counted = self.found.counted(op)
            if counted is not None:
                # What reads the bits of whole windows before keeps the count out of their loop.
                tie = self.found.readers.made[op.operands[0]].operands[0]
                self.early[counted] = self._tie(b, tie)
                return self._count(b, counted)
            summed = self.found.summed(op)
            if summed is not None:
                return self.ready.get(op) or self._sum(b, op, *summed, mapping)
        if op.results and op.results[0] in self.found.routed:
            routed = self.found.routed[op.result]
            if routed.clamped:
                return self._gradient(b, op, routed, mapping)
        return None

    def _maximum(self, b: Builder, pool: Pool, mapping: dict[Value, Value]) -> Value:
        cache: dict[tuple[Value, Part], Value] = {}
        places = list(pool.places)
        image = pool.image
        if pool.late:
            assert pool.rectified is not None, "a late pool is rectified"
            image = self.found.readers.made[pool.rectified[1]].operands[0]
        elements = [
            self._element(b, image, self._in_whole(pool, image, p), mapping, cache) for p in places
        ]
        most = elements[0]
        for x in elements[1:]:
            most = _larger(b, most, x)
        code = TensorType(DType.I32, pool.windows)
        none = b.full(code, 0)
        ties = [b("eq", x, most) for x in elements]
        for k, tie in enumerate(ties):
            one = b("select", tie, b.full(code, (1 << k) + (1 << _COUNT_SHIFT)), none)
            self.bits[pool] = one if k == 0 else b("add", self.bits[pool], one)
        zero = b.full(most.tensor, 0.0)
        for factor in pool.factors:
            total: Value | None = None
            for tie, place in zip(ties, places, strict=True):
                at = self._in_whole(pool, factor, place)
                one = b("select", tie, self._element(b, factor, at, mapping, cache), zero)
                total = one if total is None else b("add", total, one)
            assert total is not None, "a window has elements"
            self.sums[pool, factor] = total
        if not pool.late:
            return most
        below = b("le", most, zero)  # where nothing comes back, there are no ties
        self.bits[pool] = b("select", below, none, self.bits[pool])
        return b("select", below, zero, most)

    def _in_whole(self, pool: Pool, value: Value, place: Part) -> Part:
        """A place of a window in a value that was not cut as the image was."""
        crop = self.found.readers.made.get(pool.image)
        return place if value.shape == pool.shape or crop is None else place.within(crop)

    def _element(
        self,
        b: Builder,
        value: Value,
        part: Part,
        mapping: dict[Value, Value],
        cache: dict[tuple[Value, Part], Value],
    ) -> Value:
        """A part of a value, from parts of what it is computed from."""
        if (value, part) in cache:
            return cache[value, part]
        op = self.found.readers.made.get(value)
        if op is not None and self.found.again(op):
            operands = [self._element(b, v, part, mapping, cache) for v in op.operands]
            made = b.emit(op.name, operands, op.attrs)[0]
        elif op is not None and is_crop(op):
            made = self._element(b, op.operands[0], part.within(op), mapping, cache)
        elif op is not None and op.name == "broadcast" and not self._varies(op, part):
            source = mapping[op.operands[0]]
            made = b("broadcast", source, shape=part.shape, dims=op.attrs["dims"])
        else:
            made = b("slice", mapping[value], start=part.start, stop=part.stop, step=part.step)
        cache[value, part] = made
        return made

    def _varies(self, op: Op, part: Part) -> bool:
        """Whether a broadcast value differs along the axes of which only a part is taken."""
        shapes = zip(op.result.shape, part.shape, strict=True)
        cut = {a for a, (whole, some) in enumerate(shapes) if whole != some}
        return any(
            d in cut and n > 1 for d, n in zip(op.attrs["dims"], op.operands[0].shape, strict=True)
        )

    def _tie(self, b: Builder, tie: Value) -> Value:
        """The ties, from the bits of each window."""
        pool = self.found.by_tie[tie]
        type_ = TensorType(DType.I32, tie.shape)
        axes = pool.op.attrs["axes"]
        sizes = tuple(tie.shape[a] for a in axes)
        bits = (1 << np.arange(prod(sizes), dtype=np.int32)).reshape(sizes)
        each = b("broadcast", b.constant(bits, DType.I32), shape=tie.shape, dims=axes)
        windows = b("broadcast", self.bits[pool], shape=tie.shape, dims=pool.kept)
        return b("ne", b("and", windows, each), b.full(type_, 0))

    def _count(self, b: Builder, pool: Pool) -> Value:
        """How many tie."""
        if pool not in self.counts:
            bits = self.bits[pool]
            count = b("shr", bits, b.full(bits.tensor, _COUNT_SHIFT))
            self.counts[pool] = b("convert", count, dtype=DType.F32)
        return self.counts[pool]

    def _given(self, b: Builder, routed: Routed, mapping: dict[Value, Value]) -> Value:
        """What a window gets, if it gives any of it on."""
        key = routed.pool, routed.given, routed.clamped
        if key not in self.given:
            pool, most = routed.pool, mapping[routed.pool.op.result]
            zero = b.full(most.tensor, 0.0)
            if routed.clamped and not pool.late:
                live = b("lt", zero, most)
            else:  # there are no ties for NaN
                live = b("ne", self.bits[pool], b.full(self.bits[pool].tensor, 0))
            self.given[key] = b("select", live, mapping[routed.given], zero)
        return self.given[key]

    def _gradient(self, b: Builder, op: Op, routed: Routed, mapping: dict[Value, Value]) -> Value:
        """What comes back through a rectifier: the mask is one of windows."""
        pool = routed.pool
        for other in self.block.ops:  # before what reads whole windows: in the loop of `given`
            summed = self.found.summed(other)
            if summed is not None and summed[0] is routed:
                made = self._sum(b, other, *summed, mapping)
                if made is not None:
                    self.ready[other] = made
        tie = self.early.pop(pool, None) or self._tie(b, routed.tie)
        shape = routed.tie.shape
        given = self._given(b, routed, mapping)
        wide = b("broadcast", given, shape=shape, dims=pool.kept)
        zero = b.full(TensorType(DType.F32, shape), 0.0)
        back = b("reshape", b("select", tie, wide, zero), shape=pool.shape)
        if routed.pad is not None:
            padding = mapping[routed.pad.operands[1]]
            back = b.emit("pad", (back, padding), routed.pad.attrs)[0]
        return back

    def _sum(
        self,
        b: Builder,
        op: Op,
        routed: Routed,
        factor: Value | None,
        mapping: dict[Value, Value],
    ) -> Value | None:
        """The sum over windows of each share, times the ties' number; None for other gradients."""
        pool = routed.pool
        each = self._count(b, pool) if factor is None else self.sums.get((pool, factor))
        if each is None:
            return None
        given = self._given(b, routed, mapping)
        return b("reduce_sum", b("mul", given, each), axes=op.attrs["axes"])


def _larger(b: Builder, x: Value, y: Value) -> Value:
    """Their maximum, no number where one is none: two choices, which compilers make no jumps of."""
    larger = b("select", b("le", y, x), x, y)
    return b("select", b("ne", x, x), x, larger)
