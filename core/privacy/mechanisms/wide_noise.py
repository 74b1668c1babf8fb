"""Noise in exact sums: each site adds Skellam numbers to its own, on a lattice.

A step's numbers are multiples of a lattice step so small that the site's noise has a standard
deviation of 4,096 of them. What one row can change has the L2 norm Delta, in the units of the
numbers; the noise of one site has the standard deviation Z Delta on each. In lattice steps a row
changes the numbers by at most

    Delta_2 = 4,096 / Z + sqrt(D)

where D numbers are rounded to the lattice, each by at most half a step before and after. The noise
of the n sites in a sum adds up to Skellam noise of n times the variance; that of corrupt sites
counts for nothing, as in `noise_mechanism`. The promise is about one row: with it, or without it,
what is published is (epsilon, delta)-indistinguishable.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from . import accountant, noise
from .ring import RingError, RingPlan

#: The standard deviation of one site's noise, in lattice steps.
DEVIATION = 4096.0


def lattice(multiplier: float, sensitivity: float) -> int:
    """The lattice step as a power of two, 2^-k: gives k.

    Args:
        multiplier: Z above.
        sensitivity: Delta above.
    """
    # The largest power of two of which the deviation has at least so many.
    return -math.floor(math.log2(multiplier * sensitivity / DEVIATION))


def add(values: npt.NDArray[np.float64], multiplier: float, sensitivity: float, key: bytes) -> None:
    """Rounds a site's numbers to the lattice and adds its noise, in place.

    Args:
        values: f64[n].
        multiplier: Z above.
        sensitivity: Delta above: the largest L2 norm of what one row changes in `values`.
        key: 32 secret bytes, for this vector alone.
    """
    bits = lattice(multiplier, sensitivity)
    drawn = np.zeros(values.size, np.uint32)
    noise.add(drawn, noise.skellam(DEVIATION**2), key)
    # A coarser lattice than the rule's would weaken the noise; its deviation is at least Z Delta.
    steps = np.rint(np.ldexp(values, bits)) + drawn.view(np.int32)
    values[...] = np.ldexp(steps, -bits)


def release(plan: RingPlan, survivors: int, corrupt: float = 0.0) -> accountant.Divergences:
    """What publishing the sum of so many sites costs a row. Raises RingError where it hides none.

    Args:
        plan: its `noise` is Z above; its dimension is no fewer than the numbers in it.
        survivors: sites in the sum.
        corrupt: the share of `clients_max` sites that may know their own noise.
    """
    honest = survivors - math.ceil(corrupt * plan.clients_max - 1e-9)
    if honest < 1 or not plan.noise:
        raise RingError(
            f"of {survivors} sites, {corrupt:g} of {plan.clients_max} may be corrupt",
            "ask for more sites in a sum",
        )
    l2 = DEVIATION / plan.noise + math.sqrt(plan.dimension)
    variance = honest * DEVIATION**2
    return accountant.skellam(l2, accountant.whole_l1(l2, plan.dimension), variance)
