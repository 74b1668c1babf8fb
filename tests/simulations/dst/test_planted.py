"""The table of planted bugs: each is found by an oracle of `delian dst`, or by a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("planted.py")


@pytest.mark.slow
def test_every_planted_bug_is_found():
    done = subprocess.run(
        [sys.executable, str(TABLE), "--json"], capture_output=True, text=True, timeout=3600
    )
    facts = json.loads(done.stdout)
    assert done.returncode == 0 and not facts["missed"], facts["missed"]
    assert len(facts["rows"]) >= 20 and all(row["by"] for row in facts["rows"])


def test_a_bug_that_nothing_finds_is_missed():
    """With no seed to look in."""
    script = "import runpy, sys; m = runpy.run_path(sys.argv[1]); print(m['row'](sys.argv[2], 0))"
    told = subprocess.run(
        [sys.executable, "-c", script, str(TABLE), "wrong weight"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    ).stdout
    assert "by=''" in told and "weighs_ages_off_by_one" in told
