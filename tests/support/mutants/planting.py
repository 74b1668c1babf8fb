"""What a planted bug is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from delian.core.protocol.machine import Action, Machine

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


def replace_action(
    patch: Patch, machine: type[Machine[Any]], owner: type, name: str, new: Action
) -> None:
    """Puts an action in another's place: in the rows, and for the actions that call it."""
    old = getattr(owner, name)
    rows = {
        place: replace(r, action=new) if r.action is old else r for place, r in machine.rows.items()
    }
    assert rows != machine.rows, f"no row of {machine.__name__} does {name}"
    patch.setattr(owner, name, new)
    patch.setattr(machine, "rows", rows)
