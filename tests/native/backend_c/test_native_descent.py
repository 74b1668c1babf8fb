"""Both gradients of a dense layer in one pass over its weights, by tiles for few rows of a batch or
those of two products: what two passes give, and the same bits for any number of threads.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from delian.core.compiler.backends.native.assemble import assembled
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Array, Builder, DType, Function, TensorType
from delian.core.compiler.passes.schedule import execution_order

F32 = DType.F32
#: (rows of a batch, inputs, outputs): around lanes, tiles, stripes and panels of any processor, and
#: beyond what `dense.h` computes by the rows of the weights.
SIZES = [
    *((2, 9, 48), (3, 16, 64), (7, 17, 49), (12, 30, 63), (12, 8, 96), (13, 21, 79), (32, 43, 65)),
    *((2, 24, 32), (10, 23, 31), (3, 12, 16), (17, 25, 65), (32, 61, 40), (5, 130, 7)),
    *((10, 11, 90), (7, 100, 257), (32, 30, 2100), (16, 49, 33), (33, 50, 20)),
    *((2, 7, 50), (3, 18, 56), (4, 6, 88), (32, 50, 200)),
]


def gradients(batch: int, inputs: int, outputs: int, how: str, turned: bool = False) -> Function:
    """w -/+ rate * x'y, and y w'; with `turned` x lies turned."""
    x_shape = (inputs, batch) if turned else (batch, inputs)
    types = [(inputs, outputs), x_shape, (batch, outputs), ()]
    b = Builder([TensorType(F32, shape) for shape in types])
    w, x, y, rate = b.params
    back = b("dot", y, w, contract_a=(1,), contract_b=(1,), batch_a=(), batch_b=())
    at = (1,) if turned else (0,)
    g = b("dot", x, y, contract_a=at, contract_b=(0,), batch_a=(), batch_b=())
    new = b(how, w, b("mul", b("broadcast", rate, shape=w.shape, dims=()), g))
    block = b.finish([new, back])
    return Function("f", block, ("w", "x", "y", "rate"), ("w", "back"), frozenset([0]))


def cases() -> dict[str, Function]:
    table = {}
    for size in SIZES:
        for how in ("sub", "add"):
            table[f"{size} {how}"] = gradients(*size, how, turned=size[0] % 2 == 1)
    return table


CASES = cases()


def arguments(function: Function, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(p.shape), np.float32) for p in function.body.params]


@pytest.fixture(scope="module")
def programs(
    toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Mapping[str, NativeProgram], ...]:
    """In one pass, also where all would stay in a cache, and in two."""
    striped = replace(toolchain, flags=(*toolchain.flags, "-DDL_STRIPED=0"))
    built = []
    for least in (1, 1 << 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(execution_order, "BESIDE_MIN", least)
            patch.setattr(execution_order, "BESIDE_FEW_MIN", least)
            patch.setattr(execution_order, "TILES_MIN", 1)
            patch.setenv("DELIAN_CACHE", str(tmp_path_factory.mktemp("descent")))
            text = assembled(CASES, striped, False).text
            called = text.count(" dl_gemm_both_f32(")
            few = sum(
                f.body.params[2].shape[0] <= execution_order.BESIDE_ROWS_MAX for f in CASES.values()
            )
            assert called == (1 + few if least == 1 else 1)  # and where it is defined
            built.append(compile_native(CASES, striped))
    return tuple(built)


@pytest.mark.parametrize("name", CASES)
def test_one_pass_gives_what_two_give(
    name: str, programs: tuple[Mapping[str, NativeProgram], ...]
) -> None:
    one, two = (table[name] for table in programs)
    args = arguments(CASES[name], len(name))
    expected = run_block(CASES[name].body, args)
    first, second = one(*(a.copy() for a in args)), two(*(a.copy() for a in args))
    for a, b, c in zip(first, second, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-4)
    again = one(*(a.copy() for a in args))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_no_number_goes_where_two_passes_send_it(
    place: int, number: float, programs: tuple[Mapping[str, NativeProgram], ...]
) -> None:
    for name in CASES:
        args = arguments(CASES[name], 5)
        for at in (args[place].size // 2, -1):
            spoilt = [a.copy() for a in args]
            spoilt[place].flat[at] = number
            first, second = (table[name](*(a.copy() for a in spoilt)) for table in programs)
            for a, b in zip(first, second, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5)
            assert not np.all(np.isfinite(first[0]))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are Linux's")
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(
    threads: int, toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_order, "BESIDE_MIN", 1)
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path))
    sizes = ((10, 301, 257), (7, 130, 513), (25, 203, 260), (33, 300, 70))
    table = {str(size): gradients(*size, "sub") for size in sizes}
    toolchain = replace(toolchain, flags=(*toolchain.flags, "-DDL_STRIPED=0"))
    for name, program in compile_native(table, toolchain).items():
        args = arguments(table[name], 9)
        expected = program(*(a.copy() for a in args))
        program.threads = threads
        for a, b in zip(program(*(a.copy() for a in args)), expected, strict=True):
            np.testing.assert_array_equal(a, b)
