"""Asks a question: its steps, one after the other, until there is an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..privacy.mechanisms import accountant, wide_noise
from ..privacy.mechanisms.ring import RingPlan
from .answer import Answer
from .measuring import with_noise
from .question import Step
from .request import Request
from .sums import SumPlan, Totals

#: The delta of what is said where none is chosen.
DELTA = 1e-6


@dataclass
class Spent:
    """What a question's noised sums cost a row, at the weakest sum that was allowed."""

    divergences: list[accountant.Divergences] = field(default_factory=list)

    def charge(self, plan: RingPlan, sites: int, corrupt: float) -> None:
        """One more sum of so many sites."""
        self.divergences.append(wide_noise.release(plan, sites, corrupt))

    def epsilon(self, delta: float = DELTA) -> float:
        """Epsilon of all sums so far, at delta."""
        if not self.divergences:
            return 0.0
        return accountant.epsilon_of(accountant.composed(self.divergences), delta)


def answer(
    request: Request,
    total: Callable[[Step], Totals],
    sites: int,
    *,
    corrupt: float = 0.0,
    on_step: Callable[[Step], None] | None = None,
) -> Answer:
    """The answer to a question.

    Args:
        request: the question.
        total: gives the totals of a step over all sites.
        sites: the most sites that there are.
        corrupt: the share of sites that may know their own noise.
        on_step: called before each step.

    Raises:
        StatisticsError: the data have no answer to it.
    """
    spent = Spent()
    asking = request.question.ask()
    totals: Totals | None = None
    while True:
        try:
            step = next(asking) if totals is None else asking.send(totals)
        except StopIteration as end:
            found: Answer = end.value
            return _noised(found, request, spent)
        step = with_noise(request.question, step, request.noise)
        if on_step is not None:
            on_step(step)
        totals = total(step)
        if request.noise:
            plan = SumPlan(step.sums, sites, request.noise)
            spent.charge(plan.ring, totals.sites, corrupt)


def with_refusals(found: Answer, refusals: Mapping[str, int], sites: int) -> Answer:
    """The answer, with a note on the sites that gave no numbers.

    Args:
        found: the answer.
        refusals: by their reason, the most sites that gave it in a step.
        sites: those that were asked.
    """
    notes = [
        f"{count} of {sites} sites did not answer: {reason}"
        for reason, count in sorted(refusals.items())
    ]
    return replace(found, notes=(*found.notes, *notes))


def _noised(found: Answer, request: Request, spent: Spent) -> Answer:
    """The answer, with what its noise has cost."""
    if not request.noise:
        return found
    facts = {**found.facts, "noise": request.noise, "epsilon": spent.epsilon(), "delta": DELTA}
    return replace(found, facts=facts)


def noise_for(epsilon: float, steps: int, plan: RingPlan, sites: int, corrupt: float) -> float:
    """The least noise of which so many sums cost a row epsilon at `DELTA`.

    Raises BudgetError for an epsilon that no noise gives.
    """

    def cost(noise: float) -> float:
        one = wide_noise.release(replace(plan, noise=noise), sites, corrupt)
        return accountant.epsilon_of(accountant.composed([one] * steps), DELTA)

    low, high = 1e-3, 1e-3
    while cost(high) > epsilon:
        low, high = high, 2 * high
        if high > 1e4:
            raise accountant.BudgetError(
                f"no noise gives an epsilon of {epsilon:g}", "a larger epsilon, or fewer steps"
            )
    while high > low * 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    return high
