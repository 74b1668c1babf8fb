"""Functions that look at their own names, and that import within their bodies."""

from __future__ import annotations

from typing import Any


def by_relative_imports(x: Any) -> Any:
    from . import in_place_functions as functions
    from .ragged_cases import VALUES

    return functions.a_truth_as_an_index(x) + len(VALUES)


def _checked(space: dict[str, Any], name: str) -> int:
    if space[name].shape != (4,):
        raise ValueError(f"{name} must have four elements")
    return len(space)


def by_name(x: Any) -> Any:
    first = _checked(locals(), "x")
    doubled = x * 2
    second = _checked(locals(), "doubled")
    names = list(locals())
    return doubled * first, second, [names.index(n) for n in ("x", "first", "doubled")]


def a_snapshot(x: Any) -> Any:
    before = locals()
    x = x + 1
    return before["x"] * x, "before" in before


def after_a_branch(x: Any) -> Any:
    y = x * 2 if x[0] > 0 else x
    for k in range(3):
        y = y + k
    space = locals()
    return space["y"] + space["k"], len(space)


def of_a_captured_name(x: Any) -> Any:
    step = x[0]

    def moved(v: Any) -> Any:
        return v + step

    return moved(locals()["step"]), sorted(locals()).index("step")


PROGRAMS = (by_relative_imports, by_name, a_snapshot, after_a_branch, of_a_captured_name)
