"""Boosted trees of masked sums are split for split those of XGBoost on pooled rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.statistics.building import build, finder
from delian.core.statistics.methods.boosted_trees import BoostedTrees
from delian.core.statistics.question import Step
from delian.core.statistics.request import Rows
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError
from delian.simulations.statistics.local_sites import LocalSites

xgboost = pytest.importorskip("xgboost")

NAMES = tuple(f"f{i}" for i in range(6))
OBJECTIVES = ["reg:squarederror", "binary:logistic", "multi:softprob", "count:poisson"]


def rows(
    objective: str = "reg:squarederror",
    n: int = 1500,
    missing: float = 0.0,
    seed: int = 1,
    levels: int = 60,
) -> dict[str, Any]:
    """Features of several units and few values, and a target that depends on three of them."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, levels, (n, 6)).astype(float)
    x[:, 0] = np.round(x[:, 0] * 0.37 - 3, 2)
    x[:, 1] *= 1e6
    signal = np.sin(x[:, 0]) + 0.05 * x[:, 2] * (x[:, 3] > 10) + rng.normal(size=n) / 2
    x[rng.random(x.shape) < missing] = np.nan
    target = {
        "reg:squarederror": signal,
        "binary:logistic": signal > 1,
        "multi:softprob": np.digitize(signal, [0, 1, 2]),
        "count:poisson": rng.poisson(np.exp(signal / 2)),
    }[objective]
    return {**{name: x[:, i] for i, name in enumerate(NAMES)}, "y": target.astype(float)}


def split(table: dict[str, Any], sites: int = 5) -> list[dict[str, Any]]:
    return [{name: v[k::sites] for name, v in table.items()} for k in range(sites)]


def chosen(table: dict[str, Any], keep: Any) -> dict[str, Any]:
    return {name: values[keep] for name, values in table.items()}


def matrix(table: dict[str, Any], keep: Any = slice(None)) -> Any:
    x = np.stack([table[name] for name in NAMES], 1)[keep]
    return xgboost.DMatrix(x, table["y"][keep], feature_names=list(NAMES))


def pooled(table: dict[str, Any], rounds: int, **settings: Any) -> Any:
    if settings.get("objective") == "multi:softprob":
        settings["num_class"] = 4
    return xgboost.train({"tree_method": "hist", **settings}, matrix(table), rounds)


def ask(table: dict[str, Any], sites: Any = None, **settings: Any) -> Any:
    if settings.get("objective") == "multi:softprob":
        settings["num_class"] = 4
    question = BoostedTrees("y", NAMES, **{"floor": 1, **settings})
    return (sites or LocalSites(split(table), masked=False)).answer(question)


def trees(booster: Any) -> list[dict[str, Any]]:
    said = booster if isinstance(booster, dict) else json.loads(booster.save_raw("json"))
    found: list[dict[str, Any]] = said["learner"]["gradient_booster"]["model"]["trees"]
    return found


