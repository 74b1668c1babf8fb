"""Families of outcomes: of each row its loss, slope and curvature in the linear predictor.

With eta = x'b + offset and the loss being half the unit deviance:

    linear             eta = mu       loss = (y - mu)^2 / 2
    logistic           eta = logit mu loss = -y log mu - (1 - y) log(1 - mu),  y is 0 or 1
    poisson            eta = log mu   loss = y log(y / mu) - (y - mu)
    negative_binomial  eta = log mu   loss = y log(y / mu)
                                             - (y + 1/alpha) log((1 + alpha y) / (1 + alpha mu))
    gamma              eta = log mu or 1 / mu
                                      loss = -log(y / mu) + (y - mu) / mu

McCullagh and Nelder, Generalized Linear Models (1989), chapter 2; the variance of the negative
binomial distribution is mu + alpha mu^2 (NB2: Cameron and Trivedi 1998, section 3.3). NumPy alone:
this runs at sites.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..site_table import Chosen, Floats
from ..sums import StatisticsError

#: The link functions of each family, the default first.
LINKS = {
    "linear": ("identity",),
    "logistic": ("logit",),
    "poisson": ("log",),
    "negative_binomial": ("log",),
    "gamma": ("log", "inverse"),
}
#: log of the largest mean of a log link, 1e13, so that no sum runs out of its bits.
ETA_MAX = 30.0
#: The smallest linear predictor of an inverse link, with outcomes near 1.
ETA_MIN = 1e-10
#: The largest count of a negative binomial outcome whose dispersion is estimated.
COUNT_MAX = 1_000_000

#: log(1+u) - u/(1+u), of order u^2, and twice that less (u/(1+u))^2, of order u^3, cancel where u
#: is small; there their series are taken, whose terms beyond the 15th are below 1e-16.
_SERIES_BELOW = 0.05
_REST = [(-1) ** k * (k - 1) / k for k in range(15, 0, -1)] + [0.0]
_TAIL = [(-1) ** (k + 1) * (2 / k + k - 3) for k in range(15, 0, -1)] + [0.0]


@dataclass(frozen=True)
class Rows:
    """Of each row, f64[n]: what sums are made of."""

    loss: Floats
    """Half the unit deviance."""
    score: Floats
    """The log-likelihood's derivative in eta, for a dispersion of 1."""
    weight: Floats
    """Minus the log-likelihood's second derivative in eta, for a dispersion of 1."""
    constant: Floats
    """The log-likelihood is constant - loss, where the dispersion is 1."""
    pearson: Floats
    """(y - mu)^2 over the variance function."""
    mean: Floats
    """mu."""
    expected: Floats | None = None
    """What is expected of `weight`, where this depends on y and alpha is given."""
    alpha_score: Floats | None = None
    """The log-likelihood's derivative in log alpha."""
    alpha_cross: Floats | None = None
    """Minus its second derivative in eta and log alpha."""
    alpha_weight: Floats | None = None
    """Minus its second derivative in log alpha."""


def is_outcome(family: str, y: Floats) -> Chosen:
    """Which values a family's outcome can have, bool[n]."""
    found: Chosen = np.isfinite(y)
    if family == "logistic":
        found = (y == 0) | (y == 1)
    elif family == "poisson":
        found = (y >= 0) & (y < 1e13)
    elif family == "negative_binomial":
        found = (y >= 0) & (y == np.rint(y)) & (y <= COUNT_MAX)
    elif family == "gamma":
        found = y > 0
    return found


def invalid(family: str, link: str, eta: Floats) -> Chosen:
    """Where a linear predictor gives no mean, or one too large: a Newton step was too long."""
    found: Chosen = np.zeros(len(eta), np.bool_)
    if link == "inverse":
        found = eta < ETA_MIN
    elif link == "log":
        found = np.abs(eta) > ETA_MAX if family == "gamma" else eta > ETA_MAX
    return found


def start(family: str, link: str, y: Floats, middle: float) -> tuple[Floats, Floats]:
    """The first iteration's (eta, weight), from means that lie between y and all means.

    middle: the mean of y over all sites.
    """
    if family == "linear":
        return y, np.ones(len(y))
    if family == "logistic":
        mu = (y + 0.5) / 2
        return np.log(mu / (1 - mu)), mu * (1 - mu)
    mu = (y + max(middle, 1e-6)) / 2
    if family == "poisson":
        return np.log(mu), mu
    if family == "negative_binomial":  # as Poisson: only where it begins
        return np.log(mu), mu / (1 + mu)
    return (np.log(mu), np.ones(len(y))) if link == "log" else (1 / mu, mu**2)


