"""Attributes and methods of complex numbers and arrays."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...complex_numbers import Complex
from ...ragged import Ragged
from ...traced import ARRAY, SCALAR
from .. import complexes, operators
from ..memory import array_changes, stores
from ..numpy import arithmetic
from ..values import Method, Tensor, describe, is_static
from . import lift, new, parts

if TYPE_CHECKING:
    from ..specialise import Specialiser

Handler = Callable[..., Any]


def has_type(x: Any, dtype: Any) -> bool:
    """Whether it is a complex number of the program, of this complex type."""
    return type(x) is Complex and complexes.numpy_type(x) == np.dtype(dtype)


def astype(
    s: Specialiser,
    x: Any,
    dtype: Any,
    order: Any = "K",
    casting: Any = "unsafe",
    subok: Any = True,
    copy: Any = True,
) -> Any:
    """`x.astype(dtype)`, where x or the type is complex."""
    if order not in ("K", "A", "C") or not is_static((subok, copy)):
        raise s.error("DL105", "`astype` of complex numbers takes no such `order` or `copy`")
    if not complexes.is_type(dtype):
        text = f"a complex array does not become one of {describe(dtype)}"
        raise s.error("DL116", f"{text}: NumPy drops the imaginary part", "take z.real")
    kind = SCALAR if complexes.kind(x) != ARRAY else ARRAY
    have = complexes.numpy_type(x) if type(x) is Complex else arithmetic.dtype_of(s, x)[0].numpy
    allowed = operators.python(s, lambda: np.can_cast(have, dtype, casting), "`astype`")
    if not allowed:
        text = f"NumPy casts {describe(x)} to no {np.dtype(dtype)} by casting={casting!r}"
        raise s.error("DL116", text, "leave `casting` out")
    if not copy and kind == ARRAY and has_type(x, dtype):
        if order == "C":
            raise s.error("DL105", "`astype` by copy=False copies where the order is another")
        return x
    z = lift(s, x, complexes.part_type(s, dtype))
    return new(s, parts([z]), kind)


#: Methods that run on either part as they are.
_PART_METHODS = frozenset(
    (*("reshape", "ravel", "flatten", "transpose", "swapaxes", "squeeze", "copy", "item"),)
)
#: Methods that NumPy has a function for.
_FUNCTIONS: dict[str, Any] = {
    "conj": np.conjugate,
    **{
        name: getattr(np, name)
        for name in (
            *("conjugate", "prod", "cumprod", "var", "std", "any", "all", "dot", "max", "min"),
            *("argmax", "argmin", "argsort", "repeat", "take", "diagonal", "trace", "sum", "mean"),
            *("cumsum", "round"),
        )
    },
}
_PROPERTIES: dict[str, Callable[[Complex], Any]] = {
    "shape": lambda z: z.re.shape,
    "ndim": lambda z: len(z.re.shape),
    "size": lambda z: z.re.type.size,
    "dtype": complexes.numpy_type,
    "itemsize": lambda z: 2 * z.re.dtype.itemsize,
    "nbytes": lambda z: 2 * z.re.type.nbytes,
}


def attribute(s: Specialiser, z: Complex, name: str) -> Any:
    """`z.name`."""
    from ..vocabulary.vocabulary_table import tensor_attribute

    if name in ("real", "imag"):
        return z.re if name == "real" else z.im
    if type(z.re) is Ragged:  # What a mask picked.
        raise _no_attribute(s, z, name, [])
    if z.re.weak:
        if name == "conjugate":
            return Method(name, z, _conjugate)
        raise _no_attribute(s, z, name, [])
    if name == "strides":
        return tuple(2 * n for n in tensor_attribute(s, z.re, name))
    if name in _PROPERTIES:
        return _PROPERTIES[name](z)
    if name in ("T", "mT"):
        return Complex(tensor_attribute(s, z.re, name), tensor_attribute(s, z.im, name))
    if name in _PART_METHODS:
        return Method(name, z, partial(_part_method, name))
    if name in _FUNCTIONS:
        return Method(name, z, lambda s, x, *a, **k: s.call(_FUNCTIONS[name], x, *a, **k))
    if name == "astype":
        return Method(name, z, astype)
    if name in ("fill", "sort"):
        return Method(name, z, _fill if name == "fill" else _sort)
    raise _no_attribute(s, z, name, [*_PART_METHODS, *_FUNCTIONS, *_PROPERTIES])


def _no_attribute(s: Specialiser, z: Complex, name: str, known: Sequence[str]) -> Exception:
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean `{near[0]}`?" if near else "take z.real and z.imag"
    return s.error("DL104", f"{describe(z)} has no attribute `{name}` in a compiled program", hint)


def _conjugate(s: Specialiser, z: Complex) -> Any:
    im = arithmetic.negative(s, z.im)
    return Complex(z.re, Tensor(im.value, kind=z.im.kind))


def _part_method(name: str, s: Specialiser, z: Complex, *args: Any, **kwargs: Any) -> Any:
    from ..vocabulary.vocabulary_table import tensor_attribute

    made = [s.call(tensor_attribute(s, v, name), *args, **kwargs) for v in (z.re, z.im)]
    return Complex(made[0], made[1])


def _fill(s: Specialiser, z: Complex, value: Any) -> None:
    new_value = lift(s, value, z.re.dtype)
    array_changes.fill(s, z.re, new_value.re)
    array_changes.fill(s, z.im, new_value.im)


def _sort(s: Specialiser, z: Complex, axis: Any = -1) -> None:
    stores.changeable(s, z.re)
    complexes.write(s, z, s.call(np.sort, complexes.plain(z), axis), "`sort`")


def method_of_real(s: Specialiser, name: str, x: Tensor, args: Sequence[Any], kwargs: Any) -> Any:
    """A method of a real array that was given a complex number or type."""
    if name == "astype":
        from ..calls import run_handler

        return run_handler(s, name, astype, (x, *args), kwargs)
    if name in ("dot", "sum", "mean", "prod", "cumsum", "cumprod", "clip"):
        z = astype(s, x, kwargs["dtype"]) if "dtype" in kwargs else x
        return s.call(
            getattr(np, name), z, *args, **{k: v for k, v in kwargs.items() if k != "dtype"}
        )
    raise s.error("DL116", f"`{name}` of {describe(x)} does not take complex numbers")
