"""Correlations, histograms, cross tables and comparisons of means are those of the pooled rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.statistics.methods.correlations import Correlations
from delian.core.statistics.methods.cross_table import CrossTable
from delian.core.statistics.methods.histogram import Histogram
from delian.core.statistics.methods.mean_comparison import MeanComparison
from delian.core.statistics.question import Step
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError
from delian.simulations.statistics.local_sites import LocalSites

ROWS = 600


def rows_of() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    made: dict[str, Any] = {"arm": draw.choice(["a", "b", "c"], ROWS, p=[0.5, 0.3, 0.2])}
    made["sex"] = np.where(draw.random(ROWS) < 0.4 + 0.1 * (made["arm"] == "b"), "m", "f")
    made["age"] = draw.normal(50, 10, ROWS)
    made["mass"] = 1e9 + 0.5 * made["age"] + draw.normal(0, 5, ROWS)
    made["dose"] = 1e-8 * draw.gamma(2, 1 + (made["arm"] == "b") * 0.5, ROWS)
    made["dose"][[5, 500]] = np.nan
    return made


def sites_of(rows: dict[str, np.ndarray] | None = None, **more: Any) -> LocalSites:
    rows = rows_of() if rows is None else rows
    return LocalSites(split(rows), **more)


def split(rows: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    parts = np.array_split(np.arange(len(rows["arm"])), 5)
    return [{k: v[p] for k, v in rows.items()} for p in parts]


def test_correlations_are_those_of_pandas_and_scipy() -> None:
    pandas, stats = pytest.importorskip("pandas"), pytest.importorskip("scipy.stats")
    names = ("age", "mass", "dose")
    found: Any = sites_of().answer(Correlations(names))
    frame = pandas.DataFrame(rows_of())[list(names)].dropna()
    frame["mass"] -= 1e9
    np.testing.assert_allclose(found.covariances, frame.cov(), rtol=1e-8)
    np.testing.assert_allclose(found.correlations, frame.corr(), rtol=1e-8, atol=1e-12)
    judge = stats.pearsonr(frame["age"], frame["mass"])
    assert found.p_values[0, 1] == pytest.approx(judge.pvalue, rel=1e-6)
    interval = judge.confidence_interval()
    assert (found.low[0, 1], found.high[0, 1]) == pytest.approx(tuple(interval), rel=1e-8)
    assert found.facts["rows left out"] == 2 and "mass" in str(found)
    rows = rows_of()
    rows["age"][:] = 3.3
    constant: Any = sites_of(rows).answer(Correlations(names))
    assert np.isnan(constant.correlations[0]).all() and "nan" not in str(constant)
    assert "`age` is constant." in constant.notes


def test_a_histogram_is_that_of_numpy_but_for_small_bins() -> None:
    rows = rows_of()
    edges = (20.0, 30.0, 40.0, 45.0, 50.0, 60.0, 75.0)
    found: Any = sites_of().answer(Histogram("age", edges, floor=1))
    np.testing.assert_array_equal(found.counts, np.histogram(rows["age"], edges)[0])
    assert found.outside == ROWS - found.counts.sum() and found.suppressed == 0
    floored: Any = sites_of().answer(Histogram("age", edges, floor=5))
    wanted = np.zeros(len(edges) - 1)
    for part in split(rows):
        each = np.histogram(part["age"], edges)[0]
        wanted += np.where(each < 5, 0, each)
    np.testing.assert_array_equal(floored.counts, wanted)
    assert floored.suppressed == found.counts.sum() - wanted.sum() > 0
    ranged: Any = sites_of().answer(Histogram("dose", bins=8))
    assert len(ranged.counts) == 8 and ranged.facts["missing"] == 2
    assert ranged.counts.sum() + ranged.suppressed == ROWS - 2 and ranged.outside == 0


def test_a_cross_table_and_its_test_are_those_of_scipy() -> None:
    stats, pandas = pytest.importorskip("scipy.stats"), pytest.importorskip("pandas")
    rows = rows_of()
    found: Any = sites_of().answer(CrossTable("arm", "sex"))
    judge = pandas.crosstab(rows["arm"], rows["sex"])
    assert found.levels == (("a", "b", "c"), ("f", "m"))
    np.testing.assert_array_equal(found.counts, judge)
    tested = stats.chi2_contingency(judge)
    assert found.chi_squared == pytest.approx(tested.statistic, rel=1e-12)
    assert found.p_value == pytest.approx(tested.pvalue, rel=1e-9)
    np.testing.assert_allclose(found.expected, tested.expected_freq)
    assert found.cramers_v == pytest.approx(stats.contingency.association(judge), rel=1e-12)
    two = {"arm": ("a", "b"), "sex": ("f", "m")}
    for correction in (True, False):
        found = sites_of().answer(CrossTable("arm", "sex", two, correction=correction))
        tested = stats.chi2_contingency(judge.iloc[:2], correction=correction)
        assert found.chi_squared == pytest.approx(tested.statistic, rel=1e-12)
    assert found.facts["rows left out"] == judge.iloc[2].sum()


def test_cells_of_few_rows_at_a_site_do_not_leave_it() -> None:
    rows = rows_of()
    rows["arm"] = rows["arm"].astype("U4")
    rows["arm"][np.arange(0, ROWS, 40)] = "rare"
    found: Any = sites_of(rows).answer(CrossTable("arm", "sex"))
    assert found.levels[0] == ("a", "b", "c", "rare") and not found.counts[3].any()
    assert found.facts["rows left out"] == len(range(0, ROWS, 40))
    assert any("fewer than 5 rows at their site" in note for note in found.notes)


def test_two_groups_are_compared_as_scipy_does() -> None:
    stats = pytest.importorskip("scipy.stats")
    rows = rows_of()
    known = ~np.isnan(rows["dose"])
    one, two = (rows["dose"][(rows["sex"] == s) & known] for s in ("f", "m"))
    found: Any = sites_of().answer(MeanComparison("dose", "sex"))
    np.testing.assert_allclose(found.means, [one.mean(), two.mean()], rtol=1e-12)
    np.testing.assert_allclose(found.deviations, [one.std(ddof=1), two.std(ddof=1)], rtol=1e-12)
    for name, equal in (("t", True), ("welch_t", False)):
        judge = stats.ttest_ind(one, two, equal_var=equal)
        assert found.tests[name].statistic == pytest.approx(judge.statistic, rel=1e-9)
        assert found.tests[name].p_value == pytest.approx(judge.pvalue, rel=1e-9)
        assert found.tests[name].freedom[0] == pytest.approx(judge.df, rel=1e-9)
    assert found.interval == pytest.approx(tuple(judge.confidence_interval()), rel=1e-9)
    assert found.facts["rows"] == known.sum() and "Welch" in str(found)


def test_several_groups_are_compared_as_scipy_and_statsmodels_do() -> None:
    stats = pytest.importorskip("scipy.stats")
    oneway = pytest.importorskip("statsmodels.stats.oneway")
    rows = rows_of()
    groups = [rows["mass"][rows["arm"] == arm] - 1e9 for arm in "abc"]
    found: Any = sites_of().answer(MeanComparison("mass", "arm"))
    judge = stats.f_oneway(*groups)
    assert found.tests["anova"].statistic == pytest.approx(judge.statistic, rel=1e-6)
    assert found.tests["anova"].p_value == pytest.approx(judge.pvalue, rel=1e-6)
    judge = oneway.anova_oneway(groups, use_var="unequal")
    assert found.tests["welch_anova"].statistic == pytest.approx(judge.statistic, rel=1e-6)
    assert found.tests["welch_anova"].freedom == pytest.approx(judge.df, rel=1e-6)
    assert found.tests["welch_anova"].p_value == pytest.approx(judge.pvalue, rel=1e-6)
    judge = stats.levene(*groups, center="mean")
    assert found.tests["levene"].statistic == pytest.approx(judge.statistic, rel=1e-6)
    assert "t" not in found.tests


def test_one_group_is_compared_with_a_given_mean_while_a_site_drops_out() -> None:
    stats = pytest.importorskip("scipy.stats")
    sites = sites_of(silent=lambda step: {0} if step >= 1 else ())
    found: Any = sites.answer(MeanComparison("age", against=48.0))
    judge = stats.ttest_1samp(rows_of()["age"][ROWS // 5 :], 48.0)
    assert found.tests["t"].statistic == pytest.approx(judge.statistic, rel=1e-12)
    assert found.tests["t"].p_value == pytest.approx(judge.pvalue, rel=1e-9)
    assert found.facts["sites"] == 4 and found.facts["rows"] == ROWS - ROWS // 5


BAD = [
    (lambda: Correlations(("age",)), "columns to correlate"),
    (lambda: Correlations(("age", "age")), "columns to correlate"),
    (lambda: Histogram("age", (1.0,)), "edges"),
    (lambda: Histogram("age", (2.0, 1.0)), "edges"),
    (lambda: Histogram("age", bins=10**6), "bins"),
    (lambda: CrossTable("arm", "arm"), "itself"),
    (lambda: CrossTable("arm", "sex", floor=0), "floor"),
    (lambda: MeanComparison("age", "age"), "own groups"),
    (lambda: MeanComparison("age", level=1.0), "level"),
]


@pytest.mark.parametrize(("make", "what"), BAD)
def test_settings_that_make_no_sense_are_refused(make: Any, what: str) -> None:
    with pytest.raises(StatisticsError, match=what):
        make()


def test_what_has_no_answer_is_a_clear_error() -> None:
    rows = rows_of()
    rows["age"][:] = 1.0
    rows["none"] = np.full(ROWS, np.nan)
    for question, what in (
        (MeanComparison("age", "arm"), "the same in all rows"),
        (MeanComparison("none", "arm"), "no group has enough rows"),
        (MeanComparison("arm", "sex"), "is text"),
        (Histogram("none"), "no value"),
        (Histogram("dose", (5.0, 6.0)), "no bin has enough rows"),
        (CrossTable("arm", "sex", floor=400), "no category"),
        (CrossTable("arm", "sex", {"arm": ("x",), "sex": ("y",)}), "no cell"),
        (Correlations(("age", "none")), "no complete row"),
    ):
        with pytest.raises(StatisticsError, match=what):
            sites_of(rows).answer(question)


def test_hostile_steps_are_refused() -> None:
    table, cells = Table(rows_of()), np.array([97, -1], np.int64)
    for question, step in (
        (Histogram("age"), Step("bins", (), {"edges": np.array([2.0, 1.0])})),
        (Histogram("age"), Step("bins", (), {"edges": np.zeros(5000)})),
        (Histogram("age"), Step("bins", (), {})),
        (CrossTable("arm", "sex"), Step("cells", (), {"levels 0": cells})),
        (CrossTable("arm", "sex"), Step("rows", (), {})),
        (MeanComparison("age", "arm"), Step("squares", (), {"levels 0": cells})),
        (
            Correlations(("age", "dose")),
            Step("products", (), {"means": np.zeros(2), "scales": np.zeros(2)}),
        ),
    ):
        with pytest.raises(DelianError):
            question.measure(table, step, {})
