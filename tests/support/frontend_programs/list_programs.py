"""Random programs of loops over lists of numbers: indices of the program, aliases, branches."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from itertools import count
from typing import Any

_HEAD = """
def scaled(v, k):
    for i in range(len(v)):
        v[i] = v[i] * 0.5 + k


def total(v):
    t = 0.0
    for e in v:
        t = t + e
    return t


def f(a, b, x, n):
    c = [[0.0] * 4 for _ in range(3)]
    d = [[x, x + 1.0, 2.0, x * 3.0], [x - 1.0, 1.0, 0.5, x]]
    v, w = [1.0, x, 3.0, x + 2.0], [k * 0.5 for k in range(4)]
    row, t = c[1], x
    e = {"v": v, "c": c}
"""
_TAIL = "    return c, d, v, w, row, t, e, a[0][1]\n"
_ROWS = ("c[i % 3]", "d[i % 2]", "a[i % 3]", "row", "v", "w", 'e["v"]', "c[2]", "d[0]", "a[1]")
_CHANGED = ("c[i % 3]", "d[i % 2]", "row", "v", "w", 'e["v"]', "c[2]", 'e["c"][i % 3]')
_INDEX = ("i % 4", "j % 4", "(i + j) % 4", "2", "i % 3", "-1", "j % 2")
_serial = count()


def _value(rng: random.Random) -> str:
    kind = rng.randrange(7)
    if kind <= 3:
        return f"{rng.choice(_ROWS)}[{rng.choice(_INDEX)}]"
    if kind == 4:
        return f"total({rng.choice(_ROWS)})"
    return rng.choice(("t", "x", "0.5", "i * 1.0", "len(c[i % 3])"))


def _lines(rng: random.Random, depth: int, pad: str) -> list[str]:
    out: list[str] = []
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(12 if depth else 7)
        row, k = rng.choice(_CHANGED), rng.choice(_INDEX)
        if kind <= 2:
            op = rng.choice(("=", "+=", "-="))
            out.append(f"{pad}{row}[{k}] {op} {_value(rng)} * 0.5 + {_value(rng)} * 0.25")
        elif kind == 3:
            out.append(f"{pad}t = t * 0.5 + {_value(rng)}")
        elif kind == 4:
            out.append(f"{pad}scaled({row}, {_value(rng)} * 0.1)")
        elif kind == 5:
            out.append(f"{pad}row = {rng.choice(_CHANGED)}")
        elif kind == 6:
            out.append(f"{pad}t = t + sum([y * 0.25 for y in {rng.choice(_ROWS)}])")
        elif kind == 7:
            out.append(f"{pad}if {_value(rng)} > {_value(rng)}:")
            out += _lines(rng, depth - 1, pad + "    ")
        else:
            out.append(
                pad
                + rng.choice(
                    (
                        "for i in range(3):",
                        "for j in range(4):",
                        "for i in range(n):",
                        f"for row in {rng.choice(('c', 'd', 'a'))}:",
                        f"for i, y in enumerate({rng.choice(_ROWS)}):",
                        f"for y, z in zip({rng.choice(_ROWS)}, {rng.choice(_ROWS)}):",
                    )
                )
            )
            out += _lines(rng, depth - 1, pad + "    ")
    return out


def program(rng: random.Random) -> tuple[str, Callable[..., Any]]:
    """A program and its text."""
    lines = ["    i = j = 0", *_lines(rng, 3, "    ")]
    text = _HEAD + "\n".join(lines) + "\n" + _TAIL
    name = f"<lists {next(_serial)}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    return text, space["f"]


def arguments() -> list[Any]:
    a = [[0.5, -1.0, 2.0, 0.25], [1.5, 0.0, -0.5, 3.0], [2.5, 1.0, 0.75, -2.0]]
    return [a, [1.0, 2.0], 1.25, 3]
