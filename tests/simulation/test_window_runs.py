"""Simulated devices that train in windows: of rows in memory, and of rows in files."""

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.simulations.report.report import build_report
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file
from delian.simulations.scenario.datasets import load_data, scenario_for
from support.resumed_runs import (
    PLAIN,
    Killed,
    Killer,
    bits_of,
    kept_after_every_round,  # noqa: F401
    run,
)

ROOM = "data.rows_in_memory=32"
#: Rows of each device.
SIZES = (20, 150, 170, 190, 210)
SMALL = ["rounds=3", ROOM, "data.held_out_devices=1"]


@pytest.fixture
def folder(tmp_path):
    """Five devices, of which one has fewer rows than a window. The classes are a plane's sides."""
    rng = np.random.default_rng(0)
    for number, size in enumerate(SIZES):
        x = rng.normal(size=(size, 4)).astype(np.float32)
        place = tmp_path / "clinics" / f"clinic-{number}"
        place.mkdir(parents=True)
        np.save(place / "x.npy", x)
        np.save(place / "y.npy", (x[:, 0] + x[:, 1] > 0).astype(np.int64))
    return tmp_path / "clinics"


def fitted(folder, *settings):
    return scenario_file.override(scenario_for(None, folder), [*SMALL, *settings])


def stored(folder, *settings, **options):
    return simulate(
        fitted(folder, *settings), data_path=folder, **{"backend": "reference", **options}
    )


def test_folders_of_rows_are_fitted_and_learnt(folder):
    result = stored(folder)
    assert result.scenario.data.source == "stored"
    report = build_report(result)
    assert report["summary"]["global_accuracy"] > 0.9
    assert [device["examples"] for device in report["devices"]] == list(SIZES)
    assert report["devices"][1]["name"] == "clinic-1"


def test_all_rows_are_judged_by_and_not_those_of_one_window(folder):
    rng = np.random.default_rng(1)
    for place in folder.iterdir():  # labels that no model can know: shares of rows give counts
        np.save(place / "y.npy", rng.integers(0, 2, len(np.load(place / "y.npy"))))
    accuracy = stored(folder, "rounds=1").devices[4].accuracy_before
    judging = [n for n in range(33, SIZES[4]) if abs(accuracy * n - round(accuracy * n)) < 1e-9]
    assert judging and not any(abs(accuracy * n - round(accuracy * n)) < 1e-9 for n in range(1, 25))


def test_as_many_threads_as_one_likes(folder):
    one, two = (bits_of(stored(folder, threads=threads)) for threads in (1, 2))
    assert one == two


def test_rows_in_memory_train_in_windows_too():
    whole = run("fedavg", PLAIN, "data.min_examples=60")
    windows = run("fedavg", PLAIN, "data.min_examples=60", ROOM)
    assert windows.rounds[-1].global_accuracy > 0.5
    assert windows.bundle is not None and whole.bundle is not None
    assert windows.bundle.manifest.carry and not whole.bundle.manifest.carry
    assert [d.examples for d in windows.devices] == [d.examples for d in whole.devices]


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_run_in_windows_that_was_killed_goes_on(tmp_path, algorithm):
    whole = run(algorithm, PLAIN, ROOM)
    with pytest.raises(Killed):
        run(algorithm, PLAIN, ROOM, on_event=Killer(3), resume=tmp_path / "run")
    resumed = run(algorithm, PLAIN, ROOM, resume=tmp_path / "run")
    assert bits_of(whole) == bits_of(resumed)


def test_a_run_on_files_that_changed_is_not_resumed(folder, tmp_path):
    with pytest.raises(Killed):
        stored(folder, on_event=Killer(2), resume=tmp_path / "run")
    labels = np.load(folder / "clinic-4" / "y.npy")
    labels[-1] = 1 - labels[-1]  # beyond the rows that a run has in memory
    np.save(folder / "clinic-4" / "y.npy", labels)
    with pytest.raises(DelianError, match="data"):
        stored(folder, resume=tmp_path / "run")


def test_an_algorithm_that_needs_all_rows_at_once_is_refused_by_name():
    with pytest.raises(DelianError, match="Ditto cannot train on windows of rows"):
        run("ditto", PLAIN, ROOM)


def test_a_window_of_one_row_is_refused():
    with pytest.raises(DelianError, match="one row must be learnt from and one judged by"):
        scenario_file.override(scenario_file.load("digits"), ["data.rows_in_memory=1"])


def test_a_file_cut_short_is_named(folder):
    with (folder / "clinic-3" / "x.npy").open("r+b") as file:
        file.truncate(900)
    with pytest.raises(DelianError, match=r"clinic-3/x.npy declares 190 rows in .* has 900"):
        stored(folder)


def test_a_folder_that_is_no_device_is_named(folder):
    (folder / "notes").mkdir()
    with pytest.raises(DelianError, match="notes"):
        stored(folder)


def test_a_folder_without_devices_says_what_it_should_have(tmp_path):
    scenario = scenario_file.load("digits")
    scenario = scenario_file.with_source(scenario, "stored", {})
    (tmp_path / "empty").mkdir()
    with pytest.raises(DelianError, match="has 0 folders"):
        load_data(scenario, tmp_path / "empty")


def test_numbers_are_learnt_from_files(folder):
    for place in folder.iterdir():
        x = np.load(place / "x.npy")
        np.save(place / "y.npy", (x[:, 0] - 2 * x[:, 1]).astype(np.float64))
    result = stored(folder, "rounds=12")
    assert result.scenario.regression
    assert result.rounds[-1].global_r_squared > 0.8


def test_labels_beyond_those_of_the_first_rows_are_refused_by_name(folder):
    labels = np.load(folder / "clinic-4" / "y.npy")
    labels[-1] = 7
    np.save(folder / "clinic-4" / "y.npy", labels)
    with pytest.raises(DelianError, match=r"rows 208\.\.209: row 1 has a label"):
        stored(folder)
