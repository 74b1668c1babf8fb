"""Regressions over sites are those of the pooled rows, by statsmodels and scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.statistics.methods.glm import GLM
from delian.core.statistics.question import Step
from delian.core.statistics.regression.regression_answer import RegressionAnswer
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError
from delian.simulations.statistics.local_sites import LocalSites

ROWS, SITES = 400, 5
CATEGORIES = {"sex": ("f", "m"), "arm": ("a", "b", "c")}
PREDICTORS = ("age", "dose", "C(sex)", "C(arm)", "age:C(sex)")
FORMULA = "~ age + dose + C(sex) + C(arm) + age:C(sex)"


def rows_of(seed: int = 0) -> dict[str, np.ndarray]:
    draw, n = np.random.default_rng(seed), ROWS
    made: dict[str, Any] = {"age": draw.normal(0, 1, n), "dose": draw.gamma(2, 1, n)}
    made |= {"sex": draw.choice(["f", "m"], n), "arm": draw.choice(["a", "b", "c"], n)}
    made["site"] = np.sort(draw.integers(0, SITES, n)).astype(str)
    eta = 0.4 * made["age"] + 0.4 * (made["sex"] == "m") - 0.3 * made["dose"]
    eta = eta + 0.3 * (made["site"] == "2")
    made["y"] = 50 + 10 * eta + draw.normal(0, 5, n)
    made["sick"] = (draw.random(n) < 1 / (1 + np.exp(-eta))) * 1.0
    made["visits"] = draw.poisson(np.exp(eta + 1)) * 1.0
    made["events"] = draw.negative_binomial(2, 1 / (1 + 0.5 * np.exp(eta + 1))) * 1.0
    made["cost"] = draw.gamma(2, np.exp(eta) * 1e4)
    made["time"], made["copies"] = draw.uniform(0.5, 2, n), draw.integers(1, 4, n) * 1.0
    return made


def split(rows: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    return [{k: v[rows["site"] == str(s)] for k, v in rows.items()} for s in range(SITES)]


def asked(question: GLM, rows: dict[str, np.ndarray] | None = None, **more: Any) -> Any:
    return LocalSites(split(rows_of() if rows is None else rows), **more).answer(question)


def judged(
    family: str, formula: str, rows: dict[str, np.ndarray] | None = None, **more: Any
) -> Any:
    pandas = pytest.importorskip("pandas")
    sm = pytest.importorskip("statsmodels.api")
    smf = pytest.importorskip("statsmodels.formula.api")
    frame = pandas.DataFrame(rows_of() if rows is None else rows)
    made = {
        "logistic": lambda: sm.families.Binomial(),
        "poisson": lambda: sm.families.Poisson(),
        "negative_binomial": lambda: sm.families.NegativeBinomial(alpha=0.7),
        "gamma": lambda: sm.families.Gamma(sm.families.links.Log()),
        "inverse": lambda: sm.families.Gamma(sm.families.links.InversePower()),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if family == "linear":
            return smf.ols(formula, frame).fit()
        if family == "alpha":
            return smf.negativebinomial(formula, frame).fit(
                method="newton", maxiter=200, tol=1e-14, disp=0
            )
        model = smf.glm(formula, frame, family=made[family](), **more)
        # IRLS stops by the deviance; further iterations bring the coefficients to 1e-9.
        return model.fit(tol=0.0, tol_criterion="params", maxiter=60)


def agree(found: RegressionAnswer, judge: Any, rtol: float = 1e-8) -> None:
    order = [list(judge.params.index).index(name) for name in found.names]
    for mine, theirs in (
        (found.coefficients, judge.params),
        (found.standard_errors, judge.bse),
        (found.statistics, judge.tvalues),
    ):
        np.testing.assert_allclose(mine, theirs.iloc[order], rtol=rtol)
    np.testing.assert_allclose(found.p_values, judge.pvalues.iloc[order], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.intervals, judge.conf_int().iloc[order], rtol=rtol, atol=1e-9)
    assert found.log_likelihood == pytest.approx(judge.llf, rel=rtol)
    assert found.aic == pytest.approx(judge.aic, rel=rtol)


OUTCOMES = {
    "linear": "y",
    "logistic": "sick",
    "poisson": "visits",
    "negative_binomial": "events",
    "gamma": "cost",
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("family", list(OUTCOMES))
def test_coefficients_and_standard_errors_are_those_of_statsmodels(family: str, own: bool) -> None:
    alpha = 0.7 if family == "negative_binomial" else None
    question = GLM(
        OUTCOMES[family], PREDICTORS, family, CATEGORIES, site_intercepts=own, alpha=alpha
    )
    found = asked(question)
    judge = judged(family, OUTCOMES[family] + FORMULA + (" + C(site)" if own else ""))
    agree(found, judge)
    assert found.facts["sites"] == SITES and found.facts["rows"] == ROWS
    assert found.df_residual == judge.df_resid
    if family != "linear":
        assert found.deviance == pytest.approx(judge.deviance, rel=1e-9)
        assert found.pearson_chi2 == pytest.approx(judge.pearson_chi2, rel=1e-8)
        assert own or found.null_deviance == pytest.approx(judge.null_deviance, rel=1e-9)
        assert found.scale == pytest.approx(judge.scale, rel=1e-8)
    elif not own:
        assert found.r_squared == pytest.approx(judge.rsquared, rel=1e-10)
        assert found.test == pytest.approx(judge.fvalue, rel=1e-10)
        assert found.test_p_value == pytest.approx(judge.f_pvalue, rel=1e-8)
        assert found.bic == pytest.approx(judge.bic, rel=1e-10)


@pytest.mark.parametrize("own", [False, True])
def test_alpha_by_maximum_likelihood_is_that_of_statsmodels(own: bool) -> None:
    question = GLM("events", PREDICTORS, "negative_binomial", CATEGORIES, site_intercepts=own)
    found = asked(question)
    judge = judged("alpha", "events" + FORMULA + (" + C(site)" if own else ""))
    agree(found, judge)
    assert found.alpha == pytest.approx(judge.params["alpha"], rel=1e-8)
    assert found.alpha_standard_error == pytest.approx(judge.bse["alpha"], rel=1e-8)
    assert own or found.pseudo_r_squared == pytest.approx(judge.prsquared, rel=1e-5)


def test_an_inverse_link_and_models_without_an_intercept() -> None:
    rows = rows_of()
    rate = 1 + 0.1 * rows["age"] + 0.5 * (rows["sex"] == "m")
    rows["fee"] = np.random.default_rng(8).gamma(5, 200 / rate)
    found = asked(GLM("fee", ("age", "C(sex)"), "gamma", CATEGORIES, link="inverse"), rows)
    agree(found, judged("inverse", "fee ~ age + C(sex)", rows))
    for family in OUTCOMES:
        alpha = 0.7 if family == "negative_binomial" else None
        found = asked(
            GLM(OUTCOMES[family], ("C(sex)", "age"), family, CATEGORIES, False, alpha=alpha)
        )
        judge = judged(family, f"{OUTCOMES[family]} ~ C(sex) + age - 1")
        agree(found, judge)
    found, judge = (
        asked(GLM("y", ("age", "dose"), intercept=False)),
        judged("linear", "y ~ age + dose - 1"),
    )
    assert found.r_squared == pytest.approx(judge.rsquared, rel=1e-12)
    assert found.test == pytest.approx(judge.fvalue, rel=1e-12)


def test_frequencies_exposures_and_offsets() -> None:
    rows = rows_of()
    more = {"freq_weights": rows["copies"]}
    question = GLM(
        "visits", PREDICTORS, "poisson", CATEGORIES, exposure="time", offset="age", weights="copies"
    )
    judge = judged("poisson", "visits" + FORMULA, exposure=rows["time"], offset=rows["age"], **more)
    found = asked(question)
    agree(found, judge)
    assert found.null_deviance == pytest.approx(judge.null_deviance, rel=1e-9)
    agree(
        asked(GLM("cost", ("age",), "gamma", offset="dose", weights="copies")),
        judged("gamma", "cost ~ age", offset=rows["dose"], **more),
    )
    found = asked(GLM("y", ("age",), offset="dose", weights="copies"))
    pooled = {k: np.repeat(v, rows["copies"].astype(int)) for k, v in rows.items()}
    pooled["y"] = pooled["y"] - pooled["dose"]
    agree(found, judged("linear", "y ~ age", pooled))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("family", [*OUTCOMES, "alpha"])
def test_robust_standard_errors_are_those_of_statsmodels(family: str, own: bool) -> None:
    rows = rows_of()
    outcome = OUTCOMES.get(family, "events")
    settings: dict[str, Any] = {"family": family, "site_intercepts": own}
    if family in ("negative_binomial", "alpha"):
        settings |= {"family": "negative_binomial", "alpha": None if family == "alpha" else 0.7}
    judge = judged(family, outcome + FORMULA + (" + C(site)" if own else ""))
    at = judge.params.to_numpy()
    scores = judge.model.score_obs(at) if family != "linear" else None
    if scores is None:
        scores = judge.model.exog * np.asarray(judge.resid)[:, None] / judge.scale
        bread = judge.normalized_cov_params * judge.scale
    else:
        bread = np.linalg.inv(-judge.model.hessian(at))
    bread = np.asarray(bread)
    sites = np.array([scores[rows["site"] == str(s)].sum(axis=0) for s in range(SITES)])
    free = ROWS - len(at)
    for kind, parts, factor in (
        ("HC0", scores, 1.0),
        ("HC1", scores, ROWS / free),
        ("sites", sites, SITES / (SITES - 1) * (ROWS - 1) / free),
    ):
        found = asked(GLM(outcome, PREDICTORS, categories=CATEGORIES, errors=kind, **settings))
        whole = np.sqrt(np.diag(bread @ parts.T @ parts @ bread) * factor)
        order = [list(judge.params.index).index(name) for name in found.names]
        np.testing.assert_allclose(found.standard_errors, whole[order], rtol=1e-7)
        if family == "alpha":
            assert found.alpha_standard_error == pytest.approx(whole[-1], rel=1e-7)


def test_robust_errors_of_a_linear_model_have_the_tests_of_statsmodels() -> None:
    rows = rows_of()
    judge = judged("linear", "y" + FORMULA)
    groups = rows["site"].astype(int)
    for kind, more in (("HC0", {}), ("HC1", {}), ("cluster", {"groups": groups})):
        robust = judge.get_robustcov_results(kind, **more)
        errors = "sites" if kind == "cluster" else kind
        found = asked(GLM("y", PREDICTORS, "linear", CATEGORIES, errors=errors))
        np.testing.assert_allclose(found.standard_errors, robust.bse, rtol=1e-9)
        np.testing.assert_allclose(found.p_values, robust.pvalues, rtol=1e-6, atol=1e-15)
        np.testing.assert_allclose(found.intervals, robust.conf_int(), rtol=1e-8)
        assert any("robust" in note for note in found.notes)


def test_a_site_that_drops_out_before_the_robust_step_is_left_out() -> None:
    rows = rows_of()
    question = GLM("y", ("age", "dose"), errors="HC0")
    found = asked(question, silent=lambda step: {1} if step == 4 else ())
    agree_rows = judged("linear", "y ~ age + dose").get_robustcov_results("HC0")
    np.testing.assert_allclose(found.standard_errors, agree_rows.bse, rtol=1e-9)
    found = asked(question, silent=lambda step: {1} if step >= 4 else ())
    others = {k: v[rows["site"] != "1"] for k, v in rows.items()}
    judge = judged("linear", "y ~ age + dose", others).get_robustcov_results("HC0")
    np.testing.assert_allclose(found.standard_errors, judge.bse, rtol=1e-9)
    np.testing.assert_allclose(found.coefficients, judge.params, rtol=1e-9)
    assert found.facts["sites"] == 4


def test_columns_of_any_unit_give_the_same_fit() -> None:
    rows = rows_of()
    units = {"age": 1e9, "dose": 1e-6}
    far = {**rows, **{k: v * units[k] for k, v in rows.items() if k in units}}
    far["age"] = far["age"] + 3e11
    for family, outcome in (("linear", "y"), ("logistic", "sick"), ("gamma", "cost")):
        plain = asked(GLM(outcome, ("age", "dose"), family), rows)
        other = asked(GLM(outcome, ("age", "dose"), family), far)
        scale = np.array(list(units.values()))
        np.testing.assert_allclose(other.coefficients[1:] * scale, plain.coefficients[1:], 1e-9)
        np.testing.assert_allclose(
            other.standard_errors[1:] * scale, plain.standard_errors[1:], 1e-9
        )


def test_a_site_that_drops_out_is_left_out_of_the_fit() -> None:
    rows = rows_of()
    question = GLM("sick", PREDICTORS, "logistic", CATEGORIES)
    found = asked(question, silent=lambda step: {1} if step >= 4 else ())
    others = {k: v[rows["site"] != "1"] for k, v in rows.items()}
    agree(found, judged("logistic", "sick" + FORMULA, others))
    assert found.facts["sites"] == 4 and found.facts["rows"] == len(others["age"])
    assert any("dropped out" in note for note in found.notes)
    back = asked(question, silent=lambda step: {3} if step in (1, 5) else ())
    agree(back, judged("logistic", "sick" + FORMULA))


def test_rows_with_missing_values_and_unlisted_categories_are_left_out() -> None:
    rows = rows_of()
    rows["age"][[3, 9]] = np.nan
    rows["y"][300] = np.nan
    found = asked(GLM("y", ("age", "C(arm)"), categories={"arm": ("a", "b")}), rows)
    kept = (rows["arm"] != "c") & ~np.isnan(rows["age"]) & ~np.isnan(rows["y"])
    agree(found, judged("linear", "y ~ age + C(arm)", {k: v[kept] for k, v in rows.items()}))
    assert found.facts["rows left out"] == ROWS - kept.sum()
    assert len(found.notes) == 2
    printed = str(found)
    assert "C(arm)[T.b]" in printed and "P>|t|" in printed and "nan" not in printed


@pytest.mark.parametrize(("penalty", "ratio"), [(0.3, 0.0), (0.5, 0.9), (1.0, 1.0)])
def test_linear_penalties_are_those_of_scikit_learn(penalty: float, ratio: float) -> None:
    models = pytest.importorskip("sklearn.linear_model")
    rows, x = rows_of(), plain_columns()
    if ratio:
        judge = models.ElasticNet(alpha=penalty, l1_ratio=ratio, tol=1e-14, max_iter=100_000)
    else:
        judge = models.Ridge(alpha=penalty * ROWS)
    judge.fit(x, rows["y"])
    found = asked(GLM("y", PLAIN, "linear", CATEGORIES, penalty=penalty, l1_ratio=ratio))
    np.testing.assert_allclose(found.coefficients, [judge.intercept_, *judge.coef_], 1e-9, 1e-12)
    assert found.standard_errors is None and "no standard errors" in str(found)
    judge.fit((x - x.mean(0)) / x.std(0), rows["y"])
    question = GLM(
        "y", PLAIN, "linear", CATEGORIES, penalty=penalty, l1_ratio=ratio, standardize=True
    )
    expected = judge.coef_ / x.std(0)
    if ratio:
        np.testing.assert_allclose(asked(question).coefficients[1:], expected, 1e-9, 1e-12)


PLAIN = ("C(sex)", "C(arm)", "age", "dose")


def plain_columns() -> np.ndarray:
    rows = rows_of()
    arms = [rows["arm"] == "b", rows["arm"] == "c"]
    return np.column_stack([rows["sex"] == "m", *arms, rows["age"], rows["dose"]]).astype(float)


def test_penalties_of_other_families_are_those_of_scikit_learn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")  # else joblib runs lscpu
    models = pytest.importorskip("sklearn.linear_model")
    rows, x = rows_of(), plain_columns()
    newton = {"tol": 1e-12, "max_iter": 1000, "solver": "newton-cholesky"}
    for family, judge in (
        ("logistic", models.LogisticRegression(C=1 / (0.1 * ROWS), **newton)),
        ("poisson", models.PoissonRegressor(alpha=0.1, **newton)),
        ("gamma", models.GammaRegressor(alpha=0.1, **newton)),
    ):
        judge.fit(x, rows[OUTCOMES[family]])
        found = asked(GLM(OUTCOMES[family], PLAIN, family, CATEGORIES, penalty=0.1))
        theirs = [*np.ravel(judge.intercept_), *np.ravel(judge.coef_)]
        np.testing.assert_allclose(found.coefficients, theirs, rtol=1e-8)
    sm = pytest.importorskip("statsmodels.api")
    each = np.r_[0, np.full(x.shape[1], 0.02)]
    model = sm.GLM(rows["sick"], sm.add_constant(x), family=sm.families.Binomial())
    judge = model.fit_regularized(alpha=each, L1_wt=0.6, maxiter=5000, cnvrg_tol=1e-14)
    found = asked(GLM("sick", PLAIN, "logistic", CATEGORIES, penalty=0.02, l1_ratio=0.6))
    np.testing.assert_allclose(found.coefficients, judge.params, 1e-7, 1e-10)
    assert (found.coefficients == 0).sum() == (judge.params == 0).sum() > 0


def changed(**columns: Any) -> dict[str, np.ndarray]:
    rows = rows_of()
    return {**rows, **{k: np.asarray(make(rows), float) for k, make in columns.items()}}


BAD = [
    (GLM("sick", ("age",), "logistic"), {"sick": lambda r: r["age"] > 0}, "`age` separates"),
    (
        GLM("sick", ("age", "C(arm)"), "logistic", CATEGORIES),
        {"sick": lambda r: np.where(r["arm"] == "b", 1, r["sick"])},
        r"`C\(arm\)\[T.b\]` separates",
    ),
    (
        GLM("visits", ("age", "C(arm)"), "poisson", CATEGORIES),
        {"visits": lambda r: np.where(r["arm"] == "b", 0, r["visits"])},
        r"`C\(arm\)\[T.b\]` separates",
    ),
    (
        GLM("y", ("age", "dose", "x")),
        {"x": lambda r: r["age"] - 3 * r["dose"]},
        "`age`, `dose`, `x`",
    ),
    (GLM("y", ("age", "x")), {"x": lambda r: 0 * r["age"] + 0.3}, "no variation .* `x`"),
    (GLM("y", ("x", "age")), {"x": lambda r: np.nan * r["age"]}, "no complete row"),
    (GLM("visits", ("age",), "logistic"), {}, "other values than 0 and 1"),
    (GLM("age", (), "poisson"), {}, "negative values"),
    (GLM("time", (), "negative_binomial"), {}, "not whole"),
    (GLM("age", (), "gamma"), {}, "not above 0"),
    (GLM("y", (), weights="age"), {}, "weights are negative"),
    (GLM("visits", (), "poisson", exposure="age"), {}, "exposure is not above 0"),
    (GLM("y", ("age",)), {"y": lambda r: 0 * r["age"] + 2}, "the outcome is 2 in all"),
    (GLM("sick", ("age",), "logistic"), {"sick": lambda r: 0 * r["age"]}, "the outcome is 0"),
    (GLM("sick", ("age",), "negative_binomial"), {}, "alpha is 0"),
    (GLM("y", (), "gamma"), {"y": lambda r: 0 * r["age"] + 2}, "without a rest"),
    (GLM("y", ("nothing",)), {}, "no column `nothing`"),
    (GLM("y", ("sex",)), {}, "`sex` is text"),
    (GLM("y", ("age",)), {"age": lambda r: np.where(r["age"] > 1, np.inf, 1)}, "infinite"),
]


@pytest.mark.parametrize(("question", "columns", "what"), BAD)
def test_what_has_no_fit_is_a_clear_error(question: GLM, columns: Any, what: str) -> None:
    with pytest.raises(StatisticsError, match=what):
        asked(question, changed(**columns))


def test_more_coefficients_than_rows_is_an_error() -> None:
    few = [{k: v[:1] for k, v in rows.items()} for rows in split(rows_of())]
    with pytest.raises(StatisticsError, match="coefficients"):
        LocalSites(few).answer(GLM("y", PREDICTORS, "linear", CATEGORIES))
    with pytest.raises(StatisticsError, match="no degree of freedom"):
        LocalSites(few).answer(GLM("y", ("age", "dose", "age:dose", "time")))


@pytest.mark.parametrize(
    "settings",
    [
        {"family": "cauchy"},
        {"family": "poisson", "link": "inverse"},
        {"family": "logistic", "exposure": "time"},
        {"penalty": -1.0},
        {"penalty": 1.0, "l1_ratio": 2.0},
        {"family": "negative_binomial", "alpha": -1.0},
        {"level": 1.0},
        {"errors": "HC9"},
        {"errors": "HC0", "penalty": 1.0},
        {"intercept": False},
        {"site_intercepts": True},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(StatisticsError):
        GLM("y", **settings)


def test_a_hostile_step_is_refused() -> None:
    question, table = GLM("sick", ("age",), "logistic"), Table(rows_of())
    good = {
        "centres": np.zeros(2),
        "scales": np.ones(2),
        "outcome": np.array([0.0, 1.0]),
        "coefficients": np.zeros(2),
        "null": np.zeros(1),
        "alphas": np.zeros(2),
    }
    assert question.measure(table, Step("at", (), good), {})["rows"] == ROWS
    for name, wrong in (
        ("centres", np.zeros(3)),
        ("scales", np.zeros(2)),
        ("scales", np.ones((2, 1))),
        ("outcome", np.array([0.0, -1.0])),
        ("coefficients", np.array([np.nan, 0.0])),
        ("alphas", np.array([-1.0, 0.0])),
        ("null", np.zeros(1, np.int64)),
    ):
        with pytest.raises(DelianError):
            question.measure(table, Step("at", (), {**good, name: wrong}), {})
    with pytest.raises(DelianError):
        question.measure(table, Step("rows", (), good), {})
