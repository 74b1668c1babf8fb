"""Cox models of masked sums equal those of lifelines and statsmodels on pooled rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
from delian.core.statistics.methods.cox import Cox
from delian.core.statistics.question import Step
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError
from delian.simulations.statistics.local_sites import LocalSites

pytestmark = pytest.mark.filterwarnings("ignore:.*very low variance")
lifelines = pytest.importorskip("lifelines")
pd = pytest.importorskip("pandas")

PREDICTORS = ("age", "dose", "C(arm)")
CATEGORIES = {"arm": ("a", "b", "c"), "centre": ("0", "1", "2", "3")}
LINEAR = ["b", "c", "age", "dose"]  # categorical columns come first


@functools.cache
def rows(n: int = 500, seed: int = 0, coarse: float = 4.0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    age, dose, arm = rng.normal(60, 12, n), rng.lognormal(-12, 1, n), rng.integers(0, 3, n)
    log = 0.03 * (age - 60) + 2e4 * (dose - 1e-5) + 0.5 * (arm == 1) - 0.3 * (arm == 2)
    death, lost = rng.exponential(80 * np.exp(-log)), rng.uniform(5, 200, n)
    days = np.ceil(np.minimum(death, lost) / coarse) * coarse
    return {
        "days": days,
        "died": (death <= lost).astype(float),
        "age": age,
        "dose": dose,
        "arm": np.array(("a", "b", "c"))[arm],
        "centre": rng.integers(0, 4, n).astype(float),
        "weight": rng.integers(1, 4, n).astype(float),
        "shift": rng.normal(0, 0.5, n),
        "since": 2 * np.floor(rng.uniform(0, 1, n) * days / 2) + 1,  # at no event
    }


def ask(
    table: dict[str, Any],
    silent: Callable[[int], Collection[int]] = lambda step: (),
    on_step: Callable[[Step], None] | None = None,
    **settings: Any,
) -> Any:
    parts = [{name: v[k::5] for name, v in table.items()} for k in range(5)]
    given: dict[str, Any] = {"predictors": PREDICTORS, "categories": CATEGORIES, **settings}
    return LocalSites(parts, silent=silent).answer(Cox("days", "died", **given), on_step)


def frame(table: dict[str, Any]) -> Any:
    made = pd.DataFrame({k: v for k, v in table.items() if k != "arm"})
    return made.assign(b=1.0 * (table["arm"] == "b"), c=1.0 * (table["arm"] == "c"))


def judge(table: dict[str, Any], penalizer: float = 0.0, **settings: Any) -> Any:
    columns = ["days", "died", *LINEAR, *filter(None, settings.pop("more", "").split())]
    fitter = lifelines.CoxPHFitter(penalizer=penalizer)
    return fitter.fit(
        frame(table)[columns], "days", "died", fit_options={"precision": 1e-12}, **settings
    )


def same(answer: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    errors = wanted.standard_errors_.to_numpy()
    off = np.abs(answer.coefficients - wanted.params_.to_numpy()) / errors
    assert np.max(off) < tolerance
    np.testing.assert_allclose(answer.standard_errors, errors, rtol=tolerance)


def test_efrons_ties_are_those_of_lifelines() -> None:
    table = rows()
    answer, wanted = ask(table), judge(table)
    same(answer, wanted, 1e-7)
    np.testing.assert_allclose(answer.log_likelihood, wanted.log_likelihood_, rtol=1e-9)
    ratio = wanted.log_likelihood_ratio_test()
    np.testing.assert_allclose(answer.facts["likelihood ratio"], ratio.test_statistic, rtol=1e-7)
    np.testing.assert_allclose(answer.p_values, wanted.summary["p"], rtol=1e-5)
    bounds = wanted.confidence_intervals_.to_numpy()
    np.testing.assert_allclose(np.stack([answer.low, answer.high], 1), bounds, rtol=1e-5)
    hazard = wanted.baseline_cumulative_hazard_.iloc[:, 0]
    (base,) = answer.baselines.values()
    np.testing.assert_allclose(base.cumulative_hazard, hazard.loc[base.times], rtol=1e-6)
    assert abs(answer.concordance.index - wanted.concordance_index_) <= answer.concordance.bound
    assert answer.concordance.bound < 0.01


@pytest.mark.parametrize("ties", ["breslow", "efron"])
@pytest.mark.parametrize("strata", ["", "centre"])
@pytest.mark.parametrize("offset", ["", "shift"])
def test_ties_strata_and_offsets_are_those_of_statsmodels(
    ties: str, strata: str, offset: str
) -> None:
    phreg = pytest.importorskip("statsmodels.duration.hazard_regression")
    table = rows()
    answer = ask(table, ties=ties, strata=strata, offset=offset)
    model = phreg.PHReg(
        table["days"],
        frame(table)[LINEAR].to_numpy() * [1, 1, 1, 1e5],  # it does not scale columns
        status=table["died"],
        ties=ties,
        strata=table[strata] if strata else None,
        offset=table[offset] if offset else None,
    )
    wanted = model.fit(method="newton", disp=0)
    scale = np.array([1, 1, 1, 1e5])
    np.testing.assert_allclose(answer.coefficients, wanted.params * scale, rtol=1e-7)
    np.testing.assert_allclose(answer.standard_errors, wanted.bse * scale, rtol=1e-7)
    np.testing.assert_allclose(answer.log_likelihood, wanted.llf, rtol=1e-9)


def test_rows_that_enter_late_are_those_of_statsmodels() -> None:
    phreg = pytest.importorskip("statsmodels.duration.hazard_regression")
    table = rows()
    answer = ask(table, entry="since", ties="breslow")
    model = phreg.PHReg(
        table["days"],
        frame(table)[LINEAR].to_numpy() * [1, 1, 1, 1e5],
        status=table["died"],
        ties="breslow",
        entry=table["since"],
    )
    wanted = model.fit(method="newton", disp=0)
    np.testing.assert_allclose(answer.coefficients, wanted.params * [1, 1, 1, 1e5], rtol=1e-7)
    same(ask(table, entry="since"), judge(table, entry_col="since", more="since"))


def test_weights_are_those_of_lifelines() -> None:
    table = rows()
    same(ask(table, weights="weight"), judge(table, weights_col="weight", more="weight"))


def test_a_ridge_is_that_of_lifelines() -> None:
    table = rows()
    same(ask(table, penalizer=0.1), judge(table, penalizer=0.1))


def test_strata_are_those_of_lifelines() -> None:
    table = rows()
    answer, wanted = ask(table, strata="centre"), judge(table, strata="centre", more="centre")
    same(answer, wanted)
    hazard = wanted.baseline_cumulative_hazard_
    for name, base in answer.baselines.items():
        own = hazard[float(name)].loc[base.times]
        np.testing.assert_allclose(base.cumulative_hazard, own, rtol=1e-6)
    assert abs(answer.concordance.index - wanted.concordance_index_) <= answer.concordance.bound


@pytest.mark.parametrize("transform", ["km", "identity", "log", "rank"])
def test_the_test_of_proportional_hazards_is_that_of_lifelines(transform: str) -> None:
    from lifelines.statistics import proportional_hazard_test

    untied = transform == "rank"  # it ranks events at one time by their order in the table
    table, step = (rows(120, coarse=1 / 512), 1 / 512) if untied else (rows(), 1.0)
    assert not untied or len(np.unique(table["days"])) == 120
    answer = ask(table, proportional=transform, time_step=step)
    wanted = judge(table)
    columns = frame(table)[["days", "died", *LINEAR]]
    test = proportional_hazard_test(wanted, columns, time_transform=transform)
    np.testing.assert_allclose(answer.proportional.statistics, test.test_statistic, rtol=2e-6)


def test_robust_errors_are_those_of_lifelines() -> None:
    table = rows(200, coarse=1 / 512)  # it takes events at one time one after the other
    assert len(np.unique(table["days"])) == 200
    answer = ask(table, robust=True, weights="weight", time_step=1 / 512)
    same(answer, judge(table, robust=True, weights_col="weight", more="weight"))


def test_errors_of_clusters_are_those_of_statsmodels() -> None:
    phreg = pytest.importorskip("statsmodels.duration.hazard_regression")
    table = {**rows(), "family": np.arange(500) % 100 * 1.0}  # of one site each
    answer = ask(table, ties="breslow", cluster="family", strata="centre")
    scale = np.array([1, 1, 1, 1e5])
    model = phreg.PHReg(
        table["days"],
        frame(table)[LINEAR].to_numpy() * scale,
        status=table["died"],
        strata=table["centre"],
    )
    wanted = model.fit(groups=table["family"], method="newton", disp=0)
    np.testing.assert_allclose(answer.standard_errors, wanted.bse * scale, rtol=1e-7)


def test_robust_errors_with_efrons_ties_are_those_of_each_event_in_turn() -> None:
    """Residuals by their definition: tied events leave the risk set one after the other."""
    table = rows()
    answer = ask(table, robust=True)
    x = frame(table)[LINEAR].to_numpy()
    x, time, event = x - x.mean(0), table["days"], table["died"] == 1
    r = np.exp(x @ answer.coefficients)
    residual = np.zeros_like(x)
    for t in np.unique(time[event]):
        at_risk, dead = time >= t, event & (time == t)
        count = int(dead.sum())
        for k in range(count):
            share = r * (at_risk - dead * k / count)
            mean = share @ x / share.sum()
            residual[dead] += (x[dead] - mean) / count
            residual -= (share / share.sum())[:, None] * (x - mean)
    information = np.linalg.inv(ask(table).covariance)
    wanted = np.linalg.inv(information) @ residual.T @ residual @ np.linalg.inv(information)
    np.testing.assert_allclose(answer.covariance, wanted, rtol=1e-7)


def test_the_survival_curve_of_a_row_is_that_of_lifelines() -> None:
    table = rows()
    answer, wanted = ask(table, strata="centre"), judge(table, strata="centre", more="centre")
    row = {"b": 1.0, "c": 0.0, "age": 70.0, "dose": 1e-5, "centre": 2.0}
    curve = wanted.predict_survival_function(pd.DataFrame([row]))
    named = {"C(arm)[T.b]": 1.0, "C(arm)[T.c]": 0.0, "age": 70.0, "dose": 1e-5}
    times, survival = answer.survival(named, "2")
    np.testing.assert_allclose(survival, curve.loc[times].iloc[:, 0], rtol=1e-6)
    with pytest.raises(StatisticsError, match="no stratum"):
        answer.survival({})


def test_a_site_that_drops_out_leaves_the_exact_fit_of_the_others() -> None:
    table = rows()
    answer = ask(table, silent=lambda step: [2] if step >= 7 else [])
    left = np.arange(len(table["days"])) % 5 != 2
    wanted = judge({name: v[left] for name, v in table.items()})
    same(answer, wanted)
    np.testing.assert_allclose(answer.log_likelihood, wanted.log_likelihood_, rtol=1e-9)
    ratio = wanted.log_likelihood_ratio_test().test_statistic
    np.testing.assert_allclose(answer.facts["likelihood ratio"], ratio, rtol=1e-7)
    assert answer.facts["sites"] == 4 and "sites came or went" in str(answer)


@pytest.mark.parametrize("settings", [{"penalizer": 0.2}, {"robust": True}])
def test_what_needs_the_first_rows_begins_again_when_a_site_drops_out(
    settings: dict[str, Any],
) -> None:
    table = rows()
    steps: list[str] = []
    late = "penalizer" in settings
    answer = ask(
        table,
        silent=lambda step: [2] if "squares" in steps or (late and step > 8) else [],
        on_step=lambda step: steps.append(step.name),
        **settings,
    )
    assert steps.count("range") == 2
    left = np.arange(len(table["days"])) % 5 != 2
    kept = {name: v[left] for name, v in table.items()}
    if late:
        same(answer, judge(kept, penalizer=0.2))
    else:
        parts = [{n: v[k::4] for n, v in kept.items()} for k in range(4)]
        question = Cox("days", "died", PREDICTORS, CATEGORIES, robust=True)
        again: Any = LocalSites(parts).answer(question)
        np.testing.assert_allclose(answer.standard_errors, again.standard_errors, rtol=1e-9)


@pytest.mark.parametrize("name", ["rossi", "gbsg2"])
def test_tables_that_lifelines_brings_along(name: str) -> None:
    from lifelines import datasets

    if name == "rossi":
        table, time, event = datasets.load_rossi(), "week", "arrest"
        terms = tuple(c for c in table if c not in (time, event))
        made = table
    else:
        table, time, event = datasets.load_gbsg2(), "time", "cens"
        terms = ("horTh", "tgrade", "age", "pnodes", "progrec")
        made = table[[time, event]].assign(
            yes=1.0 * (table["horTh"] == "yes"),
            two=1.0 * (table["tgrade"] == "II"),
            three=1.0 * (table["tgrade"] == "III"),
            **{c: table[c] for c in terms[2:]},
        )
    columns = {c: table[c].to_numpy() for c in (time, event, *terms)}
    parts = [{c: v[k::5] for c, v in columns.items()} for k in range(5)]
    categories = {"horTh": ("no", "yes"), "tgrade": ("I", "II", "III")}
    answer: Any = LocalSites(parts).answer(Cox(time, event, terms, categories))
    wanted = lifelines.CoxPHFitter().fit(made, time, event, fit_options={"precision": 1e-12})
    same(answer, wanted)
    np.testing.assert_allclose(answer.log_likelihood, wanted.log_likelihood_, rtol=1e-12)


def test_a_site_that_comes_back_with_other_times_is_in_the_fit() -> None:
    table = {name: v.copy() for name, v in rows().items()}
    third = np.arange(len(table["days"])) % 5 == 2
    table["days"][third] += 1  # at no time of the others
    answer = ask(table, silent=lambda step: [2] if step < 6 else [])
    same(answer, judge(table))
    assert answer.facts["sites"] == 5


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_risk_sums_of_bins_below_the_floor_are_never_asked(ties: str) -> None:
    table, least = rows(), 9
    asked: list[Step] = []
    answer = ask(table, on_step=asked.append, ties=ties, least_per_bin=least)
    names = {s.name for step in asked for s in step.sums}
    assert "scores" not in names and "pairs" not in names
    for step in asked:
        if step.name == "events":
            edges = step.arrays["edges"]
            firsts, lasts = edges[:-1], edges[1:] - 1
        elif step.name in ("risk", "information", "held"):
            firsts, lasts = step.arrays["first"], step.arrays["last"]
        else:
            continue
        for first, last in zip(firsts, lasts, strict=True):
            inside = (table["days"] >= first) & (table["days"] <= last)
            events, censored = (int(np.sum(inside & (table["died"] == v))) for v in (1, 0))
            cells = (events, censored) if ties == "efron" else (events + censored,)
            assert all(n == 0 or n >= least for n in cells)
    wanted = judge(table)
    off = np.abs(answer.coefficients - wanted.params_) / wanted.standard_errors_
    assert off.max() < 0.35
    assert "events of a bin count as tied" in str(answer)


def test_bins_that_a_site_left_with_few_rows_are_joined_before_sums_are_asked() -> None:
    table, least = rows(), 9
    asked: list[Step] = []
    answer = ask(
        table,
        silent=lambda step: [1] if step >= 6 else [],
        on_step=asked.append,
        least_per_bin=least,
        ties="breslow",
    )
    assert answer.facts["sites"] == 4
    kept = np.arange(len(table["days"])) % 5 != 1
    step = next(s for s in reversed(asked) if s.name == "risk")
    for first, last in zip(step.arrays["first"], step.arrays["last"], strict=True):
        inside = (table["days"] >= first) & (table["days"] <= last) & kept
        assert inside.sum() >= least


def changed(**columns: Any) -> dict[str, Any]:
    table = {name: v.copy() for name, v in rows().items()}
    for name, make in columns.items():
        table[name] = make(table)
    return table


def at(column: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    def make(table: dict[str, Any]) -> Any:
        values = table[column].copy()
        values[3] = value
        return values

    return make


@pytest.mark.parametrize(
    ("table", "settings", "said"),
    [
        (changed(died=lambda t: t["died"] * 0), {}, "no row has an event"),
        (changed(age=lambda t: t["age"] * 0 + 3), {}, "`age` has one value"),
        (changed(dose=lambda t: t["died"]), {}, "no maximum: it grows for ever with `dose`"),
        (changed(dose=lambda t: 2 * t["age"] + 1), {}, "depend on each other: `age`, `dose`"),
        (changed(days=at("days", -2.0)), {}, "negative time"),
        (changed(died=at("died", 3.0)), {}, "neither 0 nor 1"),
        (changed(arm=at("arm", "z")), {}, "1 rows have a category of a predictor"),
        (changed(weight=at("weight", -1.0)), {"weights": "weight"}, "a negative weight"),
        (changed(centre=at("centre", 9.0)), {"strata": "centre"}, "a category of `centre`"),
        (rows(), {"predictors": ("age", "centre"), "strata": "centre"}, "is no difference in"),
        (rows(), {"least_per_bin": 400}, "fewer than 400 rows"),
        (rows(), {"ties": "exact"}, "no ties `exact`"),
        (rows(), {"predictors": ()}, "without predictors"),
    ],
)
def test_what_has_no_answer_is_refused(
    table: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    if settings.get("strata") == "centre" and "predictors" in settings:
        settings = {**settings, "categories": {"centre": ("0", "1", "2", "3")}}
    with pytest.raises(StatisticsError) as refused:
        ask(table, **settings)
    assert said in refused.value.message


def test_missing_values_are_left_out_and_counted() -> None:
    table = changed(age=at("age", np.nan), arm=at("arm", ""))
    table["days"][10:20] = np.nan
    known = np.arange(len(table["days"])) != 3
    known[10:20] = False
    answer = ask(table)
    assert answer.facts["rows left out"] == 11
    same(answer, judge({name: v[known] for name, v in table.items()}))


GOOD = {
    "stratum": np.array([0, 0]),
    "first": np.array([4, 8]),
    "last": np.array([4, 8]),
    "means": np.zeros(4),
    "scales": np.ones(4),
    "coefficients": np.zeros(4),
    "edges": np.array([0, 3]),
}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("risk", {"first": np.array([8, 4])}),
        ("risk", {"stratum": np.array([0, 1])}),
        ("risk", {"last": np.array([4, 2**40])}),
        ("risk", {"first": np.array([4])}),
        ("risk", {"coefficients": np.zeros(3)}),
        ("risk", {"means": np.full(4, np.nan)}),
        ("information", {}),
        ("pairs", {}),
        ("pairs", {"edges": np.array([5, 5])}),
        ("events", {"edges": np.array([3])}),
        ("leaving", {"edges": np.array([9, 3])}),
        ("rows_please", {}),
    ],
)
def test_a_site_refuses_steps_that_no_question_has(name: str, change: dict[str, Any]) -> None:
    step = Step(name, (), {**GOOD, **change})
    question = Cox("days", "died", PREDICTORS, CATEGORIES)
    with pytest.raises(StatisticsError):
        question.measure(Table.of(rows()), step, {})
