"""Lists, dicts and dataclass objects among the arguments that a function changes.

They are the program's while it is read, as those that it makes. What they hold afterwards are
further results: once the program has run, the call puts it into the caller's own (`in_place`).

    config["lr"] = 0.1           a new item: a result
    config["v"] = w              w is an argument: the caller's own array, as in Python
    rows[0], rows[1] = ...       what was an item before stays the object that it was

A result is an array of its own. Items that would share their memory with each other or with an
argument are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import tree
from ...complex_numbers import Complex, is_complex
from ...in_place import child_of
from ...traced import ARRAY, Filled, Item
from ..memory import stores
from ..memory.stores import Memory
from ..values import Tensor, describe, is_number, is_static
from . import containers

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: Values of these classes cannot change: that of the program is as good as the caller's.
_CONSTANT = (str, bytes, type(None), slice, range, frozenset, np.dtype)


class ArgumentContainers:
    """The containers of a program's arguments.

    names: of the arguments.
    """

    def __init__(
        self, s: Specialiser, args: tuple[Any, ...], structure: tree.Structure, names: Sequence[str]
    ) -> None:
        self.s = s
        self._before: list[tuple[Any, Any, tuple[Any, ...]]] = []
        """Containers, what they held, their paths."""
        self._paths: dict[int, tuple[Any, ...]] = {}
        """Of containers and arrays, by id."""
        self._names = names
        for k, (arg, below) in enumerate(zip(args, structure.children, strict=True)):
            for node, path in _walk(arg, below, (k,)):
                self._paths[id(node)] = path
                if _is_changeable(node):
                    if not isinstance(node, list | dict):
                        tree.open_object(node)
                    s.own(node)
                    self._before.append((node, containers.copied(node), path))

    def filled(self, arguments: Sequence[Memory]) -> tuple[tuple[Filled, ...], list[Any]]:
        """Those that were changed, and the values of the program that they hold.

        arguments: the memories of arrays among the arguments. Raises ProgramError.
        """
        new: dict[int, tuple[int, Any]] = {}
        out = []
        for node, before, path in self._before:
            now = containers.copied(node)
            if containers.alike(before, now):
                continue
            keys = tuple(now) if isinstance(now, dict) else tuple(range(len(now)))
            values = list(now.values()) if isinstance(now, dict) else now
            was = before if isinstance(before, dict) else dict(enumerate(before))
            items = [
                Item("kept", key) if key in was and was[key] is value else self._item(value, new)
                for key, value in zip(keys, values, strict=True)
            ]
            gone = tuple(key for key in was if key not in now) if tree.is_open(node) else ()
            grows = len(now) > len(before)
            out.append(Filled(path, self._name(path), keys, tuple(items), gone, grows))
        made = [value for _, value in new.values()]
        self._check(made, arguments)
        return tuple(out), made

    def _item(self, value: Any, new: dict[int, tuple[int, Any]]) -> Item:
        if id(value) in self._paths and not is_single(value):
            return Item("given", self._paths[id(value)])
        if isinstance(value, _CONSTANT) or id(value) in self.s.seen or _is_function(value):
            return Item("known", value)
        return Item("new", new.setdefault(id(value), (len(new), value))[0])

    def _name(self, path: tuple[Any, ...]) -> str:
        return ".".join(map(str, (self._names[path[0]], *path[1:])))

    def _check(self, made: Sequence[Any], arguments: Sequence[Memory]) -> None:
        met = {id(memory): "an argument" for memory in arguments}
        for value in made:
            for node in containers.walk(value):
                if id(node) in self._paths:
                    raise self._refused(node, "an argument")
            for leaf in tree.leaves(value):
                if not isinstance(leaf, Tensor) or is_single(leaf):
                    continue
                memory = stores.memory_of(self.s, leaf)
                if memory is None or memory.guard is not None:
                    raise self._refused(leaf, "what it may be a view of")
                if id(memory) in met:
                    raise self._refused(leaf, met[id(memory)])
                met[id(memory)] = "another item"

    def _refused(self, value: Any, what: str) -> Exception:
        return self.s.error(
            "DL111",
            f"a list, dict or object of the caller's would hold {describe(value)}, which shares its"
            f" memory with {what}",
            "put a copy there: np.array(x), list(x), dict(x)",
        )


def is_single(value: Any) -> bool:
    """Whether it is a number, and no array: which object it is does not show."""
    return is_number(value) and not (isinstance(value, Tensor) and value.kind & ARRAY)


def _is_function(value: Any) -> bool:
    return callable(value) and is_static(value)


def _is_changeable(node: Any) -> bool:
    kind = type(node)
    if kind in (list, dict):
        return True
    # One of known values alone is known itself, and Python may run its methods.
    moving = containers.is_mutable_dataclass(kind)
    return moving and any(isinstance(v, Tensor) for v in tree.leaves(node))


def _walk(
    node: Any, structure: tree.Structure, path: tuple[Any, ...]
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The nodes and leaves of an argument, with their paths."""
    single = isinstance(node, Complex) or is_complex(node)
    children = [] if single else [(k, child_of(node, k)) for k in structure.keys]
    yield node, path
    for (key, child), part in zip(children, structure.children, strict=bool(children)):
        yield from _walk(child, part, (*path, key))
