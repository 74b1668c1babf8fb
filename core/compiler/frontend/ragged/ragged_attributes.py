"""Attributes and methods of arrays whose length the data decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ...ragged import Ragged
from ...traced import BOOL, FLOAT, INT
from ..memory import array_changes
from ..numpy import arithmetic
from ..values import Method, RaggedList, describe
from . import plain, ragged_functions, ragged_lists, rank, refused, shape, size

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: Methods that NumPy has a function for.
_FUNCTIONS = frozenset(
    (
        *("sum", "prod", "mean", "var", "std", "max", "min", "any", "all", "argmax", "argmin"),
        *("argsort", "cumsum", "cumprod", "dot", "round", "clip", "ravel", "take", "nonzero"),
        "squeeze",
    )
)
_PROPERTIES: dict[str, Callable[[Any, Ragged], Any]] = {
    "shape": shape,
    "size": size,
    "ndim": lambda s, r: rank(r),
    "dtype": lambda s, r: r.data.dtype.numpy,
    "itemsize": lambda s, r: r.data.dtype.itemsize,
    "T": lambda s, r: ragged_functions.transpose(s, np.transpose, r),
}


def attribute(s: Specialiser, r: Ragged, name: str) -> Any:
    """`r.name`."""
    if name in _PROPERTIES:
        return _PROPERTIES[name](s, r)
    if name in _FUNCTIONS:
        function = getattr(np, name)
        return Method(name, r, lambda s, x, *a, **k: s.call(function, x, *a, **k))
    if name in _METHODS:
        return Method(name, r, _METHODS[name])
    if hasattr(np.ndarray, name):
        raise refused(s, f"`{name}`", r)
    raise s.error("DL104", f"{describe(r)} has no attribute `{name}`")


def _as_of_arrays(name: str) -> Callable[..., Ragged]:
    """A method that gives an array of as many elements, by that of arrays of known length."""

    def run(s: Specialiser, r: Ragged, *args: Any, **kwargs: Any) -> Ragged:
        from ..vocabulary.vocabulary_table import tensor_attribute

        made = s.call(tensor_attribute(s, plain(r), name), *args, **kwargs)
        copied = kwargs.get("copy", args[4] if len(args) > 4 else True)
        kept = name == "astype" and copied is not True
        surely = "order" not in kwargs and len(args) < 2
        return ragged_functions.remade(s, r, made, kept, surely)

    return run


def _fill(s: Specialiser, r: Ragged, value: Any) -> None:
    array_changes.fill(s, r.data, value)


def _tolist(s: Specialiser, r: Ragged) -> RaggedList:
    if rank(r) != 1 or r.data.dtype is DType.U64:
        raise refused(s, "`tolist`", r)
    dtype = r.data.dtype
    kind = FLOAT if dtype.is_float else BOOL if dtype is DType.BOOL else INT
    wide = Ragged(arithmetic.tensor(s, plain(r), _PYTHONS[kind]), r.count)
    return ragged_lists.of_array(s, wide, kind)


#: The types of Python's numbers.
_PYTHONS = {FLOAT: DType.F64, INT: DType.I64, BOOL: DType.BOOL}


def _reshape(s: Specialiser, r: Ragged, *given: Any) -> Any:
    return ragged_functions.reshape(s, np.reshape, r, *given)


def _transpose(s: Specialiser, r: Ragged, *axes: Any) -> Any:
    given = axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes
    return ragged_functions.transpose(s, np.transpose, r, given or None)


_METHODS: dict[str, Callable[..., Any]] = {
    "astype": _as_of_arrays("astype"),
    "fill": _fill,
    "copy": _as_of_arrays("copy"),
    "tolist": _tolist,
    "flatten": lambda s, r, order="C": ragged_functions.ravel(s, np.copy, r, order),
    "reshape": _reshape,
    "transpose": _transpose,
    "sort": ragged_functions.sort_in_place,
}
