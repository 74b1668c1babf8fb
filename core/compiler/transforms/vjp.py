"""Reverse mode: a block to the block of its results and the cotangents of its parameters.

    f: (x...) -> (y...)        becomes        (x..., ȳ...) -> (y..., x̄...)

with a cotangent ȳ for each result that is a float tensor (or a list of them) and x̄ = ȳ · ∂f/∂x for
each parameter in `wrt`. It is a transform of IR to IR, so it applies to its own output, to any
order (Pearlmutter and Siskind, "Reverse-mode AD in a functional framework", TOPLAS 2008; here
without closures).

The operations are copied in order, then visited in reverse, each asking its primitive's vjp rule. A
cotangent of None is a symbolic zero and builds nothing. Only values that are both varied and useful
(`activity`) are followed.

Operations with regions:

    if      the reverse is an `if` on the same predicate whose branches run the branch again and
            then its reverse.
    switch  likewise, on the same index.
    for     the loop also pushes each carry, at the start of each iteration, on a list. The reverse
            is a `for` of as many trips that pops them, last first, runs the body again from there,
            and then the body's reverse. It carries the cotangents of the carries, and sums up those
            of the loop's constants. Of a loop whose trips are known, what took long to compute
            is pushed and popped too, instead of being computed again.
    custom_vjp  its forward region stands in its place, its reverse region is the reverse.
    while   the loop also counts its trips; the reverse is the `for` above.

A list is a persistent stack, push and pop are each other's adjoints, and the empty list is zero:
that closes the transform, for loops of any trip count, under itself. A list that the reverse does
not read is dropped again by the dead-code elimination that ends the transform, so a carry is saved
only where the reverse needs its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir import Block, Builder, DType, ListType, Op, TensorType, Value, Values
from ..passes.dce import dce
from ..primitives import PRIMITIVES
from ..primitives.table import Maybe
from .activity import BRANCHES, LEADING, Activity, carries_start, check_wrt, is_differentiable

_I64 = TensorType(DType.I64)

#: What a loop computed is saved for its reverse where it took at least so many operations a byte:
#: reading it back is then far cheaper than computing it again (products over 64 numbers and more).
SAVED_WORK_MIN = 32
#: At most so many bytes for all trips of a loop; the rest is computed again.
SAVED_BYTES_MAX = 64 * 2**20


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
    outs = [r for r in block.results if is_differentiable(r.type)]
    b = Builder([v.type for v in (*block.params, *outs)])
    args, given = b.params[: len(block.params)], iter(b.params[len(block.params) :])
    cts = [next(given) if is_differentiable(r.type) else None for r in block.results]
    varied = [i in wrt for i in range(len(block.params))]
    results, grads = Reverse(b, Activity()).run(block, args, cts, varied)
    wanted = [b.zeros(block.params[i].type) if (g := grads[i]) is None else g for i in wrt]
    return dce(b.finish([*results, *wanted]))


@dataclass(slots=True)
class _Stacks:
    """What the forward loop kept for its reverse."""

    trips: Value | None
    """A `while`'s number of trips, i64[]; None: of a `for`, or of a custom function."""
    lists: tuple[Value, ...]
    """Each carry's values, then those of `saved`; of a custom function, its residuals."""
    saved: tuple[Value, ...] = ()
    """Values of the loop's body."""


