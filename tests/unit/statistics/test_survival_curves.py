"""Survival curves and log-rank tests of masked sums equal those of lifelines on pooled rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.statistics.methods.survival_curves import SurvivalCurves
from delian.core.statistics.question import Step
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError
from delian.core.statistics.survival.time_grid import joined
from delian.simulations.statistics.local_sites import LocalSites

lifelines = pytest.importorskip("lifelines")

GROUPS = ("a", "b", "c")


def rows(n: int = 600, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, n)
    death = rng.exponential(60 / (1 + 0.4 * group))
    lost = rng.uniform(5, 150, n)
    return {
        "days": np.ceil(np.minimum(death, lost)),
        "died": (death <= lost).astype(float),
        "arm": np.array(GROUPS)[group],
        "centre": rng.integers(0, 4, n).astype(float),
        "since": np.floor(rng.uniform(0, 1, n) * np.ceil(np.minimum(death, lost))),
    }


def split(table: dict[str, Any], sites: int = 5) -> list[dict[str, Any]]:
    return [{name: v[k::sites] for name, v in table.items()} for k in range(sites)]


def ask(table: dict[str, Any], **settings: Any) -> Any:
    return LocalSites(split(table)).answer(SurvivalCurves("days", "died", **settings))


def test_a_curve_is_that_of_lifelines() -> None:
    table = rows()
    (curve,) = ask(table).curves
    km = lifelines.KaplanMeierFitter().fit(table["days"], table["died"])
    np.testing.assert_allclose(curve.survival, km.survival_function_.values[:, 0], atol=1e-12)
    np.testing.assert_array_equal(curve.times, km.survival_function_.index)
    bounds = km.confidence_interval_.values
    np.testing.assert_allclose(np.stack([curve.low, curve.high], 1), bounds, atol=1e-12)
    np.testing.assert_array_equal(curve.at_risk, km.event_table["at_risk"])
    assert curve.median == km.median_survival_time_
    from lifelines.utils import median_survival_times, restricted_mean_survival_time

    interval = median_survival_times(km.confidence_interval_).values[0]
    assert (curve.median_low, curve.median_high) == tuple(interval)
    until = ask(table, mean_until=77.5).curves[0]
    np.testing.assert_allclose(until.mean, restricted_mean_survival_time(km, 77.5), rtol=1e-12)


@pytest.mark.parametrize("smoothed", [False, True])
def test_the_cumulative_hazard_is_that_of_lifelines(smoothed: bool) -> None:
    table = rows()
    hazard = "fleming-harrington" if smoothed else "nelson-aalen"
    (curve,) = ask(table, hazard=hazard).curves
    judge = lifelines.NelsonAalenFitter(nelson_aalen_smoothing=smoothed)
    judge.fit(table["days"], table["died"])
    wanted = judge.cumulative_hazard_.values[:, 0]
    np.testing.assert_allclose(curve.cumulative_hazard, wanted, atol=1e-12)
    bounds = judge.confidence_interval_.values
    found = np.stack([curve.hazard_low, curve.hazard_high], 1)
    np.testing.assert_allclose(found, bounds, atol=1e-12)


def test_rows_that_enter_late_are_at_risk_behind_their_entry() -> None:
    table = rows(900)
    (curve,) = ask(table, entry="since").curves
    km = lifelines.KaplanMeierFitter().fit(table["days"], table["died"], entry=table["since"])
    at = np.searchsorted(km.survival_function_.index, curve.times, side="right") - 1
    wanted = km.survival_function_.values[at, 0]
    np.testing.assert_allclose(curve.survival, wanted, atol=1e-12)
    bounds = km.confidence_interval_.values[at]
    np.testing.assert_allclose(np.stack([curve.low, curve.high], 1), bounds, atol=1e-12)


@pytest.mark.parametrize(
    "weighting", ["log-rank", "wilcoxon", "tarone-ware", "peto", "fleming-harrington"]
)
def test_the_test_of_several_groups_is_that_of_lifelines(weighting: str) -> None:
    from lifelines.statistics import multivariate_logrank_test

    table = rows()
    test = ask(
        table,
        group="arm",
        categories={"arm": GROUPS},
        weighting=weighting,
        weighting_p=0.5,
        weighting_q=1.0,
    ).test
    other = {} if weighting == "log-rank" else {"weightings": weighting}
    more = {"p": 0.5, "q": 1.0} if weighting == "fleming-harrington" else {}
    judge = multivariate_logrank_test(table["days"], table["arm"], table["died"], **other, **more)
    np.testing.assert_allclose(test.statistic, judge.test_statistic, rtol=1e-11)
    np.testing.assert_allclose(test.p_value, judge.p_value, rtol=1e-11)
    assert test.degrees_of_freedom == 2


def test_two_groups_are_compared_as_lifelines_does() -> None:
    from lifelines.statistics import logrank_test

    table = rows()
    two = {name: v[table["arm"] != "c"] for name, v in table.items()}
    test = ask(two, group="arm", categories={"arm": ("a", "b")}).test
    a = two["arm"] == "a"
    judge = logrank_test(two["days"][a], two["days"][~a], two["died"][a], two["died"][~a])
    np.testing.assert_allclose(test.statistic, judge.test_statistic, rtol=1e-11)


def test_a_test_of_rows_that_enter_late_is_that_of_statsmodels() -> None:
    survfunc = pytest.importorskip("statsmodels.duration.survfunc")
    table = rows(900)
    test = ask(table, group="arm", categories={"arm": GROUPS}, entry="since").test
    late = {"entry": np.where(table["since"] == 0, -1, table["since"])}
    statistic, _ = survfunc.survdiff(table["days"], table["died"], table["arm"], **late)
    np.testing.assert_allclose(test.statistic, statistic, rtol=1e-11)


def test_a_stratified_test_is_that_of_statsmodels() -> None:
    survfunc = pytest.importorskip("statsmodels.duration.survfunc")
    table = rows()
    levels = {"arm": GROUPS, "centre": ("0", "1", "2", "3")}
    answer = ask(table, group="arm", strata="centre", categories=levels)
    statistic, p = survfunc.survdiff(
        table["days"], table["died"], table["arm"], strata=table["centre"]
    )
    np.testing.assert_allclose(answer.test.statistic, statistic, rtol=1e-11)
    np.testing.assert_allclose(answer.test.p_value, p, rtol=1e-9)
    for curve in answer.curves:
        own = table["arm"] == curve.name
        km = lifelines.KaplanMeierFitter().fit(table["days"][own], table["died"][own])
        np.testing.assert_allclose(curve.survival, km.survival_function_.values[:, 0], atol=1e-12)


def test_a_site_that_drops_out_leaves_the_exact_curve_of_the_others() -> None:
    table = rows()
    sites = LocalSites(split(table), silent=lambda step: [3] if step >= 1 else [])
    answer = sites.answer(SurvivalCurves("days", "died"))
    left = np.arange(len(table["days"])) % 5 != 3
    km = lifelines.KaplanMeierFitter().fit(table["days"][left], table["died"][left])
    np.testing.assert_allclose(
        answer.curves[0].survival, km.survival_function_.values[:, 0], atol=1e-12
    )
    assert answer.facts["sites"] == 4
    assert "sites came or went" in str(answer)


def test_times_between_grid_points_are_rounded_and_the_answer_says_so() -> None:
    table = rows()
    table["days"] = table["days"] / 7
    answer = ask(table, time_step=0.5)
    assert "rounded to the nearest multiple of 0.5" in str(answer)
    rounded = np.rint(table["days"] / 0.5) * 0.5
    km = lifelines.KaplanMeierFitter().fit(rounded, table["died"])
    wanted = km.survival_function_.values[:, 0]
    np.testing.assert_allclose(answer.curves[0].survival, wanted, atol=1e-12)
    exact = ask(table, time_step=1 / 7)
    assert "rounded" not in str(exact)


def test_behind_the_horizon_rows_are_censored() -> None:
    table = rows()
    (curve,) = ask(table, horizon=40.0).curves
    seen = table["died"] * (table["days"] <= 40)
    km = lifelines.KaplanMeierFitter().fit(np.minimum(table["days"], 40), seen)
    np.testing.assert_allclose(curve.survival, km.survival_function_.values[:, 0], atol=1e-12)


def test_bins_with_fewer_rows_than_the_floor_are_never_asked_for_events() -> None:
    table, least = rows(), 12
    asked: list[Step] = []
    question = SurvivalCurves(
        "days", "died", group="arm", categories={"arm": GROUPS}, least_per_bin=least
    )
    answer = LocalSites(split(table)).answer(question, asked.append)
    for step in asked:
        names = {s.name for s in step.sums}
        if not names & {"events", "leaving"}:
            continue
        edges = step.arrays["edges"]
        for group in GROUPS:
            held = np.histogram(table["days"][table["arm"] == group], [*edges[:-1], np.inf])[0]
            if "events" in names:
                assert np.all((held == 0) | (held >= least))
    assert asked[-1].name == "times" and len(asked[-1].arrays["edges"]) > 8
    last, before = (
        max(float(np.max((c.survival - c.lowest)[part])) for c in answer.curves)
        for part in (slice(-1, None), slice(None, -1))
    )
    assert f"lower by at most {before:.4f}, and at the end" in str(answer)
    assert f"of the last bin by at most {last:.4f}" in str(answer)
    for curve in answer.curves:
        own = table["arm"] == curve.name
        km = lifelines.KaplanMeierFitter().fit(table["days"][own], table["died"][own])
        exact = km.predict(curve.times).to_numpy()
        assert np.all(exact <= curve.survival + 1e-12)
        assert np.all(exact >= curve.lowest - 1e-12)


def test_bins_that_a_site_left_with_few_rows_are_joined_in_the_answer() -> None:
    table, least = rows(), 12
    sites = LocalSites(split(table), silent=lambda step: [1] if step >= 6 else [])
    question = SurvivalCurves(
        "days", "died", group="arm", categories={"arm": GROUPS}, least_per_bin=least
    )
    answer = sites.answer(question)
    assert answer.facts["sites"] == 4
    for curve in answer.curves:
        left = (curve.events + curve.censored)[1:]
        assert np.all((left == 0) | (left >= least))


def test_bins_are_joined_until_none_has_few_rows() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        leaving = rng.integers(0, 6, (2, 12)) * rng.integers(0, 2, (2, 12)) * 1.0
        leaving[:, 0] += 5
        edges = joined(np.arange(13), leaving, 5)
        held = np.add.reduceat(leaving, edges[:-1], axis=1)
        assert np.all((held == 0) | (held >= 5))
        assert edges[0] == 0 and edges[-1] == 12


@pytest.mark.parametrize(
    ("change", "settings", "said"),
    [
        ({"days": -1.0}, {}, "negative time"),
        ({"died": 2.0}, {}, "neither 0 nor 1"),
        ({"arm": "z"}, {"group": "arm", "categories": {"arm": GROUPS}}, "not listed"),
        ({"days": 1e9}, {}, "longer time_step"),
        ({}, {"group": "arm"}, "not listed"),
        ({}, {"weighting": "none"}, "no weighting"),
        ({}, {"least_per_bin": 500, "group": "arm", "categories": {"arm": GROUPS}}, "fewer than"),
    ],
)
def test_what_makes_no_sense_is_refused(
    change: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    table = rows()
    for name, value in change.items():
        table[name] = table[name].copy()
        table[name][7] = value
    with pytest.raises(StatisticsError) as refused:
        ask(table, **settings)
    assert said in f"{refused.value.message} {refused.value.hint}"


def test_no_event_is_refused_and_missing_rows_are_left_out() -> None:
    table = rows()
    table["days"][5:25] = np.nan
    assert ask(table).facts["rows left out"] == 20
    table["died"] = table["died"] * 0
    with pytest.raises(StatisticsError, match="no row has an event"):
        ask(table)


def test_without_two_groups_at_risk_there_are_curves_and_no_test() -> None:
    table = rows()
    table["days"] = table["days"] + np.where(table["arm"] == "a", 200, 0)
    table["died"] = np.where(table["arm"] == "a", table["days"] > 260, 0.0)
    answer = ask(table, group="arm", categories={"arm": GROUPS})
    assert answer.test is None and "no test" in str(answer)
    assert answer.curves[0].events.sum() > 0


@pytest.mark.parametrize(
    "edges", [np.array([3]), np.array([4, 4]), np.array([5, 1]), np.array([0.0, 9.0])]
)
@pytest.mark.parametrize("name", ["times", "leaving", "others"])
def test_a_site_refuses_steps_that_no_question_has(name: str, edges: Any) -> None:
    with pytest.raises(StatisticsError):
        question = SurvivalCurves("days", "died")
        question.measure(Table.of(rows()), Step(name, (), {"edges": edges}), {})
