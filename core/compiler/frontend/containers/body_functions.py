"""Functions in the body of a class that a program defines: stand-ins of Python's (`local_classes`).

Python makes methods of functions alone, and so do the rules of this compiler for them. A stand-in
is a function that cannot run, and has the `Closure` that the compiler runs instead.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from ..values import Closure

_CLOSURE = "__delian_closure__"


def stand_in(closure: Closure) -> types.FunctionType:
    """A function of Python's that a program runs as this closure."""
    name = closure.function.name

    def method(*args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"`{name}` is of a class that a compiled function defines: only its program can run it"
        )

    method.__name__ = name
    method.__qualname__ = name
    setattr(method, _CLOSURE, closure)
    assert isinstance(method, types.FunctionType)
    return method


def closure_of(value: Any) -> Closure | None:
    """The closure of a stand-in; None of anything else."""
    if type(value) is not types.FunctionType:
        return None
    return value.__dict__.get(_CLOSURE)


def closures_of(value: Any) -> Iterator[Closure]:
    """The closures of a stand-in, or of the functions of a class and of its bases."""
    own = closure_of(value)
    if own is not None:
        yield own
    for base in value.__mro__ if isinstance(value, type) else ():
        for held in vars(base).values() if base.__module__ != "builtins" else ():
            accessors = (held.fget, held.fset, held.fdel) if isinstance(held, property) else ()
            wrapped = getattr(held, "__func__", getattr(held, "func", None))
            for part in (held, wrapped, *accessors):
                closure = closure_of(part)
                if closure is not None:
                    yield closure


__all__ = ["closure_of", "closures_of", "stand_in"]
