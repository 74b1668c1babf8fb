"""Formulas: `y ~ a + C(sex) + a:b - 1`, read by a small parser; nothing of it is evaluated.

    formula = outcome "~" sum
    sum     = ["+" | "-"] star (("+" | "-") star)*
    star    = cross ("*" cross)*          a*b is a + b + a:b
    cross   = atom (":" atom)*            a:b is the product of a and b
    atom    = column | "C(" column ")" | "1" | "0" | "(" sum ")"
    outcome = column | "Surv(" column ("," column)* ")"
    column  = a name of letters, digits, "_" and ".", or any text in backticks

The meaning is that of Wilkinson and Rogers (1973), as patsy and R have it: an intercept is there
unless `- 1` or `+ 0` takes it out, and a term counts once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .sums import StatisticsError

#: Characters of a formula, nested parentheses, terms, and columns in one product.
CHARS_MAX = 4096
DEPTH_MAX = 16
TERMS_MAX = 256
FACTORS_MAX = 6

Term = tuple[str, ...]

_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`[^`]*`)|(?P<name>[^\W\d][\w.]*)|(?P<number>\d[\w.]*)|(?P<sign>\*\*|.))",
    re.DOTALL,
)
_SUPPORTED = "names, C(name), `+`, `-`, `:`, `*`, parentheses, 0 and 1 are known"


@dataclass(frozen=True)
class Formula:
    """A formula that was read."""

    outcome: tuple[str, ...]
    """The column before `~`; those of `Surv(time, event)` or `Surv(start, stop, event)`."""
    predictors: tuple[str, ...]
    """The terms after it, as `design.Design` takes them: `a`, `C(sex)`, `a:b`."""
    intercept: bool
    """Whether there is one."""


def parse_formula(text: str) -> Formula:
    """Reads a formula. Raises StatisticsError that shows where it is wrong."""
    if len(text) > CHARS_MAX:
        raise StatisticsError(f"a formula of {len(text)} characters", f"at most {CHARS_MAX}")
    reader = _Reader(text)
    outcome = reader.outcome()
    if reader.next() != "~":
        raise reader.wrong("`~` comes after the outcome", back=True)
    value = reader.sum(0)
    if reader.peek():
        raise reader.wrong(f"`{reader.peek()}` is not expected here")
    predictors = tuple(":".join(term) for term in value.terms)
    return Formula(outcome, predictors, value.intercept is not False)


@dataclass
class _Value:
    """Terms in the order in which they came, and what was said of the intercept, None: nothing."""

    terms: list[Term] = field(default_factory=list)
    intercept: bool | None = None


class _Reader:
    """Recursive descent over tokens, each with its place."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.tokens: list[tuple[str, str, int]] = []
        for found in _TOKEN.finditer(text):
            kind = str(found.lastgroup)
            if found[kind].strip():
                self.tokens.append((kind, found[kind], found.start(kind)))

    def peek(self) -> str:
        return self.tokens[self.place][1] if self.place < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.place][0] if self.place < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.place += 1
        return token

    def wrong(self, what: str, back: bool = False) -> StatisticsError:
        """An error at the next token, or with `back` at the one that was taken last."""
        at = self.place - back
        column = self.tokens[at][2] if 0 <= at < len(self.tokens) else len(self.text)
        start = max(0, column - 40)
        shown = " ".join(self.text[start : column + 30].splitlines())
        return StatisticsError(
            f"a formula is wrong at character {column + 1}: {what}\n  {shown}\n"
            f"  {' ' * (column - start)}^",
            _SUPPORTED,
        )

    def expect(self, sign: str) -> None:
        if self.next() != sign:
            raise self.wrong(f"`{sign}` is missing", back=True)

    def column(self) -> str:
        if self.kind() not in ("name", "quoted"):
            raise self.wrong("the name of a column is missing")
        name = self.next().strip("`")
        if not name or ":" in name:
            raise self.wrong("a column's name is not empty and has no `:`", back=True)
        if self.peek() == "(":
            raise self.wrong(
                f"`{name}(...)` is not known; add its result to the tables as a column"
            )
        return name

    def outcome(self) -> tuple[str, ...]:
        if self.peek() != "Surv" or self.place + 1 >= len(self.tokens):
            return (self.column(),)
        if self.tokens[self.place + 1][1] != "(":
            return (self.column(),)
        self.place += 2
        names = [self.column()]
        while self.peek() == ",":
            self.next()
            names.append(self.column())
        self.expect(")")
        if len(names) not in (2, 3):
            raise self.wrong("Surv has a time and an event, or start, stop and event", back=True)
        return tuple(names)

    def sum(self, depth: int) -> _Value:
        if depth > DEPTH_MAX:
            raise self.wrong(f"more than {DEPTH_MAX} nested parentheses")
        value, sign = _Value(), "+"
        if self.peek() in ("+", "-"):
            sign = self.next()
        while True:
            other = self.star(depth)
            if sign == "+":
                value.terms += [t for t in other.terms if not _has(value.terms, t)]
                value.intercept = value.intercept if other.intercept is None else other.intercept
            else:
                value.terms = [t for t in value.terms if not _has(other.terms, t)]
                if other.intercept is not None:
                    value.intercept = not other.intercept
            if len(value.terms) > TERMS_MAX:
                raise self.wrong(f"more than {TERMS_MAX} terms", back=True)
            if self.peek() not in ("+", "-"):
                return value
            sign = self.next()

    def star(self, depth: int) -> _Value:
        value = self.cross(depth)
        while self.peek() == "*":
            self.next()
            other = self.cross(depth)
            product = self._product(value, other)
            terms = list(value.terms)
            for each in (*other.terms, *product.terms):
                terms += [] if _has(terms, each) else [each]
            value = _Value(terms)
        if self.peek() in ("/", "**", "^", "|", "%"):
            raise self.wrong(f"`{self.peek()}` is not known in formulas")
        return value

    def cross(self, depth: int) -> _Value:
        value = self.atom(depth)
        while self.peek() == ":":
            self.next()
            value = self._product(value, self.atom(depth))
        return value

    def _product(self, left: _Value, right: _Value) -> _Value:
        if left.intercept is not None or right.intercept is not None:
            raise self.wrong("a number stands in no product", back=True)
        if len(left.terms) * len(right.terms) > TERMS_MAX:
            raise self.wrong(f"more than {TERMS_MAX} terms", back=True)
        terms: list[Term] = []
        for a in left.terms:
            for b in right.terms:
                term = tuple(dict.fromkeys((*a, *b)))
                if len(term) > FACTORS_MAX:
                    raise self.wrong(f"a product of more than {FACTORS_MAX} columns", back=True)
                terms += [] if _has(terms, term) else [term]
        return _Value(terms)

    def atom(self, depth: int) -> _Value:
        if self.kind() == "number":
            number = self.next()
            if number not in ("0", "1"):
                raise self.wrong("of numbers, 0 and 1 alone have a meaning", back=True)
            return _Value(intercept=number == "1")
        if self.peek() == "(":
            self.next()
            value = self.sum(depth + 1)
            self.expect(")")
            return value
        after = self.tokens[self.place + 1][1] if self.place + 1 < len(self.tokens) else ""
        if self.peek() == "C" and after == "(":
            self.place += 2
            name = self.column()
            if self.peek() == ",":
                raise self.wrong("C(...) takes a column; its first category is the reference")
            self.expect(")")
            return _Value([(f"C({name})",)])
        return _Value([(self.column(),)])


def _has(terms: list[Term], term: Term) -> bool:
    """Whether a term is among them, in any order of its columns."""
    return any(set(each) == set(term) for each in terms)
