"""Writes programs: constructs of a grammar are drawn, and CPython tries each as it is written.

What was tried gives the values that names have at this point of the program, and so what can be
written next: an index that fits, an array of the same shape. They are those of the program's first
call; the others may take another path. What a program does is judged afterwards, of the whole text.

A construct is a function of the writer, or a row of text with holes; it belongs to a category:

    statement   gives lines
    number, array, condition, items, any   give an expression

In a row, `<a>` stands for an array, and so on: `HOLES`. `<a1>` is the same text each time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import numpy as np

from . import samples
from .samples import copied, is_data, is_number, is_sane, same_kind


class Skip(Exception):
    """A construct that does not fit here."""


class EarlyReturn(Exception):
    """Stands for `return` while lines are tried."""


@dataclasses.dataclass(frozen=True)
class Construct:
    """rare: the language refuses it as a rule, so that daring programs alone draw it."""

    name: str
    weight: float
    make: Callable[[Writer], Any]
    rare: bool


#: By category.
TABLE: dict[str, list[Construct]] = {}
HOLES: dict[str, Callable[[Writer], str]] = {}
#: What a `return` gives is known when the program has been written.
RETURN = "return RESULT"
#: A statement or expression is drawn so often before a plain one is taken.
_TRIES = 8


def construct(
    category: str, name: str, weight: float = 1.0, rare: bool = False
) -> Callable[[Any], Any]:
    """Adds a function of the writer to the grammar."""

    def add(make: Any) -> Any:
        TABLE.setdefault(category, []).append(Construct(name, weight, make, rare))
        return make

    return add


def table(category: str, text: str) -> None:
    """Adds rows of text to the grammar, a construct a line, of which one row is drawn:

        name weight: row ;; row ;; row

    `!` before the weight: the construct is rare.
    """
    for line in text.strip().splitlines():
        head, rows = line.strip().split(": ", 1)
        name, weight = head.rsplit(" ", 1)
        rare = name.endswith(" !")
        construct(category, name.removesuffix(" !"), float(weight), rare)(
            functools.partial(_row, category, rows.split(" ;; "))
        )


def _row(category: str, rows: Sequence[str], w: Writer) -> Any:
    filled = w.fill(w.rng.choice(rows))
    return filled.split("\n") if category == "statement" else filled


def hole(letter: str) -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        HOLES[letter] = make
        return make

    return add


class Frame:
    """The names of a function. `fixed` are those whose type a block has to leave as it is."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = list(names)
        self.fixed: frozenset[str] = frozenset()


