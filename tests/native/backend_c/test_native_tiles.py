"""A program has the tiles that it uses; without them it would be slower, and give the same bits."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
from delian import ops
from delian.core.compiler.backends.native.assemble import assembled
from delian.core.compiler.backends.native.kernels import tiles
from delian.core.compiler.backends.native.program import NativeProgram, load_object
from delian.core.compiler.backends.native.toolchain.artifact import Facts
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.ir import Builder, DType, Function, TensorType

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


SETS = ("WIDE", "NARROW", "EVEN", "EDGE", "HALF")
DEFINED = re.compile(r"#define DL_(ROWS_\w+|WAYS) (0x\w+)u\n")


#: Which tiles there are, and which ways products go.
SETS = ("WIDE", "NARROW", "EVEN", "EDGE", "HALF")
DEFINED = re.compile(r"#define DL_(ROWS_\w+|WAYS) (0x\w+)u\n")


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


def _descent(batch: int) -> Function:
    """A step of two dense layers: products, both gradients at once, descent in the tile."""

    def step(w: Any, v: Any, x: Any, y: Any) -> Any:
        def loss(w: Any, v: Any) -> Any:
            error = np.maximum(x @ w, 0.0) @ v - y
            return np.sum(error * error)

        dw, dv = dl.grad(loss, (0, 1))(w, v)
        return w - 0.1 * dw, v - 0.1 * dv

    shapes = ((70, 640), (640, 530), (batch, 70), (batch, 530))
    given = (np.zeros(shape, np.float32) for shape in shapes)
    return dl.compile(step, donate=(0, 1)).trace(*given).function


def _attention(length: int, width: int) -> Function:
    """Attention, whose masked blocks are shorter, and its gradient."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        out = ops.attention(q, k, v, None, True)
        return np.sum(out * out)

    given = (np.zeros((1, 2, length, width), np.float32) for _ in range(3))
    return dl.compile(dl.grad(loss, (0, 1, 2))).trace(*given).function


def _recurrent(batch: int) -> Function:
    """A product whose matrix is packed before the loop."""

    def run(x: Any, w: Any) -> Any:
        state = x[0]
        for one in x:
            state = np.tanh(one + state @ w)
        return state

    given = (np.zeros((6, batch, 90), np.float32), np.zeros((90, 90), np.float32))
    return dl.compile(run).trace(*given).function


def _frozen(rows: int) -> Function:
    """Products whose second operand is computed while it is packed."""

    def run(x: Any, codes: Any) -> Any:
        w = codes.astype(np.float32) * 0.01
        return np.tanh(x @ w) @ w.T

    given = np.zeros((rows, 90), np.float32), np.zeros((90, 210), np.int8)
    return dl.compile(run).trace(*given).function


def _programs() -> dict[str, Function]:
    made = {"network": _network(), "attention": _attention(150, 40)}
    made |= {f"descent_{n}": _descent(n) for n in (7, 25, 40)}
    made |= {f"frozen_{n}": _frozen(n) for n in (3, 130)}
    return made | {f"recurrent_{n}": _recurrent(n) for n in (5, 40)}


def _loaded(
    text: str, facts: Facts, functions: dict[str, Function], toolchain: Toolchain, at: Path
) -> dict[str, NativeProgram]:
    at.with_suffix(".c").write_text(text, encoding="utf-8")
    toolchain.compile(at.with_suffix(".c"), at)
    return load_object(functions, at, facts)


