"""Runs random programs by CPython and the compiler: `python -m oracle --help`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import swarm
from .campaign import CRASHED, ENDLESS, Tally, run
from .judge import DIFFERS, EQUAL, REFUSED, STATED, judge
from .program import program
from .shrink import as_file, shrunk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="numbers of programs, FIRST:END")
    parser.add_argument("--show", type=int, help="print this program and what comes of it, and end")
    parser.add_argument("--shrink", type=int, help="print the smallest program that differs as it")
    parser.add_argument(
        "--backend", default="reference", help="with --show and --shrink; or `long`"
    )
    parser.add_argument("--native", type=int, default=0, metavar="K", help="each K-th natively too")
    parser.add_argument(
        "--swarm", action="store_true", help="each four programs of a random part of the grammar"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="a file that holds what has been done")
    parser.add_argument("--out", type=Path, help="a folder for the programs that differ")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    given = parser.parse_args()
    if given.show is not None or given.shrink is not None:
        number = given.show if given.show is not None else given.shrink
        text = (swarm.program if given.swarm else program)(number).text
        text = text if given.show is not None else shrunk(text, given.backend)
        print(as_file(text, given.backend))
        found = judge(text, given.backend)
        print(f"# {found.mark} {found.code} {found.words}".replace("\n", "\n# "))
        return 1 if found.mark == DIFFERS else 0
    try:
        first, end = map(int, given.seeds.split(":"))
    except ValueError:
        parser.error(f"--seeds is FIRST:END, not {given.seeds}")
    if not 0 <= first < end:
        parser.error(f"--seeds {given.seeds} is of no programs")

    def progress(total: Tally, number: int) -> None:
        if not given.json:
            print(_line(total, number), flush=True)

    total = run(
        range(first, end), given.processes, given.native, given.resume, progress, given.swarm
    )
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        for failure in total.failures:
            path = given.out / f"program_{failure['number']}.py"
            path.write_text(as_file(failure["text"], failure["backend"]))
    print(json.dumps(total.facts()) if given.json else _text(total))
    return 1 if total.failures else 0


def _line(total: Tally, number: int) -> str:
    marks = total.marks
    share = marks[EQUAL] / max(1, total.programs)
    rate = total.programs / max(1e-9, total.cpu_s)
    return (
        f"to {number}: {total.programs} programs, {share:.1%} equal, {marks[REFUSED]} refused,"
        f" {sum(marks[m] for m in STATED)} stated, {marks[DIFFERS]} differ,"
        f" {marks[ENDLESS]} endless, {marks[CRASHED]} crashed, {rate:.1f} a CPU second"
    )


def _text(total: Tally) -> str:
    lines = [f"{'construct':32} {'equal':>8} {'refused':>8} {'stated':>8} {'differ':>8}"]
    for name, marks in sorted(total.constructs.items()):
        stated = sum(marks[m] for m in STATED)
        row = marks[EQUAL], marks[REFUSED], stated, marks[DIFFERS]
        lines.append(f"{name:32} " + " ".join(f"{n:8}" for n in row))
    lines += [f"refused {code}: {count}" for code, count in total.codes.most_common()]
    for failure in total.failures:
        lines += [f"\n== program {failure['number']}: {failure['words']}", failure["text"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
