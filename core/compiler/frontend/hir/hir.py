"""HIR: a user's function as data, before anything is known about its arguments.

`syntax` makes it from source, once a function; `specialise` runs it over abstract values, once per
kind of argument. It is Python's syntax tree with four differences:

- `break`, `continue` and `return` are gone: they became assignments to flags (names that begin
  with `$`) and real guarding `if`s, so that a branch which is not taken is not computed, and leaks
  no NaN into a gradient;
- every `if` and loop says which names it may change and which are read later (`liveness`);
- what the language refuses is a `Refused` node, so that the error comes when it is reached, with
  the chain of calls;
- every node carries its source span.

Nodes are frozen and never copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ....common.errors import Loc

#: The function's result; written by every `return`.
RESULT = "$return"


@dataclass(frozen=True, slots=True)
class Constant:
    """A known value of the text: a number, a text, None."""

    loc: Loc
    value: Any


@dataclass(frozen=True, slots=True)
class Name:
    """A name that is read."""

    loc: Loc
    name: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """`value.name`."""

    loc: Loc
    value: Expr
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """`keywords` are (name, value) pairs; a name of None is `**value`.

    A positional `Starred` is `*value`.
    """

    loc: Loc
    function: Expr
    args: tuple[Expr, ...]
    keywords: tuple[tuple[str | None, Expr], ...]


@dataclass(frozen=True, slots=True)
class Binary:
    """`op` is the operator as it is written: `+`, `@`, `//`..."""

    loc: Loc
    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Unary:
    """`op` is one of `-`, `+`, `~`, `not`."""

    loc: Loc
    op: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Compare:
    """`a < b <= c`: one operator fewer than operands."""

    loc: Loc
    ops: tuple[str, ...]
    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Boolean:
    """`op` is `and` or `or`."""

    loc: Loc
    op: str
    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Conditional:
    """`then if test else otherwise`."""

    loc: Loc
    test: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class Subscript:
    """`value[index]`."""

    loc: Loc
    value: Expr
    index: Expr


@dataclass(frozen=True, slots=True)
class Slice:
    """`start:stop:step` of an index; None where a part is left out."""

    loc: Loc
    start: Expr | None
    stop: Expr | None
    step: Expr | None


@dataclass(frozen=True, slots=True)
class Sequence:
    """A tuple, list or set display; `kind` is the class."""

    loc: Loc
    kind: type
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class DictDisplay:
    """A key of None is `**value`."""

    loc: Loc
    items: tuple[tuple[Expr | None, Expr], ...]


@dataclass(frozen=True, slots=True)
class Starred:
    """`*value`, in a call or a display."""

    loc: Loc
    value: Expr


@dataclass(frozen=True, slots=True)
class Lambda:
    """`lambda`, as a function without a name."""

    loc: Loc
    function: FunctionDef


@dataclass(frozen=True, slots=True)
class Generator:
    """`for target in iterable if conditions...` of a comprehension."""

    target: Target
    iterable: Expr
    conditions: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Comprehension:
    """`kind` is list, set, dict or tuple (for a generator expression). `key` only for dict."""

    loc: Loc
    kind: type
    key: Expr | None
    value: Expr
    generators: tuple[Generator, ...]
    names: frozenset[str]
    loops: Callable[[str], FunctionDef] | None = None
    """Of a generator expression: makes the loop of a reduction of that name; None: there is none.
    """


@dataclass(frozen=True, slots=True)
class Reduction:
    """A built-in function of a generator expression, or a list comprehension; and it as a loop."""

    loc: Loc
    name: str
    """The function's, as `sum`; that of a list comprehension is "list"."""
    call: Call | Comprehension
    """The call of the function."""
    loop: Callable[[], FunctionDef] | None
    """Makes the loop; None where there is none."""


@dataclass(frozen=True, slots=True)
class Format:
    """An f-string: text, and (value, conversion, format) triples."""

    loc: Loc
    parts: tuple[str | tuple[Expr, str, Expr | None], ...]


@dataclass(frozen=True, slots=True)
class Named:
    """`(name := value)`."""

    loc: Loc
    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Refused:
    """What the language does not have. Reaching it is the error."""

    loc: Loc
    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Yield:
    """`yield value`, or `yield from value` (`each`); the generator finds None in its place."""

    loc: Loc
    value: Expr
    each: bool


Expr: TypeAlias = (
    Constant
    | Name
    | Attribute
    | Call
    | Binary
    | Unary
    | Compare
    | Boolean
    | Conditional
    | Subscript
    | Slice
    | Sequence
    | DictDisplay
    | Starred
    | Lambda
    | Comprehension
    | Reduction
    | Format
    | Named
    | Yield
    | Refused
)
#: A place to store: a name, an item of a local list or dict, an attribute of an object, or a tuple
#: of places (one of them perhaps starred).
Target: TypeAlias = Name | Subscript | Attribute | Sequence | Starred | Refused


@dataclass(frozen=True, slots=True)
class Assign:
    """`changed`: a target is a name or an attribute whose array may be changed in place."""

    loc: Loc
    targets: tuple[Target, ...]
    value: Expr
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """`target op= value`."""

    loc: Loc
    op: str
    target: Target
    value: Expr


@dataclass(frozen=True, slots=True)
class Evaluate:
    """An expression as a statement."""

    loc: Loc
    value: Expr


@dataclass(frozen=True, slots=True)
class SetFlag:
    """A flag that `break`, `continue` or `return` became."""

    loc: Loc
    name: str
    value: bool


