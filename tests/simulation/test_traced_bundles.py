"""What was traced once is read the next time, and is the same to the byte."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from delian.core.learning import algorithm_registry
from delian.simulations.resume import traced_bundles
from delian.simulations.runs.stage import Stage
from delian.simulations.scenario import recipes, scenario_file
from delian.simulations.scenario.datasets import load_data

SMALL = ["data.support=4", "data.query=2", "fleet.devices=4", "round.cohort=2", "model.hidden=[3]"]


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(traced_bundles, "folder", lambda: tmp_path / "traced")
    return tmp_path / "traced"


def stage_of(*settings):
    scenario = scenario_file.override(
        scenario_file.load("synthetic-mlp"), ["evaluation.devices=2", *SMALL, *settings]
    )
    return Stage(scenario, None, None, "reference", lambda event: None)


def same(one, other):
    return one.bundle.to_bytes() == other.bundle.to_bytes() and np.array_equal(
        one.first, other.first
    )


def test_a_second_run_has_the_first_one_s_bundle_and_weights(folder, monkeypatch):
    first = stage_of()
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(Stage, "_build", lambda self: pytest.fail("it is traced again"))
    assert same(first, stage_of())


def test_what_was_read_is_written_as_it_would_be_made_anew(folder):
    stage_of()
    read = stage_of().bundle
    assert set(read.written) == set(read.programs)
    assert replace(read, written={}).to_bytes() == read.to_bytes()
    other = {**read.programs, "infer": replace(read.programs["infer"], name="other")}
    changed = replace(read, programs=other)
    assert changed.to_bytes() == replace(changed, written={}).to_bytes() != read.to_bytes()


def test_another_setting_is_another_bundle(folder):
    stage_of()
    stage_of("algorithm.learning_rate=0.2")
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "setting",
    [
        *("rounds=9", "round.timeout_ms=9000", "fleet.edges=2", "fleet.dropout=0.5"),
        *("evaluation.every=3", "network.device_edge.loss=0.1", "description=other"),
    ],
)
def test_a_run_that_differs_in_nothing_that_is_traced_has_the_bundle(folder, setting):
    first, second = stage_of(), stage_of(setting)
    assert len(list(folder.iterdir())) == 1
    assert same(first, second) and second._build().to_bytes() == first._build().to_bytes()


def test_rounds_count_where_noise_is_planned_for_them(folder):
    noise = ["privacy.aggregation=secure", "privacy.noise=distributed", "privacy.epsilon=500"]
    noise += ["fleet.devices=9", "round.cohort=6", "privacy.delta=1e-5"]
    stage_of(*noise)
    stage_of(*noise, "rounds=9")
    assert len(list(folder.iterdir())) == 2


class Recorder:
    """Stands for an object, and notes what is read of it."""

    def __init__(self, of):
        self.__dict__.update(of=of, read=set())

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self.of, name)


@pytest.mark.parametrize("name", ["synthetic-mlp", "digits"])
def test_all_that_a_trace_reads_is_in_its_name(name):
    """What `recipes.what_is_read` gives is enough: nothing else of a scenario is looked at."""
    scenario = scenario_file.load(name)
    data = Recorder(load_data(scenario))
    for algorithm in algorithm_registry.names():
        chosen = Recorder(scenario_file.with_algorithm(scenario, algorithm))
        chosen.__dict__["round"] = Recorder(chosen.of.round)
        recipes.task(chosen, data)
        recipes.algorithm(chosen, data)
        known = {"name", "data", "model", "algorithm", "partial", "regression"}
        assert chosen.read <= known
        assert chosen.round.read <= {"cohort"} and data.read <= {
            "classes",
            "devices",
            "scaling",
            "tokens",
            "training",
        }


def test_a_damaged_file_is_traced_again(folder):
    first = stage_of()
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    assert same(first, stage_of())
    assert same(first, stage_of())


def test_of_many_the_ones_not_used_for_longest_go(folder, monkeypatch):
    monkeypatch.setattr(traced_bundles, "KEPT_MAX", 2)
    stage_of()
    (oldest,) = folder.iterdir()
    os.utime(oldest, (1, 1))
    stage_of("seed=2")
    stage_of("seed=3")
    assert len(list(folder.iterdir())) == 2 and not oldest.exists()


def test_a_folder_that_cannot_be_written_is_no_fault(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(traced_bundles, "folder", lambda: tmp_path / "file" / "traced")
    assert same(stage_of(), stage_of())


def test_an_algorithm_of_the_user_s_own_is_not_kept(folder):
    from delian.core.learning import FedAvg
    from delian.core.learning.nn import sgd

    scenario = scenario_file.override(scenario_file.load("synthetic-mlp"), SMALL)
    Stage(scenario, FedAvg(local=sgd(0.1), server=sgd(1.0)), None, "reference", lambda event: None)
    assert not folder.exists()
