"""Operators on any abstract values: on tensors they are the IR's, on static values Python's own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import tree
from ..ir import Value
from . import arithmetic
from .values import Tensor, describe, is_static

if TYPE_CHECKING:
    from .specialise import Specialiser

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
}


def python(s: Specialiser, compute: Callable[[], Any], what: str) -> Any:
    """Something that Python itself computes on known values; its errors become the user's."""
    try:
        with np.errstate(all="ignore"):
            return compute()
    except (ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as e:
        text = f"{type(e).__name__}: {e}" if not isinstance(e, KeyError) else f"no key {e}"
        raise s.error("DL113", f"{what} fails: {text}") from e


def binary(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    if type(a) is Tensor or type(b) is Tensor:
        if arithmetic.is_operand(a) and arithmetic.is_operand(b):
            if op == "@":
                from . import linear

                return linear.matmul(s, a, b)
            return arithmetic.BINARY[op](s, a, b)
        return _tensor_and_other(s, op, a, b)
    function = BINARY[op]
    name = function.__name__.rstrip("_")
    for owner, method, other in ((a, f"__{name}__", b), (b, f"__r{name}__", a)):
        found = _user_method(owner, method)
        if found is not None:
            return s.call(MethodType(found, owner), other)
    if not (isinstance(a, list | tuple | str) or is_static((a, b))):
        raise _no_operator(s, op, a, b)
    result = python(s, lambda: function(a, b), f"`{op}`")
    return s.own(result) if isinstance(result, list) else result


def _tensor_and_other(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """A tensor beside something that is not a number: a nested list, or a user's class."""
    name = BINARY[op].__name__.rstrip("_")
    for owner, method, other in ((a, f"__{name}__", b), (b, f"__r{name}__", a)):
        found = _user_method(owner, method)
        if found is not None:
            return s.call(MethodType(found, owner), other)
    x, y = (_listed(s, v) for v in (a, b))
    if arithmetic.is_operand(x) and arithmetic.is_operand(y):
        return binary(s, op, x, y)
    raise _no_operator(s, op, a, b)


def _no_operator(s: Specialiser, op: str, a: Any, b: Any) -> Exception:
    is_tree = any(tree.children(v) is not None for v in (a, b))
    hint = "for trees of arrays use tree.map" if is_tree else ""
    return s.error("DL119", f"`{op}` does not take {describe(a)} and {describe(b)}", hint)


def _listed(s: Specialiser, value: Any) -> Any:
    """NumPy takes a list beside an array for an array."""
    if type(value) in (list, tuple) and value:
        return s.array(value)
    return value


def _user_method(owner: Any, name: str) -> FunctionType | None:
    """A method that a user's class defines in Python."""
    kind = type(owner)
    if kind is Tensor or kind.__module__ in ("builtins", "numpy"):
        return None
    found = getattr(kind, name, None)
    return found if isinstance(found, FunctionType) else None


def unary(s: Specialiser, op: str, a: Any) -> Any:
    if op == "not":
        test = condition(s, a)
        return not test if isinstance(test, bool) else Tensor(s.emit("not", test))
    if type(a) is Tensor:
        return arithmetic.UNARY[op](s, a)
    name = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}[op]
    found = _user_method(a, name)
    if found is not None:
        return s.call(MethodType(found, a))
    return python(s, lambda: UNARY[op](a), f"`{op}`")


def compare(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    if op in ("is", "is not"):
        if type(a) is Tensor and type(b) is Tensor:
            same = a.value is b.value
        else:
            same = a is b
        return same if op == "is" else not same
    if op in ("in", "not in"):
        return _contains(s, a, b, op)
    if type(a) is Tensor or type(b) is Tensor:
        x, y = _listed(s, a), _listed(s, b)
        if arithmetic.is_operand(x) and arithmetic.is_operand(y):
            return arithmetic.COMPARE[op](s, x, y)
        if op in ("==", "!="):
            return op == "!="  # As in Python: a number equals no string, no None, no function.
        raise s.error("DL119", f"`{op}` does not take {describe(a)} and {describe(b)}")
    found = _user_method(a, {"==": "__eq__", "!=": "__ne__"}.get(op, ""))
    if not (is_static(a) and is_static(b)):
        if found is None or op not in ("==", "!="):
            return _compare_trees(s, op, a, b)
        raise s.needs_static(a, f"`{op}` of structures")
    return python(s, lambda: COMPARE[op](a, b), f"`{op}`")


def _compare_trees(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    if op in ("==", "!=") and (type(a) is not type(b) or a is None or b is None):
        return op == "!="
    hint = "compare their arrays one by one"
    raise s.needs_static(a if not is_static(a) else b, f"`{op}` of structures", hint)


def _contains(s: Specialiser, a: Any, b: Any, op: str) -> Any:
    numbers = a.shape == () if type(a) is Tensor else is_static(a) and not is_static(b)
    if numbers and isinstance(b, tuple | list | set | frozenset):
        return _equals_one_of(s, a, list(b), op)
    if not is_static(a) or type(b) is Tensor:
        hint = "np.any(x == value) asks whether an array holds a value"
        raise s.needs_static(a if not is_static(a) else b, f"an operand of `{op}`", hint)
    found = python(s, lambda: a in b, f"`{op}`")
    return found if op == "in" else not found


def _equals_one_of(s: Specialiser, a: Any, values: list[Any], op: str) -> Any:
    """Whether a value is among some others, as Python asks: one by one. The running program asks
    where numbers of its own are among them.
    """
    found: Any = False
    for value in values:
        test = True if value is a else condition(s, compare(s, "==", a, value))
        if test is True:
            found = True
            break
        if test is not False:
            found = (
                Tensor(test) if found is False else arithmetic.bitwise_or(s, found, Tensor(test))
            )
    return found if op == "in" else unary(s, "not", found)


def both(s: Specialiser, a: Any, b: Any) -> Any:
    """Of two comparisons in a chain."""
    if isinstance(a, bool) and isinstance(b, bool):
        return a and b
    if b is False:
        return False
    if b is True:
        return a
    return arithmetic.bitwise_and(s, a, b)


def condition(s: Specialiser, value: Any) -> bool | Value:
    """The truth of a value: known now, or a bool of the running program."""
    if type(value) is bool:
        return value
    if type(value) is Tensor:
        return arithmetic.truth(s, value)
    found = _user_method(value, "__bool__")
    if found is not None:
        return condition(s, s.call(MethodType(found, value)))
    if isinstance(value, np.ndarray) and value.size != 1:
        return arithmetic.truth(s, value)  # Refuses with its own words.
    if isinstance(value, list | tuple | dict | set | frozenset | str):
        return bool(value)
    truth: bool = python(s, lambda: bool(value), "the truth of a value")
    return truth


#: Sizes, axes and the like are 64-bit numbers.
_INT_MAX = 2**63


def static_int(s: Specialiser, value: Any, what: str) -> int:
    """A whole number that must be known now."""
    if type(value) is int:
        if not -_INT_MAX <= value < _INT_MAX:
            raise s.error("DL119", f"{what} cannot be {value}: it has more than 64 bits")
        return value
    if type(value) is Tensor:
        raise s.needs_static(value, what)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.integer | np.bool_ | bool):
        return int(value)
    raise s.error("DL119", f"{what} must be a whole number, not {describe(value)}")


def static_ints(s: Specialiser, value: Any, what: str) -> tuple[int, ...]:
    """A whole number or a sequence of them, as a tuple."""
    if isinstance(value, tuple | list):
        return tuple(static_int(s, v, what) for v in value)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(static_int(s, v, what) for v in value)
    return (static_int(s, value, what),)
