"""Rewriting rules for operations with regions, collected in `MULTI_RULES`.

    if       a known predicate inlines its branch; what both branches give alike is given outside.
    switch   a known index inlines its case.
    for      a known trip count of none or one goes away, a few trips of a small body are unrolled.
    loops    a carry that the body gives back as it came is a constant; operations of the body that
             depend on constants alone move out, save those that cost nothing (a broadcast, a
             reshape) and those that widen a large tensor of narrow numbers, which fusion wants
             where they are read.
    all      a small constant given as an argument moves in; an argument given twice comes once.

What these rules leave unused (arguments, constants, results) is `dce`'s to drop.
"""

from __future__ import annotations

import numpy as np

from ..ir import Block, Blocks, DType, Op, TensorType, Value, Values, count_ops
from .rewrite import FOLD_SIZE_MAX, MultiRule, Rewriter

#: A `for` of at most so many trips, and so many operations in all, is unrolled.
UNROLL_TRIPS_MAX = 4
UNROLL_OPS_MAX = 200
#: A result larger than this stays in its loop: it would be held in memory throughout.
HOIST_BYTES_MAX = 64 * 2**20

#: Not worth a buffer of their own: copied to where they are needed.
_FREE = frozenset({"constant", "broadcast", "iota", "reshape", "list_empty"})
#: A tensor of narrow numbers, bytes or halves, with at least so many elements is not widened before
#: a loop that reads it: what is computed there costs next to nothing, and held it takes memory.
WIDENED_MIN = 4096
_NARROW_BYTES = 2
_BOUNDS = {"while": 0, "for": 2}


def _if(r: Rewriter, op: Op) -> Values:
    pred, *args = op.operands
    known = r.splat(pred)
    if known is not None:
        r.changed = True
        return r.inline(op.regions[0 if known else 1], args)
    then, otherwise = op.regions
    if flipped := r.origin(pred, "not"):
        pred, then, otherwise = flipped.operands[0], otherwise, then
    return _branches(r, op, (pred, *args), (then, otherwise))


def _switch(r: Rewriter, op: Op) -> Values:
    index, *args = op.operands
    known = r.splat(index)
    if known is not None or len(op.regions) == 1:
        r.changed = True
        taken = min(max(int(known or 0), 0), len(op.regions) - 1)
        return r.inline(op.regions[taken], args)
    return _branches(r, op, op.operands, op.regions)


def _branches(r: Rewriter, op: Op, operands: tuple[Value, ...], cases: Blocks) -> Values:
    """The rewritten branches; what all of them give alike is given outside."""
    args = operands[1:]
    regions = tuple(_enter(r, region, region.params, args) for region in cases)
    results = list(r.keep(_replaced(r, op, operands, regions)))
    for i, value in enumerate(_alike(r, regions, args)):
        if value is not None:
            results[i] = value
    return results


def _alike(r: Rewriter, regions: Blocks, args: Values) -> list[Value | None]:
    """For each result, what all branches give for it, where it is known outside."""
    places = [{p: i for i, p in enumerate(region.params)} for region in regions]
    made = [
        {op.results[0]: op for op in b.ops if op.name in ("constant", "list_empty")}
        for b in regions
    ]
    found: list[Value | None] = []
    for given in zip(*(region.results for region in regions), strict=True):
        at = [place.get(v) for place, v in zip(places, given, strict=True)]
        outer = {args[i] for i in at if i is not None}
        first, *others = (ops.get(v) for ops, v in zip(made, given, strict=True))
        if len(outer) == 1 and None not in at:
            found.append(outer.pop())
        elif first is not None and all(o is not None and _equal_leaves(first, o) for o in others):
            found.append(r.add(Op(first.name, (), (Value(first.results[0].type),), first.attrs))[0])
        else:
            found.append(None)
    return found


def _equal_leaves(a: Op, b: Op) -> bool:
    if a.name != b.name or a.results[0].type != b.results[0].type:
        return False
    if a.name == "list_empty":
        return True
    x, y = a.attrs["value"], b.attrs["value"]
    return bool(x.size <= FOLD_SIZE_MAX and x.tobytes() == y.tobytes())


