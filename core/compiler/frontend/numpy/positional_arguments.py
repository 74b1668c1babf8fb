"""NumPy's own order of arguments: what is given by its place, put under its name.

A row's handler may leave out some of a function's parameters, or have them in another order. Its
arguments are bound as NumPy would bind them; those that say what NumPy does anyway are left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

_Parameters = Mapping[str, inspect.Parameter]


@lru_cache(maxsize=1024)
def _signature(function: Any) -> inspect.Signature | None:
    """Of a NumPy function; None where it does not say, and of a ufunc."""
    if isinstance(function, np.ufunc):
        return None
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def numpys(function: Any) -> _Parameters | None:
    """The parameters of a NumPy function, in order; None where it does not say."""
    found = _signature(function)
    return None if found is None else found.parameters


@lru_cache(maxsize=1024)
def of_handler(handler: Callable[..., Any]) -> tuple[str, ...]:
    """The names that a handler takes arguments by, its specialiser left out."""
    inlined = getattr(handler, "function", None)  # of a `Defined`
    parameters = inspect.signature(inlined or handler).parameters.values()
    names = tuple(p.name if p.kind is not p.VAR_POSITIONAL else "*" for p in parameters)
    return names if inlined is not None else names[1:]


@lru_cache(maxsize=1024)
def _same(function: Any, handler: Callable[..., Any]) -> int:
    """How many arguments mean to a handler, by place, what they mean to NumPy."""
    theirs, own = list(numpys(function) or ()), of_handler(handler)
    for k, (a, b) in enumerate(zip(theirs, own, strict=False)):
        if a != b and (a in own or b in theirs):
            return k
    return min(len(theirs), len(own))


def placed(
    function: Any, handler: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments as the handler has its parameters."""
    if isinstance(function, np.ufunc):
        if len(args) == function.nin + 1 and args[-1] is None:
            args = args[:-1]
        elif len(args) == function.nin + 1 and "out" not in kwargs:
            args, kwargs = args[:-1], {**kwargs, "out": args[-1]}
    elif len(args) > 1 and "*" not in of_handler(handler):
        theirs = numpys(function)
        count = _same(function, handler) if theirs else len(args)
        if theirs is not None and count < len(args) <= len(theirs):
            names = list(theirs)[count : len(args)]
            more = dict(zip(names, args[count:], strict=True))
            if not any(n in kwargs for n in more):
                args, kwargs = args[:count], {**more, **kwargs}
    if kwargs:
        kwargs = _meant(function, handler, kwargs)
    return args, kwargs


#: Functions that read attributes of an array, which a list does not have.
_OF_ARRAYS_ALONE = (
    *(np.diag_indices_from, np.tril_indices_from, np.triu_indices_from, np.take_along_axis),
    *((np.unstack,) if hasattr(np, "unstack") else ()),
)


def misfit(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why a function of NumPy does not take these arguments, whatever they are of."""
    if function is np.where and len(args) == 2:
        return "NumPy takes both of x and y, or neither"
    if isinstance(function, np.ufunc) and len(args) < function.nin:
        return f"NumPy's function takes {function.nin} operands"
    theirs = _signature(function) if _is_numpys(function) else None
    if theirs is None:
        return None
    try:
        theirs.bind(*args, **kwargs)
    except TypeError as e:
        return f"{e}; NumPy has {function.__name__}{theirs}"
    if function in _OF_ARRAYS_ALONE and any(isinstance(a, list | tuple) for a in args):
        return "NumPy takes an array here, not a list"
    return None


def _is_numpys(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "numpy"


#: What says how NumPy lays out or takes memory: values that change nothing in a program.
_OF_MEMORY: Mapping[str, tuple[Any, ...]] = {
    "order": ("C", "K", "A"),
    "subok": (False, True),
    "casting": ("unsafe", "same_kind"),
}


def _meant(
    function: Any, handler: Callable[..., Any], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Without those that say what NumPy does anyway, where the handler does not take them."""
    known, theirs = of_handler(handler), numpys(function) or {}
    out = {}
    for name, value in kwargs.items():
        if name not in known:
            usual = theirs[name].default if name in theirs else None
            if value is None and name in ("out", "dtype", "order", "like"):
                continue
            has = isinstance(function, np.ufunc) or not theirs or name in theirs
            if has and type(value) in (bool, str) and value in _OF_MEMORY.get(name, ()):
                continue
            if value is usual and value is not None:
                continue
            if name == "where" and value is True:
                continue
        out[name] = value
    return out
