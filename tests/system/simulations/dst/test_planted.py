"""The table of planted bugs: each is found by an oracle of `delian dst`, or by a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[3]


@pytest.mark.slow
def test_every_planted_bug_is_found():
    done = subprocess.run(
        [sys.executable, "-m", "support.planted", "--json"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    facts = json.loads(done.stdout)
    assert done.returncode == 0 and not facts["missed"], facts["missed"]
    assert len(facts["rows"]) >= 20 and all(row["by"] for row in facts["rows"])


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
