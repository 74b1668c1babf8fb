"""Random NumPy programs that change arrays in place: aliases, views, branches, loops, helpers."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

_HEAD = """
def bump(v, k):
    v[k] = v[k] * 2 - 1


def pour(v, w):
    v += w.sum()
    return v


def first(v):
    return v[0]


def centred(v):
    v -= v.mean()


def f(x, m, n):
    a, b, c = x.copy(), np.arange(6.0), x[::-1]
    p, q = m * 1, np.zeros((3, 4))
    total, k = 0.0, 1
    rows = [a, b + 1.0]
"""
_TAIL = "    return a, b, c, p, q, total, rows\n"

VECTORS = ("a", "b", "c", "x", "rows[0]", "rows[1]")
MATRICES = ("p", "q", "m")


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.lines: list[str] = []
        self.depth = 1
        self.loops = 0

    def add(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def pick(self, *choices: str) -> str:
        return self.r.choice(choices)

    def vector(self) -> str:
        return self.r.choice(VECTORS)

    def name(self) -> str:
        return self.pick("a", "b", "c")

    def matrix(self) -> str:
        return self.r.choice(MATRICES)

    def place(self) -> str:
        """A whole number that indexes a vector of six."""
        known = str(self.r.randrange(-6, 6))
        return self.pick(known, known, "k", "n", "i" if self.loops else "k", "n - 3")

    def part(self) -> str:
        """A slice of three elements of a vector of six."""
        return self.pick(":3", "3:", "1:4", "::2", "1::2", "::-2", "4:1:-1", "-3:")

    def scalar(self) -> str:
        return self.pick(
            "2", "0.5", f"{self.vector()}[{self.place()}]", "total", f"{self.vector()}.max()", "k"
        )

    def six(self) -> str:
        """A vector of six elements."""
        v, w = self.vector(), self.vector()
        return self.pick(
            v,
            f"{v} + 1",
            f"{v} - {w}",
            f"{v}.copy()",
            f"{v}[::-1]",
            f"np.where({v} > {w}, {v}, 1)",
            f"{self.matrix()}.reshape(-1)[:6]",
            f"{self.matrix()}[:2, :3].reshape(6)",
            f"np.sort({v})",
            f"{v}[[5, 4, 3, 0, 0, 1]]",
            f"np.concatenate([{v}[:3], {w}[3:]])",
        )

    def three(self) -> str:
        return self.pick(
            f"{self.vector()}[{self.part()}]",
            f"{self.matrix()}[:, {self.r.randrange(4)}]",
            f"{self.vector()}[[0, 2, 2]]",
            "1",
            f"{self.scalar()}",
            f"{self.matrix()}.T[{self.r.randrange(4)}]",
        )

    def op(self) -> str:
        return self.pick("+=", "-=", "*=")

    def simple(self) -> None:
        kind = self.r.randrange(20)
        v, m, name = self.vector(), self.matrix(), self.name()
        if kind < 3:
            self.add(f"{v}[{self.place()}] = {self.scalar()}")
        elif kind < 5:
            self.add(f"{v}[{self.place()}] {self.op()} {self.scalar()}")
        elif kind < 7:
            self.add(f"{v}[{self.part()}] {self.pick('=', self.op())} {self.three()}")
        elif kind == 7:
            self.add(f"{v} {self.op()} {self.pick(self.scalar(), self.six())}")
        elif kind == 8:
            self.add(f"{name} = {self.six()}")
        elif kind == 9:
            self.add(f"{self.pick('p', 'q')} = {self.pick(m, m + ' + 1', m + '.copy()')}")
        elif kind == 10:
            row = self.pick(":", "0", "-1", "1:", "k", "[0, 2]")
            column = self.pick(":", "1", "-1", "::2", "k")
            self.add(f"{m}[{row}, {column}] {self.pick('=', self.op())} {self.scalar()}")
        elif kind == 11:
            self.add(f"{m}.T[{self.r.randrange(4)}] {self.op()} {self.vector()}[:3]")
        elif kind == 12:
            self.add(f"{v}[{v} > {self.scalar()}] {self.pick('=', self.op())} {self.scalar()}")
        elif kind == 13:
            self.add(
                self.pick(
                    f"bump({v}, {self.place()})",
                    f"bump({v}[{self.part()}], 1)",
                    f"{name} = pour({v}, {self.vector()})",
                    f"centred({self.pick(v, m, m + '[1]', v + '[' + self.part() + ']')})",
                )
            )
        elif kind == 14:
            self.add(
                self.pick(
                    f"np.add({v}, {self.six()}, out={self.vector()})",
                    f"np.add.at({v}, np.array([0, 1, 1, 5]), {self.scalar()})",
                    f"np.copyto({v}, {self.six()})",
                    f"np.fill_diagonal({m}, {self.scalar()})",
                    f"{v}.sort()",
                    f"{v}.fill({self.scalar()})",
                    f"np.multiply({m}, 0.5, {self.matrix()})",
                )
            )
        elif kind == 15:
            self.add(f"{v}[[0, 3, 3]] {self.pick('=', self.op())} {self.three()}")
        elif kind == 16:
            self.add(f"a, b = {self.pick('b, a', 'b, c', 'a.copy(), b', 'c, a + 1')}")
        elif kind == 17 and self.r.random() < 0.5:
            self.add(f"{name} = {self.pick(name, self.vector())} * {self.pick('0.5', '2')}")
        elif kind == 17:
            self.add(f"total {self.pick('=', '+=')} {v}[{self.place()}] * 0.5")
        elif kind == 18:
            self.add(f"rows[{self.r.randrange(2)}] {self.pick('=', '+=')} {self.six()}")
        else:
            self.add(f"{self.pick('p', 'q', 'm')}[1:] = {self.matrix()}[:-1]")

    def block(self, size: int) -> None:
        for _ in range(size):
            self.statement()

    def inner(self, size: int) -> None:
        self.depth += 1
        self.block(size)
        self.depth -= 1

    def statement(self) -> None:
        kind = self.r.random()
        if self.depth > 3 or kind < 0.72:
            self.simple()
        elif kind < 0.84:
            self.add(f"if {self.vector()}[{self.place()}] > {self.pick('0', '1', 'total')}:")
            self.inner(self.r.randrange(1, 3))
            if self.r.random() < 0.5:
                self.add("else:")
                self.inner(self.r.randrange(1, 3))
        elif kind < 0.93:
            self.add(self.pick("for i in range(3):", "for i in range(n):"))
            self.loops += 1
            self.inner(self.r.randrange(1, 3))
            self.loops -= 1
        elif kind < 0.96:
            self.add(f"for row in {self.matrix()}:")
            self.depth += 1
            self.add(self.pick("row -= row.mean()", "row[1:] = row[:-1]", "row[k] = total"))
            self.depth -= 1
        else:
            self.add(f"w{self.depth} = 0")
            self.add(f"while w{self.depth} < n:")
            self.depth += 1
            self.add(f"w{self.depth - 1} += 1")
            self.block(1)
            self.depth -= 1


_number = count()


def program(seed: int, size: int = 6) -> tuple[str, Callable[..., Any]]:
    """A program's source and the function `f(x: f64[6], m: f64[3, 4], n: int)`."""
    writer = Writer(seed)
    writer.block(size)
    source = _HEAD + "\n".join(writer.lines) + "\n" + _TAIL
    name = f"<in place {next(_number)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names: dict[str, Any] = {"np": np, "__name__": "in_place_program"}
    exec(compile(source, name, "exec"), names)
    return source, names["f"]


def arguments(seed: int) -> tuple[Any, ...]:
    """The same numbers for CPython and for the compiled call, each with arrays of its own."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=6).round(2), rng.normal(size=(3, 4)).round(2), 2
