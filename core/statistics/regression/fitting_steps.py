"""The steps of a generalized linear model, as the analyst asks them: start, then Newton's steps."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from ..moments import Moments, ask_moments
from ..question import Step
from ..site_table import Floats
from ..sums import StatisticsError, Totals
from .newton import Descent, Key, check_rank, inverted, solved
from .penalty import Penalty
from .site_sums import Model, meat_sums, start_sums, sums_of, unpacked

ROUNDS_MAX = 200
#: Names of steps after those of the moments.
START, AT, JOINT, ROBUST = "start", "at", "joint", "robust"
#: Kinds of standard errors.
ERRORS = ("model", "HC0", "HC1", "sites")
_TRIES_MAX = 5


@dataclass(frozen=True)
class Scaling:
    """How columns and outcome enter the sums: (x - centres) / scales, (y - middle) / unit."""

    centres: Floats
    """f64[p]."""
    scales: Floats
    """f64[p]."""
    middle: float
    """What the outcome is centred by: linear models with an intercept."""
    unit: float
    """What the outcome is scaled by: linear and gamma models."""
    factor: float
    """A coefficient is factor / scale times that of the scaled column."""
    loss: float
    """A loss is this many times that of the scaled outcome."""

    def arrays(self) -> dict[str, Floats]:
        """What a step carries of it."""
        outcome = np.array([self.middle, self.unit])
        return {"centres": self.centres, "scales": self.scales, "outcome": outcome}

    def back(self, intercept: bool) -> tuple[Floats, Floats]:
        """(A, b), f64[p, p] and f64[p]: coefficients of the columns as they are, A scaled + b.

        intercept: whether the first column is that of ones.
        """
        matrix = np.diag(self.factor / self.scales)
        shift = np.zeros(len(self.scales))
        if intercept:
            matrix[0, 1:] = -self.factor * self.centres[1:] / self.scales[1:]
            shift[0] = self.middle
        return matrix, shift


@dataclass(frozen=True)
class Plan:
    """What is fitted."""

    names: tuple[str, ...]
    """Of the design's columns."""
    model: Model
    """Family, link, and whether sites have their own intercepts."""
    intercept: bool
    """Whether the first column is that of ones."""
    alpha: float | None
    """Of a negative binomial family; None where it is estimated."""
    penalty: float
    """As `glm.GLM.penalty`."""
    l1_ratio: float
    """As `glm.GLM.l1_ratio`."""
    standardize: bool
    """As `glm.GLM.standardize`."""
    errors: str
    """As `glm.GLM.errors`."""

    @property
    def joint(self) -> bool:
        """Whether alpha is estimated."""
        return self.model.family == "negative_binomial" and self.alpha is None


@dataclass(frozen=True)
class Fitted:
    """Where Newton's method ended: sums of the last step, at its coefficients."""

    scaling: Scaling
    """How they were scaled."""
    totals: Totals
    """Of the last step."""
    at: Floats
    """f64[p], scaled; with log alpha behind them where it was estimated."""
    alphas: Floats
    """f64[2]: of the model, and of the null model."""
    information: Floats
    """f64[q, q] at `at`: expected, or that of the rows where alpha was estimated."""
    meat: Floats | None
    """f64[q, q]: outer products of scores, for robust standard errors."""
    rounds: int
    """Steps, the moments' two and the first iteration among them."""
    changed: bool
    """Whether the rows were not the same in all steps."""

    def covariance(self) -> Floats:
        """f64[q, q]: the inverse information; with `meat`, the sandwich of it between two."""
        if self.meat is None:
            return inverted(self.information)
        bread = inverted(unpacked(self.totals["information"], len(self.at)))
        made: Floats = bread @ self.meat @ bread
        return made


