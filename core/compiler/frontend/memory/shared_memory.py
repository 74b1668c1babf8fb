"""Whether the result of a function shares memory with its arguments, as NumPy has it (`stores`).

Three kinds: a new array (the rule); a view, as the handler made it; and what may be either, which
is not to be changed, nor read once an argument was changed. The tables name the two exceptions; a
test holds them against NumPy itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...traced import ARRAY
from ..values import Tensor
from . import stores

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: Rows whose handlers give the views that NumPy gives.
VIEWS = frozenset(
    f"np.{name}"
    for name in (
        *(
            "asanyarray",
            "asarray",
            "array_split",
            "atleast_1d",
            "atleast_2d",
            "atleast_3d",
            "dsplit",
        ),
        *("expand_dims", "flip", "fliplr", "flipud", "fromfunction", "hsplit"),
        *("linalg.matrix_transpose", "matrix_transpose", "moveaxis", "ravel", "reshape"),
        *("rollaxis", "rot90", "split", "squeeze", "swapaxes", "transpose", "unstack", "vsplit"),
        *("lib.stride_tricks.as_strided", "lib.stride_tricks.sliding_window_view"),
    )
)

#: Rows whose result may share memory with an argument.
UNKNOWN = frozenset(
    f"np.{name}"
    for name in (
        *("ascontiguousarray", "bool", "bfloat16", "broadcast_arrays", "broadcast_to", "diag"),
        *("diagonal", "diff", "float16", "float32", "float64", "histogram", "histogram_bin_edges"),
        *(
            "imag",
            "int16",
            "int32",
            "int64",
            "int8",
            "ix_",
            "linalg.diagonal",
            "linalg.matrix_power",
        ),
        *("linalg.multi_dot", "matrix_power", "meshgrid", "polyder", "polyint", "real", "resize"),
        *("uint16", "uint32", "uint64", "uint8", "unwrap"),
    )
) | {"ops.dynamic_slice", "ops.stop_gradient"}

#: Methods of arrays, likewise; the others give new arrays.
VIEW_METHODS = frozenset(("reshape", "ravel", "squeeze", "swapaxes", "transpose"))
UNKNOWN_METHODS = frozenset(("conj", "conjugate", "diagonal", "view"))

#: Functions that make an array, of whatever rank, whose elements lie in row-major order.
_MAKERS = frozenset(
    f"np.{name}"
    for name in ("zeros", "ones", "empty", "full", "arange", "linspace", "eye", "identity", "tri")
)
#: Of row-major arguments they make a row-major result.
_KEEPING = _MAKERS | {
    f"np.{name}"
    for name in (
        *("array", "copy", "zeros_like", "ones_like", "empty_like", "full_like"),
        *("where", "select", "piecewise", "tensordot"),
        *("matmul", "dot", "clip", "tril", "triu", "outer"),
    )
}


def settled(
    s: Specialiser, name: str, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The result of a row of the vocabulary, with its memory."""
    if not name.startswith(("np.", "ops.")):
        return result
    ordered = name == "np.ascontiguousarray"
    if name in ("np.asarray", "np.asanyarray"):
        if kwargs.get("copy"):
            return _each(s, result, args, False, False)
        ordered = (args[2] if len(args) > 2 else kwargs.get("order")) == "C"
    if ordered and (made := _contiguous(s, result, args[0])) is not None:
        return made
    if name in VIEWS and not ordered:
        return _of_numbers(s, result, args)
    copy = kwargs.get("copy", True)
    unknown = name in UNKNOWN or copy is not True or ordered
    if name == "np.einsum" and len(args) < 3:
        unknown = True
    if name == "np.diag" and args and type(args[0]) is Tensor and len(args[0].shape) == 1:
        unknown = False
    row_major = name in _MAKERS or (name in _KEEPING and all_row_major(args))
    return _each(s, result, args, unknown, row_major)


def _contiguous(s: Specialiser, result: Any, x: Any) -> Tensor | None:
    """The array itself or a copy, where it is known how the array lies in memory."""
    if type(x) is not Tensor or type(result) is not Tensor or x.value.type != result.value.type:
        return None
    memory = stores.memory_of(s, x)
    if memory is None or memory.guard is not None:
        return None
    if not memory.row_major and len(memory.value.shape) > 1:
        return None
    if stores.layout_of(memory, x.lenses).flags.c_contiguous:
        return stores.alias(s, x)
    return stores.fresh(s, result.value, row_major=True)


def _of_numbers(s: Specialiser, result: Any, args: Sequence[Any]) -> Any:
    """A view, or the new array that NumPy makes of numbers alone."""
    if type(result) is not Tensor or result.kind != ARRAY or stores.is_array(result):
        return result
    if any(x.kind & ARRAY for x in tensors(args)):
        return result
    return stores.fresh(s, result.value, row_major=True)


def settled_method(
    s: Specialiser, name: str, result: Any, owner: Any, args: Sequence[Any], kwargs: Any
) -> Any:
    """The result of an array's method, with its memory."""
    if type(owner) is not Tensor or name in VIEW_METHODS:
        return result
    unknown = name in UNKNOWN_METHODS or kwargs.get("copy", True) is not True
    row_major = name in ("copy", "flatten") or (name == "astype" and all_row_major((owner,)))
    if name == "astype" and len(args) > 1:
        unknown = True
    return _each(s, result, (owner, *args), unknown, row_major)


def _each(s: Specialiser, result: Any, args: Sequence[Any], unknown: bool, row_major: bool) -> Any:
    kind = type(result)
    if kind is Tensor:
        if result.kind != ARRAY:
            return stores.plain(result) if stores.is_array(result) else result
        if unknown:
            return stores.guarded(s, result.value, tensors(args))
        return stores.fresh(s, result.value, row_major)
    if kind is list:
        result[:] = [_each(s, r, args, unknown, row_major) for r in result]
        return result
    if kind is tuple:
        return tuple(_each(s, r, args, unknown, row_major) for r in result)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return kind(*(_each(s, r, args, unknown, row_major) for r in result))
    return result


def tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments and the sequences in them."""
    for value in values:
        if type(value) is Tensor:
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors(value)
        elif isinstance(value, dict):
            yield from tensors(value.values())


def all_row_major(values: Sequence[Any]) -> bool:
    """Whether the elements of all arrays among some values are known to lie in row-major order."""
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim > 1 and not value.flags.c_contiguous:
            return False
        if type(value) is Tensor and len(value.shape) > 1:
            memory = value.memory
            if value.own >= 0 and (memory is None or not memory.row_major or value.lenses):
                return False
    return True


def operator_result(s: Specialiser, result: Any, *operands: Any) -> Any:
    """The result of an operator: a new array, or a number."""
    if type(result) is not Tensor:
        return result
    if result.kind != ARRAY:
        return stores.plain(result) if stores.is_array(result) else result
    return stores.fresh(s, result.value, all_row_major(operands))


def is_view(name: str) -> bool:
    """Whether the result of a row may share memory with an argument."""
    return name in VIEWS or name in UNKNOWN or name == "np.einsum"
