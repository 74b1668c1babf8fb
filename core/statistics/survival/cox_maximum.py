"""The maximum of a Cox model's partial likelihood, by Newton's method with halved steps."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..question import Step
from ..sums import StatisticsError, Sum, Totals
from .partial_likelihood import Evaluated, evaluate, information, information_step, risk_sums
from .risk_sets import EventBins

Floats = npt.NDArray[np.float64]
#: A step of scaled coefficients that is this small ends the search.
CLOSE = 1e-9
ITERATIONS_MAX, HALVINGS_MAX = 60, 40
#: A likelihood that grows by less than this share, while coefficients still move by more than
#: `RUNNING`, has no maximum.
FLAT, RUNNING = 1e-7, 0.1
#: Smallest part of the largest eigenvalue of the information's correlations.
SINGULAR = 1e-10


@dataclass(frozen=True)
class Maximum:
    """Where the partial likelihood is largest; coefficients are of scaled columns."""

    at: Evaluated
    coefficients: Floats
    information: Floats
    """f64[p, p], with the penalty's."""
    null: float
    """The log-likelihood at zero coefficients."""
    iterations: int
    totals: Totals
    """Of the last step."""
    moved: bool
    """Whether the rows changed on the way."""


class Search:
    """Asks for the partial likelihood at coefficients of choice.

    Args:
        base: sums that every step counts.
        bins: with events.
        arrays: what every step sends.
        names: of the columns.
        ties: of `TIES`.
        penalizer: a ridge of half so much, times rows, on each squared coefficient of a column
            of standard deviation 1.
    """

    def __init__(
        self,
        base: tuple[Sum, ...],
        bins: EventBins,
        arrays: Mapping[str, Any],
        names: Sequence[str],
        ties: str,
        penalizer: float,
    ) -> None:
        self.base, self.bins, self.arrays, self.names = base, bins, arrays, names
        self.ties, self.penalizer = ties, penalizer
        self.halvings = 0

    def ridge(self, totals: Totals) -> float:
        """What the penalty adds to the information's diagonal; columns are scaled by n."""
        rows = totals.number("rows")
        return self.penalizer * rows * rows / max(rows - 1, 1)

    def penalised(self, found: Evaluated, totals: Totals) -> float:
        squares = float(found.coefficients @ found.coefficients)
        return found.likelihood - self.ridge(totals) * squares / 2

    def at(self, coefficients: Floats) -> Generator[Step, Totals, tuple[Evaluated | None, Totals]]:
        """The likelihood there; None where it is out of range. Raises Moved."""
        sums = (*self.base, *risk_sums(len(self.bins), len(coefficients), self.ties))
        arrays = {**self.arrays, **self.bins.arrays(), "coefficients": coefficients}
        totals = yield Step("risk", sums, arrays)
        if totals.number("unplaced"):
            raise Moved
        if totals.number("steep"):
            return None, totals
        return evaluate(totals, self.bins, coefficients, self.ties), totals

    def maximum(self) -> Generator[Step, Totals, Maximum]:
        """Raises StatisticsError where there is none, and Moved."""
        found, totals = yield from self.at(np.zeros(len(self.names)))
        if found is None:
            raise StatisticsError("the offset differs by more than 50 between rows", "scale it")
        null, first, moved, gain = found.likelihood, totals, False, np.inf
        for iteration in range(1, ITERATIONS_MAX + 1):
            step = information_step(self.base, self.bins, found)
            asked = yield Step(step.name, step.sums, {**self.arrays, **step.arrays})
            if not same_rows(asked, totals):
                moved = True
                again, totals = yield from self.at(found.coefficients)
                found = again or found
                continue
            curve = information(asked, found)
            curve[np.diag_indices(len(curve))] += self.ridge(totals)
            self._check(curve)
            slope = found.slope - self.ridge(totals) * found.coefficients
            change = np.linalg.solve(curve, slope).astype(np.float64)
            if np.max(np.abs(change), initial=0.0) < CLOSE:
                if not same_rows(first, totals):
                    at_zero, _ = yield from self.at(np.zeros(len(self.names)))
                    null = at_zero.likelihood if at_zero else null
                return Maximum(
                    found, found.coefficients + change, curve, null, iteration, totals, moved
                )
            if gain < FLAT * (1 + abs(found.likelihood)) and np.max(np.abs(change)) > RUNNING:
                raise self._monotone(change)
            found, totals, gain, other = yield from self._advance(found, totals, change)
            moved |= other
        raise StatisticsError(f"the fit has not converged in {ITERATIONS_MAX} iterations", _HINT)

    def _advance(
        self, found: Evaluated, totals: Totals, change: Floats
    ) -> Generator[Step, Totals, tuple[Evaluated, Totals, float, bool]]:
        """The largest halved step that does not lower the likelihood, and what it gains."""
        have = self.penalised(found, totals)
        for halving in range(HALVINGS_MAX):
            there, totals_there = yield from self.at(found.coefficients + change / 2**halving)
            if there is None:
                continue
            if not same_rows(totals, totals_there):
                return there, totals_there, np.inf, True
            gain = self.penalised(there, totals_there) - have
            if gain >= -1e-12 * (1 + abs(have)):
                self.halvings += halving > 0
                return there, totals_there, gain if halving == 0 else np.inf, False
        raise self._monotone(change)

    def _check(self, curve: Floats) -> None:
        """Raises StatisticsError for columns that are constant within risk sets, or dependent."""
        diagonal = np.diag(curve)
        flat = diagonal <= SINGULAR * max(float(diagonal.max(initial=0.0)), 1e-300)
        if flat.any():
            names = [n for n, f in zip(self.names, flat, strict=True) if f]
            raise StatisticsError(
                f"within the sets of rows at risk there is no difference in {_listed(names)}",
                "leave it out",
            )
        root = np.sqrt(diagonal)
        values, vectors = np.linalg.eigh(curve / np.outer(root, root))
        if values[0] <= SINGULAR * values[-1]:
            part = np.abs(vectors[:, 0])
            names = [n for n, v in zip(self.names, part, strict=True) if v > 0.05]
            raise StatisticsError(
                f"columns depend on each other: {_listed(names)}", "leave one of them out"
            )

    def _monotone(self, change: Floats) -> StatisticsError:
        size = np.abs(change)
        names = [n for n, v in zip(self.names, size, strict=True) if v > 0.5 * size.max()]
        return StatisticsError(
            f"the likelihood has no maximum: it grows for ever with {_listed(names)}", _HINT
        )


_HINT = "events and rows without are perfectly separated: leave the column out, or set penalizer"


class Moved(Exception):
    """Rows changed between steps so that the question begins again, with new bins or scales."""


def same_rows(one: Totals, other: Totals) -> bool:
    """Whether two steps are of the same rows, as far as counts say."""
    return one.sites == other.sites and one.number("rows") == other.number("rows")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{n}`" for n in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")
