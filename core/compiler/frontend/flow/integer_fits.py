"""Numbers that become whole ones of a type, and the errors of those that have no value there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType, Value
from ...traced import ARRAY, BOOL, FLOAT, INT
from ..values import Tensor
from . import raises

if TYPE_CHECKING:
    from ..specialise import Specialiser


def ask_whole(
    s: Specialiser,
    number: Tensor,
    compute: Callable[..., Any],
    dtype: DType = DType.I64,
    large: type = raises.Uncaught,
) -> None:
    """What Python or NumPy raises where a number has no value among the integers of a type.

    `large`: the class of the error of a float that is finite; Python itself has none.
    """
    if raises.checks(s) is None:
        return
    gone = lost(s, number, dtype)
    if gone is None:
        return
    if not number.dtype.is_float:
        raises.ask(s, gone, compute, number, kind=OverflowError)
        return
    if not s.tries:
        raises.ask(s, gone, compute, number)
        return
    value = number.value
    known, finite = s.emit("eq", value, value), s.emit("is_finite", value)
    raises.ask(s, s.emit("not", known), compute, number, kind=ValueError)
    raises.ask(s, s.emit("and", gone, finite), compute, number, kind=large)
    infinite = s.emit("and", known, s.emit("not", finite))
    raises.ask(s, infinite, compute, number, kind=OverflowError)


def check_fits(s: Specialiser, value: Any, dtype: DType, item: bool = False) -> None:
    """What NumPy raises where a number does not fit the integers of an array.

    The number is an int or float of Python's; with `item`, also a scalar of NumPy's that becomes
    one element of signed integers. NumPy's own wrap elsewhere: of a number that is the one or the
    other, as the program takes its path, the program can do neither.
    """
    if type(value) is not Tensor or not dtype.is_int or value.dtype in (DType.BOOL, dtype):
        return
    if value.weak or (item and not value.kind & ARRAY and dtype.numpy.kind == "i"):
        ask_whole(s, value, partial(_one_item, dtype.numpy), dtype, large=OverflowError)
    elif value.kind & (BOOL | INT | FLOAT) and raises.checks(s) is not None:
        gone = lost(s, value, dtype)
        if gone is not None:
            undecided = partial(_undecided, dtype.numpy.name)
            raises.ask(s, gone, undecided, value, kind=raises.Uncaught)


def _one_item(dtype: Any, number: Any) -> None:
    np.array([number], dtype)


def _undecided(dtype: str, number: Any) -> None:
    raise ArithmeticError(
        f"{number} in an array of {dtype} is an error of Python's numbers and has a value among"
        " NumPy's, and the path of the program decides which this is: convert it, float(x), int(x)"
        " or np.float64(x)"
    )


def lost(s: Specialiser, number: Tensor, dtype: DType) -> Value | None:
    """bool[]: a number has no value among the integers of a type. None: it surely has one.

    A float is judged without its fraction.
    """
    value, (low, high) = number.value, s.natural.of_type(dtype)
    if not number.dtype.is_float:
        least, most = s.natural.of(value)
        if low <= least and most <= high:
            return None
        have = s.natural.of_type(
            value.dtype
        )  # u64 has what no other type has, and nothing below 0.
        ends = [s.scope.number(n, value.dtype) for n in (low, high) if have[0] <= n <= have[1]]
        tests = [s.emit("lt", value, ends[0])] if low >= have[0] else []
        tests += [s.emit("lt", ends[-1], value)] if high <= have[1] else []
        return tests[0] if len(tests) == 1 else s.emit("or", *tests)
    if number.dtype is not DType.F64:
        value = s.emit("convert", value, dtype=DType.F64)
    wide = dtype is DType.I64  # Of which no float is just below the least.
    ends = [s.scope.number(float(n), DType.F64) for n in (low if wide else low - 1, high + 1)]
    above = s.emit("le" if wide else "lt", ends[0], value)
    return s.emit("not", s.emit("and", above, s.emit("lt", value, ends[1])))
