"""Swarm testing: the programs of a batch draw from a random part of the constructs.

In a program of the whole grammar a rare construct stands among many others, which take the place of
what it would have to meet: two of them seldom meet. A part of the grammar has them more often
(Groce, Zhang, Eide, Chen and Regehr, "Swarm Testing", ISSTA 2012). Short programs are of one row
each, and the same as without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

from . import program as whole
from . import writer
from .program import Program

#: Programs of one part, and the share of the constructs that are in it.
_BATCH, _SHARE = 4, 0.35


def program(number: int) -> Program:
    """The program of this number, of its batch's part of the grammar."""
    with _part(number // _BATCH):
        return whole.program(number)


@contextmanager
def _part(batch: int) -> Iterator[None]:
    """The grammar has a part of its constructs, the weights of which are closer to each other."""
    tables = dict(writer.TABLE)
    try:
        for category, rows in tables.items():
            kept = [
                replace(c, weight=c.weight**0.5)
                for c in rows
                if Random(f"{batch} {category} {c.name}").random() < _SHARE
            ]
            if any(not c.rare for c in kept):
                writer.TABLE[category] = kept
        writer._drawn.cache_clear()
        yield
    finally:
        writer.TABLE.update(tables)
        writer._drawn.cache_clear()


__all__ = ["program"]