def _loop(r: Rewriter, op: Op) -> Values:
    lead = _BOUNDS[op.name]
    start = lead + int(op.attrs["consts"])
    if op.name == "for":
        short = _short_for(r, op, start)
        if short is not None:
            r.changed = True
            return short
    body = op.regions[-1]
    index = 1 if op.name == "for" else 0
    first = index + start - lead
    still = [j for j, v in enumerate(body.results) if v is body.params[first + j]]
    if still:
        r.changed = True
        return _fix_carries(r, op, still, start, first)
    consts = op.operands[lead:start]
    regions = [_enter(r, c, c.params[: len(consts)], consts) for c in op.regions[:-1]]
    if regions and _never(regions[0]):
        r.changed = True
        return op.operands[start:]
    regions.append(_enter(r, body, body.params[index:first], consts))
    replaced = _replaced(r, op, op.operands, tuple(regions))
    if op.name == "for" and r.origin(op.operands[1], "opaque"):
        return r.keep(replaced)  # a loop that is there to keep its body together
    return r.keep(_hoist(r, replaced))


def _short_for(r: Rewriter, op: Op, start: int) -> Values | None:
    """The results of a loop of few trips, unrolled."""
    lo, hi = (r.splat(v) for v in op.operands[:2])
    if op.operands[0] is op.operands[1]:
        return op.operands[start:]
    if lo is None or hi is None:
        return None
    trips = max(0, int(hi) - int(lo))
    body = op.regions[0]
    if trips > UNROLL_TRIPS_MAX or (trips > 1 and trips * count_ops(body) > UNROLL_OPS_MAX):
        return None
    carries: Values = op.operands[start:]
    for i in range(int(lo), int(lo) + trips):
        index = r.constant(np.asarray(i, DType.I64.numpy))
        carries = r.inline(body, [index, *op.operands[2:start], *carries])
    return carries


def _never(cond: Block) -> bool:
    """Whether a condition is the constant False."""
    (result,) = cond.results
    return any(
        op.name == "constant" and op.results[0] is result and not op.attrs["value"]
        for op in cond.ops
    )


def _fix_carries(r: Rewriter, op: Op, still: list[int], start: int, first: int) -> Values:
    """The loop with the carries `still` as constants; the rest of the rules then see that loop."""
    moving = [j for j in range(len(op.results)) if j not in still]
    inits = op.operands[start:]

    def order(items: Values, at: int) -> tuple[Value, ...]:
        own = items[at:]
        return (*items[:at], *(own[j] for j in still), *(own[j] for j in moving))

    regions = []
    for region in op.regions:
        is_body = region is op.regions[-1]
        at = first if is_body else start - _BOUNDS[op.name]
        results = tuple(region.results[j] for j in moving) if is_body else region.results
        regions.append(Block(order(region.params, at), region.ops, results))
    given: list[Value] = list(inits)
    if moving:
        attrs = {**op.attrs, "consts": int(op.attrs["consts"]) + len(still)}
        outs = tuple(op.results[j] for j in moving)
        fixed = Op(op.name, order(op.operands, start), outs, attrs, tuple(regions), op.locs)
        for j, value in zip(moving, r.add(fixed), strict=True):
            given[j] = value
    return given


def _replaced(r: Rewriter, op: Op, operands: tuple[Value, ...], regions: tuple[Block, ...]) -> Op:
    """The operation with other operands or regions; the same one when they are the same."""
    if operands == op.operands and all(a is b for a, b in zip(regions, op.regions, strict=True)):
        return op
    r.changed = True
    return Op(op.name, operands, op.results, op.attrs, regions, op.locs)


def _enter(r: Rewriter, region: Block, params: Values, args: Values) -> Block:
    """A region rewritten, with what is known about the arguments for some of its parameters."""
    child = r.child()
    known: dict[Value, Value] = {}
    seen: dict[Value, Value] = {}
    for param, arg in zip(params, args, strict=True):
        if arg in seen:
            known[param] = seen[arg]
        elif (copied := _sink(r, child, arg)) is not None:
            known[param] = copied
        else:
            seen[arg] = param
    return child.region(region, known)


