"""Many programs: counts of what became of them, by construct, and the smallest that differ.

A run goes on from its file, and gives the same report whatever the number of processes. A program
that ends its process (NumPy has such faults) is found, counted as crashed, and left behind.
"""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import swarm
from .endless import SECONDS_MAX, WRITING_MAX, Endless, limited, unlimited
from .judge import DIFFERS, EQUAL, LONG, REFUSED, Verdict, judge
from .program import Program, program
from .shrink import shrunk

#: Programs of one piece of work, and pieces of one process.
CHUNK, _CHUNKS = 100, 20
ENDLESS, CRASHED = "endless", "crashed"
#: So often a program is made as a long one is (`judge.LONG`).
LONG_EVERY = 6
#: Tries to make a program small that differs.
_TRIES = 400


@dataclass
class Tally:
    """What became of programs.

    Attributes:
        marks: how many, by what the oracle says.
        codes: of those that are refused.
        native: by mark, of the programs that were run by the native back end too.
        constructs: by construct, the marks of the programs that used it.
        failures: number, words and smallest text of programs that differ.
        endless: numbers of programs that took too long.
        crashed: numbers of programs that ended their process, or that the oracle failed at.
    """

    programs: int = 0
    cpu_s: float = 0.0
    marks: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    native: Counter[str] = field(default_factory=Counter)
    constructs: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    endless: list[int] = field(default_factory=list)
    crashed: list[int] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.programs += other.programs
        self.cpu_s += other.cpu_s
        self.marks += other.marks
        self.codes += other.codes
        self.native += other.native
        for name, marks in other.constructs.items():
            self.constructs[name] = self.constructs.get(name, Counter()) + marks
        self.failures += other.failures
        self.endless += other.endless
        self.crashed += other.crashed

    def facts(self) -> dict[str, Any]:
        names = sorted(self.constructs)
        return {
            "programs": self.programs,
            "cpu_seconds": round(self.cpu_s, 1),
            "marks": dict(self.marks.most_common()),
            "codes": dict(self.codes.most_common()),
            "native": dict(self.native.most_common()),
            "constructs": {n: dict(self.constructs[n].most_common()) for n in names},
            "failures": self.failures,
            "endless": self.endless,
            "crashed": self.crashed,
        }

    @staticmethod
    def of(facts: dict[str, Any]) -> Tally:
        made = Tally(facts["programs"], facts["cpu_seconds"])
        made.marks, made.codes = Counter(facts["marks"]), Counter(facts["codes"])
        made.native = Counter(facts["native"])
        made.constructs = {n: Counter(m) for n, m in facts["constructs"].items()}
        made.failures, made.endless = facts["failures"], facts["endless"]
        made.crashed = facts.get("crashed", [])
        return made


def tally(
    first: int, count: int, native_every: int = 0, small: bool = True, in_swarms: bool = False
) -> Tally:
    """Runs programs by their numbers.

    native_every: so often by the native back end too; in_swarms: they are those of `swarm`.
    """
    write = swarm.program if in_swarms else program
    out, began = Tally(), time.process_time()
    for number in range(first, first + count):
        out.programs += 1
        try:
            with limited(WRITING_MAX):
                made = write(number)
            with limited(SECONDS_MAX):
                native = bool(native_every and number % native_every == 0)
                _one(out, made, native, small)
        except Endless:
            out.marks[ENDLESS] += 1
            out.endless.append(number)
        except Exception as e:  # A fault of the oracle's own does not end a run of hours.
            print(f"program {number}: {type(e).__name__}: {e}", file=sys.stderr)
            out.marks[CRASHED] += 1
            out.crashed.append(number)
    out.cpu_s = time.process_time() - began
    return out


def _one(out: Tally, made: Program, native: bool, small: bool) -> None:
    backend = LONG if made.number % LONG_EVERY == 1 else "reference"
    found = judge(made.text, backend)
    if native and found.mark == EQUAL:
        found = judge(made.text, "native")
        out.native[found.mark] += 1
        backend = "native"
    out.marks[found.mark] += 1
    if found.mark == REFUSED:
        out.codes[found.code] += 1
    for name in made.used:
        out.constructs.setdefault(name, Counter())[found.mark] += 1
    if found.mark == DIFFERS:
        out.failures.append(_failure(made.number, made.text, found, backend, small))


