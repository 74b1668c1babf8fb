"""Looks for programs that are compiled wrongly, or shows one: `python -m differential --help`."""

from __future__ import annotations

import argparse
import sys
import time

from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain, find

from . import KINDS, Failure, cases, eager_lowering, judged

#: Programs of a file, which takes a few seconds to compile.
_TOGETHER = {"tensors": 24, "convolutions": 10, "models": 5}


def main() -> int:
    parser = argparse.ArgumentParser(prog="differential", description=__doc__)
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("seed", type=int, help="the first seed")
    parser.add_argument("seconds", type=float, nargs="?", help="how long; none: this seed alone")
    parser.add_argument("--show", action="store_true", help="print programs that are wrong")
    given = parser.parse_args()
    toolchain = find()
    if toolchain is None:
        print("no C compiler here", file=sys.stderr)
        return 2
    kinds = list(KINDS) if given.kind == "all" else [given.kind]
    if given.seconds is None:
        found = [_tried(kind, [given.seed], toolchain, given.show) for kind in kinds]
        return 1 if any(found) else 0
    end, count, wrong = time.monotonic() + given.seconds, 0, 0
    first = dict.fromkeys(kinds, given.seed)
    while time.monotonic() < end:
        for kind in kinds:
            seeds = list(range(first[kind], first[kind] + _TOGETHER[kind]))
            first[kind] += len(seeds)
            wrong += len(_tried(kind, seeds, toolchain, given.show))
            count += len(seeds)
            if time.monotonic() >= end:
                break
    reached = ", ".join(f"{kind} {given.seed}..{seed - 1}" for kind, seed in first.items())
    print(f"{count} programs ({reached}), {wrong} findings")
    return 1 if wrong else 0


def _tried(kind: str, seeds: list[int], toolchain: Toolchain, show: bool) -> list[Failure]:
    """What is wrong with one file of programs. How they are lowered follows from the first seed."""
    made = cases(kind, seeds)
    with eager_lowering(tiles=True, data=seeds[0] % 2 == 0):
        found = judged(made, toolchain, strict=True)
    for failure in found:
        print(failure, flush=True)
        if show:
            for case in made:
                if case.name == failure.case:
                    print(case.build(), flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
