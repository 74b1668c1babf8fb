"""Reverse mode: a block to the block of its results and the cotangents of its parameters.

    f: (x...) -> (y...)        becomes        (x..., ȳ...) -> (y..., x̄...)

with a cotangent ȳ for each result that is a float tensor (or a list of them) and x̄ = ȳ · ∂f/∂x for
each parameter in `wrt`. It is a transform of IR to IR, so it applies to its own output, to any
order (Pearlmutter and Siskind, "Reverse-mode AD in a functional framework", TOPLAS 2008; here
without closures).

The operations are copied in order, then visited in reverse, each asking its primitive's vjp rule. A
cotangent of None is a symbolic zero and builds nothing. Only values that are both varied and useful
(`activity`) are followed. What a `select` leaves out stays zero (`masked_cotangents`).

Operations with regions:

    if      the reverse is an `if` on the same predicate whose branches run the branch again and
            then its reverse.
    switch  likewise, on the same index.
    for     the loop also pushes each carry, at the start of each iteration, on a list. The reverse
            is a `for` of as many trips that pops them, last first, runs the body again from there,
            and then the body's reverse. It carries the cotangents of the carries, and sums up those
            of the loop's constants. What took long to compute, and what was read of arrays that
            change in place, is pushed and popped too (`residuals`).
    custom_vjp  its forward region stands in its place, its reverse region is the reverse.
    while   the loop also counts its trips; the reverse is the `for` above.

The cotangent of an array that is read in part is one array, to which each reading adds what it read
(a primitive's rule `put`), also within loops and branches: they are given what there is already,
and give back the sum.

A list is a persistent stack, push and pop are each other's adjoints, and the empty list is zero:
that closes the transform, for loops of any trip count, under itself. A list that the reverse does
not read is dropped again by the dead-code elimination that ends the transform, so a carry is saved
only where the reverse needs its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir import Block, Builder, DType, Function, ListType, Op, TensorType, Value, Values, unshared
from ..passes.dce import dce
from ..passes.lowering.loop_registers import promote_elements_to_scalars
from ..passes.lowering.loop_splits import split_loops
from ..passes.lowering.stacked_lists import put_row
from ..passes.simplify import simplify
from ..primitives import PRIMITIVES
from ..primitives.table import Maybe
from .activity import BRANCHES, LEADING, Activity, carries_start, check_wrt, is_differentiable
from .masked_cotangents import MaskedCotangents
from .residuals import Residuals, Saved, SavedBranch, SavedLoop, SavedOfOp

_I64 = TensorType(DType.I64)


def vjp(block: Block, wrt: Sequence[int]) -> Block:
    """(params..., cotangents of float results...) -> (results..., cotangents of params[wrt]...).

    >>> from delian.core.compiler.ir import Builder, DType, TensorType
    >>> b = Builder([TensorType(DType.F32), TensorType(DType.F32)])
    >>> g = vjp(b.finish([b("mul", *b.params)]), wrt=[0])
    >>> [op.name for op in g.ops], len(g.params), len(g.results)
    (['mul', 'mul'], 3, 2)

    Raises:
        ValueError: `wrt` names a parameter that is not there, one not of a float type (or a list
            of one), or one twice.
    """
    check_wrt(block, wrt)
    block = unshared(_prepared(block))
    outs = [r for r in block.results if is_differentiable(r.type)]
    b = Builder([v.type for v in (*block.params, *outs)])
    args, given = b.params[: len(block.params)], iter(b.params[len(block.params) :])
    cts = [next(given) if is_differentiable(r.type) else None for r in block.results]
    varied = [i in wrt for i in range(len(block.params))]
    results, grads = Reverse(b, Residuals(Activity(), block)).run(block, args, cts, varied)
    wanted = [b.zeros(block.params[i].type) if (g := grads[i]) is None else g for i in wrt]
    return dce(b.finish([*results, *wanted]))


def _prepared(block: Block) -> Block:
    """The block with numbers in the place of elements that its loops read or change each round."""
    before = Function("", block, ("",) * len(block.params), ("",) * len(block.results))
    after = split_loops(promote_elements_to_scalars(before))
    return block if after is before else simplify(after.body)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the forward part of an operation kept for its reverse."""

    saved: SavedOfOp | None
    """What `values` are; None: the residuals of a custom function."""
    values: tuple[Value, ...]


