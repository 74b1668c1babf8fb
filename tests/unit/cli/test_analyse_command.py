"""`delian analyse`: questions to a federation, against NumPy on the same data in one place."""

from __future__ import annotations

import json

import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.simulations.scenario.datasets import load_data
from delian.simulations.scenario.scenario_file import load, override
from typer.testing import CliRunner

#: A small fleet of which each device answers.
SETTINGS = [
    *("fleet.devices=18", "data.held_out_devices=2", "fleet.dropout=0.0"),
    "network.device_edge.loss=0.0",
]


def run(*arguments, settings=SETTINGS):
    changes = [word for setting in settings for word in ("--set", setting)]
    return CliRunner().invoke(
        app, ["analyse", *map(str, arguments), *changes], catch_exceptions=False
    )


@pytest.fixture(scope="module")
def rows():
    """All rows of the devices that train: x as the model takes it, and y."""
    data = load_data(override(load("digits"), SETTINGS))
    devices = [data.devices[d] for d in data.training]
    x = np.concatenate([d.x[: d.examples] for d in devices]).reshape(-1, 64) / 16
    return x, np.concatenate([d.y[: d.examples] for d in devices])


def test_a_histogram_of_labels(rows):
    answer = json.loads(run("digits", "histogram", "--json").stdout)
    assert answer["reported"] == answer["devices"] == 16
    np.testing.assert_allclose(answer["shares"], np.bincount(rows[1]) / len(rows[1]), atol=1e-4)
    assert "%  ####" in run("digits", "histogram").stdout


def test_the_data_is_read_once(monkeypatch):
    from delian.simulations.runs import analysis, stage

    read = []

    def counted(scenario, path=None):
        read.append(scenario.name)
        return load_data(scenario, path)

    for module in (analysis, stage):
        monkeypatch.setattr(module, "load_data", counted)
    assert run("digits", "histogram", "--json").exit_code == 0
    assert read == ["digits"]


def test_numbers_have_no_labels_to_count():
    with pytest.raises(DelianError, match="no labels") as caught:
        run("sinusoid", "histogram", settings=["fleet.devices=30", "data.held_out_devices=2"])
    assert caught.value.hint == "--of x"


def test_moments(rows):
    answer = json.loads(run("digits", "moments", "--json").stdout)
    np.testing.assert_allclose(answer["mean"], rows[0].mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(answer["deviation"], rows[0].std(axis=0), atol=1e-2)


def test_quantiles_and_heavy_hitters(rows):
    answer = json.loads(run("digits", "quantiles", "--wanted", "0.6,0.9", "--json").stdout)
    wanted = np.quantile(rows[0], [0.6, 0.9], method="inverted_cdf")
    np.testing.assert_allclose(answer["values"], wanted, atol=1e-3)
    found = json.loads(run("digits", "heavy-hitters", "--bits", 4, "--most", 3, "--json").stdout)
    counts = np.bincount(rows[1])
    assert [item for item, _ in found["found"]] == np.argsort(-counts)[:3].tolist()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["beauty"], "no question"),
        (["quantiles", "--wanted", "1.5"], "between 0 and 1"),
        (["quantiles", "--wanted", "half"], "not numbers"),
        (["histogram", "--low", "2"], "range"),
        (["quantiles", "--high", "inf"], "no end"),
        (["histogram", "--of", "z"], "label and x"),
        (["heavy-hitters", "--bits", "25"], "25 bits"),
    ],
)
def test_what_cannot_be_asked_is_told(arguments, says):
    with pytest.raises(DelianError, match=says):
        run("digits", *arguments)
