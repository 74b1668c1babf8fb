"""A site's sums for a step of a generalized linear model: loss, score and information.

A model is evaluated twice in a step: with its predictors, and with a constant alone (the null
model), so that both are of the same rows.

A site may have its own intercept a, which never leaves it: the site finds the a that maximizes its
likelihood at the coefficients it received, and sends the score and information of the profile
likelihood, H_bb - H_ba H_ab / H_aa. Their totals are those of a pooled model with a column for each
site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..few_rows import check_weights
from ..site_table import Floats
from ..sums import Sum, counts
from .families import ETA_MAX, Rows, invalid, rows_at, start

#: Bits of a sum of numbers near 1, with weights up to 1e13: relative to 2^-80.
_BITS = (110, 80)
#: Iterations for a site's own intercept; bisection alone needs fewer.
_INTERCEPT_ITERATIONS = 200


@dataclass(frozen=True)
class SiteData:
    """A site's complete rows, scaled, without those of impossible outcomes."""

    matrix: Floats
    """f64[n, p] design matrix."""
    y: Floats
    """f64[n] outcomes."""
    weights: Floats
    """f64[n] frequencies."""
    offset: Floats
    """f64[n]."""
    floor: int = 1
    """The owner's."""


@dataclass(frozen=True)
class Model:
    """What is evaluated."""

    family: str
    """A name of `families.LINKS`."""
    link: str
    """The family's link."""
    own: bool
    """Whether each site has its own intercept."""

    @property
    def bent(self) -> bool:
        """Whether the information depends on outcomes: with a link that is not canonical."""
        return self.family == "negative_binomial" or (self.family, self.link) == ("gamma", "log")


def sums_of(width: int, joint: bool, bent: bool) -> tuple[Sum, ...]:
    """The sums of a step for so many coefficients, log alpha among them where it is `joint`.

    bent: whether the expected information is another one than that of the rows.
    """
    of_null = 1 + joint
    expected = (Sum("expected", (_pairs(width),), *_BITS),) if bent and not joint else ()
    return (
        *expected,
        counts("rows"),
        counts("missing"),
        counts("unlisted"),
        counts("used"),
        counts("groups"),
        counts("invalid", 2),
        *(
            Sum(name, shape, *_BITS)
            for name, shape in (
                ("weight", ()),
                ("information", (_pairs(width),)),
                ("score", (width,)),
                ("loss", ()),
                ("constant", ()),
                ("pearson", ()),
                ("excess", (2,)),
                ("squares", (2,)),
                ("null_information", (_pairs(of_null),)),
                ("null_score", (of_null,)),
                ("null_loss", ()),
                ("null_constant", ()),
            )
        ),
    )


def meat_sums(width: int) -> tuple[Sum, ...]:
    """The sums of the step of robust standard errors, for so many coefficients."""
    return (counts("rows"), Sum("meat", (_pairs(width),), *_BITS))


def start_sums(width: int) -> tuple[Sum, ...]:
    """The sums of the first step."""
    names = ("rows", "used", "groups", "bad_outcomes", "bad_weights", "bad_exposures")
    return (
        *map(counts, names),
        Sum("weight", (), *_BITS),
        Sum("information", (_pairs(width),), *_BITS),
        Sum("score", (width,), *_BITS),
        Sum("null_information", (1,), *_BITS),
        Sum("null_score", (1,), *_BITS),
    )


def _pairs(width: int) -> int:
    return width * (width + 1) // 2


def packed(matrix: Floats) -> Floats:
    """The upper triangle of a symmetric matrix, f64[w (w + 1) / 2]."""
    made: Floats = matrix[np.triu_indices(len(matrix))]
    return made


def unpacked(triangle: Floats, width: int) -> Floats:
    """The reverse of `packed`."""
    made = np.zeros((width, width))
    made[np.triu_indices(width)] = triangle
    return made + np.triu(made, 1).T


def measure_start(model: Model, data: SiteData, middle: float) -> Mapping[str, Any]:
    """The weighted least squares sums of the first iteration, without counts.

    middle: the mean outcome over all sites.
    """
    eta, weight = start(model.family, model.link, data.y, middle)
    target, weight = eta - data.offset, weight * data.weights
    one = np.ones((len(data.y), 1))
    used = model.own and float(weight.sum()) > 0
    out: dict[str, Any] = {"weight": data.weights.sum(), "groups": np.array(int(used))}
    for name, matrix in (("", data.matrix), ("null_", one)):
        if used:
            matrix = matrix - np.average(matrix, axis=0, weights=weight)
            target = target - np.average(target, weights=weight)
        out[name + "information"] = packed((matrix * weight[:, None]).T @ matrix)
        out[name + "score"] = matrix.T @ (weight * target)
    return out


def measure_at(
    model: Model, data: SiteData, at: Floats, null: float, alphas: Floats, joint: bool
) -> Mapping[str, Any]:
    """The sums at coefficients, without the counts of rows.

    Args:
        model: family and link.
        data: the site's rows.
        at: f64[p] coefficients.
        null: the coefficient of the null model.
        alphas: f64[2], of the model and of the null model; 0 for Poisson.
        joint: whether alpha is estimated.
    """
    if model.own and not _informative(model.family, data):
        data = SiteData(data.matrix[:0], data.y[:0], data.weights[:0], data.offset[:0])
    one = np.ones((len(data.y), 1))
    full = _evaluated(model, data, data.matrix, at, float(alphas[0]), joint)
    rest = _evaluated(model, data, one, np.array([null]), float(alphas[1]), joint)
    names = ("information", "score", "loss", "constant", "excess", "squares")
    expected = {"expected": full["expected"]} if model.bent and not joint else {}
    return {
        **expected,
        "used": np.array(len(data.y)),
        "groups": np.array(int(len(data.y) > 0)),
        "invalid": np.array([full["invalid"], rest["invalid"]]),
        "weight": data.weights.sum(),
        "pearson": full["pearson"],
        **{name: full[name] for name in names[:4]},
        **{"null_" + name: rest[name] for name in names[:4]},
        **{name: np.array([full[name], rest[name]]) for name in names[4:]},
    }


