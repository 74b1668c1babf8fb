"""Compiled programs as objects: arguments, buffers, threads, the cache, the compiler."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError, Loc
from delian.core.compiler import backends
from delian.core.compiler.backends import compile_function, compile_module
from delian.core.compiler.backends.native.emit import emit
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain import toolchain as chains
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.ir import Block, Builder, DType, Function, ListType, TensorType

MATRIX = TensorType(DType.F32, (64, 48))


def square_function(scale: float = 2.0, name: str = "square") -> Function:
    """(x f32[64,48], s f32[]) -> x^T x scaled by s, and the sum of x."""
    b = Builder([MATRIX, TensorType(DType.F32)])
    x, s = b.params
    gram = b("dot", x, x, contract_a=(0,), contract_b=(0,), batch_a=(), batch_b=())
    factor = b("mul", s, b.constant(scale, DType.F32))
    scaled = b("mul", gram, b("broadcast", factor, shape=gram.shape, dims=()))
    return Function(
        name, b.finish([scaled, b("reduce_sum", x, axes=(0, 1))]), ("x", "s"), ("gram", "sum")
    )


@pytest.fixture(scope="module")
def program(toolchain: Toolchain) -> NativeProgram:
    return compile_native({"square": square_function()}, toolchain)["square"]


def matrix(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(MATRIX.shape).astype(np.float32)


def test_arguments_may_be_read_only_strided_or_numpy_numbers(program: NativeProgram) -> None:
    x = matrix()
    expected, total = program(x, np.array(1, np.float32))
    frozen = x.copy()
    frozen.setflags(write=False)
    strided = np.asfortranarray(x)
    for arg in (frozen, strided):
        gram, _ = program(arg, np.float32(1))
        assert np.array_equal(gram, expected)
    np.testing.assert_allclose(expected, 2 * x.T @ x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(total, x.sum(dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((matrix(),), "takes 2 arguments, not 1"),
        ((matrix().astype(np.float64), np.float32(1)), r"\(x\) must be f32\[64,48\], not float64"),
        ((matrix().T, np.float32(1)), r"\(x\) must have shape \[64, 48\]"),
        (([[1.0]], np.float32(1)), r"\(x\) must be an array"),
        ((matrix(), np.ones(1, np.float32)), r"\(s\) must have shape"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    program: NativeProgram, args: Any, message: str
) -> None:
    with pytest.raises(DelianError, match=message):
        program(*args)


def test_results_are_written_into_buffers(program: NativeProgram) -> None:
    out = [np.empty((48, 48), np.float32), np.empty((), np.float32)]
    results = program(matrix(), np.float32(1), out=out)
    assert all(r is o for r, o in zip(results, out, strict=True))
    assert np.array_equal(out[0], program(matrix(), np.float32(1))[0])


def test_buffers_that_do_not_fit_or_overlap_are_refused(program: NativeProgram) -> None:
    total = np.empty((), np.float32)
    with pytest.raises(DelianError, match=r"out\[0\] \(gram\)"):
        program(matrix(), np.float32(1), out=[np.empty((48, 47), np.float32), total])
    base = np.empty(64 * 48, np.float32)
    inside = base[: 48 * 48].reshape(48, 48)
    with pytest.raises(DelianError, match=r"out\[0\] \(gram\) overlaps an argument"):
        program(base.reshape(64, 48), np.float32(1), out=[inside, total])
    gram = np.empty((48, 48), np.float32)
    with pytest.raises(DelianError, match=r"out\[1\] \(sum\) overlaps"):
        program(matrix(), np.float32(1), out=[gram, gram.reshape(-1)[5:6].reshape(())])


def donating_function() -> Function:
    """(w, g) -> w - g and their difference the other way about; w's memory is given away."""
    b = Builder([MATRIX, MATRIX])
    w, g = b.params
    total = b("reduce_sum", w, axes=(0, 1))
    results = [total, b("sub", g, w), b("sub", w, g)]
    return Function("step", b.finish(results), ("w", "g"), ("t", "a", "b"), frozenset([0]))


def test_a_donated_argument_becomes_a_result(toolchain: Toolchain) -> None:
    step = compile_native({"step": donating_function()}, toolchain)["step"]
    w, g = matrix(1), matrix(2)
    before = w.copy()
    total, first, second = step(w, g)
    assert first is w, "the first result of its type has its memory"
    assert np.array_equal(first, g - before) and np.array_equal(second, before - g)
    np.testing.assert_allclose(total, before.sum(dtype=np.float64), rtol=1e-4)


def test_a_donated_argument_that_cannot_be_written_is_copied(toolchain: Toolchain) -> None:
    step = compile_native({"step": donating_function()}, toolchain)["step"]
    w, g = matrix(1), matrix(2)
    w.setflags(write=False)
    before = w.copy()
    out = [np.empty((), np.float32), np.empty_like(g), np.empty_like(g)]
    for results in (step(w, g), step(before, g, out=out)):
        assert np.array_equal(results[1], g - w)
    assert np.array_equal(w, before), "with buffers given, the argument is left alone"


