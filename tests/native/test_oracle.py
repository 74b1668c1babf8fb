"""Random whole programs give what CPython with NumPy gives, or are refused."""

from __future__ import annotations

from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

import pytest
from oracle import swarm
from oracle.campaign import CRASHED, ENDLESS, Tally, Work, run, tally, without_crashes
from oracle.endless import WRITING_MAX, Endless, limited
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
    assert not total.marks[CRASHED], total.crashed
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
        with suppress(Endless), limited(WRITING_MAX):
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


def test_programs_of_a_swarm_share_a_part_of_the_grammar() -> None:
    before = [program(k).text for k in range(8)]
    used = [set(swarm.program(k).used) for k in range(40)]
    assert swarm.program(7) == swarm.program(7)
    assert any(swarm.program(k).text != before[k] for k in range(8))
    assert [program(k).text for k in range(8)] == before, "the whole grammar is there again"
    names = {c.name for rows in TABLE.values() for c in rows}
    for first in range(0, 40, 4):  # a program of the whole grammar has as many in the mean
        assert len(set.union(*used[first : first + 4]) & names) < len(names) // 2


def test_a_run_of_swarms_goes_on_as_one(tmp_path: Path) -> None:
    file = tmp_path / "oracle.json"
    run(range(0, 4), resume=file, in_swarms=True)
    assert run(range(0, 8), resume=file, in_swarms=True).programs == 8
    with pytest.raises(SystemExit, match="--swarm"):
        run(range(0, 8), resume=file)


def test_programs_that_end_their_process_are_left_behind() -> None:
    bad = {1003, 1004, 1099}

    def judged(piece: Work) -> Tally:
        first, count = piece[:2]
        if bad & set(range(first, first + count)):
            raise BrokenProcessPool
        return Tally(count, marks=Counter({EQUAL: count}))

    total = without_crashes((1000, 100, 0, True, False), judged)
    assert (total.programs, set(total.crashed)) == (100, bad)
    assert total.marks == {EQUAL: 97, CRASHED: 3}


def test_a_run_goes_on_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "oracle.json"
    run(range(0, 10), resume=file)
    parts = run(range(0, 20), resume=file)
    whole = tally(0, 20)
    assert (parts.programs, parts.marks, parts.constructs) == (20, whole.marks, whole.constructs)
