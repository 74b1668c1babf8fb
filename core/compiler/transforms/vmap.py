"""Many lanes at once: a block to the block that does the same for each row of its arguments.

    f: (x...) -> (y...)        becomes        (X...) -> (Y...),  Y[lane] = f(X[lane])

where X has one more axis, the first, for each parameter that differs from lane to lane (*batched*);
the others are the same in all lanes, and what depends on those alone is computed once. Operations
are visited in order; each asks its primitive's batching rule (`ops.batching`).

A *mask* says which lanes an operation with regions is for:

    if, switch   on a batched predicate: every branch runs that some lane takes, and each lane
                 chooses its result.
    while        runs until all lanes are done; a lane that is done keeps its carries.
    for          with batched bounds runs as long as the longest lane, likewise.

A lane that is masked out must not do harm: on its own values a branch that it does not take may
divide by zero (and the zero cotangent that comes back, times infinity, be NaN), or its loop never
end. So it is given the values of a lane that is in, as constants to derivatives: it repeats that
lane's work, and its result is dropped. Where no lane is in, nothing runs. Regions of operations
that are harmless on any value (`_HARMLESS`) go without this.

A list of saved values needs nothing where all lanes push and pop together: its elements have one
axis more. Where a mask comes in, lanes have stacks of different lengths: then every list of the
program becomes a list with lanes, each a stack of its own (`ir.ListType`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..ir import Block, Builder, DType, ListType, Op, TensorType, Type, Types, Value, Values
from ..passes.dce import dce
from ..primitives import PRIMITIVES, batching
from ..primitives.table import BatchRule
from .activity import BRANCHES, LEADING, carries_start
from .spread import Flags, Kinds, Spread

_I64 = TensorType(DType.I64)

#: Finite on finite values and flat or linear, so that masked lanes may run them on anything.
_HARMLESS = frozenset(
    (
        *("constant", "iota", "reshape", "broadcast", "transpose", "reverse", "slice", "pad"),
        *("concat", "dynamic_slice", "dynamic_update", "take", "take_along", "put_add"),
        *("put_along_add", "add", "sub", "neg", "max", "min", "abs", "sign", "select", "convert"),
        *("not", "and", "or", "xor", "shl", "shr", "eq", "ne", "lt", "le", "floor", "ceil"),
        *("reduce_sum", "reduce_max", "reduce_min", "argmax", "argmin", "argsort", "cumsum"),
        *("stop_gradient", "is_finite", "bitcast", "threefry", "tanh", "sigmoid", "sin", "cos"),
        *("list_empty", "list_push", "list_pop", "list_add", "list_select", "list_take"),
    )
)
#: The same of integers alone.
_HARMLESS_ON_INTEGERS = frozenset(("mul", "floordiv", "mod", "dot", "reduce_prod"))


@dataclass(frozen=True, slots=True)
class Manner:
    """How lanes are made."""

    rules: Mapping[str, BatchRule] = field(default_factory=dict)
    """Stand in for primitives' own batching rules."""
    last: bool = False
    """Nothing will differentiate the result, so that a lane that is masked out may run on its own
    values: what it makes of them is dropped, NaN or not. (Not where a `while` might never end on
    them.)
    """


_PLAIN = Manner()


def vmap(
    block: Block, batched: Sequence[bool], size: int, manner: Manner = _PLAIN
) -> tuple[Block, tuple[bool, ...]]:
    """The block over `size` lanes, and which of its results differ from lane to lane.

    A parameter that is `batched`, and such a result, has the lanes as its first axis.

    >>> from delian.core.compiler.ir import Builder, DType, TensorType
    >>> b = Builder([TensorType(DType.F32, (3,)), TensorType(DType.F32)])
    >>> block = b.finish([b("reduce_sum", b.params[0], axes=(0,)), b.params[1]])
    >>> many, flags = vmap(block, [True, False], 8)
    >>> many.ops[0].attrs["axes"], many.results[0].type, flags
    ((1,), TensorType(dtype=<DType.F32: 'f32'>, shape=(8,)), (True, False))

    Raises:
        ValueError: there are no lanes, or a flag too few or too many, or a list is batched.
    """
    if size < 1:
        raise ValueError(f"there must be at least one lane, not {size}")
    flags = tuple(bool(f) for f in batched)
    if len(flags) != len(block.params):
        raise ValueError(f"{len(flags)} flags for {len(block.params)} parameters")
    if any(isinstance(p.type, ListType) for p in block.params):
        raise ValueError("a block that takes lists cannot be batched")
    try:
        return _vmap(block, flags, size, manner, lanes=False)
    except _NeedsLanes:
        return _vmap(block, flags, size, manner, lanes=True)