class Writer:
    """Writes the body of one program."""

    def __init__(
        self, rng: random.Random, env: dict[str, Any], outside: Sequence[str], daring: bool
    ) -> None:
        self.rng = rng
        self.daring = daring
        #: Whether numbers are extreme, which must not count rounds.
        self.odd = False
        self.env = env
        self.outside = list(outside)
        #: Arguments: lists and dicts among them do not change as a rule.
        self.passed: set[str] = set()
        self.frames = [Frame()]
        self.used: list[str] = []
        self.depth = 0
        self.loops = 0
        self.level = 2
        #: The kinds of names where the function returns before its end.
        self.returns: list[dict[str, Any]] = []
        #: The array that was drawn last: what indices and masks are for.
        self.last: Any = None
        self._number = 0
        self._found: list[tuple[str, Any]] | None = None

    # -- names and places

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def new(self, stem: str = "v") -> str:
        self._number += 1
        return f"{stem}{self._number}"

    def readable(self) -> list[str]:
        return [*self.outside, *(name for frame in self.frames for name in frame.names)]

    def places(self) -> list[tuple[str, Any]]:
        """Names, items and attributes that have a value here, with it."""
        if self._found is None:
            self._found = []
            for name in dict.fromkeys(self.readable()):
                if name in self.env:
                    self._found += _within(name, self.env[name], 2)
        return self._found

    def place(self, test: Callable[[Any], Any]) -> str:
        """One whose value passes. Raises Skip."""
        found = [text for text, value in self.places() if test(value)]
        if not found:
            raise Skip
        return self.rng.choice(found)

    def value(self, text: str) -> Any:
        """Of an expression, here. Raises Skip where Python raises an error."""
        try:
            return eval(expression(text), self.env)
        except Exception as e:
            raise Skip(str(e)) from None

    # -- expressions

    def fill(self, text: str) -> str:
        """A row with its holes filled."""
        same: dict[str, str] = {}

        def filled(match: re.Match[str]) -> str:
            letter, number = match[1], match[2]
            if number and match[0] in same:
                return same[match[0]]
            drawn = HOLES[letter](self)
            if letter in "npcasvmelud" and not _ATOM.fullmatch(drawn):
                drawn = f"({drawn})"
            if number:
                same[match[0]] = drawn
            return drawn

        return _HOLE.sub(filled, text)

    def draw(self, category: str, test: Callable[[Any], Any], plain: Callable[[], str]) -> str:
        """An expression of a category whose value passes the test, else a plain one."""
        if self.level <= 0 or self.rng.random() < 0.25:
            return plain()
        self.level -= 1
        try:
            for _ in range(3):
                mark = len(self.used)
                try:
                    text = self.make(category)
                    if test(self.value(text)):
                        return text
                except Skip:
                    pass
                del self.used[mark:]
        finally:
            self.level += 1
        return plain()

    def make(self, category: str) -> Any:
        """What a construct of a category gives. Raises Skip."""
        found, weights = _drawn(category, self.daring)
        chosen = self.rng.choices(found, cum_weights=weights)[0]
        self.used.append(chosen.name)
        return chosen.make(self)

    def like(self, value: Any) -> str:
        """An expression of the same class, element type and shape."""

        def fits(other: Any) -> bool:
            return same_kind(other, value)

        category = "array" if isinstance(value, np.ndarray) else "number"
        if not isinstance(value, np.ndarray) and not is_number(value):
            return self.place(fits)
        for _ in range(3):
            mark = len(self.used)
            text = self.draw(category, fits, lambda: "")
            if text:
                return text
            del self.used[mark:]
        return self.place(fits)

    # -- statements

    def statement(self) -> list[str]:
        """Lines that have been tried, and have changed what names stand for here."""
        for _ in range(_TRIES):
            mark, number = len(self.used), len(self.frame.names)
            try:
                lines: list[str] = self.make("statement")
                self._check(lines)
                self.run(lines)
                return lines
            except Skip:
                pass
            del self.used[mark:]
            del self.frame.names[number:]
        return []

    def _check(self, lines: Sequence[str]) -> None:
        """Skip where `+=` would make a name of this function of one of another."""
        found = _OWN.match(lines[0])
        if found and found[1] not in self.frame.names:
            raise Skip

    def returned(self) -> str:
        """A line that returns before the end."""
        frame = self.frame
        self.returns.append({n: samples.kind(self.env.get(n)) for n in frame.names})
        return RETURN

    def block(self, count: int, bound: dict[str, Any] | None = None) -> list[str]:
        """Indented statements; the names and types of what is outside of it stay."""
        outer, frame = self.env, self.frame
        number, fixed = len(frame.names), frame.fixed
        self.env = copied(outer)
        self.env.update(bound or {})
        frame.fixed = frozenset(frame.names)
        frame.names += [n for n in bound or {} if n not in frame.names]
        self.depth += 1
        self._found = None
        lines = [line for _ in range(count) for line in self.statement()]
        self.depth -= 1
        self.env, self._found, frame.fixed = outer, None, fixed
        del frame.names[number:]
        return indented(lines or ["pass"])

    def function(self, parameters: dict[str, Any], count: int, result: Callable[[], str]) -> Any:
        """The indented body of a nested function; its last line returns the result."""
        outer, depth, loops = self.env, self.depth, self.loops
        self.env = copied(outer)
        self.env.update(parameters)
        self.frames.append(Frame(list(parameters)))
        self.depth, self.loops, self._found = depth + 2, 0, None
        try:
            lines = [line for _ in range(count) for line in self.statement()]
            lines.append(f"return {result()}")
        finally:
            self.frames.pop()
            self.env, self.depth, self.loops, self._found = outer, depth, loops, None
        return indented(lines)

    @property
    def nested(self) -> bool:
        """Whether this is the body of a nested function."""
        return len(self.frames) > 1

    def run(self, lines: Sequence[str]) -> None:
        """Runs lines here; Skip where Python raises an error or the types of a block change."""
        text = "\n".join(lines).replace(RETURN, "raise EarlyReturn")
        try:
            code = compile(text, "<statement>", "exec", dont_inherit=True)
        except SyntaxError:
            if _PARTIAL.search(text):
                return
            raise Skip from None
        if self.depth or not _BINDS.fullmatch(text):
            self._try(code, copied(self.env))
        self._found = None
        self._try(code, self.env)

    def _try(self, code: Any, env: dict[str, Any]) -> None:
        fixed = {n: env[n] for n in self.frame.fixed if n in env}
        before = {n: samples.kind(v) for n, v in fixed.items()}
        try:
            exec(code, env)
        except EarlyReturn:
            return
        except Exception as e:
            raise Skip(f"{type(e).__name__}: {e}") from None
        if not all(is_sane(env.get(name)) for name in self.frame.names):
            raise Skip
        for name, kind in before.items():
            if samples.kind(env.get(name)) != kind and self.rng.random() < 0.97:
                raise Skip


#: What only a whole loop or function may hold: it is tried with that.
_PARTIAL = re.compile(r"^\s*(break|continue|nonlocal .*)$", re.MULTILINE)
#: What changes nothing but gives a new name a value.
_OWN = re.compile(r"(\w+) \S{1,2}= ")
_BINDS = re.compile(r"\w+ = [^\n]*")
#: What needs no parentheses within another expression.
_ATOM = re.compile(r"[\w.]+(\[[^\[\]]*\])*|[\w.]+\([^()]*\)|\[[^\[\]]*\]|\([^()]*\)|\{[^{}]*\}")
_HOLE = re.compile(r"<([a-zA-Z])(\d?)>")


@functools.cache
def _drawn(category: str, daring: bool) -> tuple[list[Construct], list[float]]:
    """Constructs, and the running sums of their weights."""
    table = [c for c in TABLE[category] if daring or not c.rare]
    return table, list(itertools.accumulate(c.weight for c in table))


#: Programs share many expressions, and compiling one takes longer than running it.
@functools.lru_cache(1 << 14)
def expression(text: str) -> CodeType:
    return compile(text, "<expression>", "eval", dont_inherit=True)


def indented(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]


def _within(text: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    yield text, value
    if not depth:
        return
    if isinstance(value, list | tuple) and len(value) <= 6:
        named = getattr(value, "_fields", None)
        for k, item in enumerate(value):
            yield from _within(f"{text}.{named[k]}" if named else f"{text}[{k}]", item, depth - 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _within(f"{text}[{key!r}]", item, depth - 1)
    elif is_data(value) and hasattr(value, "__dict__"):
        for key, item in vars(value).items():
            yield from _within(f"{text}.{key}", item, depth - 1)
