"""Runs of calls that became data call what they were, with what it was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.native import call_runs
from delian.core.compiler.backends.native.call_runs import Entry, Runs, entry_text
from delian.core.compiler.backends.native.program import compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType


def _driver(lines: list[str], macros: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """The lines of an entry when runs of any length become data, and what goes through them."""
    made = Runs(macros)
    (replaced,) = made.replaced([lines])
    return replaced, "\n".join(made.driver())


@pytest.fixture
def any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_runs, "CALLS_MIN", 2)
    monkeypatch.setattr(call_runs, "RUN_MIN", 2)


@pytest.mark.usefixtures("any_length")
class TestRuns:
    def test_pointers_numbers_and_fixed_arguments_are_told_apart(self) -> None:
        lines = [
            "/* dot */",
            "gemm(8, ((float *)(arena + 640)), (-3), r2, 5.0e-01f, (const float *)params[9]);",
            "gemm(9, ((float *)(arena + 640)), (-4), r2, 2.5e-01f, (const float *)params[9]);",
            "conv((dl_sizes + 4), p1, 0, &dl_side_3, arena + 128);",
            "conv((dl_sizes + 3), p1, 0, &dl_side_3, arena + 128);",
        ]
        replaced, driver = _driver(lines)
        assert replaced == ["dl_follow(0, 22, params, results, arena);"]
        half, quarter = (int(np.float32(x).view(np.int32)) for x in (0.5, 0.25))
        # What is named most comes first; a number and a parameter may be one value.
        values = f"-3, 640, -6, -19, 128, 8, {half}, 9, -4, {quarter}, 4, 3"
        assert f"dl_values[] = {{{values}}};" in driver
        assert "/* dot */ 0, 1, 2, 3, 5, 0, 6," in driver and " 0, 1, 2, 3, 7, 8, 9," in driver
        assert " 1, 0, 4, 10," in driver and " 1, 0, 4, 11," in driver
        assert "dl_counts[][2] = {{3, 3}, {2, 1}};" in driver
        assert "case 0: gemm(DL_INT_AT(0), p[0], DL_INT_AT(1), p[1], DL_F32_AT(2), p[2]);" in driver
        assert "case 1: conv(dl_sizes + DL_INT_AT(0), p[0], 0, &dl_side_3, p[1]);" in driver

    def test_numbers_that_are_the_same_in_all_calls_are_written_there(self) -> None:
        calls = [f"scale(r0, 7, {n}, 5.0e-01f);" for n in (30, 40)]
        replaced, driver = _driver(calls)
        assert replaced == ["dl_follow(0, 6, params, results, arena);"]
        half = int(np.float32(0.5).view(np.int32))
        assert f"scale(p[0], (7), DL_INT_AT(0), dl_as_f32((uint32_t)({half})));" in driver

    def test_values_that_are_named_least_take_two_bytes(self) -> None:
        often = [f"fill(r0, {n});" for n in range(1, 192)] * 2
        replaced, driver = _driver([*often, *(f"fill(r0, {n});" for n in range(200, 500))])
        assert replaced == [f"dl_follow(0, {3 * 382 + 4 * 300}, params, results, arena);"]
        assert " 0, 0, 191,\n" in driver and " 0, 0, 192, 0,\n" in driver
        assert " 0, 0, 193, 43,\n" in driver

    def test_calls_that_are_given_more_than_a_byte_counts_stay(self) -> None:
        for given, stay in ((255, False), (256, True)):
            pointers = ", ".join(f"p{i}" for i in range(given))
            calls = [f"loop_1({pointers});", "loop_2(r0);"]
            assert (_driver(calls) == (calls, "")) is stay

    def test_loops_that_share_a_function_are_one_case_with_their_numbers(self) -> None:
        functions = ("#define loop_1(...) same_1(__VA_ARGS__, 300)",)
        functions += ("#define loop_2(...) same_1(__VA_ARGS__, 70)",)
        replaced, driver = _driver(["loop_1(r0);", "loop_2(r1);"], functions)
        assert replaced == ["dl_follow(0, 6, params, results, arena);"]
        assert driver.count("case ") == 1 and "same_1(p[0], DL_INT_AT(0));" in driver

    def test_chunks_take_their_pointers_from_the_run(self) -> None:
        chunks = [
            "const void *const context1[] = {((float *)(arena + 64)), p0};",
            "dl_parallel(8, part_1, (void *)context1, 0, 0);",
        ]
        replaced, driver = _driver(["loop_1(r0);", *chunks, "loop_1(r1);"])
        assert replaced == ["dl_follow(0, 7, params, results, arena);"]
        assert "dl_parallel(8, part_1, p, 0, 0);" in driver

    @pytest.mark.parametrize(
        "line",
        [
            "loop_3(&v1);",
            "loop_3(r0 + at2);",
            "const float v3 = loop_3(r0);",
            "if (v1) loop_3(r0);",
            "for (int64_t i = 0; i < 3; i++) {",
            "fill(r0, 1.0e+00);",
            "fill(r0, 5000000000);",
            "fill(((float *)(arena + 5000000000)), 1);",
            "const void *const context1[] = {&k};\ndl_parallel(8, part_1, (void *)context1, 0, 0);",
        ],
    )
    def test_what_cannot_be_data_stays_and_parts_a_run(self, line: str) -> None:
        calls = ["loop_1(r0);", "loop_2(r0);"]
        replaced, _ = _driver([*calls, line, *calls])
        assert replaced == [
            "dl_follow(0, 4, params, results, arena);",
            *line.split("\n"),
            "dl_follow(4, 8, params, results, arena);",
        ]


def test_a_file_with_few_calls_keeps_them() -> None:
    lines = ["loop_1(r0);"] * (call_runs.CALLS_MIN - 1)
    assert _driver(lines) == (lines, "")


def test_more_values_than_calls_can_name_stay_in_the_calls() -> None:
    lines = [f"fill(r0, {n});" for n in range(2**16 + 1)]
    assert _driver(lines) == (lines, "")


def test_an_entry_declares_the_places_that_are_left() -> None:
    places = {"p0": "const float *const p0 = params[0];", "r0": "float *const r0 = results[0];"}
    text = entry_text(Entry("int entry(void) {", places, []), ["loop_1(r0);", "return 0;"])
    assert "*const r0" in text and "*const p0" not in text


def _steps(sizes: list[int]) -> Block:
    """Products, sums and what is made of them, which share nothing but functions."""
    b = Builder([TensorType(DType.F32, (n, n + 1)) for n in sizes])
    results = []
    for x in b.params:
        t = b("transpose", x, perm=(1, 0))
        y = b("dot", x, t, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
        total = b("reduce_sum", b("exp", b("neg", b("mul", y, y))), axes=(1,))
        results += [y, total]
    return b.finish(results)


def test_a_program_of_runs_gives_what_its_calls_gave(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [3, 17, 40, 300]
    names = [f"{kind}{n}" for n in sizes for kind in "ys"]
    f = Function("steps", _steps(sizes), tuple(f"x{n}" for n in sizes), tuple(names))
    monkeypatch.setattr(call_runs, "CALLS_MIN", 4)
    monkeypatch.setattr(call_runs, "RUN_MIN", 2)
    program = compile_native({"steps": f}, toolchain, threads=2)["steps"]
    source = program.report.library.with_suffix(".c").read_text("utf-8")
    assert "dl_follow(0, " in source
    rng = np.random.default_rng(3)
    args: list[Any] = [np.asarray(rng.normal(size=(n, n + 1)) / 19, np.float32) for n in sizes]
    for got, expected in zip(program(*args), run_block(f.body, args), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
