"""Refuses a bundle whose programs use a device's random key otherwise than for random numbers.

A device's key follows from its number, so a program that compares it with a constant can answer for
one device and be silent for all others: a sum of masked updates is then that device's update. Two
things exclude it. The key has a part that only the device knows
(`core.protocol.random_streams.device_key`), so that no constant in a program can be a certain
device's key, nor any number drawn with it. And what is checked here: a program treats keys as keys
(`dependence`), so it holds no test of them.

What this does not exclude: choosing by what is drawn, as dropout and a shuffle do (a device that is
chosen so is not one that the author has named), and choosing by data.
"""

from __future__ import annotations

from ...common.errors import DelianError, Loc, innermost, line_of
from ...common.printable import escaped
from ..bundle import SPLIT_PROGRAMS, Bundle
from .dependence import Misuse, misuses_of
from .interface import ports_of

#: The programs that run on devices and take their key.
KEYED = (
    *("client_update", "evaluate", "personalise", "update_chunk", "update_end"),
    *SPLIT_PROGRAMS,
)
#: Of a name in a bundle, which is its author's choice.
NAME_CHARS_MAX = 200


class KeyMisuseError(DelianError):
    """A program uses a random key otherwise than for random numbers.

    program, op: its name and the operation's; locs: where that came from, outermost call first.
    """

    def __init__(self, program: str, misuse: Misuse, excerpt: bool) -> None:
        at = f" ({escaped(line_of(misuse.locs)[:NAME_CHARS_MAX])})" if misuse.locs else ""
        op = f" by `{misuse.op}`" if misuse.op else ""
        loc = innermost(misuse.locs)
        lines = _excerpt(loc) if excerpt and loc is not None else ""
        super().__init__(
            f"{program} {misuse.what}{op}{at}: what a device sends may depend on its key through"
            f" random numbers alone{lines}",
            "give the key to dl.random functions (split, fold_in, bits, uniform, permutation, ...)"
            " and to nothing else",
        )
        self.program, self.op, self.locs = program, misuse.op, misuse.locs


def check_keys(bundle: Bundle, excerpt: bool = False) -> Bundle:
    """The same bundle, its programs that run on devices checked.

    excerpt: the error quotes the source line; only for a bundle that is built here, since a file's
    name in a bundle is its author's choice.

    Raises KeyMisuseError; DelianError where a program does not fit its manifest.
    """
    for program in KEYED:
        if program not in bundle.programs:
            continue
        key = ports_of(bundle, program).key
        for misuse in misuses_of(bundle.programs[program].body, key)[:1]:
            raise KeyMisuseError(program, misuse, excerpt)
    return bundle


def _excerpt(loc: Loc) -> str:
    quoted = loc.excerpt()
    return f"\n{quoted}\n" if quoted else ""
