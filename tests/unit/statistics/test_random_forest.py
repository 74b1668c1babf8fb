"""Random forests of masked sums: single trees are scikit-learn's, forests predict as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.statistics.methods.random_forest import RandomForest, RandomForestAnswer
from delian.core.statistics.question import Step
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError
from delian.core.statistics.trees import site_model
from delian.simulations.statistics.local_sites import LocalSites

datasets = pytest.importorskip("sklearn.datasets")


def loaded(name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A data set of scikit-learn as a table; values are f32, as trees take them."""
    found = getattr(datasets, f"load_{name}")()
    x = found.data.astype(np.float32).astype(float)
    names = tuple(f"f{i}" for i in range(x.shape[1]))
    return {**{n: x[:, i] for i, n in enumerate(names)}, "y": found.target.astype(float)}, names


def chosen(table: dict[str, Any], rows: Any) -> dict[str, Any]:
    return {name: values[rows] for name, values in table.items()}


def halves(table: dict[str, Any], seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    order = np.random.default_rng(seed).permutation(len(table["y"]))
    cut = 7 * len(order) // 10
    return chosen(table, order[:cut]), chosen(table, order[cut:])


def sites(table: dict[str, Any], **settings: Any) -> LocalSites:
    settings.setdefault("masked", False)
    return LocalSites([chosen(table, slice(k, None, 5)) for k in range(5)], **settings)


def matrix(table: dict[str, Any], names: tuple[str, ...]) -> Any:
    return np.stack([table[name] for name in names], 1)


ONE_TREE: dict[str, Any] = {
    "n_estimators": 1,
    "bootstrap": False,
    "max_features": 1.0,
    "max_bin": 600,
    "floor": 1,
    "max_depth": 6,
    "min_samples_leaf": 4,
}


def test_one_tree_of_all_rows_is_that_of_scikit_learn() -> None:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    for name, classes, depth in (("diabetes", 0, 6), ("wine", 3, 3), ("breast_cancer", 2, 3)):
        table, names = loaded(name)
        settings = {**ONE_TREE, "max_depth": depth}
        question = RandomForest("y", names, num_class=classes, **settings)
        answer: Any = sites(table, masked=name == "wine").answer(question)
        kind = DecisionTreeClassifier if classes else DecisionTreeRegressor
        judge = kind(max_depth=depth, min_samples_leaf=4, random_state=0)
        judge.fit(matrix(table, names), table["y"])
        assert answer.facts["leaves"] == judge.get_n_leaves()
        theirs = (judge.predict_proba if classes else judge.predict)(matrix(table, names))
        ours = answer.predict(table)
        if not classes:
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
        # Few rows of classes are parted in several ways of the same gain: the impurity is equal.
        square = np.square(ours).sum(), np.square(theirs).sum()
        np.testing.assert_allclose(*square, rtol=1e-6)


def test_forests_predict_as_well_as_those_of_scikit_learn() -> None:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    for name, classes, slack in (("breast_cancer", 2, 0.03), ("diabetes", 0, 0.06)):
        table, names = loaded(name)
        grown, judged = halves(table)
        question = RandomForest("y", names, num_class=classes, n_estimators=40, max_depth=6, seed=1)
        answer: Any = sites(grown).answer(question)
        kind = RandomForestClassifier if classes else RandomForestRegressor
        judge = kind(40, max_depth=6, min_samples_leaf=5, oob_score=True, random_state=0)
        theirs = judge.fit(matrix(grown, names), grown["y"]).score(
            matrix(judged, names), judged["y"]
        )
        found = answer.predict(judged)
        if classes:
            ours = (found.argmax(axis=1) == judged["y"]).mean()
        else:
            ours = 1 - np.square(found - judged["y"]).mean() / judged["y"].var()
        assert abs(ours - theirs) < slack
        assert abs(answer.out_of_bag - judge.oob_score_) < slack
        if not classes:
            gains = {row[0]: row[1] for row in answer.tables[0].rows}
            share = np.array([gains.get(n, 0.0) for n in names])
            assert np.corrcoef(share, judge.feature_importances_)[0, 1] > 0.95


def mixed(n: int = 500) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 20, n).astype(float), rng.normal(size=n)
    y = np.where(a > 9, 3.0, -1.0) + b / 10
    a[rng.random(n) < 0.3] = np.nan
    return {"a": a, "b": b, "sort": np.where(y > 1, "up", "down"), "y": y}


