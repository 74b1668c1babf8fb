"""Generalized linear models of the rows of all sites, equal to a fit of the pooled rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..design import CompleteRows, Design
from ..moments import SPREADS, SUMS, measure_moments
from ..question import Asking, Kept, Question, Step, method
from ..regression.families import LINKS, is_outcome
from ..regression.fitting_steps import AT, ERRORS, JOINT, ROBUST, START, Plan, ask_fit
from ..regression.regression_answer import answer_of
from ..regression.site_sums import Model, SiteData, measure_at, measure_meat, measure_start
from ..site_table import Floats, Table
from ..sums import StatisticsError


@method("glm")
@dataclass(frozen=True)
class GLM(Question):
    """A linear, logistic, Poisson, negative binomial or gamma regression.

    It is fitted by Newton's method (iteratively reweighted least squares) on sums over sites.
    """

    outcome: str
    """The column to explain."""
    predictors: tuple[str, ...] = ()
    """Terms as `design.Design` takes them: `age`, `C(sex)`, `age:C(sex)`."""
    family: str = "linear"
    """`linear`, `logistic`, `poisson`, `negative_binomial` or `gamma`."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By column its categories, the reference first."""
    intercept: bool = True
    """Whether the model has one."""
    site_intercepts: bool = False
    """Whether each site has its own intercept, in place of one for all; it stays at the site."""
    link: str = ""
    """Of a gamma family: `log` (the default) or `inverse`."""
    offset: str = ""
    """A column that is added to the linear predictor."""
    exposure: str = ""
    """A column whose logarithm is added, for a log link."""
    weights: str = ""
    """A column of frequencies: a row counts so many times."""
    alpha: float | None = None
    """Of a negative binomial family, whose variance is mu + alpha mu^2; None: estimated."""
    penalty: float = 0.0
    """Added to half the mean deviance: penalty (l1_ratio |b|_1 + (1 - l1_ratio) |b|_2^2 / 2)."""
    l1_ratio: float = 0.0
    """0: ridge; 1: lasso."""
    standardize: bool = False
    """Whether the penalty is on the coefficients of columns scaled to standard deviation 1."""
    errors: str = "model"
    """Standard errors: `model`; `HC0` and `HC1`, robust to unequal variances; `sites`, robust to
    dependence within a site.
    """
    level: float = 0.95
    """Of the confidence intervals."""

    def __post_init__(self) -> None:
        if self.family not in LINKS:
            raise StatisticsError(
                f"there is no family `{self.family[:40]}`", f"one of {', '.join(LINKS)}"
            )
        if self.link and self.link not in LINKS[self.family]:
            raise StatisticsError(
                f"the family `{self.family}` has no link `{self.link[:40]}`",
                f"one of {', '.join(LINKS[self.family])}",
            )
        if self.exposure and self.model.link != "log":
            raise StatisticsError("an exposure needs a log link", "name it as an offset")
        if self.site_intercepts and self.model.link == "inverse":
            raise StatisticsError(
                "intercepts of sites are not supported with an inverse link", 'use the link "log"'
            )
        if not 0 <= self.l1_ratio <= 1 or not 0 <= self.penalty < np.inf:
            raise StatisticsError("l1_ratio is from 0 to 1, and penalty at least 0")
        if self.alpha is not None and not 0 <= self.alpha <= 1e6:
            raise StatisticsError(f"alpha is {self.alpha}", "from 0 to 1e6; None: estimated")
        if self.alpha is None and self.penalty and self.family == "negative_binomial":
            raise StatisticsError("a penalty needs an alpha that is given")
        if self.errors not in ERRORS or (self.penalty and self.errors != "model"):
            raise StatisticsError(
                f"standard errors of kind `{self.errors[:40]}`",
                f"one of {', '.join(ERRORS)}; with a penalty there are none",
            )
        if not 0 < self.level < 1:
            raise StatisticsError(f"a confidence level of {self.level}", "between 0 and 1")
        if not self.names:
            raise StatisticsError("a model without a coefficient", "name predictors")

    @cached_property
    def design(self) -> Design:
        """The design matrix, with the column of ones where sites have their own intercepts."""
        return Design(self.predictors, self.categories, self.intercept or self.site_intercepts)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the coefficients."""
        return self.design.names[self.site_intercepts :]

    @property
    def model(self) -> Model:
        """What is evaluated at a site."""
        link = self.link or LINKS[self.family][0]
        return Model(self.family, link, self.site_intercepts)

    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._others(), *self.design.columns())))

    def _others(self) -> tuple[str, ...]:
        return tuple(n for n in (self.outcome, self.offset, self.exposure, self.weights) if n)

    def rows(self, table: Table) -> int:
        return self.design.of(table, self._others()).rows

    def ask(self) -> Asking:
        plan = Plan(
            self.names,
            self.model,
            self.intercept and not self.site_intercepts,
            self.alpha,
            self.penalty,
            self.l1_ratio,
            self.standardize,
            self.errors,
        )
        fitted = yield from ask_fit(plan)
        return answer_of(plan, fitted, self.outcome, self.level)

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        if "complete" not in kept:
            kept["complete"] = self.design.of(table, self._others())
        complete: CompleteRows = kept["complete"]
        if step.name in (SUMS, SPREADS):
            y = complete.others[self.outcome]
            if self.offset and self.family == "linear":
                y = y - complete.others[self.offset]
            values = np.column_stack([complete.matrix[:, self.site_intercepts :], y])
            return measure_moments(values, step, complete)
        if step.name not in (START, AT, JOINT, ROBUST):
            raise StatisticsError(f"the method has no step `{step.name[:40]}`")
        data, bad = self._scaled(complete, step, kept, table.floor)
        rows = {"rows": np.array(complete.rows)}
        left = {"missing": np.array(complete.missing), "unlisted": np.array(complete.unlisted)}
        if step.name == START:
            used = {"used": np.array(int((data.weights > 0).sum()))}
            mean = float(step.floats("mean", 1)[0]) / float(step.floats("outcome", 2)[1])
            return {**rows, **used, **bad, **measure_start(self.model, data, mean)}
        joint = step.name == JOINT or (step.name == ROBUST and self.alpha is None)
        joint = joint and self.family == "negative_binomial"
        alphas = step.floats("alphas", 2)
        if (alphas < (1e-300 if joint else 0)).any() or (alphas > 1e6).any():
            raise StatisticsError("a step's alpha is out of range")
        at = step.floats("coefficients", len(self.names))
        if step.name == ROBUST:
            by_site = self.errors == "sites"
            meat = measure_meat(self.model, data, at, float(alphas[0]), joint, by_site)
            return {**rows, "meat": meat}
        null = float(step.floats("null", 1)[0])
        return {**rows, **left, **measure_at(self.model, data, at, null, alphas, joint)}

    def _scaled(
        self, complete: CompleteRows, step: Step, kept: Kept, floor: int
    ) -> tuple[SiteData, dict[str, Any]]:
        """The site's rows as a step scales them, and how many have impossible values."""
        centres = step.floats("centres", len(self.names))
        scales = step.floats("scales", len(self.names))
        middle, unit = step.floats("outcome", 2).tolist()
        if (scales <= 0).any() or unit <= 0:
            raise StatisticsError("a step's scales are not above 0")
        form = (centres.tobytes(), scales.tobytes(), middle, unit)
        if kept.get("form") == form:
            scaled: tuple[SiteData, dict[str, Any]] = kept["scaled"]
            return scaled
        others = complete.others
        y = others[self.outcome]
        one = np.ones(len(y))
        weights = others[self.weights] if self.weights else one
        exposure = others[self.exposure] if self.exposure else one
        wrong = ~is_outcome(self.family, y), weights < 0, exposure <= 0
        bad = {
            name: np.array(int(rows.sum()))
            for name, rows in zip(
                ("bad_outcomes", "bad_weights", "bad_exposures"), wrong, strict=True
            )
        }
        good = ~(wrong[0] | wrong[1] | wrong[2])
        matrix = (complete.matrix[good, self.site_intercepts :] - centres) / scales
        offset = self._offset(others[self.offset][good] if self.offset else 0 * one[good], unit)
        outcome = y[good]
        if self.family == "linear":
            outcome, offset = outcome - offset, 0 * offset
        offset = offset + np.log(exposure[good])
        data = SiteData(matrix, (outcome - middle) / unit, weights[good], offset, floor)
        kept["form"], kept["scaled"] = form, (data, bad)
        return data, bad

    def _offset(self, offset: Floats, unit: float) -> Floats:
        """The offset of an outcome that was divided by `unit`."""
        if self.family != "gamma":
            return offset
        made: Floats = offset * unit if self.model.link == "inverse" else offset - np.log(unit)
        return made
