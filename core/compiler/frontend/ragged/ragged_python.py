"""Python's own functions on arrays whose length the data decide, and loops over them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ....common.errors import ProgramError
from ...ragged import Ragged
from ...traced import INT, SCALAR
from .. import operators
from ..flow import iteration
from ..numpy import arithmetic
from ..values import Counted, Once, RaggedList, Tensor, describe
from . import capacity, check, filled, plain, ragged_selection, rank, refused

if TYPE_CHECKING:
    from ..specialise import Specialiser


def _len(s: Specialiser, r: Ragged) -> Any:
    return r.data.shape[0] if r.axis else r.count


def _sum(s: Specialiser, iterable: Any, start: Any = 0) -> Any:
    """Python adds items to an int: they keep their type, and of none the int is left."""
    if type(iterable) is not Ragged or iterable.axis:
        raise refused(s, "`sum`", iterable)
    dtype = iterable.data.dtype
    asked = {} if dtype.is_float else {"dtype": np.int64}
    made = s.call(np.sum, filled(s, iterable, 0), axis=0, **asked)
    if dtype.is_int and not dtype.is_float and dtype.value != "bool":
        made = arithmetic.tensor(s, made, dtype)
    total = made if type(start) is int and not start else operators.binary(s, "+", start, made)
    if rank(iterable) == 1 and type(total) is Tensor:
        return Tensor(total.value, kind=SCALAR | INT)
    return total


#: What Python says of `max` and `min` of nothing.
OF_NOTHING = (
    "iterable argument is empty" if sys.version_info >= (3, 12) else "arg is an empty sequence"
)


def of_nothing(s: Specialiser, name: str) -> ProgramError:
    """The error of `max` or `min` without items."""
    made = s.error("DL113", f"`{name}` of nothing")
    made.__cause__ = ValueError(f"{name}() {OF_NOTHING}")
    return made


def _extreme(largest: bool) -> Callable[..., Any]:
    name = "max" if largest else "min"

    def run(s: Specialiser, *values: Any) -> Any:
        r = values[0]
        if len(values) != 1 or type(r) is not Ragged or rank(r) != 1:
            raise refused(s, f"`{name}`", values[0], f"np.{name} reduces an array")
        if not capacity(r):
            raise of_nothing(s, name)

        def make(count: int) -> BaseException:
            return ValueError(f"{name}() {OF_NOTHING}")

        check(s, arithmetic.equal(s, Tensor(r.count.value), 0), make, r.count)
        x = r
        if r.data.dtype.is_float:  # Python leaves a NaN out, unless it is the first.
            far = -np.inf if largest else np.inf
            known = arithmetic.equal(s, plain(r), plain(r))
            kept = arithmetic.select(s, known, plain(r), Tensor(s.scope.number(far, r.data.dtype)))
            x = Ragged(kept, r.count)
        from .ragged_functions import FUNCTIONS

        found = FUNCTIONS[name](s, getattr(np, name), x)
        if r.data.dtype.is_float:
            first = s.subscript(plain(r), 0)
            found = arithmetic.select(s, arithmetic.equal(s, first, first), found, first)
        return Tensor(arithmetic.tensor(s, found, r.data.dtype).value)

    return run


def _list(s: Specialiser, iterable: Any) -> RaggedList:
    from . import ragged_lists

    if rank(iterable) != 1:
        raise refused(s, "`list`", iterable)
    return ragged_lists.of_array(s, iterable, SCALAR)


def _truth(f: Any) -> Callable[..., Any]:
    def run(s: Specialiser, iterable: Any) -> Any:
        if type(iterable) is not Ragged or rank(iterable) != 1:
            raise refused(s, f"`{f.__name__}`", iterable)
        return Tensor(s.call(f, iterable).value, True)

    return run


def _isinstance(s: Specialiser, value: Any, classes: Any) -> bool:
    return bool(operators.python(s, lambda: issubclass(np.ndarray, classes), "`isinstance`"))


def _hasattr(s: Specialiser, value: Any, name: str) -> bool:
    return hasattr(np.ndarray, name)


def _absolute(s: Specialiser, x: Any) -> Any:
    return s.call(np.absolute, x)


def _bool(s: Specialiser, x: Any) -> Any:
    return operators.condition(s, x)


def _enumerate(s: Specialiser, iterable: Any, start: Any = 0) -> Once:
    first = operators.static_index(s, start, "a start")
    part = _part(s, iterable)

    def item(s: Specialiser, i: Any) -> Any:
        return iteration.place(s, first, i, 1), part.item(s, i)

    return Once(lambda: Counted(part.count, part.most, item), s.region)


def _zip(s: Specialiser, *values: Any, strict: Any = False) -> Once:
    if strict:
        raise refused(s, "`zip` with strict=True", next(v for v in values if type(v) is Ragged))

    def make() -> Counted:
        parts = [_part(s, v) for v in values]
        count = parts[0].count
        for part in parts[1:]:
            if part.count.value is not count.value:
                count = Tensor(arithmetic.minimum(s, count, part.count).value, True)

        def item(s: Specialiser, i: Any) -> Any:
            return tuple(part.item(s, i) for part in parts)

        return Counted(count, min(p.most for p in parts), item)

    return Once(make, s.region)


def _part(s: Specialiser, value: Any) -> Counted:
    if type(value) is Counted:
        return value
    if type(value) is Ragged:
        return counted(s, value)
    indexed = iteration.as_indexed(s, iteration.drawn(s, value))
    if indexed is None:
        text = f"`zip` of {describe(value)} and an array of a length that the data decide"
        raise s.static_needed(text, "make an array of it first")
    length = Tensor(arithmetic.tensor(s, indexed.length).value, True)
    return Counted(length, indexed.length, indexed.item)


def counted(s: Specialiser, r: Ragged) -> Counted:
    """Its entries, as a loop of the program goes through them."""
    if r.axis:
        n = r.data.shape[0]
        count = Tensor(arithmetic.tensor(s, n).value, True)
        return Counted(count, n, lambda s, i: ragged_selection.subscript(s, r, i))

    def item(s: Specialiser, i: Any) -> Any:
        return s.subscript(r.data, i)

    return Counted(r.count, capacity(r), item)


PYTHON: dict[str, Callable[..., Any]] = {
    "len": _len,
    "sum": _sum,
    "list": _list,
    "max": _extreme(True),
    "min": _extreme(False),
    "any": _truth(np.any),
    "all": _truth(np.all),
    "isinstance": _isinstance,
    "type": lambda s, value: np.ndarray,
    "hasattr": _hasattr,
    "callable": lambda s, value: False,
    "abs": _absolute,
    "bool": _bool,
    "enumerate": _enumerate,
    "zip": _zip,
}