def test_missing_values_go_where_their_rows_belong() -> None:
    table = mixed()
    table["y"] = np.where(np.isnan(table["a"]), 3.0, table["y"])
    question = RandomForest("y", ("a", "b"), **ONE_TREE)
    answer: Any = sites(table).answer(question)
    found = answer.predict({"a": np.array([np.nan, 3.0, 15.0]), "b": np.zeros(3)})
    np.testing.assert_allclose(found, [3.0, -1.0, 3.0], atol=0.1)


def test_text_targets_and_features_are_learned_under_masks() -> None:
    table = mixed()
    table["half"] = np.where(table["b"] > 0, "right", "left")
    question = RandomForest(
        "sort",
        ("a", "b", "half"),
        classes=("down", "up"),
        categories={"half": ("left", "right")},
        n_estimators=8,
        max_depth=3,
    )
    answer: Any = sites(table, masked=True).answer(question)
    assert answer.classes == ("down", "up") and answer.facts["sites"] == 5
    assert answer.feature_names == ("a", "b", "half[left]", "half[right]")
    assert answer.out_of_bag > 0.7
    np.testing.assert_allclose(answer.predict(table).sum(axis=1), 1.0, atol=1e-6)
    assert "accuracy out of bag" in str(answer)


def test_a_site_that_drops_out_inside_the_forest_is_left_out_of_all_trees() -> None:
    table = mixed()
    gone: set[int] = set()
    question = RandomForest("y", ("a", "b"), n_estimators=5, max_depth=4, floor=1)

    def watch(step: Step) -> None:
        if step.name == "level" and len(step.arrays["nodes"]) > 5:
            gone.add(2)

    answer: Any = sites(table, silent=lambda _: gone).answer(question, on_step=watch)
    four = [chosen(table, slice(k, None, 5)) for k in range(5) if k != 2]
    alone: Any = LocalSites(four, masked=False).answer(question)
    assert answer.facts["rows"] == 400 and "came or went" in answer.notes[-1]
    # Bins are of five sites and of four; the draws of each site are its own and the same.
    assert abs(answer.out_of_bag - alone.out_of_bag) < 0.05


@pytest.mark.parametrize("kept_max", [site_model.LEAVES_KEPT_MAX, 10])
def test_a_lost_cache_changes_no_number(kept_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_model, "LEAVES_KEPT_MAX", kept_max)
    table = mixed()
    steps: list[Step] = []
    question = RandomForest("y", ("a", "b"), n_estimators=4, max_depth=4)
    sites(table).answer(question, on_step=steps.append)
    site = Table.of(chosen(table, slice(0, None, 5)))
    kept: dict[str, Any] = {}
    first = [question.measure(site, step, kept) for step in steps]
    back = [question.measure(site, step, kept) for step in reversed(steps)][::-1]
    for step, here, there in zip(steps, first, back, strict=True):
        for name, value in question.measure(site, step, {}).items():
            np.testing.assert_array_equal(value, here[name])
            np.testing.assert_array_equal(value, there[name])


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_forest_loads_in_xgboost(classes: int, tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    table = mixed(300)
    table["y"] = np.digitize(table["y"], [-1, 2.9][: classes - 1]) if classes else table["y"]
    table["y"] = table["y"].astype(float)
    question = RandomForest("y", ("a", "b"), num_class=classes, n_estimators=7, max_depth=4)
    answer: Any = sites(table).answer(question)
    answer.save_model(tmp_path / "forest.json")
    booster = xgboost.Booster(model_file=str(tmp_path / "forest.json"))
    x = xgboost.DMatrix(matrix(table, ("a", "b")), feature_names=["a", "b"])
    np.testing.assert_allclose(booster.predict(x), answer.predict(table), rtol=1e-5, atol=1e-6)
    assert answer.to_dict()["model"]["version"] == [3, 2, 0]


def test_no_leaf_has_fewer_rows_than_it_must() -> None:
    table = mixed(300)
    question = RandomForest("y", ("a", "b"), n_estimators=1, bootstrap=False, min_samples_leaf=20)
    answer = sites(table).answer(question)
    assert isinstance(answer, RandomForestAnswer)
    columns = np.stack(answer.reading.columns(Table.of(table)))
    rows = np.bincount(answer.forest.leaves(columns, 0))
    assert rows[rows > 0].min() >= 20


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_depth": 40}, "max_depth"),
        ({"n_estimators": 0}, "n_estimators"),
        ({"num_class": 1}, "1 classes"),
        ({"num_class": 3}, "does not take"),
        ({"features": ()}, "need features"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], said: str) -> None:
    question = RandomForest(**{"target": "y", "features": ("a", "b"), **settings})
    with pytest.raises(StatisticsError, match=said):
        sites(mixed(60)).answer(question)
