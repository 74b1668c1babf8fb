"""The list of a comprehension over a long list, as one array that a loop fills.

Only in programs that would be unrolled too far (`tracing`), and where the number of items is known:
`[f(x) for x in rows]`, without a condition and of one `for`. The result is a list as any other, of
numbers or of lists of numbers, whose elements are parts of the array (`list_stacks`). Its rows have
to be new lists of each round: else they would be one list, or one that others hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import operators
from ..flow import iteration
from ..hir import hir, liveness
from ..memory import array_changes, stores
from ..numpy import arithmetic
from ..ragged import ragged_lists
from ..ragged.ragged_lists import Again
from ..values import Closure, Frame, Once, Tensor, Whole, is_static, kind_of
from . import list_stacks

if TYPE_CHECKING:
    from ..specialise import Specialiser


class Items:
    """The array. levels: how many levels of new lists a round makes."""

    def __init__(self, length: int, levels: int = 0) -> None:
        self.length = length
        self.levels = levels
        self.row: Whole | None = None
        self.data: Tensor | None = None
        self.kind = 0

    def start(self, s: Specialiser) -> None:
        """Before the loop is made."""
        if self.row is not None:
            shape = (self.length, *self.row.type.shape)
            self.data = stores.fresh(s, s.scope.number(0, self.row.type.dtype, shape), True)

    def put(self, s: Specialiser, _: None, count: Any, item: Any) -> Any:
        """The number of items after another one."""
        place = Tensor(arithmetic.tensor(s, count).value, True)
        s.natural.known[place.value] = 0, self.length - 1  # Another one is stored before.
        self.store(s, place, item, self.levels)
        return operators.binary(s, "+", count, 1)

    def store(self, s: Specialiser, place: Tensor, item: Any, levels: int) -> None:
        """Another item. levels: how many levels of it are lists that the round has made.

        Raises:
            Again: the loop is to be made again, now that the type of its items is known.
            StaticNeeded: the items are of several types, or no numbers.
        """
        row = self._row(s, item, levels)
        several = row is None or row.kind & (row.kind - 1)  # Unrolled, each may be of one class.
        if row is None or several or (self.row is not None and row.type != self.row.type):
            raise s.static_needed("a long list of items of several types", "use an array")
        if self.data is None:
            self.row = row
            raise Again
        self.kind |= row.kind
        array_changes.store(s, self.data, place, Tensor(row.value))

    def _row(self, s: Specialiser, item: Any, levels: int) -> Whole | None:
        """An item as an array; None where it cannot be a part of one."""
        if list_stacks.is_element(item):
            strong = arithmetic.strong(arithmetic.tensor(s, item))
            return Whole(strong.value, kind_of(item), s.scope)
        found = list_stacks.regular(item)
        return None if found is None or len(found[0]) > levels else list_stacks.whole(s, item)

    def made(self, s: Specialiser, _: None = None, count: Any = None) -> list[Any]:
        """The list at the end of the loop."""
        assert self.data is not None
        of = Whole(self.data.value, self.kind, s.scope)
        items: list[Any] = list(list_stacks.items_of(s, of))
        for size in reversed(of.type.shape):
            items = [s.own(items[k : k + size]) for k in range(0, len(items), size)]
        found: list[Any] = items[0]
        return found


def collected(
    s: Specialiser,
    node: hir.Comprehension,
    source: Any,
    frame: Frame,
    loop: Callable[[Any, Mapping[str, Any]], Any],
) -> Any:
    """The list of a comprehension in a frame.

    loop: runs it over a source, given what it reads.
    """
    source = iteration.drawn(s, iteration.of_object(s, source))
    indexed = iteration.as_indexed(s, source)
    if indexed is None or indexed.length < iteration.LOOP_MIN:
        raise s.static_needed("a short list, or one of items of several types", "use an array")
    return ragged_lists.filled(
        s, Items(indexed.length, _levels(s, node.value, frame)), source, loop
    )


def takes(node: hir.Comprehension) -> bool:
    """Whether the length of a list is that of its source."""
    return len(node.generators) == 1 and not node.generators[0].conditions


def is_long(s: Specialiser, source: Any) -> bool:
    """Whether a loop goes through many items by an index, in a program that has to be short."""
    if not s.stacking or (type(source) is Once and (source.computes or source.used)):
        return False
    parts = [iteration.as_indexed(s, v) for v in iteration.sources_of(source)]
    return all(v is not None and v.length >= iteration.LOOP_MIN for v in parts)


def is_known(node: Any, frame: Frame) -> bool:
    """Whether code reads known values alone: its items are known then, and may have to be."""
    values = [value_of(frame, name) for name in liveness.reads_of(node)]
    return all(is_static(value) and type(value) is not Closure for value in values)


def value_of(frame: Frame, name: str) -> Any:
    """What a name stands for; None where it has no value yet."""
    at: Frame | None = frame
    while at is not None:
        if name in at.vars:
            return at.vars[name]
        at = at.parent
    return frame.cells.get(name, frame.module.get(name))


def _levels(s: Specialiser, node: Any, frame: Frame) -> int:
    """How many levels of new lists an expression makes: 2 of `[[0.0], [x]]`."""
    if isinstance(node, hir.Reduction) and isinstance(node.call, hir.Comprehension):
        node = node.call
    if isinstance(node, hir.Comprehension) and node.kind is list:
        return 1 + _levels(s, node.value, frame)
    if isinstance(node, hir.Sequence) and node.kind is list and node.items:
        return 1 + min(_levels(s, item, frame) for item in node.items)
    if isinstance(node, hir.Binary) and node.op == "*":  # [0.0] * n
        return min(1, max(_levels(s, part, frame) for part in (node.left, node.right)))
    if isinstance(node, hir.Call) and isinstance(node.function, hir.Name):
        function = s.eval(node.function, frame)
        return int(function is list or function is sorted)
    return 0


__all__ = ["Again", "Items", "collected", "is_known", "is_long", "takes", "value_of"]
