"""`delian data show`: the card of the data that a simulation would train on."""

from __future__ import annotations

import json

import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from typer.testing import CliRunner


def run(*arguments):
    return CliRunner().invoke(app, ["data", "show", *map(str, arguments)], catch_exceptions=False)


def test_the_default_is_told_in_words_and_drawn(tmp_path):
    said = run("--out", tmp_path / "data.html").stdout
    assert "60, of which 12 never train" in said and "1,797" in said
    page = (tmp_path / "data.html").read_text()
    assert page.startswith("<!doctype html>") and "Labels on each device" in page


def test_skew_is_what_the_partition_makes_it():
    skews = {}
    for how in ("iid", "dirichlet", "shards"):
        known = json.loads(run("--json", "--set", f"data.partition={how}").stdout)
        assert known["examples_total"] == 1797 and known["devices"] == 60
        skews[how] = known["skew"]
        if how == "shards":
            assert known["labels_median"] <= 3
    assert skews["iid"] < 0.25 < skews["dirichlet"] < skews["shards"]


def test_a_quantity_partition_differs_in_amounts():
    known = json.loads(run("--json", "--set", "data.partition=quantity").stdout)
    assert known["examples_most"] > 4 * known["examples_least"] >= 40


def test_noise_grows_over_the_devices_and_is_said():
    known = json.loads(run("--json", "--set", "data.feature_noise=0.5").stdout)
    assert "noise of up to 0.5" in known["partition"]


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        ("pathological", "2 labels each (random)"),
        ("inner_dirichlet", "even amounts, labels by Dirichlet(3)"),
        ("distribution", "amounts log-normal(2)"),
        ("linear", "amounts linear in the device's number"),
        ("continuous", "strictness 1"),
    ],
)
def test_every_partition_has_its_picture(tmp_path, partition, words):
    keys = (f"partition={partition}", "draws=flwr", "alpha=3.0", "min_examples=3")
    path = tmp_path / "data.html"
    chosen = [word for key in keys for word in ("--set", f"data.{key}")]
    known = json.loads(run("--devices", 30, "--out", path, "--json", *chosen).stdout)
    assert known["partition"].endswith(f"{words}; drawn as flwr-datasets draws")
    page = path.read_text()
    assert "Labels on each device" in page and "Examples on each device" in page


def test_rows_on_no_device_are_noted():
    said = run("--set", "data.partition=shards", "--set", "data.draws=flwr").stdout
    assert "117 rows are on no device" in said


def test_other_meanings_and_rotations_are_said():
    known = json.loads(
        run("--json", "--set", "data.concepts=3", "--set", "data.rotations=4").stdout
    )
    assert "images turned by 4 angles; 3 meanings of labels" in known["partition"]


def test_devices_of_one_s_own_numbers_have_ranges_of_them(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("a,price\n" + "".join(f"{k % 7},{k * 1.5}\n" for k in range(200)))
    skews = {}
    for strictness in (0.0, 1.0):
        keys = ("--set", "data.partition=continuous", "--set", f"data.strictness={strictness}")
        known = json.loads(run(path, "--devices", 8, *keys, "--json").stdout)
        skews[strictness] = known["skew"]
    assert skews[0.0] < 0.4 < 0.8 < skews[1.0]
    for key in ("partition=pathological", "concepts=2"):
        with pytest.raises(DelianError, match=r"data\.targets are numbers"):
            run(path, "--set", f"data.{key}")


def test_natural_devices_can_be_grouped(tmp_path):
    path = tmp_path / "visits.csv"
    rows = "".join(f"{k % 5},{'uv'[k % 2]},site{k % 24:02d}\n" for k in range(480))
    path.write_text("a,kind,device\n" + rows)
    keys = ("--set", "data.group_size=4", "--set", "data.held_out_devices=1")
    known = json.loads(run(path, "--target", "kind", *keys, "--json").stdout)
    assert known["names"] == [f"site{first:02d} +3" for first in range(0, 24, 4)]
    assert "by groups of 4 of the data's own devices, 6 of 6" in known["partition"]


def test_keys_that_do_not_go_together_are_told():
    with pytest.raises(DelianError, match="only a shards partition"):
        run("--set", "data.labels_each=0")
    with pytest.raises(DelianError, match=r"data.rotations"):
        run("--set", "data.rotations=3")


def test_a_missing_folder_is_told():
    with pytest.raises(DelianError, match="data file"):
        run("digits", "--set", "data.source=idx", "--set", "algorithm.name=fedavg")


def test_a_page_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(DelianError, match="cannot write"):
        run("--out", tmp_path / "nowhere" / "data.html")


def test_a_file_is_named_as_after_data_with_its_target(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,kind,b\n" + "".join(f"{k % 7},{'uv'[k % 2]},{k % 5}\n" for k in range(120)))
    known = json.loads(run(path, "--target", "kind", "--devices", 6, "--json").stdout)
    assert known["label_names"] == ["u", "v"] and known["devices"] == 6
    same = run("--data", path, "--set", "data.target=kind", "--set", "fleet.devices=6", "--json")
    assert json.loads(same.stdout) == known
    with pytest.raises(DelianError, match="no column `price`"):
        run(path, "--target", "price")
    with pytest.raises(DelianError, match="two files of data"):
        run(path, "--data", path)
