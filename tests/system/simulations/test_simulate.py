"""The tests of `test_simulate` that need a process, a socket or a clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from delian.core.learning import bundle as bundles

SMALL = [
    "rounds=3",
    "fleet.devices=12",
    "round.devices=4",
    "data.held_out_devices=3",
]


def test_hash_randomisation_does_not_change_the_report(tmp_path: Path) -> None:
    reports = []
    for value in ("1", "2"):
        out = tmp_path / value
        command = [sys.executable, "-m", "delian.cli", "simulate", "--out", str(out), "--json"]
        for setting in SMALL:
            command += ["--set", setting]
        environment = {**os.environ, "PYTHONHASHSEED": value}
        done = subprocess.run(
            command, env=environment, capture_output=True, check=True, cwd=tmp_path
        )
        report = json.loads(done.stdout)
        assert report == json.loads((out / "report.json").read_text())
        assert (out / "report.html").stat().st_size > 10_000
        trained = bundles.load(out / "model.bundle")
        assert trained.weights.size == report["summary"]["parameters"]
        del report["host"]
        reports.append(report)
    assert reports[0] == reports[1]
