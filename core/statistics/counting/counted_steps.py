"""Counts the steps of a question, and notes whether their sites were the same."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from ..question import Step
from ..sums import Totals

_T = TypeVar("_T")


class CountedSteps:
    """What the steps that pass through it have in common."""

    def __init__(self) -> None:
        self.count = 0
        """Steps."""
        self.sites = 0
        """Sites in the last step."""
        self.changed = False
        """Whether a step had another number of sites than the one before."""

    def through(self, asking: Generator[Step, Totals, _T]) -> Generator[Step, Totals, _T]:
        """Passes on a generator's steps and their totals, and gives what it returns."""
        totals: Totals | None = None
        while True:
            try:
                step = next(asking) if totals is None else asking.send(totals)
            except StopIteration as end:
                found: _T = end.value
                return found
            totals = yield step
            self.changed |= self.count > 0 and totals.sites != self.sites
            self.count, self.sites = self.count + 1, totals.sites
