"""The benchmark of personal adapters, on a made play and a very small transformer."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"base_rounds": 1, "rounds": 1, "methods": ["fedavg", "fomaml"]}


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        made = importlib.import_module("personal_adapters")
    finally:
        sys.path.remove(str(BENCHMARKS))
    made.WIDTH, made.DEPTH, made.HEADS, made.RANK = 8, 1, 2, 2
    made.LOCAL_STEPS, made.CHOOSING_ROLES, made.RATES, made.STEPS = 1, 2, (0.1, 1e30), (0, 1, 2)
    return made


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-six roles of a thousand characters, of which fourteen are held out."""
    rng, words = np.random.default_rng(0), ["hark", "the", "king", "is", "here", "no", "more"]
    blocks = [f"R{k}:\n{' '.join(rng.choice(words, 300))[:1100]}" for k in range(26)]
    path = tmp_path_factory.mktemp("play") / "play.txt"
    path.write_text("\n\n".join(blocks) + "\n\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "new"


@pytest.fixture(scope="module")
def seed(bench: Any, play: Path, kept: Path) -> Any:
    return bench.one_seed(1, play, SIZES, bench.Keep(kept), lambda words: None)


@pytest.fixture(scope="module")
def model(bench: Any, play: Path, kept: Path, seed: Any) -> Any:
    """The base of that seed with adapters."""
    return bench.adapted_base(1, play, 1, bench.Keep(kept))[1]


def test_every_held_out_role_is_judged_after_each_number_of_steps(bench: Any, seed: Any) -> None:
    assert list(seed["found"]) == ["none", "fedavg", "fomaml"]
    for rows in seed["found"].values():
        assert [row["steps"] for row in rows] == [0, 1, 2]
        assert all(len(row["accuracy"]) == len(row["loss"]) == 14 for row in rows)
        assert rows[1]["rate"] == rows[2]["rate"] == 0.1  # the other one comes to no number


def test_the_first_figure_is_the_shared_model_s_as_a_run_judges_it(
    bench: Any, play: Path, seed: Any, model: Any
) -> None:
    """Adapters that were not trained change nothing, and the run has a program of its own."""
    assert np.mean(seed["found"]["none"][0]["accuracy"]) == pytest.approx(seed["base"], abs=1e-6)
    run = bench.simulated(model, bench.METHODS["fedavg"], 1, 1, play)
    accuracy = run.summary["held_out"]["global_accuracy"]
    assert np.mean(seed["found"]["fedavg"][0]["accuracy"]) == pytest.approx(accuracy, abs=1e-6)


def test_a_step_lowers_the_loss_of_the_rows_that_it_is_on(
    bench: Any, play: Path, model: Any
) -> None:
    parts, held_out = bench.dl.adapters.split(model), bench.roles(1, play)[0]
    rows = held_out[0].support
    path = bench.Adaptation(model).path(
        parts.trained, parts.frozen, bench.Role(rows, rows), 0.1, (0, 1, 2)
    )
    losses = [loss for _, loss in path]
    assert losses[0] > losses[1] > losses[2]


def test_what_is_kept_is_not_run_again(
    bench: Any, play: Path, kept: Path, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "simulated", lambda *given: pytest.fail("it is trained again"))
    again = bench.one_seed(1, play, SIZES, bench.Keep(kept), lambda words: None)
    assert json.dumps(again) == json.dumps(seed)


def test_differences_are_paired_by_role(bench: Any) -> None:
    def run(base: list[float], ours: list[float]) -> Any:
        def rows(values: list[float]) -> Any:
            return [{"accuracy": values, "loss": [1 - v for v in values]}] * 3

        return {"found": {"none": rows(base), "fedavg": rows(base), "fomaml": rows(ours)}}

    runs = [run([0.1, 0.5], [0.2, 0.4]), run([0.3, 0.3], [0.6, 0.4])]
    one = next(
        row
        for row in bench.compared(runs)
        if (row["method"], row["steps"], row["figure"]) == ("fomaml", 1, "accuracy")
    )
    assert one["difference"] == pytest.approx(0.1) and one["by_seed"] == pytest.approx([0.0, 0.2])
    assert (one["better_roles"], one["roles"]) == (3, 4)
    # Differences 0.1, -0.1, 0.3, 0.1: s = 0.1633, t(3) = 3.182; of seeds 0, 0.2: t(1) = 12.706.
    assert one["margin_roles"] == pytest.approx(3.182 * 0.163299 / 2, rel=1e-4)
    assert one["margin_seeds"] == pytest.approx(12.706 * 0.141421 / 2**0.5, rel=1e-4)
    assert [target["met"] for target in bench.targets(runs)] == [True]
