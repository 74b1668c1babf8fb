"""Between which bounds the whole numbers of a program lie, as far as that is known.

An index that is known to lie within its axis needs neither a wrap nor a check. Ranges are closed,
(least, greatest), and follow from the operations that compute a number; what is not known has the
range of its type. A narrow integer that its type may not hold wraps around and is not known; 64
bits are taken to suffice, for no index survives a wrap of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir import DType, TensorType, Value
from ...traced import INT
from ..values import Tensor

Range = tuple[int, int]

_TYPES: dict[DType, Range] = {
    DType.BOOL: (0, 1),
    **{d: (int(np.iinfo(d.numpy).min), int(np.iinfo(d.numpy).max)) for d in DType if d.is_int},
}


_WIDEST = _TYPES[DType.I64]


def _limits(value: Value) -> Range | None:
    """The range of a value's type; None where it is not one of whole numbers."""
    type_ = value.type
    return _TYPES.get(type_.dtype) if type(type_) is TensorType else None


class Ranges:
    """The ranges of a program's values. `value in ranges`: it is not negative."""

    def __init__(self) -> None:
        self.known: dict[Value, Range] = {}

    def of(self, value: Value) -> Range:
        found = self.known.get(value)
        return found if found is not None else _TYPES[value.dtype]

    def of_type(self, dtype: DType) -> Range:
        return _TYPES[dtype]

    def __contains__(self, value: Value) -> bool:
        found = self.known.get(value)
        return found is not None and found[0] >= 0

    def add(self, value: Value) -> None:
        """Notes that a value is not negative."""
        low, high = self.of(value)
        self.known[value] = max(low, 0), high

    def index(self, value: Value, start: Value, stop: Value) -> None:
        """Notes the range of a loop's index, start..stop-1."""
        low, high = self.of(start)[0], self.of(stop)[1] - 1
        self.known[value] = low, max(low, high)

    def compared(self, op: str, x: Any, y: Any) -> bool | None:
        """What a comparison of two of Python's ints surely gives; None: that is not known."""
        a, b = self._of_int(x), self._of_int(y)
        if a is None or b is None:
            return None
        if op in ("==", "!="):
            if a == b and a[0] == a[1]:
                return op == "=="
            return op == "!=" if a[1] < b[0] or b[1] < a[0] else None
        if op in (">", ">="):
            a, b = b, a
        if op in ("<", ">"):
            return True if a[1] < b[0] else False if a[0] >= b[1] else None
        return True if a[1] <= b[0] else False if a[0] > b[1] else None

    def _of_int(self, value: Any) -> Range | None:
        if type(value) is int:
            return value, value
        is_int = type(value) is Tensor and value.kind == INT
        return self.known.get(value.value) if is_int else None

    def note(
        self, name: str, operands: Sequence[Value], attrs: Mapping[str, Any], results: Any
    ) -> None:
        """Notes the range of an operation's result."""
        rule = _RULES.get(name)
        limits = None if rule is None else _limits(results[0])
        if rule is None or limits is None:
            return
        given = []
        for v in operands:
            found = self.known.get(v) or _limits(v)
            if found is None and name not in _WITH_OTHERS:
                return
            given.append(found or (0, 0))
        result = results[0]
        low, high = rule(given, attrs, operands)
        if limits is _WIDEST:
            low, high = max(low, limits[0]), min(high, limits[1])
        if limits[0] <= low <= high <= limits[1] and (low, high) != limits:
            self.known[result] = low, high


_Rule = Callable[[Sequence[Range], Mapping[str, Any], Sequence[Value]], Range]

#: Operations of which some operands may be no whole numbers.
_WITH_OTHERS = frozenset(("argmax", "argmin", "argsort"))
_UNKNOWN: Range = (0, -1)


def _corners(function: Callable[[int, int], int]) -> _Rule:
    def rule(given: Sequence[Range], attrs: Any, operands: Any) -> Range:
        made = [function(a, b) for a in given[0] for b in given[1]]
        return min(made), max(made)

    return rule


