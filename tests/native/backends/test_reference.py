"""The reference back end: control flow, lists, and the manners of an executable."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends.reference import ReferenceProgram, run_block
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
from delian.core.compiler.primitives.lists import Stack

F = TensorType(DType.F64)
I = TensorType(DType.I64)  # noqa: E741 (the type's own letter)
FS = ListType(F)


def number(value: float) -> Any:
    return np.array(value, np.float64)


def index(value: int) -> Any:
    return np.array(value, np.int64)


def test_if_runs_the_branch_that_the_predicate_chooses() -> None:
    then, otherwise = Builder([F]), Builder([F])
    b = Builder([TensorType(DType.BOOL), F])
    regions = [
        then.finish([then("neg", then.params[0])]),
        otherwise.finish([otherwise("exp", otherwise.params[0])]),
    ]
    block = b.finish(b.emit("if", b.params, {}, regions))
    assert run_block(block, [np.array(True), number(2)]) == [-2]
    assert run_block(block, [np.array(False), number(0)]) == [1]


def halve_until_small() -> Block:
    """while x >= limit: x, n = x / 2, n + 1; the limit is a const."""
    cond, body = Builder([F, F, I]), Builder([F, F, I])
    limit, x, _ = cond.params
    small = cond("le", limit, x)
    _, x, n = body.params
    halved = body("mul", x, body.constant(0.5, DType.F64))
    counted = body("add", n, body.constant(1, DType.I64))
    b = Builder([F, F])
    start = b.constant(0, DType.I64)
    regions = [cond.finish([small]), body.finish([halved, counted])]
    return b.finish(b.emit("while", [*b.params, start], {"consts": 1}, regions))


@pytest.mark.parametrize(("x", "rounds"), [(0.5, 0), (1.0, 1), (100.0, 7)])
def test_while_runs_until_its_condition_fails(x: float, rounds: int) -> None:
    result, count = run_block(halve_until_small(), [number(1), number(x)])
    assert count == rounds and result == x / 2**rounds


def push_and_pop() -> Block:
    """Pushes i * scale for i in lo..hi, pops all of them, each weighed by when it is popped."""
    push = Builder([I, F, FS])
    i, scale, stack = push.params
    scaled = push("mul", push("convert", i, dtype=DType.F64), scale)
    pushed = push.finish([push("list_push", stack, scaled)])
    pop = Builder([I, FS, F])
    i, stack, total = pop.params
    rest, top = pop.emit("list_pop", [stack])
    weighed = pop("mul", top, pop("convert", i, dtype=DType.F64))
    popped = pop.finish([rest, pop("add", total, weighed)])
    b = Builder([I, I, F])
    lo, hi, scale = b.params
    empty, zero = b("list_empty", type=FS), b.constant(0.0, DType.F64)
    (stack,) = b.emit("for", [lo, hi, scale, empty], {"consts": 1}, [pushed])
    _, total = b.emit("for", [lo, hi, stack, zero], {"consts": 0}, [popped])
    return b.finish([total])


@pytest.mark.parametrize(("lo", "hi"), [(0, 5), (3, 3), (4, 1), (-2, 3)])
def test_lists_carry_what_a_loop_saves(lo: int, hi: int) -> None:
    n = range(lo, hi)
    expected = 0.5 * sum(a * b for a, b in zip(reversed(n), n, strict=True))
    assert run_block(push_and_pop(), [index(lo), index(hi), number(0.5)]) == [expected]


def test_twenty_thousand_rounds_need_no_deep_stack() -> None:
    n = 20_000
    (total,) = run_block(push_and_pop(), [index(0), index(n), number(1)])
    assert total == sum(i * (n - 1 - i) for i in range(n))


def test_a_long_stack_is_added_and_let_go_without_recursion() -> None:
    stack = Stack(F)
    for i in range(200_000):
        stack = stack.push(number(i))
    assert next(iter(stack + stack)) == 2 * 199_999
    del stack


def test_adding_stacks_keeps_the_longer_ones_rest() -> None:
    long, short = Stack(F), Stack(F).push(number(10))
    for i in range(3):
        long = long.push(number(i))
    assert [float(v) for v in long + short] == [12, 1, 0]
    assert [float(v) for v in short + long] == [12, 1, 0]
    assert [float(v) for v in long + Stack(F)] == [2, 1, 0]
    assert [float(v) for v in long] == [2, 1, 0]


def test_stacks_of_stacks() -> None:
    deep = ListType(FS)
    b = Builder([F])
    inner = b("list_push", b("list_empty", type=FS), b.params[0])
    outer = b("list_push", b("list_empty", type=deep), inner)
    outer = b("list_add", outer, outer)
    rest, got = b.emit("list_pop", [outer])
    _, nothing = b.emit("list_pop", [rest])
    _, value = b.emit("list_pop", [got])
    _, zero = b.emit("list_pop", [nothing])
    assert run_block(b.finish([value, zero]), [number(3)]) == [6, 0]


def affine() -> Function:
    b = Builder([TensorType(DType.F32, (3,)), TensorType(DType.F32, (3,))])
    total = b("add", *b.params)
    block = b.finish([total, b.params[0]])
    return Function("affine", block, ("model.weight", "x"), ("sum", "same"))


def test_program_gives_arrays_of_its_own() -> None:
    program = ReferenceProgram(affine())
    x, y = np.ones(3, np.float32), np.arange(3, dtype=np.float32)
    total, same = program(x, y)
    assert total.tolist() == [1, 2, 3] and same.tolist() == [1, 1, 1]
    assert not np.shares_memory(same, x)
    assert same.flags.writeable and same.flags.c_contiguous


def test_program_writes_into_buffers_even_its_own_arguments() -> None:
    program = ReferenceProgram(affine())
    x, y = np.ones(3, np.float32), np.arange(3, dtype=np.float32)
    results = program(x, y, out=[x, y])
    assert results[0] is x and results[1] is y
    assert x.tolist() == [1, 2, 3] and y.tolist() == [1, 1, 1]


GOOD = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((GOOD,), "affine takes 2 arguments, not 1"),
        ((GOOD.astype(np.float64), GOOD), "argument 0 (model.weight) must be f32[3], not float64"),
        ((GOOD, np.zeros(4, np.float32)), "argument 1 (x) must have shape [3], not [4]"),
        ((GOOD, [0.0, 0.0, 0.0]), "argument 1 (x) must be an array f32[3], not list"),
    ],
)
def test_program_refuses_arguments_by_name(args: tuple[Any, ...], words: str) -> None:
    with pytest.raises(DelianError) as caught:
        ReferenceProgram(affine())(*args)
    assert words in str(caught.value)


def test_program_refuses_buffers_that_do_not_fit() -> None:
    program, wide = ReferenceProgram(affine()), np.zeros((3, 2), np.float32)
    for out in ([GOOD], [GOOD, wide[:, 0]], [GOOD, GOOD.astype(np.float64)]):
        with pytest.raises(DelianError):
            program(GOOD, GOOD, out=out)


def test_program_may_run_in_several_threads_at_once() -> None:
    params: list[Type] = [I, I, F]
    assert [p.type for p in push_and_pop().params] == params
    function = Function("sum", push_and_pop(), ("lo", "hi", "scale"), ("total",))
    program, found = ReferenceProgram(function), {}

    def work(n: int) -> None:
        found[n] = float(program(index(0), index(n), number(1))[0])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(50, 58)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: float(sum(i * (n - 1 - i) for i in range(n))) for n in range(50, 58)}


def test_values_are_let_go_after_their_last_use() -> None:
    """A chain of n large values must not keep n of them."""
    size, rounds = 1 << 16, 200
    b = Builder([TensorType(DType.F64, (size,))])
    value: Value = b.params[0]
    for _ in range(rounds):
        value = b("neg", value)
    block = b.finish([b("reduce_sum", value, axes=(0,))])
    x = np.ones(size)
    tracemalloc.start()
    try:
        run_block(block, [x])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * x.nbytes