@dataclass(frozen=True, slots=True)
class If:
    """`if test: then, else: otherwise`."""

    loc: Loc
    test: Expr
    then: Block
    otherwise: Block
    changed: tuple[str, ...] = ()
    """Names that a branch may assign and that are read afterwards."""
    dead: tuple[str, ...] = ()
    """Names that a branch may assign and that are not read afterwards."""
    stored: tuple[str, ...] = ()
    """Names whose list or dict a branch may change."""


@dataclass(frozen=True, slots=True)
class While:
    """`while test: body`."""

    loc: Loc
    test: Expr
    body: Block
    stop: str | None
    """The flag that a `break` or `return` inside sets, tested by the loop before its own test;
    None: there is none.
    """
    carried: tuple[str, ...] = ()
    """Names that the body assigns and that the test, the body's start or what follows reads."""
    dead: tuple[str, ...] = ()
    """Names that the body assigns and that none of these reads."""
    stored: tuple[str, ...] = ()
    """Names whose list or dict the body may change."""
    rebound: frozenset[str] = frozenset()
    """Names that the body binds otherwise than by `op=`."""


@dataclass(frozen=True, slots=True)
class For:
    """`for target in iterable: body`."""

    loc: Loc
    target: Target
    """Its names count as assigned by the body."""
    iterable: Expr
    body: Block
    stop: str | None
    """As in `While`."""
    carried: tuple[str, ...] = ()
    """As in `While`."""
    dead: tuple[str, ...] = ()
    """As in `While`."""
    stored: tuple[str, ...] = ()
    """As in `While`."""
    rebound: frozenset[str] = frozenset()
    """As in `While`."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """The type of a name in a class; `value` is None where Python keeps the text."""

    value: Expr | None
    text: str


@dataclass(frozen=True, slots=True)
class DefineClass:
    """A nested `class`. `function`: its body, as one without parameters."""

    loc: Loc
    name: str
    path: str
    """Its `__qualname__`."""
    function: FunctionDef
    decorators: tuple[Expr, ...]
    bases: tuple[Expr, ...]
    keywords: tuple[tuple[str, Expr], ...]
    annotations: tuple[tuple[str, Annotation], ...]
    doc: str | None


@dataclass(frozen=True, slots=True)
class Define:
    """A nested `def`.

    Decorators are computed from the first to the last, before the defaults, and applied from the
    last to the first.
    """

    loc: Loc
    name: str
    function: FunctionDef
    decorators: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Assert:
    """`assert test, message`, and tests that the compiler adds, which raise another error.

    A test on numbers of the running program is made only where a call from Python can raise.
    """

    loc: Loc
    test: Expr
    """What must hold."""
    message: Expr | None
    """The error's argument; None: it has none."""
    error: type[Exception] = AssertionError
    """The class of the error."""


@dataclass(frozen=True, slots=True)
class Raise:
    """`raise error from cause`; an error of None raises again what a handler takes."""

    loc: Loc
    error: Expr | None
    cause: Expr | None = None


@dataclass(frozen=True, slots=True)
class Import:
    """`import module` or `from module import attribute`, bound to a name."""

    loc: Loc
    module: str
    """Dotted name of the module; a relative one starts with dots."""
    attribute: str | None
    """What is taken of the module; None for the module itself."""
    name: str
    """What it is bound to."""
    top: bool = False
    """The name is bound to the package that holds the module, as `import a.b` binds `a`."""


@dataclass(frozen=True, slots=True)
class Delete:
    """`del target`: a name, or an item of a list or dict."""

    loc: Loc
    target: Target


@dataclass(frozen=True, slots=True)
class Enter:
    """The head of a `with` whose context changes nothing in a program; its body follows."""

    loc: Loc
    context: Expr
    target: Target | None


@dataclass(frozen=True, slots=True)
class Handler:
    """`except kinds as name`. kinds: a class or a tuple of classes; None takes every error."""

    loc: Loc
    kinds: Expr | None
    name: str | None
    body: Block


@dataclass(frozen=True, slots=True)
class Try:
    """`try`, `except`, `else` and `finally`. No escape leaves `last`."""

    loc: Loc
    body: Block
    handlers: tuple[Handler, ...]
    otherwise: Block
    last: Block

    def blocks(self) -> tuple[Block, ...]:
        return (self.body, *(h.body for h in self.handlers), self.otherwise, self.last)


@dataclass(frozen=True, slots=True)
class Escape:
    """`break`, `continue` or `return value`.

    They exist between `syntax` and `escapes`; none is left after that.
    """

    loc: Loc
    kind: str
    value: Expr | None


Statement: TypeAlias = (
    Escape
    | Assign
    | Update
    | Evaluate
    | SetFlag
    | If
    | While
    | For
    | Define
    | DefineClass
    | Assert
    | Raise
    | Try
    | Import
    | Delete
    | Enter
    | Refused
)
Block: TypeAlias = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a function.

    Defaults are expressions of the defining scope; for a function that Python made they are its own
    values.
    """

    positional: tuple[str, ...]
    positional_only: int
    keyword_only: tuple[str, ...]
    rest: str | None
    keywords: str | None
    defaults: tuple[Expr, ...]
    keyword_defaults: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class FunctionDef:
    """A function."""

    loc: Loc
    name: str
    parameters: Parameters
    body: Block
    assigned: frozenset[str]
    """The names that are local to it."""
    reads: frozenset[str]
    """The names that it takes from around it."""
    refused: Refused | None = None
    """Set when no call of it can be compiled (`async`)."""
    loop: FunctionDef | None = None
    """The same function as a loop, where it ends in calls of itself."""
    is_generator: bool = False
