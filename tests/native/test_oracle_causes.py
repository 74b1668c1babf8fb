"""What the oracle excuses: errors in the last bits, ties of a sort and ints of 64 bits; no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends import reference
from oracle.judge import (
    DIFFERS,
    EQUAL,
    NUMPYS,
    OVERFLOW,
    REFUSED,
    ROUNDING,
    TIES,
    WIDER,
    ZERO,
    judge,
    text_difference,
)
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


def test_an_overflow_is_known_after_a_call_that_raises() -> None:
    body = "y = x + int(x[0]) ** 2\nreturn y[int(x[0])]"
    text = program(body, "np.array([7])", "np.array([2**62], np.uint64)")
    assert judge(text).mark == OVERFLOW


@pytest.mark.parametrize(
    "given", ["x, x", "x, out=x", "x, out=(x,)", "x, wide", "x, x, where=x < 1"]
)
def test_the_last_bits_of_an_array_that_a_function_fills(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = reference.PRIMITIVES["sin"]

    def shaken(*found: Any) -> Any:
        return [np.nextafter(x, x.dtype.type(2)) for x in row.reference(*found)]

    rows = {**reference.PRIMITIVES, "sin": replace(row, reference=shaken)}
    monkeypatch.setattr(reference, "PRIMITIVES", rows)
    body = f"wide = np.zeros(2)\nnp.sin({given})\nreturn np.concatenate([x, wide])"
    text = program(body, "np.float32([0.3, 1])")
    assert judge(text).mark == ROUNDING


def test_equal_elements_may_be_left_equal() -> None:
    """Their spread, which is zero or not by how their mean is rounded."""
    body = "x += x.min() - 1.8\nreturn np.sin(x, x, where=not x.std())"
    text = program(body, "np.full(6, 0.7, np.float32)")
    assert judge(text).mark in (EQUAL, ROUNDING)


def test_an_item_that_is_computed_when_it_is_read_has_64_bits() -> None:
    text = program("return sum(map(abs, [0.5, int(x[0])]))", "np.array([-2**63])")
    assert judge(text).mark == OVERFLOW


def test_the_sign_of_a_zero_is_stated_in_printed_text() -> None:
    text = program("x += int(x[0]) - int(x[0])\nprint(x)", "np.array([-0.5, 0.0, -0.0])")
    assert judge(text).mark in (ZERO, EQUAL)
    call = "np.array([[-0.0, 2.0]])"
    assert judge(program("print(x * 1.0 + 0, x.shape)", call)).mark in (ZERO, EQUAL)


@pytest.mark.parametrize(
    ("got", "want", "said"),
    [
        ("[-0.  2.]", "[0. 2.]", ZERO),
        ("x: -0.0\n", "x: 0.0\n", ""),
        ("[-0.5 2. ]", "[0.5 2. ]", "value"),
        ("-0.25", "0.25", "value"),
        ("[-0.  2.]", "[0. 3.]", "value"),
        ("3-0", "30", "value"),
        ("-05", "05", "value"),
        ("[1 2]", "[12]", "value"),
        ("(-0-5j)", "-5j", ZERO),
        ("(-0+5j)", "-5j", "value"),
        ("[2.-0.j]", "[2.+0.j]", ZERO),
        ("(10j)", "(1+0j)", "value"),
    ],
)
def test_only_the_signs_of_zeros_are_looked_past_in_a_text(got: str, want: str, said: str) -> None:
    assert text_difference(got, want) == said


@pytest.mark.parametrize(
    ("body", "call", "mark"),
    [
        ("return sum((2**63 - 1, float(x[0])), int(x[1]))", "np.array([1, 2])", OVERFLOW),
        ("return sum([int(x[0]), int(x[0])]) / 2.0", "np.array([2**62])", OVERFLOW),
        ("y = np.array([2], np.uint32)\ny[...] = x\nreturn y", "np.array([-np.inf])", ROUNDING),
        ("return round(max(3, float(x)) + 1, 1)", "np.float64(2.0)", WIDER),
        ("v = x[:, 0]\nnp.negative(v, out=v)\nreturn v", "np.eye(2, 4, dtype=np.int32)", NUMPYS),
        ("return np.power(x[0], x[1])", "np.array([-np.inf, 0.5])", NUMPYS),
        ("return x ** x[1:2]", "np.array([-np.inf, 0.5], np.float32)", NUMPYS),
        ("x **= x[1:2]", "np.array([-np.inf, 0.5])", NUMPYS),
    ],
)
def test_stated_differences_are_known(body: str, call: str, mark: str) -> None:
    """On some processors NumPy gives the same."""
    assert judge(program(body, call)).mark in (mark, EQUAL)


@pytest.mark.parametrize("body", ["return x * np.nan", "return complex(x[0]) + 1", "return x + 0"])
def test_complex_numbers_are_compared(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = program(body, "np.array([1 + 2j, 3.5])")
    assert judge(text).mark == EQUAL
    row = reference.PRIMITIVES["add"]

    def other(*given: Any) -> Any:
        made = row.reference(*given)
        return [x + 1 if x.dtype == np.float64 else x for x in made]

    rows = {**reference.PRIMITIVES, "add": replace(row, reference=other)}
    monkeypatch.setattr(reference, "PRIMITIVES", rows)
    assert judge(program("return complex(x[0]) + 1, x + 2j", "np.array([1 + 2j])")).mark == DIFFERS


def test_numbers_of_few_bits_are_rounded() -> None:
    body = "w = x.var(0)\nreturn x.sum(dtype=np.float32) + w.sum()"
    call = "[[1.5, -7, 3, 0], [4, -6, 3, -2.5], [0, 0.75, 1.5, -3]]"
    text = program(body, f"np.array({call}, np.float16)")
    assert judge(text).mark in (EQUAL, ROUNDING)


def test_numbers_in_a_text_are_rounded() -> None:
    body = "print(float(np.float32(3) * x.var()), x[0] > 1)"
    text = program(body, "np.array([2.0, 1, -2.0, 1.0, -2.5], np.float32)")
    assert judge(text).mark in (EQUAL, ROUNDING)


def test_a_rounded_number_hides_no_other_one_in_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    exp, add = (reference.PRIMITIVES[name] for name in ("exp", "add"))

    def inexact(*given: Any) -> Any:
        return [(x * (1 + 2.0**-23)).astype(x.dtype) for x in exp.reference(*given)]

    def larger(*given: Any) -> Any:
        return [x + 1e-6 if x.dtype == np.float64 else x for x in add.reference(*given)]

    body = f"{SHAKY}\nprint(shaky, float(x[1]) + 1.0)"
    text = program(body, "np.array([1.0, 2.5], np.float32)")
    rows = {**reference.PRIMITIVES, "exp": replace(exp, reference=inexact)}
    monkeypatch.setattr(reference, "PRIMITIVES", rows)
    assert judge(text).mark == ROUNDING
    monkeypatch.setitem(rows, "add", replace(add, reference=larger))
    assert judge(text).mark == DIFFERS


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


def test_a_refusal_at_run_time_is_none_of_the_differences() -> None:
    body = "flags = np.arange(3.0) > 1\nreturn flags ** int(x[0])"
    assert judge(program(body, "np.array([2])")).mark == REFUSED
    assert judge(program(body, "np.array([3])")).mark == EQUAL


def test_an_int_beyond_64_bits_may_be_a_float_where_the_path_decides() -> None:
    body = "\n".join(
        (
            "v = 3",
            "try:",
            "    v = math.sqrt(x)",
            "except ValueError:",
            "    pass",
            "for _ in range(12):",
            "    v *= v",
            "return v",
        )
    )
    assert judge(program("import math\n" + body, "-5")).mark == OVERFLOW


@pytest.mark.parametrize(
    ("got", "want", "said"),
    [
        ("[0.4054651 0.8109302]", "[0.40546513 0.8109302 ]", ""),
        ("[0.4054651  nan]", "[0.40546513        nan]", ""),
        ("[[0.4054651]\n [      inf]]", "[[0.40546513]\n [       inf]]", ""),
        ("[0.4054651, 1.5      ]", "[0.40546513, 1.5       ]", ""),
        ("[0.4054651+1.j 2.       +1.j]", "[0.40546513+1.j 2.        +1.j]", ""),
        ("[0.4054651 0.5]", "[0.40546513 0.6       ]", "value"),
        ("[0.5 0.8 ]", "[0.5 0.8]", "value"),
        ("0.4054651 'a  b'", "0.40546513 'a b'", "value"),
        ("0.4054651 [ 1 ]", "0.40546513 [1]", "value"),
    ],
)
def test_padding_follows_the_last_bits_of_an_array(got: str, want: str, said: str) -> None:
    assert text_difference(got, want) == said


#: Their sums cancel or overflow: the order decides what they are.
LARGE = "np.array([[2**63 - 1, -2**63, -3], [2**63 - 1, -2**63, 7]])"
FLOATS = "np.array([[1e12, 3.0, -1e12, 0.5]], np.float32)"
HUGE = "np.array([3e38, 3e38, -3e38], np.float32)"
SQUARE = "np.array([[1e30, -4.0, 1e30], [1e30, -2.0, 3.0], [-1e30, -3.5, 1.0]], np.float32)"


def compute_widely(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum or product of floats has a wider type, and is rounded once."""
    row = reference.PRIMITIVES[name]

    def wide(args: Any, attrs: Any) -> Any:
        wider = [x.astype(np.longdouble) if x.dtype.kind == "f" else x for x in args]
        return [x.astype(args[0].dtype) for x in row.reference(wider, attrs)]

    rows = {**reference.PRIMITIVES, name: replace(row, reference=wide)}
    monkeypatch.setattr(reference, "PRIMITIVES", rows)


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ("return x.mean()", LARGE),
        ("return np.mean(x, axis=(0, 1)), x.shape", LARGE),
        ("return np.mean(x[:, [0, 2, 1]], 1)", LARGE),
        ("return x.sum(), x[0, 1]", FLOATS),
        ("return np.nansum(x, -1, keepdims=True)", FLOATS),
        ("return np.add.reduce(x[0])", FLOATS),
        ("return np.cumsum(x[:, [0, 1, 2]])", FLOATS),
        ("return x.cumsum(1)", FLOATS),
        ("return np.add.accumulate(x, 1)", FLOATS),
        ("print(x.sum(1))", FLOATS),
        ("return np.sum(x)", HUGE),
        ("return x @ x", SQUARE),
        ("return x.dot(x[:, 0])", SQUARE),
        ("return np.inner(x, x.T)", SQUARE),
        ("y = np.zeros((3, 3), np.float32)\nnp.matmul(x, x, out=y)\nreturn y", SQUARE),
    ],
)
def test_the_order_of_a_sum_may_decide(
    body: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = program(body, call)
    assert judge(text).mark in (EQUAL, ROUNDING)
    for name in ("reduce_sum", "cumsum", "dot"):
        compute_widely(name, monkeypatch)
    assert judge(text).mark == ROUNDING


@pytest.mark.parametrize(
    ("fault", "body", "call"),
    [
        ("a view is a copy", "v = x[0, :2]\nv += 1\nreturn x, x.sum()", FLOATS),
        ("`max` is np.maximum", "return x.mean(), max(1.5, float(x[0, 2]) * np.nan)", LARGE),
        ("`in` is by identity", "y = x @ x\nreturn x[1, 2] in [x[0, 0], 3], y", SQUARE),
    ],
)
def test_the_order_of_a_sum_hides_no_fault(
    fault: str, body: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_widely("reduce_sum", monkeypatch)
    compute_widely("dot", monkeypatch)
    text = program(body, call)
    assert judge(text).mark == ROUNDING
    plant(fault, monkeypatch.setattr)
    assert judge(text).mark == DIFFERS


@pytest.mark.parametrize(("body", "call"), [("return x.sum()", FLOATS), ("return x @ x", SQUARE)])
def test_a_sum_that_no_order_gives_is_a_fault(
    body: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("reduce_sum", "dot"):
        row = reference.PRIMITIVES[name]

        def other(*given: Any, row: Any = row) -> Any:
            return [x * x.dtype.type(1.5) + 20 for x in row.reference(*given)]

        changed = {**reference.PRIMITIVES, name: replace(row, reference=other)}
        monkeypatch.setattr(reference, "PRIMITIVES", changed)
    assert judge(program(body, call)).mark == DIFFERS


def test_a_number_that_is_compared_with_itself_is_equal() -> None:
    """As programs ask for NaN: an error in one of the two would not be one of the program."""
    body = f"{SHAKY}\nif shaky != shaky:\n    raise ValueError\nreturn shaky"
    assert judge(program(body, "np.array([1.0, 2.5], np.float32)")).mark in (EQUAL, ROUNDING)


@pytest.mark.parametrize(
    ("given", "mark"), [((1.0, -36.1), ROUNDING), ((0.0, -np.inf), EQUAL), ((1.0, 3.0), DIFFERS)]
)
def test_the_sign_of_a_determinant_that_is_nearly_zero(
    given: tuple[float, float], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = replace(
        reference.PRIMITIVES["slogdet"], reference=lambda *_: [np.array(x) for x in given]
    )
    monkeypatch.setattr(reference, "PRIMITIVES", {**reference.PRIMITIVES, "slogdet": row})
    text = program(
        "return np.linalg.slogdet(x)",
        "np.array([[4.0, -2.0, 2.0], [-0.5, -3.5, -1.0], [1.5, -2.0, 0.5]])",
    )
    assert judge(text).mark == mark


#: An int beyond 64 bits, a part of which is a float, as the path may decide.
MIXED = (
    "a = int(x[0])\nv = max([b + 1 for b in [0.5, a]])\n"
    "w = abs(sum([b * a for b in [a, v, v]])) ** 0.5"
)


def test_an_int_beyond_64_bits_may_be_a_float_in_a_part_of_the_program() -> None:
    assert judge(program(f"{MIXED}\nreturn np.array([w])", "np.array([2**62])")).mark == OVERFLOW


def test_an_int_is_no_float_where_no_path_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiplication of ints that gives what floats would is a fault."""
    body = "w = float(int(x[0]) * int(x[0]))\nreturn np.array([w])"
    text = program(body, "np.array([2**62 + 2**40])")
    assert judge(text).mark == OVERFLOW
    row = reference.PRIMITIVES["convert"]

    def other(*given: Any) -> Any:
        made = row.reference(*given)
        return [x * 0 + 2.0**124 if x.dtype == np.float64 else x for x in made]

    rows = {**reference.PRIMITIVES, "convert": replace(row, reference=other)}
    monkeypatch.setattr(reference, "PRIMITIVES", rows)
    assert judge(text).mark == DIFFERS
