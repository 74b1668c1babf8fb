"""Hands the table of primitives and operands to any test that asks for a `primitive_case`."""

from __future__ import annotations

from types import ModuleType

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture in ("primitive_case", "smooth_case"):
        if fixture in metafunc.fixturenames:
            from support.primitive_cases import TABLE

            chosen = [case for case in TABLE if case.smooth or fixture == "primitive_case"]
            metafunc.parametrize(fixture, chosen, ids=str)


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
