"""The front end's door: a Python function and the types of its arguments to an IR function."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from .. import tree
from ..errors import DelianError, ProgramError, TypeRuleError
from ..ir import DType, Function, ListType, TensorType, Value
from . import arithmetic, calls
from .gradients import Transform
from .scope import free_values
from .specialise import Specialiser
from .values import Tensor, describe, is_number, same_static

#: Inlining recurses in Python, some ten frames a call; the calls themselves are limited to
#: `calls.DEPTH_MAX`.
_RECURSION = 20_000


class Static:
    """An argument that the program is specialised for: a size, a flag, a name, a function, a
    model's structure.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and _alike(self.value, other.value)

    def __hash__(self) -> int:
        return hash((Static, self.value))

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


def _alike(a: Any, b: Any) -> bool:
    """Equal and of one type all through: 1, 1.0 and True make different programs."""
    if isinstance(a, tuple | list):
        same = type(a) is type(b) and len(a) == len(b)
        return same and all(_alike(x, y) for x, y in zip(a, b, strict=True))
    return same_static(a, b)


@dataclass(frozen=True, slots=True)
class Traced:
    """A specialised program.

    Attributes:
        function: the IR; its parameters are the arguments' leaves in order, static ones left out.
        in_structure: of the tuple of arguments, static leaves included.
        out_structure: of the result.
        static: which leaves of the arguments are static.
        outside: what was read from closures, globals and modules: (mapping or cell, name, value).
    """

    function: Function
    in_structure: tree.Structure
    out_structure: tree.Structure
    static: frozenset[int]
    outside: tuple[tuple[Any, str, Any], ...]

    def arguments(self, *args: Any) -> list[Any]:
        """The leaves that the program takes, of arguments like those that it was traced for."""
        leaves, structure = flatten(tuple(args))
        if structure != self.in_structure:
            raise DelianError(
                f"`{self.function.name}` takes arguments of another structure: {structure}",
                "pass arguments like those that it was compiled for",
            )
        return [v for k, v in enumerate(leaves) if k not in self.static]

    def result(self, arrays: Sequence[Any]) -> Any:
        """The program's results as the function's result."""
        return tree.unflatten(self.out_structure, arrays)

    def current(self) -> bool:
        """Whether everything that was read from outside is still what it was."""
        for owner, name, value in self.outside:
            if isinstance(owner, types.CellType):
                if owner.cell_contents is not value:
                    return False
            elif owner.get(name) is not value:
                return False
        return True


def _is_leaf(value: Any) -> bool:
    return isinstance(value, TensorType | ListType | Static)


def flatten(args: Any) -> tuple[list[Any], tree.Structure]:
    """Like `tree.flatten`, for trees whose leaves may be types or `Static`."""
    return tree.flatten(args, _is_leaf)


def trace(
    f: Callable[..., Any], *specs: Any, name: str | None = None, simplified: bool = True
) -> Traced:
    """Specialises a function.

    Args:
        f: a Python function, method, callable object, `functools.partial`, or a derivative of one.
        specs: one tree an argument. A leaf is a TensorType, an array (its type counts), a Python
        number (a weak type), or
            `Static(value)`; any other leaf is taken as static.
        name: the program's, by default the function's.
        simplified: False leaves what the function says as it is, for people to look at.

    Raises:
        ProgramError: the function cannot be compiled; says where, and what to do.
    """
    s = Specialiser()
    leaves, structure = flatten(tuple(specs))
    names = _names(f, structure)
    params: list[Value] = []
    param_names: list[str] = []
    abstract: list[Any] = []
    static = set()
    for k, leaf in enumerate(leaves):
        type_, weak = _type_of(leaf, names[k])
        if type_ is None:
            static.add(k)
            abstract.append(leaf.value if isinstance(leaf, Static) else leaf)
            continue
        params.append(Value(type_))
        param_names.append(names[k])
        abstract.append(Tensor(params[-1], weak))
    args = tree.unflatten(structure, abstract)
    with _deep_recursion(), _as_program_errors(s), np.errstate(all="ignore"):
        result = calls.call(s, f, args, {})
        out, out_structure = tree.flatten(result)
        paths = list(out_structure.paths())
        results = [_result(s, v, p) for v, p in zip(out, paths, strict=True)]
        if free_values(s.scope.ops, params, results):
            hint = "return its results instead of the function"
            raise s.error("DL119", "a function made inside a derivative is called outside it", hint)
    s.scope.params = tuple(params)
    from ..passes.simplify import simplify
    from ..transforms.custom import expand

    body = expand(s.scope.finish(results))
    if simplified:
        body = simplify(body)
    function = Function(
        name or name_of(f), body, tuple(param_names), tuple(p or "result" for p in paths)
    )
    return Traced(function, structure, out_structure, frozenset(static), tuple(s.outside.values()))