def ask_fit(plan: Plan) -> Generator[Step, Totals, Fitted]:
    """Asks all steps. Raises StatisticsError where there is no fit."""
    width = len(plan.names)
    moments = yield from ask_moments(width + 1)
    scaling = _scaling(plan, moments)
    _check_outcome(plan, moments)
    begin = yield Step(START, start_sums(width), {**scaling.arrays(), "mean": _mean(moments)})
    _check_rows(plan, begin)
    information = unpacked(begin["information"], width)
    penalty = _penalty(plan, scaling, begin.number("weight"))
    if penalty:
        at = penalty.direction(np.zeros(width), begin["score"], information)
    else:
        check_rank(information, plan.names)
        at = solved(information, begin["score"])
    frozen = plan.model.own or (plan.model.family == "linear" and not plan.intercept)
    null = np.zeros(1)
    if not frozen:
        null = begin["null_score"] / max(begin.number("null_information"), 1e-300)
    full = Descent(at, plan.names, penalty)
    rest = Descent(null, ("Intercept",), frozen=frozen)
    alpha = 0.0 if plan.joint else plan.alpha or 0.0
    keys: set[Key] = {(begin.number("rows"), float(begin.sites))}
    run = _Run(plan, scaling, keys, 3)
    totals = yield from run.until_done(AT, full, rest, np.full(2, alpha))
    alphas = np.full(2, alpha)
    if plan.joint:
        full, rest, totals, alphas = yield from _with_alpha(plan, run, full, rest, totals)
    meat = None
    if plan.errors != "model":
        totals, meat = yield from run.meat(full, rest, alphas, totals)
        alphas = _alphas(full, rest) if plan.joint else alphas
    return Fitted(
        scaling,
        totals,
        full.at,
        alphas,
        unpacked(totals.get("expected", totals["information"]), len(full.at)),
        meat,
        run.rounds,
        len(run.keys) > 1,
    )


@dataclass
class _Run:
    """The steps that were asked."""

    plan: Plan
    scaling: Scaling
    keys: set[Key]
    rounds: int

    def until_done(
        self, name: str, full: Descent, rest: Descent, alphas: Floats
    ) -> Generator[Step, Totals, Totals]:
        """Newton's steps of the model and of the null model; gives the last totals."""
        joint = name == JOINT
        # With intercepts of sites, the null model has no coefficient but log alpha.
        first = int(self.plan.model.own and joint)
        width = len(full.at)
        while self.rounds < ROUNDS_MAX:
            if joint:
                alphas = _alphas(full, rest)
            arrays = {
                **self.scaling.arrays(),
                "coefficients": full.at[: width - joint],
                "null": np.zeros(1) if first else rest.at[:1],
                "alphas": alphas,
            }
            totals = yield Step(name, sums_of(width, joint, self.plan.model.bent), arrays)
            self.rounds += 1
            rows, sites = totals.number("rows"), float(totals.sites)
            if totals.number("used") == 0:
                raise StatisticsError("no site has rows with different outcomes")
            self.keys.add((rows, sites))
            key = (rows, sites, totals.number("used"), totals.number("weight"))
            bad = totals["invalid"] > 0
            part = joint * 1.0
            full.take(
                key,
                totals.number("loss") - part * totals.number("constant"),
                totals["score"],
                unpacked(totals["information"], width),
                bool(bad[0]),
            )
            score, information = totals["null_score"], totals["null_information"]
            rest.take(
                key,
                totals.number("null_loss") - part * totals.number("null_constant"),
                score[first:],
                unpacked(information, len(score))[first:, first:],
                bool(bad[1]),
            )
            if full.done and rest.done:
                return totals
        raise StatisticsError(
            f"no convergence in {ROUNDS_MAX} steps",
            "leave out columns that nearly depend on each other, or give a penalty",
        )

    def meat(
        self, full: Descent, rest: Descent, alphas: Floats, totals: Totals
    ) -> Generator[Step, Totals, tuple[Totals, Floats]]:
        """The totals of the last Newton step, and the outer products of scores there."""
        joint, width = self.plan.joint, len(full.at)
        for _ in range(_TRIES_MAX):
            if joint:
                alphas = _alphas(full, rest)
            arrays = {
                **self.scaling.arrays(),
                "coefficients": full.at[: width - joint],
                "alphas": alphas,
            }
            found = yield Step(ROBUST, meat_sums(width), arrays)
            self.rounds += 1
            if (found.number("rows"), found.sites) == (totals.number("rows"), totals.sites):
                return totals, unpacked(found["meat"], width)
            name = JOINT if joint else AT
            totals = yield from self.until_done(name, full, rest, alphas)
        raise StatisticsError("sites come and go in each step", "ask again later")


def _alphas(full: Descent, rest: Descent) -> Floats:
    """Of the model and of the null model."""
    found: Floats = np.exp(np.clip([full.at[-1], rest.at[-1]], -40.0, 13.0))
    return found


