"""Loops that differ in sizes alone are one function in a large file, and give the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.native import shared_loops
from delian.core.compiler.backends.native.program import compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType

SIZES = [(3, 17), (40, 17), (40, 300), (1, 2000), (2000, 1), (70, 64)]


def layer(rows: int, columns: int) -> Block:
    """What a layer's loops are like: sums along either axis, and what is made of them."""
    b = Builder([TensorType(DType.F32, (rows, columns)), TensorType(DType.I64, (rows, columns))])
    x, n = b.params
    shape = (rows, columns)
    down, across = b("reduce_sum", x, axes=(0,)), b("reduce_max", x, axes=(1,))
    y = b("sub", x, b("broadcast", across, shape=shape, dims=(0,)))
    y = b("add", b("exp", y), b("broadcast", down, shape=shape, dims=(1,)))
    large = b("mul", n, b("broadcast", b.constant(2**40 + 1, DType.I64), shape=shape, dims=()))
    large = b("add", large, b.full(n.tensor, 12345))
    tiny = b("mul", x, b.full(x.tensor, 1e-17))
    return b.finish([y, b("transpose", y, perm=(1, 0)), large, tiny])


def test_shared_loops_give_what_each_gives_by_itself(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = {}
    for rows, columns in SIZES:
        name = f"{rows}x{columns}"
        functions[name] = Function(name, layer(rows, columns), ("x", "n"), ("y", "t", "m", "s"))
    monkeypatch.setattr(shared_loops, "LOOPS_MIN", 2)
    programs = compile_native(functions, toolchain)
    source = next(iter(programs.values())).report.library.with_suffix(".c").read_text("utf-8")
    assert source.count("#define loop_") > source.count("DL_LOOP void same_") > 0
    rng = np.random.default_rng(8)
    for (rows, columns), (name, program) in zip(SIZES, programs.items(), strict=True):
        x: Any = np.asarray(rng.normal(size=(rows, columns)), np.float32)
        args = [x, rng.integers(-9, 9, (rows, columns))]
        for got, expected in zip(
            program(*args), run_block(functions[name].body, args), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=name)


def shared(*texts: str, first: int = 0) -> list[str]:
    """The functions of a file with these loops and many that are like nothing else."""
    loops = {text: f"loop_{i}" for i, text in enumerate(texts, first)}
    many = {f"(void) {{{i}}}": f"loop_x{i}" for i in range(60)}
    made = shared_loops.shared_functions(loops | many)
    return [*made.loops, *made.macros]


def test_floats_that_differ_are_parameters_too() -> None:
    text = (
        "(float *p0) {\n  for (i0 = 0; i0 < 64; i0++) p0[i0] = p0[i0] / 1.44e+02f + 1.0e+00f;\n}\n"
    )
    parts = shared(text, text.replace("1.44e+02f", "5.76e+02f"))
    assert parts[0].startswith("DL_LOOP void same_1(float *p0, const float z0)")
    assert "i0 < 64" in parts[0] and "/ z0 + 1.0e+00f" in parts[0]
    assert "#define loop_1(...) same_1(__VA_ARGS__, 5.76e+02f)" in parts


def test_numbers_that_are_equal_in_one_loop_alone_stay_apart() -> None:
    text = "(float *p0) {\n  for (i0 = 0; i0 < A; i0++) p0[i0 * B] = p0[i0 * B] + C;\n}\n"
    parts = shared(
        *(text.replace("A", a).replace("B", b) for a, b in (("480", "480"), ("240", "480")))
    )
    assert "i0 < z0" in parts[0] and "p0[i0 * 480] = p0[i0 * 480]" in parts[0]
    parts = shared(
        *(text.replace("A", a).replace("B", b) for a, b in (("480", "480"), ("240", "160")))
    )
    assert "i0 < z0" in parts[0] and "p0[i0 * z1] = p0[i0 * z1]" in parts[0]


def test_numbers_within_names_floats_and_arrays_stay() -> None:
    text = (
        "(float *p0, const int64_t s10) {\n  float t0[512];\n"
        "  for (i10 = 0; i10 < 100; i10++) p0[i10 * 100 + 33] = 1.25e-30f * s10 + INT64_C(99);\n}\n"
    )
    other = text.replace("100", "200").replace("33", "44")
    parts = shared(text, other, first=1)
    assert parts[0].startswith("DL_LOOP void same_1(float *p0, const int64_t s10, const int64")
    assert "t0[512];" in parts[0] and "1.25e-30f" in parts[0] and "INT64_C(99)" in parts[0]
    assert "p0[i10 * z0 + z1]" in parts[0]
    assert "#define loop_2(...) same_1(__VA_ARGS__, 200, 44)" in parts


def test_sizes_that_are_multiples_of_vectors_in_each_loop_say_so() -> None:
    text = "(float *p0) {\n  for (i0 = 0; i0 < A; i0++) p0[i0 * B] = 0;\n}\n"
    for sizes, unit in (((480, 192), 32), ((6400, 640), 64), ((90, 50), 2)):
        parts = shared(*(text.replace("A", str(a)).replace("B", f"{a}1") for a in sizes))
        assert parts[0].startswith("DL_LOOP void same_1(float *p0, const int64_t z0_, const")
        assert f"{{\n  const int64_t z0 = z0_ & -{unit};\n" in parts[0]
        assert "i0 < z0; " in parts[0] and "z1_" not in parts[0]
    parts = shared(*(text.replace("A", a).replace("B", "1") for a in ("480", "481")))
    assert "_ &" not in parts[0]
