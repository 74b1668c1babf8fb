"""What a Cox model answers: coefficients in the columns' own units, tests, baseline hazards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..answer import Answer, Plot, ResultTable
from ..distributions import chi_squared_tail, normal_quantile, normal_two_sided
from ..moments import Moments
from ..sums import StatisticsError
from .concordance import Concordance
from .cox_maximum import Maximum
from .proportional import Proportional, proportional_test
from .risk_sets import EventBins

if TYPE_CHECKING:
    from ..methods.cox import Cox

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """The baseline of a stratum: of a row whose columns are at their means."""

    times: Floats
    """f64[times with events]"""
    cumulative_hazard: Floats
    survival: Floats


@dataclass(frozen=True)
class CoxAnswer(Answer):
    """A Cox model; arrays are f64[p], in the order of `names`."""

    names: tuple[str, ...] = ()
    coefficients: Floats = field(default_factory=lambda: np.zeros(0))
    standard_errors: Floats = field(default_factory=lambda: np.zeros(0))
    covariance: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """f64[p, p]"""
    z: Floats = field(default_factory=lambda: np.zeros(0))
    p_values: Floats = field(default_factory=lambda: np.zeros(0))
    low: Floats = field(default_factory=lambda: np.zeros(0))
    """Lower ends of the coefficients' intervals; `high`: upper ones."""
    high: Floats = field(default_factory=lambda: np.zeros(0))
    hazard_ratios: Floats = field(default_factory=lambda: np.zeros(0))
    means: Floats = field(default_factory=lambda: np.zeros(0))
    """Of the columns: where `baselines` are."""
    log_likelihood: float = 0.0
    """Without the penalty."""
    null_log_likelihood: float = 0.0
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    """By stratum; of one without strata the name is empty."""
    proportional: Proportional | None = None
    concordance: Concordance | None = None

    def survival(self, columns: Mapping[str, float], stratum: str = "") -> tuple[Floats, Floats]:
        """The survival curve of a row: times with events, and the share that is event-free behind.

        Args:
            columns: the row's columns by the names of coefficients; absent: their means.
            stratum: of a model with strata, the row's.

        Raises:
            StatisticsError: a name that no coefficient or stratum has.
        """
        unknown = [n for n in columns if n not in self.names]
        if unknown or stratum not in self.baselines:
            raise StatisticsError(
                f"the model has no column `{unknown[0]}`"
                if unknown
                else f"the model has no stratum `{stratum}`",
                f"one of {', '.join(self.names if unknown else self.baselines)}",
            )
        off = [columns.get(n, m) - m for n, m in zip(self.names, self.means, strict=True)]
        base = self.baselines[stratum]
        hazard = base.cumulative_hazard * np.exp(np.array(off) @ self.coefficients)
        return base.times, np.exp(-hazard)


@dataclass(frozen=True)
class Fitted:
    """What an answer is made of."""

    bins: EventBins
    moments: Moments
    maximum: Maximum
    squares: Floats | None
    """f64[p, p], for robust errors."""
    transformed: Floats | None
    held: Floats | None
    index: Concordance | None
    widest: int
    """Grid points of the widest bin of time."""
    times: int
    """Bins of time."""


def cox_answer(question: Cox, fitted: Fitted) -> CoxAnswer:
    """The answer."""
    names, maximum = question.names, fitted.maximum
    width = len(names)
    scales = fitted.moments.scales[:width]
    scaled_covariance = np.linalg.inv(maximum.information).astype(np.float64)
    robust = scaled_covariance
    if fitted.squares is not None:
        robust = scaled_covariance @ fitted.squares @ scaled_covariance
    covariance = robust / np.outer(scales, scales)
    b = maximum.coefficients / scales
    errors = np.sqrt(np.diag(covariance))
    z = b / errors
    half = normal_quantile(0.5 + question.confidence / 2) * errors
    test = None
    if fitted.transformed is not None and fitted.held is not None:
        test = proportional_test(
            question.proportional, fitted.transformed, fitted.held, maximum.at, scaled_covariance
        )
    ratio = 2 * (maximum.at.likelihood - maximum.null)
    p_values = np.asarray(normal_two_sided(z))
    baselines = _baselines(question, fitted)
    return CoxAnswer(
        title="Cox proportional hazards regression",
        facts=_facts(question, fitted, ratio),
        tables=_tables(question, (b, errors, z, p_values, half), test),
        plots=_plots(names, b, half, baselines),
        notes=tuple(_notes(question, fitted)),
        names=names,
        coefficients=b,
        standard_errors=errors,
        covariance=covariance,
        z=z,
        p_values=p_values,
        low=b - half,
        high=b + half,
        hazard_ratios=ratios_of(b),
        means=fitted.moments.means[:width],
        log_likelihood=maximum.at.likelihood,
        null_log_likelihood=maximum.null,
        baselines=baselines,
        proportional=test,
        concordance=fitted.index,
    )