class Reverse:
    """Builds the forward and reverse operations of blocks into one builder."""

    def __init__(self, builder: Builder, residuals: Residuals) -> None:
        self.b = builder
        self.residuals = residuals
        self.activity = residuals.activity

    def run(
        self,
        block: Block,
        args: Values,
        cts: Sequence[Maybe],
        varied: Sequence[bool],
        saved: Saved | None = None,
        given: Values = (),
        totals: Mapping[int, Value] | None = None,
    ) -> tuple[list[Value], list[Maybe]]:
        """Inlines a block at `args` and then its reverse.

        Gives its results and the cotangents of its parameters. Parameters that are not `varied` get
        None.

        Args:
            saved, given: values of the block that are there already: what computes them is left
            out. totals: by parameter, what its cotangent is added to.
        """
        b, mapping = self.b, dict(zip(block.params, args, strict=True))
        known, kept = (saved or Saved()).matched(given)
        active = self.activity.varied_values(block, varied)
        tape: list[tuple[Op, Op, _Kept | None]] = []
        masked = MaskedCotangents(b)
        for op in block.ops:
            followed = any(r in active for r in op.results)
            stood = {r: known[r] for r in op.results if r in known}
            if op in kept or (stood and not op.regions):
                mapping.update(stood)
                operands = tuple(mapping[v] for v in op.operands)
                results = tuple(stood[r] for r in op.results)
                copied = Op(op.name, operands, results, op.attrs, op.regions, op.locs)
                own = None
                if op in kept and saved is not None:
                    own = _Kept(saved.inner[op], kept[op])
            elif followed and op.name in ("while", "for"):
                flags = tuple(v in active for v in op.operands)
                loop = self.residuals.loop(block, op, flags, (False,) * len(flags))
                with b.at(op.locs):
                    own = _Kept(loop, self._forward(op, mapping, loop))
                copied = b.ops[-1]
            elif followed and op.name == "custom_vjp":
                copied, own = op, self._run_forward(op, mapping)
            else:
                b.copy(op, mapping)
                mapping.update(stood)
                copied, own = b.ops[-1], None
            masked.see(copied)
            if followed:
                tape.append((op, copied, own))
        results_ = [mapping[r] for r in block.results]

        cotangent = {block.params[i]: total for i, total in (totals or {}).items()}
        adding = _Adding(masked, active, cotangent, self.residuals.views(block))
        for result, ct in zip(block.results, cts, strict=True):
            adding.add(result, ct)
        for op, copied, own in reversed(tape):
            outs = [cotangent.pop(r, None) for r in op.results]
            if all(ct is None for ct in outs):
                continue
            with b.at(op.locs):
                if not adding.put(op, copied, outs):
                    self._reverse(op, copied, own, outs, adding)
        return results_, [cotangent.get(p) for p in block.params]

    def _reverse(
        self, op: Op, copied: Op, kept: _Kept | None, cts: list[Maybe], adding: _Adding
    ) -> None:
        """Adds what an operation's reverse gives to the cotangents of its operands."""
        varied = [v in adding.active for v in op.operands]
        totals: list[Maybe] = []
        for v, flag in zip(op.operands, self.residuals.read_in_part(op), strict=True):
            totals.append(adding.taken(v) if flag else None)
        grads: Sequence[Maybe]
        if op.name in BRANCHES:
            grads = self._reverse_branch(copied, kept, cts, varied, totals)
        elif op.name == "custom_vjp":
            assert kept is not None
            grads = self._reverse_custom(op, kept.values, cts)
        elif op.name in LEADING:
            assert kept is not None
            grads = self._reverse_loop(op, copied, kept, cts, varied, totals)
        else:
            grads = adding.masked.reverse(copied, cts)
        for v, ct in zip(op.operands, grads, strict=True):
            adding.add(v, ct)

    # -- branches

    def _reverse_branch(
        self,
        op: Op,
        kept: _Kept | None,
        cts: list[Maybe],
        varied: list[bool],
        totals: list[Maybe],
    ) -> list[Maybe]:
        """The reverse of an `if` or `switch`: the same over the reverses of its branches."""
        pred, *args = op.operands
        given = [ct for ct in cts if ct is not None]
        sums = {i: t for i, t in enumerate(totals[1:]) if t is not None}
        plans: Sequence[Saved] = [Saved()] * len(op.regions)
        values: tuple[Value, ...] = ()
        if kept is not None:
            assert isinstance(kept.saved, SavedBranch)
            plans, values = kept.saved.regions, kept.values
        outside = (*args, *values, *given, *sums.values())
        built = []
        first = 0
        for region, plan in zip(op.regions, plans, strict=True):
            inner = Builder([v.type for v in outside], op.locs)
            n, last = len(args), first + len(plan.types)
            own = inner.params[n : n + len(values)][first:last]
            supply = iter(inner.params[n + len(values) :])
            outs = [None if ct is None else next(supply) for ct in cts]
            before = dict(zip(sums, supply, strict=True))
            reverse = Reverse(inner, self.residuals)
            grads = reverse.run(region, inner.params[:n], outs, varied[1:], plan, own, before)[1]
            built.append((inner, grads))
            first = last
        # What is zero in all branches stays a symbolic zero.
        wanted = [i for i in range(len(args)) if any(grads[i] is not None for _, grads in built)]
        regions = []
        for inner, grads in built:
            zero = [g if (g := grads[i]) is not None else inner.zeros(args[i].type) for i in wanted]
            regions.append(inner.finish(zero))
        made = iter(self.b.emit(op.name, (pred, *outside), {}, regions))
        return [None, *(next(made) if i in wanted else None for i in range(len(args)))]

    # -- custom functions

    def _run_forward(self, op: Op, mapping: dict[Value, Value]) -> _Kept:
        """A custom function's forward part; keeps its residuals."""
        args = [mapping[v] for v in op.operands]
        made = self.b.inline(op.regions[1], args)
        mapping.update(zip(op.results, made, strict=False))
        return _Kept(None, tuple(made[len(op.results) :]))

    def _reverse_custom(self, op: Op, residuals: Values, cts: Sequence[Maybe]) -> list[Maybe]:
        given = [
            self.b.zeros(r.type) if ct is None else ct
            for r, ct in zip(op.results, cts, strict=True)
            if is_differentiable(r.type)
        ]
        made = iter(self.b.inline(op.regions[2], [*residuals, *given]))
        return [next(made) if is_differentiable(v.type) else None for v in op.operands]

    # -- what is kept

    def _forward(self, op: Op, mapping: dict[Value, Value], saved: SavedOfOp) -> tuple[Value, ...]:
        """The operation, and what is kept of it."""
        if isinstance(saved, SavedBranch):
            return self._forward_branch(op, mapping, saved)
        return self._forward_loop(op, mapping, saved)

    def forward_block(self, block: Block, mapping: dict[Value, Value], saved: Saved) -> list[Value]:
        """Copies a block's operations; gives what is kept of them."""
        inner: list[Value] = []
        for op in block.ops:
            if op in saved.inner:
                with self.b.at(op.locs):
                    inner += self._forward(op, mapping, saved.inner[op])
            else:
                self.b.copy(op, mapping)
        return [*(mapping[v] for v in saved.values), *inner]

    def _forward_branch(
        self, op: Op, mapping: dict[Value, Value], saved: SavedBranch
    ) -> tuple[Value, ...]:
        operands = [mapping[v] for v in op.operands]
        regions = []
        for k, region in enumerate(op.regions):
            inner = Builder([p.type for p in region.params], op.locs)
            made = dict(zip(region.params, inner.params, strict=True))
            own = Reverse(inner, self.residuals).forward_block(region, made, saved.regions[k])
            kept: list[Value] = []
            for j, other in enumerate(saved.regions):
                kept += own if j == k else [inner.zeros(t) for t in other.types]
            regions.append(inner.finish([*(made[r] for r in region.results), *kept]))
        results = self.b.emit(op.name, operands, op.attrs, regions)
        mapping.update(zip(op.results, results, strict=False))
        return results[len(op.results) :]

    def _forward_loop(
        self, op: Op, mapping: dict[Value, Value], saved: SavedLoop
    ) -> tuple[Value, ...]:
        """The forward loop with lists of carries and of what its body keeps, and its trips."""
        b = self.b
        start, lead = carries_start(op), LEADING[op.name]
        args = [mapping[v] for v in op.operands]
        consts, carries = args[lead:start], args[start:]
        counting = op.name == "while"
        first = args[:1] if _moves(saved) else []
        extra = [b.zeros(t) for t in saved.types]
        outside = (*consts, *first, *extra, *carries)

        def wrap(region: Block, index: int, grow: bool) -> Block:
            """The region with the extra carries before its own; the body (`grow`) moves them on."""
            fixed = index + len(consts)
            own = region.params
            inner = Builder([*(p.type for p in own[:index]), *(v.type for v in outside)], op.locs)
            at = fixed + len(first)
            kept, now = inner.params[at : at + len(extra)], inner.params[at + len(extra) :]
            made = dict(zip(own, (*inner.params[:fixed], *now), strict=True))
            plan = saved.body if grow else Saved()
            found = Reverse(inner, self.residuals).forward_block(region, made, plan)
            outs = [made[r] for r in region.results]
            if not grow:
                return inner.finish(outs)
            row = _row(inner, saved, inner.params[0], inner.params[fixed:at])
            more = [inner("add", c, inner.constant(1, DType.I64)) for c in kept[: int(counting)]]
            for all_, value in zip(kept[int(counting) :], (*now, *found), strict=True):
                more.append(_with(inner, all_, value, row))
            return inner.finish([*more, *outs])

        index = 1 if op.name == "for" else 0
        regions = [wrap(r, 0, grow=False) for r in op.regions[:-1]] + [
            wrap(op.regions[-1], index, grow=True)
        ]
        attrs = {"consts": len(consts) + len(first)}
        made = b.emit(op.name, (*args[:lead], *outside), attrs, regions)
        mapping.update(zip(op.results, made[len(extra) :], strict=True))
        return made[: len(extra)]

    # -- loops

    def _reverse_loop(
        self,
        op: Op,
        copied: Op,
        kept: _Kept,
        cts: list[Maybe],
        varied: list[bool],
        totals: list[Maybe],
    ) -> list[Maybe]:
        """The reverse of a loop: a `for` that pops the carries and runs the body's reverse."""
        b = self.b
        start, lead = carries_start(op), LEADING[op.name]
        consts = copied.operands[lead:start]
        moving = self.activity.varied_carries(op, tuple(varied))
        useful_consts, useful = self.activity.useful_carries(
            op, tuple(ct is not None for ct in cts)
        )
        carried = [j for j in range(len(cts)) if moving[j] and useful[j]]
        summed = [j for j in range(len(consts)) if varied[lead + j] and useful_consts[j]]

        sums = [b.zeros(consts[j].type) if (t := totals[lead + j]) is None else t for j in summed]
        seeds = [ct if (ct := cts[j]) is not None else b.zeros(op.results[j].type) for j in carried]
        assert isinstance(kept.saved, SavedLoop)
        lists = kept.values
        if op.name == "for":
            lo, hi = copied.operands[:2]
            # Iteration j of the reverse is iteration last - j of the loop.
            last: tuple[Value, ...] = (b("sub", b("add", lo, hi), b.constant(1, DType.I64)),)
        else:
            hi, *rest = kept.values
            lo, last, lists = b.constant(0, DType.I64), (), tuple(rest)
        rows = [v for v in lists if not isinstance(v.type, ListType)]
        first = [lo] if _moves(kept.saved) else []
        stacks = [v for v in lists if isinstance(v.type, ListType)]
        fixed = (*last, *consts, *first, *rows)
        outside = (*fixed, *stacks)
        region = self._reverse_body(op, kept.saved, outside, carried, summed, varied, moving)
        made = b.emit("for", (lo, hi, *outside, *seeds, *sums), {"consts": len(fixed)}, [region])[
            len(stacks) :
        ]
        # A constant that is not useful has no cotangent from here, and keeps the one it has.
        grads = list(totals)
        for j, grad in zip(carried, made, strict=False):
            grads[start + j] = grad
        for j, grad in zip(summed, made[len(carried) :], strict=True):
            grads[lead + j] = grad
        return grads

    def _reverse_body(
        self,
        op: Op,
        saved: SavedLoop,
        outside: Values,
        carried: list[int],
        summed: list[int],
        varied: list[bool],
        moving: Sequence[bool],
    ) -> Block:
        """A round backwards.

        (j, last?, consts, first?, rows, lists, cotangents, sums) -> the last three
        """
        body, start, lead = op.regions[-1], carries_start(op), LEADING[op.name]
        fixed = start - lead
        seeds = [op.results[j].type for j in carried]
        sums = [op.operands[lead + j].type for j in summed]
        inner = Builder([_I64, *(v.type for v in outside), *seeds, *sums], op.locs)
        take = iter(inner.params)
        j = next(take)
        index = [inner("sub", next(take), j)] if op.name == "for" else []
        args = [next(take) for _ in range(fixed)]
        row = _row(inner, saved, index[0], [next(take)] if _moves(saved) else []) if index else []
        kinds = saved.types[int(op.name == "while") :]
        rows = [next(take) for t in kinds if not isinstance(t, ListType)]
        pops = [inner.emit("list_pop", (next(take),)) for t in kinds if isinstance(t, ListType)]
        given = {k: next(take) for k in carried}
        before = dict(zip(summed, take, strict=True))

        flags = [False] * len(index) + varied[lead:start] + list(moving)
        items, tops = iter(rows), (x for _, x in pops)
        found = [
            next(tops) if isinstance(t, ListType) else inner("take", next(items), *row, axis=0)
            for t in kinds
        ]
        xs, known = found[: len(op.results)], found[len(op.results) :]
        cts = [given.get(k) for k in range(len(op.results))]
        reads = self.residuals.read_in_part(op)
        totals = {len(index) + k: t for k, t in before.items() if reads[lead + k]}
        reverse = Reverse(inner, self.residuals)
        _, grads = reverse.run(body, [*index, *args, *xs], cts, flags, saved.body, known, totals)
        by_const, by_carry = grads[len(index) :][:fixed], grads[len(index) + fixed :]
        after = [
            inner.zeros(t) if (g := by_carry[k]) is None else g
            for k, t in zip(carried, seeds, strict=True)
        ]
        ends = []
        for k, total in before.items():
            g = by_const[k]
            if g is None:
                ends.append(total)
            else:
                whole = len(index) + k in totals
                ends.append(g if whole else MaskedCotangents(inner).add(total, g))
        return inner.finish([*(rest for rest, _ in pops), *after, *ends])


