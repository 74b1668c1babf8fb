"""`delian data pack`, `check` and `show` of packed files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.core.learning.data import federated_data
from delian.core.learning.data.packed import packed_writer
from typer.testing import CliRunner


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_writer, "block_rows", lambda rows, row_bytes: 100)
    lines = [f"{k},{k / 2},{'cat' if k % 3 else 'dog'}\n" for k in range(300)]
    (tmp_path / "a.csv").write_text("a,b,kind\n" + "".join(lines))
    return tmp_path / "a.csv"


def test_a_table_is_packed_shown_and_checked(table, tmp_path, monkeypatch):
    out = tmp_path / "a.npz"
    said = run("pack", table, out, "--classes", "dog,cat", "--columns", "a,b")
    assert said.exit_code == 0 and "300 rows in 3 blocks" in said.stdout
    known = json.loads(run("show", out, "--json").stdout)["packed"]
    assert known["columns"]["x"] == {"shape": [2], "dtype": "<f4"}
    assert "300, in 3 blocks of 100" in run("show", out).stdout
    monkeypatch.setattr(federated_data, "FEDERATION_BYTES_MAX", 1000)
    assert json.loads(run("show", out, "--json").stdout) == known
    checked = run("check", out)
    assert checked.exit_code == 0 and "300 rows in 3 blocks, 0 lost" in checked.stdout


def test_a_check_names_lost_rows_and_fails(table, tmp_path):
    out = tmp_path / "a.npz"
    known = json.loads(run("pack", table, out, "--classes", "dog,cat", "--json").stdout)
    assert known["rows"] == 300
    out.write_bytes(out.read_bytes()[: known["bytes"] // 2])
    said = run("check", out)
    assert said.exit_code == 1 and "lost: rows 100..299" in said.stdout
    found = json.loads(run("check", out, "--json").stdout)
    assert (found["lost"], found["lost_rows"]) == ([[100, 300]], 200)


def test_images_are_packed_in_one_size(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        image.new("RGB", (30, 20)).save(tmp_path / "photos" / name / "a.jpg")
    said = run("pack", tmp_path / "photos", tmp_path / "p.npz", "--shape", "8,6,3").stdout
    assert "classes: cat, dog" in said
    assert np.load(tmp_path / "p.npz")["x/00000"].shape == (2, 8, 6, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ("pack", "none.csv", "out.npz"),
        ("pack", "a.csv", "out.txt"),
        ("pack", "a.csv", "out.npz", "--shape", "8,-1"),
        ("pack", "a.csv", "out.npz", "--columns", "z"),
        ("check", "a.csv"),
        ("check", "none.npz"),
    ],
)
def test_what_cannot_be_packed_or_checked_is_refused(table, monkeypatch, arguments):
    monkeypatch.chdir(table.parent)
    with pytest.raises(DelianError):
        run(*arguments)
    assert not (table.parent / "out.npz").exists()


def test_a_packed_file_is_data_to_simulate(table, tmp_path):
    from delian.core.learning.data.labelled_arrays import npz

    run("pack", table, tmp_path / "a.npz", "--classes", "dog,cat")
    found = npz(tmp_path / "a.npz")
    assert found.x.shape == (300, 2) and found.y[:4].tolist() == [0, 1, 1, 0]