def test_a_program_misses_no_tile_and_gives_the_bits_of_one_that_has_none(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    functions = _programs()
    made = assembled(functions, toolchain)
    text, facts = made.text, made.facts
    calls = (
        "both_f32(DL_",
        "both_f32(0, DL_",
        "step_f32(DL_",
        "add_f32(7",
        "packed(4",
        "f32(",
        "expanded(",
    )
    for call in calls:
        assert f"dl_gemm_{call}" in text
    named = [f"DL_{name}" for name, _ in DEFINED.findall(text)]
    assert sorted(named) == sorted([*(f"DL_ROWS_{name}" for name in SETS), "DL_WAYS"])
    counted = re.sub(r"((?:set|WAYS) >> \w+ & 1\) return \w+;\n)", r"\1  dl_missed++;\n", text)
    assert counted.count("dl_missed++") == 2
    declared = '__attribute__((visibility("default"))) long dl_missed;\n'
    programs = _loaded(declared + counted, facts, functions, toolchain, tmp_path / "counted.so")
    rng = np.random.default_rng(2)
    args = {
        name: [(9 * rng.standard_normal(p.shape)).astype(p.dtype.numpy) for p in f.body.params]
        for name, f in functions.items()
    }
    results = {name: program(*_copies(args[name])) for name, program in programs.items()}
    for name, program in programs.items():
        program.threads = 2
        program(*_copies(args[name]))
    missed = ctypes.c_long.in_dll(ctypes.CDLL(str(tmp_path / "counted.so")), "dl_missed")
    assert missed.value == 0
    none = re.sub(r"#define DL_(ROWS_\w+) 0x\w+u\n", r"#define DL_\1 0u\n", text)
    again = _loaded(none, facts, functions, toolchain, tmp_path / "none.so")
    for name, program in again.items():
        found = program(*_copies(args[name]))
        for one, two in zip(results[name], found, strict=True):
            np.testing.assert_array_equal(one, two, err_msg=name)


def _copies(arrays: list[Any]) -> list[Any]:
    return [a.copy() for a in arrays]


def test_products_whose_sizes_are_not_in_the_text_have_all_tiles() -> None:
    named = "dl_gemm_f32(10, 16, 70, a, 7, 1, b, 16, 1, c, 0);"
    # Ten rows of one vector, as twice five.
    assert _sets([named]) == {
        **{"ROWS_WIDE": 0, "ROWS_NARROW": 0, "ROWS_EVEN": 0},
        **{"ROWS_EDGE": 1 << 5, "ROWS_HALF": 0, "WAYS": 1 << 2},
    }
    for other in (
        "dl_gemm_f32(rows, 16, 7, a);",
        "dl_gemm_both_f32(0, 0, 8, 16, 7, a);",
        "dl_gemm_other(10, 16, 70, a, 7, 1, b, 16, 1, c, 0);",
        "const dl_heads z = {.t = 8};",
    ):
        assert not any("EVEN" in name for name in _sets([named, other])), other


def test_other_sizes_than_the_headers_have_all_tiles(toolchain: Toolchain, tmp_path: Path) -> None:
    text = assembled({"network": _network()}, toolchain).text
    source = tmp_path / "network.c"
    source.write_text(text + "\nevery = DL_ROWS_EVEN;\n", encoding="utf-8")

    def every(*flags: str) -> bool:
        return "every = ~0u;" in toolchain.with_flags(flags).preprocessed(source)

    assert every("-DDL_THIN=0") and every("-DDL_FEW=6") and every("-DDL_MR=6")
    assert every() == every("-DDL_FEW=3")


def _sets(texts: list[str]) -> dict[str, int]:
    lines = "\n".join(tiles.defined(texts, [], ["gemm"])) + "\n"
    return {name: int(bits, 16) for name, bits in DEFINED.findall(lines)}


def test_a_convolution_that_a_loop_follows_has_the_tiles_of_its_strips() -> None:
    call = "dl_conv_f32((dl_sizes + 0), p0, p1, {}, (float *)(arena + 0), {});"
    d = {"n": 1, "h": 28, "w": 15, "c": 4, "kh": 3, "kw": 3, "o": 96, "oh": 26, "ow": 13}
    d |= {"sh": 1, "sw": 1, "top": 0, "left": 0}
    sizes = [", ".join(f".{name} = {size}" for name, size in d.items())]
    # An image of 26 x 13 pixels is tiles of eight rows and seven, two rows of it of seven and six.
    assert "#define DL_ROWS_WIDE 0x180u" in tiles.defined([call.format("r0", "0")], sizes, [])
    assert "#define DL_ROWS_WIDE 0xc0u" in tiles.defined([call.format("0", "&then1")], sizes, [])
