"""Arrays where paths meet: which of several an array may be, and with which it may be one.

A name that is bound to different arrays on two paths of a branch, or in two rounds of a loop, is
bound to a new array afterwards (`stores.Guard`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from ...ir import Value
from ..values import Tensor
from . import stores
from .stores import Guard, Memory

if TYPE_CHECKING:
    from ..specialise import Specialiser


class Past:
    """An array that a name was bound to before a loop that binds the name again.

    It does not keep the array in use: where nothing else does, it is the loop's to change.

    Attributes:
        plain: its value then, without a memory. may_be: it and the arrays that it might be itself,
            by `born`. unknown: it may not be changed in any case.
    """

    __slots__ = ("fields", "kind", "lenses", "may_be", "memory", "plain", "s", "unknown")

    def __init__(self, s: Specialiser, x: Tensor) -> None:
        memory = stores.memory_of(s, x)
        assert memory is not None, "it is an array"
        self.s = s
        self.plain = stores.plain(x)
        self.kind = x.kind
        self.lenses = x.lenses
        self.may_be = [m.born for m in stores.sources_of([memory])]
        self.unknown = _is_unknown(s, x)
        self.memory = ref(memory)
        names = [n for n in Memory.__slots__ if n != "__weakref__"]
        self.fields = {n: getattr(memory, n) for n in names}

    def sources(self) -> list[Memory]:
        """What is still in use of the array, and of those that it may be itself."""
        memory = self.memory()
        guard: Guard | None = self.fields["guard"]
        out = [] if memory is None else [memory]
        return out if guard is None else [*out, *guard.live()]

    def tensor(self, made: dict[int, Memory]) -> Tensor:
        """The array as it was. made: the memories that came back before, by `born`."""
        born = self.fields["born"]
        memory = self.memory() or made.get(born)
        if memory is None:
            memory = made[born] = Memory.__new__(Memory)
            for name, value in self.fields.items():
                setattr(memory, name, value)
            for guard in stores.guards(self.s):  # To these it is the array that was gone.
                if born in guard.sources:
                    guard.sources[born] = ref(memory)
        x = Tensor(self.plain.value, kind=self.kind)
        x.memory, x.lenses = memory, self.lenses
        return x


class Columns:
    """What the joined values of a branch or loop may be: columns of leaves, one leaf a path.

    An array that two columns have on one path is shared between what they become; names that swap
    their arrays share none. In a branch a column is named by its leaves: two names with equal
    columns are bound to one array on each path, and so to one afterwards. In a loop it is named by
    its place: names that start with one array need not go on with one.
    """

    def __init__(self, s: Specialiser, born: int | None = None, before: int | None = None) -> None:
        """`born`: arrays made since are those of another round, which nothing else holds.

        `before`: when the branch or loop began; None: `born`.
        """
        self.s = s
        self.born = born
        self.before = born if before is None else before
        #: On each path, the columns that have an array, which its `born` names.
        self.places: dict[tuple[int, int], set[Any]] = {}
        self.made: dict[Any, Tensor] = {}
        self.kept: list[Sequence[Any]] = []

    def add(self, key: Any, column: Sequence[Any]) -> None:
        found = self._arrays(column)
        if found:
            self.kept.append(column)  # Its objects stay what their ids say.
        for place in found:
            self.places.setdefault(place, set()).add(key)

    def joined(self, key: Any, value: Value, kind: int, column: Sequence[Any]) -> Tensor:
        """The value of a column, after `add` of all columns."""
        if key in self.made:
            return self.made[key]
        found = self._arrays(column)
        if not found:
            return Tensor(value, kind=kind)
        shared = any(len(self.places[place]) > 1 for place in found)
        others = {m.born for x in self.made.values() if (m := x.memory) is not None}
        made = self.made[key] = joined(
            self.s, value, kind, column, shared, self.born, self.before, others
        )
        return made

    def known(self, column: Sequence[Any]) -> tuple[frozenset[int], bool]:
        """The arrays from before that a column's array may be, and whether it may be shared."""
        found = self._arrays(column)
        older = frozenset(b for _, b in found if self.born is None or b <= self.born)
        shared = any(len(self.places[place]) > 1 for place in found)
        return older, shared or any(_is_unknown(self.s, x) for x in column)

    def _arrays(self, column: Sequence[Any]) -> list[tuple[int, int]]:
        """The arrays of a column, each with the path that has it."""
        found = []
        for path, x in enumerate(column):
            if type(x) is Past:
                found += [(path, born) for born in x.may_be]
                continue
            memory = stores.memory_of(self.s, x) if type(x) is Tensor else None
            if memory is not None and stores.is_array(x):
                found += [(path, source.born) for source in stores.sources_of([memory])]
        return found


def joined(
    s: Specialiser,
    value: Value,
    kind: int,
    leaves: Sequence[Any],
    shared: bool = False,
    born: int | None = None,
    before: int | None = None,
    others: Collection[int] = (),
) -> Tensor:
    """Where paths meet: one of several tensors, of which the running program knows which.

    others: the arrays (`born`) that were joined in the same place, which differ from this one.
    """
    made = Tensor(value, kind=kind)
    memories: list[Memory] = []
    direct: set[int] = set()
    kin: set[int] = set()
    for leaf in leaves:
        memory = stores.memory_of(s, leaf) if type(leaf) is Tensor else None
        if type(leaf) is Past:
            memories += leaf.sources()
            direct.add(leaf.fields["born"])
            guard: Guard | None = leaf.fields["guard"]
        elif memory is not None:
            memories.append(memory)
            direct.add(memory.born)
            guard = memory.guard
        else:
            continue
        kin.update(() if guard is None else guard.kin)
    if not direct:
        return made
    sources = [m for m in stores.sources_of(memories) if born is None or m.born <= born]
    new = stores.kin(s, direct, before) - set(others) - {m.born for m in memories}
    unknown = shared or bool(new) or any(_is_unknown(s, leaf) for leaf in leaves)
    made.memory = stores.elsewhere(s, value)
    guard = Guard(made.memory, sources, unknown, _strides(s, leaves))
    guard.direct, guard.kin = frozenset(direct), frozenset(kin | new)
    return made


def _strides(s: Specialiser, leaves: Sequence[Any]) -> dict[int, set[tuple[int, ...]]] | None:
    """The strides of tensors in their memories, by `born`; None where they are not known."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for leaf in leaves:
        memory = stores.memory_of(s, leaf) if type(leaf) is Tensor else None
        if type(leaf) is Past:
            return None
        if memory is None:
            continue
        if memory.guard is None:
            found.setdefault(memory.born, set()).add(stores.layout_of(memory, leaf.lenses).strides)
        elif leaf.lenses or memory.guard.strides is None:
            return None
        else:
            for born, strides in memory.guard.strides.items():
                found.setdefault(born, set()).update(strides)
    return found


def _is_unknown(s: Specialiser, leaf: Any) -> bool:
    """Whether it may be an array that is not to be changed in any case."""
    if type(leaf) is Past:
        return leaf.unknown
    if type(leaf) is not Tensor:
        return isinstance(leaf, np.ndarray)
    memory = stores.memory_of(s, leaf)
    if memory is None:
        return leaf.shape != ()
    guard = memory.guard
    return bool(leaf.lenses or memory.fixed or (guard is not None and guard.shared))


__all__ = ["Columns", "Past", "joined"]
