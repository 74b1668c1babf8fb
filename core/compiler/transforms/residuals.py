"""What reverse mode keeps of the rounds of a loop, so that it needs no array of an earlier round.

A carry that each round changes in place is *scarce*: one array holds all its versions, and saving
a version costs a copy of the whole. What the reverse of a round needs of it is mostly what the
round read, so that is kept instead:

    of an operation that reads a scarce array    its result, where that is smaller
    of a choice by what was read                 which one it was
    of a loop or branch that does                its results, and what it keeps itself: an inner
                                                 loop is not run again, its lists are items of the
                                                 lists of the outer loop

What an innermost loop keeps is a tensor with a row a round, where its number of rounds is known to
be near a constant: fixed, or one more or one less each time (`for j in range(i + 1, n)`). Else it
is lists.

Whatever else the reverse needs, it computes again from these and from the carries at the start of
the round. A scarce array is saved with the carries as well, and that list is dropped (`dce`) unless
something of the array's own size needs it, as in `x * x`. So saved bytes grow with the elements
that are read, and not with rounds times the array's size (the store-all approach of source
transformation: Hascoët and Pascual, "The Tapenade automatic differentiation tool", 2013, section
4.3; here it is reads that are stored, not what is overwritten).

A loop with a bound that is `opaque`, as `checkpoint` makes them, is run again all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..ir import Block, DType, ListType, Op, TensorType, Type, Value
from ..passes.value_ranges import Form, Intervals, forms, intervals
from ..primitives import PRIMITIVES
from .activity import BRANCHES, LEADING, Activity, Flags, carries_start

_I64 = TensorType(DType.I64)

#: Their result is the first operand with other elements, or under another shape.
_CHANGES = frozenset(["dynamic_update", "put_add", "put_along_add", "reshape"])

#: Their first operand says what is taken.
_CHOICES = frozenset([*BRANCHES, "select"])

#: What a loop computed is saved for its reverse where it took at least so many operations a byte:
#: reading it back is then far cheaper than computing it again (products over 64 numbers and more).
SAVED_WORK_MIN = 32
#: At most so many bytes for all trips of a loop; the rest is computed again.
SAVED_BYTES_MAX = 64 * 2**20
#: A tensor of what an inner loop keeps has at most so many bytes; past that it is a list.
ROWS_BYTES_MAX = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Saved:
    """What is kept of a block: `values` of its own, then what its operations with regions keep."""

    values: tuple[Value, ...] = ()
    inner: Mapping[Op, SavedOfOp] = field(default_factory=dict)

    @property
    def types(self) -> list[Type]:
        return [*(v.type for v in self.values), *(t for s in self.inner.values() for t in s.types)]

    @property
    def has_loop(self) -> bool:
        """Whether a loop is among what keeps something."""
        return any(
            isinstance(saved, SavedLoop) or any(region.has_loop for region in saved.regions)
            for saved in self.inner.values()
        )

    def matched(
        self, given: Sequence[Value]
    ) -> tuple[dict[Value, Value], dict[Op, tuple[Value, ...]]]:
        """Of given values of `types`: which stands for each value, and which each operation has."""
        at = len(self.values)
        own = dict(zip(self.values, given[:at], strict=True))
        inner = {}
        for op, saved in self.inner.items():
            count = len(saved.types)
            inner[op] = tuple(given[at : at + count])
            at += count
        assert at == len(given), f"{len(given)} values for {at}"
        return own, inner


@dataclass(frozen=True, slots=True)
class SavedRows:
    """The rows that a loop keeps."""

    count: int
    first: int | None
    """The index whose row is row 0; None: the loop's lower bound, which changes."""


@dataclass(frozen=True, slots=True)
class SavedLoop:
    """What is kept of a loop: a `while`'s trips, and lists of the carries and of the body's."""

    op: Op
    body: Saved
    rows: SavedRows | None = None
    """Tensors with a row a trip stand for lists; None: for no list."""

    @property
    def types(self) -> list[Type]:
        trips = [_I64] if self.op.name == "while" else []
        carries = [r.type for r in self.op.results]
        return [*trips, *(self._many(t) for t in (*carries, *self.body.types))]

    def _many(self, type_: Type) -> Type:
        if self.rows is None or isinstance(type_, ListType):
            return ListType(type_)
        tensor = TensorType(type_.dtype, (self.rows.count, *type_.shape))
        return tensor if tensor.nbytes <= ROWS_BYTES_MAX else ListType(type_)


@dataclass(frozen=True, slots=True)
class SavedBranch:
    """What is kept of an `if` or `switch`: that of each region, zeros where another one ran."""

    regions: tuple[Saved, ...]

    @property
    def types(self) -> list[Type]:
        return [t for region in self.regions for t in region.types]


SavedOfOp: TypeAlias = SavedLoop | SavedBranch


