"""The table of planted bugs. Each bug that a machine has is found in tests/simulation/dst; here are
those of stores, which a test finds in a process of its own. The table with the number of seeds that
each bug takes: python -m support.planted.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import mutants, planted
from support.mutants.missing import CHECKS

TESTS = Path(__file__).parents[3]


def test_the_table_has_known_bugs_of_at_least_twenty_kinds():
    known = {bug.name for bug in (*mutants.MUTANTS, *mutants.STORE_MUTANTS, *CHECKS)}
    assert set(planted.KINDS.values()) <= known and len(planted.KINDS) >= 20


def test_each_bug_of_a_store_fails_its_test():
    names = [mutant.name for mutant in mutants.STORE_MUTANTS]
    assert planted.failing(names) == set(names)


def test_a_bug_that_nothing_finds_is_missed():
    """With no seed to look in."""
    script = "import sys; from support import planted; print(planted.row(sys.argv[1], 0))"
    told = subprocess.run(
        [sys.executable, "-c", script, "wrong weight"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    ).stdout
    assert "by=''" in told and "weighs_ages_off_by_one" in told