def rows_at(family: str, link: str, y: Floats, eta: Floats, alpha: float, joint: bool) -> Rows:
    """The rows' numbers at a linear predictor.

    Args:
        family: a name of `LINKS`.
        link: the family's link.
        y: f64[n] outcomes.
        eta: f64[n] linear predictors, offset included; where `invalid`, the nearest valid one is
            taken.
        alpha: of a negative binomial family; 0 is Poisson.
        joint: whether alpha is estimated: its derivatives.
    """
    if family == "linear":
        off = y - eta
        one = np.ones(len(y))
        return Rows(off**2 / 2, off, one, 0 * one, off**2, eta)
    if family == "logistic":
        return _logistic(y, eta)
    if link == "log":
        eta = np.clip(eta, -ETA_MAX if family == "gamma" else -700.0, ETA_MAX)
    if family == "gamma":
        return _gamma(link, y, eta)
    if family == "negative_binomial" and alpha > 0:
        return _negative_binomial(y, eta, alpha, joint)
    mu = np.exp(eta)
    return Rows(
        y * (_log(y) - eta) - (y - mu),
        y - mu,
        mu,
        y * _log(y) - y - log_factorials(y),
        (y - mu) ** 2 / mu,
        mu,
    )


def _logistic(y: Floats, eta: Floats) -> Rows:
    mu = np.exp(-np.logaddexp(0, -eta))
    rest = np.exp(-np.logaddexp(0, eta))
    weight = mu * rest
    pearson = np.where(y == 1, np.exp(np.minimum(-eta, 60)), np.exp(np.minimum(eta, 60)))
    loss = np.logaddexp(0, np.where(y == 1, -eta, eta))
    return Rows(loss, np.where(y == 1, rest, -mu), weight, 0 * y, pearson, mu)


def _gamma(link: str, y: Floats, eta: Floats) -> Rows:
    if link == "log":
        ratio = y * np.exp(-eta)
        loss, one = eta - np.log(y) + ratio - 1, np.ones(len(y))
        return Rows(loss, ratio - 1, ratio, -np.log(y), (ratio - 1) ** 2, np.exp(eta), expected=one)
    eta = np.maximum(eta, ETA_MIN)
    ratio, mu = y * eta, 1 / eta
    loss = ratio - 1 - np.log(ratio)
    return Rows(loss, mu - y, mu**2, -np.log(y), (ratio - 1) ** 2, mu)


def _negative_binomial(y: Floats, eta: Floats, alpha: float, joint: bool) -> Rows:
    mu = np.exp(eta)
    size, more = 1 + alpha * mu, y + 1 / alpha
    loss = y * (_log(y) - eta) - more * (np.log1p(alpha * y) - np.log1p(alpha * mu))
    rising = _rising(y, alpha)
    constant = rising[0] - log_factorials(y) - more * np.log1p(alpha * y) + y * _log(y)
    score, pearson = (y - mu) / size, (y - mu) ** 2 / (mu * size)
    weight = mu * (1 + alpha * y) / size**2
    if not joint:
        return Rows(loss, score, weight, constant, pearson, mu, expected=mu / size)
    u = alpha * mu
    few = np.where(u < _SERIES_BELOW, u, 0.0)
    rest = np.where(u < _SERIES_BELOW, np.polyval(_REST, few), np.log1p(u) - u / (1 + u))
    tail = np.where(u < _SERIES_BELOW, np.polyval(_TAIL, few), 2 * rest - (u / (1 + u)) ** 2)
    first = rising[1] + rest / alpha**2 - y * mu / size
    second = -rising[2] - tail / alpha**3 + y * (mu / size) ** 2
    return Rows(
        loss,
        score,
        weight,
        constant,
        pearson,
        mu,
        alpha_score=alpha * first,
        alpha_cross=alpha * mu * (y - mu) / size**2,
        alpha_weight=-(alpha**2 * second + alpha * first),
    )


def _log(y: Floats) -> Floats:
    """log y, and 0 for 0."""
    return np.log(np.where(y > 0, y, 1.0))


def log_factorials(y: Floats) -> Floats:
    """log Gamma(y + 1), f64[n]; each different value is computed once."""
    levels, places = np.unique(y, return_inverse=True)
    made = np.array([math.lgamma(v + 1) for v in levels.tolist()])
    return made[places] if len(made) else np.zeros(0)


def _rising(y: Floats, alpha: float) -> tuple[Floats, Floats, Floats]:
    """Sums over j < y of log(1 + alpha j), j / (1 + alpha j) and its square, f64[n] each."""
    top = int(y.max()) if len(y) else 0
    if top > COUNT_MAX:
        raise StatisticsError(f"a count above {COUNT_MAX:,}")
    j, places = np.arange(top, dtype=np.float64), y.astype(np.int64)
    part = j / (1 + alpha * j)
    sums = [np.concatenate([[0.0], np.cumsum(v)]) for v in (np.log1p(alpha * j), part, part**2)]
    return sums[0][places], sums[1][places], sums[2][places]