def measure_meat(
    model: Model, data: SiteData, at: Floats, alpha: float, joint: bool, by_site: bool
) -> Floats:
    """The sum of outer products of scores, f64[q (q + 1) / 2]: of rows, or of the whole site."""
    if model.own and not _informative(model.family, data):
        data = SiteData(data.matrix[:0], data.y[:0], data.weights[:0], data.offset[:0])
    eta = data.matrix @ at + data.offset
    if model.own and len(eta):
        eta = eta + own_intercept(model, data, eta, alpha)
    rows = rows_at(model.family, model.link, data.y, eta, alpha, joint)
    scores = data.matrix * rows.score[:, None]
    if joint and rows.alpha_score is not None:
        scores = np.column_stack([scores, rows.alpha_score])
    if model.own and len(eta):  # what a row moves the site's own intercept by
        weight = rows.weight * data.weights
        crossed = data.matrix.T @ weight
        if joint and rows.alpha_cross is not None:
            crossed = np.append(crossed, rows.alpha_cross @ data.weights)
        scores = scores - np.outer(rows.score, crossed / max(float(weight.sum()), 1e-300))
    if by_site:
        whole = data.weights @ scores
        return packed(np.outer(whole, whole))
    return packed((scores * data.weights[:, None]).T @ scores)


def _informative(family: str, data: SiteData) -> bool:
    """Whether a site's own intercept is finite."""
    counted = data.y[data.weights > 0]
    if not len(counted):
        return False
    if family == "logistic":
        return bool(counted.min() < counted.max())
    return family in ("linear", "gamma") or bool(counted.max() > 0)


def _evaluated(
    model: Model, data: SiteData, matrix: Floats, at: Floats, alpha: float, joint: bool
) -> dict[str, Any]:
    eta = matrix @ at + data.offset
    if model.own and len(eta):
        eta = eta + own_intercept(model, data, eta, alpha)
    rows = rows_at(model.family, model.link, data.y, eta, alpha, joint)
    weights = data.weights
    check_weights(rows.weight * weights, data.floor)
    information, score = _derivatives(matrix, rows, weights, model.own, joint)
    expected = information
    if rows.expected is not None:
        steady = replace(rows, weight=rows.expected)
        expected = _derivatives(matrix, steady, weights, model.own, False)[0]
    off = data.y - rows.mean
    return {
        "expected": packed(expected),
        "invalid": int((invalid(model.family, model.link, eta) & (weights > 0)).sum()),
        "information": packed(information),
        "score": score,
        "loss": weights @ rows.loss,
        "constant": weights @ rows.constant,
        "pearson": weights @ rows.pearson,
        "excess": weights @ (off**2 - data.y),
        "squares": weights @ rows.mean**2,
    }


def _derivatives(
    matrix: Floats, rows: Rows, weights: Floats, own: bool, joint: bool
) -> tuple[Floats, Floats]:
    """The information and the score, f64[q, q] and f64[q], of a (profile) likelihood."""
    weight = rows.weight * weights
    information = (matrix * weight[:, None]).T @ matrix
    score = matrix.T @ (rows.score * weights)
    crossed = matrix.T @ weight
    if joint:
        assert rows.alpha_score is not None and rows.alpha_cross is not None
        assert rows.alpha_weight is not None
        cross = matrix.T @ (rows.alpha_cross * weights)
        corner = np.array([[rows.alpha_weight @ weights]])
        information = np.block([[information, cross[:, None]], [cross[None], corner]])
        score = np.append(score, rows.alpha_score @ weights)
        crossed = np.append(crossed, rows.alpha_cross @ weights)
    if own and len(weight):
        information = information - np.outer(crossed, crossed) / max(float(weight.sum()), 1e-300)
    return information, score


def own_intercept(model: Model, data: SiteData, eta: Floats, alpha: float) -> float:
    """The intercept that maximizes a site's likelihood, given its other linear predictors.

    The score falls as the intercept grows: Newton's steps, and bisection where one leaves the
    bracket.
    """
    y, weights = data.y, data.weights
    if model.family == "linear":
        return float(np.average(y - eta, weights=weights))
    top = float(np.abs(eta).max())
    if model.family == "gamma":
        shifted = y * np.exp(-np.clip(eta, -2 * ETA_MAX, 2 * ETA_MAX))
        return float(np.log(np.average(shifted, weights=weights)))
    if model.family == "poisson" or (model.family == "negative_binomial" and alpha == 0):
        shift = float(eta.max())
        return float(np.log(weights @ y / (weights @ np.exp(eta - shift))) - shift)
    low, high = -top - 2 * ETA_MAX, top + 2 * ETA_MAX
    at = 0.0
    for _ in range(_INTERCEPT_ITERATIONS):
        rows = rows_at(model.family, model.link, y, eta + at, alpha, False)
        slope, curve = float(weights @ rows.score), float(weights @ rows.weight)
        low, high = (at, high) if slope > 0 else (low, at)
        step = slope / curve if curve > 0 else np.inf
        new = at + step if low < at + step < high else (low + high) / 2
        if abs(new - at) <= 1e-15 * max(1.0, abs(new)) or slope == 0:
            break
        at = new
    return at
