"""A choice among finitely many functions that only the running program makes.

    f = np.tanh if n > 3 else (lambda v: v * k)          tag: i64[] = if(n > 3) 0 else 1
    f(x)                                           ->    switch(tag, x, k)  case0 tanh  case1 mul

Where paths meet with different functions, the name holds a `Choice` of them and its tag becomes a
value of the program (defunctionalisation: Reynolds, "Definitional interpreters", 1972). What a
function captured from within its path goes along as values of the program too; on the other paths
they are zeros, which are not used.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import tree
from ...ir import DType, TensorType, Value
from ...traced import Transform
from ..numpy import indexing
from ..scope import Scope
from ..values import Choice, Closure, Frame, Method, Tensor, Unbound, describe

if TYPE_CHECKING:
    from ..specialise import Specialiser


def is_function(value: Any) -> bool:
    """Whether it can be one of a choice."""
    from ..derivatives.gradients import Pullback

    return callable(value) and not isinstance(value, Pullback)


def is_index(value: Any) -> bool:
    """Whether it is an index that only the running program knows."""
    return type(value) is Tensor and value.shape == () and value.dtype.is_int


def picked(s: Specialiser, functions: Sequence[Any], index: Tensor) -> Choice:
    """`functions[index]`, from the end where the index is negative."""
    place = indexing.place_of(s, index, [].__getitem__)
    if place.value not in s.natural:
        negative = s.emit("lt", place.value, s.scope.number(0, DType.I64))
        count = s.scope.number(len(functions), DType.I64)
        wrapped = s.emit("add", place.value, count)
        place = Tensor(s.emit("select", negative, wrapped, place.value))
    return Choice(place, tuple(functions))


@dataclass(frozen=True, slots=True)
class Functions:
    """A leaf of what a loop carries that is one of some functions: its tag is carried."""

    functions: tuple[Any, ...]

    def widened(self, value: Any) -> Functions:
        """With those functions of a value that are not among them yet."""
        given = value.functions if isinstance(value, Choice | Functions) else (value,)
        return Functions((*self.functions, *(f for f in given if self.place(f) is None)))

    def place(self, function: Any) -> int | None:
        return next((k for k, f in enumerate(self.functions) if _same(f, function)), None)

    def tag(self, s: Specialiser, value: Any) -> Value:
        """Which of them a function or a choice among them is, as i64[]."""
        if type(value) is not Choice:
            return s.scope.number(self.place(value), DType.I64)
        table = [self.place(f) for f in value.functions]
        if table == list(range(len(table))):
            return value.tag.value
        rows = s.scope.array(np.array(table), DType.I64)
        return s.emit("take", rows, value.tag.value, axis=0)

    def __str__(self) -> str:
        return describe(Choice(_NO_TAG, self.functions))


_NO_TAG = Tensor(Value(TensorType(DType.I64)))


def _same(a: Any, b: Any) -> bool:
    """Whether two functions are one, perhaps defined twice at the same place."""
    if type(a) is not Closure or type(b) is not Closure:
        return a is b
    one, other = ((*c.defaults, *c.keyword_defaults.values()) for c in (a, b))
    same = a.function is b.function and a.frame is b.frame
    return same and all(x is y for x, y in zip(one, other, strict=True))


def may_be_carried(functions: Any, path: Path) -> bool:
    """Whether functions hold nothing that a loop's round made.

    Then they are the same ones in each round.
    """
    given = functions.functions if type(functions) is Choice else (functions,)
    return not any(Carrier(path).collect(f) for f in given)


@dataclass(frozen=True, slots=True)
class Path:
    """One of the paths that meet."""

    scope: Scope
    """What the path computed, which nothing outside of it may use."""
    frame: Frame | None
    """The branch's own frame."""
    names: Mapping[str, Any]
    """The branch's names at the path's end."""
    kept: frozenset[str]
    """Of those, the names that the branch gives on: a function may read them afterwards."""
    params: tuple[Value, ...] = ()
    """The parameters of the path's own region."""

    def look(self, frame: Frame, name: str) -> tuple[bool, Any]:
        """What a function that reads from a frame finds there; whether it is to be carried out."""
        at: Frame | None = frame
        while at is not None:
            names = self.names if at is self.frame else at.vars
            if name in names:
                return not (at is self.frame and name in self.kept), names[name]
            at = at.parent
        return False, None


