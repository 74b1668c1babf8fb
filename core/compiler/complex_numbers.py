"""Complex numbers and arrays as pairs of real ones.

The IR has no complex element type. A complex number of a program is two real values, and this is
the node that holds them: a tree of two leaves. Everything behind the front end (IR, derivatives,
back ends, bundles, the wire) sees real arrays alone, so all of it works with complex numbers as it
stands, and a derivative of any order is that of the real program. The price is that a program with
complex numbers has more operations, which fusion brings together again; a product of complex
matrices is four products of real ones.

The alternative, element types c64 and c128 of the IR, would need a rule in each primitive's row, in
each emitter, in the verifier, the wire format and the devices, for the same results.

`frontend.complexes` says what the operators and functions of NumPy mean on pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Complex:
    """A complex number or array: two parts of one shape and float type.

    The parts are values of the program, arrays or types; both are of the same kind in Python: a
    Python complex has two Python floats, a complex NumPy scalar two NumPy scalars.
    """

    re: Any
    """The real part."""
    im: Any
    """The imaginary part."""

    def __str__(self) -> str:
        type_ = getattr(self.re, "type", self.re)
        dtype = getattr(type_, "dtype", None)
        if dtype is None:
            return "a complex number"
        return f"c{16 * dtype.itemsize}[{','.join(map(str, type_.shape))}]"

    @classmethod
    def tree_build(cls, parts: Iterable[Any]) -> Any:
        """The node of these parts; of numbers and arrays the complex number or array itself."""
        re, im = parts
        known = isinstance(re, _REAL) and isinstance(im, _REAL)
        return joined(re, im) if known else cls(re, im)


_REAL = (float, np.floating, np.ndarray)


def joined(re: Any, im: Any) -> Any:
    """A complex number or array of its parts: of Python's floats a Python complex."""
    if type(re) is float and type(im) is float:
        return complex(re, im)
    kind = np.result_type(re, np.complex64)
    out = np.empty(np.shape(re), kind)
    out.real, out.imag = re, im
    return out if isinstance(re, np.ndarray) else out[()]


def is_complex(value: Any) -> bool:
    """Whether it is a complex number or array of Python's or NumPy's."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind == "c")
    return isinstance(value, complex | np.complexfloating)


def opened(value: Any) -> Complex:
    """The parts of a complex number or array; those of an array are views."""
    return Complex(value.real, value.imag)
