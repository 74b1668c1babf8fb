"""Mixtures of normal distributions by the EM algorithm (Dempster, Laird and Rubin 1977).

A step gives each row's responsibilities r_k at the current parameters, and adds up r_k, r_k (x - m)
and r_k (x - m)(x - m)' about the current means m; the new parameters follow from the totals, as in
scikit-learn's `GaussianMixture`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..answer import Answer, Plot, ResultTable
from ..counting.counted_steps import CountedSteps
from ..design import Design
from ..few_rows import is_enough
from ..moments import SPREADS, SUMS, Moments, ask_moments, measure_moments
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Floats, Table
from ..sums import StatisticsError, Sum, Totals, counts
from .kmeans import (
    STEP as ASSIGN,
)
from .kmeans import (
    ask_lloyd,
    check_columns,
    complete_rows,
    measure_lloyd,
    scales_of,
    starts_of,
)

STEP = "expect"
COLUMNS_MAX = 64
KINDS = ("full", "diag")
#: Of numbers near 1.
_BITS = (110, 80)
_BLOCK = 1 << 14
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class MixtureAnswer(Answer):
    """A fitted mixture."""

    names: tuple[str, ...] = ()
    """The columns."""
    weights: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[components]."""
    means: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """f64[components, columns]."""
    covariances: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    """f64[components, columns, columns]; with `diag`, f64[components, columns]."""
    log_likelihood: float = 0.0
    """Of all rows, at the last step's parameters."""
    aic: float = 0.0
    """-2 log_likelihood + 2 parameters."""
    bic: float = 0.0
    """-2 log_likelihood + log(rows) parameters."""
    iterations: int = 0
    """EM steps."""
    converged: bool = False
    """Whether the likelihood had stopped to grow before `iterations` were over."""


@dataclass(frozen=True, eq=False)
class _Parameters:
    """In scaled columns."""

    weights: Floats
    means: Floats
    covariances: Floats