def _with_alpha(
    plan: Plan, run: _Run, full: Descent, rest: Descent, totals: Totals
) -> Generator[Step, Totals, tuple[Descent, Descent, Totals, Floats]]:
    """From the Poisson fit to that with alpha."""
    excess, squares = totals["excess"], totals["squares"]
    if excess[0] <= 0:
        raise StatisticsError(
            "the counts vary no more than those of a Poisson distribution: alpha is 0",
            'use the family "poisson"',
        )
    begin = np.log(np.clip(excess / squares, 1e-6, 1e3))
    at = np.append(full.at, begin[0])
    full = Descent(at, (*plan.names, "alpha"), joint=True)
    null = np.append(np.zeros(0) if plan.model.own else rest.at, begin[1])
    rest = Descent(null, ("Intercept", "alpha")[-len(null) :], joint=True)
    totals = yield from run.until_done(JOINT, full, rest, np.ones(2))
    return full, rest, totals, _alphas(full, rest)


def _scaling(plan: Plan, moments: Moments) -> Scaling:
    family, link = plan.model.family, plan.model.link
    centred = plan.intercept or plan.model.own
    centres, scales = moments.means[:-1].copy(), moments.scales[:-1].copy()
    if plan.intercept:
        centres[0], scales[0] = 0.0, 1.0
    if not centred:
        scales = np.hypot(moments.means, moments.spreads)[:-1]
        centres, scales = np.zeros(len(scales)), np.where(scales > 0, scales, 1.0)
    mean, spread = float(moments.means[-1]), float(moments.scales[-1])
    if family == "linear":
        unit = spread if centred else float(np.hypot(mean, moments.spreads[-1])) or 1.0
        return Scaling(centres, scales, mean if centred else 0.0, unit, unit, unit**2)
    unit = mean if family == "gamma" and mean > 0 else 1.0
    factor = 1 / unit if link == "inverse" else 1.0
    return Scaling(centres, scales, 0.0, unit, factor, 1.0)


def _mean(moments: Moments) -> Floats:
    return moments.means[-1:].copy()


def _penalty(plan: Plan, scaling: Scaling, weight: float) -> Penalty | None:
    if plan.penalty == 0:
        return None
    scales = np.ones(len(plan.names)) if plan.standardize else scaling.scales
    # Of coefficients as they are: factor / scale times the scaled ones.
    size = scaling.factor / scales
    l1 = weight * plan.penalty * plan.l1_ratio * size / scaling.loss
    l2 = weight * plan.penalty * (1 - plan.l1_ratio) * size**2 / scaling.loss
    if plan.intercept:
        l1[0] = l2[0] = 0.0
    return Penalty(l1, l2)


def _check_outcome(plan: Plan, moments: Moments) -> None:
    """Raises StatisticsError for outcomes that are all the same."""
    if moments.spreads[-1] > 0:
        return
    mean = float(moments.means[-1])
    if (
        plan.model.family == "linear"
        or mean == 0
        or (plan.model.family == "logistic" and mean == 1)
    ):
        raise StatisticsError(
            f"the outcome is {mean:.6g} in all {moments.rows:,} rows", "there is nothing to explain"
        )


_WRONG = {
    "logistic": "other values than 0 and 1",
    "poisson": "negative values, or such above 1e13",
    "negative_binomial": "negative values, values that are not whole, or such above 1 million",
    "gamma": "values that are not above 0",
    "linear": "values that are not finite",
}


def _check_rows(plan: Plan, begin: Totals) -> None:
    """Raises StatisticsError for values that a model of this family cannot have."""
    for name, what in (
        ("bad_outcomes", f"the outcome has {_WRONG[plan.model.family]}"),
        ("bad_weights", "the weights are negative"),
        ("bad_exposures", "the exposure is not above 0"),
    ):
        if begin[name] > 0:
            raise StatisticsError(f"{what} in {int(begin.number(name)):,} rows")
    weight, width = begin.number("weight"), len(plan.names)
    if begin.number("used") == 0 or weight <= 0:
        raise StatisticsError("no row has a weight above 0")
    groups = int(begin.number("groups")) if plan.model.own else 0
    if not plan.penalty and weight < width + groups:
        raise StatisticsError(
            f"{weight:g} rows and {width + groups} coefficients", "use fewer predictors"
        )
