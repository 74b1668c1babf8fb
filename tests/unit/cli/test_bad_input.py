"""What `delian simulate` says to input that cannot serve: what is wrong, where, and what to do.

Exit code 2, nothing on stdout, no traceback, nothing left behind and nothing lost.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from delian.cli import main as command

NPZ = (
    '[data]\nsource = "npz"\npath = "{data}"\npartition = "natural"\n[model]\nname = "{model}"\n'
    'classes = 3\n[algorithm]\nname = "fedavg"\n[round]\ndevices = 3\n'
)
DIGITS = 'name = "own"\nrounds = 1\n[data]\nsource = "digits"\n'
MISFIT = """
import delian as dl
import numpy as np

@dl.module
class Model:
    first: dl.Tensor
    second: dl.Tensor

    def __call__(self, x, weight):
        hidden = np.tanh(x.reshape(-1, 64) @ self.first)
        return hidden @ self.second

def init(key, shape, classes):
    return Model(dl.random.normal(key, (64, 7)), dl.random.normal(key, (9, classes)))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of things that cannot serve; the working folder."""
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((60, 16), np.float32), np.arange(60) % 3
    devices = np.arange(60) // 10
    np.savez("good.npz", x=x, y=y, device=devices)
    np.savez("labels.npz", x=x, y=np.where(np.arange(60) == 5, 9, y), device=devices)
    whole = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "short.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "play.txt").write_text("Second Citizen:\nSoft! who comes here?\n\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "typo.toml").write_text(DIGITS + "alfa = 0.1\n")
    (tmp_path / "syntax.toml").write_text('name = "own\n')
    for name, model in (("labels", "mlp"), ("gone", "mlp"), ("good", "cnn")):
        (tmp_path / f"{name}.toml").write_text(
            f'name = "own"\nrounds = 1\n{NPZ.format(data=name + ".npz", model=model)}'
        )
    (tmp_path / "misfit.py").write_text(MISFIT)
    (tmp_path / "misfit.toml").write_text(
        f'{DIGITS}[model]\nname = "python"\nfile = "misfit.py"\n'
        '[algorithm]\nname = "fedavg"\n[fleet]\ndevices = 12\n'
    )
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-s typo.toml", ["typo.toml:5:1", "`alfa`", "5 | alfa = 0.1", "^^^^", "mean `alpha`?"]),
        ("-s syntax.toml", ["syntax.toml:1:", 'name = "own', "text values need quotes"]),
        ("-s noise", ["noise is not UTF-8 text", "TOML file"]),
        ("-s nowhere.csv", ["there is no file nowhere.csv"]),
        ("good.npz --data short.npz", ["two files of data: good.npz and short.npz"]),
        ("-s empty", ["empty: `name` is missing", "`rounds` is missing"]),
        ("-s folder", ["folder is a folder", "name the .toml file"]),
        ("-s digitz", ["no scenario file digitz", "did you mean `digits`?"]),
        ("-s labels.toml", ["label 9 (row 5)", "3 classes", "model.classes=10"]),
        ("-s gone.toml", ["gone.npz", "data.path"]),
        ("-s good.toml", ["the cnn model reads images", "[16]", "use the mlp model"]),
        ("-s misfit.toml", ["misfit.py:12:16", "return hidden @ self.second", "^^^", "7 and 9"]),
        ("-s omniglot", ["needs a data file", "--data FILE"]),
        ("-s omniglot --data good.npz", ["no array `image`", "it has `x`, `y`, `device`"]),
        ("-s shakespeare --data good.npz", ["good.npz is not UTF-8 text"]),
        ("-s shakespeare --data play.txt", ["0 roles of at least 1000 characters"]),
        ("--data short.npz", ["short.npz is not a whole .npz file", "cut short"]),
        ("--data empty", ["empty is no data of a known kind"]),
        ("--data noise", ["noise is no data of a known kind"]),
        ("--data folder", ["folder is no data of a known kind"]),
        ("--data nowhere.npz", ["there is no data file nowhere.npz"]),
        ("--set fleet.dropout=1.5", ["`fleet.dropout` cannot be 1.5", "from 0 to 1"]),
        ("--set data.alpha=nan", ["`data.alpha` cannot be nan"]),
        ("--set fleet.devices=100000", ["cannot give 100000 devices", "at most 179"]),
        ("--set rounds", ["this is not key=value"]),
        ("--out empty", ["empty is a file", "--out DIR"]),
        ("--out empty/run", ["cannot make the folder empty/run"]),
    ],
)
def test_it_is_told_what_is_wrong(folder, capsys, monkeypatch, arguments, says):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(sys, "argv", ["delian", "simulate", *arguments.split()])
    with pytest.raises(SystemExit) as end:
        command.main()
    out, err = capsys.readouterr()
    assert end.value.code == 2 and not out and "Traceback" not in err
    assert not [part for part in says if part not in err], err
    after = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert after == before
