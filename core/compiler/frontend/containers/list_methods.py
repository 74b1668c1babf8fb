"""Methods of lists and tuples that compare or order their items."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ir import DType
from .. import operators
from ..numpy import arithmetic
from ..values import Tensor, is_static
from . import sorted_numbers

if TYPE_CHECKING:
    from ..specialise import Specialiser


def _count(s: Specialiser, owner: Any, value: Any) -> Any:
    """How many items are the value or equal to it."""
    total: Any = 0
    for item in owner:
        test = operators.equal(s, item, value)
        if isinstance(test, bool):
            total = total + 1 if test and isinstance(total, int) else _more(s, total, test)
        else:
            total = operators.binary(s, "+", total, _one(s, test))
    return total


def _more(s: Specialiser, total: Any, test: bool) -> Any:
    return operators.binary(s, "+", total, 1) if test else total


def _one(s: Specialiser, test: Any) -> Tensor:
    return Tensor(arithmetic.convert(s, test, DType.I64), True)


def _place(s: Specialiser, owner: Any, value: Any, name: str, start: int = 0) -> int:
    """Where the first item is that is the value or equal to it, which must be known."""
    for k in range(start, len(owner)):
        test = operators.equal(s, owner[k], value)
        if test is True:
            return k
        if test is not False:
            hint = "np.argmax(np.stack(items) == x) is a place that the running program finds"
            text = (
                f"which item `{name}` finds depends on numbers that only the running program knows"
            )
            raise s.static_needed(text, hint)
    text = f"`{name}` fails: ValueError: no item is equal to the value"
    raise s.error("DL113", text) from _words_of_none(owner, value, name, start)


def _words_of_none(owner: Any, value: Any, name: str, start: int) -> Exception | None:
    """What Python raises, where all numbers are known."""
    if not is_static((owner, value)):
        return None
    try:
        list(owner).remove(value) if name == "remove" else owner.index(value, start)
    except ValueError as e:
        return e
    return None


def _index(s: Specialiser, owner: Any, value: Any, start: Any = 0, stop: Any = None) -> int:
    first, last, _ = slice(
        operators.static_index(s, start, "a start"),
        None if stop is None else operators.static_index(s, stop, "a stop"),
    ).indices(len(owner))
    return _place(s, owner[:last], value, "index", first)


def _remove(s: Specialiser, owner: list[Any], value: Any) -> None:
    del owner[_place(s, owner, value, "remove")]


def _sort(s: Specialiser, owner: list[Any], *, key: Any = None, reverse: Any = False) -> None:
    owner[:] = sorted_numbers.ordered(s, list(owner), key, reverse, "sort")


METHODS: dict[str, Callable[..., Any]] = {
    "count": _count,
    "index": _index,
    "remove": _remove,
    "sort": _sort,
}
