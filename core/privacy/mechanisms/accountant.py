"""How much privacy a run has spent: Renyi differential privacy, from round to round.

A round publishes a noised sum. Between the sum with one device's update in it and the sum with
nothing in its place lies at most that update: of L2 norm Delta_2, and L1 norm Delta_1, in steps of
the ring. Of noise of total variance V on each coordinate, the round's Renyi divergence of order
alpha is at most

    Gaussian   alpha Delta_2^2 / 2V                                                (Mironov 2017)
    Skellam    the same + min( ((2 alpha - 1) Delta_2^2 + 6 Delta_1) / 4V^2,  3 Delta_1 / 2V )

the second for whole alpha > 1 (Agarwal, Kairouz and Liu 2021, corollary 4.1); at orders below 2 the
bound of order 2 stands, since divergence grows with the order. The discrete Gaussian keeps the
Gaussian's (Canonne, Kamath and Steinke 2020, theorem 14). Rounds add up order by order, also where
a round is chosen by what earlier ones showed, and at the end

    epsilon = min over alpha of  D(alpha) + log(1 - 1/alpha) - (log delta + log alpha) / (alpha - 1)

(Canonne, Kamath and Steinke 2020, proposition 12). All rounds are charged to all devices. That the
coordinator selects some at random makes nothing smaller here: it knows the selected devices, and so
do the edges. `without_replacement` is the bound for a party that sees only the models and knows
nothing of the selection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...common.errors import DelianError

#: Orders that bounds for whole orders only are computed at.
_WHOLE = (*range(2, 65), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 768, 1024)
#: Orders alpha at which divergences are kept. Large epsilons are best at small orders, small ones
#: at large: from epsilon 60 on the Gaussian's best order is below 2.
ORDERS: tuple[float, ...] = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, *_WHOLE)
Divergences = tuple[float, ...]
"""One number for each of ORDERS."""


class BudgetError(DelianError):
    """The next round would spend more than the run may, or a budget is none."""


def gaussian(l2: float, variance: float) -> Divergences:
    """The loss of a release with (discrete) Gaussian noise; l2: Delta_2, variance: V."""
    return tuple(order * l2 * l2 / (2 * variance) for order in ORDERS)


def skellam(l2: float, l1: float, variance: float) -> Divergences:
    """The privacy loss of one release of whole numbers with Skellam noise.

    l2, l1: Delta_2 and Delta_1, variance: V, in steps: unlike the Gaussian's, the bound is no
    function of their ratio alone.
    """
    tail = 3 * l1 / (2 * variance)

    def bound(order: int) -> float:
        lattice = ((2 * order - 1) * l2 * l2 + 6 * l1) / (4 * variance * variance)
        return order * l2 * l2 / (2 * variance) + min(lattice, tail)

    return tuple(bound(math.ceil(order)) for order in ORDERS)


def whole_l1(l2: float, dimension: int) -> float:
    """The largest L1 norm of `dimension` whole numbers of this L2 norm.

    |k| <= k^2, and Cauchy-Schwarz.
    """
    return l2 * min(math.sqrt(dimension), l2)


def composed(parts: Sequence[Divergences]) -> Divergences:
    """The privacy loss of several releases together."""
    return tuple(math.fsum(column) for column in zip(*parts, strict=True))


def epsilon_of(divergences: Divergences, delta: float) -> float:
    """The epsilon for delta, at the best order. Raises BudgetError for a wrong delta."""
    if not 0.0 < delta < 1.0:
        raise BudgetError(f"delta is {delta:g}", "above 0 and below 1, say 1e-6")
    if not any(divergences):
        return 0.0
    least = math.inf
    for order, d in zip(ORDERS, divergences, strict=True):
        epsilon = d + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        least = min(least, epsilon)
    return max(0.0, least)


def without_replacement(share: float, release: Divergences) -> Divergences:
    """The privacy loss with a secret sample, `share` of the population, of each release."""
    if not 0.0 < share <= 1.0:
        raise BudgetError(f"a share of {share:g} is sampled", "above 0 and at most 1")
    at = _every_order(release)
    sampled = at_all_orders([_sampled(share, order, at) for order in _WHOLE])
    # The sampled release is never worse than the release itself.
    return tuple(map(min, sampled, release))


def at_all_orders(whole: Sequence[float]) -> Divergences:
    """Divergences at ORDERS of those at whole orders: below 2 stands that of 2, the next larger."""
    return (whole[0],) * (len(ORDERS) - len(_WHOLE)) + tuple(whole)


def _every_order(divergences: Divergences) -> Callable[[int], float]:
    # Divergence grows with the order.
    known: list[float] = []
    for order, d in zip(_WHOLE, divergences[-len(_WHOLE) :], strict=True):
        known.extend([d] * (order + 1 - len(known)))
    return known.__getitem__


def _sampled(share: float, order: int, at: Callable[[int], float]) -> float:
    terms = [0.0]  # logarithms
    for j in range(2, order + 1):
        choose = math.lgamma(order + 1) - math.lgamma(j + 1) - math.lgamma(order - j + 1)
        if j == 2:
            growth = at(2)
            factor = min(math.log(4) + _log_expm1(growth), growth + math.log(2))
        else:
            factor = (j - 1) * at(j) + math.log(2)
        terms.append(j * math.log(share) + choose + factor)
    largest = max(terms)
    total = largest + math.log(math.fsum(math.exp(t - largest) for t in terms))
    return total / (order - 1)


def _log_expm1(x: float) -> float:
    """log(e^x - 1) for x >= 0."""
    if x == 0.0:
        return -math.inf
    return x + math.log(-math.expm1(-x))


@dataclass(slots=True)
class Budget:
    """The budget of a run and what it has spent. Raises BudgetError for wrong numbers."""

    epsilon: float
    """Epsilon of the budget."""
    delta: float
    """Delta of the budget."""
    failures: float = 0.0
    """The probability, already spent, of faults outside the divergences."""
    spent: list[float] = field(default_factory=lambda: [0.0] * len(ORDERS))
    """The releases' divergences added up, at ORDERS."""
    releases: int = 0
    """How many there were."""

    def __post_init__(self) -> None:
        if not (0.0 < self.epsilon < math.inf and 0.0 < self.delta < 1.0):
            raise BudgetError(
                f"a budget of epsilon {self.epsilon:g} and delta {self.delta:g}",
                "epsilon above 0, delta above 0 and below 1",
            )
        if len(self.spent) == len(_WHOLE):  # of a version that kept whole orders only
            self.spent = list(at_all_orders(self.spent))
        if len(self.spent) != len(ORDERS) or not all(s >= 0.0 for s in self.spent):
            raise BudgetError(f"a budget with {len(self.spent)} divergences", f"{len(ORDERS)}")

    @property
    def epsilon_spent(self) -> float:
        """The epsilon that all releases so far come to, at the budget's delta."""
        return self._epsilon(tuple(self.spent), self.failures)

    def facts(self) -> dict[str, float]:
        """What is spent, for records and people: epsilon at delta, and after how many releases."""
        return {"epsilon": self.epsilon_spent, "delta": self.delta, "releases": self.releases}

    def allows(self, cost: Divergences, failure: float = 0.0) -> bool:
        """Whether one more release of this cost keeps the promise."""
        after = composed([tuple(self.spent), cost])
        return self._epsilon(after, self.failures + failure) <= self.epsilon

    def refusal(self, cost: Divergences, failure: float = 0.0) -> str:
        """Why one more release of this cost is not to be; empty where it keeps the promise."""
        if self.allows(cost, failure):
            return ""
        return (
            f"the privacy budget is spent: epsilon {self.epsilon_spent:.3g} of {self.epsilon:g}"
            f" after {self.releases} releases, and one more does not fit"
        )

    def spend(self, cost: Divergences, failure: float = 0.0) -> None:
        """Charges a release in advance. Raises BudgetError beyond the budget."""
        why = self.refusal(cost, failure)
        if why:
            raise BudgetError(
                why, "plan fewer rounds, more noise or a larger epsilon before a run starts"
            )
        self.spent = list(composed([tuple(self.spent), cost]))
        self.failures += failure
        self.releases += 1

    def _epsilon(self, divergences: Divergences, failures: float) -> float:
        delta = self.delta - failures
        return epsilon_of(divergences, delta) if delta > 0.0 else math.inf
