"""`delian model convert RUN/model.bundle FOLDER/` of a run that trained a PyTorch module."""

from pathlib import Path

import delian as dl
import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width * 36, 10)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().flatten(1))
"""


def delian(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_becomes_a_folder_with_the_modules_names(tmp_path: Path) -> None:
    net, run, out = tmp_path / "net.py", tmp_path / "run", tmp_path / "out"
    net.write_text(NET)
    keys = ["rounds=1", "fleet.devices=6", "data.held_out_devices=0", "round.cohort=4"]
    short = [*(part for key in keys for part in ("--set", key)), "--algorithm", "fedavg"]
    delian("simulate", "digits", "--torch", net, "--out", run, *short)
    delian("model", "convert", run / "model.bundle", out, "--torch", net)
    arrays, metadata = dl.read_safetensors(out / "model.safetensors")
    shapes = {name: value.shape for name, value in arrays.items()}
    assert metadata == {"format": "pt"}
    assert shapes["conv.weight"] == (4, 1, 3, 3) and shapes["head.weight"] == (10, 144)
    assert shapes["norm.num_batches_tracked"] == () and arrays["norm.running_mean"].any()
    card = (out / "README.md").read_text()
    assert "fedavg, 1 round, 6 devices, scenario digits" in card and "| accuracy |" in card
    assert not (out / "config.json").exists()
    with pytest.raises(DelianError, match="is not a bundle of Net"):
        wide = ["--set", "model.settings={width=5}"]
        delian("model", "convert", run / "model.bundle", out, "--torch", net, *wide)
    delian("model", "convert", run / "model.bundle", tmp_path / "plain")
    plain, _ = dl.read_safetensors(tmp_path / "plain" / "model.safetensors")
    found = sorted(map(float, plain[next(name for name in plain if "conv.weight" in name)].flat))
    assert found == sorted(map(float, arrays["conv.weight"].flat))


def test_options_that_say_nothing_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "net.safetensors"
    dl.write_safetensors(source, {"w": np.ones(2, np.float32)}, {"format": "pt"})
    delian("model", "convert", source, tmp_path / "out")
    assert dl.read_safetensors(tmp_path / "out" / "model.safetensors")[0]["w"].tolist() == [1, 1]
    with pytest.raises(DelianError, match=r"say of which module a \.bundle is"):
        delian("model", "convert", source, tmp_path / "out", "--torch", "net.py")
    with pytest.raises(DelianError, match="are for folders"):
        delian("model", "convert", source, tmp_path / "a.safetensors", "--torch", "net.py")
    with pytest.raises(DelianError, match="give it by --scenario"):
        delian("model", "convert", source, tmp_path / "out", "--set", "rounds=1")
