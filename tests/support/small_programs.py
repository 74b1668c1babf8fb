"""Programs for the oracle's judge, of the body of one function, and what is asserted of them."""

from __future__ import annotations

import ast

from oracle.judge import EQUAL, REFUSED, judge


def program(body: str, *calls: str) -> str:
    """`f` of `a`, `b`, `c` with this body, and the arguments of its calls."""
    called = ast.parse(f"g({calls[0]})", mode="eval").body
    assert isinstance(called, ast.Call)
    names = ", ".join("abc"[: len(called.args)])
    lines = [f"def f({names}):", *(f"    {line}" for line in body.split("\n"))]
    made = ", ".join(f"lambda: ({call},)" for call in calls)
    between = ["def between():", "    pass"]
    return "\n".join(["import math", "import numpy as np", *lines, f"CALLS = [{made}]", *between])


def is_as_in_python(case: tuple[str, ...], backend: str = "reference") -> None:
    """Asserts that a program, a body and calls, gives what Python gives."""
    found = judge(program(*case), backend)
    assert found.mark == EQUAL, found.words


def is_refused(case: tuple[str, ...]) -> None:
    """Asserts that a program is refused, when it is compiled or where its numbers ask for it."""
    found = judge(program(*case))
    assert found.mark == REFUSED, found.words
