"""What conditions and loops say of whole numbers, for `value_ranges`.

In a branch that is taken where `0 <= i` and `i < n`, and in the body of a `while` with that test, i
lies in 0..n-1. A number that a loop carries and moves by a step lies between its start and what a
test, or the number of rounds, lets it reach; one that no round changes is what it was.

    while(%0) cond(i) { return and(le(0, i), c) }       i lies in 0..9 in the body
               body(i) { return sub(i, 1) }             where %0 lies in 0..9
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..ir import Block, DType, Op, TensorType, Value, Values

#: Its least and its largest value, both of them included.
Interval = tuple[int, int]
Facts = dict[Value, Interval]
Made = Mapping[Value, Op]


def facts(pred: Value, truth: bool, made: Made, found: Mapping[Value, Interval]) -> Facts:
    """Intervals of whole numbers and truths where a condition is true, or false."""
    out: Facts = {pred: (int(truth), int(truth))}
    op = made.get(pred)
    if op is None:
        return out
    if op.name == ("and" if truth else "or"):
        for part in op.operands:
            _join(out, facts(part, truth, made, found))
    elif op.name == "not":
        _join(out, facts(op.operands[0], not truth, made, found))
    elif op.name == "select":
        for k, side in ((1, 0), (0, 1)):  # What only one of its sides can be was taken.
            if found.get(op.operands[2 - side]) == (int(not truth),) * 2:
                _join(out, facts(op.operands[0], bool(k), made, found))
                _join(out, facts(op.operands[1 + side], truth, made, found))
    elif op.name in ("lt", "le", "eq", "ne"):
        _join(out, _compared(op, truth, found))
    return out


def _join(out: Facts, more: Facts) -> None:
    for value, interval in more.items():
        low, high = out.get(value, interval)
        low, high = max(low, interval[0]), min(high, interval[1])
        if low <= high:
            out[value] = low, high


def _compared(op: Op, truth: bool, found: Mapping[Value, Interval]) -> Facts:
    a, b = op.operands
    if a.shape or not a.dtype.is_int:
        return {}
    x, y = (found.get(v) or limits(v) for v in (a, b))
    if op.name in ("eq", "ne"):
        same = (op.name == "eq") == truth
        low, high = max(x[0], y[0]), min(x[1], y[1])
        return {a: (low, high), b: (low, high)} if same and low <= high else {}
    strict = int((op.name == "lt") == truth)  # a < b; not a <= b is b < a.
    below, above, small, large = (a, b, x, y) if truth else (b, a, y, x)
    top, bottom = min(small[1], large[1] - strict), max(large[0], small[0] + strict)
    if small[0] > top or bottom > large[1]:
        return {}
    return {below: (small[0], top), above: (bottom, large[1])}


def limits(value: Value) -> Interval:
    """All that a whole number's type can hold."""
    info = np.iinfo(value.dtype.numpy)
    return int(info.min), int(info.max)


def carried(
    op: Op, outer: Made, found: Mapping[Value, Interval]
) -> dict[int, tuple[Interval, Interval]]:
    """Intervals of a loop's carries: in the body, and where a round begins or the loop ends.

    The intervals of the body with any carries are in `found` already.
    """
    body, count = op.regions[-1], int(op.attrs["consts"])
    skipped = 2 if op.name == "for" else 0
    starts = op.operands[skipped + count :]
    params = body.params[(1 if op.name == "for" else 0) + count :]
    made = {r: each for each in body.ops for r in each.results}
    tested = {} if op.name == "for" else _tested(op, starts, outer, made, found)
    rounds = _rounds(op, found)
    out = {}
    for k, (start, param, after) in enumerate(zip(starts, params, body.results, strict=True)):
        if not isinstance(param.type, TensorType) or param.shape or not param.dtype.is_int:
            continue
        first, step = found.get(start), _step(after, {param: (0, 0)}, made, found)
        if first is None or step is None:
            continue
        low, high = first
        if rounds is not None:
            inner = low + min(0, step[0]) * (rounds - 1), high + max(0, step[1]) * (rounds - 1)
        else:
            least, most = tested.get(k, limits(param))
            inner = (low if step[0] >= 0 else least), (high if step[1] <= 0 else most)
            inner = max(inner[0], least), min(inner[1], most)
        ends = min(low, inner[0] + step[0]), max(high, inner[1] + step[1])
        whole = limits(param)
        if inner[0] <= inner[1] and whole[0] <= ends[0] and ends[1] <= whole[1]:
            out[k] = inner, (min(inner[0], ends[0]), max(inner[1], ends[1]))
    return out


