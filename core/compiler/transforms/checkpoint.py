"""Checkpointing: less memory for a derivative, for more work.

Griewank and Walther, "Revolve", ACM TOMS 26, 2000; here in two levels. Reverse mode saves a loop's
carries for every trip. A nested loop saves those of the outer loop, and runs the inner one again,
saving its own, when the reverse gets there. So a loop of T trips is cut into about sqrt(T) segments
of about sqrt(T) trips, and its derivative needs memory for 2 sqrt(T) carries instead of T, for one
more run of the body:

    for      the number of trips is known when it starts: segments of sqrt(T) trips each.
    while    it is not: segments of 1, 2, 3... trips, until the condition says stop.

A segment starts at an `opaque` number: by it reverse mode knows that it is to be run again, and
keeps nothing of the inside (`residuals`).

`once` wraps a block into a loop of one trip that no pass can see through: reverse mode then keeps
the block's arguments alone, and runs it again when it needs what is inside.
"""

from __future__ import annotations

from ..ir import Block, Builder, DType, Op, TensorType, Value, Values, replaced
from .activity import LEADING, carries_start

_I64 = TensorType(DType.I64)


def checkpoint(block: Block, every: int | None = None) -> Block:
    """The block whose derivative keeps only its arguments and some carries of loops.

    Carries of every `every`-th trip are kept; None: of about the square root of the trips.

    Raises:
        ValueError: `every` is not at least one.
    """
    if every is not None and every < 1:
        raise ValueError(f"a checkpoint every {every} trips: it must be at least one")
    return once(nest_loops(block, every))


def once(block: Block) -> Block:
    """The block as the body of a loop of one trip."""
    b = Builder([p.type for p in block.params])
    count = len(block.params)
    body = Builder([_I64, *(p.type for p in block.params), *(r.type for r in block.results)])
    inner = body.finish(body.inline(block, body.params[1 : 1 + count]))
    zeros = [b.zeros(r.type) for r in block.results]
    bounds = b.constant(0, DType.I64), b("opaque", b.constant(1, DType.I64))
    return b.finish(b.emit("for", (*bounds, *b.params, *zeros), {"consts": count}, (inner,)))


def nest_loops(block: Block, every: int | None = None) -> Block:
    """The block with every loop cut into segments of `every` trips, inner loops too."""

    def nest(b: Builder, op: Op, operands: list[Value]) -> Values:
        return (_nest_for if op.name == "for" else _nest_while)(b, op, operands, every)

    return replaced(block, lambda op: op.name in ("for", "while"), nest)


def _nest_for(b: Builder, op: Op, operands: Values, every: int | None) -> Values:
    """for s in 0..segments: for i in lo + s * length .. min(lo + (s + 1) * length, hi)."""
    lo, hi, *rest = operands
    split = int(op.attrs["consts"])
    one = b.constant(1, DType.I64)
    trips = b("max", b("sub", hi, lo), one)
    if every is None:
        root = b("sqrt", b("convert", trips, dtype=DType.F64))
        length = b("convert", b("ceil", root), dtype=DType.I64)
    else:
        length = b.constant(every, DType.I64)
    last = b("sub", b("add", trips, length), one)
    segments = b("floordiv", last, length)
    outside = (lo, hi, length, *rest)
    outer = Builder([_I64, *(v.type for v in outside)], op.locs)
    s, own_lo, own_hi, own_length, *own = outer.params
    start = outer("opaque", outer("add", own_lo, outer("mul", s, own_length)))
    stop = outer("min", outer("add", start, own_length), own_hi)
    made = outer.emit("for", (start, stop, *own), op.attrs, op.regions)
    bounds = b.constant(0, DType.I64), segments
    return b.emit("for", (*bounds, *outside), {"consts": 3 + split}, (outer.finish(made),))


def _nest_while(b: Builder, op: Op, operands: Values, every: int | None) -> Values:
    """while cond: i = 0; while i < length and cond: body; length = length + 1."""
    split = carries_start(op) - LEADING[op.name]
    cond, body = op.regions
    consts, carries = operands[:split], operands[split:]
    first = b.constant(every or 1, DType.I64)
    kinds = [v.type for v in (*consts, first, *carries)]

    test = Builder(kinds, op.locs)
    going = test.finish(test.inline(cond, (*test.params[:split], *test.params[split + 1 :])))

    # The inner loop: (consts..., length, i, carries...).
    inner_kinds = [*kinds[: split + 1], _I64, *kinds[split + 1 :]]
    check = Builder(inner_kinds, op.locs)
    fixed, (length, i, *now) = check.params[:split], check.params[split:]
    (more,) = check.inline(cond, (*fixed, *now))
    still = check.finish([check("and", check("lt", i, length), more)])
    step = Builder(inner_kinds, op.locs)
    fixed, (length, i, *now) = step.params[:split], step.params[split:]
    then = step.inline(body, (*fixed, *now))
    advance = step.finish([step("add", i, step.constant(1, DType.I64)), *then])

    segment = Builder(kinds, op.locs)
    fixed, (length, *now) = segment.params[:split], segment.params[split:]
    zero = segment("opaque", segment.constant(0, DType.I64))
    attrs = {"consts": split + 1}
    _, *done = segment.emit("while", (*fixed, length, zero, *now), attrs, (still, advance))
    longer = length if every else segment("add", length, segment.constant(1, DType.I64))
    regions = (going, segment.finish([longer, *done]))
    return b.emit("while", (*consts, first, *carries), {"consts": split}, regions)[1:]