def assert_same_trees(answer: Any, booster: Any, table: dict[str, Any]) -> None:
    """Equal but for thresholds outside all values, where versions of XGBoost differ."""
    ours, theirs = trees(answer.to_xgboost()), trees(booster)
    assert len(ours) == len(theirs)
    for mine, its in zip(ours, theirs, strict=True):
        for name in ("left_children", "right_children", "split_indices", "default_left"):
            assert mine[name] == its[name], name
        inner = np.array(its["left_children"]) >= 0
        mine_at, its_at = (np.array(t["split_conditions"], np.float32) for t in (mine, its))
        for node in np.flatnonzero(inner & (mine_at != its_at)):
            values = table[answer.feature_names[its["split_indices"][node]]]
            values = values[~np.isnan(values)]
            pair = np.array([mine_at[node], its_at[node]])
            assert (pair > values.max()).all() or (pair <= values.min()).all()
        np.testing.assert_allclose(mine_at[~inner], its_at[~inner], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_twenty_trees_of_depth_six_are_those_of_xgboost(objective: str, missing: float) -> None:
    n = 500 if objective == "multi:softprob" else 1000
    table = rows(objective, n=n, missing=missing, levels=40)
    answer = ask(table, objective=objective, rounds=20)
    booster = pooled(table, 20, objective=objective)
    assert_same_trees(answer, booster, table)
    np.testing.assert_allclose(
        answer.predict(table), booster.predict(matrix(table)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("objective", OBJECTIVES[:3])
def test_masks_change_nothing(objective: str) -> None:
    table = rows(objective, missing=0.1, n=800, levels=20)
    answer = ask(table, LocalSites(split(table)), objective=objective, rounds=4)
    assert answer.facts["sites"] == 5 and answer.facts["rows"] == 800
    assert_same_trees(answer, pooled(table, 4, objective=objective), table)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_weights_are_those_of_xgboost(objective: str) -> None:
    table = rows(objective, n=800, missing=0.1)
    weights = np.random.default_rng(0).integers(0, 5, 800) / 2
    question = BoostedTrees(
        "y", NAMES, objective, rounds=5, weights="w", num_class=4, floor=1, held_out=0.2
    )
    sites = split({**table, "w": weights})
    answer: Any = LocalSites(sites, masked=False).answer(question)
    judging = np.zeros(800, bool)
    for k, site in enumerate(sites):
        judging[k::5] = question._read(Table.of(site), {}).held_out
    known: dict[str, Any] = {}
    both = []
    for keep in (~judging, judging):
        both.append(matrix(table, keep))
        both[-1].set_weight(weights[keep])
    settings = {"num_class": 4} if objective == "multi:softprob" else {}
    booster = xgboost.train(
        {"tree_method": "hist", "objective": objective, **settings},
        both[0],
        5,
        evals=[(both[0], "a"), (both[1], "b")],
        evals_result=known,
        verbose_eval=False,
    )
    assert_same_trees(answer, booster, chosen(table, ~judging))
    for side, name in enumerate("ab"):
        theirs = next(iter(known[name].values()))
        np.testing.assert_allclose(answer.losses[1:, side], theirs, rtol=1e-5)


def test_the_label_one_is_weighted_as_by_xgboost() -> None:
    table = rows("binary:logistic", n=800)
    settings: dict[str, Any] = {"objective": "binary:logistic", "scale_pos_weight": 3.5}
    answer = ask(table, rounds=6, **settings)
    assert_same_trees(answer, pooled(table, 6, **settings), table)


def test_a_site_without_labels_adds_nothing() -> None:
    for objective in OBJECTIVES:
        table = rows(objective, n=300)
        table["y"][2::5] = np.nan
        answer = ask(table, objective=objective, rounds=2)
        assert answer.facts["rows"] == 240 and answer.facts["rows left out"] == 60
        keep = chosen(table, ~np.isnan(table["y"]))
        assert_same_trees(answer, pooled(keep, 2, objective=objective), keep)


def test_values_that_never_repeat_are_learned_as_well_as_by_xgboost() -> None:
    rng = np.random.default_rng(8)
    table: dict[str, Any] = {name: rng.normal(size=4000) for name in NAMES}
    table["f1"] = np.exp(3 * table["f1"])
    table["y"] = np.sin(2 * table["f0"]) + np.log(table["f1"]) / 3 * (table["f2"] > 0)
    table["y"] += rng.normal(size=4000) / 4
    grown, judged = chosen(table, slice(3000)), chosen(table, slice(3000, None))
    answer = ask(grown, rounds=20, max_depth=4, floor=5)
    ours = np.square(answer.predict(judged) - judged["y"]).mean()
    booster = pooled(grown, 20, max_depth=4)
    theirs = np.square(booster.predict(matrix(judged)) - judged["y"]).mean()
    assert ours < 1.03 * theirs
    assert "6 features have bins of several values" in answer.notes[0]


def test_declared_values_need_no_search_and_give_the_same_trees() -> None:
    table = rows(n=600, levels=30)
    for name in ("f0", "f1"):
        table[name] = np.round(table["f2"] + 3)
    steps: list[str] = []
    settings: dict[str, Any] = {"rounds": 3, "floor": 1}
    values = dict.fromkeys(NAMES, (-2, 40))
    question = BoostedTrees("y", NAMES, values=values, **settings)
    answer: Any = LocalSites(split(table), masked=False).answer(
        question, on_step=lambda step: steps.append(step.name)
    )
    assert "bins" not in steps and not answer.notes
    assert_same_trees(answer, pooled(table, 3), table)
    few: Any = ask(table, values={"f3": (0, 9)}, **settings)
    outside = int((table["f3"] > 9).sum())
    assert f"{outside} rows have a `f3` that was not declared" in few.notes[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"reg_alpha": 2.0, "reg_lambda": 0.5},
        {"gamma": 0.5, "eta": 0.1},
        {"min_child_weight": 8.0},
        {"monotone_constraints": {"f2": 1, "f0": -1}},
        {"max_delta_step": 0.2},
        {"max_depth": 9},
        {"base_score": 0.25},
    ],
    ids=lambda settings: next(iter(settings)),
)
@pytest.mark.parametrize("objective", OBJECTIVES[:2])
def test_settings_are_those_of_xgboost(objective: str, settings: dict[str, Any]) -> None:
    table = rows(objective, missing=0.1, n=800)
    answer = ask(table, objective=objective, rounds=6, **settings)
    assert_same_trees(answer, pooled(table, 6, objective=objective, **settings), table)


@pytest.mark.parametrize("levels", [2, 3, 256])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e9])
def test_few_and_many_values_and_targets_of_any_unit(levels: int, unit: float) -> None:
    table = rows(n=2500, levels=levels)
    table["y"] = table["y"] * unit
    answer = ask(table, rounds=3)
    ours, theirs = answer.predict(table), pooled(table, 3).predict(matrix(table))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6 * unit)