def _rounds(op: Op, found: Mapping[Value, Interval]) -> int | None:
    if op.name != "for":
        return None
    low, high = (found.get(v) for v in op.operands[:2])
    return None if low is None or high is None else max(1, high[1] - low[0])


def _step(
    value: Value, bases: Mapping[Value, Interval], made: Made, found: Mapping[Value, Interval]
) -> Interval | None:
    """How far a number lies from a parameter; bases: numbers of which that is known."""
    if value in bases:
        return bases[value]
    op = made.get(value)
    if op is None:
        return None
    if op.name in ("add", "sub"):  # What wraps in between has come back where the end fits.
        x, y = op.operands
        sign = 1 if op.name == "add" else -1
        for base, amount in ((x, y), (y, x)) if sign > 0 else ((x, y),):
            moved, by = _step(base, bases, made, found), found.get(amount)
            if moved is not None and by is not None:
                ends = sorted(sign * end for end in by)
                return moved[0] + ends[0], moved[1] + ends[1]
        return None
    if op.name in ("if", "select"):
        truth = found.get(op.operands[0], (0, 1))
        taken = [k for k, can in enumerate((truth[1], not truth[0])) if can]
        return _hull([_side(op, k, value, bases, made, found) for k in taken])
    return None


def _side(
    op: Op,
    k: int,
    value: Value,
    bases: Mapping[Value, Interval],
    made: Made,
    found: Mapping[Value, Interval],
) -> Interval | None:
    """The step of one side of a choice or a branch."""
    if op.name == "select":
        return _step(op.operands[1 + k], bases, made, found)
    region = op.regions[k]
    inner = {}
    for param, arg in zip(region.params, op.operands[1:], strict=True):
        if (moved := _step(arg, bases, made, found)) is not None:
            inner[param] = moved
    within = {r: each for each in region.ops for r in each.results}
    return _step(region.results[op.results.index(value)], inner, within, found)


def _hull(sides: Sequence[Interval | None]) -> Interval | None:
    known = [side for side in sides if side is not None]
    if not known or len(known) < len(sides):
        return None
    return min(side[0] for side in known), max(side[1] for side in known)


def _tested(
    op: Op, starts: Values, outer: Made, made: Made, found: Mapping[Value, Interval]
) -> dict[int, Interval]:
    """What the test of a `while` says of its carries in the body."""
    test, body = op.regions
    count = int(op.attrs["consts"])
    params = test.params[count:]
    said = facts(test.results[0], True, {r: o for o in test.ops for r in o.results}, found)
    out = {k: said[p] for k, p in enumerate(params) if p in said}
    for k, flag in enumerate(params):
        if said.get(flag) != (1, 1) or not _is_truth(flag):
            continue
        # A truth that an earlier round, or what is before the loop, has computed.
        before = facts(starts[k], True, outer, found)
        after = facts(body.results[k], True, made, found)
        for j, (start, end) in enumerate(zip(starts, body.results, strict=True)):
            a = before.get(start, found.get(start))
            b = after.get(end, found.get(end))
            if a is not None and b is not None:
                both = min(a[0], b[0]), max(a[1], b[1])
                low, high = out.get(j, both)
                out[j] = max(low, both[0]), min(high, both[1])
    return out


def _is_truth(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.dtype is DType.BOOL


def entered(region: Block, args: Values, said: Facts, found: dict[Value, Interval]) -> None:
    """Gives the parameters of a branch what its condition says of its arguments."""
    for param, arg in zip(region.params, args, strict=True):
        if arg in said:
            low, high = found.get(arg, said[arg])
            low, high = max(low, said[arg][0]), min(high, said[arg][1])
            if low <= high:
                found[param] = low, high
