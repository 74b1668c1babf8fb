"""The likelihood of a linear mixed model, as a function of sums over groups.

    y = X b + Z u + e,   u ~ N(0, s^2 R) in each group,   e ~ N(0, s^2),   V = I + Z R Z'

R is the covariance of the random effects relative to the residual variance. With W = [X y], and in
each group K = (I + Z'Z R)^-1, U = K Z'W, G = K Z'Z:

    S      = W'V^-1 W        = W'W - (Z'W)' R K Z'W
    dS     = -U' E U                          in the direction E of R
    d2S    = U' (E G F + F G E) U             in the directions E and F
    log |V| = log |I + Z'Z R|,  its derivatives tr(G E) and -tr(G E G F)

Sums of these over groups, and so over sites, give b, s^2, the (restricted) likelihood, its
gradient and its curvature at R: no group's own numbers are needed where R is chosen. (Laird and
Ware 1982; Lindstrom and Bates 1988; derivatives of Wolfinger, Tobias and Sall 1994.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..site_table import Floats, Places
from ..sums import StatisticsError, Sum, Totals, counts
from .site_sums import packed, unpacked

#: Bits of sums: columns are near 1, groups are of at most 2^30 rows.
_BITS = (160, 80)


def directions(width: int) -> list[Floats]:
    """The symmetric directions E of a covariance: f64[width, width] each, the diagonal first."""
    made = []
    for i, j in sorted(itertools.combinations_with_replacement(range(width), 2), key=_by_distance):
        each = np.zeros((width, width))
        each[i, j] = each[j, i] = 1.0
        made.append(each)
    return made


def _by_distance(pair: tuple[int, int]) -> tuple[int, int]:
    return pair[1] - pair[0], pair[0]


def sums_of(columns: int, effects: int) -> tuple[Sum, ...]:
    """The sums of a step: W has so many columns, Z so many."""
    size, m = columns * (columns + 1) // 2, effects * (effects + 1) // 2
    pairs = m * (m + 1) // 2
    return (
        counts("rows"),
        counts("left"),
        counts("groups"),
        Sum("products", (size,), *_BITS),
        Sum("first", (m, size), *_BITS),
        Sum("second", (pairs, size), *_BITS),
        Sum("log_volume", (), *_BITS),
        Sum("log_first", (m,), *_BITS),
        Sum("log_second", (pairs,), *_BITS),
    )


def measure(w: Floats, z: Floats, groups: Places, relative: Floats) -> Mapping[str, Any]:
    """A site's sums, without the counts of rows.

    Args:
        w: f64[n, columns]: X and y.
        z: f64[n, effects].
        groups: i64[n]: the group of each row, from 0.
        relative: f64[effects, effects]: R.

    Raises:
        StatisticsError: R is no covariance.
    """
    if not np.array_equal(relative, relative.T) or float(np.linalg.eigvalsh(relative)[0]) < (
        -1e-9 * float(np.abs(relative).max())
    ):
        raise StatisticsError("a step's covariance of random effects is none")
    effects, columns = z.shape[1], w.shape[1]
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1)) if len(groups) else order
    zz, zw = np.zeros((len(starts), effects, effects)), np.zeros((len(starts), effects, columns))
    w_, z_ = w[order], z[order]
    for a in range(effects if len(starts) else 0):
        zz[:, a] = np.add.reduceat(z_ * z_[:, a : a + 1], starts, axis=0)
        zw[:, a] = np.add.reduceat(w_ * z_[:, a : a + 1], starts, axis=0)
    inner = np.eye(effects) + zz @ relative
    k = np.linalg.inv(inner)
    u, g = k @ zw, k @ zz
    g = (g + g.transpose(0, 2, 1)) / 2
    products = w.T @ w - np.einsum("gai,ab,gbj->ij", zw, relative, u, optimize=True)
    basis = directions(effects)
    pairs = list(itertools.combinations_with_replacement(range(len(basis)), 2))
    first = [-np.einsum("gai,ab,gbj->ij", u, e, u, optimize=True) for e in basis]
    second = []
    for i, j in pairs:
        curved = basis[i] @ g @ basis[j]
        curved = curved + curved.transpose(0, 2, 1)
        second.append(np.einsum("gai,gab,gbj->ij", u, curved, u, optimize=True))
    ge = [g @ e for e in basis]
    return {
        "groups": np.array(len(starts)),
        "products": packed(products),
        "first": np.array([packed(each) for each in first]),
        "second": np.array([packed(each) for each in second]),
        "log_volume": np.linalg.slogdet(inner)[1].sum(),
        "log_first": np.array([np.trace(each, axis1=1, axis2=2).sum() for each in ge]),
        "log_second": np.array([-np.einsum("gab,gba->", ge[i], ge[j]) for i, j in pairs]),
    }


@dataclass(frozen=True)
class Profile:
    """The likelihood at R, where b and s^2 maximize it. D is -2 log-likelihood, up to nothing."""

    rows: float
    """Rows."""
    freedom: float
    """Rows; with restricted likelihood less the columns of X."""
    coefficients: Floats
    """f64[p]: b."""
    information: Floats
    """f64[p, p]: X'V^-1 X."""
    scale: float
    """s^2."""
    deviance: float
    """D."""
    gradient: Floats
    """f64[m]: of D in the directions of R."""
    curvature: Floats
    """f64[m, m]: of D."""
    joint: Floats
    """f64[p + m, p + m]: minus the log-likelihood's curvature in b and R, s^2 profiled out."""

    @staticmethod
    def of(totals: Totals, width: int, effects: int, restricted: bool) -> Profile:
        """From a step's totals, for so many columns of X. Raises StatisticsError."""
        m = effects * (effects + 1) // 2
        pairs = list(itertools.combinations_with_replacement(range(m), 2))
        s = unpacked(totals["products"], width + 1)
        first = [unpacked(each, width + 1) for each in totals["first"]]
        second = {p: unpacked(e, width + 1) for p, e in zip(pairs, totals["second"], strict=True)}
        volume = dict(zip(pairs, totals["log_second"].tolist(), strict=True))
        rows, a = totals.number("rows"), s[:width, :width]
        inverse = np.linalg.inv(a) if width else np.zeros((0, 0))
        inverse = (inverse + inverse.T) / 2
        b = inverse @ s[:width, width]
        w = np.append(-b, 1.0)
        rss = float(w @ s @ w)
        freedom = rows - width * restricted
        if rss <= 1e-14 * s[width, width] or freedom <= 0:
            raise StatisticsError(
                "the fixed and random effects explain the outcome without a rest",
                "use fewer predictors, or look for a column that repeats the outcome",
            )
        slopes = [each @ w for each in first]  # of S w, with b held
        changes = np.array([w @ each for each in slopes])
        gradient = totals["log_first"] + freedom * changes / rss
        curvature, held = np.zeros((m, m)), np.zeros((m, m))
        for i, j in pairs:
            own = float(w @ second[i, j] @ w)
            bent = own - 2 * float(slopes[i][:width] @ inverse @ slopes[j][:width])
            base = volume[i, j] - freedom * changes[i] * changes[j] / rss**2
            if restricted:
                da, db = (inverse @ first[k][:width, :width] for k in (i, j))
                base += float(np.trace(inverse @ second[i, j][:width, :width]))
                base -= float(np.sum(da * db.T))
            held[i, j] = held[j, i] = base + freedom * own / rss
            curvature[i, j] = curvature[j, i] = base + freedom * bent / rss
        deviance = totals.number("log_volume") + freedom * (
            math.log(2 * math.pi * rss / freedom) + 1
        )
        if restricted:
            gradient = gradient + [np.trace(inverse @ each[:width, :width]) for each in first]
            deviance += float(np.linalg.slogdet(a)[1])
        scale = rss / freedom
        cross = -np.array([each[:width] for each in slopes]).reshape(m, width) / scale
        joint = np.block([[a / scale, cross.T], [cross, held / 2]])
        return Profile(rows, freedom, b, a, scale, deviance, gradient, curvature, joint)


def at_factor(profile: Profile, factor: Floats) -> tuple[Floats, Floats]:
    """D's gradient and curvature in the entries of a lower triangular L, where R = L L'.

    Args:
        profile: at R.
        factor: f64[effects, effects]: L.

    Returns:
        (f64[m], f64[m, m]), in the order of `numpy.tril_indices`.
    """
    effects = len(factor)
    basis = directions(effects)
    places = list(zip(*np.tril_indices(effects), strict=True))
    units = []
    for i, j in places:
        each = np.zeros((effects, effects))
        each[i, j] = 1.0
        units.append(each)

    def parts(change: Floats) -> Floats:
        """A symmetric matrix in the directions."""
        return np.array([change[e != 0][0] for e in basis])

    jacobian = np.array([parts(u @ factor.T + factor @ u.T) for u in units])
    gradient = jacobian @ profile.gradient
    curvature = jacobian @ profile.curvature @ jacobian.T
    for k, one in enumerate(units):
        for n, other in enumerate(units):
            curvature[k, n] += parts(one @ other.T + other @ one.T) @ profile.gradient
    return gradient, curvature