@method("mixture")
@dataclass(frozen=True)
class Mixture(Question):
    """Fits a mixture of normal distributions to columns of numbers."""

    of: tuple[str, ...]
    """The columns."""
    clusters: int
    """Components."""
    covariance: str = "full"
    """`full`: each component has its own; `diag`: its own variances alone."""
    start: tuple[tuple[float, ...], ...] = ()
    """A mean for each component; empty: those of k-means."""
    weights: tuple[float, ...] = ()
    """Starting weights; empty: equal ones, or those of k-means."""
    covariances: tuple[Any, ...] = ()
    """Starting covariances, as the answer has them; empty: the variances of the columns."""
    variance_floor: float = 1e-6
    """Added to each variance, as scikit-learn's reg_covar."""
    tolerance: float = 1e-6
    """The gain of a row's mean log-likelihood at which it ends."""
    iterations: int = 500
    """At most."""
    seed: int = 0
    """Of k-means."""
    starts: int = 5
    """Starts of k-means."""

    def __post_init__(self) -> None:
        check_columns(self.of, self.clusters, self.start)
        if len(self.of) > COLUMNS_MAX or self.covariance not in KINDS:
            raise StatisticsError(
                f"{len(self.of)} columns with `{self.covariance[:40]}` covariances",
                f"at most {COLUMNS_MAX}, with one of {', '.join(KINDS)}",
            )
        if not (
            self.variance_floor >= 0 and self.tolerance >= 0 and 1 <= self.iterations <= 10_000
        ):
            raise StatisticsError(
                "variance_floor and tolerance from 0, iterations from 1 to 10,000"
            )
        if not 1 <= self.starts <= 100:
            raise StatisticsError(f"{self.starts} starts", "from 1 to 100")
        if self.weights:
            array = np.array(self.weights, np.float64)
            if array.shape != (self.clusters,) or (array <= 0).any() or abs(array.sum() - 1) > 1e-6:
                raise StatisticsError("starting weights are above 0, and 1 together")
        if self.covariances:
            self._covariances(np.ones(len(self.of)))

    @property
    def design(self) -> Design:
        """The columns as a matrix."""
        return Design(self.of, intercept=False)

    def columns(self) -> tuple[str, ...]:
        return self.of

    def rows(self, table: Table) -> int:
        return self.design.of(table).rows

    def _covariances(self, scales: Floats) -> Floats:
        """The given starting covariances, scaled. Raises StatisticsError."""
        width = len(self.of)
        shape = (
            (self.clusters, width) if self.covariance == "diag" else (self.clusters, width, width)
        )
        given = np.array(self.covariances, np.float64)
        if given.shape != shape:
            raise StatisticsError(
                f"starting covariances of shape {list(given.shape)}", f"they have {list(shape)}"
            )
        if self.covariance == "diag":
            return given / scales**2
        return given / np.outer(scales, scales)

    # ------------------------------------------------ where it is asked

    def ask(self) -> Asking:
        steps = CountedSteps()
        moments = yield from steps.through(ask_moments(len(self.of)))
        if not moments.spreads.all():
            constant = [n for n, s in zip(self.of, moments.spreads, strict=True) if s == 0]
            raise StatisticsError(f"`{constant[0]}` is constant", "leave it out")
        begin = yield from steps.through(self._begin(moments))
        end = yield from steps.through(self._maximized(moments, begin))
        return self._answer(moments, steps, *end)

    def _begin(self, moments: Moments) -> Generator[Step, Totals, _Parameters]:
        width, scales = len(self.of), moments.scales
        weights = np.array(self.weights or [1 / self.clusters] * self.clusters)
        if self.start:
            means = (np.array(self.start, np.float64) - moments.means) / scales
        else:
            best = None
            unit = scales_of(moments, True)
            for begin in starts_of(moments, unit, self):
                found = yield from ask_lloyd(moments.means, unit, begin, 100)
                if best is None or found.totals.number("inertia") < best.totals.number("inertia"):
                    best = found
            assert best is not None
            means = best.centres
            if not self.weights:
                parts = np.maximum(best.totals["counts"], 1.0)
                weights = parts / parts.sum()
        if self.covariances:
            return _Parameters(weights, means, self._covariances(scales))
        one = np.ones(width) if self.covariance == "diag" else np.eye(width)
        return _Parameters(weights, means, np.stack([one] * self.clusters))

    def _maximized(
        self, moments: Moments, now: _Parameters
    ) -> Generator[Step, Totals, tuple[_Parameters, Totals, int, bool]]:
        """EM from parameters: (the last ones, the last totals, iterations, whether it ended)."""
        width, k = len(self.of), self.clusters
        shape = (k, width) if self.covariance == "diag" else (k, width, width)
        sums = (
            counts("rows"),
            counts("left"),
            Sum("parts", (k,), *_BITS),
            Sum("firsts", (k, width), *_BITS),
            Sum("seconds", shape, *_BITS),
            Sum("log_likelihood", (), *_BITS),
        )
        regular = self.variance_floor / moments.scales**2
        before: tuple[tuple[float, int], float] | None = None
        for iteration in range(1, self.iterations + 1):
            arrays = {
                "means": moments.means,
                "scales": moments.scales,
                "weights": now.weights,
                "centres": now.means,
                "factors": _factors(now.covariances),
            }
            totals = yield Step(STEP, sums, arrays)
            rows = totals.number("rows")
            if rows < k:
                raise StatisticsError(f"{rows:g} complete rows and {k} components")
            key, mean = (rows, totals.sites), totals.number("log_likelihood") / rows
            now = self._next(now, totals, regular)
            if before is not None and before[0] == key and abs(mean - before[1]) < self.tolerance:
                return now, totals, iteration, True
            before = (key, mean)
        return now, totals, self.iterations, False

    def _next(self, now: _Parameters, totals: Totals, regular: Floats) -> _Parameters:
        parts = totals["parts"] + 10 * _EPSILON
        off = totals["firsts"] / parts[:, None]
        if self.covariance == "diag":
            covariances = totals["seconds"] / parts[:, None] - off**2 + regular
        else:
            covariances = totals["seconds"] / parts[:, None, None]
            covariances = covariances - np.einsum("ki,kj->kij", off, off) + np.diag(regular)
        return _Parameters(parts / parts.sum(), now.means + off, covariances)

    def _answer(
        self,
        moments: Moments,
        steps: CountedSteps,
        now: _Parameters,
        totals: Totals,
        iterations: int,
        converged: bool,
    ) -> MixtureAnswer:
        width, k, scales = len(self.of), self.clusters, moments.scales
        diagonal = self.covariance == "diag"
        rows = totals.number("rows")
        likely = totals.number("log_likelihood") - rows * float(np.log(scales).sum())
        free = k - 1 + k * width + k * (width if diagonal else width * (width + 1) // 2)
        means = moments.means + now.means * scales
        covariances = now.covariances * (scales**2 if diagonal else np.outer(scales, scales))
        spreads = np.sqrt(covariances if diagonal else np.diagonal(covariances, axis1=1, axis2=2))
        notes = []
        if not converged:
            notes.append(f"not converged in {iterations} iterations.")
        if steps.changed:
            notes.append("sites have dropped out or come back between steps.")
        names = [str(i) for i in range(k)]
        columns = [c for n in self.of for c in (n, f"std({n})")]
        table = tuple(
            (name, weight, *(v for pair in zip(mean, spread, strict=True) for v in pair))
            for name, weight, mean, spread in zip(
                names, now.weights.tolist(), means.tolist(), spreads.tolist(), strict=True
            )
        )
        aic, bic = 2 * free - 2 * likely, math.log(rows) * free - 2 * likely
        return MixtureAnswer(
            "Mixture of normal distributions",
            {
                "sites": totals.sites,
                "rows": int(rows),
                "rows left out": int(totals.number("left")),
                "log-likelihood": likely,
                "AIC": aic,
                "BIC": bic,
                "iterations": iterations,
                "steps": steps.count,
            },
            (ResultTable("", ("component", "weight", *columns), table),),
            (
                Plot(
                    "bars",
                    "Components",
                    "component",
                    "weight",
                    {"weight": {"x": names, "y": now.weights.tolist()}},
                ),
            ),
            tuple(notes),
            self.of,
            now.weights,
            means,
            covariances,
            likely,
            aic,
            bic,
            iterations,
            converged,
        )

    # ------------------------------------------------ at a site

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        complete = complete_rows(self.design, table, kept)
        if step.name in (SUMS, SPREADS):
            return measure_moments(complete.matrix, step, complete)
        if step.name == ASSIGN:
            return measure_lloyd(complete, step, self.clusters, table.floor)
        width, k = len(self.of), self.clusters
        means, scales = step.floats("means", width), step.floats("scales", width)
        weights, centres = step.floats("weights", k), step.floats("centres", k, width)
        diagonal = self.covariance == "diag"
        factors = step.floats("factors", k, width, *([] if diagonal else [width]))
        roots = factors if diagonal else np.diagonal(factors, axis1=1, axis2=2)
        plain = (scales > 0).all() and (weights > 0).all() and (roots > 0).all()
        if step.name != STEP or not plain:
            raise StatisticsError("a step that this method does not have")
        scaled = (complete.matrix - means) / scales
        base = np.log(weights) + np.log(roots).sum(axis=1) - width / 2 * math.log(2 * math.pi)
        out: dict[str, Any] = {
            "rows": np.array(complete.rows),
            "left": np.array(complete.missing + complete.unlisted),
            "parts": np.zeros(k),
            "firsts": np.zeros((k, width)),
            "seconds": np.zeros((k, width) if diagonal else (k, width, width)),
            "log_likelihood": 0.0,
        }
        held_by = np.zeros((k, len(scaled) if table.floor > 1 else 0))
        for begin in range(0, len(scaled), _BLOCK):
            block = scaled[begin : begin + _BLOCK]
            gone = block[None] - centres[:, None]
            turned = gone * factors[:, None] if diagonal else gone @ factors
            logs = base[:, None] - (turned**2).sum(axis=2) / 2
            most = logs.max(axis=0)
            norm = most + np.log(np.exp(logs - most).sum(axis=0))
            shares = np.exp(logs - norm)
            if table.floor > 1:
                held_by[:, begin : begin + _BLOCK] = shares
            held = gone * shares[:, :, None]
            out["parts"] += shares.sum(axis=1)
            out["firsts"] += held.sum(axis=1)
            out["seconds"] += (
                (held * gone).sum(axis=1) if diagonal else held.transpose(0, 2, 1) @ gone
            )
            out["log_likelihood"] += float(norm.sum())
        for component, part in enumerate(held_by):
            if not is_enough(part, table.floor):  # it is about few rows: the site leaves it out
                for name in ("parts", "firsts", "seconds"):
                    out[name][component] = 0.0
        return out


def _factors(covariances: Floats) -> Floats:
    """Cholesky factors of the precisions, as columns; roots of them where these are diagonal."""
    made: Floats
    if covariances.ndim == 2:
        if (covariances <= 0).any():
            raise StatisticsError("a component has a variance of 0", "fewer components")
        made = 1 / np.sqrt(covariances)
        return made
    try:
        lower = np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError:
        raise StatisticsError(
            "a component's covariance is singular: it holds too few different rows",
            "use fewer components, or a larger variance_floor",
        ) from None
    made = np.linalg.inv(lower).transpose(0, 2, 1)
    return made
