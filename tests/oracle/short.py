"""Short programs: a row of a table, of arguments of every type, often of extreme numbers.

A whole program has few of NumPy's functions and few extreme numbers; here each function meets
them. `numpy_rows.txt` and `python_rows.txt` have the rows, by groups: `- ` begins one. Its last
line is the result, if it is no statement. What `python_classes.txt` has stands in front where a
row names it. A letter is an argument:

    u v w   vectors of one length, of any element type        h   bools of that length
    M N     matrices of one shape, of any element type        F   a matrix of floats
    G       a square matrix of floats                         T   an array of rank 3
    e       an array without elements
    n m     numbers: Python's, NumPy's, arrays of rank 0      s   a NumPy scalar
    i j     ints of Python's     p q     floats of Python's
    c       a complex number of Python's      z   a complex vector      Z   a complex matrix
    <t>     an element type      <x>   an axis      <k>   a small whole number      <g>   a slice
    {a|b}   one of these

`~` before a row: its numbers are small, since rounding or overflow decides its result.

A fifth of the short programs calls any function of the vocabulary with any of `_CALLS`, as long as
NumPy takes it.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from delian.core.compiler.frontend.vocabulary.vocabulary_numpy import GROUPS as GROUPS_OF_NUMPY

from . import samples
from .samples import array_text, number_text
from .writer import expression

_HERE = Path(__file__).parent
_HOLE = re.compile(r"<[txkg]>|\{[^{}:]*\|[^{}]*\}")
_SLICES = (
    *(":2", "1:", "1:3", "::2", "::-1", "1::2", "-2:", ":-1", "2:0:-1", ":", "::-2", ":0"),
    *("None:None:-1", "-1:-4:-1", "5:2", "::3"),
)
#: The share of short programs with extreme numbers, and of extreme ones among these.
_ODD, _EXTREME = 0.4, 0.3


def _parsed() -> list[tuple[str, str]]:
    """(group, row) of each row."""
    out: list[tuple[str, str]] = []
    group = ""
    for file in ("numpy_rows.txt", "python_rows.txt"):
        for line in (_HERE / file).read_text().splitlines():
            if line.startswith("- "):
                out.append((group, line[2:]))
            elif line.startswith("  "):
                out[-1] = group, f"{out[-1][1]}\n{line[2:]}"
            else:
                group = line
    return out


def _classes() -> list[tuple[set[str], str]]:
    """The names that each statement of the classes' file binds, and its text."""
    text = (_HERE / "python_classes.txt").read_text()
    out = []
    for node in ast.parse(text).body:
        targets = getattr(node, "targets", [])
        names = {node.name} if isinstance(node, ast.ClassDef) else {t.id for t in targets}
        out.append((names, ast.unparse(node)))
    return out


_TABLE, _CLASSES = _parsed(), _classes()
_ANY = "any function"
GROUPS = frozenset(f"short: {group}" for group in (_ANY, *(group for group, _ in _TABLE)))
#: The share of programs that call any function, and tries to find a call that NumPy takes.
_ANY_SHARE, _ANY_TRIES = 0.2, 20
#: Arguments of any function.
_CALLS = (
    *("n", "n, m", "v", "v, n", "v, w", "M", "M, n", "M, N", "M, <x>", "M, axis=<x>", "e", "e, n"),
    *("s", "s, n", "n, v", "T", "T, <x>", "v, <k>", "n, <k>", "v, w, n", "n, m, 2", "[n, m]"),
    *("[v, w]", "v, [0, -1]", "M, (0, 1)", "M[:, ::-1]", "M.T", "(n, m)", "h", "n, [1, 2]"),
    *("v, axis=None", "M, keepdims=True", "M, 0, keepdims=True", "list(v)", "v[:1]", "np.array(n)"),
    *("np.array(n), m", "[[n]]", "v[::-1], w", "M[0], M", "M, M[:, :1]", "v, v"),
)
#: Functions whose results docs/language.md leaves open, or that the last bits decide.
_OPEN = (
    *("empty", "empty_like", "argpartition", "partition", "searchsorted", "arange", "cov"),
    *("corrcoef", "matmul", "dot", "inner", "vdot", "tensordot", "kron", "convolve", "correlate"),
    *("vecdot", "matvec", "vecmat", "cross", "outer", "trace", "unwrap", "argsort", "histogram"),
    *("histogram_bin_edges", "nanquantile", "nanpercentile", "clip"),
)


def _functions() -> list[str]:
    """The names of NumPy's functions in the vocabulary, but for those of linear algebra."""
    groups = [group for title, group in GROUPS_OF_NUMPY if title not in _LEFT_OUT]
    names = {f.__name__ for group in groups for f, _ in group}
    return sorted(n for n in names if n not in _OPEN and hasattr(np, n))


_LEFT_OUT = ("Linear algebra", "Fourier transforms")
_FUNCTIONS = _functions()


def _any_call(rng: random.Random) -> str:
    """A call that NumPy takes, of numbers that are not extreme."""
    for _ in range(_ANY_TRIES):
        row = f"np.{rng.choice(_FUNCTIONS)}({rng.choice(_CALLS)})"
        filled = _HOLE.sub(lambda found: _chosen(rng, found[0]), row)
        arguments = _Arguments(rng, 0.0, 1)
        given = {name: make(arguments)[0] for name, make in _LETTERS.items() if _is_read(name, row)}
        try:
            with samples.quiet():
                env = {name: eval(expression(text), {"np": np}) for name, text in given.items()}
                eval(expression(filled), {"np": np, **env})
        except Exception:
            continue
        return filled
    return "np.abs(n)"


def write_short(
    rng: random.Random, count: int
) -> tuple[str, list[str], str, list[tuple[str, ...]]]:
    """The group of a row, what stands in front of `f`, `f`, and the arguments of its calls."""
    group, row = rng.choice(_TABLE)
    if rng.random() < _ANY_SHARE:
        group, row = _ANY, _any_call(rng)
    odd = _EXTREME if rng.random() < _ODD and not row.startswith("~") else 0.0
    row = row.removeprefix("~")
    lines = _HOLE.sub(lambda found: _chosen(rng, found[0]), row).split("\n")
    if isinstance(ast.parse("\n".join(lines)).body[-1], ast.Expr):
        lines[-1] = f"return {lines[-1]}"
    arguments = _Arguments(rng, odd, count)
    given = {name: make(arguments) for name, make in _LETTERS.items() if _is_read(name, row)}
    given = given or {"n": _LETTERS["n"](arguments)}
    head = [f"def f({', '.join(given)}):", *(f"    {line}" for line in lines)]
    calls = list(zip(*given.values(), strict=True))
    return f"short: {group}", _in_front(row), "\n".join(head), calls


def _in_front(row: str) -> list[str]:
    """The classes and names that a row needs: what one needs stands before it."""
    out: list[str] = []
    for names, text in reversed(_CLASSES):
        if any(re.search(rf"\b{name}\b", "\n".join((row, *out))) for name in names):
            out.insert(0, text)
    return out


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