def test_a_site_that_drops_out_inside_a_tree_begins_that_tree_again() -> None:
    table = rows(n=1000, missing=0.1, levels=30)
    gone: set[int] = set()

    def watch(step: Step) -> None:
        third = step.name == "level" and step.arrays["round"][0] == 3
        if third and len(step.arrays["open_nodes"]) > 3:
            gone.add(3)

    sites = LocalSites(split(table), silent=lambda _: gone)
    question = BoostedTrees("y", NAMES, rounds=6, floor=1)
    answer: Any = sites.answer(question, on_step=watch)
    # Three rounds on all rows, three on those of four sites: XGBoost continued on these.
    first = pooled(table, 3)
    four = np.arange(1000) % 5 != 3
    booster = xgboost.train({"tree_method": "hist"}, matrix(table, four), 3, xgb_model=first.copy())
    assert_same_trees(answer, booster, table)
    assert "began again" in answer.notes[0] and answer.facts["rows"] == 800


def test_a_lost_cache_and_hostile_orders_of_steps_change_no_number() -> None:
    table = rows("multi:softprob", n=300, missing=0.2)
    steps: list[Step] = []
    question = BoostedTrees(
        "y", NAMES, "multi:softprob", rounds=3, num_class=4, subsample=0.7, held_out=0.2, floor=1
    )
    LocalSites(split(table), masked=False).answer(question, on_step=steps.append)
    site = Table.of(split(table)[0])
    kept: dict[str, Any] = {}
    first = [question.measure(site, step, kept) for step in steps]
    back = [question.measure(site, step, kept) for step in reversed(steps)][::-1]
    for step, here, there in zip(steps, first, back, strict=True):
        alone = question.measure(site, step, {})
        for name, value in alone.items():
            np.testing.assert_array_equal(value, here[name])
            np.testing.assert_array_equal(value, there[name])


def test_the_exported_model_loads_in_xgboost_and_says_nothing_of_rows(tmp_path: Path) -> None:
    table = rows("multi:softprob", missing=0.1)
    for objective in OBJECTIVES:
        table = rows(objective, n=500, missing=0.1)
        answer = ask(table, objective=objective, rounds=3)
        answer.save_model(tmp_path / "model.json")
        booster = xgboost.Booster(model_file=str(tmp_path / "model.json"))
        np.testing.assert_allclose(
            answer.predict(table), booster.predict(matrix(table)), rtol=1e-6, atol=1e-6
        )
        assert booster.feature_names == list(NAMES)
        for tree in trees(answer.to_xgboost()):
            assert set(tree["sum_hessian"]) == {0.0}
            inner = np.array(tree["left_children"]) >= 0
            assert not np.array(tree["base_weights"])[inner].any()
        gains = booster.get_score(importance_type="gain")
        for name, _, mean, splits in answer.tables[0].rows:
            assert gains[name] == pytest.approx(mean, rel=1e-5)
            assert booster.get_score(importance_type="weight")[name] == splits


def test_early_stopping_ends_where_xgboost_ends() -> None:
    table = rows("binary:logistic", n=1500)
    settings: dict[str, Any] = {"objective": "binary:logistic", "eta": 0.5, "seed": 3}
    question = BoostedTrees(
        "y", NAMES, rounds=60, held_out=0.25, early_stopping_rounds=4, floor=1, **settings
    )
    answer: Any = LocalSites(split(table), masked=False).answer(question)
    # The rows that each site held out, which only the site knows.
    judging = np.zeros(1500, bool)
    for k, site in enumerate(split(table)):
        judging[k::5] = question._read(Table.of(site), {}).held_out
    settings.pop("seed")
    record: dict[str, Any] = {}
    booster = xgboost.train(
        {"tree_method": "hist", **settings},
        matrix(table, ~judging),
        60,
        evals=[(matrix(table, judging), "judging")],
        early_stopping_rounds=4,
        evals_result=record,
        verbose_eval=False,
    )
    assert answer.facts["rounds"] == booster.best_iteration + 1
    assert answer.facts["rows held out"] == judging.sum()
    losses = record["judging"]["logloss"]
    np.testing.assert_allclose(answer.losses[1:, 1], losses[: len(answer.losses) - 1], atol=1e-5)
    assert answer.plots[0].series["rows held out"]["y"] == answer.losses[:, 1].tolist()


