"""Where every tensor of a program lies.

Parameters, result buffers, and one arena with fixed offsets.

The steps of a schedule, those of its regions included, stand on one line of time, in the order of
the text. A tensor lives from the step that writes it to the last that reads it; what a loop reads
from outside lives until the loop ends. Two tensors may share memory when they are never alive at
the same time. Step t reads at time 2t and writes at 2t + 1.

One region of a branch runs, and the others do not. So what a branch reads, and nothing after it,
is alive in each region from its start to its last reading there: one region may write over it, and
the text of the next one still reads it.

First tensors are made one: a loop's carry with what the body gives for it (so that the body writes
it in place) and with what it starts from, an elementwise result with an operand that dies there,
a result of the function with its buffer. What cannot be made one is copied. Then what is left for
the arena is placed, the largest first, each in the tightest gap among those alive with it
(greedy by size: Pisarchyk and Lee, "Efficient memory management for deep neural net inference",
2020, section 5.1).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ....common.aligned_arrays import ALIGNMENT
from ...ir import Function, Op, TensorType, Type, Value, Values
from .block_steps import UPDATES, Call, Loop, Schedule, operands_of
from .views import View, contiguous_strides, is_whole, strides_in

#: A copy in a loop costs this many bits more than one outside: it happens in every round.
_DEPTH_BITS = 6

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Memory of one tensor: parameter, result or constant `index`, or byte `index` of the arena."""

    kind: Literal["param", "result", "constant", "arena"]
    index: int


@dataclass(frozen=True, slots=True)
class Move:
    """A tensor to be copied into another, because it could not be computed there."""

    source: Value
    target: Value


@dataclass(slots=True)
class MemoryPlan:
    """Places of bases.

    Rank-0 values and lists have none (they are local variables), nor have tensors without elements.
    """

    places: dict[Value, Place] = field(default_factory=dict)
    """Where each stored tensor lies."""
    offsets: dict[Value, int] = field(default_factory=dict)
    """For a region's parameter that names a part of a tensor outside, and for a window, the
    elements to skip, besides those that only the running program knows.
    """
    before: dict[Op, list[Move]] = field(default_factory=dict)
    """For an operation with regions, the copies that start its carries."""
    after: dict[tuple[Op, int], list[Move]] = field(default_factory=dict)
    """For an operation and the index of a region, the copies at the end of that region."""
    results: list[tuple[int, Value]] = field(default_factory=list)
    """(index of a result buffer, value) to be copied when the program ends."""
    scratch: dict[Call, int] = field(default_factory=dict)
    """For a call, the byte of the arena where the working memory that it asked for is."""
    arena_bytes: int = 0
    """Size of the arena."""
    tensor_bytes: int = 0
    """What all stored tensors would take if each had memory of its own."""


def has_memory(value: Value) -> bool:
    """Whether a value needs a place: tensors do, but for rank 0 and those without elements."""
    return isinstance(value.type, TensorType) and value.shape != () and value.type.size > 0


def donations(function: Function) -> dict[int, int]:
    """For each donated parameter, the first result of its type without another."""
    pairs: dict[int, int] = {}
    offers: dict[Type, list[int]] = {}
    for j, type_ in reversed(list(enumerate(function.result_types))):
        offers.setdefault(type_, []).append(j)
    for i in sorted(function.donated):
        param = function.body.params[i]
        if has_memory(param) and offers.get(param.type):
            pairs[i] = offers[param.type].pop()
    return pairs


def plan(
    schedule: Schedule,
    constant: Callable[[Value], Place],
    scratch: Callable[[Call, Schedule], int],
    donated: Mapping[int, int] | None = None,
) -> MemoryPlan:
    """Plans a function.

    Args:
        schedule: that of its body. constant: gives the place of a constant. scratch: gives the
        bytes that a call works in. donated: by parameter, the result whose buffer it lies in.
    """
    return _Planner(constant, scratch).run(schedule, donated or {})


