"""Operators that a user's class defines, with Python's fall-backs.

The reflected method comes second, where the first gives `NotImplemented` or is not there; it comes
first where its class is derived from the other's, and for an operator has a method of its own.
Operands of one class have no reflected operator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ..traced import ARRAY, SCALAR
from . import operators
from .definitions.np_generators import STANDS_FOR
from .values import Frame, Tensor, describe, inherits, is_number, kind_of

if TYPE_CHECKING:
    from .specialise import Specialiser

_COMPARISONS = {
    "==": ("__eq__", "__eq__"),
    "!=": ("__ne__", "__ne__"),
    "<": ("__lt__", "__gt__"),
    ">": ("__gt__", "__lt__"),
    "<=": ("__le__", "__ge__"),
    ">=": ("__ge__", "__le__"),
}


def find(owner: Any, name: str) -> FunctionType | None:
    """A method that a user's class defines in Python."""
    kind = type(owner)
    ours = kind.__module__.startswith(f"{__package__}.") and not hasattr(kind, STANDS_FOR)
    if ours or kind.__module__ in ("builtins", "numpy"):
        return None  # Python's, or a value of the compiler's, as a number is
    found = getattr(kind, name, None)
    return found if isinstance(found, FunctionType) else None


def binary(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """`a op b` by a method of either; NotImplemented where neither has one for the other."""
    name = operators.BINARY[op].__name__.rstrip("_")
    first, second = f"__{name}__", f"__r{name}__"
    pairs = list(_order(a, first, b, second, find(a, second)))
    for owner, method, other in pairs[:1] if type(a) is type(b) else pairs:
        inherited = owner is a and find(a, second) is not None and find(a, first) is None
        if inherited and hasattr(tuple, first) and isinstance(a, tuple):
            return _of_tuple(s, op, first, a, b)
        made = _call(s, owner, method, other)
        if made is not NotImplemented:
            return made
    return NotImplemented


def _of_tuple(s: Specialiser, op: str, method: str, a: tuple[Any, ...], b: Any) -> Any:
    """The operator of its own that a named tuple has: it comes before a method of the other's."""
    if op == "*" and type(b) is Tensor:
        raise s.needs_static(b, f"how often `*` repeats {describe(a)}")
    if op == "+" and not isinstance(b, tuple):
        raise s.error("DL119", f"`+` of a tuple does not take {describe(b)}")
    return operators.python(s, lambda: getattr(tuple, method)(a, b), f"`{op}`")


def in_place(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """`a op= b` by a method for that; NotImplemented where there is none."""
    return _call(s, a, f"__i{operators.BINARY[op].__name__.rstrip('_')}__", b)


def compare(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """A comparison by a method of either; NotImplemented where neither has one for the other."""
    first, second = _COMPARISONS[op]
    for owner, method, other in _order(a, first, b, second):
        found = find(owner, method)
        tuples = isinstance(a, tuple) and isinstance(b, tuple)
        if found is None and tuples and not inherits(type(owner), method):
            return NotImplemented  # A tuple has a comparison of its own.
        if found is not None and _is_generated(found):
            made = _of_fields(s, op if owner is a else _swapped(op), owner, other)
        else:
            if owner is b and found is not None:
                _no_reflection(s, owner, method, other, ARRAY)
            made = _call(s, owner, method, other)
        inverted = method == "__ne__" and found is None and not isinstance(owner, tuple)
        if made is NotImplemented and inverted:
            made = compare(s, "==", a, b) if find(owner, "__eq__") else NotImplemented
            if made is not NotImplemented:
                made = operators.unary(s, "not", made)
        if made is not NotImplemented:
            return made
    return NotImplemented


def _swapped(op: str) -> str:
    return {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(op, op)


def _order(
    a: Any, first: str, b: Any, second: str, overridden: Any = None
) -> Iterator[tuple[Any, str, Any]]:
    """The methods to ask: the reflected one first, if a derived class has one of its own."""
    pairs = [(a, first, b), (b, second, a)]
    derived = type(b) is not type(a) and issubclass(type(b), type(a))
    if derived and find(b, second) not in (None, overridden):
        pairs.reverse()
    yield from pairs


def _call(s: Specialiser, owner: Any, method: str, other: Any) -> Any:
    found = find(owner, method)
    if found is None:
        return NotImplemented
    if method.startswith("__r"):
        _no_reflection(s, owner, method, other, SCALAR | ARRAY)
    return s.call(MethodType(found, owner), other)


def _no_reflection(s: Specialiser, owner: Any, method: str, other: Any, kinds: int) -> None:
    """Refuses the method that follows a number or array of NumPy of these kinds, on the left."""
    kind = kind_of(other) if is_number(other) else operators.kind_of_tensor(other)
    first = 0.0 if kind & ARRAY else -1_000_000.0  # NumPy's own priority.
    defers = getattr(owner, "__array_priority__", first) > first
    defers |= getattr(owner, "__array_ufunc__", 0) is None
    if kind & kinds and not defers:
        of = describe(owner)
        text = f"NumPy gives `{method}` of {of} one element after the other, as objects"
        hint = f"swap the operands, or say `__array_ufunc__ = None` in the class of {of}"
        raise s.error("DL119", text, hint)


def _is_generated(method: FunctionType) -> bool:
    """Whether `dataclass` made it: it has no source."""
    return method.__code__.co_filename == "<string>"


def _of_fields(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """Dataclasses of one class are compared as tuples of their fields."""
    if type(a) is not type(b):
        return NotImplemented
    names = [f.name for f in dataclasses.fields(a) if f.compare]
    one, other = (tuple(getattr(v, n) for n in names) for v in (a, b))
    return operators.compare(s, op, one, other)


def super_of(s: Specialiser, frame: Frame) -> Any:
    """`super()` in a method."""
    at: Frame | None = frame
    while at is not None and at.parent is not None and "__class__" not in at.parent.vars:
        at = at.parent
    assert at is not None
    owner = next(iter(at.vars.values()), None)
    if at.parent is not None:
        cls = at.parent.vars["__class__"]
    elif (cell := at.cells.get("__class__")) is not None:
        cls = s.cell(cell, "__class__")
    else:
        cls = None
    if cls is None or owner is None:
        raise s.error("DL102", "super() can only be called in a method")
    return operators.python(s, lambda: super(cls, owner), "super()")


def locals_of(s: Specialiser, frame: Frame) -> dict[str, Any]:
    """`locals()`: a new dict of the names that a function has assigned, in Python's order.

    Raises:
        ProgramError: DL102, it is called in a function or a comprehension within another function.
    """
    activation = s.calls[-1]
    code = activation.key
    if activation.frame is not frame or not isinstance(code, CodeType) or code.co_freevars:
        text = "`locals()` in a function or a comprehension within another function"
        raise s.error("DL102", text, "make a dict of the names that are needed")
    names = dict.fromkeys((*code.co_varnames, *code.co_cellvars))
    found: dict[str, Any] = s.own({n: s.lookup(frame, n) for n in names if n in frame.vars})
    return found
