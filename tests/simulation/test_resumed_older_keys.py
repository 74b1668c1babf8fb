"""A run that was kept under older names of its plan's keys is resumed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from delian.core.common.errors import DelianError
from delian.simulations.resume import resumable
from support.resumed_runs import (
    PLAIN,
    Killed,
    Killer,
    bits_of,
    kept_after_every_round,  # noqa: F401
    run,
)

#: The tables of `SMALL` that are a run's plan, as version 0.1.0 first stored them.
OLDER = {
    "round": {
        **{"devices": 4, "over_selection": 1.25, "deadline_s": 20.0, "min_reports": 2},
        **{"mode": "synchronous", "rule": "weighted_mean", "hostile": 0.0},
    },
    "privacy": {
        **{"clip": 10.0, "rotation": False, "clip_rate": 0.2, "aggregation": "plain"},
        **{"corrupt": 0.2, "dropout": 0.1, "helpers": 0, "noise": "none", "delta": 1e-06},
    },
    "evaluation": {
        **{"every": 2, "episodes": 5, "steps": [], "federated": False, "patience": 0},
        **{"improvement_min": 0.0, "rollback_worse": 0.0, "rollback_accuracy": 0.0},
    },
}


def store_tables(folder: Path, tables: dict[str, Any]) -> None:
    """Changes tables of the scenario that a kept run was."""
    kept = folder / resumable.KEPT
    said = json.loads(kept.read_bytes()[:-32])
    assert said["told"]["scenario"].keys() >= tables.keys()
    said["told"]["scenario"] |= tables
    body = json.dumps(said).encode()
    kept.write_bytes(body + hashlib.sha256(body).digest())


def test_kept_under_older_names_of_keys(tmp_path: Path) -> None:
    whole = run("fedavg", PLAIN)
    for settings in ({}, {"deadline_s": 21.0}, {"wait_ms": 1}):
        with pytest.raises(Killed):
            run("fedavg", PLAIN, on_event=Killer(4), resume=tmp_path / "run")
        store_tables(tmp_path / "run", {**OLDER, "round": {**OLDER["round"], **settings}})
        if settings:
            with pytest.raises(DelianError, match=r"scenario\.round\.\w+_ms was \d+ and is \d+"):
                run("fedavg", PLAIN, resume=tmp_path / "run")
            shutil.rmtree(tmp_path / "run")
            continue
        assert bits_of(run("fedavg", PLAIN, resume=tmp_path / "run")) == bits_of(whole)
