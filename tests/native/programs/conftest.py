"""Hands every program of this folder's tables to any test that asks for a `program`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import pytest

TABLES = ("numerics", "linear_algebra", "dynamics", "sequences", "learning", "functions")
#: Those of which every run compiles C as well; the others' C is for slow runs.
NATIVE = {
    *("newton_square_root", "adaptive_quadrature", "gauss_with_pivoting", "adaptive_ode"),
    *("metropolis", "viterbi", "stack_machine", "gradient_of_maml", "policy_iteration"),
    *("chosen_closure-1", "tail_recursion", "third_derivative"),
}


@dataclass(frozen=True)
class Program:
    """A function, arguments for it, and which of them it is differentiated by."""

    name: str
    function: Any
    args: tuple[Any, ...]
    wrt: tuple[int, ...]


def _load(table: str) -> list[tuple[Any, tuple[Any, ...], tuple[int, ...]]]:
    module = importlib.import_module(f"support.language_programs.{table}")
    return module.PROGRAMS  # type: ignore[no-any-return]


def programs() -> list[Program]:
    found = []
    for table in TABLES:
        times: dict[str, int] = {}
        for function, args, wrt in _load(table):
            name = function.__name__
            times[name] = times.get(name, 0) + 1
            more = sum(1 for f, _, _ in _load(table) if f is function) > 1
            found.append(Program(f"{name}-{times[name]}" if more else name, function, args, wrt))
    return found


def _chosen(quick: bool) -> list[Program]:
    return [p for p in programs() if (p.name in NATIVE) == quick]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    tables = {
        "program": programs,
        "quick_program": lambda: _chosen(True),
        "slow_program": lambda: _chosen(False),
    }
    for fixture, table in tables.items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, table(), ids=lambda p: p.name)


@pytest.fixture(scope="session")
def quick_programs() -> list[Program]:
    return _chosen(True)


@pytest.fixture(scope="session")
def slow_programs() -> list[Program]:
    return _chosen(False)
