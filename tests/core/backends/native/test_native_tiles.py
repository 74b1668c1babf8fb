"""A program has the tiles that it uses; without them it would be slower, and give the same bits."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
from delian.core.backends.native import tiles
from delian.core.backends.native.artifact import Facts
from delian.core.backends.native.assemble import assembled
from delian.core.backends.native.program import NativeProgram, load_object
from delian.core.backends.native.toolchain import Toolchain
from delian.core.ir import Builder, DType, Function, TensorType

#: images, their size, channels in and out, kernel, stride
CONVOLUTIONS = (
    (2, (28, 28), (1, 33), (5, 5), 1),
    (2, (23, 9), (3, 16), (3, 3), 2),
    (3, (14, 14), (32, 64), (3, 3), 1),
    (9, (21, 20), (16, 48), (3, 3), 1),
    (2, (30, 31), (16, 16), (5, 5), 1),
)
#: rows, columns, terms
PRODUCTS = ((10, 200, 70), (25, 16, 300), (144, 96, 40), (2311, 70, 64), (1, 50, 50), (33, 7, 129))


def _network() -> Function:
    """Convolutions, their gradients and products, of sizes that tiles divide and do not."""
    shapes: list[tuple[int, ...]] = []
    hows: list[dict[str, Any]] = []
    for n, (h, w), (c, o), (kh, kw), s in CONVOLUTIONS:
        oh, ow = (h - 1) // s + 1, (w - 1) // s + 1
        over = [(oh - 1) * s + kh - h, (ow - 1) * s + kw - w]
        padding = tuple((each // 2, each - each // 2) for each in over)
        hows.append({"strides": (s, s), "padding": padding})
        shapes += [(n, h, w, c), (kh, kw, c, o), (n, oh, ow, o)]
    for m, n, k in PRODUCTS:
        shapes += [(m, k), (k, n), (n, k)]
    b = Builder([TensorType(DType.F32, shape) for shape in shapes])
    given, results = iter(b.params), []
    for how, (_, size, _, kernel, _) in zip(hows, CONVOLUTIONS, strict=True):
        x, k, y = next(given), next(given), next(given)
        results.append(b("conv", x, k, **how))
        results.append(b("conv_input_grad", y, k, input_size=size, **how))
        results.append(b("conv_weight_grad", x, y, kernel_size=kernel, **how))
    for _ in PRODUCTS:
        one = next(given)
        for across in (0, 1):
            axes = {"contract_a": (1,), "contract_b": (across,), "batch_a": (), "batch_b": ()}
            results.append(b("dot", one, next(given), **axes))
    names = tuple(f"x{i}" for i in range(len(shapes)))
    return Function(
        "network", b.finish(results), names, tuple(f"y{i}" for i in range(len(results)))
    )


def _loaded(text: str, facts: Facts, f: Function, toolchain: Toolchain, at: Path) -> NativeProgram:
    at.with_suffix(".c").write_text(text, encoding="utf-8")
    toolchain.compile(at.with_suffix(".c"), at)
    return load_object({"network": f}, at, facts)["network"]


def test_a_program_misses_no_tile_and_gives_the_bits_of_one_that_has_all_or_none(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    f = _network()
    text, facts = assembled({"network": f}, toolchain)
    named = re.findall(r"#define (DL_ROWS_\w+) 0x\w+\n", text)
    assert sorted(named) == ["DL_ROWS_EDGE", "DL_ROWS_EVEN", "DL_ROWS_NARROW", "DL_ROWS_WIDE"]
    counted = re.sub(r"(    } else \{ *\\\n) ( +LOW\()", r"\1 dl_missed++;\2", text)
    assert counted.count("dl_missed++") == 2
    declared = '__attribute__((visibility("default"))) long dl_missed;\n'
    none = re.sub(r"(#define DL_ROWS_\w+) 0x\w+\n", r"\1 0\n", text)
    every = re.sub(r"#define DL_ROWS_\w+ 0x\w+\n", "", text)
    rng = np.random.default_rng(2)
    args = [np.asarray(rng.standard_normal(p.shape), np.float32) for p in f.body.params]
    program = _loaded(declared + counted, facts, f, toolchain, tmp_path / "counted.so")
    results = program(*args)
    program.threads = 2
    program(*args)
    missed = ctypes.c_long.in_dll(ctypes.CDLL(str(tmp_path / "counted.so")), "dl_missed")
    assert missed.value == 0
    for name, other in (("none", none), ("every", every)):
        again = _loaded(other, facts, f, toolchain, tmp_path / f"{name}.so")(*args)
        for one, two in zip(results, again, strict=True):
            np.testing.assert_array_equal(one, two, err_msg=name)


def test_products_whose_sizes_are_not_in_the_text_have_all_tiles() -> None:
    named = "dl_gemm_f32(10, 16, 7, a, 7, 1, b, 16, 1, c, 0);"
    lines = tiles.defined([named], [], ["gemm"])
    # Ten rows, or turned about sixteen as twice eight; beside them five, and four.
    assert lines[-2:] == ["#define DL_ROWS_EVEN 0x500", "#define DL_ROWS_EDGE 0x30"]
    for texts, headers in (
        ([named, "dl_gemm_f32(rows, 16, 7, a);"], ["gemm"]),
        ([named, "dl_gemm_both_f32(8, 16, 7, a);"], ["gemm"]),
        ([named], ["gemm", "descent"]),
    ):
        assert not any("EVEN" in line for line in tiles.defined(texts, [], headers))
