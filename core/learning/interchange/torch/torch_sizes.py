"""Arithmetic on the sizes of tensors, which a graph computes as a program does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _floor_divide(a: int, b: int) -> int:
    return a // b


def _modulo(a: int, b: int) -> int:
    return a % b


def _plus(a: Any, b: Any) -> Any:
    return a + b


def _minus(a: Any, b: Any) -> Any:
    return a - b


def _times(a: Any, b: Any) -> Any:
    return a * b


def _over(a: Any, b: Any) -> Any:
    return a / b


def _negative(a: Any) -> Any:
    return -a


def _power(a: Any, b: Any) -> Any:
    return a**b


def _above(a: Any, b: Any) -> Any:
    return a > b


def _at_least(a: Any, b: Any) -> Any:
    return a >= b


def _below(a: Any, b: Any) -> Any:
    return a < b


def _at_most(a: Any, b: Any) -> Any:
    return a <= b


def _equal(a: Any, b: Any) -> Any:
    return a == b


def _different(a: Any, b: Any) -> Any:
    return a != b


#: Functions of sizes by the names that torch's graphs have for them.
SIZES: dict[str, Callable[..., Any]] = {
    "add": _plus,
    "sub": _minus,
    "mul": _times,
    "floordiv": _floor_divide,
    "mod": _modulo,
    "truediv": _over,
    "neg": _negative,
    "pow": _power,
    "gt": _above,
    "ge": _at_least,
    "lt": _below,
    "le": _at_most,
    "eq": _equal,
    "ne": _different,
    "sym_float": float,
    "sym_int": int,
    "sym_max": max,
    "sym_min": min,
}
