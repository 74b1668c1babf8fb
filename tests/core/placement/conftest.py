"""Hands the models that are cut to tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def placed_models() -> ModuleType:
    """The module of models and cuts."""
    name = "delian_placed_models"
    if name not in sys.modules:
        path = Path(__file__).parent / "placed_models.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules.setdefault(name, module))
    return sys.modules[name]
