"""Real state of each tier, damaged at random places after SIGKILL: no start from an older truth
that is not said. The default suite damages every byte of the same files in this process
(test_store_damage, test_journal_crashes, test_ledger, test_folder_blobs).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from damage_trials import run

pytestmark = pytest.mark.slow

TRIALS = 200


def test_damaged_state_is_the_newest_or_refused_or_said(tmp_path):
    counts = run(TRIALS, 1, tmp_path)
    outcomes = {outcome for counted in counts.values() for outcome in counted}
    assert sum(sum(counted.values()) for counted in counts.values()) == TRIALS
    assert outcomes == {"newest", "said", "refused"}, counts
