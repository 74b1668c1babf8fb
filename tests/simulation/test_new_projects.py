"""`delian new`: the README's commands of each template, as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from delian.cli.main import app
from support.readme_commands import BLOCK, run_here
from typer.testing import CliRunner


def made(folder: Path, template: str) -> Path:
    project = folder / f"my-{template}"
    words = ["new", str(project), "--template", template]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0 and "delian simulate scenario.toml" in done.stdout
    return project


@pytest.mark.parametrize("template", ["numpy", "tabular", "text"])
def test_the_commands_of_its_readme_run(template, tmp_path, monkeypatch):
    project = made(tmp_path, template)
    monkeypatch.chdir(project)
    readme = (project / "README.md").read_text()
    assert readme.startswith(f"# my-{template}\n") and "@" not in readme
    said = {}
    for name, commands in BLOCK.findall(readme):
        assert not name
        for line in commands.splitlines():
            said[line] = run_here(line, monkeypatch)
    assert (project / "run" / "report.html").exists()
    told = said["delian simulate scenario.toml --out run"]
    assert f"my-{template}, fedavg" in told and "warning" not in told
    if template != "text":
        (predicted,) = (said[line] for line in said if line.startswith("delian predict"))
        assert len(predicted.splitlines()) in (720, 900)


def test_the_fleet_s_scenario_runs_in_the_simulator(tmp_path, monkeypatch):
    project = made(tmp_path, "fleet")
    monkeypatch.chdir(project)
    for line in ("python make_data.py", "delian simulate scenario.toml --out run"):
        assert line in (project / "README.md").read_text()
        run_here(line, monkeypatch)
    run_here("python -m pytest -q", monkeypatch)
