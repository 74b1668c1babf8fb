"""What an abstract value is once the program has run: the words of errors, arguments of `print`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import tree
from .. import operators
from ..values import Tensor, Text, describe, is_number, is_static

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
    leaves, structure = tree.flatten(value)
    for path, leaf in zip(structure.paths(), leaves, strict=True):
        if depth is not None:
            _check_text(s, leaf, alone=path.count(".") <= depth)
    parts = [_later_leaf(s, leaf, held, what, size_max) for leaf in leaves]
    return lambda numbers: tree.unflatten(structure, [part(numbers) for part in parts])


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
        return lambda numbers: leaf
    text = f"{what} cannot hold {describe(leaf)}"
    raise s.error("DL112", text, "mention numbers, arrays and texts")
