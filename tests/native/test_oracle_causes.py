"""What the oracle excuses: errors in the last bits, ties of a sort and ints of 64 bits; no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends import reference
from oracle.judge import DIFFERS, EQUAL, NUMPYS, OVERFLOW, ROUNDING, TIES, judge
from oracle.planted import plant


def program(body: str, *calls: str) -> str:
    """A program's text."""
    lines = ["import numpy as np", "def f(x):", *(f"    {line}" for line in body.split("\n"))]
    made = "".join(f"    lambda: ({call},),\n" for call in calls)
    return "\n".join([*lines, f"CALLS = [\n{made}]", "def between():", "    pass"]) + "\n"


#: A float of f32, which rounds otherwise in compiled code; a float of Python is compared closely.
SHAKY = "shaky = float(np.exp(np.float32(x.sum()) * np.float32(0.7)))"


@pytest.mark.parametrize(
    ("fault", "body"),
    [
        ("a view is a copy", "v = x[1:]\nv += 1\nreturn x, shaky"),
        ("`max` is np.maximum", "return shaky, max(x[0], x[1] * np.nan)"),
        ("`in` is by identity", "return x[0] in [x[0], shaky], shaky"),
        ("an error is swallowed", "if x[0] > 0:\n    raise ValueError\nreturn shaky"),
    ],
)
def test_rounding_in_one_place_hides_no_fault_in_another(
    fault: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = program(f"{SHAKY}\n{body}", "np.array([1.0, 2.5, 3.0], np.float32)")
    assert judge(text).mark in (EQUAL, ROUNDING)
    plant(fault, monkeypatch.setattr)
    assert judge(text).mark == DIFFERS


@pytest.mark.parametrize(("error", "mark"), [(2.0**-23, ROUNDING), (2.0**-18, DIFFERS)])
def test_an_error_is_as_large_as_rounding_makes_it(
    error: float, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = reference.PRIMITIVES["exp"]

    def inexact(*given: Any) -> Any:
        made = row.reference(*given)
        return [(x * (1 + error)).astype(x.dtype) for x in made]

    rows = {**reference.PRIMITIVES, "exp": replace(row, reference=inexact)}
    monkeypatch.setattr(reference, "PRIMITIVES", rows)
    assert judge(program(f"{SHAKY}\nreturn shaky", "np.array([1.0, 2.5], np.float32)")).mark == mark


#: NumPy's argsort leaves the three equal numbers in an order of its own on some processors.
TIED = "np.array([-3.5, 14.0, 14.0, 14.0, 0.0])"


def test_ties_of_a_sort_are_in_their_order() -> None:
    for text in ("x.argsort()", "np.argsort(-x)[::-1]", "np.argsort(x, 0, 'heapsort')"):
        assert judge(program(f"return {text}", TIED)).mark in (EQUAL, TIES)
    assert judge(program("return np.argsort(x, kind='stable')", TIED)).mark == EQUAL


@pytest.mark.parametrize("body", ["return x[::-1].argsort()", "return np.argsort(x), x[1] + 1"])
def test_a_sort_excuses_nothing_but_its_ties(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort that puts equal elements in the order of their places backwards is a fault."""
    row = reference.PRIMITIVES["argsort"]

    def backwards(*given: Any) -> Any:
        made = row.reference(*given)
        return [made[0][::-1]]

    rows = {**reference.PRIMITIVES, "argsort": replace(row, reference=backwards)}
    monkeypatch.setattr(reference, "PRIMITIVES", rows)
    assert judge(program(body, TIED)).mark == DIFFERS


#: An int that leaves 64 bits, and what a program makes of it.
LONG = "long = int(x[0]) * 6 + 1"
CALL = "np.array([2**62 + 5, 3, 2])"


@pytest.mark.parametrize(
    "body",
    [
        "return long, x",
        "return long / 4.0, x[1] > long, long ** 2 % 7",
        "items = [long, 2]\nitems[0] += 2**62\nitems[1] += 1\nreturn items",
        "total = long\nfor k in x:\n    total = total * int(k) - 1\nreturn total, abs(total)",
        "if long > 0:\n    raise ValueError\nreturn long",
    ],
)
def test_ints_have_64_bits(body: str) -> None:
    assert judge(program(f"{LONG}\n{body}", CALL)).mark == OVERFLOW


@pytest.mark.parametrize(
    ("fault", "body"),
    [
        ("a view is a copy", "v = x[1:]\nv += 1\nreturn x, long"),
        ("`max` is np.maximum", "return long, max(1.5, float(x[1]) * np.nan)"),
        ("`in` is by identity", "return x[1] in [x[0], 3], long"),
        ("an error is swallowed", "if x[1] > 0:\n    raise ValueError\nreturn long"),
        ("bool + bool is a bool", "return (x[0] > 1).item() + (x[1] > 1).item(), long"),
        ("f32 += f64 is f64", "y = x.astype(np.float32)\ny += x / 2\nreturn y, long"),
    ],
)
def test_an_overflow_in_one_place_hides_no_fault_in_another(
    fault: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = program(f"{LONG}\n{body}", CALL)
    assert judge(text).mark in (EQUAL, OVERFLOW)
    plant(fault, monkeypatch.setattr)
    assert judge(text).mark == DIFFERS


def test_an_overflow_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiplication that gives the largest int instead is a fault."""
    row = reference.PRIMITIVES["mul"]

    def saturated(*given: Any) -> Any:
        made = row.reference(*given)
        return [
            np.where(x < 0, np.iinfo(x.dtype).max, x) if x.dtype == np.int64 else x for x in made
        ]

    rows = {**reference.PRIMITIVES, "mul": replace(row, reference=saturated)}
    monkeypatch.setattr(reference, "PRIMITIVES", rows)
    assert judge(program(f"{LONG}\nreturn long", CALL)).mark == DIFFERS


@pytest.mark.parametrize(
    ("body", "call", "mark"),
    [
        ("return sum((2**63 - 1, float(x[0])), int(x[1]))", "np.array([1, 2])", OVERFLOW),
        ("return sum([int(x[0]), int(x[0])]) / 2.0", "np.array([2**62])", OVERFLOW),
        ("y = np.array([2], np.uint32)\ny[...] = x\nreturn y", "np.array([-np.inf])", ROUNDING),
        ("v = x[:, 0]\nnp.negative(v, out=v)\nreturn v", "np.eye(2, 4, dtype=np.int32)", NUMPYS),
    ],
)
def test_stated_differences_are_known(body: str, call: str, mark: str) -> None:
    """On some processors NumPy gives the same."""
    assert judge(program(body, call)).mark in (mark, EQUAL)


def test_a_whole_number_may_follow_the_last_bits() -> None:
    body = "v = np.array([1])\nv[0] = float(np.exp(np.float32(x[0]))) * 1e9\nreturn v"
    assert judge(program(body, "np.array([0.7], np.float32)")).mark in (EQUAL, ROUNDING)


def test_a_whole_number_that_follows_no_last_bits_is_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = reference.PRIMITIVES["convert"]

    def larger(*given: Any) -> Any:
        made = row.reference(*given)
        return [x + 1 if x.dtype == np.int32 else x for x in made]

    rows = {**reference.PRIMITIVES, "convert": replace(row, reference=larger)}
    monkeypatch.setattr(reference, "PRIMITIVES", rows)
    text = program(f"{SHAKY}\nreturn shaky, x.astype(np.int32)", "np.array([1.5, 2.0])")
    assert judge(text).mark == DIFFERS
