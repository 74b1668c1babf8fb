"""Linear mixed models: random intercepts and slopes of sites, or of groups within sites."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..answer import Answer, Plot, ResultTable
from ..counting.counted_steps import CountedSteps
from ..design import CompleteRows, Design
from ..distributions import chi_squared_tail, normal_quantile, normal_two_sided
from ..moments import SPREADS, SUMS, Moments, ask_moments, measure_moments
from ..question import Asking, Kept, Question, Step, method
from ..regression.mixed_likelihood import Profile, at_factor, measure, sums_of
from ..regression.newton import check_rank
from ..site_table import Floats, Places, Table
from ..sums import StatisticsError, Totals

STEP = "likelihood"
EFFECTS_MAX = 4
_ROUNDS_MAX = 100
#: Newton's steps end at this size relative to L, or where D can fall no further than this.
_TOLERANCE, _DECREMENT = 1e-9, 1e-12
_HALVINGS_MAX = 40


@dataclass(frozen=True, eq=False)
class MixedModelAnswer(Answer):
    """A fitted linear mixed model."""

    names: tuple[str, ...] = ()
    """Of the fixed effects."""
    coefficients: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[p]: fixed effects."""
    standard_errors: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[p], of the likelihood's curvature in all parameters, as statsmodels has them."""
    gls_standard_errors: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[p], for the estimated covariance as if it were known, as R's lme4 has them."""
    z: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[p]: coefficients over standard errors."""
    p_values: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[p], two-sided, normal."""
    intervals: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    """f64[p, 2]."""
    effects: tuple[str, ...] = ()
    """Names of the random effects."""
    covariance: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """f64[q, q]: of the random effects."""
    scale: float = 0.0
    """Variance of the residuals."""
    log_likelihood: float = 0.0
    """At the fit; restricted with REML."""
    groups: int = 0
    """Groups, or sites, with a random effect each."""
    null_log_likelihood: float = 0.0
    """Without random effects."""