def test_subsampling_and_columns_drawn_learn_nearly_as_well() -> None:
    table = rows(n=600)
    whole = ask(table, rounds=12).facts["rmse"]
    drawn = ask(table, rounds=12, subsample=0.6, colsample_bytree=0.67, seed=5)
    assert drawn.facts["rmse"] < 1.6 * whole
    again = ask(table, rounds=12, subsample=0.6, colsample_bytree=0.67, seed=5)
    np.testing.assert_array_equal(drawn.predict(table), again.predict(table))
    for tree in trees(drawn.to_xgboost()):
        inner = np.array(tree["left_children"]) >= 0
        assert len(set(np.array(tree["split_indices"])[inner].tolist())) <= 4


def test_text_is_learned_by_its_categories() -> None:
    table = rows(n=600, levels=5)
    table["sort"] = np.where(table["f2"] > 2, "high", "low")
    table["sort"][:30] = ""
    table["who"] = np.where(table["y"] > 1, "yes", "no")
    question = BoostedTrees(
        "who",
        ("sort", "f0"),
        "binary:logistic",
        rounds=3,
        classes=("no", "yes"),
        categories={"sort": ("low", "high")},
    )
    answer: Any = LocalSites(split(table), masked=False).answer(question)
    assert answer.feature_names == ("sort[low]", "sort[high]", "f0")
    x = np.stack(
        [np.where(table["sort"] == "", np.nan, table["sort"] == v) for v in ("low", "high")]
        + [table["f0"]],
        1,
    )
    booster = xgboost.train(
        {"objective": "binary:logistic", "tree_method": "hist"},
        xgboost.DMatrix(x, (table["y"] > 1).astype(float)),
        3,
    )
    assert_same_trees(answer, booster, dict(zip(answer.feature_names, x.T, strict=True)))


def test_a_formula_finds_the_categories_of_text() -> None:
    table = rows(n=400, levels=5)
    table["sort"] = np.where(table["f2"] > 2, "high", "low")
    sites = LocalSites(split(table), masked=False)
    find = finder(sites.answer, Rows(), 5)
    made = build("boosted_trees", "y ~ f0 + C(sort)", {"rounds": 2, "floor": 1}, find)
    same = BoostedTrees(
        "y", ("f0", "sort"), categories={"sort": ("high", "low")}, rounds=2, floor=1
    )
    assert made == same
    with pytest.raises(StatisticsError, match="products by itself"):
        build("random_forest", "y ~ f0:f1")
    with pytest.raises(StatisticsError, match="needs features"):
        build("boosted_trees", settings={"target": "y"})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"objective": "rank:pairwise"}, "no objective"),
        ({"objective": "binary:logistic"}, "does not take"),
        ({"objective": "multi:softprob", "num_class": 0}, "0 classes"),
        ({"max_depth": 0}, "max_depth"),
        ({"subsample": 0.0}, "subsample"),
        ({"early_stopping_rounds": 3}, "without rows to judge"),
        ({"monotone_constraints": {"f9": 1}}, "monotone_constraints"),
        ({"values": {"f0": (3, 1)}}, "values of `f0`"),
        ({"max_bin": 1}, "max_bin"),
        ({"features": ("y", "f0")}, "the target and a feature"),
        ({"features": ("f0", "g")}, "no column `g`"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], said: str) -> None:
    table = rows(n=60)
    question = BoostedTrees(**{"target": "y", "features": NAMES, "rounds": 2, **settings})
    with pytest.raises(StatisticsError, match=said):
        LocalSites(split(table), masked=False).answer(question)


def test_a_feature_that_is_always_missing_and_a_constant_one_are_not_used() -> None:
    table = rows(n=300)
    table["f0"] = np.full(300, np.nan)
    table["f1"] = np.full(300, 7.5)
    table["y"][:5] = np.nan
    answer = ask(table, rounds=2)
    assert answer.facts["rows left out"] == 5
    assert "`f0` is missing in all rows" in answer.notes
    assert {name for name, *_ in answer.tables[0].rows} <= set(NAMES[2:])
    keep = ~np.isnan(table["y"])
    booster = xgboost.train({"tree_method": "hist"}, matrix(table, keep), 2)
    assert_same_trees(answer, booster, chosen(table, keep))


def test_a_constant_target_gives_one_leaf() -> None:
    table = rows(n=100)
    table["y"] = np.full(100, 4.25)
    answer = ask(table, rounds=2)
    np.testing.assert_array_equal(answer.predict(table), np.full(100, 4.25, np.float32))
    assert "rmse" in str(answer)