class Carrier:
    """Takes the functions that a path chose out of it.

    It says which values go along, and makes the functions with other values in their places.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made = {r for op in path.scope.ops for r in op.results} | set(path.params)
        self.needed: dict[Value, Tensor] = {}
        self.seen: set[int] = set()

    def collect(self, value: Any) -> bool:
        """Notes the path's values in a value; whether there are any."""
        if type(value) is Tensor:
            if value.part is not None and not value.seen:
                if value.part.whole.value in self.made:
                    text = "a function that a path chose holds an item of a list changed there"
                    raise value.part.s.static_needed(text, "pass the item as an argument")
                return False
            if value.value in self.made:
                self.needed[value.value] = value
                return True
            return False
        if id(value) in self.seen or type(value) is Unbound:
            return False
        found = False
        if callable(value):
            self.seen.add(id(value))
        for part in self.parts(value):
            found = self.collect(part) or found
        return found

    def parts(self, value: Any) -> Iterator[Any]:
        kind = type(value)
        if kind is Closure:
            yield from value.defaults
            yield from value.keyword_defaults.values()
            for name in value.function.reads:
                carried, inner = self.path.look(value.frame, name)
                if carried:
                    yield inner
        elif kind is Choice:
            yield value.tag
            yield from value.functions
        elif kind is functools.partial:
            yield from (value.func, *value.args, *value.keywords.values())
        elif kind is Method:
            yield value.owner
        elif kind is types.MethodType:
            yield value.__self__
        elif isinstance(value, Transform):
            yield value.f
        elif not callable(value) or tree.is_open(value):
            parts = tree.children(value)
            yield from parts[1] if parts is not None else ()

    def replaced(self, value: Any, by: Mapping[Value, Tensor], made: dict[int, Any]) -> Any:
        """The value with the path's values replaced; the very same one where it has none."""
        if type(value) is Tensor:
            return by.get(value.value, value)
        if id(value) in made:
            return made[id(value)]
        if not Carrier(self.path).collect(value):
            return value

        def swap(part: Any) -> Any:
            return self.replaced(part, by, made)

        kind = type(value)
        if kind is Closure:
            return self.closure(value, swap, made)
        if kind is Choice:
            return Choice(swap(value.tag), tuple(map(swap, value.functions)))
        if kind is functools.partial:
            keywords = {k: swap(v) for k, v in value.keywords.items()}
            return functools.partial(swap(value.func), *map(swap, value.args), **keywords)
        if kind is Method:
            return Method(value.name, swap(value.owner), value.handler)
        if kind is types.MethodType:
            return types.MethodType(value.__func__, swap(value.__self__))
        if isinstance(value, Transform):
            other = copy.copy(value)
            other.f = swap(value.f)
            return other
        leaves, structure = tree.flatten(value)
        return tree.unflatten(structure, [swap(v) for v in leaves])

    def closure(self, value: Closure, swap: Callable[[Any], Any], made: dict[int, Any]) -> Closure:
        """What it carries out shadows the names that it reads; the others are still read late."""
        frame = value.frame
        names: dict[str, Any] = {}
        shadow = Frame(names, frozenset(), frame, frame.module, frame.cells)
        defaults = tuple(swap(v) for v in value.defaults)
        keywords = {k: swap(v) for k, v in value.keyword_defaults.items()}
        result = made[id(value)] = Closure(value.function, shadow, defaults, keywords)
        for name in value.function.reads:
            carried, inner = self.path.look(frame, name)
            if carried and type(inner) is not Unbound and self.carries(inner):
                names[name] = swap(inner)
        return result

    def carries(self, value: Any) -> bool:
        return Carrier(self.path).collect(value)


def call(s: Specialiser, choice: Choice, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call of one of them: a `switch` over all."""
    from .. import calls
    from . import branches

    runs = [functools.partial(calls.call, s, f, args, kwargs) for f in choice.functions]
    words = [f"from {describe(f)}" for f in choice.functions]
    assert s.loc is not None
    return branches.choose(s, "switch", choice.tag.value, runs, s.loc, words)
