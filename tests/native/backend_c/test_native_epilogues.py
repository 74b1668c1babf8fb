"""Loops that follow a convolution row by row: the same bits as after it, and how far they go."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.cli.programs.listing import fused
from delian.core.compiler.backends.native.emit import emit
from delian.core.compiler.backends.native.kernels import winograd
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain, find
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType, Value
from delian.core.compiler.passes.schedule import execution_order
from delian.core.compiler.passes.schedule.block_steps import Loop
from delian.core.compiler.passes.schedule.fuse import schedule

F32 = DType.F32
#: images, their size, channels in and out, the kernel's side, the stride.
CONVOLUTIONS: dict[str, tuple[int, tuple[int, int], tuple[int, int], int, int]] = {
    "tiles": (3, (12, 8), (16, 32), 3, 1),
    "tiles, some sticking out": (5, (14, 14), (32, 16), 3, 1),
    "tiles, odd": (3, (9, 11), (16, 16), 3, 1),
    "tiles of five": (2, (14, 10), (16, 32), 5, 1),
    "strips of an image in tiles": (1, (30, 40), (64, 64), 3, 1),
    "one channel": (3, (28, 28), (1, 24), 5, 1),
    "one channel, odd": (2, (13, 27), (1, 40), 3, 1),
    "long sums": (2, (12, 10), (40, 20), 3, 1),
    "a stride": (2, (16, 20), (16, 24), 3, 2),
    "single pixels with a stride": (2, (16, 12), (16, 24), 1, 2),
    "many channels of few": (2, (8, 8), (16, 48), 3, 1),
}


def _across(b: Builder, v: Value, like: Value) -> Value:
    return b("broadcast", v, shape=like.shape, dims=(3,))


def _relu(b: Builder, y: Value) -> Value:
    zero = b.full(y.tensor, 0)
    return b("select", b("le", y, zero), zero, y)


def _biased(b: Builder, y: Value, row: Value, residual: Value) -> list[Value]:
    return [_relu(b, b("add", y, _across(b, row, y)))]


def _affine(b: Builder, y: Value, row: Value, residual: Value) -> list[Value]:
    y = _relu(b, b("add", b("mul", y, _across(b, row, y)), _across(b, row, y)))
    six = b.full(y.tensor, 6)
    return [b("select", b("le", six, y), six, y)]


def _residual(b: Builder, y: Value, row: Value, residual: Value) -> list[Value]:
    total = b("add", residual, b("mul", y, _across(b, row, y)))
    return [total, b("lt", total, b.full(y.tensor, 0))]


def _pooled(b: Builder, y: Value, row: Value, residual: Value) -> list[Value]:
    n, h, w, c = y.shape
    y = _biased(b, y, row, residual)[0]
    if h % 2 or w % 2:
        stop = (n, h // 2 * 2, w // 2 * 2, c)
        y = b("slice", y, start=(0, 0, 0, 0), stop=stop, step=(1, 1, 1, 1))
    y = b("reshape", y, shape=(n, h // 2, 2, w // 2, 2, c))
    return [b("reduce_max", y, axes=(2, 4))]


def _windows(b: Builder, y: Value, row: Value, residual: Value) -> list[Value]:
    """The first and the last pixel of each window of four."""
    n, h, w, c = y.shape
    stop = (n, h // 2 * 2, w // 2 * 2, c)
    first, last = (b("slice", y, start=(0, i, i, 0), stop=stop, step=(1, 2, 2, 1)) for i in (0, 1))
    return [_relu(b, b("sub", first, last))]


CHAINS: dict[str, Callable[[Builder, Value, Value, Value], list[Value]]] = {
    "bias and relu": _biased,
    "affine and relu6": _affine,
    "residual": _residual,
    "pooled": _pooled,
    "windows": _windows,
}
#: What narrower vectors are tried with.
NARROW = [("tiles", "residual"), ("tiles of five", "pooled"), ("one channel, odd", "windows")]
NARROW += [("one channel", "pooled"), ("one channel", "windows")]
CASES = [
    (name, chain)
    for name in CONVOLUTIONS
    for chain in CHAINS
    if "tiles" in name or chain in ("pooled", "windows")
]


def block(name: str, chain: str) -> Block:
    n, (h, w), (c, o), side, stride = CONVOLUTIONS[name]
    pad = side // 2
    high, wide = ((size + 2 * pad - side) // stride + 1 for size in (h, w))
    shapes = ((n, h, w, c), (side, side, c, o), (o,), (n, high, wide, o))
    b = Builder([TensorType(F32, shape) for shape in shapes])
    x, k, row, residual = b.params
    y = b("conv", x, k, strides=(stride, stride), padding=((pad, pad), (pad, pad)))
    return b.finish(CHAINS[chain](b, y, row, residual))


def function(name: str, chain: str) -> Function:
    made = block(name, chain)
    results = tuple(f"r{i}" for i in range(len(made.results)))
    return Function("f", made, ("x", "k", "row", "residual"), results)


def arguments(name: str, chain: str) -> list[Any]:
    rng = np.random.default_rng(5)
    params = block(name, chain).params
    return [rng.standard_normal(p.shape, dtype=np.float32) for p in params]


def compiled(toolchain: Toolchain, cases: Sequence[tuple[str, str]]) -> Mapping[str, NativeProgram]:
    return compile_native(
        {f"{name}, {chain}": function(name, chain) for name, chain in cases}, toolchain
    )


@pytest.fixture(scope="module", autouse=True)
def tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "_WORTH", 100.0)  # small cases are not worth it
        yield


@pytest.fixture(scope="module")
def programs(toolchain: Toolchain) -> Mapping[str, NativeProgram]:
    return compiled(toolchain, CASES)


@pytest.fixture(scope="module")
def apart(
    toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, NativeProgram]:
    """The same with every loop by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELIAN_CACHE", str(tmp_path_factory.mktemp("apart")))
        patch.setattr(execution_order, "may_follow", lambda loop, op: False)
        assert not any(follows(*case) for case in CASES)
        return compiled(toolchain, CASES)


