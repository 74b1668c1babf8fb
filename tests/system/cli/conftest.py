"""Fixtures that unit and system tests of this area share."""

from support.cli_fixtures import (  # noqa: F401
    coordinator,
    delian,
)
