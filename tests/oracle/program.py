"""A program: its text follows from its number alone.

classes, helpers, arrays and lists of the module
def f(...): ...                  what is compiled
CALLS = [lambda: (...), ...]     arguments of its calls, of the same types each time
def between(): ...               what changes outside of it from call to call
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np

from . import classes, control, expressions, functions, holes, short, statements
from .samples import argument, is_number, is_returnable, kind, quiet
from .writer import RETURN, Skip, Writer

_GRAMMAR = (classes, control, expressions, functions, holes, statements)
HEAD = """import cmath
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import typing

import delian as dl
import numpy as np
"""
_HEAD = compile(HEAD, "<module>", "exec", dont_inherit=True)
#: The share of programs that are short ones.
_SHORT = 0.25
#: The share of programs that may hold what the language refuses as a rule.
_DARING = 0.15
#: The share of programs that keep calls in which Python raises an error.
_RAISING = 0.15
#: The share of programs with extreme numbers: NaN, infinities, -0.0, the largest ints.
_ODD = 0.12
#: A program is called so often.
CALLS = 3


@dataclass(frozen=True)
class Program:
    """used: the constructs in it."""

    number: int
    text: str
    used: tuple[str, ...]


def program(number: int) -> Program:
    """The program of this number."""
    rng = random.Random(number)
    if rng.random() < _SHORT:
        return _short(number, rng)
    env: dict[str, Any] = {"__name__": "program"}
    with quiet():
        exec(_HEAD, env)
        return _Maker(number, rng, env).make()


def _short(number: int, rng: random.Random) -> Program:
    group, front, head, calls = short.write_short(rng, CALLS)
    return Program(number, _text([*front, head], calls, ["pass"]), (group,))


def _text(parts: Sequence[str], calls: Sequence[tuple[str, ...]], changes: Sequence[str]) -> str:
    made = "CALLS = [\n" + "".join(f"    lambda: ({', '.join(c)},),\n" for c in calls) + "]"
    between = "\n".join(["def between():", *("    " + change for change in changes)])
    return "\n\n".join([HEAD, *parts, made, between]) + "\n"


class _Maker:
    def __init__(self, number: int, rng: random.Random, env: dict[str, Any]) -> None:
        self.number = number
        self.rng = rng
        self.env = env
        self.daring = rng.random() < _DARING
        self.parts: list[str] = []
        self.codes: list[CodeType] = [_HEAD]
        self.used: list[str] = []
        self.outside: list[str] = []
        self.changes: list[str] = []

    def add(self, text: str, name: str) -> None:
        code = compile(text, "<module>", "exec", dont_inherit=True)
        exec(code, self.env)
        self.parts.append(text)
        self.codes.append(code)
        self.used.append(name)

    def make(self) -> Program:
        rng = self.rng
        if rng.random() < 0.4:
            kind, text = classes.write_class(rng, "K", self.daring)
            self.add(text, kind)
        for source, _ in rng.sample(functions.HELPERS, rng.choice((0, 0, 1, 2, 3))):
            self.add(source, "helpers of the module")
        if rng.random() < 0.35:
            self._outside()
        odd = rng.random() < _ODD
        arguments = [argument(rng, CALLS, odd) for _ in range(rng.choice((1, 2, 2, 3)))]
        names = [f"x{k}" for k in range(len(arguments))]
        w = Writer(rng, self.env, self.outside, self.daring)
        w.odd = odd
        if rng.random() < 0.15:
            self._helper(w)
        for name, (what, texts) in zip(names, arguments, strict=True):
            self.env[name] = eval(texts[0], self.env)
            w.used.append(f"argument: {what}")
        w.frame.names += names
        w.passed.update(names)
        lines = self._body(w, names)
        calls = list(zip(*(texts for _, texts in arguments), strict=True))
        head = "\n".join([f"def f({', '.join(names)}):", *("    " + line for line in lines)])
        kept = self._kept(head, calls)
        text = _text([*self.parts, head], kept, self.changes or ["pass"])
        return Program(self.number, text, tuple(dict.fromkeys([*self.used, *w.used])))

    def _kept(self, head: str, calls: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The calls without those that raise an error, as a rule: they end a comparison."""
        if self.rng.random() < _RAISING:
            return list(calls)
        names: dict[str, Any] = {"__name__": "program"}
        for code in (*self.codes, compile(head, "<module>", "exec", dont_inherit=True)):
            exec(code, names)
        kept = []
        for call in calls:
            try:
                names["f"](*eval(f"({', '.join(call)},)", names))
                kept.append(call)
            except Exception:
                continue
        return kept or list(calls)

    def _body(self, w: Writer, names: Sequence[str]) -> list[str]:
        lines: list[str] = []
        for _ in range(w.rng.choice((3, 4, 5, 6, 7, 8, 10, 12))):
            lines += w.statement()
        result = [n for n in w.frame.names if is_returnable(w.env.get(n))]
        kinds = {n: kind(w.env[n]) for n in result}
        for before in w.returns:
            result = [n for n in result if before.get(n) == kinds[n]]
        changed = [n for n in names if not is_number(w.env.get(n)) and w.rng.random() < 0.5]
        result = [n for n in result if n not in changed][:12]
        text = ", ".join(result) if len(result) != 1 else f"{result[0]},"
        done = [line.replace(RETURN, f"return ({text})") for line in lines]
        return [*done, f"return ({text})" if result else "return None"]

    def _outside(self) -> None:
        """Arrays, lists and numbers of the module, and how they change between calls."""
        rng = self.rng
        for k in range(rng.choice((1, 1, 2))):
            what, texts = argument(rng, 2, False)
            name = f"W{k}"
            self.add(f"{name} = {texts[0]}", f"read from outside: {what}")
            self.outside.append(name)
            value = self.env[name]
            if rng.random() < 0.6:
                continue
            self.used.append("changed from outside")
            if isinstance(value, np.ndarray) and value.ndim and value.size:
                self.changes.append(f"{name}[0] = 5 if {name}.dtype != bool else True")
            elif isinstance(value, list):
                self.changes.append(rng.choice((f"{name}.append(2.5)", f"{name}[0] = 4.0")))
            elif isinstance(value, dict):
                self.changes.append(f"{name}['a'] = 7.0")
            else:
                self.changes.append(f"global {name}\n    {name} = {texts[1]}")

    def _helper(self, w: Writer) -> None:
        """A helper written at random, of values like some that are drawn for it."""
        try:
            samples = [w.value(w.fill(hole)) for hole in (w.rng.choice(("<a>", "<n>")), "<n>")]
            lines = functions.write_helper(w, "helper", dict(zip("ab", samples, strict=True)))
            self.add("\n".join(lines), "written helper")
        except Skip:
            return
        self.env["helper"].samples = samples