def _sink(r: Rewriter, child: Rewriter, value: Value) -> Value | None:
    """A copy of a value inside a region, for values that cost nothing to make."""
    made = r.maker(value)
    if made is None:
        return None
    if made.name == "broadcast":
        inner = r.origin(made.operands[0], "constant")
        if inner is None or made.operands[0].tensor.size > 1:
            return None
        operands: tuple[Value, ...] = (_copy(child, inner, ()),)
    elif made.name in ("list_empty", "iota") or (
        made.name == "constant" and value.tensor.size <= FOLD_SIZE_MAX
    ):
        operands = ()
    else:
        return None
    return _copy(child, made, operands)


def _copy(r: Rewriter, op: Op, operands: tuple[Value, ...]) -> Value:
    results = (Value(op.results[0].type),)
    return r.add(Op(op.name, operands, results, op.attrs, (), op.locs))[0]


def _hoist(r: Rewriter, op: Op) -> Op:
    """The loop with the operations that depend on its constants alone moved before it."""
    lead, body = _BOUNDS[op.name], op.regions[-1]
    consts = int(op.attrs["consts"])
    index = 1 if op.name == "for" else 0
    outer = dict(zip(body.params[index : index + consts], op.operands[lead:], strict=False))
    free: dict[Value, Op] = {}
    fixed = set(outer)
    moved: list[Op] = []
    stay: list[Op] = []
    for inner in body.ops:
        if not _may_move(inner, fixed):
            stay.append(inner)
            continue
        fixed.update(inner.results)
        if inner.name in _FREE:
            free[inner.results[0]] = inner
            stay.append(inner)
        else:
            moved.append(inner)
    if not moved:
        return op
    r.changed = True

    def outside(value: Value) -> Value:
        if value not in outer:
            made = free[value]
            outer[value] = _copy(r, made, tuple(outside(v) for v in made.operands))
        return outer[value]

    for inner in moved:
        operands = tuple(outside(v) for v in inner.operands)
        results = tuple(Value(v.type) for v in inner.results)
        copied = r.add(Op(inner.name, operands, results, inner.attrs, (), inner.locs))
        outer.update(zip(inner.results, copied, strict=True))
    read = {v for inner in stay for v in inner.operands} | set(body.results)
    new = [v for inner in moved for v in inner.results if v in read]
    # The results of what moved out become the parameters that bring them in.
    split = index + consts
    inside = Block((*body.params[:split], *new, *body.params[split:]), stay, body.results)
    conds = [
        Block(
            (*c.params[:consts], *(Value(v.type) for v in new), *c.params[consts:]),
            c.ops,
            c.results,
        )
        for c in op.regions[:-1]
    ]
    start = lead + consts
    operands = (*op.operands[:start], *(outer[v] for v in new), *op.operands[start:])
    attrs = {**op.attrs, "consts": consts + len(new)}
    return Op(op.name, operands, op.results, attrs, (*conds, inside), op.locs)


def widens(op: Op) -> bool:
    """Whether an operation only makes wider numbers of many narrow ones."""
    if op.name != "convert":
        return False
    source, result = op.operands[0].dtype, op.result.tensor
    narrow = source is not DType.BOOL and source.itemsize <= _NARROW_BYTES < result.dtype.itemsize
    return narrow and result.size >= WIDENED_MIN


def _may_move(op: Op, fixed: set[Value]) -> bool:
    if op.regions or op.name == "opaque" or not all(v in fixed for v in op.operands):
        return False
    if widens(op):
        return False
    return all(
        isinstance(v.type, TensorType) and v.type.nbytes <= HOIST_BYTES_MAX for v in op.results
    ) or (op.name == "list_empty")


MULTI_RULES: dict[str, MultiRule] = {
    "if": _if,
    "switch": _switch,
    "for": _loop,
    "while": _loop,
}
