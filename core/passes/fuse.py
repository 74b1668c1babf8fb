"""Fusion: a block becomes a schedule of loops and calls.

Operations of one element each that run over the same elements are grouped into one nest of loops, and the reductions of
what they compute end in the same nest: a value used only within its group is never stored. Everything that only says
where elements lie (`views.VIEWS`, iota) costs nothing: who reads, reads through a view.

    %2 = broadcast(%1)          loop [10, 200]: %3 = mul(%0, view of %1)
    %3 = mul(%0, %2)      =>                    %4 = exp(%3), stored
    %4 = exp(%3)                                sum over the last loop of %4, stored as %5
    %5 = reduce_sum(%4) {axes=[1]}

The grouping is greedy, in program order. An operation joins the group that computes one of its operands when they run
over the same elements and no path leads from that group through another one back to the operation; so the groups stay
without cycles, which a bit set of what each depends on decides. A group that others already read is closed to
operations that need nothing but what it stores anyway: joining would only keep their results alive longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..ir import Block, Op, TensorType, Value
from ..ops import PRIMITIVES
from .views import (
    VIEWS,
    Cuts,
    View,
    axes_in,
    contiguous_strides,
    cuts_of,
    extents,
    is_contiguous,
    join_cuts,
    own,
    strides_in,
    through,
)

REDUCTIONS = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"])
#: Operations in one group: more would spill registers, and a compiler's time grows faster than a loop's length.
GROUP_OPS_MAX = 80
#: Views that keep every element in its place in memory order.
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
        stores: (stored value, the value that it is a copy of).
    """

    space: Cuts
    ops: list[Op] = field(default_factory=list)
    reductions: list[Op] = field(default_factory=list)
    loads: dict[Value, None] = field(default_factory=dict)
    stores: list[tuple[Value, Value]] = field(default_factory=list)

    @property
    def extents(self) -> tuple[int, ...]:
        return extents(self.space)

    @property
    def reduced(self) -> tuple[bool, ...]:
        """Which loops the reductions run over."""
        if not self.reductions:
            return (False,) * len(self.extents)
        op = self.reductions[0]
        return axes_in(self.space, op.operands[0].shape, op.attrs["axes"])


@dataclass(slots=True, eq=False)
class Call:
    """Any other operation: a kernel, arithmetic on rank-0 values, a list operation, or one with regions."""

    op: Op
    operands: tuple[Value, ...]
    bodies: tuple[Schedule, ...] = ()


@dataclass(slots=True, eq=False)
class Schedule:
    """A block in the order it runs. `views` says of every tensor where its elements lie; `origin` of every value that a
    loop names otherwise (a reshape of a value it computes) which value that is."""

    params: tuple[Value, ...]
    results: tuple[Value, ...]
    steps: list[Loop | Call]
    views: dict[Value, View]
    origin: dict[Value, Value]

    def source(self, value: Value) -> Value:
        """The value that has these elements in this order, before any reshape."""
        while value in self.origin:
            value = self.origin[value]
        return value


def is_scalar(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape == ()


def is_elementwise(op: Op) -> bool:
    return op.name == "threefry" or PRIMITIVES[op.name].c is not None


def schedule(block: Block, copy_params: bool = False) -> Schedule:
    """Groups the operations of a block, and of the blocks within it.

    Every result of the schedule is stored whole and row by row. With `copy_params` (the bodies of loops) a result is
    never another name for a parameter in another place: it is copied first.
    """
    return _Fuser(block).run(copy_params)


class _Unit:
    """A step being built, with what it depends on, as a set of bits: everything, and directly."""

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
        self.units: list[_Unit | None] = []
        self.unit_of: dict[Value, int] = {}  # the unit that computes a value, by its base or source

    def run(self, copy_params: bool) -> Schedule:
        for param in self.block.params:
            if isinstance(param.type, TensorType):
                self.views[param] = own(param)
        for position, op in enumerate(_needed(self.block)):
            self._add(op, position)
        end = len(self.block.ops)
        results = tuple(
            self._result(r, i, end, copy_params) for i, r in enumerate(self.block.results)
        )
        steps = self._ordered()
        return Schedule(self.block.params, results, steps, self.views, self.origin)

    # -- one operation

    def _add(self, op: Op, position: int) -> None:
        if op.name in VIEWS:
            self._view(op, position)
        elif op.name == "constant":
            self.views[op.result] = own(op.result)
        elif op.name == "iota" and op.result.tensor.rank:
            # Element k of the base is k itself: the address of an element is its value.
            line = Value(TensorType(op.result.dtype, (op.attrs["shape"][op.attrs["axis"]],)))
            self.origin_iota(line)
            strides = tuple(int(i == op.attrs["axis"]) for i in range(op.result.tensor.rank))
            self.views[op.result] = View(line, 0, strides)
        elif is_elementwise(op) and op.results[0].shape != ():
            if op.results[0].tensor.size:
                self._join(op, position, reduction=False)
            for result in op.results:
                self.views[result] = own(result)
        elif op.name in REDUCTIONS and op.operands[0].tensor.size:
            self._join(op, position, reduction=True)
            self.views[op.result] = own(op.result)
        else:
            self._call(op, position)

    def origin_iota(self, line: Value) -> None:
        self.views[line] = own(line)
        iotas.add(line)

    def _view(self, op: Op, position: int) -> None:
        x = op.operands[0]
        view = through(op, self.views[x])
        if view is None:
            x = self._copy(x, position)
            view = through(op, self.views[x])
            assert view is not None
        elif op.name in _SAME_ORDER and op.result.shape != () and x.shape != ():
            self.origin[op.result] = x
        self.views[op.result] = view

    def _call(self, op: Op, position: int) -> None:
        bodies = tuple(schedule(r, copy_params=op.name in ("for", "while")) for r in op.regions)
        operands = []
        for i, x in enumerate(op.operands):
            any_view = op.name in _READS_VIEWS or (op.name in _FIRST_VIEW and i == 0)
            operands.append(x if any_view else self._stored(x, position))
        if op.name == "dot":
            operands = self._dot_operands(op, operands, position)
        for result in op.results:
            if isinstance(result.type, TensorType):
                self.views[result] = own(result)
        index = self._new(Call(op, tuple(operands), bodies), position)
        self._depend(index, operands)
        self.unit_of.update(dict.fromkeys(op.results, index))

    def _dot_operands(self, op: Op, operands: list[Value], position: int) -> list[Value]:
        """Operands whose free and contracted axes each run as one; copied into such an order where they do not."""
        from .products import axis_order, runs_as_matrix

        out = []
        for side, x in enumerate(operands):
            if not runs_as_matrix(op, side, self.views[x]) or self.views[x].base in iotas:
                perm = axis_order(op, side)
                shape = tuple(x.shape[p] for p in perm)
                ordered = Value(TensorType(x.dtype, shape))
                view = self.views[x]
                self.views[ordered] = View(
                    view.base, view.offset, tuple(view.strides[p] for p in perm)
                )
                self._reads(ordered, x)
                copy = self._copy(ordered, position)
                strides = contiguous_strides(shape)
                x = Value(x.type)
                self.views[x] = View(copy, 0, tuple(strides[perm.index(i)] for i in range(len(perm))))
            out.append(x)
        return out
