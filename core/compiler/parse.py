"""The parser of the text form (`text` says what it looks like): recursive descent over its words.

Every operation is checked by its primitive's type rule as it is read, so that what is wrong is
reported with its line and column. Nesting is limited, so that hostile text is an error like any
other.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..common.errors import DelianError, Loc, ProgramError
from .ir import Array, Block, DType, Function, ListType, Op, TensorType, Type, Value
from .primitives import infer

T = TypeVar("T")

#: Regions, tuples and lists may nest so deep: a recursive parser must stop before Python does.
NESTING_MAX = 64

_REGIONS = {
    "if": ("then", "else"),
    "while": ("cond", "body"),
    "for": ("body",),
    "custom_vjp": ("primal", "forward", "reverse"),
}
#: Has any number of regions.
_CASES = "switch"

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<value>%\d+)
      | (?P<number>-?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+|inf\b|nan\b))
      | (?P<word>[A-Za-z_][\w.]*)
      | (?P<arrow>->)
      | (?P<mark>[(){}\[\]<>:,=@-])
    """,
    re.VERBOSE | re.ASCII,
)
_BASE64 = re.compile(r"[A-Za-z0-9+/=]*")


def region_label(op_name: str, i: int) -> str:
    """What the i-th region of an operation is called in the text."""
    if op_name == _CASES:
        return f"case{i}"
    labels = _REGIONS.get(op_name, ())
    return labels[i] if i < len(labels) else f"region{i}"


def elements(words: Sequence[str], kind: TensorType) -> Array:
    """The tensor that numbers as words stand for; raises ValueError for one that does not fit."""
    numpy = kind.dtype.numpy
    if kind.dtype is DType.BOOL:
        if not all(w in ("true", "false") for w in words):
            raise ValueError("true or false")
        return np.array([w == "true" for w in words], numpy).reshape(kind.shape)
    if kind.dtype.is_float:
        return np.array([float(w) for w in words], numpy).reshape(kind.shape)
    numbers = [int(w) for w in words]
    limits = np.iinfo(numpy)
    if any(not limits.min <= n <= limits.max for n in numbers):
        raise ValueError(f"a number within {kind.dtype.value}")
    return np.array(numbers, numpy).reshape(kind.shape)


