"""Real state of each tier, damaged at random places after SIGKILL: no start from an older truth
that is not said. The default suite damages every byte of the same files in this process
(test_store_damage, test_journal_crashes, test_ledger, test_folder_blobs).
"""

from __future__ import annotations

import pytest
from delian.simulations.processes.processes import Shape, simulate_processes
from delian.simulations.scenario.scenario_file import load, override
from support.damage_trials import by_tier, run

#: By hand as well: python tests/support/damage_trials.py --trials 200
TRIALS, TRIALS_SLOW = 8, 200


def test_damaged_state_is_the_newest_or_refused_or_said(tmp_path):
    """Two files of each tier."""
    counts = run(TRIALS, 1, tmp_path)
    assert set(by_tier(counts)) == {"cloud", "edge", "device", "authority"}
    assert outcomes(counts) <= {"newest", "said", "refused"}, counts


@pytest.mark.slow
def test_many_times_damaged_state_is_the_newest_or_refused_or_said(tmp_path):
    counts = run(TRIALS_SLOW, 2, tmp_path)
    assert sum(sum(counted.values()) for counted in counts.values()) == TRIALS_SLOW
    assert outcomes(counts) == {"newest", "said", "refused"}, counts


def outcomes(counts):
    return {outcome for counted in counts.values() for outcome in counted}


def test_a_device_whose_bundle_is_torn_fetches_it_again_and_goes_on(tmp_path):
    torn = []

    def meddle(children, record):
        if record.round != 1:
            return
        device = children.all["device-0"]
        device.kill()
        blobs = [p for p in (tmp_path / "device-0" / "blobs" / "whole").iterdir() if p.is_file()]
        for path in blobs:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        torn.extend(path.name for path in blobs)
        device.start()

    asked = override(load("digits"), ["rounds=4", "evaluation.every=4"])
    result = simulate_processes(asked, Shape(3, 1, by_mqtt=0, folder=tmp_path), meddle=meddle)
    assert result.stopped_by is None and torn
    assert result.rounds[-1].reported == 3, "the device's update is among those of the last round"
    log = (tmp_path / "device-0.log").read_text()
    assert "is damaged, and set aside" in log and "Traceback" not in log
