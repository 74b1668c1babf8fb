"""What a run has made is kept although the folder that was asked for does not take it."""

from __future__ import annotations

import errno
import json
import sys
import tempfile
from pathlib import Path

import pytest
from delian.cli import main as command
from delian.core import bundle, files

SMALL = ["rounds=1", "fleet.devices=4", "round.devices=3", "data.held_out_devices=1"]


@pytest.mark.parametrize("file", ["model.bundle", "report.json", "report.html"])
def test_a_disk_that_is_full_at_the_end_costs_no_run(tmp_path, monkeypatch, capsys, file):
    asked, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    write = files.write_whole

    def full(path: Path, *rest: object, **named: object) -> None:
        if path == asked / file:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *rest, **named)

    monkeypatch.setattr(files, "write_whole", full)
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    settings = [word for key in SMALL for word in ("--set", key)]
    arguments = ["simulate", "--backend", "reference", "--out", str(asked), *settings]
    monkeypatch.setattr(sys, "argv", ["delian", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    out, err = capsys.readouterr()
    (refuge,) = other.iterdir()
    assert end.value.code == 2 and "No space left on device" in err and str(refuge) in err
    assert f"report  {refuge / 'report.html'}" in out
    assert bundle.load(refuge / "model.bundle").weights.size
    assert json.loads((refuge / "report.json").read_text())["summary"]["rounds"] == 1
    assert (refuge / "report.html").exists()