def _failure(number: int, text: str, found: Verdict, backend: str, small: bool) -> dict[str, Any]:
    unlimited()  # To make it small takes longer.
    tries = _TRIES // 10 if backend == "native" else _TRIES
    least = shrunk(text, backend, tries) if small else text
    words = judge(least, backend).words or found.words
    return {"number": number, "backend": backend, "words": words, "text": least}


def grammar() -> str:
    """A fingerprint of the sources that a program follows from."""
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), *here.glob("*.txt")])
    outside = (
        *("campaign.py", "__main__.py", "shrink.py", "planted.py", "judge.py", "causes.py"),
        *("endless.py", "orders.py", "swarm.py", "numpys_faults.py"),
    )
    text = b"".join(
        f.read_bytes() for f in files if f.name not in outside and "test_" not in f.name
    )
    return hashlib.sha256(text).hexdigest()[:12]


def run(
    seeds: range,
    processes: int = 1,
    native_every: int = 0,
    resume: Path | None = None,
    progress: Callable[[Tally, int], None] = lambda tally, number: None,
    in_swarms: bool = False,
) -> Tally:
    """Runs the programs of these numbers; with a file, those that it does not count yet."""
    total, done = (Tally(), seeds.start) if resume is None else _loaded(resume, seeds, in_swarms)
    starts = range(done, seeds.stop, CHUNK)
    work = [(k, min(CHUNK, seeds.stop - k), native_every, True, in_swarms) for k in starts]
    leg = processes * _CHUNKS
    for some in (work[k : k + leg] for k in range(0, len(work), leg)):
        for (first, count, *_), part in zip(some, _tallies(some, processes), strict=True):
            total.add(part)
            if resume is not None:
                _store(resume, seeds, in_swarms, first + count, total)
            progress(total, first + count)
    return total


#: The arguments of `tally`.
Work = tuple[int, int, int, bool, bool]


def _tallies(work: list[Work], processes: int) -> Iterator[Tally]:
    """Of pieces of work, in order, by new processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _prepare) as pool:
        for piece, found in [(piece, pool.submit(tally, *piece)) for piece in work]:
            try:
                part = found.result()
            except BrokenProcessPool:  # By this piece, or by another one.
                part = without_crashes(piece)
            yield part


def _alone(piece: Work) -> Tally:
    """Of a piece of work, by a process of its own. Raises BrokenProcessPool where that ends."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare) as pool:
        return pool.submit(tally, *piece).result()


def without_crashes(piece: Work, judged: Callable[[Work], Tally] = _alone) -> Tally:
    """Of a piece of work, or of its halves, down to the program that ends its process."""
    first, count, *rest = piece
    try:
        return judged(piece)
    except BrokenProcessPool:
        if count == 1:
            return Tally(1, marks=Counter({CRASHED: 1}), crashed=[first])
    half = count // 2
    total = without_crashes((first, half, *rest), judged)
    total.add(without_crashes((first + half, count - half, *rest), judged))
    return total


def _prepare() -> None:
    """What a process has loaded is not gone through for garbage again with each few programs."""
    tally(0, 1)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _loaded(file: Path, seeds: range, in_swarms: bool) -> tuple[Tally, int]:
    if not file.exists():
        return Tally(), seeds.start
    try:
        facts = json.loads(file.read_text())
        done = Tally.of(facts), int(facts["next"])
        first, of_grammar = facts["first"], facts["grammar"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise SystemExit(f"{file} is no file of a campaign: {e}") from None
    if of_grammar != grammar():
        raise SystemExit(f"{file} is of another grammar: its numbers are of other programs")
    if first != seeds.start:
        raise SystemExit(f"{file} is of programs from {first} on, not {seeds.start}")
    if facts.get("in_swarms", False) != in_swarms:
        raise SystemExit(f"{file} is of a run {'without' if in_swarms else 'with'} --swarm")
    return done


def _store(file: Path, seeds: range, in_swarms: bool, after: int, total: Tally) -> None:
    done = {"first": seeds.start, "next": after, "in_swarms": in_swarms, "grammar": grammar()}
    facts = {**done, **total.facts()}
    made = file.with_name(file.name + ".new")
    made.write_text(json.dumps(facts, indent=1))
    made.replace(file)


__all__ = ["CRASHED", "ENDLESS", "Tally", "Work", "grammar", "run", "tally", "without_crashes"]
