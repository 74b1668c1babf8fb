"""The interval in which each whole number of a program lies, as far as its text says.

Places are clamped where they are used (`ops.index`), so that no program reads or writes outside its
tensors. An index whose interval fits needs no clamp: that of a loop with known bounds, and what is
added to it or multiplied.

    for(%0, %1) i          0 <= i < 30           where %0 = 0 and %1 = 30
      %2 = add(i, 1)       1 <= %2 < 31
      %3 = mul(%2, 32)     32 <= %3 <= 960

An operation whose result may wrap has any value of its type. `condition_facts` has what branches
and loops add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir import Block, Builder, DType, Op, TensorType, Value, Values
from .condition_facts import Interval, carried, entered, facts


class Intervals(dict[Value, Interval]):
    """Intervals by their numbers. tested: whether a branch uses what its condition says."""

    tested = True


def intervals(block: Block, tested: bool = True) -> Intervals:
    """The intervals of a block's rank-0 whole numbers and truths, and of those of its regions.

    tested: whether numbers of a branch lie where its condition says; not where what the branch
    computes will be computed in any case. No two operations may share a region (`ir.unshared`).
    """
    found = Intervals()
    found.tested = tested
    _block(block, found)
    return found


@dataclass(frozen=True, slots=True)
class Form:
    """A number as a sum: other numbers, each times a factor that is not 0, and a constant."""

    terms: Mapping[Value, int]
    constant: int

    def plus(self, other: Form, factor: int = 1) -> Form:
        terms = dict(self.terms)
        for value, count in other.terms.items():
            terms[value] = terms.get(value, 0) + count * factor
        left = {value: count for value, count in terms.items() if count}
        return Form(left, self.constant + other.constant * factor)

    def times(self, factor: int) -> Form:
        return Form({}, 0).plus(self, factor)


def forms(block: Block, ranges: Mapping[Value, Interval]) -> dict[Value, Form]:
    """The rank-0 whole numbers of a block and its regions as sums: two of one form are equal.

    What a region is given has the form that it has outside. No two operations may share a region.
    """
    found: dict[Value, Form] = {}
    _forms(block, ranges, found)
    return found


def _forms(block: Block, ranges: Mapping[Value, Interval], found: dict[Value, Form]) -> None:
    for param in block.params:
        found.setdefault(param, Form({param: 1}, 0))
    for op in block.ops:
        for region in op.regions:
            found.update((p, found[v]) for p, v in _given(op, region) if v in found)
            _forms(region, ranges, found)
        for result in op.results:
            found[result] = Form({result: 1}, 0)
        if op.results and op.results[0] in ranges:
            found[op.results[0]] = _form(op, ranges, found)


def _form(op: Op, ranges: Mapping[Value, Interval], found: Mapping[Value, Form]) -> Form:
    """The form of a number that is computed without wrapping."""
    value = op.results[0]
    if (number := known(ranges, value)) is not None:
        return Form({}, number)
    if op.name in ("add", "sub"):
        x, y = op.operands
        return found[x].plus(found[y], 1 if op.name == "add" else -1)
    if op.name == "mul":
        for x, y in (op.operands, op.operands[::-1]):
            if (factor := known(ranges, y)) is not None:
                return found[x].times(factor)
    if op.name == "select" and (truth := known(ranges, op.operands[0])) is not None:
        return found[op.operands[1 if truth else 2]]
    return Form({value: 1}, 0)


def known(ranges: Mapping[Value, Interval], value: Value) -> int | None:
    """The one value that a number can have."""
    low, high = ranges.get(value, (0, 1))
    return low if low == high else None


def _block(block: Block, found: Intervals) -> None:
    made = {r: op for op in block.ops for r in op.results}
    for op in block.ops:
        if op.name in ("for", "while"):
            _loop(op, made, found)
        elif op.regions:
            _branches(op, made, found)
        elif (type_ := op.results[0].type) and isinstance(type_, TensorType) and not type_.shape:
            interval = _result(op, made, found)
            if interval is not None and _fits(interval, type_):
                found[op.results[0]] = interval


def _loop(op: Op, made: Mapping[Value, Op], found: Intervals) -> None:
    """A loop with any carries first, then with what that says of them."""
    for region in op.regions:
        _enter(op, region, found)
        _block(region, found)
    known = carried(op, made, found)
    first = int(op.attrs["consts"]) + (op.name == "for")
    for k, (inner, ends) in known.items():
        found[op.results[k]] = ends
        found[op.regions[-1].params[first + k]] = inner
        if op.name == "while":
            found[op.regions[0].params[first + k]] = ends
    if known:
        for region in op.regions:
            _block(region, found)


def _branches(op: Op, made: Mapping[Value, Op], found: Intervals) -> None:
    for k, region in enumerate(op.regions):
        _enter(op, region, found)
        if op.name == "if" and found.tested:
            said = facts(op.operands[0], k == 0, made, found)
            entered(region, op.operands[1:], said, found)
        _block(region, found)
    if op.name not in ("if", "switch"):
        return
    for k, result in enumerate(op.results):
        ends = [found.get(region.results[k]) for region in op.regions]
        known_ends = [end for end in ends if end is not None]
        if len(known_ends) == len(ends) and isinstance(result.type, TensorType):
            found[result] = min(e[0] for e in known_ends), max(e[1] for e in known_ends)


def _enter(op: Op, region: Block, found: Intervals) -> None:
    """What a region's parameters are: arguments as they are, an index between its bounds."""
    if op.name == "for":
        low, high = (found.get(v) for v in op.operands[:2])
        if low is not None and high is not None and low[0] < high[1]:
            found[region.params[0]] = (low[0], high[1] - 1)
    found.update((p, found[v]) for p, v in _given(op, region) if v in found)


