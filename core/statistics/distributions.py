"""Tail probabilities of the distributions that tests use, by scipy: where a question is asked."""

from __future__ import annotations

from typing import Any

from ..common.errors import DelianError
from ..common.install_hint import install


def special() -> Any:
    """`scipy.special`. Raises DelianError where scipy is not installed."""
    try:
        from scipy import special as found
    except ImportError:
        raise DelianError(
            "p-values and intervals need scipy, which is not installed", install("ask")
        ) from None
    return found


def normal_two_sided(z: Any) -> Any:
    """P(|Z| > |z|) of a standard normal Z."""
    return special().erfc(abs(z) / 2**0.5)


def normal_quantile(p: float) -> float:
    """The p-quantile of the standard normal distribution."""
    return float(special().ndtri(p))


def t_two_sided(t: Any, freedom: float) -> Any:
    """P(|T| > |t|) of Student's t with so many degrees of freedom."""
    return 2 * special().stdtr(freedom, -abs(t))


def t_quantile(p: float, freedom: float) -> float:
    """The p-quantile of Student's t."""
    return float(special().stdtrit(freedom, p))


def chi_squared_tail(x: Any, freedom: float) -> Any:
    """P(X > x) of chi-squared with so many degrees of freedom."""
    return special().chdtrc(freedom, x)


def f_tail(x: Any, over: float, under: float) -> Any:
    """P(X > x) of Fisher's F with so many degrees of freedom above and below."""
    return special().fdtrc(over, under, x)
