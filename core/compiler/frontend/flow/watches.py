"""What the items of an iterator are computed from, and whether a loop over them changes it.

Python computes an item of `map`, `filter` or a generator expression when the loop asks for it,
after the rounds before. A program computes all of them before the first round, which is the same
where no item's function changes anything, and no round changes what such a function may read: names
around it, lists, dicts, sets and objects that it reaches. Arrays have their own marks (`stores`).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ... import tree
from ..containers import containers
from ..values import Choice, Closure, Frame, Method, Once

if TYPE_CHECKING:
    from ..specialise import Specialiser


class Watch:
    """What an iterator's items are computed from, as it was when this was made."""

    def __init__(self, iterator: Once) -> None:
        self._seen: set[int] = set()
        self._names: list[tuple[Frame, str, Any]] = []
        self._held: list[tuple[Any, Any]] = []
        self._reach(iterator)

    def changed(self) -> str:
        """What is another now, for a message; nothing: all is as it was."""
        for frame, name, value in self._names:
            if frame.vars.get(name) is not value:
                return f"`{name}`"
        for owner, content in self._held:
            if not containers.alike(content, containers.copied(owner)):
                kind = type(owner).__name__
                return f"an object `{kind}`" if tree.is_open(owner) else f"a {kind}"
        return ""

    def _read(self, frame: Frame, names: Iterable[str]) -> None:
        for name in names:
            at: Frame | None = frame
            while at is not None:
                if name in at.vars:
                    self._names.append((at, name, at.vars[name]))
                    self._reach(at.vars[name])
                    break
                at = None if name in at.local else at.parent

    def _reach(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        kind = type(value)
        if kind is Closure:
            self._read(value.frame, value.function.reads)
            parts: Iterable[Any] = (*value.defaults, *value.keyword_defaults.values())
        elif kind is Choice:
            parts = value.functions
        elif kind is Method:
            parts = (value.owner,)
        elif kind is types.MethodType:
            parts = (value.__self__, value.__func__)
        elif kind is functools.partial:
            parts = (value.func, *value.args, *value.keywords.values())
        elif kind is Once:
            parts = value.reads
            if value.frame is not None:
                self._read(value.frame, value.names)
        elif isinstance(value, tuple):
            parts = value
        elif isinstance(value, list | set | dict) or tree.is_open(value):
            content = containers.copied(value)
            parts = content.values() if isinstance(content, dict) else content
            self._held.append((value, content))
        else:
            return
        for part in parts:
            self._reach(part)


def unchanged(s: Specialiser, watch: Watch, text: str) -> None:
    """Raises ProgramError where what is watched has changed. text: with a place for what."""
    if what := watch.changed():
        hint = "compute the items first: for x in list(values)"
        raise s.error("DL111", text.format(what), hint)
