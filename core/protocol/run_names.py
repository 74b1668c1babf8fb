"""What names a run on the wire, so that no edge and no device takes one run for another.

A coordinator counts its runs: run 1, run 2. Restored from an older copy of its store it does not
know how far they went since, and counts again from where the copy was: what edges and devices
remember of a run's rounds, or still hold of them, would be of another history. So on the wire a run
has a name, an unsigned integer of 64 bits,

    name  =  epoch * 2^32 + number

with an epoch that is another one after each start of the coordinator: Unix time, s, of that start,
and in any case more than the epoch before. To a reader a name is a number like any other,
and another name another run. What was begun before a start keeps its name; attempts that are opened
after it have the new one. In simulations epochs are zero, and a run's name is its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

NUMBER_BITS = 32
EPOCH_MAX = 2**32 - 1
_NS = 1_000_000_000
#: Where the clock does not tell two starts apart (a computer without one of its own wakes up at the
#: same moment each time), the last digits of its nanoseconds do.
_APART = 4_096


def epoch_after(before: int, unix_ns: int) -> int:
    """The epoch of a start. before: of the last one; unix_ns: the time of this one. Beyond 2106,
    or a clock that says so, there are no more epochs: the last one stays.
    """
    return min(EPOCH_MAX, max(before + 1 + unix_ns % _APART, unix_ns // _NS))


def named(number: int, epoch: int) -> int:
    """The name of a run."""
    return epoch << NUMBER_BITS | number


def number_of(name: int) -> int:
    """The number of a run that is named so."""
    return name & (1 << NUMBER_BITS) - 1


def least_useful(names: Iterable[int]) -> int:
    """Of runs in the order in which they were last heard of, the one to forget: the first whose
    coordinator has started again since and calls it otherwise, or else the first. Restarts are to
    push out no run that keeps its name.
    """
    known = list(names)
    newest: dict[int, int] = {}
    for name in known:
        newest[number_of(name)] = max(name, newest.get(number_of(name), 0))
    return next((name for name in known if name < newest[number_of(name)]), known[0])


def shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A record's fields as people read them, to whom a run is its number: `run`, and `attempt`
    where it is "run.round.attempt".
    """
    told = dict(fields)
    if isinstance(told.get("run"), int):
        told["run"] = number_of(told["run"])
    if isinstance(told.get("attempt"), str):
        run, _, rest = told["attempt"].partition(".")
        told["attempt"] = f"{number_of(int(run))}.{rest}"
    return told
