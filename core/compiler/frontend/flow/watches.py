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
from ..containers.body_functions import closures_of
from ..values import Choice, Closure, Frame, Method, Once, Tensor, is_number

if TYPE_CHECKING:
    from ..specialise import Specialiser


class Watch:
    """What an iterator's items are computed from, as it was when this was made."""

    def __init__(self, s: Specialiser, source: Any) -> None:
        self.s = s
        self.seen: set[int] = set()
        self._names: list[tuple[Frame, str, Any]] = []
        #: Lists and others, what they hold, and their versions.
        self._held: list[tuple[Any, Any, int | None]] = []
        #: Arrays and their versions; one that was neither changed nor viewed has none yet.
        self._arrays: list[tuple[Tensor, int | None]] = []
        #: Whether it may hold arrays that are not among these.
        self.is_closed = False
        self._reach(source)

    def change(self) -> str:
        """What is another now, the arrays among it too."""
        for array, version in self._arrays:
            memory = array.memory
            if memory is not None and memory.version != (version or memory.born):
                return "an array"
        return self.changed()

    def changed(self) -> str:
        """What is another now, for a message; nothing: all is as it was."""
        for frame, name, value in self._names:
            if frame.vars.get(name) is not value:
                return f"`{name}`"
        for owner, content, version in self._held:
            kept = containers.alike(content, containers.copied(owner))
            if not kept or (version != self._version(owner) and self._is_seen(owner)):
                kind = type(owner).__name__
                return f"an object `{kind}`" if tree.is_open(owner) else f"a {kind}"
        return ""

    def _version(self, owner: Any) -> int | None:
        return self.s.container_log.versions.get(id(owner))

    def _is_seen(self, owner: Any) -> bool:
        """Whether a name of a function that runs leads to it, and not through an iterator alone."""
        values: list[Any] = []
        for call in self.s.calls:
            at: Frame | None = call.frame
            while at is not None:
                values += (v for v in at.vars.values() if type(v) is not Once)
                at = at.parent
        return id(owner) in Watch(self.s, tuple(values)).seen

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
        if id(value) in self.seen:
            return
        self.seen.add(id(value))
        kind = type(value)
        if kind is Closure:
            self._read(value.frame, value.function.reads)
            parts: Iterable[Any] = (*value.defaults, *value.keyword_defaults.values())
        elif kind is Choice:
            parts = value.functions
        elif kind is types.FunctionType or isinstance(value, type):
            parts = closures_of(value)
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
        elif kind is Tensor:
            self._arrays.append((value, value.memory and value.memory.version))
            return
        elif isinstance(value, tuple):
            parts = value
        elif isinstance(value, list | set | dict) or tree.is_open(value):
            content = containers.copied(value)
            parts = content.values() if isinstance(content, dict) else content
            parts = (*parts, type(value))
            self._held.append((value, content, self._version(value)))
        else:
            self.is_closed |= not (is_number(value) or isinstance(value, _PLAIN))
            return
        for part in parts:
            self._reach(part)


#: What holds no array that may be changed: a function's globals are known and stay.
_PLAIN = (str, bytes, range, type, type(None), types.FunctionType, types.BuiltinFunctionType)


def reads_frame(value: Any, frame: Frame) -> bool:
    """Whether a value is, or holds, a function that reads names of a frame."""
    kind = type(value)
    if kind is Closure:
        at, names = value.frame, value.function.reads - value.function.assigned
        while at is not frame and at.parent is not None:
            at, names = at.parent, names - at.local
        reads = at is frame and any(name in frame.vars for name in names)
        return reads or reads_frame(value.defaults, frame)
    if kind is functools.partial:
        return reads_frame((value.func, *value.args, *value.keywords.values()), frame)
    if isinstance(value, dict):
        return any(reads_frame(item, frame) for item in value.values())
    if isinstance(value, tuple | list):
        return any(reads_frame(item, frame) for item in value)
    return False


def unchanged(s: Specialiser, watch: Watch, text: str) -> None:
    """Raises ProgramError where what is watched has changed. text: with a place for what."""
    refuse_change(s, watch.changed(), text)


def refuse_change(s: Specialiser, what: str, text: str) -> None:
    """Raises ProgramError where `what` has changed; it is empty where nothing has."""
    if what:
        hint = "compute the items first: for x in list(values)"
        raise s.error("DL111", text.format(what), hint)
