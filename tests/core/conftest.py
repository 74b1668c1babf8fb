"""Hands the table of primitives and operands to any test that asks for a `primitive_case`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _cases() -> ModuleType:
    name = "delian_primitive_cases"
    if name not in sys.modules:
        path = Path(__file__).parent / "ops" / "cases"
        spec = importlib.util.spec_from_file_location(
            name, path / "__init__.py", submodule_search_locations=[str(path)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]  # else the next caller would find half of it
            raise
    return sys.modules[name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "primitive_case" in metafunc.fixturenames:
        metafunc.parametrize("primitive_case", _cases().TABLE, ids=str)
    if "smooth_case" in metafunc.fixturenames:
        smooth = [case for case in _cases().TABLE if case.smooth]
        metafunc.parametrize("smooth_case", smooth, ids=str)


@pytest.fixture(scope="session")
def random_programs() -> ModuleType:
    """The module of hypothesis strategies for random programs."""
    name = "delian_random_programs"
    if name not in sys.modules:
        path = Path(__file__).parent / "random_programs.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules.setdefault(name, module))
    return sys.modules[name]


@pytest.fixture(scope="session")
def primitive_names() -> set[str]:
    """The primitives that the table tries."""
    names = {op.name for case in _cases().TABLE for op in case.block().ops}
    assert {case.name for case in _cases().TABLE} <= names
    return names


@pytest.fixture(scope="session")
def differential() -> ModuleType:
    """The package of random programs and their judge."""
    name = "delian_differential"
    if name not in sys.modules:
        path = Path(__file__).parent / "differential"
        spec = importlib.util.spec_from_file_location(
            name, path / "__init__.py", submodule_search_locations=[str(path)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules.setdefault(name, module))
    return sys.modules[name]
