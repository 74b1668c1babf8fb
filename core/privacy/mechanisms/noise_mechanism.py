"""Noise in a run: how much a promise takes, what a device checks and adds, what a round costs.

Each of n devices adds a Skellam vector of variance v to its elements before they are masked, and
the sum carries n*v: no party needs to be trusted with the exact sum. Noise of devices that collude
with the coordinator counts for nothing, since they can reveal it: of n survivors, with a share g of
at most N devices corrupt, n - gN count. Or the coordinator adds one discrete Gaussian vector to the
sum, and is trusted to do so and to forget the sum (`central`).

What one device can change is bounded by what it checks itself, on the finished elements and not
in a program that others wrote (`guard`): its weight is 1, and the length of k = floor(v + u) is at
most Delta_2,

    Delta_2^2 = min( (C s + sqrt(L))^2,  C^2 s^2 + L/4 + sqrt(2 log(1/beta)) (C s + sqrt(L)/2) )

for L coordinates of which rounding makes more with a chance below beta (Kairouz, Liu and Steinke
2021, "The distributed discrete Gaussian mechanism for federated learning with secure aggregation",
proposition 22). Where it does, the device sends nothing. Rounding is no noise: it is counted as
length here, and for no privacy.

The promise is about a device's whole update: with its update, or with zeros in its place, what the
run publishes is (epsilon, delta)-indistinguishable. That a device takes part is not hidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...protocol.ports import Vector
from . import accountant, noise
from .ring import RingError, RingPlan

#: beta above: less often than once in as many roundings as all devices ever make.
_BETA = 2.0**-60
#: The chance, each release, that an honest device's rounding was too long (beta), or that noise was
#: not exactly distributed (`noise`: at most 2^-110 a number, of fewer than 2^28 of 2^20 devices).
FAILURE = 2.0**-58
#: A round's own clip may be so small that noise weakens to this share (`strength`), not more.
STRENGTH_LEAST = 0.9
_SLACK = 1.0 + 2.0**-20  # as the ring's: one rounding to f32
_BLOCK = 1 << 16
#: The promise is met this closely, from below.
_TOLERANCE = 1e-6
_NOISE_LEAST = 1e-6


def sensitivity(plan: RingPlan) -> tuple[float, float]:
    """Delta_2 and Delta_1 of one device's elements, in steps."""
    length = plan.reach * plan.scale * _SLACK
    coordinates = plan.length - 1
    root = math.sqrt(coordinates)
    spread = math.sqrt(2 * math.log(1 / _BETA)) * (length + root / 2)
    l2 = min(length + root, math.sqrt(length * length + root * root / 4 + spread))
    return l2, accountant.whole_l1(l2, coordinates)


def strength(plan: RingPlan) -> float:
    """The standard deviation of one vector of the plan's noise, in lengths that an update may have.

    It is `plan.noise`, less what rounding makes updates longer. With a round's own clip that is the
    more the smaller the clip is: its steps become few, and rounding does not become smaller.
    """
    return math.sqrt(plan.noise_variance) / sensitivity(plan)[0]


def drowning(plan: RingPlan, devices: int) -> float:
    """How long the noise of a sum of so many devices is, in lengths that their updates may add to.

    sqrt(k d) s / (d C) of d devices, k numbers, noise of standard deviation s at each device and
    updates of length C; central noise is added once, sqrt(k) s / (d C). Zero without noise. Where
    it is some times one, little is learnt, however well the updates agree.
    """
    if not plan.noise:
        return 0.0
    parts = 1 if plan.central else devices
    length = math.sqrt((plan.length - 1) * parts * plan.noise_variance)
    return length / (devices * plan.reach * plan.scale)


