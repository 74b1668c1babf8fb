"""Real devices that train in windows: the models of virtual time; and one whose rows are torn."""

import os

import numpy as np
import pytest
from delian.simulations.processes.processes import Shape, fitted, simulate_processes
from delian.simulations.runs.result import Phase
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario.datasets import scenario_for
from delian.simulations.scenario.scenario_file import load, override

ROUNDS = 2
WHOLE = [f"rounds={ROUNDS}", f"evaluation.every={ROUNDS}", "round.timeout_ms=180000"]
SHAPE = Shape(devices=4, edges=1, by_mqtt=0)


@pytest.fixture
def folder(tmp_path):
    """Four clients with more rows than a window."""
    rng = np.random.default_rng(0)
    for number in range(4):
        x = rng.normal(size=(150 + 20 * number, 4)).astype(np.float32)
        place = tmp_path / "clinics" / f"clinic-{number}"
        place.mkdir(parents=True)
        np.save(place / "x.npy", x)
        np.save(place / "y.npy", (x[:, 0] + x[:, 1] > 0).astype(np.int64))
    return tmp_path / "clinics"


def stored(folder, *settings):
    given = [*WHOLE, "data.rows_in_memory=32", "data.held_out_devices=0", *settings]
    return override(scenario_for(None, folder), given)


def test_rows_in_files_make_the_models_of_virtual_time(folder):
    asked = stored(folder)
    virtual = simulate(fitted(asked, SHAPE), data_path=folder)
    real = simulate_processes(asked, SHAPE, data_path=folder)
    assert [r.reported for r in real.rounds] == [4] * ROUNDS
    np.testing.assert_array_equal(real.bundle.weights, virtual.bundle.weights)


def test_rows_in_memory_make_the_models_of_virtual_time():
    given = [*WHOLE, "data.rows_in_memory=16", "algorithm.epochs=1"]
    asked = override(load("digits"), given)
    virtual = simulate(fitted(asked, SHAPE))
    real = simulate_processes(asked, SHAPE)
    np.testing.assert_array_equal(real.bundle.weights, virtual.bundle.weights)


@pytest.mark.parametrize("privacy", ["plain", "secure"])
def test_a_device_whose_rows_are_torn_is_counted_and_holds_up_no_other(folder, tmp_path, privacy):
    """The round's timeout is three minutes and not waited for: the device says at once."""
    fleet, file = tmp_path / "fleet", folder / "clinic-2" / "x.npy"
    content, was = file.read_bytes(), file.stat()

    def tear(event):
        if event == Phase("round 1"):
            os.truncate(file, 1000)

    def mend(children, record):
        """What judges at the end reads the same file."""
        with file.open("r+b") as opened:
            opened.write(content)
        os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))

    settings = [f"privacy.aggregation={privacy}", "round.reports_min=3"]
    shape = Shape(devices=4, edges=1, by_mqtt=0, folder=fleet)
    result = simulate_processes(
        stored(folder, *settings), shape, data_path=folder, on_event=tear, meddle=mend
    )
    assert result.stopped_by is None and len(result.rounds) == ROUNDS
    first = result.rounds[0]
    assert (first.reported, first.refused, first.late, first.dropped) == (3, 1, 0, 0)
    said = "".join(path.read_text() for path in fleet.glob("**/device-2*.log"))
    assert "x.npy declares 190 rows in 3168 bytes, and has 1000 bytes" in said