class Reverse:
    """Builds the forward and reverse operations of blocks into one builder."""

    def __init__(self, builder: Builder, activity: Activity) -> None:
        self.b = builder
        self.activity = activity

    def run(
        self,
        block: Block,
        args: Values,
        cts: Sequence[Maybe],
        varied: Sequence[bool],
        known: Mapping[Value, Value] | None = None,
    ) -> tuple[list[Value], list[Maybe]]:
        """Inlines a block at `args` and then its reverse.

        Gives its results and the cotangents of its parameters.

        Parameters that are not `varied` get None. `known` gives values of the block that are there
        already: what computes them is left out.
        """
        known = known or {}
        b, mapping = self.b, dict(zip(block.params, args, strict=True))
        active = self.activity.varied_values(block, varied)
        tape: list[tuple[Op, Op, _Stacks | None]] = []
        for op in block.ops:
            followed = any(r in active for r in op.results)
            if op.results and op.results[0] in known:
                mapping[op.result] = known[op.result]
                operands = tuple(mapping[v] for v in op.operands)
                copied = Op(op.name, operands, (known[op.result],), op.attrs, (), op.locs)
                if followed:
                    tape.append((op, copied, None))
            elif followed and op.name in ("while", "for"):
                with b.at(op.locs):
                    stacks = self._save_carries(op, mapping, _dear(block, op))
                tape.append((op, b.ops[-1], stacks))
            elif followed and op.name == "custom_vjp":
                tape.append((op, op, self._run_forward(op, mapping)))
            else:
                b.copy(op, mapping)
                if followed:
                    tape.append((op, b.ops[-1], None))
        results = [mapping[r] for r in block.results]

        cotangent: dict[Value, Value] = {}
        for result, ct in zip(block.results, cts, strict=True):
            self._accumulate(cotangent, active, result, ct)
        for op, copied, kept in reversed(tape):
            outs = [cotangent.pop(r, None) for r in op.results]
            if all(ct is None for ct in outs):
                continue
            with b.at(op.locs):
                for v, ct in zip(
                    op.operands, self._reverse(op, copied, kept, outs, active), strict=True
                ):
                    self._accumulate(cotangent, active, v, ct)
        return results, [cotangent.get(p) for p in block.params]

    def _accumulate(
        self, cotangent: dict[Value, Value], active: set[Value], value: Value, ct: Maybe
    ) -> None:
        if ct is not None and value in active:
            before = cotangent.get(value)
            cotangent[value] = ct if before is None else self._sum(before, ct)

    def _sum(self, x: Value, y: Value) -> Value:
        return self.b("list_add" if isinstance(x.type, ListType) else "add", x, y)

    def _reverse(
        self, op: Op, copied: Op, stacks: _Stacks | None, cts: list[Maybe], active: set[Value]
    ) -> Sequence[Maybe]:
        varied = [v in active for v in op.operands]
        if op.name in BRANCHES:
            return self._reverse_branch(copied, cts, varied)
        if op.name == "custom_vjp":
            assert stacks is not None
            return self._reverse_custom(op, stacks.lists, cts)
        if stacks is not None:
            return self._reverse_loop(op, copied, stacks, cts, varied)
        rule = PRIMITIVES[op.name].vjp
        assert rule is not None, f"{op.name} has no vjp rule, yet its result is varied"
        return rule(self.b, copied, cts)

    def _reverse_branch(self, op: Op, cts: list[Maybe], varied: list[bool]) -> list[Maybe]:
        """The reverse of an `if` or `switch`: the same over the reverses of its branches."""
        pred, *args = op.operands
        given = [ct for ct in cts if ct is not None]
        built = []
        for region in op.regions:
            inner = Builder([v.type for v in (*args, *given)], op.locs)
            supply = iter(inner.params[len(args) :])
            outs = [None if ct is None else next(supply) for ct in cts]
            reverse = Reverse(inner, self.activity)
            built.append(
                (inner, reverse.run(region, inner.params[: len(args)], outs, varied[1:])[1])
            )
        # What is zero in all branches stays a symbolic zero.
        wanted = [i for i in range(len(args)) if any(grads[i] is not None for _, grads in built)]
        regions = []
        for inner, grads in built:
            zero = [g if (g := grads[i]) is not None else inner.zeros(args[i].type) for i in wanted]
            regions.append(inner.finish(zero))
        made = iter(self.b.emit(op.name, (pred, *args, *given), {}, regions))
        return [None, *(next(made) if i in wanted else None for i in range(len(args)))]

    def _run_forward(self, op: Op, mapping: dict[Value, Value]) -> _Stacks:
        """A custom function's forward part; keeps its residuals."""
        args = [mapping[v] for v in op.operands]
        made = self.b.inline(op.regions[1], args)
        mapping.update(zip(op.results, made, strict=False))
        return _Stacks(None, tuple(made[len(op.results) :]))

    def _reverse_custom(self, op: Op, residuals: Values, cts: Sequence[Maybe]) -> list[Maybe]:
        given = [
            self.b.zeros(r.type) if ct is None else ct
            for r, ct in zip(op.results, cts, strict=True)
            if is_differentiable(r.type)
        ]
        made = iter(self.b.inline(op.regions[2], [*residuals, *given]))
        return [next(made) if is_differentiable(v.type) else None for v in op.operands]

    def _save_carries(
        self, op: Op, mapping: dict[Value, Value], saved: tuple[Value, ...]
    ) -> _Stacks:
        """The forward loop with lists of carries and `saved` values, and a `while`'s trips."""
        b = self.b
        start, lead = carries_start(op), LEADING[op.name]
        args = [mapping[v] for v in op.operands]
        consts, carries = args[lead:start], args[start:]
        counting = op.name == "while"
        extra = [b.constant(0, DType.I64)] if counting else []
        extra += [b.zeros(ListType(v.type)) for v in (*carries, *saved)]
        n = len(extra)

        def wrap(region: Block, index: int, grow: bool) -> Block:
            """The region with the extra carries before its own; the body (`grow`) moves them on."""
            fixed = index + len(consts)
            own = region.params
            inner = Builder([p.type for p in (*own[:fixed], *extra, *own[fixed:])], op.locs)
            now = inner.params[fixed + n :]
            made = dict(zip(own, (*inner.params[:fixed], *now), strict=True))
            for step in region.ops:
                inner.copy(step, made)
            outs = [made[r] for r in region.results]
            if not grow:
                return inner.finish(outs)
            at = fixed + int(counting)
            count, lists = inner.params[fixed:at], inner.params[at : fixed + n]
            more = [inner("add", c, inner.constant(1, DType.I64)) for c in count]
            kept = (*now, *(made[v] for v in saved))
            more += [inner("list_push", s, x) for s, x in zip(lists, kept, strict=True)]
            return inner.finish([*more, *outs])

        index = 1 if op.name == "for" else 0
        regions = [wrap(r, 0, grow=False) for r in op.regions[:-1]] + [
            wrap(op.regions[-1], index, grow=True)
        ]
        made = b.emit(op.name, (*args[:start], *extra, *carries), op.attrs, regions)
        mapping.update(zip(op.results, made[n:], strict=True))
        return _Stacks(made[0] if counting else None, made[int(counting) : n], saved)

    def _reverse_loop(
        self, op: Op, copied: Op, stacks: _Stacks, cts: list[Maybe], varied: list[bool]
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

        zero_sums = [b.zeros(consts[j].type) for j in summed]
        seeds = [ct if (ct := cts[j]) is not None else b.zeros(op.results[j].type) for j in carried]
        if op.name == "for":
            lo, hi = copied.operands[:2]
            # Iteration j of the reverse is iteration last - j of the loop.
            last: tuple[Value, ...] = (b("sub", b("add", lo, hi), b.constant(1, DType.I64)),)
        else:
            assert stacks.trips is not None
            lo, hi, last = b.constant(0, DType.I64), stacks.trips, ()
        region = self._reverse_body(op, consts, last, stacks, carried, summed, varied, moving)
        made = b.emit(
            "for",
            (lo, hi, *last, *consts, *stacks.lists, *seeds, *zero_sums),
            {"consts": len(last) + len(consts)},
            [region],
        )[len(stacks.lists) :]
        grads: list[Maybe] = [None] * len(op.operands)
        for j, grad in zip(carried, made, strict=False):
            grads[start + j] = grad
        for j, grad in zip(summed, made[len(carried) :], strict=True):
            grads[lead + j] = grad
        return grads

    def _reverse_body(
        self,
        op: Op,
        consts: Values,
        last: tuple[Value, ...],
        stacks: _Stacks,
        carried: list[int],
        summed: list[int],
        varied: list[bool],
        moving: Sequence[bool],
    ) -> Block:
        """A round backwards: (j, last?, consts, lists, cotangents, sums) -> the last three."""
        body, start, lead = op.regions[-1], carries_start(op), LEADING[op.name]
        seeds = [op.results[j].type for j in carried]
        sums = [consts[j].type for j in summed]
        outside = (*last, *consts, *stacks.lists)
        inner = Builder([_I64, *(v.type for v in outside), *seeds, *sums], op.locs)
        take = iter(inner.params)
        j = next(take)
        index = [inner("sub", next(take), j) for _ in last]
        args = [next(take) for _ in consts]
        pops = [inner.emit("list_pop", (next(take),)) for _ in stacks.lists]
        given = {k: next(take) for k in carried}
        before = list(take)

        flags = [False] * len(index) + varied[lead:start] + list(moving)
        reverse = Reverse(inner, self.activity)
        popped = [x for _, x in pops]
        xs = popped[: len(popped) - len(stacks.saved)]
        known = dict(zip(stacks.saved, popped[len(xs) :], strict=True))
        cts = [given.get(k) for k in range(len(op.results))]
        _, grads = reverse.run(body, [*index, *args, *xs], cts, flags, known)
        by_const, by_carry = grads[len(index) :][: len(args)], grads[len(index) + len(args) :]
        after = [
            inner.zeros(t) if (g := by_carry[k]) is None else g
            for k, t in zip(carried, seeds, strict=True)
        ]
        totals = [
            total if (g := by_const[k]) is None else reverse._sum(total, g)
            for k, total in zip(summed, before, strict=True)
        ]
        return inner.finish([*(rest for rest, _ in pops), *after, *totals])


def _dear(block: Block, loop: Op) -> tuple[Value, ...]:
    """The values of a loop's body that are saved for its reverse.

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
