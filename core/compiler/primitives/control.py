"""Operations with regions.

Interpreters run them and `transforms` differentiates them: their rows hold types and costs.

if(pred, args...)                    then(args...) -> results       else(args...) -> results
switch(index, args...)               case0(args...) -> results      case1(args...) -> results  ...
while(consts..., carries...)         cond(all...) -> bool[]         body(all...) -> carries
for(lo, hi, consts..., carries...)   body(i, consts..., carries...) -> carries

custom_vjp(args...)                  primal(args...) -> results
                                     forward(args...) -> results, residuals
                                     reverse(residuals..., cotangents of float results...)
                                       -> cotangents of float arguments

An index of `switch` that is too small takes its first case, one that is too large its last.
"""

from __future__ import annotations

from ..ir import Block, Blocks, DType, Op, TensorType, Type, Types
from .table import Attrs, CostRule, InferRule, Primitive
from .type_checks import fail, params_are, results_are, scalar, tensor

_BOOL = TensorType(DType.BOOL)
_INDEX = TensorType(DType.I64)

#: A `switch` has at most so many cases: each is compiled, whichever is taken.
CASES_MAX = 1024


def _if_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    if not types:
        fail("if", "needs a predicate")
    scalar("if", types[0], DType.BOOL, "the predicate")
    then, otherwise = regions
    args = types[1:]
    params_are("if", then, "then", args)
    params_are("if", otherwise, "else", args)
    results = tuple([r.type for r in then.results])
    results_are("if", otherwise, "else", results)
    return results


def _switch_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    if not types:
        fail("switch", "needs an index")
    scalar("switch", types[0], DType.I64, "the index")
    if not 1 <= len(regions) <= CASES_MAX:
        fail("switch", f"takes 1 to {CASES_MAX} cases, not {len(regions)}")
    results = tuple([r.type for r in regions[0].results])
    for k, region in enumerate(regions):
        params_are("switch", region, f"case{k}", types[1:])
        results_are("switch", region, f"case{k}", results)
    return results


def _consts(name: str, attrs: Attrs, count: int) -> int:
    consts: int = attrs["consts"]
    if consts > count:
        fail(name, f"consts must be an int from 0 to {count}, not {consts}")
    return consts


def _while_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    consts = _consts("while", attrs, len(types))
    cond, body = regions
    params_are("while", cond, "cond", types)
    params_are("while", body, "body", types)
    results_are("while", cond, "cond", (_BOOL,))
    carries = tuple(types[consts:])
    results_are("while", body, "body", carries)
    return carries


def _for_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    if len(types) < 2:
        fail("for", "needs its bounds")
    scalar("for", types[0], DType.I64, "the lower bound")
    scalar("for", types[1], DType.I64, "the upper bound")
    consts = _consts("for", attrs, len(types) - 2)
    body = regions[0]
    params_are("for", body, "body", (_INDEX, *types[2:]))
    carries = tuple(types[2 + consts :])
    results_are("for", body, "body", carries)
    return carries


def _floats(types: Types) -> tuple[Type, ...]:
    """Those that have cotangents."""
    return tuple([t for t in types if isinstance(t, TensorType) and t.dtype.is_float])


def _custom_vjp_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    name = "custom_vjp"
    for i, type_ in enumerate(types):
        tensor(name, type_, what=f"operand {i}")
    primal, forward, reverse = regions
    params_are(name, primal, "primal", types)
    params_are(name, forward, "forward", types)
    results = tuple([r.type for r in primal.results])
    made = [r.type for r in forward.results]
    residuals = made[len(results) :]
    results_are(name, forward, "forward", (*results, *residuals))
    params_are(name, reverse, "reverse", (*residuals, *_floats(results)))
    results_are(name, reverse, "reverse", _floats(types))
    return results


def block_cost(block: Block) -> int:
    """What one run of a block costs. Trip counts are not in the types: a loop counts one round."""
    from . import PRIMITIVES

    return sum(PRIMITIVES[op.name].cost(op) for op in block.ops)


def _dearest(op: Op) -> int:
    return max(block_cost(region) for region in op.regions)


def _one_round(op: Op) -> int:
    return sum(block_cost(region) for region in op.regions)


def _row(name: str, rule: InferRule, cost: CostRule, regions: int | None, *attrs: str) -> Primitive:
    return Primitive(name, rule, None, None, None, cost, attrs=attrs, regions=regions)


ROWS = (
    _row("if", _if_type, _dearest, 2),
    _row("switch", _switch_type, _dearest, None),
    _row("while", _while_type, _one_round, 2, "consts"),
    _row("for", _for_type, _one_round, 1, "consts"),
    _row("custom_vjp", _custom_vjp_type, lambda op: block_cost(op.regions[0]), 3),
)
