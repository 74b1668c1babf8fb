"""Fixtures that unit and system tests of this area share."""

from support.cloud_fixtures import (  # noqa: F401
    bundle,
)