def test_swapped_donations_are_kept_apart(toolchain: Toolchain) -> None:
    b = Builder([MATRIX, MATRIX])
    swap = Function("swap", b.finish(b.params[::-1]), ("x", "y"), ("y", "x"), frozenset([0, 1]))
    x, y = matrix(1), matrix(2)
    old_x, old_y = x.copy(), y.copy()
    new_y, new_x = compile_native({"swap": swap}, toolchain)["swap"](x, y)
    assert np.array_equal(new_y, old_y) and np.array_equal(new_x, old_x)


def test_threads_share_a_program(program: NativeProgram) -> None:
    inputs = [matrix(seed) for seed in range(4)]
    expected = [program(x, np.float32(1))[0] for x in inputs]
    wrong = []

    def run(k: int) -> None:
        for _ in range(200):
            if not np.array_equal(program(inputs[k], np.float32(1))[0], expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_entries_of_a_module_share_a_library(toolchain: Toolchain) -> None:
    functions = {"one": square_function(1.0, "one"), "two": square_function(2.0, "two")}
    programs = compile_native(functions, toolchain)
    assert programs["one"].report.library == programs["two"].report.library
    one, two = (programs[n](matrix(), np.float32(1))[0] for n in ("one", "two"))
    np.testing.assert_allclose(2 * one, two, rtol=1e-6)


def test_names_in_a_program_cannot_become_code(toolchain: Toolchain) -> None:
    evil = "**// int evil = 1; /*\n#error evil\n*/ syntax error \\"
    plain = square_function()
    body = Block(plain.body.params, [*plain.body.ops], plain.body.results)
    for op in body.ops:
        op.locs = (Loc(evil, 1, 0, 1, 1),)
    function = Function(evil, body, (evil, "s"), ("gram", evil))
    source, _ = emit({"entry": function})
    assert "evil = 1" not in source.replace("int evil ? 1", "") and "#error" not in source
    compile_native({evil: function}, toolchain)


def test_large_constants_travel_beside_the_code(toolchain: Toolchain) -> None:
    """Two programs that differ only in a large constant are still two."""
    programs = []
    for seed in (1, 2):
        b = Builder([MATRIX])
        y = b("add", b.params[0], b.constant(matrix(seed)))
        function = Function("shift", b.finish([y]), ("x",), ("y",))
        programs.append(compile_native({"shift": function}, toolchain)["shift"])
    for seed, shift in zip((1, 2), programs, strict=True):
        np.testing.assert_allclose(shift(matrix())[0], matrix() + matrix(seed), rtol=1e-6)


def test_a_warm_cache_needs_no_compiler(
    toolchain: Toolchain, program: NativeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(Toolchain, "compile", refuse)
    again = compile_native({"square": square_function()}, toolchain)["square"]
    assert again.report == program.report
    with pytest.raises(AssertionError, match="compiled again"):
        compile_native({"square": square_function(3.0)}, toolchain)


def test_what_the_compiler_says_is_passed_on(toolchain: Toolchain, tmp_path: Path) -> None:
    source = tmp_path / "bad.c"
    source.write_text("int f(void) { return undeclared; }")
    with pytest.raises(DelianError, match="undeclared"):
        toolchain.compile(source, tmp_path / "bad.so")


def test_lists_do_not_cross_the_boundary(toolchain: Toolchain) -> None:
    b = Builder([ListType(MATRIX)])
    function = Function("f", b.finish(b.params), ("l",), ("l",))
    with pytest.raises(DelianError, match="takes or gives a list"):
        compile_native({"f": function}, toolchain)


def test_without_a_compiler_programs_run_on_numpy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chains, "find", lambda: None)
    backends._warn_once.cache_clear()
    for _ in range(2):
        run = compile_function(square_function())
        assert not isinstance(run, NativeProgram)
        run(matrix(), np.array(1, np.float32))
    assert capsys.readouterr().err.count("no C compiler") == 1


def test_an_unknown_back_end_is_refused() -> None:
    with pytest.raises(DelianError, match="no back end 'torch'"):
        compile_module({}, "torch")  # type: ignore[arg-type]


def test_a_compiler_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELIAN_CC", "no-such-compiler")
    with pytest.raises(DelianError, match="DELIAN_CC names 'no-such-compiler'"):
        chains.find()


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs ziglang")
def test_zig_compiles_with_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path))
    monkeypatch.setenv("DELIAN_CC", f"{sys.executable} -m ziglang cc")
    zig = chains.find()
    assert zig is not None and zig.name == "zig cc"
    run = compile_native({"square": square_function()}, zig)["square"]
    np.testing.assert_allclose(
        run(matrix(), np.float32(1))[0], 2 * matrix().T @ matrix(), rtol=1e-5, atol=1e-5
    )
    assert not (Path.cwd() / ".zig-cache").exists()
