"""`for` statements that append to lists, as loops of the program.

    rows = []
    for x in values:
        rows.append(f(x))

Only in programs that would be unrolled too far (`tracing`): a loop of known length that appends one
item a round, of numbers or of lists of numbers, fills an array with them (`stacked_items`), and the
list has them as its items afterwards. While the loop is made nothing may see that the list has not
grown: the body names it nowhere else, and nothing that the body reads holds it. A list that is
appended is one that the round has made, and that nothing else holds when the round ends.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import tree
from ...complex_numbers import Complex
from ...ir import DType
from ...ragged import Ragged
from ..containers import containers, stacked_items
from ..hir import hir, liveness
from ..values import (
    Closure,
    Frame,
    Indexed,
    Method,
    Picked,
    RaggedList,
    Tensor,
    TensorRange,
    Text,
    Unbound,
)
from . import iteration

if TYPE_CHECKING:
    from ..specialise import Specialiser


_PUT = "$put "


class Appending:
    """A loop that appends to lists.

    Attributes:
        node: it with calls of hidden functions in place of `append`.
        lists: by name.
    """

    def __init__(
        self, s: Specialiser, node: hir.For, lists: dict[str, list[Any]], frame: Frame
    ) -> None:
        self.s = s
        self.lists = lists
        self.frame = frame
        self.before = frame.vars
        body = tuple(self._put(statement) for statement in node.body)
        self.end = f"$end {id(node)}"  # Loops are nested.
        end = hir.Evaluate(node.loc, hir.Call(node.loc, hir.Name(node.loc, self.end), (), ()))
        stored = tuple(name for name in node.stored if name not in lists)
        self.node = replace(node, body=(*body, end), stored=stored)
        self.index: Tensor | None = None
        self.rows: dict[int, Any] = {}

    def _put(self, statement: Any) -> Any:
        name = _appended(statement)
        if name not in self.lists:
            return statement
        call = statement.value
        return replace(statement, value=replace(call, function=hir.Name(call.loc, _PUT + name)))

    def run(self, indexed: Indexed, loop: Callable[[hir.For, Callable[[Any], Any]], None]) -> None:
        """Makes the loop, and gives the lists their items.

        loop: makes a loop of a `for` statement, given the item at an index.
        """
        s = self.s
        state = s.state()
        items = {name: stacked_items.Items(indexed.length) for name in self.lists}
        hidden: dict[str, Any] = {
            _PUT + name: Method("append", one, self._append) for name, one in items.items()
        }
        hidden[self.end] = Method("append", None, self._end)

        def item(index: Any) -> Any:
            self.index, self.rows = index, {}
            return indexed.item(s, index)

        while True:
            self.frame.vars = {**self.before, **hidden}
            try:
                for one in items.values():
                    one.start(s)
                loop(self.node, item)
                break
            except stacked_items.Again:
                s.restore(state)
        self.frame.vars = {k: v for k, v in self.frame.vars.items() if k not in hidden}
        for name, owner in self.lists.items():
            containers.put(s, owner, [*owner, *items[name].made(s)])

    def _append(self, s: Specialiser, items: stacked_items.Items, item: Any) -> None:
        assert self.index is not None
        items.store(s, self.index, item, self._levels(item))

    def _levels(self, item: Any) -> int:
        """How many levels of lists an item has. They are of this round alone, and do not change."""
        if type(item) is not list:
            return 0
        made = self.s.owned.get(id(item))
        if made is None or made[1] is not self.s.region or id(item) in self.rows:
            raise self._refused("a list that others may hold")
        self.rows[id(item)] = self.s.shared[id(item)] = item
        return 1 + min(map(self._levels, item), default=0)

    def _end(self, s: Specialiser, _: None) -> None:
        """At the end of a round nothing else holds the lists that it has appended."""
        if not self.rows:
            return
        sees = _Sees(self.rows.values())
        names = [v for n, v in self.frame.vars.items() if n[0] != "$" and n not in self.node.dead]
        held = [owner for owner, _ in s.region.saved.values()]
        outer = self.frame.parent
        while outer is not None:
            names += outer.vars.values()
            outer = outer.parent
        if any(map(sees.within, (*names, *held))):
            raise self._refused("a list that others hold")

    def _refused(self, what: str) -> Exception:
        return self.s.static_needed(f"a long loop appends {what}", "append a list of its own")


def of(
    s: Specialiser, node: hir.For, frame: Frame, indexed: Indexed, sources: Iterable[list[Any]]
) -> Appending | None:
    """What a loop appends to, where that is all that it does to these lists.

    sources: the lists that it goes through.
    """
    if not s.stacking or s.tries or node.stop is not None or id(node) in s.peeled:
        return None
    if indexed.length < iteration.LOOP_MIN:
        return None
    names = [_appended(statement) for statement in node.body]
    lists: dict[str, list[Any]] = {}
    for name in names:
        owner = frame.vars.get(name)
        if type(owner) is list and _mentions((node.target, node.body), name) == 1:
            made = s.owned.get(id(owner))
            if made is not None and made[1] is s.region and id(owner) not in s.shared:
                lists[name] = owner
    if not lists or stacked_items.is_known(node, frame):
        return None
    sees = _Sees(lists.values())
    reads = liveness.reads_of(node.body) - lists.keys()
    read = (stacked_items.value_of(frame, name) for name in reads)
    if any(map(sees.within, (*sources, *read))):
        return None
    distinct = len({id(owner) for owner in lists.values()}) == len(lists)
    return Appending(s, node, lists, frame) if distinct else None


def _appended(statement: Any) -> str:
    """The name of the list that a statement appends one item to; empty: it does something else."""
    call = statement.value if isinstance(statement, hir.Evaluate) else None
    if not isinstance(call, hir.Call) or len(call.args) != 1 or call.keywords:
        return ""
    function, (item,) = call.function, call.args
    if not isinstance(function, hir.Attribute) or function.name != "append":
        return ""
    if isinstance(item, hir.Starred) or not isinstance(function.value, hir.Name):
        return ""
    return function.value.name


def _mentions(node: Any, name: str) -> int:
    """How often a piece of code names something, functions in it included."""
    if isinstance(node, tuple):
        return sum(_mentions(part, name) for part in node)
    if not is_dataclass(node):
        return int(node == name) if isinstance(node, str) else 0
    return sum(_mentions(getattr(node, f.name), name) for f in fields(node))


class _Sees:
    """Whether values lead to some lists."""

    def __init__(self, lists: Iterable[Any]) -> None:
        self.lists = {id(v): v for v in lists}
        self.done: dict[int, Any] = {}

    def within(self, value: Any) -> bool:
        """What is unknown here counts as leading to them."""
        if id(value) in self.lists:
            return True
        if value is None or isinstance(value, _LEAVES) or id(value) in self.done:
            return False
        self.done[id(value)] = value
        parts = self._parts(value)
        return parts is None or any(map(self.within, parts))

    def _parts(self, value: Any) -> Iterable[Any] | None:
        if isinstance(value, list | tuple | set | frozenset):
            return value
        if isinstance(value, dict):
            return [*value.keys(), *value.values()]
        if type(value) is Picked:
            return [value.base]
        if type(value) is Closure:
            names = [stacked_items.value_of(value.frame, name) for name in value.function.reads]
            return [*names, *value.defaults, *value.keyword_defaults.values()]
        if isinstance(value, partial):
            return [value.func, value.args, value.keywords]
        if containers.is_container(value):
            return [vars(value)]
        children = tree.children(value)
        return None if children is None else children[1]


#: What holds no list of the program's.
_LEAVES = (
    *(Tensor, Complex, Ragged, RaggedList, Text, TensorRange, Unbound, DType),
    *(int, float, complex, str, bytes, np.ndarray, np.generic, np.ufunc, np.dtype, range, type),
    *(types.ModuleType, types.FunctionType, types.BuiltinFunctionType),
)


__all__ = ["Appending", "of"]
