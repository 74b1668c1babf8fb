"""Matrix products natively: sizes around the kernel's tile, layouts, and loops that follow them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.timing import time_steps
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType

F32 = DType.F32
#: (m, n, k): below, at and above the widths of registers, tiles and panels on any processor.
SIZES = [
    *((1, 1, 1), (1, 1, 100), (1, 40, 33), (40, 1, 33), (13, 1, 1), (2, 3, 0), (6, 16, 3)),
    *((7, 17, 5), (12, 32, 20), (13, 33, 9), (24, 31, 7), (25, 64, 70), (50, 40, 600)),
    *((30, 70, 1030), (100, 9, 10), (61, 200, 10), (33, 300, 40), (5, 530, 520)),
]
LAYOUTS = ["nn", "nt", "tn", "tt"]


def product_block(m: int, n: int, k: int, layout: str, then: bool) -> Block:
    """A product of matrices, transposed as the layout says, and a loop that follows."""
    a = (k, m) if layout[0] == "t" else (m, k)
    c = (n, k) if layout[1] == "t" else (k, n)
    types = [TensorType(F32, s) for s in (a, c, (m, n), (n,), (m,), (), (n, m))]
    b = Builder(types)
    x, y, w, across, down, rate, turned = b.params
    contract_a, contract_b = int(layout[0] == "n"), int(layout[1] == "t")
    z = b("dot", x, y, contract_a=(contract_a,), contract_b=(contract_b,), batch_a=(), batch_b=())
    if not then:
        return b.finish([z])
    shape = (m, n)
    z = b("add", z, b("broadcast", across, shape=shape, dims=(1,)))
    z = b("mul", z, b("broadcast", down, shape=shape, dims=(0,)))
    z = b("mul", z, b("broadcast", rate, shape=shape, dims=()))
    z = b("add", z, b("transpose", turned, perm=(1, 0)))
    z = b("add", z, b("iota", dtype=F32, shape=shape, axis=1))
    return b.finish([b("sub", w, z), b("lt", z, b.full(w.tensor, 0))])


def cases() -> dict[str, Block]:
    table = {}
    for m, n, k in SIZES:
        for layout in LAYOUTS:
            for then in (False, True):
                name = f"{m}x{n}x{k}-{layout}{'-then' if then else ''}"
                table[name] = product_block(m, n, k, layout, then)
    return table


CASES = cases()


@pytest.fixture(scope="module")
def programs(toolchain: Toolchain) -> Mapping[str, NativeProgram]:
    functions = {}
    for name, block in CASES.items():
        params = tuple(f"a{i}" for i in range(len(block.params)))
        results = tuple(f"r{i}" for i in range(len(block.results)))
        functions[name] = Function(name, block, params, results)
    return compile_native(functions, toolchain)


@pytest.mark.parametrize("name", CASES)
def test_a_product_equals_the_reference(name: str, programs: Mapping[str, NativeProgram]) -> None:
    block = CASES[name]
    rng = np.random.default_rng(len(name))
    args: list[Any] = [np.asarray(rng.standard_normal(p.shape), np.float32) for p in block.params]
    results = programs[name](*args)
    first, *rest = run_block(block, args)
    scale = max(1.0, float(np.max(np.abs(first), initial=0)))
    np.testing.assert_allclose(results[0], first, rtol=1e-5, atol=1e-5 * scale)
    for mask, expected in zip(results[1:], rest, strict=True):
        assert np.mean(mask != expected) < 0.01  # a sum next to zero may round to either side


def test_batches_and_broadcast_operands(toolchain: Toolchain) -> None:
    b = Builder([TensorType(F32, (2, 3, 5, 4)), TensorType(F32, (3, 4, 6)), TensorType(F32)])
    x, y, s = b.params
    wide = b("broadcast", y, shape=(2, 3, 4, 6), dims=(1, 2, 3))
    both = b("dot", x, wide, contract_a=(3,), contract_b=(2,), batch_a=(0, 1), batch_b=(0, 1))
    ones = b("broadcast", s, shape=(4, 7), dims=())
    spread = b("dot", x, ones, contract_a=(3,), contract_b=(0,), batch_a=(), batch_b=())
    outer = b("dot", s, y, contract_a=(), contract_b=(), batch_a=(), batch_b=())
    line = b("iota", dtype=F32, shape=(4, 3), axis=0)
    counted = b("dot", x, line, contract_a=(3,), contract_b=(0,), batch_a=(), batch_b=())
    block = b.finish([both, spread, outer, counted])
    function = Function("f", block, ("x", "y", "s"), ("p", "q", "r", "t"))
    rng = np.random.default_rng(3)
    args = [np.asarray(rng.standard_normal(p.shape), np.float32) for p in block.params]
    program = compile_native({"f": function}, toolchain)["f"]
    for result, expected in zip(program(*args), run_block(block, args), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


#: How a step of descent may be written: W - rate g, W + rate g, with the factor on either side.
DESCENTS = ("sub", "add", "turned add")
DESCENT_SIZES = [(61, 200, 10), (30, 9, 33), (5, 70, 3), (784, 33, 90)]


def descent(m: int, n: int, k: int, how: str) -> Function:
    b = Builder([TensorType(F32, s) for s in ((m, n), (k, m), (k, n), ())])
    w, x, y, rate = b.params
    g = b("dot", x, y, contract_a=(0,), contract_b=(0,), batch_a=(), batch_b=())
    factor = b("broadcast", rate, shape=(m, n), dims=())
    step = b("mul", factor, g) if how == "turned add" else b("mul", g, factor)
    new = b("sub", w, step) if how == "sub" else b("add", step, w)
    return Function("f", b.finish([new]), ("w", "x", "y", "rate"), ("w",), frozenset([0]))


@pytest.fixture(scope="module")
def descents(toolchain: Toolchain) -> Mapping[str, NativeProgram]:
    table = {f"{how} {size}": descent(*size, how) for how in DESCENTS for size in DESCENT_SIZES}
    return compile_native(table, toolchain)


@pytest.mark.parametrize("how", DESCENTS)
@pytest.mark.parametrize("size", DESCENT_SIZES)
def test_a_step_of_descent_goes_where_the_matrix_lies(
    size: tuple[int, int, int], how: str, descents: Mapping[str, NativeProgram]
) -> None:
    program = descents[f"{how} {size}"]
    params = program.function.body.params
    rng = np.random.default_rng(size[0])
    args = [np.asarray(rng.standard_normal(p.shape), np.float32) for p in params]
    (expected,) = run_block(program.function.body, args)
    (result,) = program(*args)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert result is args[0]


def test_steps_of_a_program_are_timed() -> None:
    b = Builder([TensorType(F32, (8, 20)), TensorType(F32, (20, 30))])
    x, w = b.params
    y = b("dot", x, w, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
    function = Function("f", b.finish([b("reduce_sum", y, axes=(0,))]), ("x", "w"), ("s",))
    args = [np.ones(p.shape, np.float32) for p in function.body.params]
    product, total = time_steps(function, args, calls=2)
    assert product.operations == ("dot",) and total.operations == ("reduce_sum",)
    assert product.is_product and not total.is_product
    assert product.flops == 2 * 8 * 20 * 30 and product.runs == 1
    assert product.seconds > 0 and product.gflops > 0


def test_columns_beside_whole_vectors_have_room_for_all_steps(toolchain: Toolchain) -> None:
    k = 10_000
    block = product_block(10, 17, k, "nn", then=False)
    names = tuple(f"a{i}" for i in range(len(block.params)))
    function = Function("long", block, names, ("z",))
    program = compile_native({"long": function}, toolchain)["long"]
    assert program.report.arena_bytes >= 4 * 16 * k


def test_what_comes_before_a_product_in_the_text_may_run_over_its_tiles() -> None:
    def gated(x: Any, w: Any, v: Any) -> Any:
        return np.exp(x) * (v @ w)

    def chained(x: Any, w: Any, v: Any) -> Any:
        return np.tanh(np.tanh(x) * (x @ v)) * (v @ w) + 1

    def total(x: Any, w: Any, v: Any) -> Any:
        return np.sum(gated(x, w, v) * chained(x, w, v))

    rng = np.random.default_rng(4)
    args = [rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(3)]
    for f in (gated, chained, total, dl.grad(total)):
        got, want = (dl.compile(f, backend=name)(*args) for name in ("native", "reference"))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
