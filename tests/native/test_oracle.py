"""Random whole programs give what CPython with NumPy gives, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracle.campaign import ENDLESS, Tally, run, tally
from oracle.judge import DIFFERS, EQUAL
from oracle.planted import PLANTED, PROGRAMS_MAX, found_after, plant
from oracle.program import program
from oracle.short import GROUPS
from oracle.writer import TABLE

#: Programs of the default suite, and of the slow tests, where each K-th runs natively too.
USUAL, SLOW, NATIVE_EVERY = 50, 1950, 100


def check(total: Tally) -> None:
    said = "\n".join(f"== {f['number']}: {f['words']}\n{f['text']}" for f in total.failures)
    assert not total.marks[DIFFERS], said
    assert not total.marks[ENDLESS], total.endless
    assert total.marks[EQUAL] > 0.5 * total.programs, total.marks


def test_random_programs_are_cpythons() -> None:
    check(tally(0, USUAL))


@pytest.mark.slow
def test_more_random_programs_are_cpythons() -> None:
    total = tally(USUAL, SLOW, NATIVE_EVERY)
    check(total)
    names = {c.name for table in TABLE.values() for c in table} | GROUPS
    missing = names - set(total.constructs)
    for number in range(10_000):  # the rarest is in one of thousands
        if not missing:
            break
        missing -= set(program(number).used)
    assert not missing, "constructs that no program has"


#: Found within a few programs: the default suite looks for this one.
SOON = "isinstance answers as for an array"


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=[] if f == SOON else pytest.mark.slow) for f in PLANTED]
)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(fault, monkeypatch.setattr)
    assert found_after() is not None, f"{PROGRAMS_MAX} programs and no difference"


def test_a_program_follows_from_its_number() -> None:
    assert program(7).text == program(7).text != program(8).text


def test_a_run_goes_on_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "oracle.json"
    run(range(0, 10), resume=file)
    parts = run(range(0, 20), resume=file)
    whole = tally(0, 20)
    assert (parts.programs, parts.marks, parts.constructs) == (20, whole.marks, whole.constructs)