def _given(op: Op, region: Block) -> Iterable[tuple[Value, Value]]:
    """The parameters of a region that are values outside, and these; carries are not."""
    if op.name in ("if", "switch"):
        return zip(region.params, op.operands[1:], strict=True)
    if op.name not in ("for", "while"):
        return ()
    skipped, first = (2, 1) if op.name == "for" else (0, 0)
    count = int(op.attrs["consts"])
    params = region.params[first : first + count]
    return zip(params, op.operands[skipped : skipped + count], strict=True)


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
    given = [found.get(v) for v in op.operands]
    if op.name in _TRUTHS and op.result.dtype is DType.BOOL:
        return _TRUTHS[op.name](*((0, 1) if g is None else g for g in given))
    rule = _RULES.get(op.name)
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
    """The interval of an index that counts from the end: select(i < 0, i + n, i)."""
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
    """The interval of an operation that is monotonic in each of its two operands."""

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
    """The interval of a comparison, known where all of a is on one side of all of b."""

    def rule(a: Interval, b: Interval) -> Interval:
        if below((a[1], b[0])):
            return (1, 1)
        return (0, 1) if below((a[0], b[1])) else (0, 0)

    return rule


def _equal(a: Interval, b: Interval) -> Interval:
    if a[0] == a[1] == b[0] == b[1]:
        return (1, 1)
    return (0, 1) if max(a[0], b[0]) <= min(a[1], b[1]) else (0, 0)


def _both(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), min(a[1], b[1])


def _either(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), max(a[1], b[1])


def _opposite(a: Interval) -> Interval:
    return 1 - a[1], 1 - a[0]


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
    "eq": _equal,
    "ne": lambda a, b: _opposite(_equal(a, b)),
}
#: Of truths, of which one may be unknown.
_TRUTHS: dict[str, Callable[..., Interval]] = {"and": _both, "or": _either, "not": _opposite}


def are_inside(array: Value, starts: Values, ranges: Mapping[Value, Interval]) -> bool:
    """Whether a place is known to lie in an array."""
    places = zip(starts, array.shape, strict=True)
    return all((r := ranges.get(s)) is not None and r[0] >= 0 and r[1] < n for s, n in places)


def interval_of(form: Form, ranges: Mapping[Value, Interval]) -> Interval | None:
    """The interval of a sum, by those of its numbers."""
    low = high = form.constant
    for value, factor in form.terms.items():
        if (found := ranges.get(value)) is None:
            return None
        ends = sorted(factor * end for end in found)
        low, high = low + ends[0], high + ends[1]
    return low, high


def flat_form(array: Value, starts: Values, places: Mapping[Value, Form]) -> Form | None:
    """The place of an element in row-major order."""
    flat = Form({}, 0)
    step = 1
    for start, size in zip(reversed(starts), reversed(array.shape), strict=True):
        form = places.get(start)
        if form is None:
            return None
        flat = flat.plus(form.times(step))
        step *= size
    return flat


def number_at(b: Builder, array: Value, starts: Values) -> Value:
    """The number at a place that lies in an array."""
    flat = starts[0]
    for start, size in zip(starts[1:], array.shape[1:], strict=True):
        flat = b("add", b("mul", flat, b.constant(size, DType.I64)), start)
    row = b("reshape", array, shape=(array.tensor.size,)) if array.tensor.rank > 1 else array
    return b("take", row, flat, axis=0)
