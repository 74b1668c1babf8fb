"""Loops, branches and lists natively, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import (
    Block,
    Builder,
    DType,
    Function,
    ListType,
    TensorType,
    Type,
    Value,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
NUMBER, INDEX, ROW = TensorType(F32), TensorType(I64), TensorType(F32, (5,))


def compiled(toolchain: Toolchain, block: Block) -> NativeProgram:
    names = tuple(f"a{i}" for i in range(len(block.params)))
    results = tuple(f"r{i}" for i in range(len(block.results)))
    return compile_native({"f": Function("f", block, names, results)}, toolchain)["f"]


def agree(toolchain: Toolchain, block: Block, *args: Any) -> None:
    arrays = [np.asarray(a) for a in args]
    program = compiled(toolchain, block)
    for result, expected in zip(program(*arrays), run_block(block, arrays), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def region(types: Sequence[Type], build: Callable[..., Sequence[Value]]) -> Block:
    b = Builder(types)
    return b.finish(build(b, *b.params))


def for_block(
    params: Sequence[Type], body: Callable[..., Sequence[Value]], consts: int = 0
) -> Block:
    """(trips, consts..., carries...) -> carries, of a `for` with this body."""
    inner = region([INDEX, *params], body)
    b = Builder([INDEX, *params])
    trips, *rest = b.params
    lo = b.constant(0, I64)
    return b.finish(b.emit("for", [lo, trips, *rest], {"consts": consts}, [inner]))


ROW_A, ROW_B = np.arange(5, dtype=np.float32), np.linspace(-1, 1, 5, dtype=np.float32)


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_carries_that_swap_places(toolchain: Toolchain, trips: int) -> None:
    block = for_block([ROW, ROW], lambda b, i, x, y: [y, x])
    agree(toolchain, block, np.int64(trips), ROW_A, ROW_B)


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_a_carry_read_after_the_other_is_computed(toolchain: Toolchain, trips: int) -> None:
    block = for_block([ROW, ROW], lambda b, i, x, y: [b("add", x, y), b("sub", x, y)])
    agree(toolchain, block, np.int64(trips), ROW_A, ROW_B)


@pytest.mark.parametrize("trips", [0, 3])
def test_one_value_for_two_carries(toolchain: Toolchain, trips: int) -> None:
    def body(b: Builder, i: Value, x: Value, y: Value) -> list[Value]:
        z = b("add", x, y)
        return [z, z]

    agree(toolchain, for_block([ROW, ROW], body), np.int64(trips), ROW_A, ROW_B)


@pytest.mark.parametrize("trips", [0, 3])
def test_carries_that_are_never_read(toolchain: Toolchain, trips: int) -> None:
    def body(b: Builder, i: Value, x: Value, y: Value) -> list[Value]:
        return [b.full(ROW, 1), b.full(ROW, 2)]

    agree(toolchain, for_block([ROW, ROW], body), np.int64(trips), ROW_A, ROW_B)


def test_a_carry_started_from_a_value_used_later(toolchain: Toolchain) -> None:
    inner = region([INDEX, ROW], lambda b, i, x: [b("mul", x, x)])
    b = Builder([INDEX, ROW])
    start = b("add", b.params[1], b.params[1])
    (looped,) = b.emit("for", [b.constant(0, I64), b.params[0], start], {"consts": 0}, [inner])
    agree(toolchain, b.finish([looped, start]), np.int64(2), ROW_A)


def test_a_carry_that_transposes_itself(toolchain: Toolchain) -> None:
    square = TensorType(F32, (4, 4))
    block = for_block([square], lambda b, i, x: [b("transpose", x, perm=(1, 0))])
    agree(toolchain, block, np.int64(3), np.arange(16, dtype=np.float32).reshape(4, 4))


def test_a_rank_0_carry_read_out_of_a_tensor_carry(toolchain: Toolchain) -> None:
    def body(b: Builder, i: Value, x: Value, s: Value) -> list[Value]:
        first = b("reshape", b("slice", x, start=(1,), stop=(2,), step=(1,)), shape=())
        return [b("mul", x, b("broadcast", s, shape=(5,), dims=())), first]

    agree(toolchain, for_block([ROW, NUMBER], body), np.int64(3), ROW_A, np.float32(2))


def test_a_loop_in_a_loop_with_what_it_reads_from_outside(toolchain: Toolchain) -> None:
    inner = region([INDEX, ROW, ROW], lambda b, i, c, x: [b("add", b("mul", c, x), c)])

    def body(b: Builder, i: Value, c: Value, x: Value) -> list[Value]:
        (y,) = b.emit("for", [b.constant(0, I64), i, c, x], {"consts": 1}, [inner])
        return [b("sub", y, x)]

    agree(toolchain, for_block([ROW, ROW], body, 1), np.int64(4), ROW_B, ROW_A)


@pytest.mark.parametrize("limit", [0, 1, 100])
def test_while_runs_until_its_condition_fails(toolchain: Toolchain, limit: int) -> None:
    """The condition computes tensors of its own, while the carries must stay as they are."""
    square = TensorType(F32, (4, 4))

    def cond(b: Builder, n: Value, x: Value) -> list[Value]:
        total = b("reduce_sum", b("mul", b("exp", x), x), axes=(0, 1))
        return [b("lt", total, b.constant(limit, F32))]

    def body(b: Builder, n: Value, x: Value) -> list[Value]:
        more = b("add", b("transpose", x, perm=(1, 0)), b.full(square, 0.5))
        return [b("add", n, b.constant(1, I64)), more]

    b = Builder([INDEX, square])
    regions = [region([INDEX, square], cond), region([INDEX, square], body)]
    block = b.finish(b.emit("while", b.params, {"consts": 0}, regions))
    agree(toolchain, block, np.int64(0), np.arange(16, dtype=np.float32).reshape(4, 4) / 100)


@pytest.mark.parametrize("pred", [True, False])
def test_branches_give_parameters_views_and_numbers(toolchain: Toolchain, pred: bool) -> None:
    types = [ROW, ROW, NUMBER]
    then = region(types, lambda b, x, y, s: [x, b("reverse", y, axes=(0,)), s])
    otherwise = region(types, lambda b, x, y, s: [b("add", x, y), x, b("reduce_sum", x, axes=(0,))])
    b = Builder([TensorType(BOOL), *types])
    results = b.emit("if", b.params, {}, [then, otherwise])
    block = b.finish([b("add", results[0], b.params[1]), *results])
    agree(toolchain, block, np.bool_(pred), ROW_A, ROW_B, np.float32(3))


def test_regions_that_passes_left_sharing_values(toolchain: Toolchain) -> None:
    """Two blocks of the same values, one without an operation that was dead there."""
    full = region([ROW, ROW], lambda b, x, y: [b("mul", x, y), b("add", x, y)])
    part = Block(full.params, full.ops[1:], full.results[1:])
    b = Builder([TensorType(BOOL), ROW, ROW])
    first = b.emit("if", b.params, {}, [part, part])
    second = b.emit("if", [b.params[0], b.params[2], first[0]], {}, [full, full])
    agree(toolchain, b.finish([*first, *second]), np.bool_(True), ROW_A, ROW_B)


def test_results_that_are_parameters_constants_and_each_other(toolchain: Toolchain) -> None:
    b = Builder([ROW, NUMBER])
    table = b.constant(np.arange(100, dtype=np.float32))
    small = b.constant(np.arange(3, dtype=np.int32))
    y = b("neg", b.params[0])
    agree(toolchain, b.finish([*b.params, table, small, y, y, table]), ROW_A, np.float32(2))


@pytest.mark.parametrize("dtype", [I64, DType.I32, DType.U8, BOOL, F32])
def test_tables_that_begin_with_equal_numbers_and_end_in_zeros(
    toolchain: Toolchain, dtype: DType
) -> None:
    """GCC 12 takes a block of 32 or 64 bytes of them for one of equal numbers when it copies it."""
    tables = []
    for size in (32, 64, 56):
        count = size // dtype.itemsize
        for equal in (count // 2, count // 4, 2):
            rest = [0] * (count - equal - 1)
            tables.append(np.array([1] * equal + [*rest, int(size == 56)], dtype.numpy))
            if dtype in (I64, DType.I32):
                tables.append(-tables[-1] - (np.arange(count) >= equal))
    b = Builder([TensorType(dtype, (3,))])
    made = [b.constant(table) for table in tables if table.size <= 64]
    joined = b("concat", b.params[0], *made, axis=0)
    agree(toolchain, b.finish([*made, joined]), np.array([1, 0, 1], dtype.numpy))


def test_tensors_without_elements(toolchain: Toolchain) -> None:
    empty = TensorType(F32, (0, 3))
    b = Builder([empty, TensorType(F32, (3, 4))])
    x, w = b.params
    product = b("dot", x, x, contract_a=(0,), contract_b=(0,), batch_a=(), batch_b=())
    rows = b("dot", x, w, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
    total = b("reduce_sum", b("exp", x), axes=(0,))
    joined = b("concat", w, b("transpose", x, perm=(1, 0)), axis=1)
    block = b.finish([product, rows, total, joined, b("reduce_sum", x, axes=(0, 1))])
    agree(toolchain, block, np.zeros((0, 3), np.float32), np.ones((3, 4), np.float32))


def list_block(element: Type, push: Callable[[Builder, Value], Value]) -> Block:
    """(trips, x) -> what is popped, one more than was pushed."""
    stack = ListType(element)

    def grow(b: Builder, i: Value, x: Value, stack: Value) -> list[Value]:
        return [b("list_push", stack, push(b, b("convert", i, dtype=F32)))]

    def shrink(b: Builder, i: Value, stack: Value, total: Value) -> list[Value]:
        rest, top = b.emit("list_pop", [stack])
        scaled = b("mul", total, b.full(total.tensor, 2))
        return [rest, b("add", scaled, top)]

    b = Builder([INDEX, NUMBER])
    trips, x = b.params
    lo = b.constant(0, I64)
    first = region([INDEX, NUMBER, stack], grow)
    empty = b("list_empty", type=stack)
    (filled,) = b.emit("for", [lo, trips, x, empty], {"consts": 1}, [first])
    twice = b("list_add", filled, filled)
    again = b("list_add", twice, empty)
    second = region([INDEX, stack, element], shrink)
    more = b("add", trips, b.constant(1, I64))
    _, total = b.emit("for", [lo, more, again, b.zeros(element)], {"consts": 0}, [second])
    return b.finish([total])


def test_lists_of_tensors_and_of_numbers(toolchain: Toolchain) -> None:
    block = list_block(ROW, lambda b, i: b("broadcast", i, shape=(5,), dims=()))
    agree(toolchain, block, np.int64(6), np.float32(1))
    agree(toolchain, list_block(NUMBER, lambda b, i: i), np.int64(6), np.float32(1))


def test_lists_that_outgrow_their_limit_are_an_error(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = TensorType(F32, (1000,))
    block = list_block(big, lambda b, i: b("broadcast", i, shape=(1000,), dims=()))
    program = compiled(toolchain, block)
    monkeypatch.setenv("DELIAN_LIST_BYTES_MAX", str(4 << 20))
    with pytest.raises(DelianError, match="outgrew"):
        program(np.array(5000), np.float32(1))
    program(np.array(5), np.float32(1))


def test_a_round_gives_its_list_memory_back(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = list_block(TensorType(F32, (1000,)), lambda b, i: b.full(TensorType(F32, (1000,)), 1))

    def body(b: Builder, i: Value, x: Value) -> list[Value]:
        (total,) = b.inline(inner, [b.constant(100, I64), x])
        return [b("reduce_max", total, axes=(0,))]

    program = compiled(toolchain, for_block([NUMBER], body))
    monkeypatch.setenv("DELIAN_LIST_BYTES_MAX", str(8 << 20))
    program(np.array(100), np.float32(1))


@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_random_programs_and_their_gradients(
    toolchain: Toolchain, random_programs: Any, data: st.DataObject
) -> None:
    from delian.core.compiler.passes.simplify import simplify
    from delian.core.compiler.transforms.vjp import vjp

    functions, arguments = {}, {}
    for n in range(12):
        program = data.draw(random_programs.programs())
        ones = [np.ones(r.shape) for r in program.block.results if r.dtype.is_float]
        gradient = simplify(vjp(program.block, program.wrt))
        for kind, block, args in (
            ("f", program.block, program.args),
            ("g", gradient, [*program.args, *ones]),
        ):
            params = tuple(f"a{i}" for i in range(len(block.params)))
            results = tuple(f"r{i}" for i in range(len(block.results)))
            functions[f"{kind}{n}"] = Function(f"{kind}{n}", block, params, results)
            arguments[f"{kind}{n}"] = [np.asarray(a) for a in args]
    for name, program in compile_native(functions, toolchain).items():
        expected = run_block(functions[name].body, arguments[name])
        for result, wanted in zip(program(*arguments[name]), expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 9])
def test_switch_takes_the_nearest_case(toolchain: Toolchain, index: int) -> None:
    cases = [
        region([ROW, NUMBER], lambda b, x, y: [x, y]),
        region([ROW, NUMBER], lambda b, x, y: [b("mul", x, x), b("add", y, y)]),
        region([ROW, NUMBER], lambda b, x, y: [b("neg", x), b("neg", y)]),
    ]
    b = Builder([INDEX, ROW, NUMBER])
    block = b.finish(b.emit("switch", b.params, {}, cases))
    agree(toolchain, block, np.int64(index), ROW_B, np.float32(3))


def test_switch_within_a_loop(toolchain: Toolchain) -> None:
    cases = [
        region([ROW], lambda b, x, k=k: [b("add", x, b.full(ROW, float(k)))]) for k in range(4)
    ]
    block = for_block([ROW], lambda b, i, x: list(b.emit("switch", [i, x], {}, cases)))
    agree(toolchain, block, np.int64(6), ROW_A)