def _vmap(
    block: Block, flags: Flags, size: int, manner: Manner, lanes: bool
) -> tuple[Block, Flags]:
    spread = Spread(lanes)
    kinds = Kinds(size, lanes)
    b = Builder([kinds.of(p.type, f) for p, f in zip(block.params, flags, strict=True)])
    results = _Lanes(b, kinds, spread, manner).run(block, b.params, flags)
    outs = spread.results(block, flags)
    return dce(b.finish(results)), outs


class _NeedsLanes(Exception):
    """A mask meets a list: lanes must have stacks of their own."""


class _Lanes:
    """Builds a block's operations, over all lanes, into one builder."""

    def __init__(self, builder: Builder, kinds: Kinds, spread: Spread, manner: Manner) -> None:
        self.b = builder
        self.kinds = kinds
        self.spread = spread
        self.manner = manner

    def run(self, block: Block, args: Values, flags: Sequence[bool]) -> list[Value]:
        """Inlines a block at arguments, batched where flagged, and gives its results."""
        b, mapping = self.b, dict(zip(block.params, args, strict=True))
        batched = dict(zip(block.params, flags, strict=True))
        for op in block.ops:
            given = tuple(batched[v] for v in op.operands)
            made = self.spread.op(op, given)
            batched.update(zip(op.results, made, strict=True))
            if not any(made) and not any(given):
                b.copy(op, mapping)
                continue
            operands = [mapping[v] for v in op.operands]
            with b.at(op.locs):
                outs = self._op(op, operands, given, made)
            mapping.update(zip(op.results, outs, strict=True))
        return [mapping[r] for r in block.results]

    def _op(self, op: Op, operands: list[Value], given: Flags, made: Flags) -> Values:
        """The results of an operation, batched where `made` says."""
        if op.name in BRANCHES:
            return (self._chosen if given[0] else self._branch)(op, operands, given, made)
        if op.name in LEADING:
            _, masked = self.spread.carries(op, given)
            if not any(made) and masked:
                return operands[carries_start(op) :]  # all its carries stay as they were
            return (self._masked if masked else self._loop)(op, operands, given, made)
        if op.name == "custom_vjp":
            return self._custom(op, operands, given)
        if any(isinstance(v.type, ListType) for v in (*op.operands, *op.results)):
            return self._on_lists(op, operands, given)
        row, b, size = PRIMITIVES[op.name], self.b, self.kinds.size
        rule = self.manner.rules.get(op.name) or row.batch
        rule = rule or (batching.elementwise if row.c is not None else None)
        outs = None if rule is None else rule(b, op, operands, given, size)
        return batching.lane_loop(b, op, operands, given, size) if outs is None else outs

    def _on_lists(self, op: Op, operands: list[Value], given: Flags) -> Values:
        b = self.b
        if op.name == "list_empty":
            return (b("list_empty", type=self.kinds.of(op.results[0].type)),)
        wide = self._all(op.operands, operands, given)
        if op.name in ("list_take", "list_select") and not self._has_lanes(
            wide[0 if op.name == "list_take" else 1]
        ):
            raise _NeedsLanes
        if op.name == "list_take":
            stack = op.operands[0].type
            assert isinstance(stack, ListType)
            count = TensorType(_I64.dtype, wide[1].shape)
            lanes = 1
            for n in stack.lanes:
                lanes *= n
            top = b.full(count, lanes - 1)
            at = b("min", b("max", wide[1], b.full(count, 0)), top)
            first = b("iota", dtype=DType.I64, shape=count.shape, axis=0)
            wide[1] = b("add", at, b("mul", first, b.full(count, lanes)))
        return b.emit(op.name, wide, op.attrs)

    def _has_lanes(self, value: Value) -> bool:
        return isinstance(value.type, ListType) and bool(value.type.lanes)

    def _all(self, originals: Values, values: Values, flags: Sequence[bool]) -> list[Value]:
        """The values batched, all of them."""
        rows = zip(originals, values, flags, strict=True)
        return [v if f else self._widen(v, self.kinds.of(o.type)) for o, v, f in rows]

    def _widen(self, value: Value, type: Type) -> Value:
        """A value that is the same in all lanes, for each of them."""
        b = self.b
        if isinstance(type, TensorType):
            return batching.spread(b, value, False, self.kinds.size)
        # A list that is still empty is empty in all lanes.
        if any(op.name == "list_empty" and value is op.results[0] for op in b.ops):
            return b("list_empty", type=type)
        raise _NeedsLanes

    # -- regions

    def _region(
        self, block: Block, types: Types, flags: Sequence[bool], made: Sequence[bool]
    ) -> Block:
        """A region over all lanes, its results batched where `made` says."""
        inner = self._inner(types)
        return inner.b.finish(inner.run_wide(block, inner.b.params, flags, made))

    def _inner(self, types: Types) -> _Lanes:
        return _Lanes(Builder(types, self.b.locs), self.kinds, self.spread, self.manner)

    def run_wide(
        self, block: Block, args: Values, flags: Sequence[bool], made: Sequence[bool]
    ) -> list[Value]:
        """Likewise; a result that is the same in all lanes is batched too, where `made` says."""
        results = self.run(block, args, flags)
        have = self.spread.results(block, tuple(flags))
        rows = zip(block.results, results, have, made, strict=True)
        return [v if h or not m else self._widen(v, self.kinds.of(o.type)) for o, v, h, m in rows]

    def _custom(self, op: Op, operands: list[Value], given: Flags) -> Values:
        """All regions over the lanes; what all lanes share gets the sum of their cotangents."""
        primal, forward, reverse = op.regions
        types = [v.type for v in operands]
        results = (True,) * len(op.results)
        first = self._region(primal, types, given, results)
        kept = self.spread.results(forward, given)[len(op.results) :]
        second = self._region(forward, types, given, (*results, *kept))
        flags = [*kept, *(True for _ in reverse.params[len(kept) :])]
        kinds = [self.kinds.of(p.type, f) for p, f in zip(reverse.params, flags, strict=True)]
        inner = self._inner(kinds)
        wide = (True,) * len(reverse.results)
        made = inner.run_wide(reverse, inner.b.params, flags, wide)
        own = [f for v, f in zip(op.operands, given, strict=True) if v.dtype.is_float]
        outs = [
            v if f else inner.b("reduce_sum", v, axes=(0,)) for v, f in zip(made, own, strict=True)
        ]
        return self.b.emit("custom_vjp", operands, {}, (first, second, inner.b.finish(outs)))

    def _branch(self, op: Op, operands: list[Value], given: Flags, made: Flags) -> Values:
        """All lanes take one branch."""
        types = [v.type for v in operands[1:]]
        regions = [self._region(r, types, given[1:], made) for r in op.regions]
        return self.b.emit(op.name, operands, op.attrs, regions)

    def _chosen(self, op: Op, operands: list[Value], given: Flags, made: Flags) -> Values:
        """Each lane chooses its branch."""
        b, (choice, *args) = self.b, operands
        masks: list[Value] = []
        if op.name == "if":
            masks = [choice, b("not", choice)]
        else:
            last = b.full(choice.tensor, len(op.regions) - 1)
            index = b("min", b("max", choice, b.full(choice.tensor, 0)), last)
            masks = [b("eq", index, b.full(index.tensor, k)) for k in range(len(op.regions))]
        outs: list[Value] = []
        for mask, region in zip(reversed(masks), reversed(op.regions), strict=True):
            found = self._where_any(op, region, mask, args, given[1:])
            outs = (
                [self._select(mask, x, y) for x, y in zip(found, outs, strict=True)]
                if outs
                else found
            )
        return outs

    def _where_any(
        self, op: Op, region: Block, mask: Value, args: Values, flags: Flags
    ) -> list[Value]:
        """A branch's results for the lanes in the mask; anything for the others."""
        b, made = self.b, (True,) * len(op.results)
        if self._may_run(region):
            return self.run_wide(region, args, flags, made)
        types = [v.type for v in (mask, *args)]
        inner = self._inner(types)
        own_mask, *own = inner.b.params
        safe = inner.stand_ins(own_mask, own, flags)
        then = inner.b.finish(inner.run_wide(region, safe, flags, made))
        empty = Builder(types, b.locs)
        otherwise = empty.finish([empty.zeros(r.type) for r in then.results])
        some = b("reduce_max", mask, axes=(0,))
        return list(b.emit("if", (some, mask, *args), {}, (then, otherwise)))

    def _may_run(self, region: Block) -> bool:
        """Whether lanes that a region is not for may run it on their own values."""
        if self.manner.last:
            return not any(op.name == "while" for op in region.walk())
        return _is_harmless(region)

    def _select(self, mask: Value, x: Value, y: Value) -> Value:
        """x in the lanes of the mask, y in the others."""
        if x is y:
            return x
        b = self.b
        if isinstance(x.type, ListType):
            if not x.type.lanes:
                raise _NeedsLanes
            return b("list_select", _aligned(b, mask, x.type.lanes), x, y)
        return b("select", _aligned(b, mask, x.shape), x, y)

    def stand_ins(self, mask: Value, values: Values, flags: Sequence[bool]) -> list[Value]:
        """Batched values with those of a lane in the mask where a lane is out."""
        b = self.b
        if not any(flags):
            return list(values)
        lane = b("argmax", mask, axis=0)
        return [
            self._stand_in(mask, lane, v) if f else v for v, f in zip(values, flags, strict=True)
        ]

    def _stand_in(self, mask: Value, lane: Value, value: Value) -> Value:
        b = self.b
        if isinstance(value.type, ListType):
            lanes = value.type.lanes
            if not lanes:
                raise _NeedsLanes
            # Lane 0's places within the whole, moved on to those of `lane`.
            inner = 1
            for n in lanes[1:]:
                inner *= n
            kind = TensorType(DType.I64, lanes)
            order = b("iota", dtype=DType.I64, shape=(inner,), axis=0)
            order = b("reshape", order, shape=(1, *lanes[1:]))
            first = b("mul", lane, b.constant(inner, DType.I64))
            at = b("add", b("broadcast", order, shape=lanes, dims=_every(lanes)), b.full(kind, 0))
            at = b("add", at, b("broadcast", first, shape=lanes, dims=()))
            return self._select(mask, value, b("list_take", value, at))
        zero = b.constant(0, DType.I64)
        shape = value.shape
        starts = (lane, *(zero,) * (len(shape) - 1))
        row = b("dynamic_slice", value, *starts, sizes=(1, *shape[1:]))
        wide = b("broadcast", row, shape=shape, dims=_every(shape))
        return self._select(mask, value, b("stop_gradient", wide))

    def _loop(self, op: Op, operands: list[Value], given: Flags, made: Flags) -> Values:
        """A loop of which all lanes run the same number of trips."""
        lead, start = LEADING[op.name], carries_start(op)
        carries = self._wide_carries(op, operands[start:], given[start:], made)
        operands = [*operands[:start], *carries]
        types = [v.type for v in operands[lead:]]
        flags = (*given[lead:start], *made)
        regions = [self._region(r, types, flags, (False,)) for r in op.regions[:-1]]
        index, first = ([_I64], [False]) if op.name == "for" else ([], [])
        regions.append(self._region(op.regions[-1], [*index, *types], [*first, *flags], made))
        return self.b.emit(op.name, operands, op.attrs, regions)

    def _wide_carries(self, op: Op, values: Values, have: Flags, want: Flags) -> list[Value]:
        rows = zip(op.results, values, have, want, strict=True)
        return [v if h or not w else self._widen(v, self.kinds.of(o.type)) for o, v, h, w in rows]

    def _masked(self, op: Op, operands: list[Value], given: Flags, made: Flags) -> Values:
        """A loop that lanes leave at different times."""
        return (self._masked_for if op.name == "for" else self._masked_while)(
            op, operands, given, made
        )

    def _masked_while(self, op: Op, operands: list[Value], given: Flags, made: Flags) -> Values:
        """(consts..., active, carries...): runs while a lane is active."""
        b, split = self.b, carries_start(op)
        cond, body = op.regions
        flags = (*given[:split], *made)
        consts = operands[:split]
        carries = self._wide_carries(op, operands[split:], given[split:], made)
        active = self.run_wide(cond, [*consts, *carries], flags, (True,))[0]
        start = [*consts, active, *carries]
        types = [v.type for v in start]

        going = Builder(types, b.locs)
        test = going.finish([going("reduce_max", going.params[split], axes=(0,))])
        inner = self._inner(types)
        fixed, (mask, *now) = inner.b.params[:split], inner.b.params[split:]
        then = inner.masked_round(body, mask, [*fixed, *now], flags, made, now)
        still = inner.run_wide(cond, [*fixed, *then], flags, (True,))[0]
        done = inner.b.finish([inner.b("and", mask, still), *then])
        return b.emit("while", start, {"consts": split}, (test, done))[1:]

    def _masked_for(self, op: Op, operands: list[Value], given: Flags, made: Flags) -> Values:
        """(0, most trips, lo, trips, consts..., carries...): round j is lane's own lo + j."""
        b, split = self.b, carries_start(op)
        lo, hi = (
            batching.spread(b, v, f, self.kinds.size)
            for v, f in zip(operands[:2], given[:2], strict=True)
        )
        trips = b("sub", hi, lo)
        most = b("reduce_max", trips, axes=(0,))
        consts = operands[2:split]
        carries = self._wide_carries(op, operands[split:], given[split:], made)
        outside = [lo, trips, *consts, *carries]
        inner = self._inner([_I64, *(v.type for v in outside)])
        j, own_lo, own_trips, *rest = inner.b.params
        step = inner.b("broadcast", j, shape=(self.kinds.size,), dims=())
        mask = inner.b("lt", step, own_trips)
        index = inner.b("add", own_lo, step)
        flags = (True, *given[2:split], *made)
        now = rest[len(consts) :]
        then = inner.masked_round(op.regions[0], mask, [index, *rest], flags, made, now)
        bounds = b.constant(0, DType.I64), most
        attrs = {"consts": 2 + len(consts)}
        return b.emit("for", (*bounds, *outside), attrs, (inner.b.finish(then),))

    def masked_round(
        self,
        body: Block,
        mask: Value,
        args: Values,
        flags: Sequence[bool],
        made: Flags,
        now: Values,
    ) -> list[Value]:
        """The carries after a round: the body's for the lanes in the mask, else as they were."""
        safe = list(args) if self._may_run(body) else self.stand_ins(mask, args, flags)
        found = self.run_wide(body, safe, flags, made)
        rows = zip(found, now, made, strict=True)
        return [self._select(mask, x, y) if m else y for x, y, m in rows]


def _every(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(len(shape)))


def _aligned(b: Builder, mask: Value, shape: tuple[int, ...]) -> Value:
    return mask if mask.shape == shape else b("broadcast", mask, shape=shape, dims=(0,))


def _is_harmless(block: Block) -> bool:
    """Whether a region may run on the values of a lane that it is not for."""
    for op in block.ops:
        if op.name in BRANCHES:
            if not all(_is_harmless(r) for r in op.regions):
                return False
        elif op.name not in _HARMLESS and not (
            op.name in _HARMLESS_ON_INTEGERS and not op.results[0].dtype.is_float
        ):
            return False
    return True
