"""Hands the table of primitives and operands to any test that asks for a `primitive_case`."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

FIXTURES = ("primitive_case", "smooth_case")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture in FIXTURES:
        if fixture in metafunc.fixturenames:
            from support.primitive_cases import TABLE

            cases: dict[str, list[Any]] = {}
            for case in TABLE:
                if case.smooth or fixture == "primitive_case":
                    cases.setdefault(case.name, []).append(case)
            metafunc.parametrize(fixture, cases.values(), ids=cases)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Calls the test of a primitive for each of its cases: each test has a cost of its own."""
    for fixture in FIXTURES:
        if fixture in pyfuncitem.funcargs:
            names = inspect.signature(pyfuncitem.obj).parameters
            given = {name: pyfuncitem.funcargs[name] for name in names}
            for case in pyfuncitem.funcargs[fixture]:
                try:
                    pyfuncitem.obj(**{**given, fixture: case})
                except Exception as error:
                    error.add_note(f"the case is {case}")
                    raise
            return True
    return None


@pytest.fixture(scope="session")
def random_programs() -> ModuleType:
    """The module of hypothesis strategies for random programs."""
    from support import random_programs

    return random_programs


@pytest.fixture(scope="session")
def primitive_names() -> set[str]:
    """The primitives that the table tries."""
    from support.primitive_cases import TABLE

    names = {op.name for case in TABLE for op in case.block().ops}
    assert {case.name for case in TABLE} <= names
    return names


@pytest.fixture(scope="session")
def differential() -> ModuleType:
    """The package of random programs and their judge."""
    import differential

    return differential