class _Buffer:
    """Memory that one or several tensors share.

    `spans` are the closed intervals in which one of them is alive, `writes` when and as which value
    one is written, `names` the values that lie there as the text of a block has them.
    """

    __slots__ = ("merged", "names", "only", "owned", "place", "size", "spans", "writes")

    def __init__(self, size: int, place: Place | None = None) -> None:
        self.size = size
        self.place = place
        self.owned = place is None
        self.only: Place | None = None  # the one place outside the arena that it may have
        self.spans: list[Span] = []
        self.writes: list[tuple[int, Value]] = []
        self.merged: _Buffer | None = None
        self.names: list[Value] = []

    def root(self) -> _Buffer:
        buffer = self
        while buffer.merged is not None:
            buffer = buffer.merged
        return buffer


class _Planner:
    def __init__(
        self, constant: Callable[[Value], Place], scratch: Callable[[Call, Schedule], int]
    ) -> None:
        self.constant = constant
        self.scratch_bytes = scratch
        self.plan = MemoryPlan()
        self.buffers: dict[Value, _Buffer] = {}
        self.all: list[_Buffer] = []
        self.scratch: dict[Call, _Buffer] = {}
        self.opened: set[Value] = set()  # values that lie in a row of another tensor
        self.time = 0
        self.depth = 0
        self.last: dict[Value, int] = {}  # the last step of the block that reads a base
        self.kept: set[_Buffer] = set()  # what outlives the block, though it may not be read there
        self.reads: dict[int, list[Value]] = {}
        # (time, written, read): each element is read before it is written, and by none after.
        self.in_place: set[tuple[int, Value, Value]] = set()
        # Pairs to be made one: what a copy would cost (nothing in a fused loop, which writes
        # somewhere in any case), the bytes, and the two.
        self.wishes: list[tuple[int, int, Value, Value]] = []
        # Copies that are not needed where source and target become one.
        self.copies: list[tuple[list[Move], Move, Value]] = []

    def run(self, schedule: Schedule, donated: Mapping[int, int]) -> MemoryPlan:
        for i, param in enumerate(schedule.params):
            if has_memory(param):
                j = donated.get(i)
                place = Place("param", i) if j is None else Place("result", j)
                buffer = self._lies(param, _Buffer(param.tensor.nbytes, place))
                buffer.owned = j is not None
                self._extend(buffer)
        self._walk(schedule, set())
        self.time += 1
        for r in schedule.results:
            self._read(schedule, r)
        self._pin_results(schedule, donated)
        self._join()
        for moves, move, base in self.copies:
            if self.buffers[base].root() is not self.buffers[move.target].root():
                moves.append(move)
        for j, r in enumerate(schedule.results):
            if has_memory(r):
                lies = self.buffers[schedule.views[r].base].root().place
                if lies != Place("result", j):
                    self.plan.results.append((j, r))
        self._assign()
        return self.plan

    # -- lifetimes

    def _lies(self, value: Value, buffer: _Buffer) -> _Buffer:
        """The value lies in a buffer, perhaps besides others."""
        self.buffers[value] = buffer
        buffer.names.append(value)
        return buffer

    def _write(self, value: Value, buffer: _Buffer | None = None) -> None:
        """The value is written now, into memory of its own or into a buffer."""
        if not has_memory(value):
            return
        if value in self.opened:
            self._extend(self.buffers[value])
            return
        if buffer is None:
            buffer = self._lies(value, _Buffer(value.tensor.nbytes))
            self.all.append(buffer)
        buffer.spans.append((2 * self.time + 1, 2 * self.time + 1))
        buffer.writes.append((self.time, value))

    def _extend(self, buffer: _Buffer) -> None:
        """The buffer is alive until now."""
        if not buffer.spans:
            buffer.spans.append((0, 0))
        start, end = buffer.spans[-1]
        buffer.spans[-1] = (start, max(end, 2 * self.time))

    def _read(self, schedule: Schedule, value: Value) -> None:
        """The value is read now; a constant gets its place."""
        if not isinstance(value.type, TensorType) or not has_memory(schedule.views[value].base):
            return
        base = schedule.views[value].base
        if base in schedule.iotas:
            return
        if base in schedule.constants and base not in self.buffers:
            self._lies(base, _Buffer(base.tensor.nbytes, self.constant(base)))
        self._extend(self.buffers[base])
        self.reads.setdefault(self.time, []).append(base)

    def _overwrites(self, written: Value, read: Value, saves_copy: bool) -> None:
        """This step may write a value over another, element by element; it is best if it does."""
        self.in_place.add((self.time, written, read))
        size = read.tensor.nbytes
        saved = size << _DEPTH_BITS * min(self.depth, 8) if saves_copy else 0
        self.wishes.append((saved, size, written, read))

    def _copy(self, moves: list[Move], schedule: Schedule, source: Value, target: Value) -> None:
        """The source becomes the target now: by a copy, if they cannot be one."""
        view = schedule.views[source]
        self.copies.append((moves, Move(source, target), view.base))
        if is_whole(view, source):
            self._overwrites(target, view.base, saves_copy=True)

    def _walk(self, schedule: Schedule, kept: set[_Buffer]) -> None:
        """The steps of a block. kept: of the buffers that it is given, those that outlive it."""
        before = self.last, self.kept
        self.last, self.kept = _last_reads(schedule), kept
        for index, step in enumerate(schedule.steps):
            self.time += 1
            if isinstance(step, Loop):
                self._loop(schedule, step)
            elif step.op.name in ("for", "while"):
                self._repeat(schedule, step)
            elif step.op.name in ("if", "switch"):
                self._branch(schedule, step, index)
            else:
                self._call(schedule, step)
        self.last, self.kept = before

    def _is_read_after(self, buffer: _Buffer, index: int) -> bool:
        """Whether anything after a step of the block needs what the buffer holds."""
        return buffer in self.kept or any(self.last.get(v, -1) > index for v in buffer.names)

    def _given(self, schedule: Schedule, values: Values) -> set[_Buffer]:
        """The buffers of a region's arguments."""
        bases = [schedule.views[v].base for v in values if has_memory(v)]
        return {self.buffers[base] for base in bases if base in self.buffers}

    def _loop(self, schedule: Schedule, loop: Loop) -> None:
        product = loop.product
        for v in loop.loads:
            if product is None or schedule.views[v].base is not product.op.result:
                self._read(schedule, v)
        read_by_product: set[Value] = set()
        if product is not None:
            for v in product.read:
                self._read(schedule, v)
                read_by_product.add(schedule.views[v].base)
            self._scratch(schedule, product)
        if loop.fused is not None:  # its matrix, the second, is read row by row before it changes
            for v in loop.fused.operands:
                self._read(schedule, v)
            read_by_product.add(schedule.views[loop.fused.operands[0]].base)
            self._scratch(schedule, loop.fused)
            self._write(loop.fused.op.result)
        for value in (*(copy for copy, _ in loop.stores), *(r.result for r in loop.reductions)):
            self._write(value)
        views = {schedule.views[v].base: None for v in loop.loads}
        for copy, _ in loop.stores:
            for base in views:
                if (
                    base in self.buffers
                    and base not in read_by_product
                    and _reads_in_place(schedule, loop, base, copy)
                ):
                    self._overwrites(copy, base, saves_copy=False)

    def _call(self, schedule: Schedule, call: Call) -> None:
        for v in call.read:
            self._read(schedule, v)
        if call.window:
            self._alias(call.op.result, schedule.views[call.operands[0]])
            return
        self._scratch(schedule, call)
        for result in call.op.results:
            self._write(result)
        if call.opens is not None:
            self._lies(call.opens, self.buffers[call.op.result])
            self.opened.add(call.opens)
        if call.op.name in UPDATES and has_memory(call.op.result):
            first, *rest = call.operands
            view = schedule.views[first]
            if (
                view.base in self.buffers
                and is_whole(view, first)
                and all(schedule.views[v].base is not view.base for v in rest)
            ):
                self._overwrites(call.op.result, view.base, saves_copy=True)

    def _scratch(self, schedule: Schedule, call: Call) -> None:
        size = self.scratch_bytes(call, schedule)
        if size:
            buffer = _Buffer(size)
            buffer.spans.append((2 * self.time, 2 * self.time + 1))
            self.scratch[call] = buffer
            self.all.append(buffer)

    # -- regions

    def _alias(self, inner: Value, view: View) -> None:
        """A region's parameter is another name for a tensor outside, a window for a part of it."""
        if has_memory(inner):
            self._lies(inner, self.buffers[view.base])
            skip = view.offset + self.plan.offsets.get(view.base, 0)
            if skip:
                self.plan.offsets[inner] = skip

    def _repeat(self, schedule: Schedule, step: Call) -> None:
        op = step.op
        bounds = 2 if op.name == "for" else 0
        split = bounds + int(op.attrs["consts"])
        consts, starts = step.operands[bounds:split], step.operands[split:]
        for v in step.operands:
            self._read(schedule, v)
        self._scratch(schedule, step)
        moves = self.plan.before.setdefault(op, [])
        for result, start in zip(op.results, starts, strict=True):
            self._write(result)
            if has_memory(result):
                self._copy(moves, schedule, start, result)
        self.depth += 1
        for region, inner in enumerate(step.bodies):
            params = inner.params[1:] if op.name == "for" else inner.params
            for p, v in zip(params, consts, strict=False):
                self._alias(p, schedule.views[v]) if has_memory(v) else None
            carried = params[len(consts) :]
            for p, r in zip(carried, op.results, strict=True):
                if has_memory(p):
                    self._lies(p, self.buffers[r])
            is_body = inner is step.bodies[-1]
            kept = self._given(schedule, consts)
            if not is_body:
                kept |= {self.buffers[r] for r in op.results if has_memory(r)}
            self._walk(inner, kept)
            self.time += 1
            for r in inner.results:
                self._read(inner, r)
            if is_body:
                self._write_back(op, region, inner, carried)
            else:  # the condition runs once more than the body: all carries outlive it
                for r in op.results:
                    if has_memory(r):
                        self._extend(self.buffers[r])
        self.depth -= 1
        for v in consts:
            self._read(schedule, v)
        if step in self.scratch:
            self._extend(self.scratch[step])

    def _write_back(self, op: Op, region: int, body: Schedule, carried: Values) -> None:
        """Carries of the next round: a new value may lie where the dead old one was."""
        moves = self.plan.after.setdefault((op, region), [])
        for p, r, result in zip(carried, body.results, op.results, strict=True):
            if has_memory(p) and body.views[r].base is not p:
                self._write(result, self.buffers[result])
                self._copy(moves, body, r, result)

    def _branch(self, schedule: Schedule, step: Call, index: int) -> None:
        op = step.op
        for v in step.operands:
            self._read(schedule, v)
        for result in op.results:
            if has_memory(result):
                self.all.append(self._lies(result, _Buffer(result.tensor.nbytes)))
        given = self._given(schedule, step.operands)
        kept = {b for b in given if self._is_read_after(b, index)}
        for region, inner in enumerate(step.bodies):
            self.time += 1
            for buffer in given - kept:
                buffer.spans.append((2 * self.time, 2 * self.time))
            for p, v in zip(inner.params, step.operands[1:], strict=True):
                self._alias(p, schedule.views[v]) if has_memory(v) else None
            self._walk(inner, kept)
            self.time += 1
            moves = self.plan.after.setdefault((op, region), [])
            for r in inner.results:
                self._read(inner, r)
            for r, result in zip(inner.results, op.results, strict=True):
                if has_memory(result):
                    self._write(result, self.buffers[result])
                    self._copy(moves, inner, r, result)
        for buffer in kept:
            self._extend(buffer)

    # -- making one of two

    def _pin_results(self, schedule: Schedule, donated: Mapping[int, int]) -> None:
        """What the function gives lies in a result buffer, unless it is a parameter or constant."""
        params = {j: schedule.params[i] for i, j in donated.items()}
        for j, r in enumerate(schedule.results):
            if has_memory(r):
                base = schedule.views[r].base
                if j in params:
                    self.wishes.append((r.tensor.nbytes, r.tensor.nbytes, base, params[j]))
                    self.buffers[base].only = Place("result", j)
                elif self.buffers[base].place is None:
                    self.buffers[base].place = Place("result", j)

    def _join(self) -> None:
        for _, _, a, b in sorted(self.wishes, key=lambda wish: (-wish[0], -wish[1])):
            one, two = self.buffers[a].root(), self.buffers[b].root()
            if one is two or not (one.owned and two.owned) or one.size != two.size:
                continue
            places = {one.place, one.only, two.place, two.only} - {None}
            if len(places) > 1 or (one.place and two.place) or not self._may_join(one, two):
                continue
            two.merged = one
            one.spans = sorted(one.spans + two.spans)
            one.writes += two.writes
            one.place = one.place or two.place
            one.only = one.only or two.only

    def _may_join(self, one: _Buffer, two: _Buffer) -> bool:
        """Whether they are never alive together, nor one read by a step that writes the other."""
        if _overlap(one.spans, two.spans):
            return False
        for written, other in ((one, two), (two, one)):
            for time, value in written.writes:
                for read in self.reads.get(time, ()):
                    if self.buffers[read].root() is other and (
                        (time, value, read) not in self.in_place
                    ):
                        return False
        return True

    # -- the arena

    def _assign(self) -> None:
        self.plan.tensor_bytes = sum(b.size for b in self.all)
        roots = [b for b in self.all if b.merged is None and b.place is None]
        # By place; and a bit for each time when alive.
        placed: list[tuple[Span, int]] = []
        for buffer in sorted(roots, key=lambda b: (-b.size, b.spans)):
            alive = 0
            for start, end in buffer.spans:
                # A step that writes a tensor may still be reading the others: from its start on.
                alive |= (1 << end + 1) - (1 << (start & ~1))
            size = -(-buffer.size // ALIGNMENT) * ALIGNMENT
            offset = _gap([at for at, other in placed if alive & other], size)
            buffer.place = Place("arena", offset)
            insort(placed, ((offset, offset + size), alive))
        self.plan.arena_bytes = max((end for (_, end), _ in placed), default=0)
        for value, buffer in self.buffers.items():
            at = buffer.root().place
            assert at is not None, "every tensor has a place"
            self.plan.places[value] = at
        for call, buffer in self.scratch.items():
            assert buffer.place is not None, "scratch memory has a place"
            self.plan.scratch[call] = buffer.place.index


def _reads_in_place(schedule: Schedule, loop: Loop, base: Value, written: Value) -> bool:
    """Whether the loop reads, of a tensor, just the element at the place that it writes."""
    if base.tensor.size != written.tensor.size or base.dtype is not written.dtype:
        return False
    expected = contiguous_strides(loop.extents)
    for v in loop.loads:
        view = schedule.views[v]
        if view.base is base and (
            view.offset or strides_in(loop.space, v.shape, view.strides) != expected
        ):
            return False
    return True


def _last_reads(schedule: Schedule) -> dict[Value, int]:
    """For each base that a block reads, its last step that does; a result is read after all."""
    last: dict[Value, int] = {}
    for index, values in enumerate([*map(operands_of, schedule.steps), schedule.results]):
        for v in values:
            if isinstance(v.type, TensorType):
                last[schedule.views[v].base] = index
    return last


def _overlap(a: list[Span], b: list[Span]) -> bool:
    """Whether any of one list meets any of the other; both are sorted."""
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][1] < b[j][0]:
            i += 1
        elif b[j][1] < a[i][0]:
            j += 1
        else:
            return True
    return False


def _gap(taken: list[Span], size: int) -> int:
    """The offset of the tightest gap, among sorted intervals, that holds `size` bytes."""
    best, best_size = -1, 0
    end = 0
    for start, stop in taken:
        if start - end >= size and (best < 0 or start - end < best_size):
            best, best_size = end, start - end
        if stop > end:
            end = stop
    return end if best < 0 else best
