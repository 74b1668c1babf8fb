"""How far a program is unrolled.

A program is first made as it stands: loops over lists are unrolled. One that this makes large is
made again with lists of numbers as arrays (`list_stacks`), so that its loops stay loops; what is
still too large then is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ....common.errors import Loc, ProgramError
from ..values import Unbound

if TYPE_CHECKING:
    from ..hir import hir
    from ..specialise import Specialiser

#: Operations and rounds that unrolled loops may make before the program is made again with stacks.
FIRST_MAX = 4_000
#: Those that a program may have at all: some ten seconds of compilation.
UNROLLED_MAX = 150_000


class TooLong(Exception):
    """The program is to be made again, with lists of numbers as arrays."""


class UnrollWanted(ProgramError):
    """A name has no value that a round of a loop gives it: the program may be made again.

    loop: the loop (`id`) that is to be unrolled then, or its first round.
    """

    loop = 0

    @staticmethod
    def of(e: ProgramError, node: hir.For) -> UnrollWanted:
        """An error that is none where a loop is unrolled."""
        made = UnrollWanted(e.code, e.message, e.locs, e.hint)
        made.loop = id(node)
        return made


class LoopWanted(ProgramError):
    """The program may be made again, with loops for reductions (`reduction_loops`)."""


def unbound(s: Specialiser, value: Unbound) -> ProgramError:
    """The error of the use of a name without a value."""
    kind = UnrollWanted if value.loop and value.loop not in s.unrolled else ProgramError
    error = kind(value.code, value.message, value.locs or s.locs(), value.hint)
    if isinstance(error, UnrollWanted):
        error.loop = value.loop
    return error


@contextmanager
def unrolled(s: Specialiser, loc: Loc) -> Iterator[None]:
    """While a loop is unrolled: its operations count."""
    outermost = not s.unrolling
    start = s.tally[0]
    s.unrolling.append(loc)
    try:
        yield
    finally:
        s.unrolling.pop()
        if outermost:
            s.unrolled_size += s.tally[0] - start
            s.unrolled_from = s.tally[0]


def count(s: Specialiser, reason: str = "") -> None:
    """Counts a round of the loop that is being unrolled.

    Raises:
        TooLong: the program should be made again.
        ProgramError: DL122, it cannot be.
    """
    s.tally[0] += 1
    size = s.unrolled_size + s.tally[0] - s.unrolled_from
    if size <= s.size_max:
        return
    if not s.stacking:
        raise TooLong
    outer, inner = s.unrolling[0], s.unrolling[-1]
    s.at(inner)
    nested = "" if outer is inner else f" (within the loop at line {outer.line})"
    raise s.error(
        "DL122",
        f"the program is unrolled too far: this loop{nested} brings it to more than"
        f" {s.size_max} operations",
        reason or "use arrays (np.array(rows)), or lists whose items are numbers of one type",
    )
