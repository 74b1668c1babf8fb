"""Fusion: a block becomes a schedule of loops and calls.

Operations of one element each that run over the same elements are grouped into one nest of loops,
and the reductions of what they compute end in the same nest: a value used only within its group is
never stored. Everything that only says where elements lie (`views.VIEWS`, iota) costs nothing: it
is read through a view.

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

from collections.abc import Sequence

from ...ir import Array, Block, Op, TensorType, Value, Values
from ..lowering.trip_counts import integers, overwritten, trips_of
from . import views
from .block_steps import (
    REDUCTIONS,
    UPDATES,
    Call,
    Loop,
    Schedule,
    is_elementwise,
    reduced_loops,
    source_of,
)
from .execution_order import Units
from .expanded_operands import expand_operands
from .product_layouts import axis_order, runs_as_matrix

#: Operations in one group: more would spill registers, and a compiler's time grows faster than a
#: loop's length.
GROUP_OPS_MAX = 80
#: How far back a reduction looks for a loop that reads the same tensor.
_SIBLINGS_MAX = 6
#: Views that keep the elements in the same order.
_SAME_ORDER = frozenset(["reshape", "stop_gradient"])
#: Calls that read their tensors through any view. The others need them stored row by row.
_READS_VIEWS = frozenset(["dot", "concat", "pad", "dynamic_slice"])
#: Calls of which only the first tensor may be any view, because it is copied anyway.
_FIRST_VIEW = UPDATES


def schedule(block: Block, replaced: Sequence[Value | None] = (), fixed: Values = ()) -> Schedule:
    """Groups the operations of a block, and of the blocks within it.

    `replaced` gives for each result the parameter in whose memory it will lie, if any: the carry
    that the body of a loop writes back, or a donated parameter of a function. A result that is such
    a parameter, but not the one in its place, is copied, so that writing one never overwrites what
    another is written from. `fixed`: parameters whose memory nothing changes while the block runs.
    """
    return _Fuser(block, fixed).run(replaced or (None,) * len(block.results))


class _Fuser:
    def __init__(self, block: Block, fixed: Values) -> None:
        self.block = block
        self.fixed = frozenset(fixed)
        self.windows: set[Value] = set()
        self.views: dict[Value, views.View] = {}
        self.origin: dict[Value, Value] = {}
        self.iotas: set[Value] = set()
        self.constants: dict[Value, Array] = {}
        self.graph = Units(self.views)

    def run(self, replaced: Sequence[Value | None]) -> Schedule:
        for param in self.block.params:
            if isinstance(param.type, TensorType):
                self.views[param] = views.own(param)
        for position, op in enumerate(_needed(self.block)):
            self._add(op, position)
        results = [
            self._result(r, len(self.block.ops), place, replaced)
            for r, place in zip(self.block.results, replaced, strict=True)
        ]
        self.graph.delay_carries(results, replaced)
        self.graph.delay_updates()
        expand_operands(self.graph, tuple(results))
        self.graph.take_tiles(results)
        self.graph.join_gradients(results, replaced)
        self.graph.open_rows(results, replaced)
        return Schedule(
            self.block.params,
            tuple(results),
            self.graph.ordered(results),
            self.views,
            self.origin,
            self.iotas,
            self.constants,
        )

    def _add(self, op: Op, position: int) -> None:
        if op.name in views.VIEWS:
            self._view(op, position)
        elif op.name == "constant":
            self.views[op.result] = views.own(op.result)
            self.constants[op.result] = op.attrs["value"]
        elif op.name == "iota":
            self._iota(op)
        elif is_elementwise(op) and op.results[0].shape != ():
            for result in op.results:
                self.views[result] = views.own(result)
            if op.results[0].tensor.size:
                self._group(op, position)
        elif op.name in REDUCTIONS and op.operands[0].tensor.size:
            self.views[op.result] = views.own(op.result)
            self._group(op, position)
        else:
            self._call(op, position)

    def _iota(self, op: Op) -> None:
        axis, type_ = op.attrs["axis"], op.result.tensor
        line = Value(TensorType(type_.dtype, (type_.shape[axis],)))
        self.iotas.add(line)
        self.views[op.result] = views.View(
            line, 0, tuple(int(i == axis) for i in range(type_.rank))
        )

    def _view(self, op: Op, position: int) -> None:
        x = op.operands[0]
        view = views.through(op, self.views[x])
        if view is None:
            x = self._copy(x, position)
            view = views.through(op, self.views[x])
            assert view is not None, "a stored tensor takes any shape"
        if op.name in _SAME_ORDER:
            self.origin[op.result] = x
        self.views[op.result] = view

    def _window(self, op: Op, position: int) -> bool:
        """A part of a tensor that stays as it is, cut out where numbers say: it is read there."""
        x = op.operands[0] if _cuts(op) else None
        if x is None or self.views[x].base not in self.fixed:
            return False
        strides = self.views[x].strides
        if op.name == "take":
            strides = strides[1:]
        self.views[op.result] = views.View(op.result, 0, strides)
        self.windows.add(op.result)
        index = self.graph.new(Call(op, op.operands, window=True), position)
        self.graph.depend(index, op.operands)
        self.graph.unit_of[op.result] = index
        return True

    def _call(self, op: Op, position: int) -> None:
        if self._window(op, position):
            return
        bodies = tuple(
            schedule(r, _replaced(op, i), _fixed(op, i)) for i, r in enumerate(op.regions)
        )
        operands = []
        unseen = self._unseen(op)
        for i, x in enumerate(op.operands):
            if i in unseen:
                operands.append(self._copy(x, position, blank=True))
                continue
            operands.append(self._operand(op, i, x, position))
        if op.name == "dot":
            operands = [self._as_matrix(op, side, x, position) for side, x in enumerate(operands)]
        for result in op.results:
            if isinstance(result.type, TensorType):
                self.views[result] = views.own(result)
        index = self.graph.new(Call(op, tuple(operands), bodies), position)
        self.graph.depend(index, operands)
        self.graph.unit_of.update(dict.fromkeys(op.results, index))

    def _operand(self, op: Op, i: int, x: Value, position: int) -> Value:
        """An operand as the call reads it: where it lies, or a copy that lies row by row."""
        if op.name in UPDATES and i > 0 and isinstance(x.type, TensorType) and x.shape != ():
            view, target = self.views[x], self.views[op.operands[0]]
            if view.base is target.base:  # What is updated where it lies is not read as well.
                return self._copy(x, position)
            if op.name == "dynamic_update" and view.base.shape == ():
                return x
        any_view = (
            op.name in _READS_VIEWS
            or (op.name in _FIRST_VIEW and i == 0)
            or (op.name == "take" and i == 0 and op.result.shape == ())
        )
        return x if any_view and self._is_base_stored(x) else self._stored(x, position)

    def _unseen(self, op: Op) -> set[int]:
        """The operands of a loop that are overwritten before anything reads them."""
        if op.name != "for":
            return set()
        trips = trips_of(op, integers(self.block.ops))
        first = 2 + int(op.attrs["consts"])
        return set() if trips is None else {first + c for c in overwritten(op, trips)}

    def _as_matrix(self, op: Op, side: int, x: Value, position: int) -> Value:
        """An operand of `dot` whose free and contracted axes each run as one, copied if needed."""
        view = self.views[x]
        if runs_as_matrix(op, side, view):
            return x
        perm = axis_order(op, side)
        shape = tuple(x.shape[p] for p in perm)
        ordered = Value(TensorType(x.dtype, shape))
        self.views[ordered] = views.View(
            view.base, view.offset, tuple(view.strides[p] for p in perm)
        )
        copy = self._copy(ordered, position)
        strides = views.contiguous_strides(shape)
        matrix = Value(x.type)
        self.views[matrix] = views.View(
            copy, 0, tuple(strides[perm.index(i)] for i in range(len(perm)))
        )
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
        if self._is_base_stored(x) and views.is_contiguous(self.views[x], x.shape):
            return x
        return self._copy(x, position)

    def _copy(self, x: Value, position: int, blank: bool = False) -> Value:
        """A copy that lies row by row; `blank`: memory for one alone."""
        copy = Value(x.type)
        self.views[copy] = views.own(copy)
        if x.tensor.size:
            loads = {} if blank else {x: None}
            loop = Loop(views.cuts_of(x.shape), loads=loads, stores=[(copy, x)], blank=blank)
            index = self.graph.new(loop, position)
            self.graph.depend(index, loads)
            self.graph.unit_of[copy] = index
        return copy

    def _result(
        self, r: Value, position: int, place: Value | None, replaced: Sequence[Value | None]
    ) -> Value:
        if isinstance(r.type, TensorType) and r.shape != () and r.tensor.size:
            base = self.views[r].base
            kept = views.is_whole(self.views[r], r) and self._is_base_stored(r)
            kept = kept and base not in self.windows
            if base in replaced:
                kept = kept and base is place
            if not kept:
                r = self._copy(r, position)
        self.graph.store((r,))
        return r

    def _group(self, op: Op, position: int) -> None:
        """Puts an operation in a group: that of an operand, merging several, or a new one."""
        is_reduction = op.name in REDUCTIONS
        space = views.cuts_of(op.operands[0].shape if is_reduction else op.results[0].shape)
        sources = {source_of(self.origin, v): None for v in op.operands}
        candidates = {
            self.graph.unit_of[s]: None
            for s in sources
            if s in self.graph.unit_of and s in self.graph.units[self.graph.unit_of[s]].members
        }
        order = sorted(candidates, reverse=True)
        if is_reduction and not order:
            order = self._siblings(op)
        fitting = [u for u in order if self._fits(u, op, space)]
        index = fitting[0] if fitting else self.graph.new(Loop(space), position)
        before = {u: self.graph.units[u].read_by_others() for u in fitting[1:]}
        self._enter(index, op, space)
        for other in fitting[1:]:
            if self._can_merge(index, other):
                # The operation itself read it from outside, but no longer does.
                unit = self.graph.units[other]
                unit.closed, unit.stored = before[other]
                self._merge(index, other)

    def _siblings(self, op: Op) -> list[int]:
        """Recent loops that read the very tensor that a reduction reduces."""
        view = self.views[op.operands[0]]
        recent = sorted(self.graph.units, reverse=True)[:_SIBLINGS_MAX]
        found = []
        for u in recent:
            step = self.graph.units[u].step
            if isinstance(step, Loop) and any(self.views[v] == view for v in step.loads):
                found.append(u)
        return found

    def _fits(self, index: int, op: Op, space: views.Cuts) -> bool:
        unit = self.graph.units[index]
        loop = unit.step
        assert isinstance(loop, Loop)
        joined = views.join_cuts(loop.space, space)
        if joined is None or len(loop.ops) + len(loop.reductions) >= GROUP_OPS_MAX:
            return False
        reductions = [*loop.reductions, op] if op.name in REDUCTIONS else loop.reductions
        if len({reduced_loops(r, joined) for r in reductions}) > 1:
            return False
        inside = [v for v in op.operands if source_of(self.origin, v) in unit.members]
        for v in op.operands:
            if v in inside:
                continue
            producer = self.graph.unit_of.get(self.graph.base(v))
            if producer is not None and (
                producer == index or self.graph.units[producer].deps >> index & 1
            ):
                return False
        if unit.closed and op.name not in REDUCTIONS:
            return any(source_of(self.origin, v) not in unit.stored for v in inside)
        return True

    def _enter(self, index: int, op: Op, space: views.Cuts) -> None:
        unit = self.graph.units[index]
        loop = unit.step
        assert isinstance(loop, Loop)
        joined = views.join_cuts(loop.space, space)
        assert joined is not None, "the operation fits"
        loop.space = joined
        outside = [v for v in op.operands if source_of(self.origin, v) not in unit.members]
        loop.loads.update(dict.fromkeys(outside))
        if op.name in REDUCTIONS:
            loop.reductions.append(op)
        else:
            loop.ops.append(op)
            unit.members.update(op.results)
        self.graph.unit_of.update(dict.fromkeys(op.results, index))
        self.graph.depend(index, outside)

    def _can_merge(self, a: int, b: int) -> bool:
        first, second = self.graph.units[a], self.graph.units[b]
        one, two = first.step, second.step
        if not (isinstance(one, Loop) and isinstance(two, Loop)):
            return False
        joined = views.join_cuts(one.space, two.space)
        total = len(one.ops) + len(two.ops) + len(one.reductions) + len(two.reductions)
        if joined is None or total > GROUP_OPS_MAX:
            return False
        if len({reduced_loops(r, joined) for r in (*one.reductions, *two.reductions)}) > 1:
            return False
        for reader, computes, index in ((one, second, b), (two, first, a)):
            for v in reader.loads:
                if (
                    self.graph.unit_of.get(self.graph.base(v)) == index
                    and source_of(self.origin, v) not in computes.members
                ):
                    return False
        both = 1 << a | 1 << b
        for index, unit in self.graph.units.items():  # a path from one to the other through a third
            if index not in (a, b) and unit.deps & both and (first.deps | second.deps) >> index & 1:
                return False
        return True

    def _merge(self, a: int, b: int) -> None:
        """Moves everything of unit b into unit a."""
        first, second = self.graph.units[a], self.graph.units.pop(b)
        one, two = first.step, second.step
        assert isinstance(one, Loop) and isinstance(two, Loop)
        joined = views.join_cuts(one.space, two.space)
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
        one.loads = {v: None for v in loads if source_of(self.origin, v) not in first.members}
        first.direct = (first.direct | second.direct) - {a, b}
        for value, index in self.graph.unit_of.items():
            if index == b:
                self.graph.unit_of[value] = a
        bits = 1 << a | 1 << b
        first.deps = (first.deps | second.deps) & ~bits
        for unit in self.graph.units.values():
            if b in unit.direct:
                unit.direct = unit.direct - {b} | {a}
            if unit.deps & bits:
                unit.deps = unit.deps & ~bits | 1 << a | first.deps
                self.graph.before_some |= 1 << a


def _replaced(op: Op, region: int) -> Sequence[Value | None]:
    """The parameters that the results of a loop's body replace; none for other regions."""
    params = op.regions[region].params
    if op.name == "for":
        return params[1 + op.attrs["consts"] :]
    if op.name == "while" and region == 1:
        return params[op.attrs["consts"] :]
    return ()


def _fixed(op: Op, region: int) -> Values:
    """The parameters of a loop's body that are constants."""
    if op.name not in ("for", "while"):
        return ()
    first = 1 if op.name == "for" else 0
    return op.regions[region].params[first : first + int(op.attrs["consts"])]


def _cuts(op: Op) -> bool:
    """Whether an operation cuts one part out of a tensor, where numbers say."""
    if op.name == "take":
        row = op.attrs["axis"] == 0 and op.operands[1].shape == ()
        return row and op.result.shape != () and op.result.tensor.size > 0
    return op.name == "dynamic_slice" and op.result.shape != () and op.result.tensor.size > 0


def _needed(block: Block) -> Sequence[Op]:
    """The operations that a result depends on."""
    used = set(block.results)
    ops = []
    for op in reversed(block.ops):
        if not used.isdisjoint(op.results):
            used.update(op.operands)
            ops.append(op)
    return ops[::-1]