class Residuals:
    """Finds what is kept, and caches it for each block.

    whole: the block that is differentiated, in which no two operations share a region.
    """

    def __init__(self, activity: Activity, whole: Block) -> None:
        self.activity = activity
        self._whole = whole
        self._blocks: dict[tuple[int, Flags, Flags], Saved] = {}
        self._scarce: dict[tuple[int, Flags], Flags] = {}
        self._read: dict[int, Flags] = {}
        self._kept: dict[int, Block] = {}  # keeps each block alive, so that its id stays its own

    # -- what is saved

    def loop(self, block: Block, op: Op, varied: Flags, scarce: Flags) -> SavedLoop:
        """What is kept of a loop of a block, given which of its operands are varied and scarce."""
        start, lead = carries_start(op), LEADING[op.name]
        index = (False,) if op.name == "for" else ()
        moving = self.activity.varied_carries(op, varied)
        fixed = scarce[lead:start]
        found = self._block(
            op.regions[-1],
            (*index, *varied[lead:start], *moving),
            (*index, *fixed, *self._scarce_carries(op, scarce)[0]),
        )
        own = dict.fromkeys((*_dear(block, op), *found.values))
        return SavedLoop(op, Saved(tuple(own), found.inner))

    def _block(self, block: Block, varied: Flags, scarce: Flags) -> Saved:
        key = id(block), varied, scarce
        if key not in self._blocks:
            self._kept[id(block)] = block
            self._blocks[key] = self._found(block, varied, scarce)
        return self._blocks[key]

    def _found(self, block: Block, varied: Flags, scarce: Flags) -> Saved:
        if not any(scarce):
            return Saved()
        active = self.activity.varied_values(block, varied)
        held = self._scarce_values(block, scarce)
        values: list[Value] = []
        inner: dict[Op, SavedOfOp] = {}
        made = {r: op for op in block.ops for r in op.results}
        computed: set[Value] = set()  # from what is saved
        for op in block.ops:
            flags = tuple(v in held for v in op.operands)
            if op.name in _CHOICES and op.operands[0] in computed:
                values.append(op.operands[0])
            if not op.regions and any(v in computed or v in held for v in op.operands):
                computed.update(r for r in op.results if r not in held)
            if not any(flags) or op.name == "custom_vjp":
                continue
            if not op.regions:
                values += [r for r in op.results if _is_smaller(r, op, flags)]
            elif not _is_opaque(op, made):
                if any(r in active for r in op.results):
                    inner[op] = self._of(block, op, tuple(v in active for v in op.operands), flags)
                    values += op.results
                else:
                    values += [r for r in op.results if r not in held]
        return Saved(tuple(dict.fromkeys(values)), inner)

    def _of(self, block: Block, op: Op, varied: Flags, scarce: Flags) -> SavedOfOp:
        if op.name in BRANCHES:
            return SavedBranch(tuple(self._block(r, varied[1:], scarce[1:]) for r in op.regions))
        found = self.loop(block, op, varied, scarce)
        return SavedLoop(op, found.body, None if found.body.has_loop else self._rows(op))

    def _rows(self, op: Op) -> SavedRows | None:
        """Rows for the most trips of a loop, where on average it is half of them or more."""
        if op.name != "for":
            return None
        ranges, places, indices = self._numbers
        lo, hi = op.operands[:2]
        trips = places[hi].plus(places[lo], -1)
        most = trips.constant
        for value, factor in trips.terms.items():
            if len(trips.terms) > 1 or value not in indices or abs(factor) != 1:
                return None
            if value not in ranges:
                return None
            most += max(factor * end for end in ranges[value])
        if lo in ranges and hi in ranges and ranges[hi][1] - ranges[lo][0] <= most:
            return SavedRows(max(most, 1), ranges[lo][0])
        return SavedRows(max(most, 1), None)

    @functools.cached_property
    def _numbers(self) -> tuple[Intervals, dict[Value, Form], set[Value]]:
        """The intervals and forms of whole numbers, and which of these are indices of loops."""
        ranges = intervals(self._whole)
        loops = (op for op in self._whole.walk() if op.name == "for")
        indices = {op.regions[0].params[0] for op in loops}
        return ranges, forms(self._whole, ranges), indices

    # -- scarce arrays

    def _scarce_values(self, block: Block, params: Flags) -> set[Value]:
        """The values of a block that are versions of scarce arrays, given which parameters are."""
        held = {p for p, flag in zip(block.params, params, strict=True) if flag}
        for op in block.ops:
            flags = tuple(v in held for v in op.operands)
            if not any(flags):
                continue
            if op.name in _CHANGES:
                results: Flags = (flags[0],)
            elif op.name in BRANCHES:
                sets = [self._scarce_results(r, flags[1:]) for r in op.regions]
                results = tuple(any(each) for each in zip(*sets, strict=True))
            elif op.name in LEADING:
                results = self._scarce_carries(op, flags)[1]
            else:
                continue
            held.update(r for r, flag in zip(op.results, results, strict=True) if flag)
        return held

    def _scarce_results(self, block: Block, params: Flags) -> Flags:
        key = id(block), params
        if key not in self._scarce:
            self._kept[id(block)] = block
            held = self._scarce_values(block, params)
            self._scarce[key] = tuple(r in held for r in block.results)
        return self._scarce[key]

    def _scarce_carries(self, op: Op, operands: Flags) -> tuple[Flags, Flags]:
        """A loop's carries that are scarce, given so or changed in place by each round.

        Those of its results that are versions of such. The fixed point, shrinking.
        """
        start, lead = carries_start(op), LEADING[op.name]
        body = op.regions[-1]
        index = (False,) if op.name == "for" else ()
        given = operands[start:]
        own = body.params[len(index) + start - lead :]
        flags = tuple(
            flag or (_is_array(p.type) and r is not p)
            for flag, p, r in zip(given, own, body.results, strict=True)
        )
        while True:
            after = self._scarce_results(body, (*index, *operands[lead:start], *flags))
            triples = zip(given, flags, after, strict=True)
            shrunk = tuple(flag or (now and then) for flag, now, then in triples)
            if shrunk == flags:
                return flags, after
            flags = shrunk

    # -- arrays that are read in part

    def read_in_part(self, op: Op) -> Flags:
        """Which operands of an operation with regions these read in part, and do not change.

        Their cotangents are a few elements each time: they are added to what is there already.
        """
        inside = [self._params_read(region) for region in op.regions]
        if op.name in BRANCHES:
            return (False, *(any(flags) for flags in zip(*inside, strict=True)))
        if op.name not in LEADING:
            return (False,) * len(op.operands)
        start, lead = carries_start(op), LEADING[op.name]
        index = 1 if op.name == "for" else 0
        fixed = inside[-1][index : index + start - lead]
        return (*(False,) * lead, *fixed, *(False,) * (len(op.operands) - start))

    def views(self, block: Block) -> dict[Value, Value]:
        """The reshaped arrays of a block that are read in part, and what each is a view of."""
        made = {op.results[0]: op for op in block.ops if op.name == "reshape"}
        views = {}
        for value in self._read_values(block):
            root = value
            while root in made:
                root = made[root].operands[0]
            if root is not value:
                views[value] = root
        return views

    def _read_values(self, block: Block) -> set[Value]:
        found: set[Value] = set()
        for op in block.ops:
            if op.regions:
                flags = self.read_in_part(op)
                found.update(v for v, flag in zip(op.operands, flags, strict=True) if flag)
            elif PRIMITIVES[op.name].put is not None:
                found.add(op.operands[0])
        return found

    def _params_read(self, block: Block) -> Flags:
        if id(block) not in self._read:
            self._kept[id(block)] = block
            found = self._read_values(block)
            found.update(self.views(block).values())
            self._read[id(block)] = tuple(p in found for p in block.params)
        return self._read[id(block)]


