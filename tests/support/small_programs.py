"""Programs for the oracle's judge, of the body of one function."""

from __future__ import annotations

import ast


def program(body: str, *calls: str) -> str:
    """`f` of `a`, `b`, `c` with this body, and the arguments of its calls."""
    count = len(ast.parse(f"g({calls[0]})", mode="eval").body.args)  # type: ignore[attr-defined]
    names = ", ".join("abc"[:count])
    lines = [f"def f({names}):", *(f"    {line}" for line in body.split("\n"))]
    made = ", ".join(f"lambda: ({call},)" for call in calls)
    between = ["def between():", "    pass"]
    return "\n".join(["import math", "import numpy as np", *lines, f"CALLS = [{made}]", *between])