def ratios_of(b: Floats) -> Floats:
    """exp(b); of a column in large units it may be infinite."""
    with np.errstate(over="ignore"):
        return np.exp(b, dtype=np.float64)


def _baselines(question: Cox, fitted: Fitted) -> dict[str, Baseline]:
    made = {}
    for code, name in enumerate(question.stratum_names):
        own = (fitted.bins.stratum == code) & (fitted.maximum.at.events > 0)
        total = np.cumsum(fitted.maximum.at.hazard[own])
        times = fitted.bins.last[own] * question.time_step
        made[name] = Baseline(times, total, np.exp(-total))
    return made


def _facts(question: Cox, fitted: Fitted, ratio: float) -> dict[str, float | str]:
    maximum, width = fitted.maximum, len(question.names)
    facts: dict[str, float | str] = dict(question.clock().facts(maximum.totals))
    facts |= {
        "events": int(maximum.at.events.sum()),
        "ties": question.ties,
        "log-likelihood": maximum.at.likelihood,
        "of no effect": maximum.null,
        "likelihood ratio": ratio,
        "degrees of freedom": width,
        "p (likelihood ratio)": float(chi_squared_tail(max(ratio, 0.0), width)),
        "partial AIC": 2 * width - 2 * maximum.at.likelihood,
    }
    if fitted.index is not None:
        facts["concordance"] = fitted.index.index
    facts["iterations"] = maximum.iterations
    return facts


def _tables(
    question: Cox, numbers: tuple[Floats, ...], test: Proportional | None
) -> tuple[ResultTable, ...]:
    b, errors, z, p_values, half = numbers
    level = f"{100 * question.confidence:g}%"
    rows = zip(
        question.names,
        b.tolist(),
        ratios_of(b).tolist(),
        errors.tolist(),
        z.tolist(),
        p_values.tolist(),
        ratios_of(b - half).tolist(),
        ratios_of(b + half).tolist(),
        strict=True,
    )
    columns = ("", "coef", "exp(coef)", "std. err.", "z", "p", f"{level} low", f"{level} high")
    made = [ResultTable("", columns, tuple(rows))]
    if test is not None:
        tested = zip(question.names, test.statistics.tolist(), test.p_values.tolist(), strict=True)
        whole = ("all together", test.statistic, test.p_value)
        made.append(
            ResultTable(
                f"proportional hazards ({test.transform} of time)",
                ("", "chi-squared", "p"),
                (*tested, whole),
            )
        )
    return tuple(made)


def _plots(
    names: tuple[str, ...], b: Floats, half: Floats, baselines: Mapping[str, Baseline]
) -> tuple[Plot, ...]:
    ratios = {
        "x": list(names),
        "y": ratios_of(b).tolist(),
        "low": ratios_of(b - half).tolist(),
        "high": ratios_of(b + half).tolist(),
    }
    curves = {
        name or "baseline": {"x": [0.0, *base.times.tolist()], "y": [1.0, *base.survival.tolist()]}
        for name, base in baselines.items()
    }
    return (
        Plot("intervals", "hazard ratios", "hazard ratio", "", {"hazard ratio": ratios}),
        Plot("steps", "baseline survival", "time", "survival", curves),
    )


def _notes(question: Cox, fitted: Fitted) -> list[str]:
    maximum = fitted.maximum
    notes = question.clock().notes(maximum.totals)
    if question.least_per_bin > 1:
        cells = "rows with and without an event" if question.ties == "efron" else "rows"
        notes.append(
            f"times were joined to {fitted.times} bins of at most"
            f" {fitted.widest * question.time_step:g}, so that each has none or at least"
            f" {question.least_per_bin} {cells} that leave; events of a bin count as tied:"
            " coefficients differ from those of exact times"
        )
    else:
        notes.append(
            "sums were asked at each time with an event: where one row leaves alone, its part can"
            " be seen in the total; least_per_bin avoids that"
        )
    if fitted.index is not None and fitted.index.bound > 0:
        notes.append(
            f"the exact concordance differs by at most {fitted.index.bound:.4f}: pairs of rows in"
            " one of the bins of scores count a half"
        )
    if question.score_bins and question.least_per_bin > 1:
        notes.append("no concordance with least_per_bin: its cells would have single rows")
    if question.penalizer:
        notes.append("coefficients are shrunk: errors and p-values are those of lifelines")
    if fitted.squares is not None:
        of = f", with rows of a `{question.cluster}` together" if question.cluster else ""
        notes.append(f"standard errors are robust (Lin and Wei 1989){of}")
    elif question.weights:
        notes.append("standard errors take weights for numbers of rows; robust=True does not")
    if question.proportional and fitted.held is None:
        notes.append("no test of proportional hazards: sites came or went before it")
    if maximum.moved:
        notes.append("sites came or went between the steps: the answer is of those that stayed")
    return notes
