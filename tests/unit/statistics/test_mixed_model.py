"""Linear mixed models over sites are those of the pooled rows, by statsmodels."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.statistics.methods.mixed_model import MixedModel, _newton
from delian.core.statistics.question import Step
from delian.core.statistics.regression.mixed_likelihood import Profile, measure, sums_of
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError, Totals
from delian.simulations.statistics.local_sites import LocalSites

ROWS, SITES = 600, 6
CATEGORIES = {"sex": ("f", "m")}
PREDICTORS = ("age", "x", "C(sex)")


def rows_of(between: float = 2.0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    site, ward = np.sort(draw.integers(0, SITES, ROWS)), draw.integers(0, 8, ROWS)
    made: dict[str, Any] = {"age": draw.normal(50, 10, ROWS), "x": draw.normal(0, 1, ROWS)}
    made |= {"sex": draw.choice(["f", "m"], ROWS), "site": site.astype(str)}
    made["ward"] = np.char.add(np.char.add(made["site"], "-"), ward.astype(str))
    _, code = np.unique(made["ward"], return_inverse=True)
    levels, slopes = draw.normal(0, between, SITES), draw.normal(0, 0.8, SITES)
    wards = draw.normal(0, 1.5, code.max() + 1)
    made["y"] = 10 + 0.1 * made["age"] + made["x"] * (1 + slopes[site]) + levels[site]
    made["y"] = made["y"] + 0.5 * (made["sex"] == "m") + draw.normal(0, 2, ROWS)
    made["w"] = made["y"] + wards[code] - levels[site] - slopes[site] * made["x"]
    return made


def split(rows: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    return [{k: v[rows["site"] == str(s)] for k, v in rows.items()} for s in range(SITES)]


def asked(question: MixedModel, rows: dict[str, np.ndarray] | None = None, **more: Any) -> Any:
    return LocalSites(split(rows or rows_of()), **more).answer(question)


def judged(
    formula: str, rows: dict[str, np.ndarray], groups: str, slopes: str | None, restricted: bool
) -> Any:
    pandas = pytest.importorskip("pandas")
    smf = pytest.importorskip("statsmodels.formula.api")
    frame = pandas.DataFrame(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = smf.mixedlm(formula, frame, groups=frame[groups], re_formula=slopes)
        if slopes is None:
            return model.fit(reml=restricted, method="bfgs", gtol=1e-9)
        first = model.fit(reml=restricted, method="lbfgs")
        return model.fit(
            reml=restricted, method="bfgs", start_params=first.params_object, gtol=1e-8
        )


def agree(found: Any, judge: Any, rtol: float = 1e-5) -> None:
    order = [list(judge.fe_params.index).index(name) for name in found.names]
    np.testing.assert_allclose(found.coefficients, judge.fe_params.iloc[order], rtol=rtol)
    np.testing.assert_allclose(found.standard_errors, judge.bse_fe.iloc[order], rtol=rtol)
    np.testing.assert_allclose(found.covariance, judge.cov_re, rtol=rtol)
    assert found.scale == pytest.approx(judge.scale, rel=rtol)
    assert found.log_likelihood == pytest.approx(judge.llf, rel=1e-9)
    assert found.log_likelihood >= judge.llf - 1e-8


@pytest.mark.parametrize("restricted", [True, False])
def test_random_intercepts_of_sites_are_those_of_statsmodels(restricted: bool) -> None:
    rows = rows_of()
    question = MixedModel("y", PREDICTORS, categories=CATEGORIES, restricted=restricted)
    found = asked(question)
    agree(found, judged("y ~ age + x + C(sex)", rows, "site", None, restricted))
    assert found.groups == SITES and found.facts["rows"] == ROWS
    printed = str(found)
    assert "C(sex)[T.m]" in printed and "random effects" in printed and "nan" not in printed


@pytest.mark.parametrize("restricted", [True, False])
def test_random_slopes_of_sites_are_those_of_statsmodels(restricted: bool) -> None:
    rows = rows_of()
    question = MixedModel("y", PREDICTORS, ("x",), categories=CATEGORIES, restricted=restricted)
    judge = judged("y ~ age + x + C(sex)", rows, "site", "~x", restricted)
    agree(asked(question), judge, rtol=1e-4)


def test_groups_within_sites() -> None:
    rows = rows_of()
    found = asked(MixedModel("w", PREDICTORS, subject="ward", categories=CATEGORIES))
    agree(found, judged("w ~ age + x + C(sex)", rows, "ward", None, True))
    assert found.groups == len(np.unique(rows["ward"])) and not found.notes


def test_the_unit_of_columns_and_the_lack_of_an_intercept_change_nothing() -> None:
    rows = rows_of()
    far = {**rows, "age": rows["age"] * 1e6 + 1e9, "y": rows["y"] * 1e-7}
    one, two = (asked(MixedModel("y", ("age", "x"), ("x",)), each) for each in (rows, far))
    factors = np.array([1e-13, 1e-7])
    np.testing.assert_allclose(two.coefficients[1:], one.coefficients[1:] * factors, rtol=1e-7)
    np.testing.assert_allclose(two.covariance, one.covariance * 1e-14, rtol=1e-6)
    plain = asked(MixedModel("y", ("C(sex)", "x"), categories=CATEGORIES, intercept=False))
    agree(plain, judged("y ~ C(sex) + x - 1", rows, "site", None, True))


def test_a_variance_of_zero_is_found_at_its_bound() -> None:
    rows = rows_of()
    rows["y"] = np.random.default_rng(3).normal(0, 1, ROWS)
    means = [rows["y"][rows["site"] == str(s)].mean() for s in range(SITES)]
    rows["y"] = rows["y"] - np.array(means)[rows["site"].astype(int)]
    found = asked(MixedModel("y", ("x",)), rows)
    assert found.covariance[0, 0] < 1e-8 and found.facts["p (random)"] > 0.4
    slope = np.polyfit(rows["x"], rows["y"], 1)[0]
    assert found.coefficients[1] == pytest.approx(slope, rel=1e-6)
    assert "nan" not in str(found)


def test_steps_do_not_go_from_one_factor_to_its_mirror_image() -> None:
    draw = np.random.default_rng(9)
    for _ in range(6):
        rows = {"site": np.repeat(np.arange(SITES), 20).astype(str), "x": draw.normal(size=120)}
        rows |= {"y": draw.poisson(2, 120) * 1.0, "c": draw.integers(0, 3, 120).astype(str)}
        found = asked(MixedModel("y", ("x",), subject="c"), rows)
        assert found.log_likelihood >= found.null_log_likelihood - 1e-6


def test_a_factor_of_zero_is_left_where_a_variance_fits_better() -> None:
    draw = np.random.default_rng(0)
    levels = np.repeat(draw.normal(size=7), 20)
    w = np.column_stack([np.ones(140), levels + draw.normal(size=140)])
    zero, groups = np.zeros((1, 1)), np.repeat(np.arange(7), 20)
    sums = {"rows": 140, "left": 0, **measure(w, np.ones((140, 1)), groups, zero)}
    totals = Totals({k: np.asarray(v, float) for k, v in sums.items()}, 1)
    direction, decrement, saddle = _newton(Profile.of(totals, 1, 1, True), zero)
    assert direction[0, 0] == 0 == decrement and saddle is not None and abs(saddle[0, 0]) == 0.1


def test_a_site_that_drops_out_is_left_out_of_the_fit() -> None:
    rows = rows_of()
    rows["x"][[1, 2]] = np.nan
    found = asked(MixedModel("y", ("x",)), rows, silent=lambda step: {5} if step >= 4 else ())
    kept = (rows["site"] != "5") & ~np.isnan(rows["x"])
    agree(found, judged("y ~ x", {k: v[kept] for k, v in rows.items()}, "site", None, True))
    assert found.facts["sites"] == SITES - 1 and found.facts["rows left out"] == 2


def test_derivatives_are_those_of_the_likelihood() -> None:
    draw = np.random.default_rng(0)
    w, z = draw.normal(size=(40, 3)), np.column_stack([np.ones(40), draw.normal(size=40)])
    groups = np.arange(40) % 7

    def at(relative: np.ndarray, restricted: bool) -> Profile:
        sums = {"rows": np.array(40), "left": np.array(0), **measure(w, z, groups, relative)}
        assert set(sums) == {s.name for s in sums_of(3, 2)}
        return Profile.of(Totals({k: np.asarray(v) for k, v in sums.items()}, 1), 2, 2, restricted)

    middle, small = np.array([[0.7, 0.2], [0.2, 0.4]]), 1e-5
    for restricted in (True, False):
        here = at(middle, restricted)
        for k, e in enumerate(([[1, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 1], [1, 0]])):
            up, down = (at(middle + s * small * np.array(e), restricted) for s in (1, -1))
            slope = (up.deviance - down.deviance) / (2 * small)
            assert here.gradient[k] == pytest.approx(slope, rel=1e-6)
            bend = (up.gradient - down.gradient) / (2 * small)
            np.testing.assert_allclose(here.curvature[k], bend, rtol=1e-6)


@pytest.mark.parametrize(
    ("question", "what"),
    [
        (MixedModel("y", ("age", "x", "z")), "linearly dependent"),
        (MixedModel("y", ("k",)), "no variation"),
        (MixedModel("k", ("x",)), "the same in all"),
        (MixedModel("y", ("x",), subject="row"), "each group has one row"),
        (MixedModel("y", ("x",), subject="one"), "1 groups and 1 random effects"),
        (MixedModel("s", ("x", "age")), "without a rest"),
        (MixedModel("sex", ("x",)), "is text"),
    ],
)
def test_what_has_no_fit_is_a_clear_error(question: MixedModel, what: str) -> None:
    rows = rows_of()
    rows |= {"z": rows["age"] - rows["x"], "k": np.ones(ROWS), "s": rows["x"] + 2 * rows["age"]}
    rows |= {"row": np.arange(ROWS) * 1.0, "one": np.full(ROWS, "")}
    rows["one"] = np.where(rows["site"] == "0", "a", "")
    with pytest.raises(StatisticsError, match=what):
        asked(question, rows)


def test_settings_and_steps_that_make_no_sense_are_refused() -> None:
    for settings in ({"level": 0.0}, {"intercept": False}, {"random": tuple("abcde")}):
        with pytest.raises(StatisticsError):
            MixedModel("y", **settings)
    question, table = MixedModel("y", ("x",)), Table(rows_of())
    good = {"centres": np.zeros(3), "scales": np.ones(3), "relative": np.eye(1)}
    assert question.measure(table, Step("likelihood", (), good), {})["rows"] == ROWS
    for name, wrong in (
        ("scales", np.zeros(3)),
        ("centres", np.zeros(2)),
        ("relative", -np.eye(1)),
        ("relative", np.eye(2)),
        ("relative", np.full((1, 1), np.nan)),
    ):
        with pytest.raises(DelianError):
            question.measure(table, Step("likelihood", (), {**good, name: wrong}), {})
