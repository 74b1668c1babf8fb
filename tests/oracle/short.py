"""Short programs: a row of `short_rows`, of arguments of every type, often extreme ones.

A whole program has few of NumPy's functions and few extreme numbers; here each function meets
them. A letter in a row is an argument:

    u v w   vectors of one length, of any element type        h   bools of that length
    M N     matrices of one shape, of any element type        F   a matrix of floats
    G       a square matrix of floats                         T   an array of rank 3
    e       an array without elements
    n m     numbers: Python's, NumPy's, arrays of rank 0      s   a NumPy scalar
    i j     ints of Python's     p q     floats of Python's
    c       a complex number of Python's      z   a complex vector      Z   a complex matrix
    <t>     an element type      <x>   an axis      <k>   a small whole number      <g>   a slice
    {a|b}   one of these

`~` before a row: its numbers are small, since rounding or overflow decides its result. A row's
last line is the result, if it is no statement. A class of `short_rows.CLASSES` that is named in a
row stands in front of the function.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from . import samples
from .samples import array_text, number_text
from .short_rows import CLASSES, ROWS

#: A statement, which is no result.
_STATEMENT = re.compile(r"(return|if|for|while|with|try|match|def|class) |\s|\w+ = ")
_HOLE = re.compile(r"<[txkg]>|\{[^{}:]*\|[^{}]*\}")
_SLICES = (
    *(":2", "1:", "1:3", "::2", "::-1", "1::2", "-2:", ":-1", "2:0:-1", ":", "::-2", ":0"),
    *("None:None:-1", "-1:-4:-1", "5:2", "::3"),
)
#: The share of short programs with extreme numbers, and of extreme ones among these.
_ODD, _EXTREME = 0.4, 0.3


def _parsed() -> list[tuple[str, str]]:
    """(group, row) of each row."""
    out, group = [], ""
    for line in ROWS.strip().splitlines():
        if line.startswith("  "):
            out.append((group, line.strip()))
        else:
            group = line
    return out


_TABLE = _parsed()
GROUPS = frozenset(f"short: {group}" for group, _ in _TABLE)


def write_short(
    rng: random.Random, count: int
) -> tuple[str, list[str], str, list[tuple[str, ...]]]:
    """The group of a row, classes, the text of `f`, and the arguments of its calls."""
    group, row = rng.choice(_TABLE)
    odd = _EXTREME if rng.random() < _ODD and not row.startswith("~") else 0.0
    filled = _HOLE.sub(lambda found: _chosen(rng, found[0]), row.removeprefix("~"))
    lines = filled.split(r"\n")
    if len(lines) == 1 and "; " in filled:
        lines = filled.split("; ")
    if not _STATEMENT.match(lines[-1]):
        lines[-1] = f"return {lines[-1]}"
    arguments = _Arguments(rng, odd, count)
    given = {name: arguments.texts(name) for name in _LETTERS if _is_read(name, row)}
    given = given or {"n": arguments.texts("n")}
    classes = [text for name, text in CLASSES.items() if _is_named(name, row)]
    head = [f"def f({', '.join(given)}):", *(f"    {line}" for line in lines)]
    return f"short: {group}", classes, "\n".join(head), list(zip(*given.values(), strict=True))


def _is_named(name: str, row: str) -> bool:
    bases = [text for text in CLASSES.values() if re.search(rf"\({name}[,)]", text)]
    return any(re.search(rf"\b{n}\b", row) for n in (name, *(_name_of(b) for b in bases)))


def _name_of(text: str) -> str:
    return text.split("class ")[1].split("(")[0].split(":")[0]


def _is_read(name: str, row: str) -> bool:
    """Whether a letter stands alone, as a name that is read: not in text, nor as a keyword."""
    bare = re.sub(r"'[^']*'|<[txkg]>", "", row)
    return re.search(rf"(?<![\w.]){name}(?![\w(]|=[^=])", bare) is not None


def _chosen(rng: random.Random, hole: str) -> str:
    if hole == "<t>":
        drawn = samples.draw_dtype(rng)
        return f"np.{'bool_' if drawn == 'bool' else drawn}"
    if hole == "<x>":
        return rng.choice(("0", "1", "-1", "-2"))
    if hole == "<k>":
        return rng.choice(("0", "1", "2", "-1", "-2", "3"))
    return rng.choice(_SLICES if hole == "<g>" else hole[1:-1].split("|"))


class _Arguments:
    """Arguments, each as many texts of one type as there are calls."""

    def __init__(self, rng: random.Random, odd: float, count: int) -> None:
        self.rng = rng
        self.odd = odd
        self.count = count
        self.length = rng.choice((3, 3, 4, 6, 1, 5, 0))
        self.shape = rng.choice(((2, 3), (3, 3), (3, 4), (1, 3)))

    def texts(self, name: str) -> list[str]:
        return _LETTERS[name](self)

    def array(self, shape: tuple[int, ...], dtype: str = "", odd: float | None = None) -> list[str]:
        dtype = dtype or samples.draw_dtype(self.rng)
        odd = self.odd if odd is None else odd
        return [array_text(self.rng, dtype, shape, odd) for _ in range(self.count)]

    def complex_array(self, shape: tuple[int, ...]) -> list[str]:
        """Without extreme numbers: of infinite ones a part may be NaN here or in NumPy."""
        kind = self.rng.choice(("complex128", "complex64"))
        parts = [self.array(shape, "float64", 0.0) for _ in range(2)]
        return [f"({a} + 1j * {b}).astype(np.{kind})" for a, b in zip(*parts, strict=True)]

    def complex_number(self) -> list[str]:
        def part() -> str:
            return number_text(self.rng, "float64", 0.0)

        return [f"complex({part()}, {part()})" for _ in range(self.count)]

    def number(self, *kinds: str) -> list[str]:
        kind = self.rng.choice(kinds)
        if kind in ("scalar", "rank 0"):
            dtype = samples.draw_dtype(self.rng)
            name = "bool_" if dtype == "bool" else dtype
            form = f"np.{name}({{}})" if kind == "scalar" else f"np.array({{}}, np.{name})"
            texts = (number_text(self.rng, dtype, self.odd) for _ in range(self.count))
            return [form.format(text) for text in texts]
        return [samples.python_text(self.rng, kind, self.odd) for _ in range(self.count)]


_Make = Callable[[_Arguments], list[str]]
_LETTERS: dict[str, _Make] = {
    **dict.fromkeys("uvw", lambda a: a.array((a.length,))),
    **dict.fromkeys("MN", lambda a: a.array(a.shape)),
    "F": lambda a: a.array(a.shape, a.rng.choice(("float64", "float32"))),
    "G": lambda a: a.array((3, 3), a.rng.choice(("float64", "float32")), 0.0),
    "T": lambda a: a.array((2, 3, 2)),
    "e": lambda a: a.array(a.rng.choice(((0,), (0, 3)))),
    "h": lambda a: a.array((a.length,), "bool"),
    **dict.fromkeys(
        "nm", lambda a: a.number("int", "int", "float", "float", "bool", *["scalar"] * 3, "rank 0")
    ),
    "s": lambda a: a.number("scalar"),
    **dict.fromkeys("ij", lambda a: a.number("int")),
    **dict.fromkeys("pq", lambda a: a.number("float")),
    "c": lambda a: a.complex_number(),
    "z": lambda a: a.complex_array((a.length,)),
    "Z": lambda a: a.complex_array(a.shape),
}

__all__ = ["GROUPS", "write_short"]