class ParseError(ProgramError):
    """The text of a program is malformed; `locs` says where."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def parse_type(text: str) -> Type:
    """The type that a text stands for: f32[8,3]. Raises ParseError."""
    return _Parser(text, "<type>").type()


def parse_function(text: str, file: str = "<text>") -> Function:
    """The function that a text stands for, checked as it is read.

    Raises ParseError, with line and column, for what is malformed and for operations that their
    primitives' type rules refuse.
    """
    return _Parser(text, file).function()


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.at = 0
        self.depth = 0
        self.token = self._scan()

    # -- words

    def _scan(self) -> _Token:
        while True:
            if self.at >= len(self.text):
                return _Token("end", "the end of the text", self.at)
            found = _TOKEN.match(self.text, self.at)
            if found is None:
                self._fail(f"unexpected {self.text[self.at]!r}", self.at)
            start, self.at = self.at, found.end()
            if found.lastgroup != "space":
                return _Token(str(found.lastgroup), found.group(), start)

    def _fail(self, message: str, at: int | None = None, hint: str = "") -> NoReturn:
        start = self.token.at if at is None else at
        line = self.text.count("\n", 0, start) + 1
        column = start - (self.text.rfind("\n", 0, start) + 1)
        loc = Loc(self.file, line, column, line, column + 1)
        raise ParseError("T001", message, [loc], hint)

    def _next(self) -> _Token:
        token, self.token = self.token, self._scan()
        return token

    def _accept(self, text: str) -> bool:
        if self.token.kind in ("mark", "arrow", "word") and self.token.text == text:
            self._next()
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail(f"expected {text!r} and found {self.token.text!r}")

    def _take(self, kind: str, what: str) -> str:
        if self.token.kind != kind:
            self._fail(f"expected {what} and found {self.token.text!r}")
        return self._next().text

    def _int(self) -> int:
        at = self.token.at
        text = self._take("number", "a whole number")
        if not re.fullmatch(r"-?\d{1,19}", text):
            self._fail(f"expected a whole number and found {text!r}", at)
        return int(text)

    def _string(self) -> str:
        at = self.token.at
        text = self._take("string", "a quoted text")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            self._fail("a quoted text with a bad escape", at)
        assert isinstance(value, str)
        return value

    def _list(self, close: str, item: Callable[[], T]) -> list[T]:
        """Items parted by commas up to and with the closing mark."""
        items: list[T] = []
        while not self._accept(close):
            if items:
                self._expect(",")
            items.append(item())
        return items

    def _name(self) -> str:
        """A name, plain or quoted, or nothing."""
        if self.token.kind == "word":
            return self._next().text
        return self._string() if self.token.kind == "string" else ""

    # -- the program

    def type(self) -> Type:
        """A type, and nothing after it."""
        found = self._type()
        if self.token.kind != "end":
            self._fail(f"expected the end of the text and found {self.token.text!r}")
        return found

    def function(self) -> Function:
        self._expect("fn")
        name = self._name()
        scope: dict[str, Value] = {}
        names: list[str] = []

        def param() -> Value:
            number = self._take("value", "a value such as %0")
            names.append(self._name())
            return self._define(scope, number)

        self._expect("(")
        params = self._list(")", param)
        self._expect("->")
        self._expect("(")
        outs = self._list(")", self._result_name)
        donated: list[int] = []
        if self._accept("donates"):
            self._expect("(")
            donated = self._list(")", self._int)
        at = self.token.at
        body = self._body(params, scope)
        if self.token.kind != "end":
            self._fail(f"expected the end of the text and found {self.token.text!r}")
        if [r.type for r in body.results] != [type for _, type in outs]:
            given = ", ".join(str(r.type) for r in body.results)
            self._fail(f"the function returns ({given}), not what its head says", at)
        if any(not 0 <= i < len(params) for i in donated):
            self._fail(f"donates a parameter that is not among the {len(params)}", at)
        out_names = tuple(name for name, _ in outs)
        return Function(name, body, tuple(names), out_names, frozenset(donated))

    def _result_name(self) -> tuple[str, Type]:
        """`name: type`, or a type alone. A name that reads as a type is one only before a colon."""
        if self.token.kind == "string":
            name = self._string()
            self._expect(":")
            return name, self._type()
        if self.token.kind == "word":
            at, before = self.at, self.token
            name = self._next().text
            if self._accept(":"):
                return name, self._type()
            self.at, self.token = at, before
        return "", self._type()

    def _define(self, scope: dict[str, Value], number: str) -> Value:
        if number in scope:
            self._fail(f"{number} is defined twice")
        self._expect(":")
        scope[number] = Value(self._type())
        return scope[number]

    def _body(self, params: Sequence[Value], scope: dict[str, Value]) -> Block:
        self.depth += 1
        if self.depth > NESTING_MAX:
            self._fail(f"regions nest more than {NESTING_MAX} deep")
        self._expect("{")
        ops: list[Op] = []
        while not self._accept("return"):
            ops.append(self._op(scope))
        results = []
        while self.token.kind == "value":
            results.append(self._use(scope))
            if not self._accept(","):
                break
        self._expect("}")
        self.depth -= 1
        return Block(tuple(params), ops, tuple(results))

    def _use(self, scope: dict[str, Value]) -> Value:
        at = self.token.at
        number = self._take("value", "a value such as %0")
        if number not in scope:
            self._fail(f"{number} is not defined here", at, "a region sees only its own parameters")
        return scope[number]

    def _op(self, scope: dict[str, Value]) -> Op:
        at = self.token.at
        heads: list[tuple[str, Type]] = []
        while self.token.kind == "value":
            number = self._next().text
            self._expect(":")
            heads.append((number, self._type()))
            if not self._accept(","):
                break
        if heads:
            self._expect("=")
        name = self._take("word", "an operation")
        self._expect("(")
        operands = tuple(self._list(")", lambda: self._use(scope)))
        attrs = dict(self._list("}", self._pair)) if self._accept("{") else {}
        locs = []
        if self._accept("@"):
            while self.token.kind == "string":
                locs.append(self._loc())
        regions = self._op_regions(name)
        types = [type for _, type in heads]
        try:
            inferred = list(infer(name, operands, attrs, regions))
        except DelianError as error:
            self._fail(error.message, at, error.hint)
        if inferred != types:
            self._fail(f"{name} gives ({', '.join(map(str, inferred))}), not what is written", at)
        results = []
        for number, type in heads:
            if number in scope:
                self._fail(f"{number} is defined twice", at)
            results.append(Value(type))
            scope[number] = results[-1]
        return Op(name, operands, tuple(results), attrs, regions, tuple(locs))

    def _op_regions(self, name: str) -> tuple[Block, ...]:
        labels = _REGIONS.get(name, ())
        regions = []
        for label in labels:
            self._expect(label)
            self._expect("(")
            regions.append(self._region())
        while name == _CASES and self.token.text == region_label(name, len(regions)):
            self._next()
            self._expect("(")
            regions.append(self._region())
        return tuple(regions)

    def _region(self) -> Block:
        scope: dict[str, Value] = {}
        params = self._list(")", lambda: self._define(scope, self._take("value", "a value")))
        return self._body(params, scope)

    def _loc(self) -> Loc:
        file = self._string()
        self._expect(":")
        line = self._int()
        self._expect(":")
        column = self._int() - 1
        at = self.token.at
        # The minus of `3:4-3:20` was read as the sign of the number after it.
        end_line = -self._int()
        if end_line < 0:
            self._fail("expected '-' and the end of the span", at)
        self._expect(":")
        return Loc(file, line, column, end_line, self._int() - 1)

    # -- attributes

    def _pair(self) -> tuple[str, Any]:
        name = self._take("word", "an attribute's name")
        self._expect("=")
        return name, self._attribute()

    def _attribute(self) -> Any:
        token = self.token
        if token.kind == "string":
            return self._string()
        if token.kind == "number":
            if re.fullmatch(r"-?\d+", token.text):
                return self._int()
            return float(self._next().text)
        if self._accept("["):
            self.depth += 1
            if self.depth > NESTING_MAX:
                self._fail(f"tuples nest more than {NESTING_MAX} deep")
            items = tuple(self._list("]", self._attribute))
            self.depth -= 1
            return items
        if token.text in ("true", "false"):
            return self._next().text == "true"
        return self._typed()

    def _typed(self) -> Any:
        """An element type, a type, or a constant."""
        at = self.token.at
        if self.token.text == "list":
            return self._type()
        dtype = self._dtype()
        if not (self.token.kind == "mark" and self.token.text == "["):
            return dtype
        kind = TensorType(dtype, self._shape())
        mark = self.token.text if self.token.kind == "mark" else ""
        if mark == "(":
            self._next()
            words = self._list(")", lambda: self._next().text)
            try:
                return _read_only(elements(words, kind))
            except ValueError as error:
                self._fail(f"not the elements of {kind}: {error}", at)
        return _read_only(self._base64(kind, at)) if mark == "<" else kind

    def _base64(self, kind: TensorType, at: int) -> Array:
        found = _BASE64.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        try:
            data = base64.b64decode(found.group(), validate=True)
        except binascii.Error:
            self._fail("malformed base64", at)
        self.token = self._scan()
        self._expect(">")
        if len(data) != kind.nbytes:
            self._fail(f"{kind} takes {kind.nbytes} bytes, not {len(data)}", at)
        numpy = kind.dtype.numpy
        if kind.dtype is DType.BOOL and any(byte > 1 for byte in data):
            self._fail("a bool is 0 or 1", at)
        return np.frombuffer(data, numpy.newbyteorder("<")).astype(numpy).reshape(kind.shape)

    def _dtype(self) -> DType:
        at = self.token.at
        word = self._take("word", "a type")
        try:
            return DType(word)
        except ValueError:
            self._fail(f"there is no element type {word!r}", at)

    def _shape(self) -> tuple[int, ...]:
        self._expect("[")
        at = self.token.at
        shape = tuple(self._list("]", self._int))
        if any(d < 0 for d in shape):
            self._fail("a size below zero", at)
        return shape

    def _type(self) -> Type:
        depth = 0
        while self._accept("list"):
            self._expect("<")
            depth += 1
            if depth > NESTING_MAX:
                self._fail(f"lists nest more than {NESTING_MAX} deep")
        kind: Type = TensorType(self._dtype(), self._shape())
        for _ in range(depth):
            self._expect(">")
            # A `[` here begins the lanes: after a type, nothing else does.
            at_lanes = self.token.kind == "mark" and self.token.text == "["
            kind = ListType(kind, self._shape() if at_lanes else ())
        return kind


def _read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array
