"""Fusion: a block becomes a schedule of loops and calls.

Operations of one element each that run over the same elements are grouped into one nest of loops,
and the reductions of what they compute end in the same nest: a value used only within its group is
never stored. Everything that only says where elements lie (`views.VIEWS`, iota) costs nothing: who
reads, reads through a view.

    %2 = broadcast(%1)          loop [10, 200]: %3 = mul(%0, view of %1)
    %3 = mul(%0, %2)      =>                    %4 = exp(%3), stored
    %4 = exp(%3)                                sum over the last loop of %4, stored as %5
    %5 = reduce_sum(%4) {axes=[1]}

The grouping is greedy, in program order. An operation joins the group that computes one of its
operands when they run over the same elements and no path leads from that group through another one
back to the operation; so the groups stay without cycles, which a bit set of what each depends on
decides. A group that others already read is closed to operations that need nothing but what it
stores anyway: joining would only keep their results alive longer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..ir import Array, Block, DType, Op, TensorType, Value
from ..ops import PRIMITIVES
from .products import axis_order, product, runs_as_matrix
from .views import (
    VIEWS,
    Cuts,
    View,
    axes_in,
    contiguous_strides,
    cuts_of,
    extents,
    is_contiguous,
    is_whole,
    join_cuts,
    own,
    strides_in,
    through,
    tile_strides,
)

REDUCTIONS = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"])
#: Operations in one group: more would spill registers, and a compiler's time grows faster than a
#: loop's length.
GROUP_OPS_MAX = 80
#: A product is given to the loop that reads it from this size on, and up to this many terms a sum:
#: kernels then compute a tile to its end before they go on.
TILES_MIN = 1024
TILES_DEPTH_MAX = 512
#: How far back a reduction looks for a loop that reads the same tensor.
_SIBLINGS_MAX = 6
#: Views that keep the elements in the same order.
_SAME_ORDER = frozenset(["reshape", "stop_gradient"])
#: Calls that read their tensors through any view. The others need them stored row by row.
_READS_VIEWS = frozenset(["dot", "concat", "pad", "dynamic_slice"])
#: Calls of which only the first tensor may be any view, because it is copied anyway.
_FIRST_VIEW = frozenset(["put_add", "put_along_add", "dynamic_update"])


@dataclass(slots=True, eq=False)
class Loop:
    """A fused group: one nest of loops over `space`.

    Attributes:
        ops: element by element, in order.
        reductions: what ends in this nest; all run over the same loops.
        loads: the values read, each through the schedule's view of it.
        stores: (stored value, the value that it is a copy of: itself where the loop computes it).
        product: a `dot` whose result, which nothing else reads, this loop takes tile by tile as it
            is computed; it is never stored.
    """

    space: Cuts
    ops: list[Op] = field(default_factory=list)
    reductions: list[Op] = field(default_factory=list)
    loads: dict[Value, None] = field(default_factory=dict)
    stores: list[tuple[Value, Value]] = field(default_factory=list)
    product: Call | None = None

    @property
    def extents(self) -> tuple[int, ...]:
        return extents(self.space)

    @property
    def reduced(self) -> tuple[bool, ...]:
        """Which loops the reductions run over."""
        if not self.reductions:
            return (False,) * len(self.extents)
        return _reduced(self.reductions[0], self.space)


@dataclass(slots=True, eq=False)
class Call:
    """Any other operation: a kernel, arithmetic on rank-0 values, a list operation, or one with
    regions.
    """

    op: Op
    operands: tuple[Value, ...]
    bodies: tuple[Schedule, ...] = ()


@dataclass(slots=True, eq=False)
class Schedule:
    """A block in the order in which it runs.

    Attributes:
        params, results: those of the block; every result is stored whole and row by row.
        steps: what runs, in order.
        views: of every tensor, where its elements lie.
        origin: for a value that is another in the same order under another shape, that other.
        iotas: bases that are not stored, because element k of them is k.
        constants: bases that are stored with the program.
    """

    params: tuple[Value, ...]
    results: tuple[Value, ...]
    steps: list[Loop | Call]
    views: dict[Value, View]
    origin: dict[Value, Value]
    iotas: set[Value]
    constants: dict[Value, Array]

    def source(self, value: Value) -> Value:
        """The value before any reshape."""
        return _source(self.origin, value)


def is_scalar(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape == ()


def is_elementwise(op: Op) -> bool:
    return op.name == "threefry" or PRIMITIVES[op.name].c is not None


def schedule(block: Block, carries: int | None = None) -> Schedule:
    """Groups the operations of a block, and of the blocks within it.

    For the body of a loop, `carries` is the first parameter that is carried: a result that is a
    parameter, but not the one in its place, is copied, so that writing back one carry never
    overwrites what another is written from.
    """
    return _Fuser(block).run(carries)


def _source(origin: dict[Value, Value], value: Value) -> Value:
    while value in origin:
        value = origin[value]
    return value


def _reduced(op: Op, space: Cuts) -> tuple[bool, ...]:
    return axes_in(space, op.operands[0].shape, op.attrs["axes"])


class _Unit:
    """A step being built. `deps` has a bit for each unit that it depends on, even indirectly."""

    __slots__ = ("closed", "deps", "direct", "members", "position", "step", "stored")

    def __init__(self, step: Loop | Call, position: int) -> None:
        self.step = step
        self.position = position
        self.deps = 0
        self.direct: set[int] = set()
        self.members: set[Value] = set()
        self.stored: dict[Value, None] = {}
        self.closed = False


class _Fuser:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.views: dict[Value, View] = {}
        self.origin: dict[Value, Value] = {}
        self.iotas: set[Value] = set()
        self.constants: dict[Value, Array] = {}
        self.units: dict[int, _Unit] = {}
        self.unit_of: dict[Value, int] = {}  # the unit that computes a base
        self.count = 0

    def run(self, carries: int | None) -> Schedule:
        for param in self.block.params:
            if isinstance(param.type, TensorType):
                self.views[param] = own(param)
        for position, op in enumerate(_needed(self.block)):
            self._add(op, position)
        results = []
        for i, r in enumerate(self.block.results):
            place = None if carries is None else self.block.params[carries + i]
            results.append(self._result(r, len(self.block.ops), place))
        self._take_tiles(results)
        return Schedule(
            self.block.params,
            tuple(results),
            self._ordered(results),
            self.views,
            self.origin,
            self.iotas,
            self.constants,
        )

    def _add(self, op: Op, position: int) -> None:
        if op.name in VIEWS:
            self._view(op, position)
        elif op.name == "constant":
            self.views[op.result] = own(op.result)
            self.constants[op.result] = op.attrs["value"]
        elif op.name == "iota":
            self._iota(op)
        elif is_elementwise(op) and op.results[0].shape != ():
            for result in op.results:
                self.views[result] = own(result)
            if op.results[0].tensor.size:
                self._group(op, position)
        elif op.name in REDUCTIONS and op.operands[0].tensor.size:
            self.views[op.result] = own(op.result)
            self._group(op, position)
        else:
            self._call(op, position)

    def _iota(self, op: Op) -> None:
        axis, type_ = op.attrs["axis"], op.result.tensor
        line = Value(TensorType(type_.dtype, (type_.shape[axis],)))
        self.iotas.add(line)
        self.views[op.result] = View(line, 0, tuple(int(i == axis) for i in range(type_.rank)))

    def _view(self, op: Op, position: int) -> None:
        x = op.operands[0]
        view = through(op, self.views[x])
        if view is None:
            x = self._copy(x, position)
            view = through(op, self.views[x])
            assert view is not None, "a stored tensor takes any shape"
        if op.name in _SAME_ORDER:
            self.origin[op.result] = x
        self.views[op.result] = view

    def _call(self, op: Op, position: int) -> None:
        bodies = tuple(schedule(r, _carries(op, i)) for i, r in enumerate(op.regions))
        operands = []
        for i, x in enumerate(op.operands):
            any_view = op.name in _READS_VIEWS or (op.name in _FIRST_VIEW and i == 0)
            operands.append(
                x if any_view and self._is_base_stored(x) else self._stored(x, position)
            )
        if op.name == "dot":
            operands = [self._as_matrix(op, side, x, position) for side, x in enumerate(operands)]
        for result in op.results:
            if isinstance(result.type, TensorType):
                self.views[result] = own(result)
        index = self._new(Call(op, tuple(operands), bodies), position)
        self._depend(index, operands)
        self.unit_of.update(dict.fromkeys(op.results, index))

    def _as_matrix(self, op: Op, side: int, x: Value, position: int) -> Value:
        """An operand of `dot` whose free and contracted axes each run as one: itself, or copied
        into such an order.
        """
        view = self.views[x]
        if runs_as_matrix(op, side, view):
            return x
        perm = axis_order(op, side)
        shape = tuple(x.shape[p] for p in perm)
        ordered = Value(TensorType(x.dtype, shape))
        self.views[ordered] = View(view.base, view.offset, tuple(view.strides[p] for p in perm))
        copy = self._copy(ordered, position)
        strides = contiguous_strides(shape)
        matrix = Value(x.type)
        self.views[matrix] = View(copy, 0, tuple(strides[perm.index(i)] for i in range(len(perm))))
        return matrix

    def _is_base_stored(self, x: Value) -> bool:
        """Whether there is memory to read the value from."""
        if not isinstance(x.type, TensorType):
            return True
        base = self.views[x].base
        return base not in self.iotas and (base.shape != () or x.shape == ())

    def _stored(self, x: Value, position: int) -> Value:
        """The value, or a copy of it, that lies row by row."""
        if not isinstance(x.type, TensorType) or x.shape == () or x.tensor.size == 0:
            return x
        if self._is_base_stored(x) and is_contiguous(self.views[x], x.shape):
            return x
        return self._copy(x, position)

    def _copy(self, x: Value, position: int) -> Value:
        copy = Value(x.type)
        self.views[copy] = own(copy)
        if x.tensor.size:
            loop = Loop(cuts_of(x.shape), loads={x: None}, stores=[(copy, x)])
            index = self._new(loop, position)
            self._depend(index, (x,))
            self.unit_of[copy] = index
        return copy

    def _result(self, r: Value, position: int, place: Value | None) -> Value:
        if isinstance(r.type, TensorType) and r.shape != () and r.tensor.size:
            base = self.views[r].base
            kept = is_whole(self.views[r], r) and self._is_base_stored(r)
            if place is not None and base in self.block.params:
                kept = kept and base is place
            if not kept:
                r = self._copy(r, position)
        self._store((r,))
        return r

    # -- units and what they depend on

    def _new(self, step: Loop | Call, position: int) -> int:
        index = self.count
        self.count += 1
        self.units[index] = _Unit(step, position)
        return index

    def _base(self, value: Value) -> Value:
        return self.views[value].base if isinstance(value.type, TensorType) else value

    def _store(self, values: Iterable[Value]) -> set[int]:
        """Has these values stored by the units that compute them; gives those units."""
        producers = set()
        for value in values:
            base = self._base(value)
            index = self.unit_of.get(base)
            if index is not None:
                producers.add(index)
                unit = self.units[index]
                unit.closed = True
                if base in unit.members:
                    unit.stored[base] = None
        return producers

    def _depend(self, index: int, values: Iterable[Value]) -> None:
        """Enters that a unit reads these values, which other units store."""
        unit = self.units[index]
        producers = self._store(values) - {index}
        added = 0
        for p in producers:
            added |= 1 << p | self.units[p].deps
        unit.direct |= producers
        if added & ~unit.deps:
            unit.deps |= added
            bit = 1 << index
            for other in self.units.values():
                if other.deps & bit:
                    other.deps |= added

    def _group(self, op: Op, position: int) -> None:
        """Puts an operation in a group: that of an operand, merging several, or a new one."""
        is_reduction = op.name in REDUCTIONS
        space = cuts_of(op.operands[0].shape if is_reduction else op.results[0].shape)
        sources = {_source(self.origin, v): None for v in op.operands}
        candidates = {
            self.unit_of[s]: None
            for s in sources
            if s in self.unit_of and s in self.units[self.unit_of[s]].members
        }
        order = sorted(candidates, reverse=True)
        if is_reduction and not order:
            order = self._siblings(op)
        fitting = [u for u in order if self._fits(u, op, space)]
        index = fitting[0] if fitting else self._new(Loop(space), position)
        self._enter(index, op, space)
        for other in fitting[1:]:
            if self._can_merge(index, other):
                self._merge(index, other)

    def _siblings(self, op: Op) -> list[int]:
        """Recent loops that read the very tensor that a reduction reduces."""
        view = self.views[op.operands[0]]
        recent = sorted(self.units, reverse=True)[:_SIBLINGS_MAX]
        found = []
        for u in recent:
            step = self.units[u].step
            if isinstance(step, Loop) and any(self.views[v] == view for v in step.loads):
                found.append(u)
        return found

    def _fits(self, index: int, op: Op, space: Cuts) -> bool:
        unit = self.units[index]
        loop = unit.step
        assert isinstance(loop, Loop)
        joined = join_cuts(loop.space, space)
        if joined is None or len(loop.ops) + len(loop.reductions) >= GROUP_OPS_MAX:
            return False
        reductions = [*loop.reductions, op] if op.name in REDUCTIONS else loop.reductions
        if len({_reduced(r, joined) for r in reductions}) > 1:
            return False
        inside = [v for v in op.operands if _source(self.origin, v) in unit.members]
        for v in op.operands:
            if v in inside:
                continue
            producer = self.unit_of.get(self._base(v))
            if producer is not None and (
                producer == index or self.units[producer].deps >> index & 1
            ):
                return False
        if unit.closed and op.name not in REDUCTIONS:
            return any(_source(self.origin, v) not in unit.stored for v in inside)
        return True

    def _enter(self, index: int, op: Op, space: Cuts) -> None:
        unit = self.units[index]
        loop = unit.step
        assert isinstance(loop, Loop)
        joined = join_cuts(loop.space, space)
        assert joined is not None, "the operation fits"
        loop.space = joined
        outside = [v for v in op.operands if _source(self.origin, v) not in unit.members]
        loop.loads.update(dict.fromkeys(outside))
        if op.name in REDUCTIONS:
            loop.reductions.append(op)
        else:
            loop.ops.append(op)
            unit.members.update(op.results)
        self.unit_of.update(dict.fromkeys(op.results, index))
        self._depend(index, outside)

    def _can_merge(self, a: int, b: int) -> bool:
        first, second = self.units[a], self.units[b]
        one, two = first.step, second.step
        if not (isinstance(one, Loop) and isinstance(two, Loop)):
            return False
        joined = join_cuts(one.space, two.space)
        total = len(one.ops) + len(two.ops) + len(one.reductions) + len(two.reductions)
        if joined is None or total > GROUP_OPS_MAX:
            return False
        if len({_reduced(r, joined) for r in (*one.reductions, *two.reductions)}) > 1:
            return False
        for reader, computes, index in ((one, second, b), (two, first, a)):
            for v in reader.loads:
                if (
                    self.unit_of.get(self._base(v)) == index
                    and _source(self.origin, v) not in computes.members
                ):
                    return False
        both = 1 << a | 1 << b
        for index, unit in self.units.items():  # a path from one to the other through a third
            if index not in (a, b) and unit.deps & both and (first.deps | second.deps) >> index & 1:
                return False
        return True

    def _merge(self, a: int, b: int) -> None:
        """Moves everything of unit b into unit a."""
        first, second = self.units[a], self.units.pop(b)
        one, two = first.step, second.step
        assert isinstance(one, Loop) and isinstance(two, Loop)
        joined = join_cuts(one.space, two.space)
        assert joined is not None, "the groups fit"
        one.space = joined
        one.ops = two.ops + one.ops if first.deps >> b & 1 else one.ops + two.ops
        one.reductions += two.reductions
        one.stores += two.stores
        first.members |= second.members
        first.stored.update(second.stored)
        first.closed |= second.closed
        first.position = min(first.position, second.position)
        loads = {**one.loads, **two.loads}
        one.loads = {v: None for v in loads if _source(self.origin, v) not in first.members}
        first.direct = (first.direct | second.direct) - {a, b}
        for value, index in self.unit_of.items():
            if index == b:
                self.unit_of[value] = a
        bits = 1 << a | 1 << b
        first.deps = (first.deps | second.deps) & ~bits
        for unit in self.units.values():
            if b in unit.direct:
                unit.direct = unit.direct - {b} | {a}
            if unit.deps & bits:
                unit.deps = unit.deps & ~bits | 1 << a | first.deps

    def _take_tiles(self, results: Sequence[Value]) -> None:
        """Gives products to the loops that alone read them.

        The product then runs where the loop does, which is no earlier than it did: what it reads
        lives longer, what it gives never exists.
        """
        readers: dict[Value, set[int]] = {}
        for u, unit in self.units.items():
            values = unit.step.loads if isinstance(unit.step, Loop) else unit.step.operands
            for v in values:
                readers.setdefault(self._base(v), set()).add(u)
        kept = {self._base(r) for r in results}
        for u in sorted(self.units):
            loop = self.units[u].step
            if not isinstance(loop, Loop) or loop.reductions:
                continue
            for p in sorted(self.units[u].direct):
                call = self.units[p].step
                if isinstance(call, Call) and call.op.name == "dot":
                    value = call.op.result
                    if value not in kept and readers[value] == {u} and self._tiles(loop, call):
                        self._give(u, p)
                        break

    def _tiles(self, loop: Loop, call: Call) -> bool:
        """Whether a loop can run over the tiles of a product.

        Every tensor that it reads must run along rows and along columns by one stride each.
        """
        value = call.op.result
        if value.tensor.size < TILES_MIN or value.dtype is not DType.F32:
            return False
        product_ = product(call.op, *(self.views[v] for v in call.operands))
        if product_.batch or product_.n == 1 or product_.k > TILES_DEPTH_MAX or not product_.k:
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
        unit, other = self.units[u], self.units.pop(p)
        assert isinstance(unit.step, Loop) and isinstance(other.step, Call), "a loop and a product"
        unit.step.product = other.step
        unit.direct = (unit.direct | other.direct) - {p}

    def _ordered(self, results: Sequence[Value]) -> list[Loop | Call]:
        """The steps so that each follows what it depends on, and else in program order.

        A loop stores what another step or a result reads.
        """
        readers: dict[int, list[int]] = {u: [] for u in self.units}
        waiting = {}
        read = {self._base(r) for r in results}
        for u, unit in self.units.items():
            waiting[u] = len(unit.direct)
            for d in unit.direct:
                readers[d].append(u)
            step = unit.step
            values = step.loads if isinstance(step, Loop) else step.operands
            read.update(self._base(v) for v in values)
            if isinstance(step, Loop) and step.product is not None:
                read.update(self._base(v) for v in step.product.operands)
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


def _carries(op: Op, region: int) -> int | None:
    """The first carried parameter of a loop's body; None for other regions."""
    if op.name == "for":
        return 1 + int(op.attrs["consts"])
    if op.name == "while" and region == 1:
        return int(op.attrs["consts"])
    return None


def _needed(block: Block) -> Sequence[Op]:
    """The operations that a result depends on."""
    used = set(block.results)
    ops = []
    for op in reversed(block.ops):
        if not used.isdisjoint(op.results):
            used.update(op.operands)
            ops.append(op)
    return ops[::-1]
