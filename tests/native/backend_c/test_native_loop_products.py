"""Products in loops natively: matrices that are packed before the loop, and what follows them."""

from __future__ import annotations

from typing import Any

import numpy as np
from delian.core.compiler.backends.native.program import compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType

F32 = DType.F32
#: (m, n, k): around the tile's rows and the panel's columns, few rows and more, a long sum.
SIZES = [(2, 5, 3), (10, 33, 64), (12, 64, 40), (25, 31, 70), (64, 17, 1100), (65, 40, 20)]


def steps(m: int, n: int, k: int, turned: bool, then: bool) -> Block:
    """Three trips of: total + (x @ w, and more of it if `then`); x halves."""
    shape = (n, k) if turned else (k, n)
    types = [TensorType(F32, s) for s in (shape, (n,), (m, k), (m, n))]
    b, inner = Builder(types), Builder([TensorType(DType.I64), *types])
    _, w, shift, x, total = inner.params
    axes = {"contract_a": (1,), "contract_b": (int(turned),), "batch_a": (), "batch_b": ()}
    y = inner("dot", x, w, **axes)
    if then:
        y = inner("tanh", inner("add", y, inner("broadcast", shift, shape=(m, n), dims=(1,))))
        both = inner("reduce_sum", inner("mul", y, y), axes=(1,))
        y = inner("mul", y, inner("broadcast", both, shape=(m, n), dims=(0,)))
    half = inner("mul", x, inner.full(x.tensor, 0.5))
    region = inner.finish([half, inner("add", total, y)])
    bounds = b.constant(0, DType.I64), b.constant(3, DType.I64)
    return b.finish(b.emit("for", (*bounds, *b.params), {"consts": 2}, (region,)))


def test_a_matrix_packed_before_a_loop_multiplies_as_the_reference_does(
    toolchain: Toolchain,
) -> None:
    blocks = {
        f"{m}x{n}x{k}{'t' * turned}{'-then' * then}": steps(m, n, k, turned, then)
        for m, n, k in SIZES
        for turned in (False, True)
        for then in (False, True)
    }
    names = ("w", "shift", "x", "total")
    programs = compile_native(
        {name: Function(name, b, names, ("x", "total")) for name, b in blocks.items()}, toolchain
    )
    rng = np.random.default_rng(5)
    for name, block in blocks.items():
        args: list[Any] = [np.asarray(rng.normal(size=p.shape), np.float32) for p in block.params]
        for got, expected in zip(programs[name](*args), run_block(block, args), strict=True):
            scale = max(1.0, float(np.max(np.abs(expected))))
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5 * scale, err_msg=name)
    source = next(iter(programs.values())).report.library.with_suffix(".c").read_text("utf-8")
    assert source.count("dl_pack_all(") > len(blocks) // 2


def test_what_a_loop_has_for_a_constant_may_be_another_s_carry(toolchain: Toolchain) -> None:
    """The inner loop's matrix changes from one outer trip to the next: it is packed anew."""
    m, n = 4, 36
    types = [TensorType(F32, (n, n)), TensorType(F32, (m, n))]
    b, outer = Builder(types), Builder([TensorType(DType.I64), *types])
    inner = Builder([TensorType(DType.I64), *types])
    axes = {"contract_a": (1,), "contract_b": (0,), "batch_a": (), "batch_b": ()}
    _, w, x = inner.params
    region = inner.finish([inner("tanh", inner("dot", x, w, **axes))])
    _, w, x = outer.params
    bounds = outer.constant(0, DType.I64), outer.constant(5, DType.I64)
    (x,) = outer.emit("for", (*bounds, w, x), {"consts": 1}, (region,))
    w = outer("sub", w, outer("mul", w, outer("mul", w, w)))
    bounds = b.constant(0, DType.I64), b.constant(3, DType.I64)
    made = b.emit("for", (*bounds, *b.params), {"consts": 0}, (outer.finish([w, x]),))
    block = b.finish(made)
    program = compile_native({"f": Function("f", block, ("w", "x"), ("w", "x"))}, toolchain)["f"]
    rng = np.random.default_rng(6)
    args = [np.asarray(rng.normal(size=t.shape) * 0.2, np.float32) for t in types]
    for got, expected in zip(program(*args), run_block(block, args), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
