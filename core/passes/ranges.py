"""The interval in which each whole number of a program lies, as far as its text says.

Places are clamped where they are used (`ops.index`), so that no program reads or writes outside its
tensors. An index whose interval fits needs no clamp: that of a loop with known bounds, and what is
added to it or multiplied.

    for(%0, %1) i          0 <= i < 30           where %0 = 0 and %1 = 30
      %2 = add(i, 1)       1 <= %2 < 31
      %3 = mul(%2, 32)     32 <= %3 <= 960

An operation whose result may wrap, and a number that a loop carries, have any value of their type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..ir import Block, DType, Op, TensorType, Value

#: Its least and its largest value, both of them included.
Interval = tuple[int, int]


def intervals(block: Block) -> dict[Value, Interval]:
    """The intervals of a block's rank-0 whole numbers and truths, and of those of its regions.

    No two operations may share a region (`ir.unshared`).
    """
    found: dict[Value, Interval] = {}
    _block(block, found)
    return found


def known(ranges: Mapping[Value, Interval], value: Value) -> int | None:
    """The one value that a number can have."""
    low, high = ranges.get(value, (0, 1))
    return low if low == high else None


def _block(block: Block, found: dict[Value, Interval]) -> None:
    made = {r: op for op in block.ops for r in op.results}
    for op in block.ops:
        if op.regions:
            for region in op.regions:
                _enter(op, region, found)
                _block(region, found)
        elif (type_ := op.results[0].type) and isinstance(type_, TensorType) and not type_.shape:
            interval = _result(op, made, found)
            if interval is not None and _fits(interval, type_):
                found[op.results[0]] = interval


def _enter(op: Op, region: Block, found: dict[Value, Interval]) -> None:
    """What a region's parameters are: arguments as they are, an index between its bounds."""
    if op.name in ("if", "switch"):
        pairs = zip(region.params, op.operands[1:], strict=True)
    elif op.name == "for":
        low, high = (found.get(v) for v in op.operands[:2])
        if low is not None and high is not None and low[0] < high[1]:
            found[region.params[0]] = (low[0], high[1] - 1)
        count = int(op.attrs["consts"])
        pairs = zip(region.params[1 : 1 + count], op.operands[2 : 2 + count], strict=True)
    elif op.name == "while":
        count = int(op.attrs["consts"])
        pairs = zip(region.params[:count], op.operands[:count], strict=True)
    else:
        return
    for param, value in pairs:
        if value in found:
            found[param] = found[value]


def _fits(interval: Interval, type_: TensorType) -> bool:
    if not type_.dtype.is_int:
        return type_.dtype is DType.BOOL and interval[0] >= 0 and interval[1] <= 1
    limits = np.iinfo(type_.dtype.numpy)
    return bool(limits.min <= interval[0] and interval[1] <= limits.max)


def _result(op: Op, made: Mapping[Value, Op], found: Mapping[Value, Interval]) -> Interval | None:
    if op.name == "constant":
        number = op.attrs["value"][()]
        return (int(number), int(number)) if not op.result.dtype.is_float else None
    if op.name == "select":
        return _choice(op, made, found)
    rule = _RULES.get(op.name)
    given = [found.get(v) for v in op.operands]
    if rule is None or None in given:
        return None
    return rule(*given)


def _choice(op: Op, made: Mapping[Value, Op], found: Mapping[Value, Interval]) -> Interval | None:
    pred, yes, no = op.operands
    if (truth := known(found, pred)) is not None:
        return found.get(yes if truth else no)
    wrapped = _wrapped(op, made, found)
    if wrapped is not None:
        return wrapped
    a, b = found.get(yes), found.get(no)
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _wrapped(op: Op, made: Mapping[Value, Op], found: Mapping[Value, Interval]) -> Interval | None:
    """Of an index that counts from the end where it is negative: select(i < 0, i + n, i)."""
    test = made.get(op.operands[0])
    if test is None or test.name != "lt" or (bound := known(found, test.operands[1])) is None:
        return None
    places = [_moved(v, made, found) for v in (test.operands[0], *op.operands[1:])]
    (root, tested), (_, yes), (_, no) = places
    if any(each is not root for each, _ in places) or root not in found:
        return None
    low, high = found[root]
    split = bound - tested  # The test is that the root is below.
    sides = [(low + yes, min(high, split - 1) + yes), (max(low, split) + no, high + no)]
    taken = [side for side in sides if side[0] <= side[1]]
    return min(side[0] for side in taken), max(side[1] for side in taken)


def _moved(
    value: Value, made: Mapping[Value, Op], found: Mapping[Value, Interval]
) -> tuple[Value, int]:
    """A number as another one and what is added to it. Neither wraps: its interval is known."""
    step = 0
    while value in made and value in found and made[value].name in ("add", "sub"):
        x, y = made[value].operands
        amount = known(found, y)
        if amount is None:
            break
        step += amount if made[value].name == "add" else -amount
        value = x
    return value, step


def _corners(f: Callable[[int, int], int]) -> Callable[..., Interval]:
    """Of an operation that is monotonic in each of its two operands."""

    def rule(a: Interval, b: Interval) -> Interval:
        values = [f(x, y) for x in a for y in b]
        return min(values), max(values)

    return rule


def _quotient(a: Interval, b: Interval) -> Interval | None:
    return _corners(lambda x, y: x // y)(a, b) if b[0] > 0 else None


def _remainder(a: Interval, b: Interval) -> Interval | None:
    if b[0] <= 0:
        return None
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)


def _compared(below: Callable[[Sequence[int]], bool]) -> Callable[..., Interval]:
    """Of a comparison of a with b, known where all of a stands on one side of all of b."""

    def rule(a: Interval, b: Interval) -> Interval:
        if below((a[1], b[0])):
            return (1, 1)
        return (0, 1) if below((a[0], b[1])) else (0, 0)

    return rule


_less = _compared(lambda pair: pair[0] < pair[1])
_less_or_equal = _compared(lambda pair: pair[0] <= pair[1])
_RULES: dict[str, Callable[..., Interval | None]] = {
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "mul": _corners(lambda x, y: x * y),
    "max": _corners(max),
    "min": _corners(min),
    "neg": lambda a: (-a[1], -a[0]),
    "convert": lambda a: a,
    "floordiv": _quotient,
    "mod": _remainder,
    "lt": _less,
    "le": _less_or_equal,
}
