"""Fixtures that unit and system tests of this area share."""

from __future__ import annotations

from types import ModuleType

import pytest
from support import adapted_steps as adapted_steps_module
from support.partitioned_fixtures import (  # noqa: F401
    model,
    tiers,
    x,
)


@pytest.fixture(scope="session")
def adapted_steps() -> ModuleType:
    """The module `support.adapted_steps`."""
    return adapted_steps_module
