"""Compiled code gives what Python with NumPy gives, or is refused: a table of small programs.

`programs/*.txt` has them, a file a class; the first letter of each says what becomes of it:

    =  the same value, of the same class, element type and shape; or the same error
    !  refused by an error with a code
    ^  Python raises an error that depends on the numbers; a compiled program has a value
    ~  another class of the same number: after a branch a name has one type (docs/language.md), and
       an int of the running program has 64 bits

Run with DELIAN_GOLDEN=1 in the environment to write the letters anew, and read the difference
before you keep it: a program that becomes `~` or `^` is a fault.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import pytest
from support.frontend_programs import same_as_python as same

_HERE = Path(__file__).parent
PROGRAMS = sorted((_HERE / "programs").glob("*.txt"))


def programs(file: Path) -> list[tuple[str, str]]:
    """(mark, text) of each program of a class."""
    out: list[tuple[str, str]] = []
    for line in file.read_text().splitlines():
        if line.startswith("  "):
            mark, text = out[-1]
            out[-1] = mark, f"{text}\n{line[2:]}"
        else:
            out.append((line[0], line[2:]))
    return out


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda f: f.stem)
@pytest.mark.filterwarnings("ignore")
def test_numbers_that_are_passed(file: Path) -> None:
    lines, changed = [], []
    for mark, text in programs(file):
        now, words = same.outcome(text, same.names_in(text))
        if now != mark:
            changed.append(f"{text}\n    was {mark}, is {now} {words}")
        first, *rest = text.split("\n")
        lines += [f"{now} {first}", *(f"  {line}" for line in rest)]
    if os.environ.get("DELIAN_GOLDEN"):
        file.write_text("\n".join(lines) + "\n")
    else:
        assert not changed, "\n".join(changed)


def check_closed_over(file: Path, offset: int) -> None:
    """By turns, a program closes over all of its numbers, and over all but the first."""
    for k, (mark, text) in enumerate(programs(file), offset):
        now, words = same.outcome(text, same.names_in(text)[: k % 2])
        assert now in "=!" or now == mark, f"{text}\n    {words}"


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda f: f.stem)
@pytest.mark.filterwarnings("ignore")
def test_numbers_that_are_closed_over(file: Path) -> None:
    check_closed_over(file, 0)


@pytest.mark.slow
@pytest.mark.parametrize("file", PROGRAMS, ids=lambda f: f.stem)
@pytest.mark.filterwarnings("ignore")
def test_numbers_that_are_closed_over_the_other_way(file: Path) -> None:
    check_closed_over(file, 1)


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda f: f.stem)
@pytest.mark.filterwarnings("ignore")
def test_native_code(file: Path) -> None:
    """The programs of a class that compile, as one program; and those that raise as another."""
    kept, failing = [], []
    for mark, text in programs(file):
        if mark == "=":
            words = same.outcome(text, same.names_in(text))[1]
            (failing if words == same.RAISES else kept).append(text)
    functions = [same.function(t, same.names_in(t), same.VALUES) for t in kept]
    names = [same.names_in(t) for t in kept]

    def everything(values: dict[str, Any]) -> list[Any]:
        return [f(*[values[n] for n in ns]) for f, ns in zip(functions, names, strict=True)]

    values = {n: v for n, v in same.VALUES.items() if any(n in ns for ns in names)}
    got = dl.compile(everything, backend="native")(values)
    with np.errstate(all="ignore"):
        want = everything(values)
    for text, x, y in zip(kept, got, want, strict=True):
        assert not same.difference(x, y), f"{text}\n    {x!r} {y!r}"
    _raise_natively(failing)


def _raise_natively(texts: list[str]) -> None:
    functions = [same.function(t, same.names_in(t), same.VALUES) for t in texts]
    names = [same.names_in(t) for t in texts]

    def one(place: int, values: dict[str, Any]) -> int:
        for k, (f, ns) in enumerate(zip(functions, names, strict=True)):
            if place == k:
                f(*[values[n] for n in ns])
        return place

    values = {n: v for n, v in same.VALUES.items() if any(n in ns for ns in names)}
    run = dl.compile(one, backend="native")
    for k, text in enumerate(texts):
        with pytest.raises(Exception) as want:
            one(k, values)
        with pytest.raises(Exception) as got:
            run(k, values)
        assert (got.type, str(got.value)) == (want.type, str(want.value)), text
