"""The answer of a generalized linear model, printed as statsmodels prints one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..answer import Answer, Plot, ResultTable
from ..distributions import (
    chi_squared_tail,
    f_tail,
    normal_quantile,
    normal_two_sided,
    t_quantile,
    t_two_sided,
)
from ..site_table import Floats
from ..sums import StatisticsError
from .fitting_steps import Fitted, Plan

_TITLES = {
    "linear": "Linear regression",
    "logistic": "Logistic regression",
    "poisson": "Poisson regression",
    "negative_binomial": "Negative binomial regression",
    "gamma": "Gamma regression",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressionAnswer(Answer):
    """A fitted generalized linear model."""

    names: tuple[str, ...]
    """Of the coefficients."""
    coefficients: Floats
    """f64[p]."""
    standard_errors: Floats | None
    """f64[p]; None with a penalty."""
    covariance: Floats | None
    """f64[p, p] of the coefficients."""
    statistics: Floats | None
    """f64[p]: Student's t for a linear model, else z."""
    p_values: Floats | None
    """f64[p], two-sided."""
    intervals: Floats | None
    """f64[p, 2]."""
    deviance: float
    """For a linear model the residual sum of squares."""
    null_deviance: float
    """Of the model with an intercept alone (with the sites' intercepts, where they have their
    own; with none at all for a linear model without an intercept).
    """
    pearson_chi2: float
    """Sum of squared residuals over their variances."""
    scale: float
    """Dispersion: Pearson's chi-squared over `df_residual` for linear and gamma, else 1."""
    log_likelihood: float
    """At the fit."""
    null_log_likelihood: float
    """Of the null model."""
    aic: float
    """-2 log_likelihood + 2 parameters."""
    bic: float
    """-2 log_likelihood + log(rows) parameters."""
    r_squared: float
    """1 - deviance / null deviance; for a linear model the usual one."""
    pseudo_r_squared: float
    """McFadden's, 1 - log_likelihood / null_log_likelihood; for a linear model nan."""
    test: float | None
    """F of a linear model, else the likelihood ratio's chi-squared, of all predictors."""
    test_p_value: float | None
    """Its p-value."""
    df_model: int
    """Coefficients apart from intercepts."""
    df_residual: float
    """Rows (their weights) less coefficients."""
    alpha: float | None
    """Of a negative binomial family."""
    alpha_standard_error: float | None
    """Where alpha was estimated."""
    converged: bool = True
    """A fit that does not converge is an error."""


def answer_of(plan: Plan, fitted: Fitted, outcome: str, level: float) -> RegressionAnswer:
    """What is known from the last step's sums. Raises StatisticsError."""
    fit = _fit_numbers(plan, fitted)
    found = _coefficients(plan, fitted, fit["scale"], fit["df_residual"], level)
    fit |= _whole_test(plan, fit)
    table, plots = _table(plan, outcome, level, found)
    return RegressionAnswer(
        _TITLES[plan.model.family],
        _facts(plan, fitted, outcome, fit | found),
        (table,),
        plots,
        _notes(plan, fitted),
        **fit,
        **found,
    )


def _fit_numbers(plan: Plan, fitted: Fitted) -> dict[str, Any]:
    """The numbers of the whole fit."""
    totals, family, width = fitted.totals, plan.model.family, len(plan.names)
    weight = totals.number("weight")
    groups = int(totals.number("groups")) if plan.model.own else 0
    freedom = weight - width - groups
    unit = fitted.scaling.loss
    deviance, null_deviance = (2 * unit * totals.number(n) for n in ("loss", "null_loss"))
    pearson = unit * totals.number("pearson")
    scale = 1.0
    if family in ("linear", "gamma"):
        if freedom <= 0:
            raise StatisticsError(
                f"{weight:g} rows and {width + groups} coefficients leave no degree of freedom",
                "use fewer predictors",
            )
        scale = pearson / freedom
        if scale <= 0:
            raise StatisticsError(
                "the predictors explain the outcome without a rest",
                "look for a column that repeats the outcome",
            )
    likely, null_likely = _log_likelihoods(plan, fitted, scale)
    parameters = width + groups + plan.joint
    pseudo = 1 - likely / null_likely if family != "linear" and null_likely != 0 else math.nan
    return {
        "df_residual": freedom,
        "df_model": width - plan.intercept,
        "deviance": deviance,
        "null_deviance": null_deviance,
        "pearson_chi2": pearson,
        "scale": scale,
        "log_likelihood": likely,
        "null_log_likelihood": null_likely,
        "aic": -2 * likely + 2 * parameters,
        "bic": -2 * likely + math.log(weight) * parameters,
        "r_squared": 1 - deviance / null_deviance if null_deviance > 0 else math.nan,
        "pseudo_r_squared": pseudo,
    }


