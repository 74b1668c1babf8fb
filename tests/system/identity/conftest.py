"""Fixtures that unit and system tests of this area share."""

from support.identity_fixtures import (  # noqa: F401
    authority,
    material,
)
