"""Abstract values: what the specialiser computes with.

An abstract value is a Python value with a `Tensor` wherever only the running program knows the
number:

    3, "mean", None, np.tanh, an ndarray    known now (static); numbers become constants when they
                                            meet a tensor
    Tensor                                  an SSA value of the program, and what it is in Python
    tuples, dicts, dataclasses...           real ones, with abstract values inside
    Closure                                 a nested function: HIR and the frame that it reads from

so structures need no abstract double, and everything static is computed by Python itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.errors import Loc
from .. import ir, tree
from ..complex_numbers import Complex
from ..ragged import Ragged
from ..traced import ARRAY, BOOL, FLOAT, INT, SCALAR
from .hir import hir

if TYPE_CHECKING:
    from .containers.list_stacks import Part
    from .memory.stores import Memory
    from .memory.views_of_arrays import Lens
    from .scope import Scope
    from .specialise import Specialiser


_PYTHON = {ir.DType.BOOL: BOOL, ir.DType.I64: INT}
_CLASSES: tuple[tuple[int, type], ...] = ((BOOL, bool), (INT, int), (FLOAT, float))


class NotKnown(TypeError):
    """Python asks a value of the running program for something that only the program knows."""

    def __init__(self) -> None:
        super().__init__("a value of the running program is not known yet")


class Tensor:
    """A number or array of the running program.

    Attributes:
        kind: what it is in Python, a set of the bits above: a bool, int or float of Python's, a
            NumPy scalar, an array.
        weak: it is surely one of Python's numbers, so it gives way to any other type of its kind
            (NEP 50).
        memory, lenses: the memory that it is a view of, and how (`stores`); None for a number, and
            for an array that was neither changed nor viewed yet.
        own: when it was made, for an array that may be changed in place: negative where its
            elements lie in row-major order. 0 for a number, and where memory is not known.
        held, seen: the value that it had at that version of its memory.
        part: where it is the element of a whole, which is read when it is wanted (`stacks`).
    """

    __slots__ = ("held", "kind", "lenses", "memory", "own", "part", "seen", "weak")

    def __init__(self, value: ir.Value, weak: bool = False, kind: int = 0) -> None:
        self.held = value
        if not kind or value.tensor.shape:
            type_ = value.tensor
            kind = ARRAY if type_.shape else _PYTHON.get(type_.dtype, FLOAT) if weak else SCALAR
        self.kind = kind
        self.weak = kind < SCALAR
        self.own = 0
        self.memory: Memory | None = None
        self.lenses: tuple[Lens, ...] = ()
        self.seen = 0
        self.part: Part | None = None

    @property
    def value(self) -> ir.Value:
        if self.part is not None:
            return self.part.read(self)
        return self.held if self.memory is None else self.memory.read(self)

    @property
    def type(self) -> ir.TensorType:
        return self.held.tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.held.tensor.shape

    @property
    def dtype(self) -> ir.DType:
        return self.held.tensor.dtype

    @property
    def classes(self) -> list[Any]:
        """The Python classes that it may have, usually one."""
        out: list[Any] = [cls for bit, cls in _CLASSES if self.kind & bit]
        if self.kind & SCALAR:
            out.append(self.dtype.numpy.type)
        return [*out, np.ndarray] if self.kind & ARRAY else out

    def like(self, value: ir.Value) -> Tensor:
        """Another value that is in Python what this one is."""
        return Tensor(value, kind=self.kind)

    def __bool__(self) -> bool:
        raise NotKnown

    def __eq__(self, other: object) -> bool:
        raise NotKnown

    def __hash__(self) -> int:
        raise NotKnown

    def __repr__(self) -> str:
        return str(self.held.type)


class Text:
    """A string that a number of the running program is written in: good for an error's words.

    Attributes:
        shown: what it is while compiling, with types where the numbers are.
        write, parts: the text of the parts, once their numbers are known.
    """

    __slots__ = ("parts", "shown", "write")

    def __init__(self, shown: str, write: Callable[..., str], *parts: Any) -> None:
        self.shown = shown
        self.write = write
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        raise NotKnown

    def __hash__(self) -> int:
        raise NotKnown

    def __repr__(self) -> str:
        return self.shown


class Error:
    """An exception whose words have numbers of the running program in them."""

    __slots__ = ("args", "cls", "kwargs")

    def __init__(self, cls: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.cls = cls
        self.args = tuple(args)
        self.kwargs = dict(kwargs)


def kind_of(value: Any) -> int:
    """What a number is in Python, as a `Tensor.kind`."""
    if type(value) is Tensor:
        return value.kind
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, np.generic):
        return SCALAR
    if isinstance(value, np.ndarray):
        return ARRAY
    return INT if isinstance(value, int) else FLOAT


class Unbound:
    """Stands where a name has no value that may be used: the error that its use raises.

    `locs` is where that is reported; empty means at the use. `loop`: the loop (`id`) that may give
    it a value where it is unrolled.
    """

    __slots__ = ("code", "hint", "locs", "loop", "message")

    def __init__(
        self, code: str, message: str, hint: str, locs: tuple[Loc, ...] = (), loop: int = 0
    ) -> None:
        self.loop = loop
        self.code = code
        self.message = message
        self.hint = hint
        self.locs = locs


class Frame:
    """The names of one call, or of one comprehension within it (`inner`)."""

    __slots__ = ("cells", "inner", "local", "module", "parent", "vars")

    def __init__(
        self,
        variables: dict[str, Any],
        local: frozenset[str],
        parent: Frame | None,
        module: Mapping[str, Any],
        cells: Mapping[str, Any],
        inner: bool = False,
    ) -> None:
        self.vars = variables
        self.inner = inner
        self.local = local
        self.parent = parent
        self.module = module
        self.cells = cells


class ClassFrame(Frame):
    """The names in the body of a class; functions in it see those around it alone.

    Its parent has `__class__`, for `super()`.
    """

    __slots__ = ()


class Activation:
    """A call whose body is being run.

    Attributes:
        key: the function's code.
        region: the region that it was called in.
        settled: whether it was decided how the function's calls of itself are taken.
    """

    __slots__ = ("frame", "key", "region", "settled")

    def __init__(self, key: object, region: object, frame: Frame) -> None:
        self.key = key
        self.region = region
        self.frame = frame
        self.settled = False

    def is_of(self, other: Activation) -> bool:
        """Whether both are calls of one function: the same code over the same outer names."""
        a, b = self.frame, other.frame
        return (
            self.key is other.key
            and a.parent is b.parent
            and len(a.cells) == len(b.cells)
            and all(x is y for x, y in zip(a.cells.values(), b.cells.values(), strict=True))
        )


class Closure:
    """A nested function or lambda; `defaults` were evaluated where it was defined."""

    __slots__ = ("defaults", "frame", "function", "keyword_defaults")

    def __init__(
        self,
        function: hir.FunctionDef,
        frame: Frame,
        defaults: tuple[Any, ...],
        keyword_defaults: Mapping[str, Any],
    ) -> None:
        self.function = function
        self.frame = frame
        self.defaults = defaults
        self.keyword_defaults = keyword_defaults

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """There so that `callable` and `partial` take it; only a specialiser can run it."""
        raise TypeError(f"`{self.function.name}` belongs to a program that is being compiled")


class Choice:
    """One of several functions: the running program knows which, by `tag`, an i64[] (`choices`)."""

    __slots__ = ("functions", "tag")

    def __init__(self, tag: Tensor, functions: tuple[Any, ...]) -> None:
        self.tag = tag
        self.functions = functions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """There so that `callable` and `partial` take it; only a specialiser can run it."""
        raise TypeError("this choice belongs to a program that is being compiled")


class Method:
    """A vocabulary function bound to the value that it is a method of (`x.sum`)."""

    __slots__ = ("handler", "name", "owner")

    def __init__(self, name: str, owner: Any, handler: Callable[..., Any]) -> None:
        self.name = name
        self.owner = owner
        self.handler = handler

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """There so that `callable` takes it; only a specialiser can run it."""
        raise TypeError(f"`{self.name}` belongs to a program that is being compiled")


class TensorRange:
    """`range` with a bound that only the running program knows."""

    __slots__ = ("start", "step", "stop")

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start = start
        self.stop = stop
        self.step = step


class Once:
    """An iterator: what `zip`, `map` or a generator expression gives. It can be gone through once.

    `make` gives its items when they are asked for, as a list or an `Indexed`; `sources` are lists,
    dicts, sets and views that they come from, and `sizes` how long those were of which Python keeps
    that (`sized`: of lists too). `computes`: a function computes them, which Python calls item by
    item; `reads`, and `names` in `frame`: what it computes them from (`flow.watches`). `turns` goes
    through them one by one, as a loop that is unrolled asks for them; `ahead`: what is left of them
    after a `next`. `node`: the generator expression, for a reduction of it.
    """

    __slots__ = (
        *("ahead", "computes", "frame", "make", "names", "node", "reads", "region", "sizes"),
        *("sources", "turns", "used"),
    )

    def __init__(
        self,
        make: Callable[[], Any],
        region: object,
        sources: tuple[Any, ...] = (),
        computes: bool = False,
        reads: tuple[Any, ...] = (),
        frame: Frame | None = None,
        names: frozenset[str] = frozenset(),
        turns: Callable[[], Iterator[Any]] | None = None,
        sized: bool = False,
    ) -> None:
        self.sizes = [(v, len(v)) for v in sources if sized or type(v) is not list]
        self.computes = computes
        self.turns = turns
        self.reads = reads
        self.frame = frame
        self.names = names
        self.make = make
        self.region = region
        self.sources = sources
        self.ahead: Iterator[Any] | None = None
        self.used = False
        self.node: hir.Comprehension | None = None


class Indexed:
    """A sequence of known length whose items can be had by an index of the running program."""

    __slots__ = ("item", "length")

    def __init__(self, length: int, item: Callable[[Specialiser, Any], Any]) -> None:
        self.length = length
        self.item = item


class Counted:
    """A sequence of a length that only the running program knows: `count`, at most `most`."""

    __slots__ = ("count", "item", "most")

    def __init__(self, count: Tensor, most: int, item: Callable[[Specialiser, Any], Any]) -> None:
        self.count = count
        self.most = most
        self.item = item


class NoNumbers:
    """Stands for the items of a list that are no real numbers."""

    __slots__ = ()


NO_NUMBERS = NoNumbers()


@dataclass(frozen=True, eq=False)
class RaggedList:
    """A list whose length only the running program knows (`ragged.ragged_lists`)."""

    array: Any
    """Its items, as a `Ragged`; `NO_NUMBERS` where only their number is kept."""
    count: Any
    """How many there are: i64[]."""
    kind: int = tree.static_field(default=0)
    """What each item is in Python, as a `Tensor.kind`."""

    @classmethod
    def tree_build(cls, parts: Iterable[Any], kind: int) -> Any:
        """The node of these parts; of arrays the list itself."""
        array, count = parts
        if isinstance(array, np.ndarray):
            return list(array) if kind & SCALAR else array.tolist()
        return cls(array, count, kind)

    def __bool__(self) -> bool:
        raise NotKnown

    def __eq__(self, other: object) -> bool:
        raise NotKnown

    def __hash__(self) -> int:
        raise NotKnown


class Whole:
    """All numbers of nested lists as one array (`stacks`), and what each element is in Python.

    `scope`: where it was computed.
    """

    __slots__ = ("kind", "scope", "value")

    def __init__(self, value: ir.Value, kind: int, scope: Scope) -> None:
        self.value = value
        self.kind = kind
        self.scope = scope

    @property
    def type(self) -> ir.TensorType:
        return self.value.tensor


class Picked:
    """One of some lists of one shape: the running program knows which (`stacks`).

    `base`: what the outermost list held when it was picked from. `places`: the indices so far.
    """

    __slots__ = ("base", "places", "shape")

    def __init__(self, base: list[Any], places: tuple[Any, ...], shape: tuple[int, ...]) -> None:
        self.base = base
        self.places = places
        self.shape = shape

    @property
    def length(self) -> int:
        return self.shape[len(self.places)]


#: What can become a constant of the program.
NUMBERS = (bool, int, float, np.generic, np.ndarray)


def is_number(value: Any) -> bool:
    """Whether it is a tensor, or can become one."""
    return type(value) is Tensor or isinstance(value, NUMBERS)


def is_static(value: Any) -> bool:
    """Whether no part of it waits for the running program.

    Functions are static: they are looked into when called. An object that the program made is not:
    its class's methods are the program's to run, and a copy may stand for it where paths meet.
    """
    kind = type(value)
    if kind in _WAITING:
        return False
    if kind in _ATOMS:
        return True
    if kind is Method:
        return is_static(value.owner)
    if isinstance(value, slice):
        return is_static((value.start, value.stop, value.step))
    if isinstance(value, dict):
        return all(is_static(v) for v in value.values())
    if isinstance(value, tuple | list | set | frozenset):
        return all(is_static(v) for v in value)
    if kind in VIEWS:
        return all(is_static(v) for v in value)
    if tree.is_open(value):
        return False
    parts = tree.children(value)
    return parts is None or all(is_static(v) for v in parts[1])


_WAITING = frozenset(
    (Tensor, Text, Error, TensorRange, Indexed, Once, Choice, Picked, Whole, Counted, RaggedList)
)
#: The views of a dict: its keys, values and items.
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_ATOMS = frozenset((int, float, bool, str, type(None), type, np.ndarray, np.float32, np.float64))


#: Longer descriptions are cut.
_WIDTH = 60


def inherits(cls: type, name: str) -> bool:
    """Whether a class has a special method from `object` alone."""
    found = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
    return bool(found is vars(object)[name])


def describe(value: Any) -> str:
    """What an error message calls a value."""
    if isinstance(value, Tensor):
        return str(value.held.type)
    if isinstance(value, Text):
        return value.shown
    if isinstance(value, Error):
        return f"{value.cls.__name__}({', '.join(map(describe, value.args))})"
    if isinstance(value, Complex | Ragged):
        return str(value)
    if isinstance(value, Unbound):
        return "unset"
    if isinstance(value, np.ndarray):
        return f"a constant array {value.dtype}{list(value.shape)}"
    if isinstance(value, Closure):
        return f"the function `{value.function.name}`"
    if isinstance(value, Method):
        return f"the method `{value.name}`"
    if isinstance(value, partial):
        return f"a partial of {describe(value.func)}"
    if isinstance(value, Choice):
        return _cut(f"one of {', '.join(map(describe, value.functions))}")
    if isinstance(value, Once):
        return "an iterator"
    if isinstance(value, NoNumbers):
        return "a list of items that are no real numbers"
    if isinstance(value, RaggedList):
        return "a list whose length the data decide"
    if isinstance(value, Picked | Whole):
        return "a list that the running program picks"
    if isinstance(value, TensorRange | Indexed | Counted):
        return "a range of the running program"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        return _cut(f"{type(value).__name__}({', '.join(f'{k}={describe(v)}' for k, v in pairs)})")
    if isinstance(value, tuple):
        return _cut(f"({', '.join(map(describe, value))}{',' if len(value) == 1 else ''})")
    if isinstance(value, list):
        return _cut(f"[{', '.join(map(describe, value))}]")
    if isinstance(value, dict):
        return _cut("{" + ", ".join(f"{k!r}: {describe(v)}" for k, v in value.items()) + "}")
    if (parts := tree.children(value)) is not None and value is not None:
        pairs = zip(parts[0], parts[1], strict=True)
        return _cut(f"{type(value).__name__}({', '.join(f'{k}={describe(v)}' for k, v in pairs)})")
    if callable(value) and hasattr(value, "__name__"):
        return f"`{value.__name__}`"
    if inherits(type(value), "__repr__"):
        return f"an object of `{type(value).__name__}`"
    if isinstance(value, int) and value.bit_length() > _BITS_MAX:
        return f"an int of {value.bit_length()} bits"
    return _cut(repr(value))


#: A longer int is not written out; Python itself writes none of over 4,300 digits.
_BITS_MAX = 200


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
