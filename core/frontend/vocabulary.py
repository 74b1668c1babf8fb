"""The functions that the compiler knows, one row each, found by identity.

A row says what a function means on abstract values. With `fold`, a call whose arguments are all
known is made by Python itself while compiling, so `np.sqrt(2.0)` is the very number that NumPy
gives. Functions that make arrays of a given size do not fold: a million zeros are one operation,
not a constant.

NumPy's functions are in `vocabulary_numpy`, Python's in `vocabulary_python`, Delian's own in
`vocabulary_delian`. Here is what a row is, how one is found, and what an array's attributes mean.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ProgramError, TypeRuleError
from . import arithmetic, elementwise, indexing, linear, operators, reductions, shapes, taking
from .definitions import arrays, orders
from .values import Method, Tensor, describe, is_static

if TYPE_CHECKING:
    from .specialise import Specialiser

Handler = Callable[..., Any]


class Row:
    """What one function means."""

    __slots__ = ("fold", "function", "handler", "name")

    def __init__(self, function: Any, name: str, handler: Handler, fold: bool) -> None:
        self.function = function
        self.name = name
        self.handler = handler
        self.fold = fold

    def __call__(
        self, s: Specialiser, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        from .calls import run_handler

        if kwargs and (words := refused_keyword(kwargs)):
            raise s.error("DL105", f"`{self.name}`: {words[0]}", words[1])
        if self.fold and is_static((tuple(args), dict(kwargs))):
            return operators.python(s, lambda: f(*args, **kwargs), f"`{self.name}`")
        return run_handler(s, self.name, self.handler, args, kwargs)


class Defined:
    """The handler of a function that is written in NumPy (`definitions`): it is inlined.

    An error within it is one of the user's call.
    """

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, s: Specialiser, *args: Any, **kwargs: Any) -> Any:
        try:
            return s.call(self.function, *args, **kwargs)
        except TypeRuleError as e:
            raise _outside(s.error("DL120", e.message, e.hint)) from e
        except ProgramError as e:
            raise _outside(e) from e.__cause__


def _outside(e: ProgramError) -> ProgramError:
    """The error without the spans within definitions."""
    kept = [loc for loc in e.locs if not loc.file.startswith(_DEFINITIONS)]
    return type(e)(e.code, e.message, kept or e.locs, e.hint)


_DEFINITIONS = str(Path(__file__).parent / "definitions")

#: Keywords that NumPy's functions have and a program without changes of memory cannot.
_REFUSED = {
    "out": ("`out` would change an array", "take the result: y = np.add(a, b)"),
    "where": (
        "`where` leaves elements unset",
        "choose from the whole result: np.where(mask, np.add(a, b), other)",
    ),
}


def refused_keyword(kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with a call that has one of them, and a hint."""
    for name in kwargs:
        if name in _REFUSED and kwargs[name] is not None:
            return _REFUSED[name]
    return None


# Attributes of tensors


def _item(s: Specialiser, x: Tensor) -> Tensor:
    return Tensor(indexing.reshape(s, x.value, ()), True)


#: ndarray's methods.
METHODS: dict[str, Handler] = {
    "astype": shapes.astype,
    "view": shapes.view,
    "reshape": shapes.reshape,
    "ravel": shapes.ravel,
    "flatten": shapes.ravel,
    "transpose": shapes.transpose,
    "swapaxes": shapes.swapaxes,
    "squeeze": shapes.squeeze,
    "repeat": shapes.repeat,
    "take": taking.take,
    "copy": shapes.copy,
    "sum": reductions.sum_,
    "prod": reductions.prod,
    "mean": reductions.mean,
    "var": reductions.var,
    "std": reductions.std,
    "max": reductions.max_,
    "min": reductions.min_,
    "any": reductions.any_,
    "all": reductions.all_,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "argsort": reductions.argsort,
    "cumsum": reductions.cumsum,
    "cumprod": reductions.cumprod,
    "argpartition": Defined(orders.argpartition),
    "searchsorted": Defined(orders.searchsorted),
    "diagonal": Defined(arrays.diagonal),
    "trace": Defined(arrays.trace),
    "conj": arithmetic.positive,
    "conjugate": arithmetic.positive,
    "dot": linear.dot,
    "clip": elementwise.clip,
    "round": elementwise.round_,
    "item": _item,
}

PROPERTIES: dict[str, Callable[[Specialiser, Tensor], Any]] = {
    "shape": lambda s, x: x.shape,
    "ndim": lambda s, x: len(x.shape),
    "size": lambda s, x: x.type.size,
    "dtype": lambda s, x: x.dtype.numpy,
    "itemsize": lambda s, x: x.dtype.itemsize,
    "nbytes": lambda s, x: x.type.nbytes,
    "T": lambda s, x: shapes.transpose(s, x),
    "mT": lambda s, x: shapes.swapaxes(s, x, -1, -2),
}

