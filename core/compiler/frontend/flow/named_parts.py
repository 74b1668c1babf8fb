"""Names that `:=` binds in a part of an expression which the program may not come to.

The parts of `and`, `or`, `a if c else b` and of a chain of comparisons are regions of their own. A
name that one of them binds is put back at its end, and joined where the parts meet, as the names
of a branch are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..values import Frame

if TYPE_CHECKING:
    from ..specialise import Specialiser


class Absent:
    """No value on a path."""


ABSENT = Absent()
#: What names are at the end of a part, by their frames' ids.
Ends = dict[tuple[int, str], tuple[Frame, Any]]


def bind(s: Specialiser, frame: Frame, name: str, value: Any) -> Any:
    """`name := value`; gives the value."""
    if s.faults is not None and s.faults.pending():
        text = "`:=` stands within a `try`, after what may raise an error"
        raise s.error("DL102", text, "assign in a statement of its own")
    while frame.inner and frame.parent is not None:  # It belongs to the function around.
        frame = frame.parent
    _put(s, frame, name, value)
    return value


def _put(s: Specialiser, frame: Frame, name: str, value: Any) -> None:
    if s.named is not None:
        s.named.append((frame, name, frame.vars.get(name, ABSENT)))
    frame.vars[name] = value


@contextmanager
def part(s: Specialiser) -> Iterator[Ends]:
    """A part that the program may not come to: afterwards names are what they were before it."""
    bound: list[tuple[Frame, str, Any]] = []
    around, s.named = s.named, bound
    ends: Ends = {}
    try:
        yield ends
    finally:
        for frame, name, _ in bound:
            ends[id(frame), name] = frame, frame.vars.get(name, ABSENT)
        for frame, name, before in reversed(bound):
            if before is ABSENT:
                frame.vars.pop(name, None)
            else:
                frame.vars[name] = before
        s.named = around


#: Gives what a name is after parts, of its values on each path.
Join = Callable[[str, Sequence[Any]], Any]


def joined(paths: Sequence[Ends], join: Join) -> list[tuple[Frame, str, Any]]:
    """What names are after parts of which one was come to: each with its frame."""
    found = {key: frame for ends in paths for key, (frame, _) in ends.items()}
    out = []
    for (key, name), frame in found.items():
        before = frame, frame.vars.get(name, ABSENT)
        values = [ends.get((key, name), before)[1] for ends in paths]
        out.append((frame, name, join(name, values)))
    return out


def leave(s: Specialiser, names: Sequence[tuple[Frame, str, Any]]) -> None:
    """Binds joined names, in the part around too."""
    for frame, name, value in names:
        _put(s, frame, name, value)


__all__ = ["ABSENT", "Absent", "Ends", "bind", "joined", "leave", "part"]
