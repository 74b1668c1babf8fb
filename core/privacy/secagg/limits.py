"""Limits of secure aggregation that plans are checked against. Importing them costs nothing."""

from __future__ import annotations

from typing import Final

SUITES: Final = (1, 2)
#: In a sum over two, either device could subtract its own update and read the other's.
COHORT_MIN: Final = 3
#: Members of a cohort.
MEMBERS_MAX: Final = 1_000
HELPERS_MAX: Final = 3
#: Seeds in one batch: with certificates of 2 KiB, and a proof from a log of 2^22 entries, still a
#: message that an edge takes.
BATCH_MAX: Final = 700