def _moves(saved: SavedLoop) -> bool:
    """Whether row 0 of what a loop keeps is that of its lower bound, which changes."""
    return saved.rows is not None and saved.rows.first is None


def _row(b: Builder, saved: SavedLoop, index: Value, first: Values) -> list[Value]:
    """The row of a trip in what a loop keeps; none where that is lists."""
    if saved.rows is None:
        return []
    if saved.rows.first is not None:
        first = [b.constant(saved.rows.first, DType.I64)]
    return [b("sub", index, *first)]


def _with(b: Builder, kept: Value, value: Value, row: Values) -> Value:
    """What a loop keeps, with one more value: on top of a list, or as a row of a tensor."""
    if isinstance(kept.type, ListType):
        return b("list_push", kept, value)
    return put_row(b, kept, value, *row)


class _Adding:
    """Adds up the cotangents of a block's values."""

    def __init__(
        self,
        masked: MaskedCotangents,
        active: set[Value],
        cotangent: dict[Value, Value],
        views: Mapping[Value, Value],
    ) -> None:
        self.masked = masked
        self.b = masked.b
        self.active = active
        self.cotangent = cotangent
        self.views = views
        """Reshaped arrays: their cotangents are kept as those of the arrays."""

    def add(self, value: Value, ct: Maybe) -> None:
        if ct is None or value not in self.active:
            return
        root = self.views.get(value, value)
        ct = self._shaped(ct, root)
        before = self.cotangent.get(root)
        self.cotangent[root] = ct if before is None else self.masked.add(before, ct)

    def taken(self, value: Value) -> Maybe:
        """The cotangent so far, to be given back with more."""
        if value not in self.active:
            return None
        before = self.cotangent.pop(self.views.get(value, value), None)
        return None if before is None else self._shaped(before, value)

    def put(self, op: Op, copied: Op, cts: Sequence[Maybe]) -> bool:
        """Adds the cotangent of a part to that of the array, if there is one already."""
        rule = PRIMITIVES[op.name].put
        (ct, *_), array = cts, op.operands[0] if op.operands else None
        if rule is None or array is None or ct is None:
            return False
        total = self.cotangent.get(self.views.get(array, array)) if array in self.active else None
        if total is None:
            return False
        put = rule(self.b, copied, self._shaped(total, array), ct)
        if put is not None:
            self.taken(array)
            self.add(array, put)
        return put is not None

    def _shaped(self, value: Value, like: Value) -> Value:
        if value.type == like.type or isinstance(value.type, ListType):
            return value
        return self.masked.reshaped(value, like.shape)
