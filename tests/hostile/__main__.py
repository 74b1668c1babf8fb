"""Looks for programs that a sanitizer has something to say of: `python -m hostile --help`."""

from __future__ import annotations

import argparse
import sys
import time

from delian.core.compiler.primitives import PRIMITIVES

from . import search
from .build import compiler
from .geometry import MAKERS, draw


def main() -> int:
    parser = argparse.ArgumentParser(prog="hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, help="how long; none: each variant once")
    parser.add_argument("--minutes", type=float, help="how long, in minutes")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--primitive", choices=sorted(MAKERS), help="programs of this one alone")
    parser.add_argument("--show", action="store_true", help="print the program of --seed, and end")
    given = parser.parse_args()
    if given.show:
        print(draw(given.primitive or "conv", given.seed))
        return 0
    cc = compiler()
    if cc is None:
        print("no C compiler with AddressSanitizer is here: nothing was run", file=sys.stderr)
        return 0
    seconds = 60 * given.minutes if given.minutes else given.seconds
    names = [given.primitive] if given.primitive else list(MAKERS)
    began, found = time.monotonic(), search.Found()
    for unit in search.units(names, given.seed):
        search.tried(unit, cc, found)
        for finding in found.new():
            print(finding, flush=True)
        if time.monotonic() - began > (seconds or 0) and (seconds or found.units >= 6):
            break
    spent = time.monotonic() - began
    print(
        f"{found.programs} programs, {len(found.primitives)} of {len(PRIMITIVES)} primitives,"
        f" {len(found.headers)} headers, {found.units} files, {spent:.0f} s:"
        f" {len(found.findings)} findings"
    )
    return 1 if found.findings else 0


if __name__ == "__main__":
    sys.exit(main())
