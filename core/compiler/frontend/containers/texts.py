"""Texts that numbers of the running program are written in.

Python writes such a text once the program has run. It holds what its parts were when the text was
made: arrays, lists and objects may change before it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import tree
from ..memory import stores
from ..values import VIEWS, Tensor, Text
from . import containers

if TYPE_CHECKING:
    from ..specialise import Specialiser


def text_of(s: Specialiser, shown: str, write: Callable[..., str], *parts: Any) -> Text:
    """The text of these parts as they are now (`Text`)."""
    leaves, structure = tree.flatten(parts)
    return Text(shown, write, *containers.rebuilt(s, structure, [_now(v) for v in leaves]))


def _now(leaf: Any) -> Any:
    return stores.plain(leaf) if type(leaf) is Tensor else as_it_is(leaf)


class _SetAsShown(set[Any]):
    """A copy of a set that is written as the set was.

    A plain copy of one that items were taken out of may have them in another order.
    """

    def __init__(self, items: set[Any]) -> None:
        super().__init__(items)
        self.text = repr(items)

    def __repr__(self) -> str:
        return self.text


def as_it_is(value: Any) -> Any:
    """A known value that later changes of the program leave as it is: of sets and views a copy."""
    if type(value) is set:
        copied = value.copy()
        return copied if repr(copied) == repr(value) else _SetAsShown(value)
    if type(value) in VIEWS:
        view = (dict.keys, dict.values, dict.items)[VIEWS.index(type(value))]
        return view(dict(value.mapping))
    return value


__all__ = ["as_it_is", "text_of"]