def _same(given: Sequence[Range], attrs: Any, operands: Any) -> Range:
    return given[0]


def _converted(given: Sequence[Range], attrs: Mapping[str, Any], operands: Any) -> Range:
    """What the new type may not hold wraps around: u64 to i64 too."""
    (low, high), (least, most) = given[0], _TYPES.get(attrs["dtype"], given[0])
    return (low, high) if least <= low and high <= most else _UNKNOWN


def _either(given: Sequence[Range], attrs: Any, operands: Any) -> Range:
    return min(low for low, _ in given), max(high for _, high in given)


def _selected(given: Sequence[Range], attrs: Any, operands: Any) -> Range:
    return _either(given[1:], attrs, operands)


def _constant(given: Any, attrs: Mapping[str, Any], operands: Any) -> Range:
    value = np.asarray(attrs["value"])
    if value.size == 1:  # Most are, and NumPy's reductions of them take long.
        return int(value.item()), int(value.item())
    return (int(value.min()), int(value.max())) if value.size else _UNKNOWN


def _iota(given: Any, attrs: Mapping[str, Any], operands: Any) -> Range:
    return 0, max(int(attrs["shape"][attrs["axis"]]) - 1, 0)


def _place(given: Any, attrs: Mapping[str, Any], operands: Sequence[Value]) -> Range:
    return 0, max(operands[0].tensor.shape[attrs["axis"]] - 1, 0)


def _mod(given: Sequence[Range], attrs: Any, operands: Any) -> Range:
    low, high = given[1]  # What is divided by 0 gives 0.
    return (0, max(high - 1, 0)) if low >= 0 else _UNKNOWN


def _floordiv(given: Sequence[Range], attrs: Any, operands: Any) -> Range:
    (low, high), divisor = given
    if divisor[0] < 0:
        return _UNKNOWN
    if divisor[0] == 0:  # What is divided by 0 gives 0.
        return min(low, 0), max(high, 0)
    return _corners(lambda a, b: a // b)(given, attrs, operands)


def _shr(given: Sequence[Range], attrs: Any, operands: Any) -> Range:
    if given[0][0] < 0 or given[1][0] < 0:
        return _UNKNOWN
    return 0, given[0][1] >> min(given[1][0], 64)


def _and(given: Sequence[Range], attrs: Any, operands: Any) -> Range:
    highs = [high for low, high in given if low >= 0]
    return (0, min(highs)) if highs else _UNKNOWN


def _abs(given: Sequence[Range], attrs: Any, operands: Any) -> Range:
    low, high = given[0]
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _neg(given: Sequence[Range], attrs: Any, operands: Any) -> Range:
    return -given[0][1], -given[0][0]


def _sum(given: Sequence[Range], attrs: Any, operands: Sequence[Value]) -> Range:
    low, high = given[0]
    count = operands[0].tensor.size
    return min(low, 0) * count, max(high, 0) * count


_RULES: dict[str, _Rule] = {
    "constant": _constant,
    "iota": _iota,
    "argmax": _place,
    "argmin": _place,
    "argsort": _place,
    "add": _corners(lambda a, b: a + b),
    "sub": lambda g, _, __: (g[0][0] - g[1][1], g[0][1] - g[1][0]),
    "mul": _corners(lambda a, b: a * b),
    "max": lambda g, _, __: (max(g[0][0], g[1][0]), max(g[0][1], g[1][1])),
    "min": lambda g, _, __: (min(g[0][0], g[1][0]), min(g[0][1], g[1][1])),
    "mod": _mod,
    "floordiv": _floordiv,
    "shr": _shr,
    "and": _and,
    "abs": _abs,
    "neg": _neg,
    "convert": _converted,
    "select": _selected,
    "concat": _either,
    "reduce_sum": _sum,
    "cumsum": _sum,
    **dict.fromkeys(
        (
            *("broadcast", "reshape", "transpose", "slice", "take", "take_along"),
            *("reverse", "dynamic_slice", "reduce_max", "reduce_min"),
        ),
        _same,
    ),
}