def guard(vector: Vector, plan: RingPlan) -> None:
    """Rejects a device's finished elements that could reveal more than the plan accounts for.

    elements: u32[L]. Raises RingError for a weight other than 1 and for a vector that is too long.
    """
    if vector.shape != (plan.length,):
        raise RingError(f"{vector.shape} elements, where the plan says {plan.length}")
    if int(vector[-1]) != int(plan.weight_scale):
        raise RingError(
            "an update's weight is not 1, and would reveal something of the data",
            "build the bundle with weight_max=1 for a run with noise",
        )
    square = 0.0
    for start in range(0, plan.length - 1, _BLOCK):
        block = vector[:-1][start : start + _BLOCK].view(np.int32).astype(np.float64)
        square += float(block @ block)
    if not square <= sensitivity(plan)[0] ** 2:
        raise RingError(
            f"an update is {math.sqrt(square):.6g} steps long, where the plan allows"
            f" {sensitivity(plan)[0]:.6g}",
            "the program does not clip as the plan says",
        )


def add(vector: Vector, plan: RingPlan, key: bytes) -> None:
    """Adds one vector of the plan's noise, in place.

    To a device's elements or, where the plan's noise is central, to a sum. The weight stays exact.

    key: 32 secret bytes, used for this vector alone. Raises NoiseError.
    """
    distribution = noise.discrete_gaussian if plan.central else noise.skellam
    noise.add(vector[:-1], distribution(plan.noise_variance), key)


def release(plan: RingPlan, survivors: int, corrupt: float = 0.0) -> accountant.Divergences:
    """What publishing the sum of so many devices costs; each goes with a chance of FAILURE.

    corrupt: g above. Raises RingError where no honest device's noise need be in the sum.
    """
    l2, l1 = sensitivity(plan)
    if plan.central:
        return accountant.gaussian(l2, plan.noise_variance)
    honest = survivors - math.ceil(corrupt * plan.clients_max - 1e-9)
    if honest < 1:
        raise RingError(
            f"of {survivors} devices, {corrupt:g} of {plan.clients_max} may be corrupt",
            "ask for more reports in a round",
        )
    return accountant.skellam(l2, l1, honest * plan.noise_variance)


@dataclass(frozen=True, slots=True)
class PrivacyTarget:
    """A run's differential privacy and its assumptions. Raises BudgetError."""

    epsilon: float
    delta: float
    releases: int
    """Noised sums that are published."""
    survivors: int
    """Devices in each, or more."""
    corrupt: float = 0.0
    """The share of devices that may work with the coordinator; not for central noise."""
    central: bool = False

    def __post_init__(self) -> None:
        self.budget()
        failing = self.releases * FAILURE
        if self.delta <= failing:
            raise accountant.BudgetError(
                f"delta is {self.delta:g}", f"{self.releases} releases alone fail with {failing:g}"
            )

    def budget(self) -> accountant.Budget:
        """The budget, of which nothing is spent."""
        return accountant.Budget(self.epsilon, self.delta)

    def is_kept(self, plan: RingPlan) -> bool:
        """Whether the plan's noise lasts for all releases."""
        if not plan.noise:
            return False
        cost = release(plan, self.survivors, self.corrupt)
        total = tuple(self.releases * c for c in cost)
        left = self.delta - self.releases * FAILURE
        return accountant.epsilon_of(total, left) <= self.epsilon


def planned(plan: RingPlan, promise: PrivacyTarget) -> RingPlan:
    """The plan with the least noise that keeps the promise.

    plan: without noise. Raises RingError where the noise that it takes cannot be drawn, does not
    fit the ring, or drowns all that is learnt.
    """
    # Met from below, so that sums in another order keep it too.
    wanted = replace(promise, epsilon=promise.epsilon * (1 - _TOLERANCE))

    def noised(amount: float) -> RingPlan:
        return replace(plan, noise=amount, central=promise.central)

    # Less than this is no whole step of a narrow ring; with noise its steps may be twice as coarse.
    drawn = 2 * math.sqrt(noise.VARIANCE_MIN) / (plan.reach * plan.scale)
    low = high = max(_NOISE_LEAST, drawn)
    while not wanted.is_kept(noised(high)):
        low, high = high, 2 * high  # past the ring's own limit, RingError says so
    while high > low * (1 + _TOLERANCE):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if wanted.is_kept(noised(middle)) else (middle, high)
    return noised(high)
