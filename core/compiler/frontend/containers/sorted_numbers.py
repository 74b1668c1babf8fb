"""`sorted`, `list.sort`, `max` and `min` with a key, where the numbers decide.

Items are numbers, or tuples and the like that hold numbers, all of the same classes: an item of the
result is at each place of one class, whichever it is. Ranks are single numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import tree
from ...traced import same_static
from ..flow import branches
from ..numpy import arithmetic, elementwise, shapes
from ..numpy.formulas import refuses
from ..values import Tensor, is_number, is_static, kind_of

if TYPE_CHECKING:
    from ..specialise import Specialiser


def ordered(s: Specialiser, values: list[Any], key: Any, reverse: Any, name: str) -> list[Any]:
    """The values in the order that `sorted` or `list.sort` puts them in."""
    ranks = values if key is None else [s.call(key, v) for v in values]
    try:
        order = sorted(range(len(ranks)), key=lambda k: ranks[k], reverse=bool(reverse))
        return [values[k] for k in order]
    except TypeError as e:  # Pairs whose first items are known and differ have an order.
        if is_static(tuple(ranks)):
            raise s.error("DL113", f"`{name}` fails: {e}") from None
    made = _by_numbers(s, values, ranks, bool(reverse))
    if made is None:
        hint = "np.sort sorts an array; numbers and tuples of them are sorted where all are alike"
        raise s.needs_static(tuple(ranks), f"what `{name}` compares", hint) from None
    return made


def _by_numbers(
    s: Specialiser, values: list[Any], ranks: list[Any], reverse: bool
) -> list[Any] | None:
    """None: the ranks are not single numbers of one class, or the values are not alike."""
    keys = _column(s, ranks)
    flat = [tree.flatten(v) for v in values]
    if keys is None or any(structure != flat[0][1] for _, structure in flat):
        return None
    columns = [_leaves(s, column) for column in zip(*(leaves for leaves, _ in flat), strict=True)]
    if any(column is None for column in columns):
        return None
    if keys.dtype.is_float:
        lost = elementwise.isnan(s, keys).value
        refuses(s, lost, "Python has no order of NaN: what it gives depends on how it sorts")
    # Equal ones stay in their order, also where the largest comes first.
    order = s.call(np.argsort, s.call(np.flip, keys) if reverse else keys)
    if reverse:
        order = s.call(np.flip, arithmetic.subtract(s, len(values) - 1, order))
    rows = [_in_order(s, c, order, len(values)) for c in columns if c is not None]
    return [
        tree.unflatten(structure, [row[k] for row in rows]) for k, (_, structure) in enumerate(flat)
    ]


def _column(s: Specialiser, values: Sequence[Any]) -> Tensor | None:
    """Numbers of one class, as an array; None where they are not."""
    if not all(is_number(v) and arithmetic.shape_of(v) == () for v in values):
        return None
    made = [arithmetic.tensor(s, v) for v in values]
    if len({(v.dtype, v.kind) for v in made}) > 1 or len(made[0].classes) > 1:
        return None
    return shapes.stack(s, [arithmetic.strong(v) for v in made])


def _leaves(s: Specialiser, values: Sequence[Any]) -> Any:
    """What stands in one place of all values: numbers as an array with their kind, or the same."""
    if all(is_static(v) and same_static(v, values[0]) for v in values):
        return (values[0],)
    made = _column(s, values)
    return None if made is None else (made, kind_of(arithmetic.tensor(s, values[0])))


def _in_order(s: Specialiser, column: Any, order: Tensor, count: int) -> list[Any]:
    if len(column) == 1:
        return [column[0]] * count
    array, kind = column
    moved = s.call(np.take, array, order)
    return [Tensor(s.subscript(moved, k).value, kind=kind) for k in range(count)]


def extreme(s: Specialiser, name: str, items: Sequence[Any], ranks: Sequence[Any]) -> Any:
    """`max` or `min` with a key: the first item whose rank no other one exceeds."""
    from .. import pynumbers

    best, rank = items[0], ranks[0]
    assert s.loc is not None
    for item, other in zip(items[1:], ranks[1:], strict=True):
        better = pynumbers.compare_any(s, ">" if name == "max" else "<", other, rank)
        if isinstance(better, bool):
            best, rank = (item, other) if better else (best, rank)
            continue
        pairs = ((item, other), (best, rank))
        runs = [lambda pair=pair: pair for pair in pairs]
        words = ("where an item is better", "where it is not")
        best, rank = branches.choose(s, "if", better.value, runs, s.loc, words)
    return best


__all__ = ["extreme", "ordered"]
