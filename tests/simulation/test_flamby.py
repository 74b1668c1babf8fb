"""The benchmark against FLamby, on synthetic rows in the form of its repository."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STRATEGIES = ("FedAvg", "FedProx", "Scaffold", "FedAdam", "FedYogi", "FedAdagrad")
FEATURES = 39


@pytest.fixture(scope="module")
def flamby() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import flamby as main
        import flamby_data as data
        import flamby_strategies as strategies
    finally:
        sys.path.remove(str(BENCHMARKS))
    return SimpleNamespace(main=main, data=data, strategies=strategies)


def write(path: Path, rows: list[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with 240 patients at 6 centres."""
    root, rng = tmp_path_factory.mktemp("flamby"), np.random.default_rng(0)
    place = root / "flamby" / "datasets" / "fed_tcga_brca"
    names = [f"f{k}" for k in range(FEATURES)]
    x = rng.normal(size=(240, FEATURES))
    days = np.ceil(rng.exponential(300 * np.exp(-x[:, 0])))
    event = rng.integers(0, 2, 240)
    rows = [[f"P{i}", *x[i].tolist(), event[i], days[i]] for i in range(240)]
    write(place / "brca.csv", [["pid", *names, "E", "T"], *rows])
    kinds = ["test" if i % 5 == 0 else "train" for i in range(240)]
    split = [[f"P{i}", kinds[i], f"{kinds[i]}_{i % 6}"] for i in range(238)]
    path = place / "dataset_creation_scripts" / "train_test_split.csv"
    write(path, [["pid", "fold", "fold2"], *split])
    given = {"learning_rate": 0.05, "server_learning_rate": 0.1, "mu": 0.1}
    given |= {"beta1": 0.9, "beta2": 0.999, "tau": 1e-8}
    config = {"strategies": dict.fromkeys(STRATEGIES, given)}
    (root / "flamby" / "config_tcga_brca.json").write_text(json.dumps(config), "utf-8")
    for seed in (42, 43):
        methods = ["Pooled Training", *(f"{s}100" for s in STRATEGIES)]
        result = [[m, f"client_test_{k}", seed, 0.1 * k] for m in methods for k in range(6)]
        result += [[m, "Pooled Test", seed, 0.9] for m in methods]
        path = root / "flamby" / "results" / "results_benchmark_fed_tcga_brca" / f"{seed}.csv"
        write(path, [["Method", "Test", "seed", "Metric"], *result])
    return root


def test_patients_are_at_their_centres_and_results_are_means_over_them(
    flamby: Any, folder: Path
) -> None:
    suite = flamby.data.brca(folder)
    assert [len(c.y) + len(c.test_y) for c in suite.centres] == [40, 40, 40, 40, 39, 39]
    assert len(suite.pooled.y) == sum(len(c.y) for c in suite.centres)
    assert suite.published["FedAvg"] == pytest.approx((0.25, 0.25))
    assert suite.published.keys() == {"Pooled", *STRATEGIES}
    assert suite.rounds == 5


def theirs(scores: Any, event: Any, time: Any) -> float:
    """Their loss, as its loop computes it, for rows of different times."""
    order = np.argsort(-time)
    scores, event = scores[order], event[order]
    losses = [np.log(np.exp(scores[: i + 1] - scores[i]).sum()) for i in range(len(scores))]
    return float(np.mean(np.array(losses) * event))


def test_the_loss_of_a_batch_is_theirs(flamby: Any) -> None:
    rng = np.random.default_rng(1)
    time, event = rng.permutation(8) * 1.0, rng.integers(0, 2, 8)
    x = rng.normal(size=(8, 3)).astype(np.float32)
    model = flamby.strategies.Linear(np.array([0.5, -1.0, 2.0], np.float32), np.float32(0.3))
    task = flamby.strategies.Survival("s", lambda key: model, None)
    y = flamby.data.times_of(event, time).astype(np.float32)
    batch = SimpleNamespace(x=x, y=y, weight=np.ones(8, np.float32), key=None)
    wanted = theirs(x @ model.weight, event, time)
    assert float(task.loss(model, batch)) == pytest.approx(wanted, rel=1e-5)
    padded = SimpleNamespace(
        x=np.concatenate([x, x]),
        y=np.concatenate([y, 99 + y]),
        weight=np.repeat([1.0, 0.0], 8).astype(np.float32),
        key=None,
    )
    assert float(task.loss(model, padded)) == pytest.approx(wanted, rel=1e-5)


def slope(w: Any, x: Any, y: Any) -> Any:
    """Of the loss over all rows."""
    total, time = np.zeros_like(w), np.abs(y)
    for i in np.flatnonzero(y > 0):
        at_risk = time >= time[i]
        share = np.exp(x[at_risk] @ w)
        total += share @ x[at_risk] / share.sum() - x[i]
    return total / len(y)


def test_a_round_of_whole_batches_is_gradient_descent_and_a_mean(
    flamby: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = flamby.data.brca(folder)
    whole = flamby.data.Suite(**{**vars(suite), "batch": 64, "rounds": 2})
    monkeypatch.setattr(flamby.strategies, "UPDATES", 4)
    scores = flamby.strategies.strategy(whole, "FedAvg", 42)
    w = flamby.strategies.first_model(FEATURES, 42).weight.astype(np.float64)
    rows = np.array([len(c.y) for c in suite.centres])
    for _ in range(2):
        moved = []
        for centre in suite.centres:
            own = w.copy()
            for _ in range(4):
                own -= 0.05 * slope(own, centre.x, centre.y)
            moved.append(own - w)
        w = w + rows @ np.array(moved) / rows.sum()
    x = suite.centres[0].test_x
    found = scores(x) - scores(x[:1])
    np.testing.assert_allclose(found, x @ w - x[:1] @ w, atol=2e-4)


def test_the_index_is_that_of_lifelines(flamby: Any) -> None:
    lifelines = pytest.importorskip("lifelines")
    rng = np.random.default_rng(2)
    time, event = rng.integers(1, 30, 200) * 1.0, rng.integers(0, 2, 200)
    scores = np.round(rng.normal(size=200), 1)
    wanted = lifelines.utils.concordance_index(time, -scores, event)
    assert flamby.main.c_index(flamby.data.times_of(event, time), scores) == pytest.approx(wanted)


def test_results_and_targets_of_each_method(
    flamby: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = flamby.data.brca(folder)
    quick = flamby.data.Suite(**{**vars(suite), "rounds": 1, "pooled_epochs": 2})
    monkeypatch.setattr(flamby.strategies, "UPDATES", 3)
    (one,) = flamby.main.measured(quick, ["FedAdam"], 1)
    assert one["published"] == 0.25 and 0 <= one["mean"] <= 1
    made = flamby.main.target({**one, "published deviation": 0.01, "mean": 0.27})
    assert made["goal"] == 0.01 and made["measured"] == 0.02 and not made["met"]


def test_the_exact_fit_orders_patients_by_risk(flamby: Any, folder: Path) -> None:
    suite = flamby.data.brca(folder)
    assert flamby.main.judged(suite, flamby.main.exact(suite)) > 0.6
