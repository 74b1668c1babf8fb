"""The fleet of `delian new --template fleet`: its README's commands, by real processes."""

from __future__ import annotations

import re

import pytest
from delian.cli.main import app
from support.readme_commands import BLOCK
from support.terminals import Terminals
from typer.testing import CliRunner


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "my-fleet"
    done = CliRunner().invoke(app, ["new", str(folder), "--template", "fleet"])
    assert done.exit_code == 0, done.output
    return folder


def test_a_fleet_trains_and_predicts_by_the_commands_of_its_readme(project):
    blocks = BLOCK.findall((project / "README.md").read_text())
    assert [name for name, _ in blocks if name] == ["coordinator", "devices"]
    terminals = Terminals(project, {"coordinator": 1, "devices": 4})
    try:
        said = [terminals.run(name, commands) for name, commands in blocks]
    finally:
        terminals.close()
    trained = next(text for text in said if "judged by" in text)
    assert re.search(r"round 5/5 attempt 1: [34] of \d devices reported", trained)
    predicted = trained.splitlines()[-5:]
    assert all(label in ("0", "1", "2") for label in predicted)