def follows(name: str, chain: str) -> bool:
    """Whether the loop takes the convolution's rows."""
    steps = schedule(block(name, chain)).steps
    return any(isinstance(s, Loop) and s.product is not None for s in steps)


@pytest.mark.parametrize(("name", "chain"), CASES)
def test_what_follows_row_by_row_gives_the_bits_of_what_comes_after(
    name: str, chain: str, programs: Mapping[str, NativeProgram], apart: Mapping[str, NativeProgram]
) -> None:
    args, key = arguments(name, chain), f"{name}, {chain}"
    results = programs[key](*args)
    for one, other in zip(results, apart[key](*args), strict=True):
        assert one.tobytes() == other.tobytes()
    expected = run_block(block(name, chain), args)
    scale = max(1.0, float(np.abs(expected[0]).max()))
    np.testing.assert_allclose(results[0], expected[0], rtol=1e-4, atol=1e-4 * scale)


def test_loops_follow_tiles_and_where_less_is_stored() -> None:
    follow = {(name, chain) for name in CONVOLUTIONS for chain in CHAINS if follows(name, chain)}
    for chain in CHAINS:
        less = chain in ("pooled", "windows")
        for name in ("tiles", "tiles, some sticking out", "tiles of five"):
            assert (name, chain) in follow
        for name in ("one channel", "long sums", "a stride", "single pixels with a stride"):
            assert ((name, chain) in follow) is less
        assert ("many channels of few", chain) not in follow
    assert ("tiles, odd", "residual") in follow
    assert ("tiles, odd", "windows") not in follow  # a pair of rows would be of two images


def test_what_is_pooled_row_by_row_takes_less_memory() -> None:
    def arena() -> int:
        return emit({"f": function("one channel", "pooled")})[1]["f"].arena_bytes

    less = arena()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution_order, "may_follow", lambda loop, op: False)
        assert less < 0.6 * arena()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are Linux's")
