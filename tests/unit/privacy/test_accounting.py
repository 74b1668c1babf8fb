"""The accountant: bounds that hold where the truth can be computed, and budgets that end runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from decimal import Decimal, localcontext

import pytest
from delian.core.privacy.mechanisms import accountant
from delian.core.privacy.mechanisms.accountant import ORDERS, Budget, BudgetError
from scipy.special import log_ndtr


def times(releases, cost):
    return tuple(releases * c for c in cost)


# epsilon by dp-accounting 0.6.0 (RdpAccountant of GaussianDpEvent, whole orders to 256):
# noise multiplier, releases, delta, epsilon.
GAUSSIAN = [
    (1.0, 1, 1e-5, 4.752728336819822),
    (4.0, 100, 1e-6, 15.32798402653992),
    (0.7, 10, 1e-5, 30.53479436915647),
]


@pytest.mark.parametrize(("multiplier", "releases", "delta", "epsilon"), GAUSSIAN)
def test_gaussian_epsilons_are_those_of_a_known_accountant(multiplier, releases, delta, epsilon):
    cost = accountant.gaussian(1.0, multiplier**2)
    got = accountant.epsilon_of(times(releases, cost), delta)
    assert got == pytest.approx(epsilon, rel=1e-12)


def test_a_known_accountant_agrees_now_too():
    events = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    for multiplier, releases, delta, _ in GAUSSIAN:
        judge = rdp.RdpAccountant(orders=list(ORDERS))
        judge.compose(events.GaussianDpEvent(multiplier), releases)
        cost = accountant.gaussian(1.0, multiplier**2)
        got = accountant.epsilon_of(times(releases, cost), delta)
        assert got == pytest.approx(float(judge.get_epsilon(delta)), rel=1e-9)


def test_the_gaussian_s_epsilon_is_above_its_exact_one():
    # Balle and Wang 2018, theorem 8: delta as a function of epsilon, exactly, of one release.
    def normal(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    for multiplier in (0.8, 2.0, 10.0):
        epsilon = accountant.epsilon_of(accountant.gaussian(1.0, multiplier**2), 1e-6)
        half, slope = 1 / (2 * multiplier), epsilon * multiplier
        exact = normal(half - slope) - math.exp(epsilon) * normal(-half - slope)
        assert 1e-9 < exact < 1e-6


def exact_gaussian_epsilon(multiplier, delta):
    """Balle and Wang 2018, theorem 8, solved for epsilon by bisection."""
    half = 1 / (2 * multiplier)

    def log_delta(epsilon):
        a = log_ndtr(half - epsilon * multiplier)
        b = epsilon + log_ndtr(-half - epsilon * multiplier)
        return a + math.log1p(-math.exp(b - a)) if b < a else -math.inf

    low, high = 0.0, half * half * 2 + 8 / multiplier + 5
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if log_delta(middle) > math.log(delta) else (low, middle)
    return high


@pytest.mark.parametrize("multiplier", [4.0, 1.0, 0.3, 0.15, 0.1, 0.07, 0.05])
def test_a_gaussian_s_epsilon_is_within_a_tenth_of_the_exact_one_up_to_300(multiplier):
    exact = exact_gaussian_epsilon(multiplier, 1e-6)
    epsilon = accountant.epsilon_of(accountant.gaussian(1.0, multiplier**2), 1e-6)
    assert exact < epsilon < 1.1 * exact


def test_a_skellam_s_epsilon_beyond_100_is_loose_by_as_much_as_the_page_says():
    # Steps so fine that it is the Gaussian; its bound holds at whole orders only.
    step = 2.0**-12
    for multiplier, least, most in ((0.1, 1.15, 1.17), (0.05, 1.39, 1.41)):
        l2 = 1 / step
        cost = accountant.skellam(l2, l2, (multiplier * l2) ** 2)
        ratio = accountant.epsilon_of(cost, 1e-6) / exact_gaussian_epsilon(multiplier, 1e-6)
        assert least < ratio < most


def test_a_budget_of_whole_orders_goes_on():
    whole = [d for o, d in zip(ORDERS, accountant.gaussian(1.0, 4.0), strict=True) if o >= 2]
    old = Budget(epsilon=8.0, delta=1e-6, spent=list(whole), releases=1)
    assert old.spent[-len(whole) :] == whole and set(old.spent[: -len(whole)]) == {whole[0]}
    assert old.epsilon_spent == accountant.epsilon_of(accountant.gaussian(1.0, 4.0), 1e-6)


def exact_skellam_divergence(order, shift, variance):
    """1/(a-1) log sum_k P(k)^a P(k-shift)^(1-a), by the series of the Bessel function."""

    def log_mass(k):
        half, total, m = Decimal(variance) / 2, Decimal(0), 0
        term = half ** abs(k) / math.factorial(abs(k))
        while term > total * Decimal("1e-40"):
            total += term
            m += 1
            term = term * half * half / (m * (m + abs(k)))
        return total.ln() - variance

    with localcontext() as context:
        context.prec = 50
        # The sum's weight lies around order * shift on the far side.
        reach = int(12 * math.sqrt(variance)) + 30
        low, high = -order * shift - reach, order * shift + reach
        known = {k: log_mass(k) for k in range(low - shift, high + 1)}
        total = sum(
            (order * known[k] + (1 - order) * known[k - shift]).exp() for k in range(low, high + 1)
        )
        return float(total.ln()) / (order - 1)


@pytest.mark.parametrize("variance", [6, 60])
@pytest.mark.parametrize("shift", [1, 3])
def test_the_skellam_bound_holds_and_is_near(variance, shift):
    bound = dict(zip(ORDERS, accountant.skellam(shift, shift, variance), strict=True))
    gaussian = dict(zip(ORDERS, accountant.gaussian(shift, variance), strict=True))
    for order in (2, 5, 16):
        exact = exact_skellam_divergence(order, shift, variance)
        assert exact <= bound[order]
        # Not so loose that it could not fail.
        assert exact > 0.3 * bound[order]
        assert bound[order] > gaussian[order]


def test_the_skellam_bound_tends_to_the_gaussian_as_steps_get_finer():
    # The same noise in proportion to the clip, in steps of 1, 1/8, 1/64 ... of it.
    excess = []
    for steps in (8.0, 64.0, 512.0, 4096.0):
        variance = (2.0 * steps) ** 2
        l1 = accountant.whole_l1(steps, 10_000)
        skellam = accountant.epsilon_of(accountant.skellam(steps, l1, variance), 1e-6)
        gaussian = accountant.epsilon_of(accountant.gaussian(steps, variance), 1e-6)
        excess.append(skellam / gaussian - 1)
    assert all(e > 0 for e in excess)
    assert all(b < a / 8 for a, b in itertools.pairwise(excess))
    assert excess[-1] < 1e-6


def test_the_l1_norm_of_whole_numbers_is_bounded_both_ways():
    # One coordinate of 3, and nine of one: both of L2 norm 3.
    assert accountant.whole_l1(3.0, 1) == 3.0
    assert accountant.whole_l1(3.0, 1_000_000) == 9.0


def test_sampling_without_replacement_is_the_published_bound():
    # 3.576...: dp-accounting 0.6.0, SampledWithoutReplacementDpEvent of 10 in 1000, replace-one.
    cost = accountant.without_replacement(0.01, accountant.gaussian(1.0, 1.0))
    assert accountant.epsilon_of(times(1000, cost), 1e-5) == pytest.approx(3.576111482350549)


def test_sampling_never_makes_it_worse_and_a_whole_sample_makes_nothing_better():
    release = accountant.gaussian(1.0, 4.0)
    assert accountant.without_replacement(1.0, release) == release
    some = accountant.without_replacement(0.2, release)
    fewer = accountant.without_replacement(0.02, release)
    assert all(f <= s <= r for f, s, r in zip(fewer, some, release, strict=True))
    assert fewer[0] < some[0] < release[0]


def test_nothing_spent_is_nothing_lost():
    assert accountant.epsilon_of((0.0,) * len(ORDERS), 1e-6) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_a_delta_that_is_no_chance_is_refused(delta):
    with pytest.raises(BudgetError, match="delta"):
        accountant.epsilon_of(accountant.gaussian(1.0, 1.0), delta)


def test_a_budget_is_spent_to_its_end_and_no_further():
    cost = accountant.gaussian(1.0, 100.0)
    allowed = accountant.epsilon_of(times(20, cost), 1e-6)
    budget = Budget(allowed * (1 + 1e-9), 1e-6)
    for release in range(20):
        assert budget.releases == release
        budget.spend(cost)
    assert budget.epsilon_spent == pytest.approx(allowed)
    before = list(budget.spent)
    with pytest.raises(BudgetError, match=r"spent: epsilon .* after 20 releases") as ended:
        budget.spend(cost)
    assert ended.value.hint and budget.spent == before and budget.releases == 20


def test_releases_of_different_cost_add_up():
    large, small = accountant.gaussian(1.0, 25.0), accountant.gaussian(1.0, 400.0)
    budget = Budget(10.0, 1e-6)
    for cost in (large, small, small):
        budget.spend(cost)
    together = accountant.composed([large, small, small])
    assert budget.epsilon_spent == accountant.epsilon_of(together, 1e-6)


def test_chances_of_failure_are_taken_from_delta():
    cost = accountant.gaussian(1.0, 100.0)
    plain, failing = Budget(5.0, 1e-6), Budget(5.0, 1e-6)
    plain.spend(cost)
    failing.spend(cost, 5e-7)
    assert failing.epsilon_spent == accountant.epsilon_of(cost, 1e-6 - 5e-7) > plain.epsilon_spent
    # Where failures take all of delta, no epsilon is left that could be promised.
    assert not failing.allows(cost, 5e-7)


def test_a_budget_survives_being_written_down():
    budget = Budget(2.0, 1e-6)
    for _ in range(3):
        budget.spend(accountant.skellam(50.0, 400.0, 1e6), 1e-17)
    again = Budget(**json.loads(json.dumps(dataclasses.asdict(budget))))
    assert again == budget and again.epsilon_spent == budget.epsilon_spent


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"delta": 0.0},
        {"delta": 1.0},
        {"spent": [0.0]},
        {"spent": [-1.0] * len(ORDERS)},
    ],
)
def test_a_budget_that_is_none_is_refused(changes):
    with pytest.raises(BudgetError):
        Budget(**{"epsilon": 1.0, "delta": 1e-6, **changes})
