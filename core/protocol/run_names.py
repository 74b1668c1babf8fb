"""What names a run on the wire, so that no edge and no device takes one run for another.

A coordinator counts its runs: run 1, run 2. After a restore from an older copy of its store it
counts on from that copy: what edges and devices have stored of a run's rounds would be of another
history. So on the wire a run has a name, an unsigned integer of 64 bits,

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
#: A computer without a clock of its own may start at the same second each time: the last digits of
#: the nanoseconds make the epochs of two starts differ.
_APART = 4_096


def epoch_after(before: int, unix_ns: int) -> int:
    """The epoch of a start at `unix_ns`; `before` is the last one. After 2106 it does not grow."""
    return min(EPOCH_MAX, max(before + 1 + unix_ns % _APART, unix_ns // _NS))


def named(number: int, epoch: int) -> int:
    """The name of a run."""
    return epoch << NUMBER_BITS | number


def number_of(name: int) -> int:
    """The number of a run that is named so."""
    return name & (1 << NUMBER_BITS) - 1


def least_useful(names: Iterable[int]) -> int:
    """The run to forget, of runs in the order of their last messages.

    It is the first whose coordinator has restarted since and uses another name, or else the first:
    a restart must not push out a run that keeps its name.
    """
    known = list(names)
    newest: dict[int, int] = {}
    for name in known:
        newest[number_of(name)] = max(name, newest.get(number_of(name), 0))
    return next((name for name in known if name < newest[number_of(name)]), known[0])


def shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A record's fields for people, with the run's number in `run` and "run.round.attempt"."""
    found = dict(fields)
    if isinstance(found.get("run"), int):
        found["run"] = number_of(found["run"])
    if isinstance(found.get("attempt"), str):
        run, _, rest = found["attempt"].partition(".")
        found["attempt"] = f"{number_of(int(run))}.{rest}"
    return found