@method("mixed_model")
@dataclass(frozen=True)
class MixedModel(Question):
    """Fits y = X b + Z u + e by (restricted) maximum likelihood."""

    outcome: str
    """The column to explain."""
    predictors: tuple[str, ...] = ()
    """Fixed effects: terms as `design.Design` takes them."""
    random: tuple[str, ...] = ()
    """Random slopes: terms; the random intercept is always there."""
    subject: str = ""
    """Column whose values make the groups, such as patients; each is at one site. Empty: a site
    is a group.
    """
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By column its categories, the reference first."""
    intercept: bool = True
    """Whether there is a fixed one."""
    restricted: bool = True
    """Restricted maximum likelihood (REML); False: maximum likelihood."""
    level: float = 0.95
    """Of the intervals."""

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise StatisticsError(f"a confidence level of {self.level}", "between 0 and 1")
        if not self.design.width:
            raise StatisticsError("a model without a fixed effect", "name predictors")
        if self.random_design.width > EFFECTS_MAX:
            raise StatisticsError(
                f"{self.random_design.width} random effects", f"at most {EFFECTS_MAX}"
            )

    @cached_property
    def design(self) -> Design:
        """Of the fixed effects."""
        return Design(self.predictors, self.categories, self.intercept)

    @cached_property
    def random_design(self) -> Design:
        """Of the random effects."""
        return Design(self.random, self.categories, True)

    @cached_property
    def _both(self) -> Design:
        return Design((*self.predictors, *self.random), self.categories)

    def columns(self) -> tuple[str, ...]:
        group = (self.subject,) if self.subject else ()
        return tuple(dict.fromkeys((self.outcome, *group, *self._both.columns())))

    def rows(self, table: Table) -> int:
        return len(self._read(table, {})[0])

    # ------------------------------------------------ where it is asked

    def ask(self) -> Asking:
        steps = CountedSteps()
        width, effects = self.design.width, self.random_design.width
        moments = yield from steps.through(ask_moments(width + effects))
        scaling = self._scaling(moments)
        factor, profile, null, totals = yield from steps.through(self._fitted(scaling))
        return self._answer(scaling, factor, profile, null, totals, steps)

    def _scaling(self, moments: Moments) -> dict[str, Floats]:
        """Centres and scales of [fixed, slopes, outcome]; a centre needs an intercept."""
        if moments.spreads[-1] == 0:
            raise StatisticsError(f"the outcome is the same in all {moments.rows:,} rows")
        width = self.design.width
        centres, scales = moments.means.copy(), moments.scales.copy()
        if not self.intercept:
            centres[:width] = centres[-1] = 0.0
            sizes = np.hypot(moments.means, moments.spreads)
            scales[:width] = np.where(sizes > 0, sizes, 1.0)[:width]
        else:
            centres[0], scales[0] = 0.0, 1.0
        return {"centres": centres, "scales": scales}

    def _step(self, scaling: Mapping[str, Floats], factor: Floats) -> Step:
        relative = factor @ factor.T
        sums = sums_of(self.design.width + 1, self.random_design.width)
        return Step(STEP, sums, {**scaling, "relative": (relative + relative.T) / 2})

    def _fitted(
        self, scaling: Mapping[str, Floats]
    ) -> Generator[Step, Totals, tuple[Floats, Profile, float, Totals]]:
        """(L, the profile there, D without random effects, the last totals)."""
        width, effects = self.design.width, self.random_design.width
        for _ in range(3):
            totals = yield self._step(scaling, np.zeros((effects, effects)))
            self._check(totals)
            null = Profile.of(totals, width, effects, self.restricted)
            factor, base, fraction = np.eye(effects), None, 1.0
            keys = {(totals.sites, totals.number("rows"))}
            for _ in range(_ROUNDS_MAX):
                totals = yield self._step(scaling, factor)
                keys.add((totals.sites, totals.number("rows")))
                if len(keys) > 1:
                    break  # other rows: from the start
                here = Profile.of(totals, width, effects, self.restricted)
                if base is not None and not _falls(base, here.deviance, fraction):
                    fraction /= 2
                    if fraction < 0.5**_HALVINGS_MAX:
                        raise StatisticsError("no step improves the fit", "use fewer predictors")
                    factor = base[0] + fraction * base[2]
                    continue
                direction, decrement, saddle = _newton(here, factor)
                size = float(np.abs(direction).max())
                if size <= _TOLERANCE * float(np.abs(factor).max()) or decrement < _DECREMENT:
                    if saddle is None:
                        return factor, here, null.deviance, totals
                    factor, base, fraction = factor + saddle, None, 1.0
                    continue
                base, fraction = (factor, here.deviance, direction, decrement), 1.0
                factor = factor + direction
            else:
                raise StatisticsError(
                    f"no convergence in {_ROUNDS_MAX} steps", "use fewer random effects"
                )
        raise StatisticsError("sites come and go in each step", "ask again later")

    def _check(self, totals: Totals) -> None:
        """Raises StatisticsError where there is no fit. totals: without random effects."""
        width, rows = self.design.width, totals.number("rows")
        groups = int(totals.number("groups"))
        if rows <= width + 1:
            raise StatisticsError(f"{rows:g} rows and {width} fixed effects", "use fewer")
        if groups <= self.random_design.width:
            raise StatisticsError(
                f"{groups} groups and {self.random_design.width} random effects",
                "a random effect needs several groups; use fixed effects of sites (glm)",
            )
        if groups >= rows:
            raise StatisticsError("each group has one row", "random effects need several")
        full = np.zeros((width + 1, width + 1))
        full[np.triu_indices(width + 1)] = totals["products"]
        information = full[:width, :width]
        check_rank(information + np.triu(information, 1).T, self.design.names)

    def _answer(
        self,
        scaling: Mapping[str, Floats],
        factor: Floats,
        profile: Profile,
        null: float,
        totals: Totals,
        steps: CountedSteps,
    ) -> MixedModelAnswer:
        back, shift, turn = self._back(scaling)
        unit = float(scaling["scales"][-1])
        gls = back @ np.linalg.inv(profile.information) @ back.T * profile.scale
        errors = gls_errors = np.sqrt(np.diag(gls))
        notes = []
        try:
            np.linalg.cholesky(profile.joint)
            part = np.linalg.inv(profile.joint)[: len(back), : len(back)]
            errors = np.sqrt(np.diag(back @ part @ back.T))
        except np.linalg.LinAlgError:
            notes.append("a variance is at its bound: standard errors take it as known.")
        likely = [-(d + 2 * profile.freedom * np.log(unit)) / 2 for d in (profile.deviance, null)]
        if self.restricted:  # log |X'V^-1 X| of the columns as they are
            likely = [each + float(np.linalg.slogdet(back / unit)[1]) for each in likely]
        if steps.changed:
            notes.append(
                f"sites have dropped out or come back; the fit is that of {totals.sites} sites."
            )
        if totals.number("groups") < 10:
            notes.append("variances of so few groups are known roughly.")
        coefficients = back @ profile.coefficients + shift
        half = normal_quantile((1 + self.level) / 2) * errors
        numbers: dict[str, Any] = {
            "coefficients": coefficients,
            "standard_errors": errors,
            "z": coefficients / errors,
            "p_values": np.asarray(normal_two_sided(coefficients / errors)),
            "intervals": np.column_stack([coefficients - half, coefficients + half]),
        }
        covariance = turn @ factor @ factor.T @ turn.T * profile.scale * unit**2
        tables, plots = self._printed(numbers, self.random_design.names, covariance)
        fit: dict[str, Any] = {
            "log_likelihood": likely[0],
            "null_log_likelihood": likely[1],
            "scale": profile.scale * unit**2,
            "covariance": covariance,
            "groups": int(totals.number("groups")),
        }
        return MixedModelAnswer(
            "Linear mixed model",
            self._facts(totals, steps, fit),
            tables,
            plots,
            tuple(notes),
            names=self.design.names,
            gls_standard_errors=gls_errors,
            effects=self.random_design.names,
            **numbers,
            **fit,
        )

    def _back(self, scaling: Mapping[str, Floats]) -> tuple[Floats, Floats, Floats]:
        """(A, b, T): coefficients are A scaled + b, random effects T scaled."""
        width, effects = self.design.width, self.random_design.width
        centres, scales = scaling["centres"], scaling["scales"]
        unit = float(scales[-1])
        back, shift = np.diag(unit / scales[:width]), np.zeros(width)
        if self.intercept:
            back[0, 1:] = -unit * centres[1:width] / scales[1:width]
            shift[0] = centres[-1]
        # Z of slopes as they are is Z of centred ones times a triangle.
        slopes = slice(width, width + effects - 1)
        triangle = np.diag(np.append(1.0, scales[slopes]))
        triangle[0, 1:] = centres[slopes]
        return back, shift, np.linalg.inv(triangle)

    def _facts(self, totals: Totals, steps: CountedSteps, fit: dict[str, Any]) -> dict[str, Any]:
        ratio = max(2 * (fit["log_likelihood"] - fit["null_log_likelihood"]), 0.0)
        facts: dict[str, Any] = {
            "outcome": self.outcome,
            "sites": totals.sites,
            "method": "REML" if self.restricted else "ML",
            "rows": int(totals.number("rows")),
            "groups": fit["groups"],
            "rows left out": int(totals.number("left")),
            "log-likelihood": fit["log_likelihood"],
            "scale": fit["scale"],
            "steps": steps.count,
            "LR chi2 (random)": ratio,
        }
        if len(fit["covariance"]) == 1:
            # The variance is at its bound under the hypothesis: half of the time it is 0.
            facts["p (random)"] = float(chi_squared_tail(ratio, 1)) / 2 if ratio > 0 else 1.0
            between = float(fit["covariance"][0, 0])
            facts["intraclass corr."] = between / (between + fit["scale"])
        return facts

    def _printed(
        self, numbers: Mapping[str, Floats], effects: tuple[str, ...], covariance: Floats
    ) -> tuple[tuple[ResultTable, ...], tuple[Plot, ...]]:
        low, high = f"[{(1 - self.level) / 2:.3g}", f"{(1 + self.level) / 2:.3g}]"
        columns = [numbers[k] for k in ("coefficients", "standard_errors", "z", "p_values")]
        rows = zip(self.design.names, *columns, *numbers["intervals"].T, strict=True)
        fixed = ResultTable(
            "",
            ("", "coef", "std err", "z", "P>|z|", low, high),
            tuple((name, *map(float, row)) for name, *row in rows),
        )
        pairs = [(i, j) for i in range(len(effects)) for j in range(i + 1)]
        random = ResultTable(
            "random effects",
            ("", "covariance", "std"),
            tuple(
                (
                    effects[i] if i == j else f"{effects[j]} x {effects[i]}",
                    float(covariance[i, j]),
                    float(np.sqrt(covariance[i, i])) if i == j else None,
                )
                for i, j in pairs
            ),
        )
        series = {
            "x": numbers["coefficients"].tolist(),
            "y": list(self.design.names),
            "low": numbers["intervals"][:, 0].tolist(),
            "high": numbers["intervals"][:, 1].tolist(),
        }
        title = f"Fixed effects on {self.outcome}"
        plot = Plot("intervals", title, "coefficient", "", {f"{self.level:.0%}": series})
        return (fixed, random), (plot,)

    # ------------------------------------------------ at a site

    def _read(self, table: Table, kept: Kept) -> tuple[Floats, Places, CompleteRows]:
        """[fixed, slopes, outcome] of complete rows, their groups, and what was left out."""
        if "read" not in kept:
            known = table
            if self.subject:
                known = table.chosen(table.texts(self.subject) != "")
            both = self._both.of(known, [self.outcome])
            chosen = known.chosen(both.kept)
            fixed, random = self.design.of(chosen).matrix, self.random_design.of(chosen).matrix
            groups = np.zeros(both.rows, np.int64)
            if self.subject:
                groups = np.unique(chosen.texts(self.subject), return_inverse=True)[1]
            values = np.column_stack([fixed, random[:, 1:], both.others[self.outcome]])
            kept["read"] = values, groups.astype(np.int64), both
        found: tuple[Floats, Places, CompleteRows] = kept["read"]
        return found

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        values, groups, both = self._read(table, kept)
        if step.name in (SUMS, SPREADS):
            return measure_moments(values, step, both)
        width, effects = self.design.width, self.random_design.width
        scales = step.floats("scales", width + effects)
        if step.name != STEP or (scales <= 0).any():
            raise StatisticsError("a step that this method does not have")
        scaled = (values - step.floats("centres", width + effects)) / scales
        w = np.delete(scaled, np.s_[width : width + effects - 1], axis=1)
        z = np.column_stack([np.ones(len(scaled)), scaled[:, width : width + effects - 1]])
        relative = step.floats("relative", effects, effects)
        return {
            "rows": np.array(len(values)),
            "left": np.array(table.rows - len(values)),
            **measure(w, z, groups, relative),
        }


def _falls(base: tuple[Floats, float, Floats, float], deviance: float, fraction: float) -> bool:
    """Whether D is lower by a part of what the slope promised (Armijo), but for rounding.

    L and -L are one model: without a fall, steps would go from one to the other.
    """
    _, before, _, decrement = base
    return deviance <= before - 1e-4 * fraction * decrement + 1e-11 * abs(before)


def _newton(profile: Profile, factor: Floats) -> tuple[Floats, float, Floats | None]:
    """A direction in which D falls, and how it may be left where there is none.

    Returns:
        (f64[q, q] lower triangular, about twice by how much D falls, None or f64[q, q]: a step
        from a saddle, as L = 0 is one where D falls with the variance).
    """
    gradient, curvature = at_factor(profile, factor)
    values, vectors = np.linalg.eigh(curvature)
    sizes = np.maximum(np.abs(values), 1e-8 * max(float(np.abs(values).max()), 1e-8))
    step = -vectors @ ((vectors.T @ gradient) / sizes)
    direction = np.zeros_like(factor)
    direction[np.tril_indices(len(factor))] = step
    # A longer step leaves where the quadratic holds; no half of it ends at L = 0.
    most = 3.7 * max(float(np.abs(factor).max()), 1e-3)
    size = float(np.abs(direction).max())
    decrement = float(-gradient @ step)
    saddle = None
    if values[0] < -1e-6 * float(np.abs(values).max()):
        saddle = np.zeros_like(factor)
        saddle[np.tril_indices(len(factor))] = 0.1 * vectors[:, 0]
    return direction * min(1.0, most / max(size, 1e-300)), decrement, saddle
