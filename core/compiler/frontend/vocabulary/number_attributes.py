"""Attributes of numbers that are no functions of NumPy: Python's own, and operators as methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import operators
from ..values import Method, Tensor

if TYPE_CHECKING:
    from ..specialise import Specialiser

_SIGNS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
#: `x.__add__(y)` is `x + y` where x and y are of one class, or x is NumPy's.
_BINARY = {f"__{f.__name__.strip('_')}__": op for op, f in operators.BINARY.items()}
_COMPARE = {
    f"__{f.__name__}__": op for op, f in operators.COMPARE.items() if hasattr(f, "__name__")
}


def of_python(s: Specialiser, x: Tensor, name: str) -> Any:
    """An attribute of a number of Python's own."""
    if name in ("real", "numerator") and all(hasattr(c, name) for c in x.classes):
        return operators.unary(s, "+", x)
    if name == "conjugate":
        return Method(name, x, lambda s, x: operators.unary(s, "+", x))
    if name == "imag" and len(x.classes) == 1:
        return 0.0 if x.dtype.is_float else 0
    if name == "is_integer" and all(hasattr(c, name) for c in x.classes):
        return Method(
            name, x, lambda s, x: operators.compare(s, "==", operators.binary(s, "%", x, 1), 0)
        )
    if name == "__class__":
        return s.call(type, x)
    if (method := operator(x, name)) is not None:
        return method
    said = " or ".join(c.__name__ for c in x.classes)
    known = any(hasattr(c, name) for c in x.classes)
    text = f"a Python {said} has no attribute `{name}`" + (
        " in a compiled program" if known else ""
    )
    hint = "np.asarray(x) makes an array of it" if hasattr(np.ndarray, name) else ""
    raise s.error("DL104", text, hint)


def operator(x: Tensor, name: str) -> Method | None:
    """`x.__add__` and its kind."""
    if name not in _BINARY and name not in _COMPARE:
        return None

    def run(s: Specialiser, x: Tensor, other: Any) -> Any:
        if x.weak and (type(other) is not Tensor or other.kind != x.kind):
            known = type(other) in x.classes and len(x.classes) == 1
            if not known:
                text = f"`{name}` of a number of Python's gives NotImplemented for other classes"
                raise s.error("DL119", text, "write it as an operator: a + b")
        if name in _BINARY:
            return operators.binary(s, _BINARY[name], x, other)
        return operators.compare(s, _COMPARE[name], x, other)

    return Method(name, x, run)


__all__ = ["of_python", "operator"]
