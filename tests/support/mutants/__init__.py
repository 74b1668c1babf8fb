"""Planted bugs of the protocol: what the oracles must find.

Each is a small change to a machine, to its journal or to the driver's order of doing things,
planted through pytest's MonkeyPatch; a file holds those of one of them.
"""

from __future__ import annotations

from . import coordinator, device, driver, edge, masks
from .planting import Mutant
from .stores import STORE_MUTANTS as STORE_MUTANTS

MUTANTS = [
    found
    for module in (edge, coordinator, device, masks, driver)
    for found in vars(module).values()
    if isinstance(found, Mutant)
]
