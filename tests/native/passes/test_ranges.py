"""The numbers of a program lie in the intervals that are known of them; an index that fits needs no
clamp.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.native.emit import emit
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import Block, Builder, DType, TensorType, Value
from delian.core.compiler.passes.pipeline import lowered
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.passes.value_ranges import intervals

I64 = DType.I64
INDEX = TensorType(I64)
BINARY = ("add", "sub", "mul", "max", "min", "floordiv", "mod")
COMPARED = ("lt", "le")


def body(r: random.Random, count: int) -> Block:
    """The body of a loop that computes numbers with two indices; it carries so many of them."""
    b = Builder([INDEX] * (2 + count))
    numbers = list(b.params[:2]) + [b.constant(r.randrange(-9, 10), I64) for _ in range(4)]
    zero = b.constant(0, I64)
    while len(numbers) < count + 6:
        x, y, z = (r.choice(numbers) for _ in range(3))
        kind = r.randrange(4)
        if kind == 0:
            near = b("sub", x, b.constant(r.randrange(-3, 4), I64))
            moved = b("add", x, b.constant(r.randrange(1, 9), I64))
            numbers.append(b("select", b("lt", near, zero), moved, r.choice((x, near))))
        elif kind == 1:
            numbers.append(b("select", b(r.choice(COMPARED), x, y), y, z))
        else:
            name = r.choice(BINARY)
            y = b.constant(r.randrange(1, 7), I64) if name in BINARY[-2:] else y
            numbers.append(b(name, x, y))
    return b.finish(numbers[6:])


def loops(inner: Block, count: int, low: int, high: int) -> Block:
    """Two nested loops with these bounds around a body."""
    outer = Builder([INDEX] * (1 + count))
    ends = [outer.constant(n, I64) for n in (low, high)]
    operands = [*ends, outer.params[0], *outer.params[1:]]
    around = outer.finish(outer.emit("for", operands, {"consts": 1}, [inner]))
    b = Builder([])
    ends = [b.constant(n, I64) for n in (low, high)]
    zeros = [b.constant(0, I64)] * count
    return b.finish(b.emit("for", [*ends, *zeros], {"consts": 0}, [around]))


@pytest.mark.parametrize("seed", range(40))
def test_numbers_lie_in_their_intervals(seed: int) -> None:
    r = random.Random(seed)
    count, low = 12, r.randrange(-5, 6)
    inner = body(r, count)
    found = intervals(loops(inner, count, low, low + 4))
    zeros = [np.int64(0)] * count
    checked = 0
    for i in range(low, low + 4):
        for j in range(low, low + 4):
            numbers = run_block(inner, [np.int64(i), np.int64(j), *zeros])
            for value, number in zip(inner.results, numbers, strict=True):
                if value in found:
                    assert found[value][0] <= number <= found[value][1]
                    checked += 1
    assert checked > 16 * count // 2


def test_what_may_wrap_or_is_carried_is_not_known() -> None:
    b = Builder([INDEX, INDEX])
    large = b("mul", b.constant(2**40, I64), b.constant(2**40, I64))
    inner = Builder([INDEX, INDEX])
    carried = inner.params[1]
    grown = inner("add", carried, inner.params[0])
    bounds = [b.constant(0, I64), b.params[1]]
    zero = b.constant(0, I64)
    b.emit("for", [*bounds, zero], {"consts": 0}, [inner.finish([grown])])
    found = intervals(b.finish([large]))
    unknown: list[Value] = [large, carried, grown, inner.params[0], *b.params]
    assert not any(v in found for v in unknown)


def neighbours(x: Any) -> Any:
    y = np.zeros_like(x)
    for i in range(30):
        for j in range(i + 1, 30):
            y[i, j] = x[i - 1, j] + x[29 - i, j - 1]
    return y


def rows_by_number(x: Any, rows: Any) -> Any:
    total = 0.0
    for i in range(30):
        total += x[rows[i], 0]
    return total


def test_indices_of_loops_are_not_clamped() -> None:
    matrix = TensorType(DType.F64, (30, 30))
    assert _clamps(neighbours, matrix) == 0
    assert _clamps(rows_by_number, matrix, TensorType(I64, (30,))) == 1


def _clamps(f: Any, *types: TensorType) -> int:
    function = trace(f, *types).function
    function = lowered(function.with_body(simplify(function.body)))
    text = emit({"f": function})[0]
    return text[text.index("int f(void") :].count("dl_clamp(")
