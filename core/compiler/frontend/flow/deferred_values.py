"""What an abstract value is once the program has run: the words of errors, arguments of `print`."""

from __future__ import annotations

import dataclasses
import dis
from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import tree
from .. import operators
from ..containers.body_functions import closure_of
from ..containers.texts import as_it_is
from ..hir import liveness
from ..values import (
    Choice,
    Closure,
    Method,
    Tensor,
    Text,
    describe,
    is_number,
    is_static,
)

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: An array of more elements is not carried along for the words of an error; NumPy writes it with
#: dots.
_HELD_MAX = 1000


def later(
    s: Specialiser,
    value: Any,
    held: list[Tensor],
    what: str = "the words of an error",
    size_max: int = _HELD_MAX,
    depth: int | None = None,
) -> Callable[[Sequence[Any]], Any]:
    """What an abstract value is when its numbers, which are added to `held`, are known.

    `depth`: of the tree's leaves that `str` writes; those further down stand in containers, which
    write them by `repr`. None: nothing is written.
    """
    _check_writers(s, value)
    leaves, structure = tree.flatten(value)
    for path, leaf in zip(structure.paths(), leaves, strict=True):
        if depth is not None:
            _check_text(s, leaf, alone=path.count(".") <= depth)
        if depth is not None and type(leaf) in (Closure, Choice, Method):
            raise s.error("DL112", f"{what} cannot hold {describe(leaf)}", "mention its name")
    parts = [_later_leaf(s, leaf, held, what, size_max) for leaf in leaves]
    return lambda numbers: tree.unflatten(structure, [part(numbers) for part in parts])


def _check_writers(s: Specialiser, value: Any) -> None:
    """Refuses an object whose text is made by a method that changes something.

    Python writes a copy, once the program has run. Nor does it write one of a class of the program
    that has such a method.
    """
    for name in ("__str__", "__repr__", "__format__"):
        if closure_of(getattr(type(value), name)) is not None:
            text = (
                f"`{name}` of `{type(value).__name__}`, a class inside a function, is Python's to"
            )
            raise s.error("DL112", f"{text} call", "write its attributes; or define it outside")
    if isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _check_writers(s, item)
    elif type(value) is Text:
        _check_writers(s, value.parts)
    elif tree.is_open(value):
        for name in ("__str__", "__repr__", "__format__"):
            code = getattr(getattr(type(value), name), "__code__", None)
            if code not in (None, _GENERATED) and _changes(code):
                text = f"`{name}` of `{type(value).__name__}` changes something when it is written"
                raise s.error("DL112", text, "change it in a statement, and write it then")
        _check_writers(s, vars(value))


@dataclasses.dataclass
class _Any:
    """What `dataclass` makes of a class: its `__repr__` only guards against itself."""


_GENERATED = _Any.__repr__.__code__


def _changes(code: CodeType) -> bool:
    """Whether a method may change an attribute, a global or what one of them holds."""
    steps = [(i.opname, i.argval) for i in dis.get_instructions(code)]
    stores = any(name in _STORES for name, _ in steps)
    for (first, _), (then, method), (last, _) in zip(steps, steps[1:], steps[2:], strict=False):
        if first in _OUTER:
            stores |= then in ("LOAD_METHOD", "LOAD_ATTR") and method in liveness.MUTATORS
            stores |= last in ("STORE_SUBSCR", "DELETE_SUBSCR")
    return stores


_STORES = frozenset(
    ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "DELETE_GLOBAL", "DELETE_DEREF")
)
_OUTER = ("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_DEREF")


def _check_text(s: Specialiser, leaf: Any, alone: bool) -> None:
    """Refuses a number of several classes, unless each of them is written alike.

    Raises:
        StaticNeeded: `str` or, in a container, `repr` would show which class it has in Python.
    """
    if type(leaf) is not Tensor or len(leaf.classes) == 1:
        return
    if not (alone and set(leaf.classes) in _WRITTEN_ALIKE):
        raise operators.of_several_classes(s, leaf)


_WRITTEN_ALIKE = ({float, np.float64}, {int, np.int64}, {bool, np.bool_})


def _later_leaf(
    s: Specialiser, leaf: Any, held: list[Tensor], what: str, size_max: int
) -> Callable[[Sequence[Any]], Any]:
    if type(leaf) is Tensor:
        place = len(held)
        if leaf.type.size > size_max:
            text = f"{what} cannot hold {describe(leaf)}"
            raise s.error("DL112", text, "mention its shape, or one number of it")
        held.append(leaf)
        return lambda numbers: numbers[place]
    if type(leaf) is Text:
        write = leaf.write
        inner = later(s, leaf.parts, held, what, size_max, depth=0)
        return lambda numbers: write(*inner(numbers))
    if is_static(leaf) or is_number(leaf):
        now = as_it_is(leaf)
        return lambda numbers: now
    text = f"{what} cannot hold {describe(leaf)}"
    raise s.error("DL112", text, "mention numbers, arrays and texts")
