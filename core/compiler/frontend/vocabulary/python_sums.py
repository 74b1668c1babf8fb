"""Python's `sum`, of known items and as the steps of a loop.

CPython, Python/bltinmodule.c, `builtin_sum_impl`; A. Neumaier, "Rundungsfehleranalyse einiger
Verfahren zur Summation endlicher Summen", 1974.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ...traced import BOOL, FLOAT, INT
from .. import operators
from ..definitions import np_scalars
from ..flow import iteration
from ..values import Tensor, is_number, kind_of

if TYPE_CHECKING:
    from ..specialise import Specialiser


#: Whether this Python's `sum` of floats is compensated, as from 3.12 on.
COMPENSATED = sys.version_info >= (3, 12)


def of_items(s: Specialiser, iterable: Any, start: Any = 0) -> Any:
    """Floats by Neumaier's compensated sum, as long as floats and ints follow."""
    if isinstance(start, str | bytes | bytearray):
        text = f"sum() fails: TypeError: it can't sum {type(start).__name__}"
        raise s.error("DL113", text, "join them: ''.join(values)")
    total, lost, plain = start, 0.0, not COMPENSATED
    for value in iteration.items(s, iterable):
        plain = plain or not (_is_float(s, total) or kind_of(total) in _WHOLE)
        if not plain and _is_float(s, total):
            if _is_float(s, value):
                total, lost = s.call(np_scalars.compensated, total, lost, value)
                continue
            if kind_of(value) not in _WHOLE:
                total, lost, plain = s.call(np_scalars.settled, total, lost), 0.0, True
        total = operators.binary(s, "+", total, value)
    return total if plain or not _is_float(s, total) else s.call(np_scalars.settled, total, lost)


def step(s: Specialiser, start: Any, total: Any, lost: Any, value: Any) -> tuple[Any, Any]:
    """The total after an item of a loop, and what rounding has taken from it.

    From 0 on it is no matter which item is the first: 0 + x is x.
    """
    if not COMPENSATED or not _is_float(s, value):
        return operators.binary(s, "+", total, value), lost
    if type(start) in (int, bool) and not start:
        total = 0.0 if total is start else Tensor(total.value, True)
    elif not _is_float(s, start):
        text = "`sum` of floats that starts with another number, where the program picks the items"
        raise s.error("DL108", text, "start with a float: sum((x for x in v if x > t), 1.0)")
    made: tuple[Any, Any] = s.call(np_scalars.compensated, total, lost, value)
    return made


def settled(s: Specialiser, total: Any, lost: Any) -> Any:
    """The total of a loop."""
    return total if type(lost) is float else s.call(np_scalars.settled, total, lost)


_WHOLE = (INT, BOOL, INT | BOOL)


def _is_float(s: Specialiser, value: Any) -> bool:
    """Whether it is a float of Python's own, and no subclass."""
    kind = kind_of(value) if is_number(value) else 0
    if type(value) is Tensor and kind & FLOAT and kind != FLOAT:
        raise operators.of_several_classes(s, value)
    return kind == FLOAT


__all__ = ["of_items", "settled", "step"]
