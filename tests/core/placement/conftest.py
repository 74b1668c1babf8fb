"""Hands the modules beside this file to tests: models that are cut, and an exhaustive search."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _beside(module: str) -> ModuleType:
    name = f"delian_placement_{module}"
    if name not in sys.modules:
        path = Path(__file__).with_name(f"{module}.py")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules.setdefault(name, made))
    return sys.modules[name]


@pytest.fixture(scope="session")
def brute_force() -> ModuleType:
    """The module `brute_force` beside this file."""
    return _beside("brute_force")


@pytest.fixture(scope="session")
def placed_models() -> ModuleType:
    """The module `placed_models` beside this file."""
    return _beside("placed_models")
