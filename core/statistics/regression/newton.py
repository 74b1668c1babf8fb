"""Newton's method on totals: directions, step halving, convergence, and what has no solution.

A step evaluates the coefficients `at`. Its totals give the loss there, and the direction to the
minimum of the local quadratic. A site may be in one step and not in the next: losses are compared
over equal rows alone, and convergence is a property of one step, so that the result is exact for
the rows of the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..design import INTERCEPT
from ..site_table import Floats
from ..sums import StatisticsError
from .penalty import Penalty

#: A direction this small, relative and absolute, is convergence; columns are scaled.
_RELATIVE, _ABSOLUTE = 1e-11, 1e-12
#: A direction below this that no longer shrinks is that of rounding.
_ROUNDING = 1e-6
#: An eigenvalue of the information, with ones on its diagonal, below which columns are dependent.
_SINGULAR = 1e-12
#: What a column's information is relative to the others' where it is constant, after centring.
_CONSTANT = 1e-20
_HALVINGS_MAX = 30
#: The longest step in log alpha.
_ALPHA_STEP_MAX = 2.0
#: Full steps in a row that keep their length while the loss keeps falling: it has no minimum.
_RUNAWAY = 5

Key = tuple[float, ...]


def check_rank(information: Floats, names: Sequence[str]) -> None:
    """Raises StatisticsError that names the columns of a singular design."""
    diagonal = np.diag(information)
    empty = diagonal <= _CONSTANT * max(float(diagonal.max()), 1e-300)
    if empty.any():
        which = [n for n, e in zip(names, empty, strict=True) if e]
        raise StatisticsError(
            f"no variation over all sites in {_listed(which)}",
            "leave out columns that are constant, and categories that no row has",
        )
    roots = np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(information / np.outer(roots, roots))
    if values[0] < _SINGULAR:
        size = np.abs(vectors[:, 0])
        which = [n for n, v in zip(names, size, strict=True) if v > 1e-3 * size.max()]
        raise StatisticsError(
            f"columns are linearly dependent: {_listed(which)}", "leave out one of them"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{n}`" for n in names[:10])
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")


@dataclass(frozen=True)
class _Base:
    """Where the last step that was taken begins."""

    at: Floats
    direction: Floats
    total: float
    key: Key


class Descent:
    """One model's way to its minimum.

    Args:
        at: f64[q], where it begins.
        names: of the coefficients, for errors.
        penalty: on them, if any.
        joint: whether the last one is log alpha.
        frozen: whether it has no coefficient to move.
    """

    def __init__(
        self,
        at: Floats,
        names: Sequence[str],
        penalty: Penalty | None = None,
        *,
        joint: bool = False,
        frozen: bool = False,
    ) -> None:
        self.at, self.names, self.penalty = at, names, penalty
        self.joint, self.frozen = joint, frozen
        self.done = False
        self._base: _Base | None = None
        self._fraction, self._runaway = 1.0, 0

    def take(
        self, key: Key, loss: float, score: Floats, information: Floats, invalid: bool
    ) -> None:
        """Takes what was found at `at`; moves `at`, or is `done`. Raises StatisticsError.

        Args:
            key: equal for steps over the same rows.
            loss: minus the log-likelihood, up to a constant.
            score: f64[q], minus the loss's derivative.
            information: f64[q, q].
            invalid: whether a row has no valid mean there.
        """
        if self.frozen:
            self.done = True
            return
        total = loss + (self.penalty.of(self.at) if self.penalty else 0.0)
        base = self._base
        if base is not None and (
            invalid or (key == base.key and total > base.total + _slack(total))
        ):
            self._halve(base, invalid)
            return
        if invalid and base is None:
            raise StatisticsError(
                "the means of the first iteration are out of range",
                "check the outcome, the offset and the link",
            )
        direction = self._direction(score, information)
        self._watch(base, key, total, direction)
        self.done = self._is_small(direction, base)
        self._base, self._fraction = _Base(self.at, direction, total, key), 1.0
        if not self.done:
            self.at = self.at + direction

    def _halve(self, base: _Base, invalid: bool) -> None:
        self._fraction /= 2
        self._runaway = 0
        if self._fraction < 0.5**_HALVINGS_MAX:
            raise StatisticsError(
                "no step improves the fit"
                + (": means leave their range" if invalid else ": the sums are too imprecise"),
                "look for outliers, or leave out columns that nearly depend on each other",
            )
        self.at = base.at + self._fraction * base.direction

    def _direction(self, score: Floats, information: Floats) -> Floats:
        try:
            if self.penalty:
                found = self.penalty.direction(self.at, score, information)
            else:
                found = solved(information, score)
        except np.linalg.LinAlgError:
            if not self.joint:
                raise self._unbounded(np.ones(len(score))) from None
            # Alpha alone can curve the other way: coefficients and alpha by themselves.
            found = np.empty(len(score))
            found[:-1] = solved(information[:-1, :-1], score[:-1])
            found[-1] = score[-1] / max(abs(information[-1, -1]), 1e-8)
        if self.joint and abs(found[-1]) > _ALPHA_STEP_MAX:
            found = found * (_ALPHA_STEP_MAX / abs(found[-1]))
        if not np.isfinite(found).all():
            raise self._unbounded(np.ones(len(score)))
        return found

    def _is_small(self, direction: Floats, base: _Base | None) -> bool:
        size = np.abs(direction)
        if bool((size <= _RELATIVE * np.abs(self.at) + _ABSOLUTE).all()):
            return True
        largest = float(size.max())
        before = float(np.abs(base.direction).max()) if base is not None else np.inf
        return largest < _ROUNDING and self._fraction == 1.0 and largest > before / 2

    def _watch(self, base: _Base | None, key: Key, total: float, direction: Floats) -> None:
        """Raises StatisticsError where coefficients grow without end."""
        if base is None or key != base.key or self._fraction < 1.0:
            self._runaway = 0
            return
        last, size = np.abs(base.direction), np.abs(direction)
        ratio = float(size.max()) / max(float(last.max()), 1e-300)
        grows = 0.6 < ratio < 1.6 and float(size.max()) > _ROUNDING * 10
        self._runaway = self._runaway + 1 if grows else 0
        if self._runaway >= _RUNAWAY and base.total - total < 1e-2 * (abs(total) + 1):
            raise self._unbounded(size)

    def _unbounded(self, size: Floats) -> StatisticsError:
        columns = [i for i, name in enumerate(self.names) if name != INTERCEPT] or [0]
        most = max(size[i] for i in columns)
        which = [self.names[i] for i in columns if size[i] > 0.05 * most]
        return StatisticsError(
            f"the likelihood has no maximum: {_listed(which)} separates the outcomes (perfect"
            " separation, or a category whose outcomes are all 0 or all 1)",
            "leave out these columns, merge rare categories, or give a penalty",
        )


def solved(information: Floats, score: Floats) -> Floats:
    """The solution of information d = score, by Cholesky on scaled numbers, refined once.

    Raises LinAlgError where the information is not positive definite.
    """
    diagonal = np.diag(information)
    if not (diagonal > 0).all():
        raise np.linalg.LinAlgError("not positive definite")
    roots = np.sqrt(diagonal)
    scaled = information / np.outer(roots, roots)
    np.linalg.cholesky(scaled)  # raises where it is not positive definite
    found = np.linalg.solve(scaled, score / roots)
    found += np.linalg.solve(scaled, score / roots - scaled @ found)
    made: Floats = found / roots
    return made


def inverted(information: Floats) -> Floats:
    """The inverse of a positive definite matrix, through one with ones on its diagonal."""
    roots = np.sqrt(np.diag(information))
    made: Floats = np.linalg.inv(information / np.outer(roots, roots)) / np.outer(roots, roots)
    return (made + made.T) / 2


def _slack(total: float) -> float:
    """What rounding may add to a loss."""
    return 1e-11 * (abs(total) + 1e-9)