def _type_of(leaf: Any, name: str) -> tuple[TensorType | None, bool]:
    """A parameter's type and whether it is weak; None for a static leaf."""
    if isinstance(leaf, TensorType):
        return leaf, False
    if isinstance(leaf, ListType):
        raise ProgramError("DL118", f"the argument `{name}` cannot be a list of the IR")
    if isinstance(leaf, np.ndarray | np.generic):
        try:
            return TensorType(DType.of(leaf.dtype), leaf.shape), False
        except KeyError:
            known = ", ".join(DType.names())
            raise ProgramError(
                "DL118",
                f"the argument `{name}` is an array of {leaf.dtype}, which the compiler has not",
                hint=f"convert it to one of {known}",
            ) from None
    if isinstance(leaf, bool | int | float):
        return TensorType.of(leaf), not isinstance(leaf, bool)
    return None, False


def _result(s: Specialiser, leaf: Any, path: str) -> Value:
    if not is_number(leaf):
        where = f"the result's `{path}`" if path else "the result"
        hint = "return arrays and numbers; mark a module's other fields with dl.static()"
        raise s.error("DL118", f"{where} is {describe(leaf)}, which is not an array", hint)
    return arithmetic.tensor(s, leaf).value


def name_of(f: Any) -> str:
    """What a callable is called."""
    if isinstance(f, Transform):
        return f"{f.kind}_{name_of(f.f)}"
    if isinstance(f, functools.partial):
        return name_of(f.func)
    name: str = getattr(f, "__name__", None) or type(f).__name__
    return "lambda" if name == "<lambda>" else name


def parameter_names(f: Any, count: int) -> list[str]:
    """A name for each positional argument."""
    target = f
    while isinstance(target, Transform):
        if target.kind == "jvp":
            return ["primals", "tangents"][:count]
        target = target.f
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    out: list[str] = []
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            out += [f"{p.name}.{k}" for k in range(count - len(out))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            out.append(p.name)
    return (out + [f"argument{k}" for k in range(len(out), count)])[:count]


def _names(f: Any, structure: tree.Structure) -> list[str]:
    firsts = parameter_names(f, len(structure.children))
    return [
        path
        for first, child in zip(firsts, structure.children, strict=True)
        for path in child.paths(first)
    ]


@contextmanager
def _as_program_errors(s: Specialiser) -> Iterator[None]:
    """Gives the errors of type rules their span."""
    try:
        yield
    except TypeRuleError as e:
        raise s.error("DL120", e.message, e.hint) from e
    except DelianError:
        raise
    except RecursionError:
        raise s.error(
            "DL110",
            "the program is nested too deeply",
            "a recursion must end on a value known when the program is compiled; else use a loop",
        ) from None
    except Exception as e:
        raise s.error(
            "DL121",
            f"the compiler fails here: {type(e).__name__}: {e}",
            "this is a fault of the compiler; please report the function with this message",
        ) from e


_recursion_lock = Lock()
_recursion: list[int] = []


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Raises Python's limit while any thread traces."""
    with _recursion_lock:
        if not _recursion:
            _recursion.append(sys.getrecursionlimit())
            sys.setrecursionlimit(max(_recursion[0], _RECURSION))
        _recursion.append(0)
    try:
        yield
    finally:
        with _recursion_lock:
            _recursion.pop()
            if len(_recursion) == 1:
                sys.setrecursionlimit(_recursion.pop())