def test_threads_change_no_bit_of_what_follows(programs: Mapping[str, NativeProgram]) -> None:
    for name in ("strips of an image in tiles", "one channel"):
        for chain in (chain for other, chain in CASES if other == name):
            program, args = programs[f"{name}, {chain}"], arguments(name, chain)
            alone = [r.tobytes() for r in program(*args)]
            program.threads = 3
            try:
                assert [r.tobytes() for r in program(*args)] == alone, (name, chain)
            finally:
                program.threads = 1


@pytest.mark.skipif(shutil.which("gcc") is None, reason="its options are GCC's")
@pytest.mark.parametrize(
    "options", [pytest.param("-mno-avx512f", marks=pytest.mark.slow), "-mno-avx", "-DDL_PORTABLE"]
)
def test_narrower_vectors_follow_too(
    options: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DELIAN_CC", f"gcc {options}")
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path))
    narrow = find()
    assert narrow is not None
    for key, program in compiled(narrow, NARROW).items():
        name, chain = key.rsplit(", ", 1)
        args = arguments(name, chain)
        expected = run_block(block(name, chain), args)
        scale = max(1.0, float(np.abs(expected[0]).max()))
        np.testing.assert_allclose(program(*args)[0], expected[0], rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="its options are GCC's")
@pytest.mark.parametrize("options", ["-mno-avx", "-DDL_PORTABLE"])
def test_what_follows_a_product_takes_tiles_as_narrow_as_they_are(
    options: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DELIAN_CC", f"gcc {options}")
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path))
    narrow = find()
    assert narrow is not None
    functions = {}
    for columns in (33, 40, 48, 56):
        b = Builder([TensorType(F32, (40, 20)), TensorType(F32, (20, columns))])
        how: dict[str, Any] = {"batch_a": (), "batch_b": ()}
        y = b("dot", *b.params, contract_a=(1,), contract_b=(0,), **how)
        made = b.finish([b("mul", y, b.full(y.tensor, 0.25))])
        functions[f"{columns}"] = Function("f", made, ("a", "b"), ("y",))
    for name, program in compile_native(functions, narrow).items():
        rng = np.random.default_rng(1)
        args = [rng.standard_normal(p.shape, dtype=np.float32) for p in functions[name].body.params]
        (expected,) = run_block(functions[name].body, args)
        guarded = np.full(expected.size + 2000, 7, np.float32)
        program(*args, out=[guarded[1000:-1000].reshape(expected.shape)])
        np.testing.assert_allclose(guarded[1000:-1000].reshape(expected.shape), expected, atol=1e-4)
        assert (guarded[:1000] == 7).all() and (guarded[-1000:] == 7).all()


@pytest.mark.parametrize(("rows", "asks"), [(40, False), (2048, True)])
def test_tiles_of_a_product_ask_for_large_matrices_ahead_of_time(
    rows: int, asks: bool, toolchain: Toolchain
) -> None:
    shapes = ((rows, 20), (48, 20), (rows, 48))
    b = Builder([TensorType(F32, shape) for shape in shapes])
    how: dict[str, Any] = {"batch_a": (), "batch_b": ()}
    y = b("dot", *b.params[:2], contract_a=(1,), contract_b=(1,), **how)
    names = ("a", "b", "c")
    f = Function("f", b.finish([b("mul", y, b.params[2])]), names, ("y",))
    text, _ = emit({"f": f})
    tile = text[text.index("void tile_1(") :]
    assert ("DL_PREFETCH_L2(p0 + (i0 + rows) * 48" in tile) == asks
    args = [np.random.default_rng(1).standard_normal(shape, dtype=np.float32) for shape in shapes]
    (expected,) = run_block(f.body, args)
    (got,) = compile_native({"f": f}, toolchain)["f"](*args)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_the_listing_shows_which_convolution_a_loop_follows() -> None:
    assert " = conv {" in fused(function("one channel", "pooled"))
    assert " = conv {" not in fused(function("one channel", "bias and relu"))


def test_a_file_without_what_follows_has_no_code_for_it() -> None:
    text, _ = emit({"f": function("one channel", "bias and relu")})
    assert "#define DL_THEN 1" not in text
    text, _ = emit({"f": function("one channel", "pooled")})
    assert "#define DL_THEN 1" in text
