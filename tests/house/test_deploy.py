"""What lies under deploy/ fits the commands and the configuration as they are."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from delian.cli import config
from delian.cli.main import app
from typer.main import get_command

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("path", sorted((DEPLOY / "config").glob("*.toml")), ids=lambda p: p.stem)
def test_every_sample_configuration_is_one(path):
    loaded = config.load(path, environment={})
    assert path.stem in loaded.config.model_fields_set


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.stem)
def test_every_unit_starts_a_command_that_there_is(path):
    (line,) = re.findall(r"^ExecStart=\S+ (.*)$", path.read_text(), re.MULTILINE)
    group, command, option, file = line.split()
    commands = get_command(app).commands[group].commands
    assert option in {name for p in commands[command].params for name in p.opts}
    assert file == f"/etc/delian/{group}.toml"


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.stem)
def test_systemd_takes_every_unit(path, tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    # The program it starts is not installed here; everything else is checked.
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/opt/delian/bin/delian", "/bin/true"))
    result = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and not result.stderr, result.stderr
