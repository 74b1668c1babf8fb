"""Hands modules of `support` to tests: models that are cut, and an exhaustive search."""

from __future__ import annotations

from types import ModuleType

import pytest
from support import brute_force as brute_force_module
from support import placed_models as placed_models_module
from support.program_fixtures import random_programs  # noqa: F401


@pytest.fixture(scope="session")
def brute_force() -> ModuleType:
    """The module `support.brute_force`."""
    return brute_force_module


@pytest.fixture(scope="session")
def placed_models() -> ModuleType:
    """The module `support.placed_models`."""
    return placed_models_module
