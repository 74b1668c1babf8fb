"""What a planted bug is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """A planted bug. oracles: those that may find it, the one that is meant to first. seed: one in
    which it shows, as of this writing.
    """

    name: str
    what: str
    plant: Callable[[Patch], None]
    oracles: tuple[str, ...]
    seed: int


def mutant(*oracles: str, seed: int) -> Callable[[Callable[[Patch], None]], Mutant]:
    """Makes a mutant of the function that plants it: its name, and its docstring for `what`."""

    def made(plant: Callable[[Patch], None]) -> Mutant:
        what = " ".join((plant.__doc__ or "").split())
        return Mutant(plant.__name__, what, plant, oracles, seed)

    return made
