"""What docs/devices.md says is so."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields

from delian.core.learning.data.rows import RowType
from delian.core.learning.data.sources import DataSettings, open_source
from delian.device.agent.owner_limits import WorkerSettings


def test_the_sensors_example_gives_a_source(checkout, tmp_path, monkeypatch):
    page = (checkout / "docs" / "devices.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.py").write_text(code)
    runpy.run_path(str(tmp_path / "example.py"))
    rows = open_source(DataSettings(f"sensor:{tmp_path / 'readings'}")).read(RowType((3,)))
    assert rows.x.shape == (1, 3) and list(rows.y) == [1]


def test_the_limits_that_it_names_are_settings(checkout):
    page = (checkout / "docs" / "devices.md").read_text()
    table = page.partition("| `device.worker`")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", table))
    assert named <= {f.name for f in fields(WorkerSettings)}
