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
def numpys(function: Any) -> _Parameters | None:
    """The parameters of a NumPy function, in order; None where it does not say."""
    if isinstance(function, np.ufunc):
        return None
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


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


def unknown(function: Any, kwargs: Mapping[str, Any]) -> str | None:
    """A name that a function of NumPy has no parameter of."""
    theirs = numpys(function) if _is_numpys(function) else None
    if not theirs or any(p.kind is p.VAR_KEYWORD for p in theirs.values()):
        return None
    return next((name for name in kwargs if name not in theirs), None)


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