#: Methods that an ndarray has and a compiled program cannot: name -> what to do instead.
_INSTEAD = {
    "sort": "x.sort() changes x; use np.sort(x)",
    "fill": "an array cannot be changed; use np.full_like(x, value)",
    "tolist": "the numbers are not known while compiling; index the array",
    "nonzero": "its shape depends on the data; weigh with a mask, or use np.argsort",
    "partition": "x.partition() changes x; use np.partition(x, k)",
    "put": "an array cannot be changed; use np.where or dl.ops.dynamic_update",
    "resize": "an array cannot be changed; use np.reshape or np.pad",
}


def tensor_attribute(s: Specialiser, x: Tensor, name: str) -> Any:
    found = PROPERTIES.get(name)
    if found is not None:
        return found(s, x)
    handler = METHODS.get(name)
    if handler is not None:
        return Method(name, x, handler)
    near = difflib.get_close_matches(name, [*METHODS, *PROPERTIES], 1)
    text = _INSTEAD.get(name) or (f"did you mean `{near[0]}`?" if near else "")
    raise s.error("DL104", f"{describe(x)} has no attribute `{name}` in a compiled program", text)


# Finding rows

_TABLE: dict[int, Row] = {}
#: NumPy functions whose absence needs a word: name -> hint.
_NUMPY_HINTS = {
    **dict.fromkeys(
        ("nonzero", "argwhere", "flatnonzero"),
        "its shape depends on the data; weigh with a mask instead",
    ),
    **dict.fromkeys(
        ("place", "put", "putmask", "copyto"),
        "an array cannot be changed; use np.where(mask, new, old)",
    ),
    **dict.fromkeys(
        ("unique", "unique_values", "union1d", "intersect1d", "setdiff1d", "setxor1d"),
        "its shape depends on the data; use np.sort and compare neighbours",
    ),
    **dict.fromkeys(
        ("svd", "eig", "eigh", "eigvals", "eigvalsh", "qr", "pinv", "lstsq", "matrix_rank"),
        "solve, inv, det, slogdet and cholesky are there; factor outside the compiled function",
    ),
    "vectorize": "use dl.vmap, or write it on whole arrays",
    "put_along_axis": "an array cannot be changed; use np.where",
    "fill_diagonal": "an array cannot be changed; use np.where(np.eye(n, dtype=bool), value, x)",
    "erf": "use dl.ops.erf",
}


#: Methods of ufuncs without a row: name -> hint.
_UFUNC_HINTS = {
    "at": "an array cannot be changed; np.bincount(places, values, minlength=n) adds up by place",
    "reduceat": "reduce the parts that np.split gives",
}


def _table() -> dict[int, Row]:
    if not _TABLE:
        from . import vocabulary_delian, vocabulary_numpy, vocabulary_python

        modules = (vocabulary_numpy, vocabulary_python, vocabulary_delian)
        for row in (row for module in modules for row in module.rows()):
            _TABLE[id(row.function)] = row
    return _TABLE


def find(f: Any) -> Row | None:
    """The row of a function, if it has one."""
    if type(f) is BuiltinFunctionType and isinstance(f.__self__, np.ufunc):
        from . import vocabulary_numpy

        return vocabulary_numpy.ufunc_method(f.__self__, f.__name__)
    row = (_TABLE or _table()).get(id(f))
    return row if row is not None and row.function is f else None


def names() -> list[str]:
    """Every function's name, sorted."""
    return sorted({row.name for row in _table().values()})


def hint(f: Any) -> str:
    """What to use instead of a function without a row."""
    module = getattr(f, "__module__", None) or type(f).__module__ or ""
    name = getattr(f, "__name__", type(f).__name__)
    owner = getattr(f, "__self__", None)
    if module.startswith("numpy.random") or type(owner).__module__.startswith("numpy.random"):
        return "use delian.random: uniform(key, shape), normal(key, shape), permutation(key, ...)"
    if isinstance(owner, np.ufunc):
        return _UFUNC_HINTS.get(name, f"write it with np.{owner.__name__} and a loop or reduction")
    if module.split(".")[0] == "math":
        return f"math works on known numbers alone; use np.{name}"
    if module.split(".")[0] == "numpy" or isinstance(f, np.ufunc):
        if name in _NUMPY_HINTS:
            return _NUMPY_HINTS[name]
        known = [n.removeprefix("np.") for n in names() if n.startswith("np.")]
        near = difflib.get_close_matches(name, known, 1)
        if near:
            return f"the nearest that it knows is `np.{near[0]}`"
        return "write it with the functions that it knows, or call it outside the compiled function"
    if module == "builtins" and name in ("print", "breakpoint", "input"):
        return "take it out, or debug with DELIAN_DEBUG=1: then the function is plain Python"
    if module == "builtins":
        near = difflib.get_close_matches(name, names(), 1)
        return f"the nearest that it knows is `{near[0]}`" if near else ""
    return "it has no Python source; write it with NumPy's functions, or call it outside"
