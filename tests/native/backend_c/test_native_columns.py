"""Sums of columns, of which some rows are added up at once: exact where the numbers allow it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from delian.core.compiler.backends import compile_module
from delian.core.compiler.backends.native import loop_writer
from delian.core.compiler.ir import Builder, DType, Function, TensorType

ROWS = ((5,), (8,), (127,), (128,), (130,), (132,), (3, 6), (70, 2))
COLUMNS = (1, 5, 48)


def sums(rows: tuple[int, ...], columns: int, dtype: DType) -> Function:
    """Two sums down the columns of x - m, and x - m itself."""
    axes = tuple(range(len(rows)))
    b = Builder([TensorType(dtype, (*rows, columns)), TensorType(dtype, (columns,))])
    x, m = b.params
    moved = b("sub", x, b("broadcast", m, shape=x.shape, dims=(len(rows),)))
    squares = b("reduce_sum", b("mul", moved, moved), axes=axes)
    block = b.finish([b("reduce_sum", moved, axes=axes), squares, moved])
    return Function("sums", block, ("x", "m"), ("total", "squares", "moved"))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_columns_are_summed_whatever_their_number_and_length(
    dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_writer, "TOGETHER_MIN", 0)
    rng = np.random.default_rng(5)
    functions = {
        f"f{i}": sums(rows, columns, dtype)
        for i, (rows, columns) in enumerate(product(ROWS, COLUMNS))
    }
    for name, program in compile_module(functions).items():
        x, m = (
            rng.integers(-20, 20, p.shape).astype(dtype.numpy) for p in functions[name].body.params
        )
        total, squares, moved = program(x, m)
        axes = tuple(range(x.ndim - 1))
        np.testing.assert_array_equal(moved, x - m)
        np.testing.assert_array_equal(total, (x - m).sum(axes))
        np.testing.assert_array_equal(squares, ((x - m) ** 2).sum(axes))


def test_a_column_of_one_number_is_summed_after_many_operations() -> None:
    b = Builder([TensorType(DType.F32, (1, 8))])
    y = x = b.params[0]
    for _ in range(22):
        y = b("add", b("neg", y), x)
    block = b.finish([b("reduce_sum", y, axes=(0,))])
    function = Function("summed", block, ("x",), ("total",))
    (total,) = compile_module({"summed": function})["summed"](
        np.arange(8.0, dtype=np.float32)[None]
    )
    np.testing.assert_array_equal(total, np.arange(8.0))
