"""A file that two compilers make parts of: its loops, and all else.

Loops call nothing but what the headers have, and take a compiler a third to a half of its time. So
a file with many of them is written such that with DL_PART defined as 1 it has the loops alone, and
as 2 all but them, of which it declares what it calls; with no DL_PART it is whole, for readers and
for compilers that make a program of it at once. Both parts are compiled side by side (`toolchain`)
and linked: the code is the same, and is there sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .shared_loops import Functions

#: Characters of loops from which on it is worth reading the headers twice.
LOOPS_MIN = 12_000
#: A line of every file that has parts.
MARK = "#if DL_PART == 2"
PARTS = ("-DDL_PART=1", "-DDL_PART=2")


def in_parts(functions: Functions, rest: Sequence[str]) -> list[str]:
    """The functions of a file, and what follows them."""
    begin = list(functions.macros)
    if sum(map(len, functions.loops)) < LOOPS_MIN:
        return [*begin, *functions.with_effort([*functions.loops, *functions.others]), *rest]
    heads = [text.split(") {\n", 1)[0] + ");" for text in functions.loops]
    loops, others = map(functions.with_effort, (functions.loops, functions.others))
    return [
        *(*begin, MARK, *heads, "#else", *loops, "#endif"),
        *("#if DL_PART != 1", *others, *rest, "#endif"),
    ]