def _is_array(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.size > 1


def _is_smaller(result: Value, op: Op, scarce: Flags) -> bool:
    """Whether a result is worth keeping in place of the scarce arrays that it is computed from."""
    if not isinstance(result.type, TensorType) or len(op.results) > 1:
        return False
    read = [v.tensor.size for v, flag in zip(op.operands, scarce, strict=True) if flag]
    return result.type.size < max(read)


def _is_opaque(op: Op, made: Mapping[Value, Op]) -> bool:
    """Whether a loop is there to be run again."""
    return any(v in made and made[v].name == "opaque" for v in op.operands)


def _dear(block: Block, loop: Op) -> tuple[Value, ...]:
    """The values of a loop's body that took long to compute.

    There are none where the number of trips is unknown, as in the segments of `checkpoint`.
    """
    constants = {op.results[0]: op for op in block.ops if op.name == "constant"}
    if loop.name != "for" or any(v not in constants for v in loop.operands[:2]):
        return ()
    lo, hi = (int(constants[v].attrs["value"]) for v in loop.operands[:2])
    room = SAVED_BYTES_MAX // max(hi - lo, 1)
    found: list[Value] = []
    for op in loop.regions[0].ops:
        if op.regions or len(op.results) != 1 or not isinstance(op.results[0].type, TensorType):
            continue
        size = op.result.tensor.nbytes
        work = PRIMITIVES[op.name].cost(op)
        if 0 < size <= room and work >= SAVED_WORK_MIN * size and op.result.dtype.is_float:
            found.append(_summed(loop.regions[0], op.result))
            room -= size
    return tuple(dict.fromkeys(found))


def _summed(body: Block, value: Value) -> Value:
    """The sum that a value goes into, where it is used for nothing else.

    Saved in its place, it spares the reverse the adding, whose derivative needs neither.
    """
    while True:
        users = [op for op in body.ops if value in op.operands]
        if len(users) != 1 or users[0].name not in ("add", "sub") or value in body.results:
            return value
        value = users[0].result