def _coefficients(
    plan: Plan, fitted: Fitted, scale: float, freedom: float, level: float
) -> dict[str, Any]:
    """The coefficients of the columns as they are, and their tests."""
    width, family = len(plan.names), plan.model.family
    matrix, shift = fitted.scaling.back(plan.intercept)
    coefficients = matrix @ fitted.at[:width] + shift
    alpha = float(fitted.alphas[0]) if family == "negative_binomial" else None
    errors = covariance = alpha_error = None
    if not plan.penalty:
        whole = fitted.covariance()
        if plan.joint and alpha is not None:
            alpha_error = alpha * math.sqrt(whole[-1, -1])
            if fitted.meat is not None:
                alpha_error *= math.sqrt(_correction(plan, fitted))
        unit = fitted.scaling.loss
        factor = scale / unit if fitted.meat is None else _correction(plan, fitted)
        covariance = matrix @ whole[:width, :width] @ matrix.T * factor
        errors = np.sqrt(np.diag(covariance))
    if plan.errors == "sites":
        freedom = fitted.totals.number("groups") - 1
    statistics, p_values, intervals = _tests(coefficients, errors, family, freedom, level)
    return {
        "names": plan.names,
        "coefficients": coefficients,
        "standard_errors": errors,
        "covariance": covariance,
        "statistics": statistics,
        "p_values": p_values,
        "intervals": intervals,
        "alpha": alpha,
        "alpha_standard_error": alpha_error,
    }


def _correction(plan: Plan, fitted: Fitted) -> float:
    """What robust covariances are multiplied by for a small number of rows, or of sites."""
    totals = fitted.totals
    rows, groups = totals.number("weight"), totals.number("groups")
    free = rows - len(fitted.at) - (groups if plan.model.own else 0)
    if plan.errors == "HC0":
        return 1.0
    if free <= 0 or (plan.errors == "sites" and groups < 2):
        raise StatisticsError("too few rows or sites for robust standard errors")
    return rows / free if plan.errors == "HC1" else groups / (groups - 1) * (rows - 1) / free


def _log_likelihoods(plan: Plan, fitted: Fitted, scale: float) -> tuple[float, float]:
    """Of the model and of the null model."""
    totals, weight = fitted.totals, fitted.totals.number("weight")
    losses = [totals.number("loss"), totals.number("null_loss")]
    constants = [totals.number("constant"), totals.number("null_constant")]
    family = plan.model.family
    if family == "linear":
        # The variance is that which maximizes it: RSS / n.
        rss = [2 * fitted.scaling.loss * loss / weight for loss in losses]
        likely = [-weight / 2 * (math.log(2 * math.pi * r) + 1) if r > 0 else math.inf for r in rss]
        return likely[0], likely[1]
    if family == "gamma":
        each = -1 - math.log(scale) - scale * math.lgamma(1 / scale)
        constant = constants[0] - weight * math.log(fitted.scaling.unit)
        made = [(-loss + weight * each) / scale + constant for loss in losses]
        return made[0], made[1]
    return constants[0] - losses[0], constants[1] - losses[1]


def _tests(
    coefficients: Floats, errors: Floats | None, family: str, freedom: float, level: float
) -> tuple[Floats | None, Floats | None, Floats | None]:
    """(t or z, p-values, intervals)."""
    if errors is None:
        return None, None, None
    with np.errstate(divide="ignore", invalid="ignore"):
        statistics = coefficients / errors
    tail = (1 + level) / 2
    if family == "linear":
        p_values, quantile = t_two_sided(statistics, freedom), t_quantile(tail, freedom)
    else:
        p_values, quantile = normal_two_sided(statistics), normal_quantile(tail)
    half = quantile * errors
    return statistics, p_values, np.column_stack([coefficients - half, coefficients + half])


