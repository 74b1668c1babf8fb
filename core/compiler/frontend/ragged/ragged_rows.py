"""Calls of functions that are given an array whose length the data decide.

A row of the vocabulary is looked up by its name: ufuncs and the functions in `ELEMENTWISE` run on
the elements; those in `ragged_functions.FUNCTIONS` know about padding; `ragged_python.PYTHON` has
Python's own. Everything else needs the length, and is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ragged import Ragged
from .. import complexes
from ..numpy import positional_arguments
from ..values import Tensor, is_static
from . import among, elementwise, new, plain, ragged_arguments, rank, refused
from .ragged_axes import AXES
from .ragged_functions import COMPOSED, FUNCTIONS
from .ragged_joins import JOINS, one_array
from .ragged_python import PYTHON

if TYPE_CHECKING:
    from ..specialise import Specialiser
    from ..vocabulary.vocabulary_table import Row

#: Functions of NumPy's, other than ufuncs, that run on each element: how many arrays they take.
ELEMENTWISE: dict[str, int] = {
    **dict.fromkeys(("round", "around", "nan_to_num", "fix", "isposinf", "isneginf"), 1),
    **dict.fromkeys(("isreal", "iscomplex"), 1),
    **dict.fromkeys(("ops.stop_gradient", "ops.sigmoid", "ops.erf"), 1),
    "where": 3,
    "clip": 3,
}
#: Functions that run on each element of one argument, the others being whole arrays.
LOOKING_UP = {"interp": 0, "digitize": 0, "searchsorted": 1}
#: Functions of Python's that only move values about.
_MOVING = frozenset(
    ("functools.partial", "dataclasses.replace", "functools.wraps", "slice", "dict", "tuple")
)
#: Functions of Python's that ask about a tuple or a list, whatever is in it.
_OF_CONTAINERS = frozenset(
    ("len", "isinstance", "type", "hasattr", "callable", "bool", "enumerate", "zip", "list")
)


def takes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is given a ragged array."""
    return among(args) or bool(kwargs and among(tuple(kwargs.values())))


@lru_cache(maxsize=256)
def _bound(handler: Callable[..., Any], f: Any) -> Callable[..., Any]:
    """A handler of a function, without the function among its parameters."""

    def run(s: Specialiser, *args: Any, **kwargs: Any) -> Any:
        return handler(s, f, *args, **kwargs)

    signature = inspect.signature(handler)
    own = list(signature.parameters.values())
    run.__signature__ = signature.replace(parameters=[own[0], *own[2:]])  # type: ignore[attr-defined]
    return run


def call(s: Specialiser, row: Row, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A function that was given a ragged array."""
    from ..calls import run_handler

    name = row.name.removeprefix("np.")
    if row.name in PYTHON:
        asked = args[:1] if row.name != "zip" else args
        within = row.name in _OF_CONTAINERS and all(type(a) is not Ragged for a in asked)
        return run_handler(s, row.name, row.handler if within else PYTHON[row.name], args, kwargs)
    if row.name in _MOVING and not (name == "tuple" and type(args[0]) is Ragged):
        return run_handler(s, row.name, row.handler, args, kwargs)
    ragged_arguments.checked(s, row.name, f, args, kwargs)
    if name in JOINS and name != "append" and type(args[0]) is Ragged:
        raise refused(s, f"`{row.name}`", args[0])
    if name not in JOINS:  # To these a sequence is no array.
        args = [one_array(s, v) for v in args]
        if not takes(args, kwargs):
            return row(s, f, args, kwargs)
    if name in FUNCTIONS or name in AXES or name in JOINS:
        handler = _bound(FUNCTIONS.get(name) or AXES.get(name) or JOINS[name], f)
        args, kwargs = positional_arguments.placed(f, handler, args, kwargs)
        return run_handler(s, row.name, handler, args, kwargs)
    if isinstance(f, np.ufunc) and f.signature is None:
        return elementwise(s, args, lambda *data: row(s, f, data, kwargs))
    if name in ELEMENTWISE and len(args) == 1 and name == "where":
        return row.handler(s, args[0])
    if name in ELEMENTWISE:
        return _each(s, row, f, args, kwargs, ELEMENTWISE[name])
    if name in LOOKING_UP:
        return _looked_up(s, row, f, args, kwargs, LOOKING_UP[name])
    if name in COMPOSED or name in ("nonzero", "flatnonzero", "unique", "compress", "extract"):
        whole = [s.array(v) if isinstance(v, list) else v for v in args]
        made = run_handler(s, row.name, row.handler, whole, kwargs)
        return Tensor(made.value, True) if name == "allclose" else made
    found = next((v for v in (*args, *kwargs.values()) if type(v) is Ragged), None)
    if name == "take" and len(args) == 2 and not kwargs:
        flat = args[0] if _is_vector(args[0]) else s.call(np.ravel, args[0])
        return s.subscript(flat, args[1])
    raise refused(s, f"`{row.name}`", found if found is not None else list(args))


def _is_vector(value: Any) -> bool:
    return (rank(value) if type(value) is Ragged else len(complexes.shape_of(value))) == 1


def _each(
    s: Specialiser,
    row: Row,
    f: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    many: int,
) -> Any:
    """A function that runs on each element of its first arguments, whatever their names."""
    names = list(positional_arguments.numpys(f) or ())[:many]
    given = list(args[:many])
    named = [n for n in names[len(given) :] if kwargs.get(n) is not None]
    values = [*given, *(kwargs[n] for n in named)]
    known = [k for k, v in enumerate(values) if v is not None]
    rest = {k: v for k, v in kwargs.items() if k not in named}

    def run(*data: Any) -> Any:
        whole: list[Any] = list(values)
        for k, v in zip(known, data, strict=True):
            whole[k] = v
        first, others = whole[: len(given)], dict(zip(named, whole[len(given) :], strict=True))
        return row(s, f, [*first, *args[many:]], {**rest, **others})

    return elementwise(s, [values[k] for k in known], run)


def _looked_up(
    s: Specialiser, row: Row, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any], at: int
) -> Any:
    r = args[at] if at < len(args) else None
    others = (*args[:at], *args[at + 1 :], *kwargs.values())
    if type(r) is not Ragged or among(others):
        found = next(v for v in (*args, *kwargs.values()) if type(v) is Ragged)
        raise refused(s, f"`{row.name}`", found)
    made = row(s, f, [*args[:at], plain(r), *args[at + 1 :]], kwargs)
    if type(made) is not Tensor:
        raise refused(s, f"`{row.name}` to complex numbers", r, "look up either part")
    assert len(made.shape) == rank(r) and not is_static(made)
    return new(s, made, r.count, r.axis)
