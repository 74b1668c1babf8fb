"""Which of Python's numbers a program takes as known: none, ints and bools, or floats too.

A function that cannot be compiled is compiled with numbers of its arguments as known. What is
refused even then is compiled with loops for reductions of generator expressions, if that may help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..common.errors import ProgramError
from .traced import Traced

#: What a loop leaves, whether it runs at all, and the depth of a recursion may follow from a whole
#: number.
_STRUCTURE = ("DL103", "DL107", "DL109", "DL110")


def _knowable(leaves: Sequence[Any]) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Numbers that a program is specialised for, in turn, and after which codes of a refusal."""
    whole = tuple(k for k, v in enumerate(leaves) if isinstance(v, int | np.integer | np.bool_))
    single = tuple(k for k, v in enumerate(leaves) if isinstance(v, int | float | np.generic))
    found = {(): (), single: ("DL107",), whole: _STRUCTURE}
    return [(some, found[some]) for some in dict.fromkeys(((), whole, single))]


def made(
    leaves: Sequence[Any],
    known: tuple[int, ...] | None,
    attempt: Callable[[tuple[int, ...], bool], Traced],
) -> tuple[Traced, tuple[int, ...]]:
    """The first program that can be made, and which leaves are known in it.

    Args:
        leaves: of the arguments.
        known: those that are known in any case; None where that is not decided.
        attempt: makes the program of some known leaves, and with or without loops for reductions.

    Raises:
        ProgramError: why there is none.
    """
    from .frontend import LoopWanted

    wanted = False
    for looping in (False, True):
        refused: ProgramError | None = None
        for some, codes in _knowable(leaves) if known is None else [(known, ())]:
            if refused is not None and refused.code not in codes:
                continue
            try:
                return attempt(some, looping), some
            except ProgramError as e:
                wanted |= isinstance(e, LoopWanted)
                refused = e if refused is None or refused.code == "DL107" else refused
        if not wanted:
            break
    assert refused is not None
    raise refused


__all__ = ["made"]
