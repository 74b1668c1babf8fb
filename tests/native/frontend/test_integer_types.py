"""Element types under every operator, in pairs: as NumPy has it, and refused where it raises."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from support.frontend_programs import same_as_python as same
from support.small_programs import is_refused

ARRAYS = ("i8", "i16", "m", "i64", "o", "u16", "u32", "u64", "h", "f16", "f32", "x[:3]")
SCALARS = ("n8", "n16", "d", "c", "v16", "v64", "g", "r", "s", "i", "j", "t", "p")
#: Of Python, known when the program is made: some of them fit.
LITERALS = ("3", "-3", "300", "70000", "2**63", "2**64", "-2**70", "2.5")
ARITHMETIC = ("+", "-", "*", "/", "//", "%", "**")
BITS = ("&", "|", "^", "<<", ">>")
COMPARISONS = ("<", "<=", "==", "!=")
TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


def check(text: str) -> None:
    """What NumPy gives, or refused where NumPy raises."""
    names = same.names_in(text)
    mark, words = same.outcome(text, names)
    if mark == "!":
        arguments = [copy.copy(same.VALUES[n]) for n in names]
        with np.errstate(all="ignore"), pytest.raises((TypeError, ValueError, OverflowError)):
            same.function(text, names, same.VALUES)(*arguments)
    else:
        assert mark == "=", f"{text}: {words}"


@pytest.mark.parametrize("operator", ARITHMETIC + BITS + COMPARISONS)
@pytest.mark.filterwarnings("ignore")
def test_an_operator_on_two_types_gives_what_numpy_gives(operator: str) -> None:
    for a in ARRAYS:
        for b in (*ARRAYS, *SCALARS):
            check(f"{a} {operator} {b}")
            check(f"{b} {operator} {a}")


@pytest.mark.parametrize("operator", ARITHMETIC + BITS + COMPARISONS)
@pytest.mark.filterwarnings("ignore")
def test_a_number_of_pythons_that_does_not_fit_is_refused_or_compared(operator: str) -> None:
    for a in ("i8", "i16", "u16", "u64", "n8", "v64"):
        for b in LITERALS:
            check(f"{a} {operator} {b}")
            check(f"({b}) {operator} {a}")


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.filterwarnings("ignore")
def test_integers_convert_as_numpys_do(to: str) -> None:
    for a in ARRAYS:
        if a not in ("f16", "f32", "x[:3]"):
            check(f"{a}.astype(np.{to})")
            check(f"np.{to}({a})")
            check(f"{a}[0].astype(np.{to})")
    for a in ("u16 / 1000", "i8 / 2 + 100", "f32 * 50 + 80"):
        check(f"({a}).astype(np.{to})")


@pytest.mark.filterwarnings("ignore")
def test_u64_is_compared_with_i64_exactly_and_not_as_f64() -> None:
    largest, next_ = np.array([2**63], np.uint64), np.array([2**63 - 1])
    for operator in COMPARISONS:
        text = f"largest {operator} next_, next_ {operator} largest"
        values = {"largest": largest, "next_": next_}
        assert same.outcome(text, ["largest", "next_"], values=values) == ("=", ""), operator


@pytest.mark.parametrize("operator", ["+", "-", "*", "//", "%", "&", "|"])
@pytest.mark.parametrize("number", [-1, 70_000])
def test_an_int_that_a_number_may_not_hold_is_an_error_that_no_handler_takes(
    operator: str, number: int
) -> None:
    """The number is an int or a u16, as the path has it."""
    choice, handler = "v = a[0] if b != 7 else 3", "except OverflowError:\n    r = a[1]"
    body = f"{choice}\ntry:\n    r = v {operator} b\n{handler}\nreturn r"
    is_refused((body, f"np.array([5, 9], np.uint16), {number}"))