def _whole_test(plan: Plan, fit: dict[str, Any]) -> dict[str, Any]:
    """The test of all predictors at once: its statistic and p-value."""
    linear, count = plan.model.family == "linear", fit["df_model"]
    centred = plan.intercept or plan.model.own
    if plan.penalty or count < 1 or not (centred or linear) or (linear and fit["deviance"] <= 0):
        return {"test": None, "test_p_value": None}
    if linear:
        explained = (fit["null_deviance"] - fit["deviance"]) / count
        value = explained / (fit["deviance"] / fit["df_residual"])
        return {"test": value, "test_p_value": float(f_tail(value, count, fit["df_residual"]))}
    ratio = 2 * (fit["log_likelihood"] - fit["null_log_likelihood"])
    return {"test": ratio, "test_p_value": float(chi_squared_tail(max(ratio, 0.0), count))}


def _facts(plan: Plan, fitted: Fitted, outcome: str, fit: dict[str, Any]) -> dict[str, Any]:
    totals, linear = fitted.totals, plan.model.family == "linear"
    facts = {
        "outcome": outcome,
        "sites": totals.sites,
        "link": plan.model.link,
        "rows": int(totals.number("rows")),
        "steps": fitted.rounds,
        "rows left out": int(totals.number("missing") + totals.number("unlisted")),
        "df residual": fit["df_residual"],
        "df model": fit["df_model"],
        "log-likelihood": fit["log_likelihood"],
        "deviance": fit["deviance"],
        "AIC": fit["aic"],
        "null deviance": fit["null_deviance"],
        "BIC": fit["bic"],
        "scale": fit["scale"],
        **(
            {"R-squared": fit["r_squared"]}
            if linear
            else {"pseudo R-squared": fit["pseudo_r_squared"]}
        ),
    }
    if fit["test"] is not None:
        facts |= {"F" if linear else "LR chi2": fit["test"], "p (all)": fit["test_p_value"]}
    if fit["alpha"] is not None:
        facts["alpha"] = fit["alpha"]
    if fit["alpha_standard_error"] is not None:
        facts["alpha std err"] = fit["alpha_standard_error"]
    return facts


def _notes(plan: Plan, fitted: Fitted) -> tuple[str, ...]:
    totals, notes = fitted.totals, []
    missing, unlisted = (int(totals.number(name)) for name in ("missing", "unlisted"))
    if missing:
        notes.append(f"{missing:,} rows with a missing value are left out.")
    if unlisted:
        notes.append(f"{unlisted:,} rows have a category that is not listed; they are left out.")
    if plan.model.own:
        notes.append("each site has its own intercept, which stays there.")
        unused = int(totals.number("rows") - totals.number("used"))
        if unused:
            notes.append(f"{unused:,} rows are at sites whose outcomes are all the same; unused.")
    if fitted.changed:
        notes.append(
            f"sites have dropped out or come back; the fit is that of {totals.sites} sites."
        )
    if plan.errors in ("HC0", "HC1"):
        notes.append(f"standard errors are robust to unequal variances ({plan.errors}).")
    if plan.errors == "sites":
        notes.append(
            "standard errors are robust to dependence within sites; many sites are needed."
        )
    if plan.penalty:
        notes.append("coefficients with a penalty have no standard errors.")
    return tuple(notes)


def _table(
    plan: Plan, outcome: str, level: float, found: dict[str, Any]
) -> tuple[ResultTable, tuple[Plot, ...]]:
    coefficients, intervals = found["coefficients"], found["intervals"]
    if intervals is None:
        rows = tuple(zip(plan.names, coefficients.tolist(), strict=True))
        return ResultTable("", ("", "coef"), rows), ()
    low, high = f"[{(1 - level) / 2:.3g}", f"{(1 + level) / 2:.3g}]"
    letter = "t" if plan.model.family == "linear" else "z"
    columns = [found[n] for n in ("coefficients", "standard_errors", "statistics", "p_values")]
    table = ResultTable(
        "",
        ("", "coef", "std err", letter, f"P>|{letter}|", low, high),
        tuple(
            (name, *map(float, row))
            for name, *row in zip(plan.names, *columns, *intervals.T, strict=True)
        ),
    )
    series = {
        f"{level:.0%}": {
            "x": coefficients.tolist(),
            "y": list(plan.names),
            "low": intervals[:, 0].tolist(),
            "high": intervals[:, 1].tolist(),
        }
    }
    plot = Plot("intervals", f"Coefficients of {outcome}", "coefficient", "", series)
    return table, (plot,)
