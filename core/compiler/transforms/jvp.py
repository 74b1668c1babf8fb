"""Forward mode: a block to the block of its results and their tangents.

    f: (x...) -> (y...)        becomes        (x..., ẋ...) -> (y..., ẏ...)

with a tangent ẋ for each parameter in `wrt` and ẏ = ∂f/∂x · ẋ for each result that is a float
tensor (or a list of them). Operations are visited once, in order; each asks its primitive's jvp
rule. A tangent of None is a symbolic zero and builds nothing. A loop carries the tangents of those
of its carries that vary in some iteration (`activity`), with the carries themselves, and an `if` or
`switch` gives the tangents of what varies in any branch.

The Hessian of a scalar function times a vector is jvp of vjp: one forward pass over the gradient's
program, which is smaller than its reverse (Pearlmutter, "Fast exact multiplication by the
Hessian", Neural Computation 6, 1994).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...common.errors import DelianError
from ..ir import Block, Builder, Op, Value, Values
from ..passes.dce import dce
from ..primitives import PRIMITIVES
from ..primitives.table import Maybe
from .activity import (
    BRANCHES,
    LEADING,
    Activity,
    Flags,
    carries_start,
    check_wrt,
    is_differentiable,
)


def jvp(block: Block, wrt: Sequence[int]) -> Block:
    """(params..., tangents of params[wrt]...) -> (results..., tangents of float results...).

    >>> from delian.core.compiler.ir import Builder, DType, TensorType
    >>> b = Builder([TensorType(DType.F32), TensorType(DType.F32)])
    >>> g = jvp(b.finish([b("mul", *b.params)]), wrt=[0])
    >>> [op.name for op in g.ops], len(g.params), len(g.results)
    (['mul', 'mul'], 3, 2)

    Raises:
        ValueError: `wrt` names a parameter that is not there, one not of a float type (or a list
            of one), or one twice.
    """
    check_wrt(block, wrt)
    count = len(block.params)
    b = Builder([*(p.type for p in block.params), *(block.params[i].type for i in wrt)])
    tangents: list[Maybe] = [None] * count
    for i, tangent in zip(wrt, b.params[count:], strict=True):
        tangents[i] = tangent
    results, given = Forward(b, Activity()).run(block, b.params[:count], tangents)
    outs = [
        b.zeros(r.type) if t is None else t
        for r, t in zip(block.results, given, strict=True)
        if is_differentiable(r.type)
    ]
    return dce(b.finish([*results, *outs]))


class Forward:
    """Builds a block's operations and those of its tangents into one builder."""

    def __init__(self, builder: Builder, activity: Activity) -> None:
        self.b = builder
        self.activity = activity

    def run(
        self, block: Block, args: Values, tangents: Sequence[Maybe]
    ) -> tuple[list[Value], list[Maybe]]:
        """Inlines a block at `args`; gives its results and their tangents."""
        b, mapping = self.b, dict(zip(block.params, args, strict=True))
        tangent = {p: t for p, t in zip(block.params, tangents, strict=True) if t is not None}
        for op in block.ops:
            given: list[Maybe] = [tangent.get(v) for v in op.operands]
            varied = self.activity.varied_results(op, tuple(t is not None for t in given))
            if not any(varied):
                b.copy(op, mapping)
                continue
            with b.at(op.locs):
                outs = self._push(op, mapping, given, varied)
            for result, out, flag in zip(op.results, outs, varied, strict=True):
                if out is not None and flag:
                    tangent[result] = out
        return [mapping[r] for r in block.results], [tangent.get(r) for r in block.results]

    def _push(
        self, op: Op, mapping: dict[Value, Value], given: list[Maybe], varied: Flags
    ) -> Sequence[Maybe]:
        """Adds an operation whose result varies; gives the tangents of its results."""
        b = self.b
        if op.name in BRANCHES:
            return self._push_branch(op, mapping, given, varied)
        if op.name in LEADING:
            return self._push_loop(op, mapping, given, varied)
        if op.name == "custom_vjp":
            raise DelianError(
                "a function with dl.custom_vjp has no forward derivative (jvp, jacfwd, hessian)",
                "take the gradient first (dl.hvp of a gradient works), or leave its rule away",
            )
        b.copy(op, mapping)
        rule = PRIMITIVES[op.name].jvp
        assert rule is not None, f"{op.name} has a vjp rule but no jvp rule"
        return rule(b, b.ops[-1], given)

    def _push_branch(
        self, op: Op, mapping: dict[Value, Value], given: list[Maybe], varied: Flags
    ) -> list[Maybe]:
        b = self.b
        pred, *args = (mapping[v] for v in op.operands)
        tangents = [t for t in given if t is not None]
        regions = []
        for region in op.regions:
            inner = Builder([v.type for v in (*args, *tangents)], op.locs)
            supply = iter(inner.params[len(args) :])
            own = [None if t is None else next(supply) for t in given[1:]]
            forward = Forward(inner, self.activity)
            results, outs = forward.run(region, inner.params[: len(args)], own)
            wanted = _wanted(inner, op, outs, varied)
            regions.append(inner.finish([*results, *wanted]))
        made = b.emit(op.name, (pred, *args, *tangents), {}, regions)
        mapping.update(zip(op.results, made, strict=False))
        return _spread(made[len(op.results) :], varied)

    def _push_loop(
        self, op: Op, mapping: dict[Value, Value], given: list[Maybe], varied: Flags
    ) -> list[Maybe]:
        """The loop with the tangents of its varied carries, and of its constants, next to them."""
        b, lead, start = self.b, LEADING[op.name], carries_start(op)
        args = [mapping[v] for v in op.operands]
        fixed = [t for t in given[lead:start] if t is not None]
        moving = [
            b.zeros(v.type) if t is None else t
            for v, t, flag in zip(op.operands[start:], given[start:], varied, strict=True)
            if flag
        ]
        consts, carries = args[lead:start], args[start:]
        outside = (*consts, *fixed, *carries, *moving)

        def region(block: Block, index: bool, is_body: bool) -> Block:
            types = [v.type for v in outside]
            inner = Builder([block.params[0].type, *types] if index else types, op.locs)
            params = iter(inner.params)
            head = [next(params)] if index else []
            own = [next(params) for _ in consts]
            by_const = [None if t is None else next(params) for t in given[lead:start]]
            now = [next(params) for _ in carries]
            if not is_body:
                return inner.finish(inner.inline(block, [*own, *now]))
            by_carry = [next(params) if flag else None for flag in varied]
            tangents = [*(None for _ in head), *by_const, *by_carry]
            results, outs = Forward(inner, self.activity).run(block, [*head, *own, *now], tangents)
            return inner.finish([*results, *_wanted(inner, op, outs, varied)])

        regions = [region(r, index=False, is_body=False) for r in op.regions[:-1]]
        regions.append(region(op.regions[-1], index=op.name == "for", is_body=True))
        attrs = {"consts": len(consts) + len(fixed)}
        made = b.emit(op.name, (*args[:lead], *outside), attrs, regions)
        mapping.update(zip(op.results, made, strict=False))
        return _spread(made[len(op.results) :], varied)


def _wanted(b: Builder, op: Op, tangents: Sequence[Maybe], varied: Flags) -> list[Value]:
    """A region's tangents for the results that vary, zeros where there is none."""
    rows = zip(op.results, tangents, varied, strict=True)
    return [b.zeros(r.type) if t is None else t for r, t, flag in rows if flag]


def _spread(made: Values, varied: Flags) -> list[Maybe]:
    supply = iter(made)
    return [next(supply) if flag else None for flag in varied]
