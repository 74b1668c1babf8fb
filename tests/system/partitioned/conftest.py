"""Fixtures that unit and system tests of this area share."""

from support.partitioned_fixtures import (  # noqa: F401
    model,
    tiers,
    x,
)
