"""Errors that depend on the numbers of a running program.

A program cannot stop in its middle. It computes a fault code instead, one more result: 0, or 1 plus
the place of a `Fault` in the table that its `Traced` holds. What the words of an error are made of
follows the code as further results. The call raises the error once the program has run
(`frontend.raises` makes the code).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.errors import Loc, innermost


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that a program may meet."""

    make: Callable[[Sequence[Any]], BaseException | None]
    """The error, of the numbers that it mentions; None where they are no error after all."""
    held: tuple[tuple[int, int], ...]
    """Which of the hidden results these numbers are, the code left out; with the class that each
    has in Python (`Tensor.kind`).
    """
    locs: tuple[Loc, ...]
    """Where it is raised, and the calls that led there, innermost first."""

    def error(self, numbers: Sequence[Any]) -> BaseException | None:
        """The error, with the user's line as a note."""
        made = self.make(numbers)
        if made is None:
            return None
        loc = innermost(tuple(reversed(self.locs)))
        if loc is not None:
            excerpt = loc.excerpt()
            made.add_note(f"  at {loc}" + (f"\n{excerpt}" if excerpt else ""))
        return made


@dataclass(frozen=True, slots=True)
class Said:
    """A call that Python makes once a program has run: of print, or of a logger."""

    call: Callable[[Sequence[Any]], None]
    """Makes it, of the numbers that it mentions."""
    first: int
    """Which of the hidden results says whether the program came to it; the numbers follow."""
    kinds: tuple[int, ...]
    """The class that each number has in Python (`Tensor.kind`)."""


def again(error: BaseException) -> BaseException:
    """Another error like one that was made while compiling: each call raises its own."""
    try:
        return copy.copy(error)
    except Exception:  # Its class cannot be made of its `args`.
        return error
