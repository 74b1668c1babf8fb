"""The steps of a block while it is being fused: what depends on what, and in which order they run.

Besides what reads what, some orders are only better than others: what updates a tensor in place
should run after all that still read it. And a product or a convolution whose result one loop alone
reads is given to that loop, which takes it part by part. Where such a loop is a step of descent for
a large matrix, the product by that matrix turned, which is the gradient of the same layer by its
input, is given to it too: a matrix that no cache holds is then gone through once for both. What a
loop's trip puts into one row of a tensor is written there at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...ir import DType, TensorType, Value, Values
from .block_steps import UPDATES, Call, Loop, descent, operands_of
from .convolution_strips import may_follow, strips_of
from .product_layouts import product
from .views import (
    View,
    contiguous_strides,
    cuts_of,
    extents,
    is_whole,
    join_cuts,
    strides_in,
    tile_strides,
)

#: A product is given to the loop that reads it from this size on, and up to this many terms a sum:
#: kernels then compute a tile to its end before they go on.
TILES_MIN = 1024
TILES_DEPTH_MAX = 512
#: The same of a loop that is a step of descent.
DESCENT_DEPTH_MAX = 1024
#: Two products share a pass over a matrix of so many numbers or more: smaller ones stay in a cache
#: anyway. They have at most so many rows, as `dense.h` computes such a product by rows of W.
BESIDE_MIN = 1 << 18
BESIDE_ROWS_MAX = 32
#: With so few rows they share one anyway, from this size on: both are then computed in registers.
BESIDE_FEW_MIN = 1 << 12
BESIDE_FEW_ROWS = 12


class Unit:
    """A step being built. `deps` has a bit for each unit that it depends on, even indirectly."""

    __slots__ = ("closed", "deps", "direct", "members", "opened", "position", "step", "stored")

    def __init__(self, step: Loop | Call, position: int) -> None:
        self.step = step
        self.position = position
        self.deps = 0
        self.direct: set[int] = set()
        self.members: set[Value] = set()
        self.stored: dict[Value, None] = {}
        self.closed = False
        self.opened = False

    def read_by_others(self) -> tuple[bool, dict[Value, None]]:
        """Whether other units read what this one computes, and what of it."""
        return self.closed, dict(self.stored)


class Units:
    """All steps of a block. `unit_of` gives the unit that computes a base."""

    def __init__(self, views: dict[Value, View]) -> None:
        self.views = views
        self.units: dict[int, Unit] = {}
        self.unit_of: dict[Value, int] = {}
        self.count = 0
        self.before_some = 0  # a bit for each unit that another one was entered to run after

    def new(self, step: Loop | Call, position: int) -> int:
        index = self.count
        self.count += 1
        self.units[index] = Unit(step, position)
        return index

    def base(self, value: Value) -> Value:
        return self.views[value].base if isinstance(value.type, TensorType) else value

    def store(self, values: Iterable[Value]) -> set[int]:
        """Has these values stored by the units that compute them; gives those units."""
        producers = set()
        for value in values:
            base = self.base(value)
            index = self.unit_of.get(base)
            if index is not None:
                producers.add(index)
                unit = self.units[index]
                unit.closed = True
                if base in unit.members:
                    unit.stored[base] = None
        return producers

    def depend(self, index: int, values: Iterable[Value]) -> None:
        """Enters that a unit reads these values, which other units store."""
        self.run_after(index, self.store(values) - {index})

    def run_after(self, index: int, producers: set[int]) -> None:
        """Enters that a unit runs after others."""
        unit = self.units[index]
        added = 0
        for p in producers:
            added |= 1 << p | self.units[p].deps
        unit.direct |= producers
        if added & ~unit.deps:
            unit.deps |= added
            self.before_some |= added
            bit = 1 << index
            for other in self.units.values() if self.before_some & bit else ():
                if other.deps & bit:
                    other.deps |= added

    def readers(self) -> dict[Value, set[int]]:
        """The units that read each base."""
        readers: dict[Value, set[int]] = {}
        for u, unit in self.units.items():
            for v in operands_of(unit.step):
                readers.setdefault(self.base(v), set()).add(u)
        return readers

    def delay_updates(self) -> None:
        """What updates some places of a tensor runs after what else reads it: it needs no copy."""
        readers = self.readers()
        for u in sorted(self.units):
            step = self.units[u].step
            if isinstance(step, Call) and step.op.name in UPDATES:
                self.run_after_all(u, readers[self.base(step.operands[0])])

    def delay_carries(self, results: Values, replaced: Sequence[Value | None]) -> None:
        """A result is computed after what else reads the parameter that it replaces."""
        readers = self.readers()
        for r, param in zip(results, replaced, strict=True):
            u = self.unit_of.get(self.base(r))
            if u is not None and param is not None and isinstance(param.type, TensorType):
                self.run_after_all(u, readers.get(param, set()))

    def run_after_all(self, u: int, others: Iterable[int]) -> None:
        """Orders a unit after others, those aside that need it."""
        for other in sorted(others):
            if other != u and not self.units[other].deps >> u & 1:
                self.run_after(u, {other})

    def take_tiles(self, results: Values) -> None:
        """Gives products and convolutions to the loops that alone read them.

        The product then runs where the loop does, which is no earlier than it did: what it reads
        lives longer, what it gives never exists.
        """
        readers = self.readers()
        kept = {self.base(r) for r in results}
        for u in sorted(self.units):
            if u not in self.units:  # a product, given to a loop that comes before it in the text
                continue
            loop = self.units[u].step
            if not isinstance(loop, Loop):
                continue
            for p in sorted(self.units[u].direct):
                call = self.units[p].step
                if isinstance(call, Call) and call.op.name in ("dot", "conv"):
                    value = call.op.result
                    alone = value not in kept and readers[value] == {u}
                    between = any(
                        p in self.units[t].direct and self.units[u].deps >> t & 1
                        for t in self.units
                    )
                    if alone and not between and self._tiles(loop, call):
                        self._give(u, p)
                        break

    def _tiles(self, loop: Loop, call: Call) -> bool:
        """Whether a loop can run over tiles or strips: one stride along rows, one along columns."""
        value = call.op.result
        if value.tensor.size < TILES_MIN or value.dtype is not DType.F32:
            return False
        if call.op.name == "conv":
            return may_follow(loop, call.op) and bool(strips_of(loop, value, self.views))
        if loop.reductions:
            return False
        product_ = product(call.op, *(self.views[v] for v in call.operands))
        steps = descent(replace(loop, product=call), self.base) is not None
        most = DESCENT_DEPTH_MAX if steps else TILES_DEPTH_MAX
        if product_.batch or product_.n == 1 or not 0 < product_.k <= most:
            return False
        space = join_cuts(loop.space, cuts_of((product_.m, product_.n)))
        if space is None:
            return False
        for v in loop.loads:
            view = self.views[v]
            strides = strides_in(space, v.shape, view.strides)
            if tile_strides(space, product_.n, strides) is None:
                return False
            if view.base is value and (
                view.offset or strides != contiguous_strides(extents(space))
            ):
                return False
        return True

    def _give(self, u: int, p: int) -> None:
        """Moves the product of unit p into the loop of unit u."""
        unit, other = self.units[u], self.units[p]
        assert isinstance(unit.step, Loop) and isinstance(other.step, Call), "a loop and a product"
        unit.step.product = replace(other.step, taken=True)
        self.absorb(u, p)

    def absorb(self, u: int, p: int) -> None:
        """Drops unit p, whose step is now a part of unit u's."""
        unit, other = self.units[u], self.units.pop(p)
        unit.direct = (unit.direct | other.direct) - {p}
        for t, third in self.units.items():  # which was only to run after the product
            if p in third.direct:
                third.direct = third.direct - {p}
                self.run_after(t, {u})

    def join_gradients(self, results: Values, replaced: Sequence[Value | None]) -> None:
        """Gives the product by a matrix turned to the loop that then changes this matrix in place.

        Only where that loop ends the matrix's life: all else that reads it must have run before.
        """
        readers = self.readers()
        places = {p: self.base(r) for r, p in zip(results, replaced, strict=True) if p is not None}
        kept = {self.base(r) for r in results}
        for u, loop in [(u, self.units[u].step) for u in sorted(self.units)]:
            found = descent(loop, self.base) if isinstance(loop, Loop) else None
            if found is None or not self._may_share(found.matrix):
                continue
            assert isinstance(loop, Loop), "a descent is a loop"
            matrix = self.base(found.matrix)
            in_place = matrix in self.unit_of or places.get(matrix) is loop.ops[-1].result
            others = (readers[matrix] & self.units.keys()) - {u}
            if matrix in kept or not in_place:
                continue
            for p in sorted(others):
                before = self.units[p].deps | self.units[u].deps
                if self._beside(loop, matrix, p) and not self._between(u, p):
                    if all(before >> r & 1 for r in others - {p}):
                        self._join(u, p)
                    break

    def _may_share(self, matrix: Value) -> bool:
        return matrix.dtype is DType.F32 and is_whole(self.views[matrix], matrix)

    def _beside(self, loop: Loop, matrix: Value, p: int) -> bool:
        """Whether unit p is a product by the turned matrix that a loop goes into."""
        call = self.units[p].step
        assert loop.product is not None, "a step of descent has a product"
        if not isinstance(call, Call) or call.op.name != "dot":
            return False
        left, right = call.operands
        operands = {self.base(v) for v in (left, *loop.product.operands)}
        if self.base(right) is not matrix or matrix in operands or self.views[right].offset:
            return False
        one = product(call.op, *(self.views[v] for v in call.operands))
        two = product(loop.product.op, *(self.views[v] for v in loop.product.operands))
        few = one.m <= BESIDE_FEW_ROWS and matrix.tensor.size >= BESIDE_FEW_MIN
        return (
            (few or matrix.tensor.size >= BESIDE_MIN)
            and not one.batch
            and (one.bk, one.bn) == (1, one.k)
            and (one.n, one.k) == (two.m, two.n)
            and one.n * one.k == matrix.tensor.size
            and 1 < one.m <= BESIDE_ROWS_MAX
            and two.k <= BESIDE_ROWS_MAX
        )

    def _between(self, u: int, p: int) -> bool:
        """Whether unit p needs unit u, or u needs another one that needs p."""
        if self.units[p].deps >> u & 1:
            return True
        return any(p in t.direct and self.units[u].deps >> i & 1 for i, t in self.units.items())

    def _join(self, u: int, p: int) -> None:
        """Moves the call of unit p next to the product of unit u."""
        unit, other = self.units[u], self.units.pop(p)
        assert isinstance(unit.step, Loop) and isinstance(other.step, Call), "a loop and a product"
        unit.step.fused = other.step
        unit.position = min(unit.position, other.position)
        unit.direct -= {p}
        self.unit_of[other.step.op.result] = u
        self.run_after(u, other.direct)
        for t, third in self.units.items():
            if p in third.direct:
                third.direct = third.direct - {p}
                self.run_after(t, {u})

    def open_rows(self, results: Values, replaced: Sequence[Value | None]) -> None:
        """Computes a row of a carry in place; the update that finds the place runs before."""
        readers = self.readers()
        kept = {self.base(r) for r in results}
        places = {p: self.base(r) for r, p in zip(results, replaced, strict=True) if p is not None}
        for u in sorted(self.units):
            step = self.units[u].step
            if not isinstance(step, Call) or step.op.name != "dynamic_update":
                continue
            carry, update, *starts = step.operands
            alone = places.get(carry) is step.op.result and readers[carry] == {u}
            row = update.shape[:1] == (1,) and update.shape[1:] == carry.shape[1:]
            value = self.base(update)
            row = row and value.shape != ()
            if not (alone and row and step.op.result not in readers and value not in kept):
                continue
            p = self.unit_of.get(value)
            if p is None or not self._writes_anywhere(p, value):
                continue
            if not is_whole(self.views[update], update) or self.units[p].opened:
                continue
            before = {self.unit_of[self.base(s)] for s in starts if self.base(s) in self.unit_of}
            if any(q == p or self.units[q].deps >> p & 1 for q in before):
                continue
            unit = self.units[u]
            unit.step = Call(step.op, (carry, *starts), opens=value)
            unit.direct, unit.deps = set(), 0
            self.run_after(u, before)
            self.run_after(p, {u})
            self.units[p].opened = True

    def _writes_anywhere(self, p: int, value: Value) -> bool:
        """Whether a step would write a value as well to another place."""
        step = self.units[p].step
        if isinstance(step, Call):
            return step.op.name in ("dot", "concat")
        return step.fused is None or step.fused.op.result is not value

    def ordered(self, results: Values) -> list[Loop | Call]:
        """The steps in order of dependence, else of the program."""
        readers: dict[int, list[int]] = {u: [] for u in self.units}
        waiting = {}
        read = {self.base(r) for r in results}
        for u, unit in self.units.items():
            waiting[u] = len(unit.direct)
            for d in unit.direct:
                readers[d].append(u)
            read.update(self.base(v) for v in operands_of(unit.step))
            if isinstance(unit.step, Call) and unit.step.opens is not None:
                read.add(unit.step.opens)
        ready = [(unit.position, u) for u, unit in self.units.items() if not unit.direct]
        heapq.heapify(ready)
        steps = []
        while ready:
            _, u = heapq.heappop(ready)
            unit = self.units[u]
            if isinstance(unit.step, Loop):
                computed = (v for op in unit.step.ops for v in op.results)
                unit.step.stores += [(v, v) for v in computed if v in read]
            steps.append(unit.step)
            for r in readers[u]:
                waiting[r] -= 1
                if not waiting[r]:
                    heapq.heappush(ready, (self.units[r].position, r))
        assert len(steps) == len(self.units), "the groups have a cycle"
        return steps
